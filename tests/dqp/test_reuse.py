"""A plan that is used again with other parameters is the plan that they would have had."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pytest

import dqp
from dai.streams.cancellation import Cancellation
from dqp.algebra.operators import Names
from dqp.binding.binder import bind
from dqp.binding.marks import form
from dqp.interfaces.lab import Lab
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.planning.reuse import is_reusable, with_values
from dqp.planning.rules import optimise
from tests.dqp.plans import PLACEMENT, catalog, written
from tests.tpch import QUERIES, REUSED, parametrised, qualified


@pytest.mark.parametrize("name", REUSED)
def test_the_plan_is_that_of_the_other_values(name: str) -> None:
    over = catalog()
    sql, values, others = parametrised(qualified(QUERIES[name], PLACEMENT))
    known, wanted = form(values), form(others)
    assert known is not None
    assert wanted is not None
    assert known[0] == wanted[0]
    context = Context(over, Estimator(), Names())
    bound = bind(sql, over, values, known[1])
    tree = optimise(bound.tree, context)
    assert bound.reusable
    assert is_reusable(bound.tree, context)
    anew = Context(over, Estimator(), Names())
    planned = optimise(bind(sql, over, others).tree, anew)
    reused = with_values(tree, wanted[1])
    assert written(reused, Context(over, Estimator(), Names(), types=context.types)) == written(planned, anew)
    assert written(tree, context) != written(planned, anew)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path: Path = tmp_path_factory.mktemp("reuse") / "x.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute(
            """CREATE TABLE t AS SELECT range AS id, range % 10 AS k, 's' || range % 100 AS s,
               DATE '2020-01-01' + (range % 1000)::INT AS d, (range % 7)::DECIMAL(5, 2) AS a FROM range(5000)"""
        )
        connection.execute("CREATE TABLE u AS SELECT range AS k, 'name ' || range AS name FROM range(10)")
    with dqp.connect({"sources": {"one": f"duckdb:///{path}", "two": f"duckdb:///{path}"}}) as lab:
        yield lab


JOINED = "FROM one.t JOIN two.u USING (k) WHERE"
CASES: list[tuple[str, str, list[Any], list[Any], bool]] = [
    ("a number", f"SELECT count(*) AS n {JOINED} id < ?", [400], [900], True),
    ("a negative number", f"SELECT count(*) AS n {JOINED} -id < ?", [-3], [-7], True),
    ("a text", f"SELECT count(*) AS n {JOINED} s = ?", ["s1"], ["it's"], True),
    ("a date", f"SELECT count(*) AS n {JOINED} d >= ?", [date(2021, 1, 1)], [date(2021, 5, 5)], True),
    ("a decimal", f"SELECT count(*) AS n {JOINED} a < ?", [Decimal("2.5")], [Decimal("3.5")], True),
    ("a double", f"SELECT count(*) AS n {JOINED} a < ?", [2.5], [1.25], True),
    ("a range", f"SELECT count(*) AS n {JOINED} id BETWEEN ? AND ?", [10, 90], [20, 80], True),
    ("a list", f"SELECT count(*) AS n {JOINED} s IN (?, ?)", ["s1", "s2"], ["s3", "none"], True),
    (
        "HAVING",
        "SELECT k, sum(id) AS n FROM one.t GROUP BY k HAVING sum(id) > ? ORDER BY k",
        [1000000],
        [1248000],
        True,
    ),
    ("the same value twice", f"SELECT count(*) AS n {JOINED} (id > ? OR k = ?)", [7, 7], [2000, 3], True),
    ("a value of the text", f"SELECT count(*) AS n {JOINED} (k = 7 OR k = ?)", [7], [3], True),
    (
        "two uses of a table",
        "SELECT (SELECT count(*) FROM one.t WHERE id > ?) AS m, (SELECT count(*) FROM one.t WHERE id > ?) AS n",
        [10, 10],
        [20, 3000],
        True,
    ),
    ("a text that becomes a date", f"SELECT count(*) AS n {JOINED} d >= ?", ["2021-01-01"], ["2021-05-05"], False),
    ("a larger type", f"SELECT count(*) AS n {JOINED} id < ?", [400], [1 << 40], False),
    ("another type", f"SELECT count(*) AS n {JOINED} id < ?", [400], [4.5], False),
    ("NULL", f"SELECT count(*) AS n {JOINED} id < ?", [400], [None], False),
    (
        "what a constant decides",
        "SELECT count(*) AS n FROM (SELECT 5 AS c, id FROM one.t) WHERE c < ?",
        [6],
        [3],
        False,
    ),
    ("a limit", f"SELECT id AS n {JOINED} k = 3 ORDER BY id LIMIT ?", [2], [3], False),
    ("a pattern", f"SELECT count(*) AS n {JOINED} s LIKE ?", ["s1%"], ["s%2"], False),
    ("a result", f"SELECT max(id + ?) AS n {JOINED} k = 3", [2], [3], False),
    ("a result of CASE", f"SELECT sum(CASE WHEN id > 3 THEN ? END) AS n {JOINED} k = 3", [2], [3], False),
    ("a moment", f"SELECT count(*) AS n {JOINED} d + INTERVAL (?) DAY > DATE '2022-01-01'", [2], [30], False),
    ("a name that has the value", f"SELECT count(*) FILTER (WHERE id > ?) {JOINED} k = 3", [3], [4000], False),
    ("a name in FROM", f"SELECT * FROM (SELECT count(*) FILTER (WHERE id > ?) {JOINED} k = 3)", [3], [4000], False),
    ("a name that is a query", f"SELECT (SELECT count(*) {JOINED} id > ?), 1 AS n", [3900], [3600], False),
    ("a filter of a named result", f"SELECT count(*) FILTER (WHERE id > ?) AS n {JOINED} k = 3", [3], [4000], True),
    ("few rows, then many", f"SELECT count(*) AS n {JOINED} id < ?", [3], [4900], False),
]


@pytest.mark.parametrize(("sql", "first", "then", "reused"), [case[1:] for case in CASES], ids=[c[0] for c in CASES])
def test_answers(lab: Lab, sql: str, first: list[Any], then: list[Any], reused: bool) -> None:
    coordinator = lab.coordinator

    def asked(values: list[Any]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = coordinator.query(sql, values, cancellation=Cancellation()).table().to_pylist()
        return rows

    asked(first)
    planned = coordinator.plan(sql, then)
    assert (planned.seconds["binding"] == 0.0) == reused
    again = asked(then)
    coordinator.plans._kept.clear()
    assert asked(then) == again
    assert asked(first) != again or first == then


def test_names_are_values(lab: Lab) -> None:
    sql = f"SELECT count(*) AS n {JOINED} (id < $most OR id > $most + 4000) AND k <> $other"
    assert lab.sql(sql, most=100, other=3).arrow()["n"].to_pylist() == [899]
    sql = f"SELECT count(*) AS n {JOINED} id < $most AND k <> $other AND id <> $most"
    assert lab.sql(sql, most=100, other=3).arrow()["n"].to_pylist() == [90]
    assert lab.sql(sql, other=50, most=200).arrow()["n"].to_pylist() == [200]
