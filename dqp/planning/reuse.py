"""Uses a plan again with other values of the parameters.

The literals that stand for parameters are marked (``dqp.binding.marks``), and no rule decided by their values: then the
tree with other literals in their place is what planning would make of them, as far as its answer goes. How fast it is
depends on the values: where a statement is expected to give another number of rows, the query is planned anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlglot import exp

from dqp.algebra.constants import PLACE
from dqp.algebra.operators import Nested, Operator, Remote, Verbatim
from dqp.algebra.trees import everywhere, remotes, rewritten, walk_deep
from dqp.planning.context import Context
from dqp.planning.predicates import COMPARISONS, bare, rebuilt
from dqp.planning.rules.subtrees import refused

FACTOR = 3.0
"""Between the rows that a statement is expected to give with the one and with the other values, at most."""
FEW = 1_000.0
"""Rows that are always few."""
_OTHERS = ("expression", "low", "high")
"""Operands of a predicate opposite to its column."""


def is_reusable(bound: Operator, context: Context) -> bool:
    """Whether the marked literals of a bound tree may be exchanged. ``context``: of its planning, which is over."""
    if context.decided:
        return False
    for node in walk_deep(bound):
        if isinstance(node, Verbatim):
            return False
        for expression in node.expressions:
            marks = sum(1 for each in expression.find_all(exp.Literal) if each.args.get(PLACE) is not None)
            compared: Any = expression.find_all(*COMPARISONS, exp.Between, exp.In) if marks else ()
            if marks != sum(_compared(each, context) for each in compared):
                return False
    return True


def _compared(node: exp.Expression, context: Context) -> int:
    """The number of marked literals that the predicate compares with a column. A text becomes a value of the column's
    type, or an error: only one that stays a text counts."""
    column = bare(node.this)
    is_text = isinstance(column, exp.Column) and context.types.get(column.name) == "VARCHAR"
    others = node.expressions if isinstance(node, exp.In) else [node.args.get(each) for each in _OTHERS]
    literals = [bare(each) for each in others if each is not None]
    plain = [each.this if isinstance(each, exp.Neg | exp.Cast) else each for each in literals]
    pairs = zip(plain, literals, strict=True)
    return sum(
        1
        for each, whole in pairs
        if isinstance(each, exp.Literal)
        and each.args.get(PLACE) is not None
        and (is_text or not each.is_string or isinstance(whole, exp.Cast))
    )


def with_values(tree: Operator, values: Mapping[str, str]) -> Operator:
    """The tree with other texts of its marked literals, by their places."""

    def change(node: exp.Expression) -> exp.Expression | None:
        if isinstance(node, exp.Literal):
            text = values.get(node.args.get(PLACE, ""), node.this)
            return node if text == node.this else exp.Literal(**{**node.args, "this": text})
        if isinstance(node, Nested):
            return node.over(with_values(node.plan, values), lambda operand: rebuilt(operand, change))
        return None

    def statement(node: Operator) -> Operator:
        if not isinstance(node, Remote):
            return node
        tree = with_values(node.tree, values)
        return node if tree is node.tree else Remote(node.source, tree)

    return rewritten(everywhere(tree, lambda each: rebuilt(each, change)), statement)


def expected(tree: Operator, context: Context) -> tuple[float, ...]:
    """The estimated rows of the tree's statements."""
    return tuple(context.estimator.rows(each.tree) for each in remotes(tree))


def fits(tree: Operator, context: Context, rows: Sequence[float]) -> bool:
    """Whether the tree with other values is still a good plan, and one that its sources run. ``rows``: as ``expected``
    with the values that it was made for."""
    return all(_fits(each, context, before) for each, before in zip(remotes(tree), rows, strict=True))


def _fits(remote: Remote, context: Context, before: float) -> bool:
    few, many = sorted((before, context.estimator.rows(remote.tree)))
    return many <= max(FEW, FACTOR * few) and refused(remote.tree, remote.source, context) is None
