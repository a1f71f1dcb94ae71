"""Removes branches of UNION that have no rows: a query may select one branch of a union by a constant that each branch
has in a column (in TPC-DS, the way of selling)."""

from __future__ import annotations

from dqp.algebra.chains import conjuncts
from dqp.algebra.operators import Aggregate, Distinct, Filter, Join, Operator, Project, SetOperation, Sort, column
from dqp.algebra.trees import rewritten
from dqp.planning.context import Context
from dqp.planning.definitions import same_type
from dqp.planning.predicates import FALSE, is_false


def drop_empty(tree: Operator, context: Context) -> Operator:
    """Rule: a branch of UNION whose filter is never true disappears."""
    return rewritten(tree, lambda each: _without(each, context))


def _without(tree: Operator, context: Context) -> Operator:
    if not isinstance(tree, SetOperation) or tree.kind != "union":
        return tree
    kept = [each for each in tree.inputs if not _empty(each)]
    if len(kept) == 2 or not all(
        same_type(tree.left, one, tree.right, other, context)
        for one, other in zip(tree.left.columns, tree.right.columns, strict=True)
    ):
        return tree
    rest = kept[0] if kept else tree.left
    renamed = Project(rest, tuple((name, column(one)) for name, one in zip(tree.names, rest.columns, strict=True)))
    if not kept:
        return Filter(renamed, FALSE)
    return renamed if tree.all else Distinct(renamed)


def _empty(tree: Operator) -> bool:
    """Whether the tree certainly has no rows."""
    if isinstance(tree, Filter) and any(map(is_false, conjuncts(tree.condition))):
        return True
    if isinstance(tree, Filter | Project | Sort | Distinct) or (
        isinstance(tree, Aggregate) and tree.keys and tree.sets is None
    ):
        return _empty(tree.input)
    if isinstance(tree, Join) and tree.kind in ("inner", "semi"):
        return any(map(_empty, tree.inputs))
    return False
