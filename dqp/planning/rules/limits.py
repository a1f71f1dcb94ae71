"""Copies a top-N (ORDER BY with LIMIT) towards the tables: the first rows in an order are among the first rows of the
left side of a left join, of each branch of a UNION ALL, and of the input of operation calls. The limit above stays."""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from dqp.algebra.operators import Distinct, Join, Nested, Operator, Project, SetOperation, Sort, column
from dqp.algebra.trees import rewritten, used, walk
from dqp.planning.context import Context
from dqp.planning.predicates import changing, replaced
from dqp.planning.rules.places import place

Keys = tuple[exp.Expression, ...]
MANY = 100_000
"""Rows above which a limit is not sent along: the order would cost more than it saves."""


def push_limits(tree: Operator, context: Context) -> Operator:
    """Rule: the first N are taken below left joins, unions and operation calls, too."""
    return rewritten(tree, lambda each: _sort(each, context))


def _sort(tree: Operator, context: Context) -> Operator:
    if not isinstance(tree, Sort) or tree.limit is None or tree.limit + tree.offset > MANY or _whole(tree, context):
        return tree
    below = _limited(tree.input, tree.keys, tree.limit + tree.offset, context)
    return tree if below is None else tree.with_inputs(below)


def _whole(tree: Operator, context: Context) -> bool:
    """Whether one source may be asked for all of it."""
    expressions = (each for operator in walk(tree) for each in operator.expressions)
    return place(tree) is not None and not any(changing(each, context.options.functions) for each in expressions)


def _limited(tree: Operator, keys: Keys, limit: int, context: Context) -> Operator | None:
    """The tree with the limit somewhere below; None where it can go nowhere."""
    if isinstance(tree, Project):
        items, functions = dict(tree.items), context.options.functions
        keys = tuple(replaced(each, items) for each in keys)
        if any(each.find(exp.Window, Nested) for each in items.values()) or any(changing(e, functions) for e in keys):
            return None
        inner = _limited(tree.input, keys, limit, context)
        if inner is None and any(changing(each, functions) for each in items.values()):
            inner = Sort(tree.input, keys, limit)  # the fewer rows are left, the fewer calls
    elif isinstance(tree, Join) and tree.kind in ("left", "asof left"):
        if not all(used(each) <= set(tree.left.columns) for each in keys):
            return None
        left = _limited(tree.left, keys, limit, context) or Sort(tree.left, keys, limit)
        return tree.with_inputs(left, tree.right)
    elif isinstance(tree, SetOperation) and tree.kind == "union" and tree.all:
        return _union(tree, keys, limit, context)
    else:
        return None
    return None if inner is None else tree.with_inputs(inner)


def _union(tree: SetOperation, keys: Keys, limit: int, context: Context) -> Operator | None:
    types = context.types
    for one, other in zip(tree.left.columns, tree.right.columns, strict=True):
        # Converted values may be in another order.
        if types.get(one) is None or types.get(one) != types.get(other):
            return None
    sides = []
    for side in tree.inputs:
        renamed: dict[str, exp.Expression] = {
            name: column(one) for name, one in zip(tree.names, side.columns, strict=True)
        }
        mine = tuple(replaced(each, renamed) for each in keys)
        distinct = isinstance(side, Distinct)
        sides.append((None if distinct else _limited(side, mine, limit, context)) or Sort(side, mine, limit))
    return replace(tree, left=sides[0], right=sides[1])
