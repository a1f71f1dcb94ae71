"""A column has one type: the one that its driver delivers, also where nothing was declared. Answers are compared with a
DuckDB that holds everything."""

from collections.abc import Iterator
from contextlib import closing

import duckdb
import pytest

import dqp
from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dqp.interfaces.lab import Lab

SLOW = """CREATE VIEW slow AS
WITH RECURSIVE i(k) AS (SELECT 1 UNION ALL SELECT k + 1 FROM i WHERE k < 1000000) SELECT count(*) AS c FROM i"""
SQLITE = (
    "CREATE TABLE plain (id integer PRIMARY KEY, a, n numeric, r, t, z)",
    "INSERT INTO plain VALUES (1, 9, 9, 1.5, 'x', NULL), (2, 10, 10, 9, 'y', NULL), (3, 100, 100.5, 10, NULL, NULL)",
    "CREATE VIEW seen AS SELECT id % 2 AS part, max(a) AS most, avg(r) AS mean, min(t) AS t FROM plain GROUP BY 1",
    "CREATE TABLE made AS SELECT id + 8 AS next, a, n, r * 2 AS twice, t FROM plain",
    SLOW,
)
POSTGRESQL = (
    "CREATE DOMAIN price AS numeric(10,2)",
    "CREATE DOMAIN amount AS numeric CHECK (value > 0)",
    "CREATE DOMAIN whole AS integer",
    "CREATE TABLE plain (id integer PRIMARY KEY, p price, q amount, w whole, l amount[], m price[], n numeric[])",
    "INSERT INTO plain VALUES (1, 9, 9, 9, '{9}', '{9}', '{9}'), (2, 10, 10.5, 10, '{10}', '{10}', '{10,NULL}')",
)
MARIADB = (
    "CREATE TABLE plain (id integer PRIMARY KEY, p decimal(60,2), q decimal(40,0))",
    "INSERT INTO plain VALUES (1, 9, 9), (2, 10.5, 10), (3, NULL, NULL)",
)
HELD = {
    "lite": (
        "CREATE TABLE lite.plain (id bigint, a bigint, n double, r double, t varchar, z varchar)",
        *SQLITE[1:4],
    ),
    "pg": (
        "CREATE TABLE pg.plain (id int, p decimal(10,2), q double, w int, l double[], m decimal(10,2)[], n double[])",
        "INSERT INTO pg.plain VALUES (1, 9, 9, 9, [9], [9], [9]), (2, 10, 10.5, 10, [10], [10], [10, NULL])",
    ),
    "maria": ("CREATE TABLE maria.plain (id int, p double, q double)", MARIADB[1]),
}
QUERIES = [
    *(f"SELECT typeof({c}), max({c}) AS m, min({c}) AS n, count(*) FROM {table} GROUP BY 1" for table, columns in (
        ("lite.plain", "anrtz"), ("lite.seen", ("part", "most", "mean", "t")),
        ("lite.made", ("next", "a", "n", "twice", "t")), ("pg.plain", "pqw"), ("maria.plain", "pq"),
    ) for c in columns),
    *(f"SELECT typeof(u), max(u), sum(u) FROM (SELECT unnest({c}) AS u FROM pg.plain) GROUP BY 1" for c in "lmn"),
    "SELECT id FROM lite.plain WHERE a > 9 ORDER BY n DESC",
    "SELECT l.id, g.id FROM lite.plain l JOIN pg.plain g ON l.a = g.p",
    "SELECT l.id, m.id FROM lite.plain l JOIN maria.plain m ON l.a = m.q",
    "SELECT id FROM pg.plain WHERE p > 9.5 AND w = 10",
    "SELECT sum(p), avg(q), sum(w) FROM pg.plain",
]  # fmt: skip


@pytest.fixture(scope="module")
def held() -> Iterator[duckdb.DuckDBPyConnection]:
    with closing(duckdb.connect()) as lab:
        for schema, statements in HELD.items():
            lab.execute(f"CREATE SCHEMA {schema}")
            lab.execute(f"SET schema = '{schema}'")
            for each in statements:
                lab.execute(each.replace("CREATE VIEW ", f"CREATE VIEW {schema}."))
        yield lab


@pytest.fixture(scope="module")
def lab(postgres_module_url: str, mariadb_module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    urls = {
        "lite": f"sqlite:///{tmp_path_factory.mktemp('types') / 'lite.db'}",
        "pg": postgres_module_url,
        "maria": mariadb_module_url,
    }
    for alias, statements in (("lite", SQLITE), ("pg", POSTGRESQL), ("maria", MARIADB)):
        with closing(driver_for(urls[alias])) as driver:
            for each in statements:
                driver.update(each, cancellation=Cancellation())
    with dqp.connect({"sources": urls}) as lab:
        yield lab


def rows(found: list[dict[str, object]]) -> list[str]:
    return sorted(repr(tuple(each.values())) for each in found)


@pytest.mark.parametrize("sql", QUERIES)
def test_types_are_those_of_the_values(lab: Lab, held: duckdb.DuckDBPyConnection, sql: str) -> None:
    assert rows(lab.sql(sql).arrow().to_pylist()) == rows(held.sql(sql).to_arrow_table().to_pylist())


def test_a_slow_view_is_not_waited_for(lab: Lab) -> None:
    assert lab.sql("SELECT c::bigint AS c FROM lite.slow").arrow().to_pylist() == [{"c": 1_000_000}]
