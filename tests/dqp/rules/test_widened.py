"""Whole numbers that may overflow, computed with 64 bits."""

import duckdb
import pytest
import sqlglot

from dqp.planning.predicates import widened

TYPES = {
    "t": "TINYINT",
    "s": "SMALLINT",
    "k": "INTEGER",
    "b": "BIGINT",
    "ut": "UTINYINT",
    "u": "UINTEGER",
    "x": "DOUBLE",
    "p": "DECIMAL(30,20)",
    "d": "DATE",
}
LOWEST = {"t": -(2**7), "s": -(2**15), "k": -(2**31), "ut": 0, "u": 0}
HIGHEST = {"t": 2**7 - 1, "s": 2**15 - 1, "k": 2**31 - 1, "ut": 2**8 - 1, "u": 2**32 - 1}


def wide(sql: str) -> str | None:
    expression = widened(sqlglot.parse_one(sql, dialect="duckdb"), TYPES)
    return None if expression is None else expression.sql(dialect="duckdb").replace('"', "")


@pytest.mark.parametrize(
    ("sql", "cast"),
    [
        ("k + s", "CAST(k AS BIGINT) + CAST(s AS BIGINT)"),
        (
            "CASE WHEN k - s > 30 THEN s ELSE 0 END",
            "CASE WHEN CAST(k AS BIGINT) - CAST(s AS BIGINT) > 30 THEN s ELSE 0 END",
        ),
        ("x * 2.5 + x", "x * 2.5 + x"),
        ("d + 3", "d + 3"),
    ],
)
def test_only_what_may_overflow(sql: str, cast: str) -> None:
    assert wide(sql) == cast


@pytest.mark.parametrize(
    "sql",
    [
        pytest.param("b + k", id="64 bits already"),
        pytest.param("u * k", id="63 bits"),
        pytest.param("(k + k) * (s - k)", id="64 bits"),
        pytest.param("k * 4294967296", id="by a literal of 33 bits"),
        pytest.param("d + k * 2", id="a day, to which DuckDB adds no 64 bits"),
        pytest.param("year(d + (k + 1))", id="a day within a function"),
        pytest.param("k * s + p", id="a decimal"),
        pytest.param("CASE WHEN k * k > p THEN 1 END", id="compared with a decimal"),
        pytest.param("x + k * 2", id="a floating number"),
        pytest.param("k / s + 1", id="a division"),
    ],
)
def test_what_stays_as_it_is(sql: str) -> None:
    assert wide(sql) is None


@pytest.mark.parametrize(
    "sql", ["k * k", "-k", "u - ut", "-(k * k)", "u * s", "ut * u + t", "k * -3 - s", "(s + s) * (s - k)", "-u"]
)
@pytest.mark.parametrize("values", [LOWEST, HIGHEST, {**LOWEST, "s": HIGHEST["s"], "u": HIGHEST["u"]}])
def test_the_ends_of_all_types_fit(sql: str, values: dict[str, int]) -> None:
    columns = ", ".join(f"CAST({value} AS {TYPES[name]}) AS {name}" for name, value in values.items())
    exact = eval(sql, {}, values)
    assert duckdb.sql(f"SELECT {wide(sql)} FROM (SELECT {columns})").fetchall() == [(exact,)]
