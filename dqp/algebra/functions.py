"""Lists DuckDB's functions by what the binder must know: which aggregate, which change from call to call, which reveal
the server. The lists come from ``duckdb_functions()``; a test fails when they are stale."""

from __future__ import annotations

from sqlglot import exp

AGGREGATES = frozenset(
    """any_value approx_count_distinct approx_quantile approx_top_k arbitrary arg_max arg_max_null arg_max_nulls_last
    arg_min arg_min_null arg_min_nulls_last argmax argmin array_agg avg bit_and bit_or bit_xor bitstring_agg bool_and
    bool_or combine_aggr corr count count_if count_star countif covar_pop covar_samp decimal_average entropy favg first
    fsum group_concat histogram histogram_exact kahan_sum kurtosis kurtosis_pop last list listagg lttb mad max max_by
    mean median min min_by mode product quantile quantile_cont quantile_disc regr_avgx regr_avgy regr_count
    regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy reservoir_quantile sem skewness stddev stddev_pop
    stddev_samp string_agg sum sum_no_overflow sumkahan var_pop var_samp variance variant_group_object
    geomean geometric_mean json_group_array json_group_object json_group_structure variant_group_array wavg
    weighted_avg""".split()
)
"""Aggregate functions, and macros for aggregates."""

VOLATILE = frozenset(
    """current_connection_id current_query_id current_transaction_id currval gen_random_uuid nextval random rand setseed
    setval stats txid_current uuid uuidv4 uuidv7 vector_type error sleep_ms pg_sleep age ago assert_true
    inet_client_addr inet_client_port inet_server_addr inet_server_port""".split()
)
"""Functions with another value at each call, or with an effect. A query with one becomes a Verbatim."""

REVEALING = frozenset("current_setting current_query getenv getvariable write_log".split())
"""Forbidden functions, which would reveal the server: its settings, its paths, or the text of the fragment."""

TABLE_FUNCTIONS = frozenset("range generate_series unnest repeat repeat_row json_each json_tree".split())
"""Table functions that compute their rows from their arguments alone."""

MOMENTS = {
    **dict.fromkeys(("now", "get_current_timestamp", "transaction_timestamp", "current_timestamp"), "TIMESTAMPTZ"),
    **dict.fromkeys(("current_date", "today"), "DATE"),
    **dict.fromkeys(("current_time", "get_current_time"), "TIMETZ"),
    **dict.fromkeys(("localtimestamp", "current_localtimestamp"), "TIMESTAMP"),
    **dict.fromkeys(("localtime", "current_localtime"), "TIME"),
}
"""Functions whose value is the moment when the query starts, and their types."""

_MOMENTS: dict[type[exp.Expr], str] = {
    exp.CurrentTimestamp: "TIMESTAMPTZ",
    exp.CurrentTimestampLTZ: "TIMESTAMPTZ",
    exp.CurrentDate: "DATE",
    exp.CurrentTime: "TIMETZ",
    exp.Localtimestamp: "TIMESTAMP",
    exp.Localtime: "TIME",
}
_VOLATILE = (exp.Rand, exp.Uuid)


def function_name(node: exp.Expr) -> str:
    """The function's name in lower case; empty if sqlglot has a class of its own for the function."""
    return node.name.lower() if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc) else ""


def is_aggregate(node: exp.Expr) -> bool:
    """Whether it is an aggregate, known to sqlglot or not."""
    return isinstance(node, exp.AggFunc) or function_name(node) in AGGREGATES


def is_volatile(node: exp.Expr) -> bool:
    """Whether each call may give another result."""
    return isinstance(node, _VOLATILE) or function_name(node) in VOLATILE


def moment_type(node: exp.Expr) -> str | None:
    """The DuckDB type of a function such as ``now()``; None for any other expression."""
    return _MOMENTS.get(type(node)) or (MOMENTS.get(function_name(node)) if isinstance(node, exp.Anonymous) else None)


def place_of(call: exp.Expression) -> int | None:
    """The position of a function call in the statement; None where it is unknown, as in a view."""
    start = call.meta.get("start")
    return None if start is None else int(start) + 1
