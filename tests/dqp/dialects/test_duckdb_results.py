"""What DuckDB computes is written as it is; the types that are known of it are those that DuckDB gives."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot

from dqp.algebra.operators import Aggregate, Project, Scan, column
from dqp.algebra.table import Column, Table
from dqp.sql.dialects import NotPushed, statement
from dqp.sql.dialects.duckdb import RESULTS

COLUMNS = {**dict.fromkeys("ab", "VARCHAR"), **dict.fromkeys("mn", "TIMESTAMP"), **dict.fromkeys("xy", "DOUBLE")}
OF_MOMENTS = "day dayofmonth dayofweek isodow dayofyear hour minute month quarter second week year dayname monthname"
OF_NUMBERS = """acos asin atan cbrt cos cot degrees exp ln log log2 radians sin sqrt tan ceil floor round
    stddev stddev_pop stddev_samp variance var_pop median"""
OF_PAIRS = "atan2 pow corr covar_pop covar_samp regr_slope regr_intercept"
OTHERS = """
round(x, 1); quantile_cont(x, 0.9); median(x) FILTER (WHERE y > 1); extract(hour FROM m); date_diff('hour', m, n)
left(a, 2); right(a, 2); lower(a); upper(a); trim(a); rtrim(a, 'x'); lpad(a, 3, 'x'); rpad(a, 3, 'x'); reverse(a)
replace(a, 'x', 'y'); substring(a, 2); split_part(a, ',', 1); strftime(m, '%Y-%m'); regexp_replace(a, 'x', 'y')
regexp_extract(a, 'x'); regexp_extract(a, '(x)', 1); length(a); levenshtein(a, b); strpos(a, 'x'); position('x' IN a)
contains(a, b); starts_with(a, b); ends_with(a, b); regexp_matches(a, 'x'); TRY_CAST(a AS DECIMAL(9,2))
m::DATE - n::DATE; avg(m::DATE - n::DATE)
"""
CALLS = [
    *(f"{each}(m)" for each in OF_MOMENTS.split()),
    *(f"{each}(x)" for each in OF_NUMBERS.split()),
    *(f"{each}(x, y)" for each in OF_PAIRS.split()),
    *(each.strip() for each in OTHERS.strip().replace("\n", ";").split(";")),
]


def written(call: str) -> tuple[str, str]:
    """The statement that computes the call, and the type that is known of it."""
    columns = tuple(
        Column(name, type, type.lower(), True, None, 0.0, None, None, 8.0) for name, type in COLUMNS.items()
    )
    scan = Scan(Table("duck", "t", columns, rows=9), tuple((each, each) for each in COLUMNS))
    node = sqlglot.parse_one(call, read="duckdb").transform(
        lambda each: column(each.name) if isinstance(each, sqlglot.exp.Column) else each
    )
    groups = node.find(sqlglot.exp.AggFunc) is not None
    tree = Aggregate(scan, (), (("r", node),)) if groups else Project(scan, (("r", node),))
    made = statement(tree, "duckdb")
    return made.sql, dict(made.columns)["r"]


@pytest.mark.parametrize("call", CALLS)
def test_the_type_is_that_of_duckdb(call: str) -> None:
    sql, type = written(call)
    with duckdb.connect() as lab:
        lab.execute(f"CREATE TABLE t ({', '.join(map(' '.join, COLUMNS.items()))})")
        assert lab.sql(f"DESCRIBE {sql}").fetchall()[0][1] == type


@pytest.mark.parametrize("call", ["quantile_cont(x, [0.1, 0.9])", "regexp_extract(a, '(x)', ['r'])", "median(m)"])
def test_a_type_that_depends_on_arguments_is_not_known(call: str) -> None:
    with pytest.raises(NotPushed, match="not known without asking"):
        written(call)


def test_each_type_that_is_known_is_checked_above() -> None:
    checked = {type(each).__name__ for call in CALLS for each in sqlglot.parse_one(call, read="duckdb").walk()}
    assert RESULTS.keys() <= checked
