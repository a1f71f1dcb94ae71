"""Groups that are made in their source once keys have been read: they are those of joining first."""

import contextlib
import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import dqp
from dai.streams.cancellation import Cancellation
from dqp.interfaces.lab import Lab
from dqp.planning.semijoins import grouping
from tests.dqp.generated import differential
from tests.thoroughness import part

SALES = """CREATE TABLE sale AS SELECT i::INTEGER id, CASE WHEN i % 11 > 0 THEN i * 7 % 40 END::INTEGER k,
(i * 13 % 29)::BIGINT j, CASE WHEN i % 7 > 0 THEN i % 50 - 20 END::INTEGER n, (i % 90 / 4)::DECIMAL(9, 2) d,
'c' || i % 5 s FROM range(3000) r(i);
CREATE TABLE thing AS SELECT i::INTEGER j, 'g' || i % 3 g, (i % 4)::INTEGER h FROM range(29) r(i);
CREATE TABLE told AS SELECT i::INTEGER j, 't' || i % 3 t, 'u' || i % 3 u, 'v' || i % 4 v, 'w' || i % 5 w
FROM range(29) r(i)"""
DAYS = [(number, number % 6, "c" + str(number % 7)) for number in range(60)]
OLD = [(number, number % 40, number % 9) for number in range(500)]
TWICE = [(number % 30 if number else None, number % 4) for number in range(45)]


@pytest.fixture(scope="module")
def whole() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA a; CREATE SCHEMA b; USE a")
        connection.execute(SALES)
        connection.execute(
            "CREATE TABLE b.day (k BIGINT, m BIGINT, s VARCHAR); CREATE TABLE b.twice (k BIGINT, m BIGINT)"
        )
        connection.executemany("INSERT INTO b.day VALUES (?, ?, ?)", DAYS)
        connection.executemany("INSERT INTO b.twice VALUES (?, ?)", TWICE)
        connection.execute("CREATE SCHEMA c; CREATE TABLE c.old (id BIGINT, k BIGINT, n BIGINT)")
        connection.executemany("INSERT INTO c.old VALUES (?, ?, ?)", OLD)
        yield connection


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory: Path = tmp_path_factory.mktemp("grouping")
    with duckdb.connect(str(directory / "a")) as connection:
        connection.execute(SALES)
    with duckdb.connect(str(directory / "b")) as connection:
        connection.execute("CREATE TABLE day (k BIGINT PRIMARY KEY, m BIGINT, s VARCHAR)")
        connection.execute("CREATE TABLE twice (k BIGINT, m BIGINT)")
        connection.executemany("INSERT INTO day VALUES (?, ?, ?)", DAYS)
        connection.executemany("INSERT INTO twice VALUES (?, ?)", TWICE)
    with contextlib.closing(sqlite3.connect(directory / "c")) as lite:
        lite.execute("CREATE TABLE old (id integer PRIMARY KEY, k integer, n integer)")
        lite.executemany("INSERT INTO old VALUES (?, ?, ?)", OLD)
        lite.commit()
    urls = {each: f"duckdb:///{directory / each}" for each in ("a", "b")}
    with dqp.connect({"sources": {**urls, "c": f"sqlite:///{directory / 'c'}"}}) as lab:
        yield lab


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    for (module, name), value in differential.EAGER.items():
        if not module.endswith(".forms") and (".semijoins." in module or module.endswith(".aggregates")):
            monkeypatch.setattr(f"{module}.{name}", value)


def plan(lab: Lab, sql: str) -> str:
    explained = lab.coordinator.query(f"explain analyze {sql}", cancellation=Cancellation()).table()
    return "\n".join(explained.column(0).to_pylist())


def answers(lab: Lab, whole: duckdb.DuckDBPyConnection, sql: str) -> bool:
    """Whether the source groups the rows; the answer is that of one database, either way."""
    actual = lab.coordinator.query(sql, cancellation=Cancellation()).table()
    expected = whole.sql(sql).to_arrow_table()
    assert actual.schema.types == expected.schema.types
    rows = [sorted(zip(*each.to_pydict().values(), strict=True), key=repr) for each in (actual, expected)]
    assert rows[0] == rows[1], sql
    return "the keys only filter" in plan(lab, sql)


FILTERED = "a.sale x JOIN b.day y ON x.k = y.k AND y.m = 1"
THERE = f"""
SELECT x.s, SUM(n), COUNT(*), COUNT(n), AVG(n), MIN(d), MAX(d) FROM {FILTERED} GROUP BY x.s
SELECT COUNT(*) FROM {FILTERED}
SELECT g, h, AVG(n), SUM(d) FROM {FILTERED} JOIN a.thing t ON x.j = t.j GROUP BY ROLLUP (g, h)
SELECT g, h, COUNT(*) FROM {FILTERED} JOIN a.thing t ON x.j = t.j GROUP BY CUBE (g, h)
SELECT s, COUNT(*) FROM a.sale WHERE k IN (SELECT k FROM b.twice WHERE m = 1) GROUP BY s
SELECT x.s, COUNT(*) FROM a.sale x JOIN b.day y ON x.s = y.s AND y.k < 4 GROUP BY x.s
SELECT k, SUM(n) FROM (SELECT k, n FROM a.sale UNION ALL SELECT k, n FROM a.sale WHERE n > 3) x SEMI JOIN b.twice USING (k) GROUP BY k
SELECT n, COUNT(*) FROM (SELECT j, n::BIGINT n FROM a.sale UNION ALL SELECT k, n FROM c.old) x JOIN b.day y ON j = k AND m = 1 GROUP BY n
""".strip().split("\n")  # noqa: E501
NOT_THERE = f"""
SELECT s, COUNT(*) FROM a.sale x JOIN b.twice y ON x.k = y.k AND y.m IN (1, 3) GROUP BY s
SELECT y.s, COUNT(*) FROM a.sale x JOIN b.day y ON x.k = y.k AND y.m = 1 GROUP BY y.s
SELECT y.k, COUNT(*) FROM a.sale x JOIN b.day y ON x.k = y.k AND y.m = 1 GROUP BY y.k
SELECT x.s, COUNT(*) FROM a.sale x LEFT JOIN b.day y ON x.k = y.k AND y.m = 1 GROUP BY x.s
SELECT x.s, COUNT(*) FROM a.sale x JOIN b.day y ON x.k = y.k + 1 AND y.m = 1 GROUP BY x.s
SELECT x.s, COUNT(*) FROM a.sale x JOIN b.day y ON x.k = y.k AND x.n > y.m AND y.m < 2 GROUP BY x.s
SELECT x.s, COUNT(DISTINCT n) FROM {FILTERED} JOIN b.twice z ON z.k = x.j GROUP BY x.s
""".strip().split("\n")
"""Where the keys are not unique, another column is used, or the condition is another one."""


@pytest.mark.parametrize("sql", THERE)
def test_groups_are_made_where_keys_leave_the_rows(sql: str, lab: Lab, whole: duckdb.DuckDBPyConnection) -> None:
    assert answers(lab, whole, sql)


@pytest.mark.parametrize("sql", NOT_THERE)
def test_a_join_that_does_more_stays(sql: str, lab: Lab, whole: duckdb.DuckDBPyConnection) -> None:
    assert not answers(lab, whole, sql)


def test_a_statement_says_it_all(lab: Lab) -> None:
    assert "GROUP BY" in plan(lab, f"SELECT x.s, SUM(n) FROM {FILTERED} GROUP BY x.s").split("Asked first")[0]


def test_a_small_table_that_is_being_read_apart(
    lab: Lab, whole: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its join gives more bytes than its inputs have, so that it is made here, as long as the groups are."""
    monkeypatch.setattr("dqp.planning.rules.subtrees.ROUND_TRIP", 0.0)
    sql = f"SELECT t, u, v, w, SUM(n) FROM {FILTERED} JOIN a.told ON x.j = told.j GROUP BY ALL"
    assert "more than its inputs have" in lab.explain(sql).text
    assert answers(lab, whole, sql)


def test_what_saves_little_stays(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "WORTHWHILE", 10.0)
    assert "only filter" not in plan(lab, f"SELECT x.s, SUM(n) FROM {FILTERED} GROUP BY x.s")


AGGREGATES = [
    "COUNT(*)",
    "SUM(n)",
    "COUNT(n)",
    "AVG(n)",
    "MIN(n)",
    "MAX(d)",
    "SUM(d)",
    "AVG(d)",
    "MAX(x.s)",
    "SUM(n + d)",
]
JOINS = [
    "JOIN b.day y ON x.k = y.k AND y.m {test}",
    "JOIN b.day y ON x.j = y.k AND y.m {test}",
    "SEMI JOIN b.twice y ON x.k = y.k AND y.m {test}",
    "SEMI JOIN b.day y ON x.s = y.s AND y.m {test}",
    "JOIN b.twice y ON x.k = y.k AND y.m {test}",
    "LEFT JOIN b.day y ON x.k = y.k AND y.m {test}",
    "ANTI JOIN b.twice y ON x.k = y.k AND y.m {test}",
    "JOIN (SELECT k, COUNT(*) c FROM b.twice GROUP BY k) y ON x.k = y.k AND c {test}",
]


def random_query(rng: random.Random) -> str:
    joins = [rng.choice(JOINS) for _ in range(rng.choice((1, 1, 2)))]
    tests = [rng.choice(("= 1", "< 2", "= 9", "> 2", "IN (0, 3)")) for _ in joins]
    tables = " ".join(
        each.format(test=test).replace("y.", f"y{at}.").replace(" y ", f" y{at} ")
        for at, (each, test) in enumerate(zip(joins, tests, strict=True))
    )
    inner = rng.choice(("a.sale", "(SELECT * FROM a.sale WHERE n > 0 UNION ALL SELECT * FROM a.sale WHERE id < 900)"))
    keys = rng.sample(["x.s", "x.j", "g", "h"], rng.choice((0, 1, 1, 2)))
    thing = "JOIN a.thing t ON x.j = t.j" if {"g", "h"} & set(keys) else ""
    items = [*keys, *rng.sample(AGGREGATES, rng.choice((1, 2, 4)))]
    named = ", ".join(f"{each} AS c{at}" for at, each in enumerate(items))
    groups = rng.choice(("{}", "{}", "ROLLUP ({})", "CUBE ({})")).format(", ".join(keys))
    where = rng.choice(("", "", "WHERE n > -5", "WHERE x.k < 30"))
    return f"SELECT {named} FROM {inner} x {tables} {thing} {where}" + (f" GROUP BY {groups}" if keys else "")


@pytest.mark.parametrize("first", part(range(0, 200, 50)))
def test_generated(first: int, lab: Lab, whole: duckdb.DuckDBPyConnection) -> None:
    there = [answers(lab, whole, random_query(random.Random(seed))) for seed in range(first, first + 50)]
    assert sum(there) > 10
