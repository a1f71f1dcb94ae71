"""What operators are expected to take, by the constants of the cost model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlglot import exp

from dqp.algebra.operators import (
    Aggregate,
    Call,
    Distinct,
    Exchange,
    Filter,
    Join,
    Names,
    Operator,
    Remote,
    SetOperation,
    Sort,
)
from dqp.algebra.operators import column as named
from dqp.algebra.table import ROWID, Column
from dqp.explain.seconds import MOVED_BYTE, own
from dqp.planning.context import Context
from dqp.planning.costing.cost import LOCAL_BUILD, LOCAL_ROW, ROUND_TRIP, Estimator, costs
from dqp.planning.costing.work import Work
from dqp.planning.rules.subtrees import ALL, AT_ONCE, _elapsed
from tests.dqp.doubles import numbers, remote

ROWS = 1_000.0
BYTES = ROWS * 12
PG = costs("postgresql")
LEFT, RIGHT = remote(numbers("pg", ROWS)), remote(numbers("pg", ROWS), "r")
POSITIVE = exp.GT(this=named("v"), expression=exp.Literal.number(0))
ON = exp.EQ(this=named("id"), expression=named("rid"))
FETCHED = ROUND_TRIP + ROWS * PG.row + BYTES * PG.byte


def seconds(node: Operator, copies: int = 1) -> float | None:
    context = Context(None, Estimator(), Names(), dialects={"pg": "postgresql"})
    return own(node, context, {"blast": 0.05}, copies)


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (LEFT, FETCHED + ROWS * PG.scan),
        (Remote("pg", Distinct(LEFT.tree)), FETCHED + ROWS * (PG.scan + PG.work) + ROWS * PG.ordered),
        (Join(LEFT, RIGHT, "inner", ON), 3 * ROWS * LOCAL_ROW + ROWS * LOCAL_BUILD),
        (Aggregate(LEFT, (), (("n", exp.Count(this=exp.Star())),)), ROWS * LOCAL_ROW),
        (Sort(LEFT, (exp.Ordered(this=named("v")),)), ROWS * LOCAL_ROW),
        (SetOperation(LEFT, RIGHT, "union", False, ("a", "b")), 2 * ROWS * LOCAL_ROW),
        (Exchange(LEFT, "gather"), BYTES * MOVED_BYTE),
        (Call(LEFT, "hits", "blast", (named("v"),)), ROWS * 0.05),
        (Filter(LEFT, POSITIVE), None),
        (Sort(LEFT, (), 5), None),
        (SetOperation(LEFT, RIGHT, "union", True, ("a", "b")), None),
    ],
)
def test_each_operator(node: Operator, expected: float | None) -> None:
    assert seconds(node) == (None if expected is None else pytest.approx(expected))


def test_a_join_in_a_source_costs_what_it_works_there() -> None:
    join = Remote("pg", Join(LEFT.tree, RIGHT.tree, "inner", ON))
    fetched = ROUND_TRIP + ROWS * (PG.row + 24 * PG.byte)
    assert seconds(join) == pytest.approx(fetched + 2 * ROWS * PG.scan + 3 * ROWS * PG.work)


def test_rows_that_go_to_several_are_moved_several_times() -> None:
    moved = Exchange(LEFT, "broadcast")
    assert seconds(moved, copies=4) == pytest.approx(4 * BYTES * MOVED_BYTE)


def test_a_condition_costs_where_it_was_measured() -> None:
    both = exp.And(this=POSITIVE, expression=exp.LT(this=named("id"), expression=exp.Literal.number(7)))
    for dialect, more in (("sqlite", 2 * ROWS * costs("sqlite").filter), ("postgresql", 0.0)):
        work = Work(Estimator(), dialect)
        assert work.tree(Filter(LEFT.tree, both)) - work.tree(LEFT.tree) == pytest.approx(more)


def test_the_group_of_all_rows_is_not_looked_for() -> None:
    work, counted = Work(Estimator(), "sqlite"), (("n", exp.Count(this=exp.Star())),)
    one, many = (work.node(Aggregate(LEFT.tree, keys, counted)) for keys in ((), (("id", named("id")),)))
    assert many - one >= ROWS * costs("sqlite").work


@pytest.mark.parametrize(("correlation", "known"), [(None, True), (-0.95, True), (0.3, False)])
def test_groups_come_in_the_order_of_an_index_only_where_their_rows_lie_together(
    correlation: float | None, known: bool
) -> None:
    table = numbers("pg", ROWS)
    columns = tuple(replace(each, correlation=correlation) for each in table.columns)
    scan = remote(replace(table, columns=columns, keys=(), indexes=(("id",),))).tree
    grouping = Work(Estimator(), "postgresql").node(Distinct(scan)) - ROWS * PG.work
    assert grouping == pytest.approx(ROWS * (PG.ordered if known else PG.group))


def test_a_large_table_of_sqlite_is_read_in_parts() -> None:
    context = Context(None, Estimator(), Names(), dialects={"lite": "sqlite"})

    def elapsed(rows: float, rowid: Column | None) -> float:
        return _elapsed(remote(replace(numbers("lite", rows), rowid=rowid, keys=())), ALL, context)

    number = Column(ROWID, "BIGINT", "INTEGER", False, None, 0.0, 1, 4_000_000, 8.0)
    assert elapsed(4e6, number) == pytest.approx(elapsed(4e6, None) / AT_ONCE)
    assert elapsed(1e5, number) == elapsed(1e5, None)
