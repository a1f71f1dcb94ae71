"""The order of inner joins: the rule. It takes joins that follow each other apart into relations and predicates, which
``join_order`` joins again."""

from __future__ import annotations

from sqlglot import exp

from dqp.algebra.chains import conjuncts
from dqp.algebra.operators import Filter, Join, Operator, SetOperation
from dqp.algebra.trees import used
from dqp.planning.context import Context
from dqp.planning.predicates import changing, filtered
from dqp.planning.rules.columns import in_order
from dqp.planning.rules.join_order import JoinOrder

MOST_ORDERED = 128
"""Most relations of a join whose orders are weighed."""


def order_joins(tree: Operator, context: Context) -> Operator:
    """Rule: inner joins in the order that costs least."""
    ordered_tree = _ordered(tree, frozenset(tree.columns), context)
    return in_order(ordered_tree, tree.columns)


def _ordered(tree: Operator, needed: frozenset[str], context: Context) -> Operator:
    """``needed``: the columns of the tree that something above it uses."""
    if isinstance(tree, Join) and tree.kind == "inner":
        leaves: list[Operator] = []
        predicates: list[exp.Expression] = []
        _flatten(tree, leaves, predicates)
        if not any(changing(each, context.options.functions) for each in predicates):
            wanted = needed.union(*map(used, predicates))
            predicates = _settled(leaves, predicates)
            leaves = [_ordered(each, wanted & frozenset(each.columns), context) for each in leaves]
            order = JoinOrder(leaves, predicates, needed, context)
            if len(leaves) <= MOST_ORDERED:
                return order.best()
            context.remark(f"a join of {len(leaves)} inputs is ordered by their sizes alone")
            return order.by_size()
    below = needed.union(*map(used, tree.expressions)) if isinstance(tree, Join | Filter) else None
    inputs = [_ordered(each, _among(below, each), context) for each in tree.inputs]
    if isinstance(tree, SetOperation):  # its columns match by position
        inputs = [in_order(each, before.columns) for each, before in zip(inputs, tree.inputs, strict=True)]
    return tree.with_inputs(*inputs)


def _among(needed: frozenset[str] | None, tree: Operator) -> frozenset[str]:
    columns = frozenset(tree.columns)
    return columns if needed is None else needed & columns


def _flatten(tree: Operator, leaves: list[Operator], predicates: list[exp.Expression]) -> None:
    if isinstance(tree, Join) and tree.kind == "inner":
        predicates += conjuncts(tree.condition)
        _flatten(tree.left, leaves, predicates)
        _flatten(tree.right, leaves, predicates)
    elif isinstance(tree, Filter) and isinstance(tree.input, Join) and tree.input.kind == "inner":
        predicates += conjuncts(tree.condition)
        _flatten(tree.input, leaves, predicates)
    else:
        leaves.append(tree)


def _settled(leaves: list[Operator], predicates: list[exp.Expression]) -> list[exp.Expression]:
    """The predicates over more than one leaf or none; the others become filters of their leaves. They were pushed down
    before columns were pruned, and what EXISTS asks for may need fewer columns by now."""
    owners = {name: number for number, each in enumerate(leaves) for name in each.columns}
    alone: dict[int, list[exp.Expression]] = {}
    rest: list[exp.Expression] = []
    for each in predicates:
        over = {owners[name] for name in used(each) if name in owners}
        (alone.setdefault(over.pop(), []) if len(over) == 1 else rest).append(each)
    for number, conditions in alone.items():
        leaves[number] = filtered(leaves[number], conditions)
    return rest
