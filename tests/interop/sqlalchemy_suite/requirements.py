"""What a resource behind a service has, of what SQLAlchemy's tests ask for, and why it has not the rest."""

from collections.abc import Callable
from typing import Any

from sqlalchemy.testing import exclusions
from sqlalchemy.testing.requirements import SuiteRequirements

_ONE_STATEMENT = "each statement runs in a session of its own: what a session keeps is gone with it"
_NO_ROWS = "a statement that changes data returns no rows"
_NOT_SAID = "the service does not say it of tables"
_AUTOCOMMIT = "each statement is a transaction of its own"
CLOSED = {
    "temporary_tables": _ONE_STATEMENT,
    "temp_table_reflection": _ONE_STATEMENT,
    "temp_table_names": _ONE_STATEMENT,
    "has_temp_table": _ONE_STATEMENT,
    "create_temp_table_as": _ONE_STATEMENT,
    "default_schema_name_switch": _ONE_STATEMENT,
    "insert_returning": _NO_ROWS,
    "update_returning": _NO_ROWS,
    "delete_returning": _NO_ROWS,
    "insert_executemany_returning": _NO_ROWS,
    "insertmanyvalues": _NO_ROWS,
    "savepoints": _AUTOCOMMIT,
    "two_phase_transactions": _AUTOCOMMIT,
    "isolation_level": _AUTOCOMMIT + ": there is one level, and the tests ask for a second",
    "autocommit": _AUTOCOMMIT + ": the tests turn it off",
    "server_side_cursors": "all rows stream, from cursors of one class; the tests look for a second",
    "empty_inserts_executemany": "rows without parameters cannot be sent",
    "view_reflection": _NOT_SAID + ": how a view is defined",
    "check_constraint_reflection": _NOT_SAID,
    "inline_check_constraint_reflection": _NOT_SAID,
    "unique_constraint_reflection": _NOT_SAID + ": unique constraints are unique indexes",
    "sequences": _NOT_SAID + ": sequences",
    "sequences_optional": _NOT_SAID + ": sequences",
    "computed_columns": _NOT_SAID,
    "foreign_key_constraint_name_reflection": _NOT_SAID,
    "constraint_comment_reflection": _NOT_SAID,
    "identity_columns": _NOT_SAID,
    "comment_reflection": "a comment of the tests has a form feed, which a perform document cannot have",
    "array_type": "the tests have arrays of two dimensions, which do not travel",
    "column_collation_reflection": _NOT_SAID,
    "materialized_views": _NOT_SAID,
    "sane_multi_rowcount": "the rows of executemany are one number",
}
"""The tests that need these are skipped, with the reason."""
BOTH = (
    *("views", "ctes", "ctes_with_update_delete", "window_functions", "intersect", "except_"),
    *("create_table_as", "nullsordering", "boolean_col_expressions", "tuple_in"),
    *("implements_get_lastrowid", "dbapi_lastrowid", "supports_is_distinct_from", "json_type"),
    *("server_defaults", "date_historic", "datetime_historic", "update_from"),
    *("precision_numerics_enotation_small", "supports_bitwise_or", "supports_bitwise_and", "supports_bitwise_not"),
    *("supports_bitwise_shift", "table_ddl_if_exists", "index_ddl_if_exists", "order_by_label_with_expression"),
    *("infinity_floats", "float_or_double_precision_behaves_generically", "datetime_literals", "uuid_data_type"),
)
POSTGRESQL = (
    *("regexp_match", "table_value_constructor", "unique_constraints_reflect_as_index", "reflect_tables_no_columns"),
    *("datetime_timezone", "delete_from", "regexp_replace"),
    *("precision_numerics_many_significant_digits", "precision_numerics_retains_significant_digits"),
    *("reflects_pk_names", "datetime_interval", "supports_distinct_on"),
    *("fetch_first", "fetch_ties", "fetch_no_order_by", "fetch_expression", "window_range", "window_range_numeric"),
    *("schemas", "schema_create_delete", "cross_schema_fk_reflection", "implicit_default_schema", "aggregate_order_by"),
    *("supports_bitwise_xor", "unusual_column_name_characters", "percent_schema_names", "deferrable_fks"),
)
SQLITE = ("legacy_unconditional_json_extract",)
NOT_SQLITE = (
    "parens_in_union_contained_select_w_limit_offset",
    "parens_in_union_contained_select_wo_limit_offset",
    "unicode_ddl",  # foreign keys of its tables refer to columns without a key, and the service enforces them
)


class Requirements(SuiteRequirements):
    """Those of SQLAlchemy, changed by the tables above."""


def _is(rule: Callable[..., Any], *arguments: str) -> property:
    """A new rule each time: SQLAlchemy adds others to it."""
    return property(lambda _: rule(*arguments))


for name, reason in CLOSED.items():
    setattr(Requirements, name, _is(exclusions.closed, reason))
for name in BOTH:
    setattr(Requirements, name, _is(exclusions.open))
for name in POSTGRESQL:
    setattr(Requirements, name, _is(exclusions.only_on, "postgresql"))
for name in SQLITE:
    setattr(Requirements, name, _is(exclusions.only_on, "sqlite"))
for name in NOT_SQLITE:
    setattr(Requirements, name, _is(exclusions.skip_if, "sqlite"))
