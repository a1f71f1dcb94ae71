"""The same statement has the same answer whatever is set for the role, the database or the server."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest

from dai.drivers import Driver, DriverOptions, driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.drivers.conformance_cases import CASES
from tests.drivers.statements import table, update
from tests.servers import Server
from tests.servers.hostile import hostile

SERVERS = {"postgresql": "postgres", "mariadb": "mariadb", "mysql": "mysql"}
ROWS = 20_000
"""More than are few: PostgreSQL and MariaDB read them in other ways."""
_MARIADB = (
    r"SELECT 'a\nb' AS a, LENGTH('\\') AS b",
    'SELECT "text" AS a, "it\'s" AS b, n AS `c d` FROM many WHERE n < 3',
    "SELECT 1 || 0 AS a, NOT 1 BETWEEN -5 AND 5 AS b, 1 / 3 AS c, CAST(0 AS UNSIGNED) AS d",
    "SELECT HEX(v) AS v, LENGTH(v) AS n FROM padded",
    "SELECT n FROM many WHERE n IS NULL",
    "SELECT a.n FROM many a JOIN many b ON a.n = b.n WHERE a.n < 10 ORDER BY a.n",
    "SELECT GROUP_CONCAT(n ORDER BY n) AS g FROM many WHERE n < 100",
    "SELECT n FROM many WHERE n < 8 ORDER BY CONCAT(REPEAT('x', 100), 9 - n)",
    "SELECT WEEK('2024-01-07') AS w, DATE_FORMAT('2024-03-01', '%M %W') AS m, NOW() > UTC_TIMESTAMP() AS z",
    "SELECT 'a b' REGEXP 'a b' AS r, 'a' REGEXP 'a.b' AS s",
    "SELECT COLLATION('a') AS c, CHARSET('a') AS s, 'ß' = 'ss' AS q, 'ü€' AS t",
    "SELECT @@autocommit AS a, @@sql_mode AS s, @@time_zone AS z",
)
QUERIES: Mapping[str, tuple[str, ...]] = {
    "postgresql": (
        "SELECT count(*) AS c FROM many WHERE t = NULL",
        r"SELECT length('a\b') AS n, 'it\s' AS t",
        "SELECT v::text AS t, v::date AS d, date_trunc('day', v) AS u FROM moments",
        "SELECT ARRAY[v] AS a, tstzrange(v, NULL) AS r FROM moments",
        "SELECT ARRAY[timestamp '2024-03-04 05:06'] AS a, daterange('2024-01-02', '2024-03-04') AS d",
        "SELECT (0.1::float8 + 0.2)::text AS t, ARRAY[0.1::float4, 1e-7] AS a, point(0.1, 1.0 / 3) AS p",
        r"SELECT '\x00ff41'::bytea::text AS t, ARRAY['\x41'::bytea] AS a",
        "SELECT '1 year -2 days 03:04:05'::interval::text AS t, '-1 2:03:04'::interval AS i",
        "SELECT '{NULL,\"NULL\"}'::text[] AS a",
        "SELECT upper(t) AS u FROM many WHERE n = 1",
        "SELECT format_type(1043, 14) AS f, quote_ident('plain') AS q, to_regclass('many')::text AS r",
        "SELECT xmlelement(name a, '\\x41'::bytea) AS x",
        "SELECT 'ü€' AS t",
    ),
    "mariadb": _MARIADB,
    "mysql": _MARIADB,
}
SETUP: Mapping[str, tuple[str, ...]] = {
    "postgresql": (
        "CREATE TABLE moments (v timestamptz)",
        "INSERT INTO moments VALUES ('2024-01-01 20:30:00+00')",
        "CREATE FUNCTION public.upper(text) RETURNS text LANGUAGE sql AS $$ SELECT 'forged' $$",
    ),
    "mariadb": ("CREATE TABLE padded (v char(5))", "INSERT INTO padded VALUES ('ab')"),
}
SETUP = {**SETUP, "mysql": SETUP["mariadb"]}


@dataclass(frozen=True)
class World:
    url: str
    server: Server
    database: str

    def driver(self) -> Driver:
        return driver_for(self.url, DriverOptions(pool_size=1, pool_wait=5))


@pytest.fixture(scope="module", params=[name for name in CASES if name in SERVERS])
def world(request: pytest.FixtureRequest) -> World:
    name = str(request.param)
    server = request.getfixturevalue(SERVERS[name])
    url = str(request.getfixturevalue(f"{SERVERS[name]}_module_url"))
    made = World(url, server, url.rpartition("/")[2])
    driver = made.driver()
    cases = CASES[name]
    update(driver, f"CREATE TABLE typed (k integer, {', '.join(f'c{n} {c.declared}' for n, c in enumerate(cases))})")
    for row in range(max(len(each.literals) for each in cases)):
        values = (each.literals[row] if row < len(each.literals) else "NULL" for each in cases)
        update(driver, f"INSERT INTO typed VALUES ({row}, {', '.join(values)})")
    many = pa.table({"n": pa.array(range(ROWS), pa.int64()), "t": pa.array([f"row {n}" for n in range(ROWS)])})
    driver.load("many", Stream.of(many), cancellation=Cancellation(), create=True)
    for statement in SETUP[name]:
        update(driver, statement)
    driver.close()
    return made


def answers(driver: Driver, dialect: str) -> list[Any]:
    text = {"postgres": "text"}.get(dialect, "char")
    typed = table(driver, "SELECT * FROM typed ORDER BY k")
    texts = ", ".join(f"CAST({name} AS {text}) AS {name}" for name in typed.schema.names)
    actual: list[Any] = [typed, table(driver, f"SELECT {texts} FROM typed ORDER BY k")]
    actual.append(table(driver, "SELECT n, t FROM many ORDER BY n"))
    actual.append(table(driver, "SELECT n, t FROM many WHERE n > ? AND t <> ?", 5, "it's \\"))
    actual += [table(driver, sql) for sql in QUERIES[{"postgres": "postgresql", "mysql": "mariadb"}[dialect]]]
    if driver.takes_tables():
        tables = {"mine": pa.table({"a": ["NULL", None, '"', "\\"], "n": [1, None, 3, 4]})}
        actual.append(driver.query("SELECT a, n FROM mine", cancellation=Cancellation(), tables=tables).table())
    return [(str(each.schema), each.to_pylist()) for each in actual]


def test_the_answers_are_those_of_a_server_as_it_comes(world: World) -> None:
    plain = world.driver()
    expected = answers(plain, plain.dialect)
    plain.close()
    with hostile(world.server, world.database):
        driver = world.driver()
        try:
            for actual, wanted in zip(answers(driver, driver.dialect), expected, strict=True):
                assert actual == wanted
            # A session that somebody has changed is as at first.
            update(driver, "CREATE TABLE other (n integer)")
            assert driver.update("INSERT INTO other VALUES (?)", [(1,), (2,)], cancellation=Cancellation()) == 2
            with driver.transaction(cancellation=Cancellation()) as session:
                assert session.update("DELETE FROM other WHERE n = 1") == 1
            more = Stream.of(pa.table({"n": [ROWS], "t": ["it's \\"]}))
            assert driver.load("many", more, cancellation=Cancellation()) == 1
            update(driver, f"DELETE FROM many WHERE n = {ROWS}")
            assert answers(driver, driver.dialect) == expected
            assert table(driver, "SELECT n FROM other").to_pylist() == [{"n": 2}]
            assert [each.name for each in driver.tables("other")] == ["other"]
        finally:
            update(driver, "DROP TABLE IF EXISTS other")
            driver.close()
