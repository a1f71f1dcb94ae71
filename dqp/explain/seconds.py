"""The estimated seconds of an operator, by the cost model (``dqp.planning.costing.cost``), for showing a plan.

The rules compare costs of what they choose between; this adds them up for a plan that is chosen. What the model has no
price for (a filter, a projection: they run with what is below them) has none here either.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp

from dqp.algebra.operators import (
    Aggregate,
    Call,
    Distinct,
    Exchange,
    Join,
    Operator,
    Project,
    Remote,
    SetOperation,
    Sort,
)
from dqp.planning.context import Context
from dqp.planning.costing.cost import LOCAL_BUILD, LOCAL_ROW
from dqp.planning.costing.work import Work

MOVED_BYTE = 1e-9
"""A byte from one evaluator to another one; perf/results/exchange.md."""


def own(node: Operator, context: Context, calls: Mapping[str, float], copies: int = 1) -> float | None:
    """Seconds of the node alone, its inputs not counted; None where the model has no price. ``calls``: seconds of a row
    in an operation, by its name; ``copies``: to how many evaluators an exchange sends each row."""
    of = context.estimator.of
    if isinstance(node, Remote):
        dialect = context.dialect(node.source)
        return Work(context.estimator, dialect).tree(node.tree) + context.estimator.fetch(node.tree, dialect)
    if isinstance(node, Exchange):
        return of(node).bytes * MOVED_BYTE * copies
    if isinstance(node, Call):
        return of(node.input).rows * calls.get(node.function, 0.0)
    if isinstance(node, Join):
        left, right = of(node.left).rows, of(node.right).rows
        return (left + right + of(node).rows) * LOCAL_ROW + min(left, right) * LOCAL_BUILD
    if _works(node):
        return sum(of(each).rows for each in node.inputs) * LOCAL_ROW
    return None


def _works(node: Operator) -> bool:
    """Whether it does something with its rows beyond passing them on."""
    if isinstance(node, Project):
        return any(each.find(exp.Window) for each in node.expressions)
    if isinstance(node, SetOperation):
        return node.kind != "union" or not node.all
    return isinstance(node, Aggregate | Distinct) or (isinstance(node, Sort) and bool(node.keys))
