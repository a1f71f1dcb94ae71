"""Orders the conditions on a table for databases that evaluate them in the order in which they are written.

Conditions that drop the most rows for their cost come first (predicate migration, Hellerstein and Stonebraker, SIGMOD
1993: by (selectivity - 1) / cost). In MariaDB, the order of the two ends of a range alone makes a fifth of a scan.
"""

from __future__ import annotations

import math

from sqlglot import exp

from dqp.algebra.chains import conjuncts
from dqp.algebra.keys import Keys, Members, number_of_keys
from dqp.algebra.operators import Filter, Nested, Operator, Scan
from dqp.algebra.trees import rewritten
from dqp.planning.context import Context
from dqp.planning.costing.estimates import Estimate
from dqp.planning.costing.selectivity import selectivity
from dqp.planning.predicates import changing, filtered

MOST = 50
"""Conditions that are put in an order: of more, written by a program, the order costs more than it saves."""
_NESTED = 1_000.0


def order_conditions(tree: Operator, context: Context) -> Operator:
    """Rule: of the conditions on a table, those that cost least and keep the fewest rows come first."""
    return rewritten(tree, lambda each: _ordered(each, context))


def _ordered(tree: Operator, context: Context) -> Operator:
    if not isinstance(tree, Filter) or not isinstance(tree.input, Scan):
        return tree
    conditions = conjuncts(tree.condition)
    if not 1 < len(conditions) <= MOST or any(changing(each, context.options.functions) for each in conditions):
        return tree
    estimate = context.estimator.of(tree.input)
    ranked = sorted(conditions, key=lambda each: _rank(each, estimate, context))
    if all(one is other for one, other in zip(ranked, conditions, strict=True)):
        return tree
    return filtered(tree.input, ranked)


def _rank(condition: exp.Expression, estimate: Estimate, context: Context) -> float:
    return (selectivity([condition], estimate)[0] - 1) / _cost(condition, context)


def _cost(condition: exp.Expression, context: Context) -> float:
    """In comparisons of numbers."""
    cost = 0.0
    for node in condition.walk():
        if isinstance(node, Nested):
            return _NESTED
        if isinstance(node, exp.Column):
            cost += 3.0 if context.types.get(node.name) == "VARCHAR" else 1.0
        elif isinstance(node, exp.In | Keys | Members):
            # A database searches a list by halves.
            cost += 0.5 + math.log2(max(1, number_of_keys(node)))
        elif isinstance(node, exp.Func | exp.Binary | exp.Like):
            cost += 0.5
    return max(cost, 0.5)
