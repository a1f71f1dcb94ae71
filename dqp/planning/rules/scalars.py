"""Lets the value of a subquery reduce what is read.

A filter here that compares a column with a subquery that another statement reads would need all rows of the column's
table. A semi-join with the subquery below it leaves the same rows, and its one key becomes a condition of the statement
(``dqp.planning.semijoins``). The filter stays, because a subquery with several rows is an error.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.operators import SELECTIVITY, Filter, Join, Nested, Operator, column
from dqp.algebra.trees import free, rewritten
from dqp.algebra.types import same_values
from dqp.planning.context import Context
from dqp.planning.costing.reductions import leaves_of


def join_scalars(tree: Operator, context: Context) -> Operator:
    """Rule: rows that are compared with the value of a subquery are those of a semi-join with it."""
    context.learn(tree)
    return rewritten(tree, lambda each: _joined(each, context))


def _joined(tree: Operator, context: Context) -> Operator:
    if not isinstance(tree, Filter):
        return tree
    below, conditions = tree.input, []
    for each in conjuncts(tree.condition):
        compared = _compared(each)
        if compared is None or not _reduces(*compared, below, context):
            conditions.append(each)
            continue
        name, plan = compared
        below = Join(below, plan, "semi", exp.EQ(this=column(name), expression=column(plan.columns[0])))
        kept = exp.EQ(this=each.this, expression=each.expression)
        kept.meta[SELECTIVITY] = 1.0
        conditions.append(kept)
    condition = all_of(conditions)
    return tree if below is tree.input or condition is None else replace(tree, input=below, condition=condition)


def _compared(condition: exp.Expression) -> tuple[str, Operator] | None:
    """The column and the plan of a condition that the column is equal to a subquery without outer columns."""
    if type(condition) is not exp.EQ:
        return None
    sides = condition.this, condition.expression
    for one, other in (sides, sides[::-1]):
        if (
            isinstance(one, exp.Column)
            and isinstance(other, Nested)
            and other.kind == "scalar"
            and not free(other.plan)
        ):
            return one.name, other.plan
    return None


def _reduces(name: str, plan: Operator, below: Operator, context: Context) -> bool:
    """Whether a statement reads the plan's value, and others the column, which is of the same type."""
    (value,) = plan.columns
    if name not in below.columns or not same_values(context.types.get(name), context.types.get(value)):
        return False
    return any(leaves_of(plan, value)) and any(leaves_of(below, name))
