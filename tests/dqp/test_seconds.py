"""What operators are expected to take, by the constants of the cost model."""

from __future__ import annotations

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
from dqp.explain.seconds import MOVED_BYTE, own
from dqp.planning.context import Context
from dqp.planning.costing.cost import LOCAL_BUILD, LOCAL_ROW, ROUND_TRIP, Estimator, costs
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
