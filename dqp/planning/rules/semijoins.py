"""Semi-joins and anti-joins. Between two tables of one source they come before other joins, so that the source can run
them. With rows of another source, that source first reduces its rows to one for each key."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from dqp.algebra.chains import conjuncts
from dqp.algebra.operators import OF_LEFT, OF_RIGHT, Distinct, Filter, Join, Operator, Project, column
from dqp.algebra.trees import rewritten, used
from dqp.algebra.types import same_values
from dqp.planning.context import Context
from dqp.planning.predicates import equality, replaced
from dqp.planning.rules.places import place

FEWER = 0.25
"""The source removes duplicate keys if they are at most this part of the rows."""
ROWS = 1_000


def push_semi_joins(tree: Operator, context: Context) -> Operator:
    """Rule: semi- and anti-joins of tables of one source come before other joins."""
    return rewritten(tree, lambda each: _pushed(each, context))


def thin_semi_joins(tree: Operator, context: Context) -> Operator:
    """Rule: the source makes each key of a semi-join's second side one row, where these are few."""
    return rewritten(tree, lambda each: _thin(each, context))


def _thin(tree: Operator, context: Context) -> Operator:
    """With each different key of the right side once, where that makes many rows few."""
    if not isinstance(tree, Join) or tree.kind not in ("semi", "anti") or place(tree) is not None:
        return tree
    if place(tree.right) is None or tree.condition is None or isinstance(tree.right, Distinct):
        return tree
    keys = tuple(each for each in tree.right.columns if each in used(tree.condition))
    estimate = context.estimator.of(tree.right)
    if not keys or estimate.distinct(keys) > FEWER * estimate.rows or estimate.rows < ROWS:
        return tree
    return replace(tree, right=Distinct(Project(tree.right, tuple((each, column(each)) for each in keys))))


def _pushed(tree: Operator, context: Context) -> Operator:
    if not isinstance(tree, Join) or tree.kind not in ("semi", "anti") or tree.condition is None:
        return tree
    source = place(tree.right)
    if source is None or place(tree.left) is not None:
        return tree
    return _below(tree, tree.left, source, context) or tree


def _below(semi: Join, tree: Operator, source: str, context: Context) -> Operator | None:
    """The tree with the semi-join done on that part of it which is in the source; None where none has what it needs."""
    if place(tree) == source:
        return replace(semi, left=tree)
    if isinstance(tree, Filter):
        lower = _below(semi, tree.input, source, context)
        return None if lower is None else tree.with_inputs(lower)
    if isinstance(tree, Join) and semi.condition is not None:
        semi = _renamed(semi, tree, source, context)
        assert semi.condition is not None
        needed = used(semi.condition)
        of_left, of_right = needed & set(tree.left.columns), needed & set(tree.right.columns)
        if not of_right and tree.kind in OF_LEFT:
            lower = _below(semi, tree.left, source, context)
            return None if lower is None else tree.with_inputs(lower, tree.right)
        if not of_left and tree.kind in OF_RIGHT:
            lower = _below(semi, tree.right, source, context)
            return None if lower is None else tree.with_inputs(tree.left, lower)
    return None


def _renamed(semi: Join, tree: Join, source: str, context: Context) -> Join:
    """The semi-join with columns of the source in place of those that the inner join says are equal to them."""
    if tree.kind != "inner" or semi.condition is None:
        return semi
    by: dict[str, exp.Expression] = {}
    for each in conjuncts(tree.condition):
        pair = equality(each)
        if pair is None or not same_values(context.types.get(pair[0]), context.types.get(pair[1])):
            continue
        for one, other in (pair, pair[::-1]):
            if one in used(semi.condition) and _at(tree, other) == source and _at(tree, one) != source:
                by[one] = column(other)
    return replace(semi, condition=replaced(semi.condition, by)) if by else semi


def _at(tree: Operator, name: str) -> str | None:
    """The source of the largest part with one source that gives the column."""
    if name not in tree.columns:
        return None
    source = place(tree)
    if source is not None:
        return source
    return next((_at(each, name) for each in tree.inputs if name in each.columns), None)
