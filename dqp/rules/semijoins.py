"""A semi-join or anti-join of two tables of one source is done before they are joined with anything else, so that the
source can do it."""

from __future__ import annotations

from dataclasses import replace

from dqp.operators import Filter, Join, Operator, rewritten, used
from dqp.rules.context import Context
from dqp.rules.joins import place


def push_semi_joins(tree: Operator, context: Context) -> Operator:
    return rewritten(tree, _pushed)


def _pushed(tree: Operator) -> Operator:
    if not isinstance(tree, Join) or tree.kind not in ("semi", "anti") or tree.condition is None:
        return tree
    source = place(tree.right)
    if source is None or place(tree.left) is not None:
        return tree
    return _below(tree, tree.left, source) or tree


def _below(semi: Join, tree: Operator, source: str) -> Operator | None:
    """The tree with the semi-join done on that part of it which is in the source; None where none has what it needs."""
    if place(tree) == source:
        return replace(semi, left=tree)
    if isinstance(tree, Filter):
        found = _below(semi, tree.input, source)
        return None if found is None else tree.with_inputs(found)
    if isinstance(tree, Join) and semi.condition is not None:
        needed = used(semi.condition)
        of_left, of_right = needed & set(tree.left.columns), needed & set(tree.right.columns)
        if not of_right and tree.kind in ("inner", "left", "semi", "anti"):
            found = _below(semi, tree.left, source)
            return None if found is None else tree.with_inputs(found, tree.right)
        if not of_left and tree.kind in ("inner", "right"):
            found = _below(semi, tree.right, source)
            return None if found is None else tree.with_inputs(tree.left, found)
    return None
