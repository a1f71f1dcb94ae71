"""Semi- and anti-joins with one inequality as joins with groups.

Where ``x`` has a partner with another ``y``, the least or the greatest ``y`` of the group is another one; where it has
one with ``y < x``, the least is. Groups take one pass; a database that has neither a hash
join nor an index compares each pair of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.operators import Aggregate, Filter, Item, Join, Operator, Project, Scan, column, subqueries
from dqp.algebra.trees import rewritten, used
from dqp.algebra.types import EXACT
from dqp.planning.context import Context
from dqp.planning.costing.cost import costs
from dqp.planning.predicates import COMPARISONS, FLIPPED, bare, changing, filtered
from dqp.planning.rules.places import place

FEWER = 0.25
"""The part of the rows that the groups are at most where another source, or no source, has the first side."""
ROWS = 1_000
_ORDERED = (*EXACT, "DECIMAL", "DATE", "TIMESTAMP")
"""Prefixes of types whose order is the same everywhere."""
_ENDS: Mapping[type[exp.Expression], tuple[type[exp.Min | exp.Max], ...]] = {
    exp.NEQ: (exp.Min, exp.Max),
    exp.LT: (exp.Min,),
    exp.LTE: (exp.Min,),
    exp.GT: (exp.Max,),
    exp.GTE: (exp.Max,),
}
"""For each comparison (second side's value on its left) the aggregates of the second side that decide it."""


def group_semi_joins(tree: Operator, context: Context) -> Operator:
    """Rule: semi- and anti-joins with equalities and one inequality compare with the ends of groups."""
    return rewritten(tree, lambda each: _grouped(each, context))


def _grouped(tree: Operator, context: Context) -> Operator:
    if not isinstance(tree, Join) or tree.kind not in ("semi", "anti") or tree.condition is None:
        return tree
    if subqueries(tree.condition) or changing(tree.condition, context.options.functions):
        return tree
    here, there = frozenset(tree.left.columns), frozenset(tree.right.columns)
    pairs: list[tuple[exp.Expression, exp.Expression]] = []
    inequality: tuple[type[exp.Expression], exp.Expression, exp.Expression] | None = None
    own: list[exp.Expression] = []
    for each in conjuncts(tree.condition):
        if used(each) <= there:
            own.append(each)
            continue
        if not isinstance(each, COMPARISONS):
            return tree
        operator: type[exp.Expression] = type(each)
        one, other = bare(each.this), bare(each.expression)
        if used(one) <= here:
            operator, one, other = FLIPPED.get(operator, exp.NEQ), other, one
        if not (used(one) and used(one) <= there and used(other) <= here):
            return tree
        if operator is exp.EQ:
            pairs.append((one, other))
        elif inequality is None:
            inequality = operator, one, other
        else:
            return tree
    if inequality is None or not _ordered(inequality[1], context) or not _pays(tree, pairs, context):
        return tree
    right = filtered(tree.right, own)
    keys = tuple((_name(one, "key", context), one) for one, _ in pairs)
    unequal, value, compared = inequality
    ends: tuple[Item, ...] = tuple((_name(value, "end", context), end(this=value)) for end in _ENDS[unequal])
    groups = Aggregate(right, keys, ends)
    equalities = [
        exp.EQ(this=other, expression=column(name)) for (name, _), (_, other) in zip(keys, pairs, strict=True)
    ]
    tests = [unequal(this=column(name), expression=compared) for name, _ in ends]
    differs = tests[0] if len(tests) == 1 else exp.Or(this=tests[0], expression=tests[1])
    return replace(tree, right=groups, condition=all_of([*equalities, differs]))


def _name(expression: exp.Expression, otherwise: str, context: Context) -> str:
    """A new identifier for a value of this type."""
    name = context.names.new(expression.name if isinstance(expression, exp.Column) else otherwise)
    known = context.type_of(expression)
    if known is not None:
        context.types[name] = known
    return name


def _ordered(expression: exp.Expression, context: Context) -> bool:
    return isinstance(expression, exp.Column) and (context.type_of(expression) or "").startswith(_ORDERED)


def _pays(tree: Join, pairs: list[tuple[exp.Expression, exp.Expression]], context: Context) -> bool:
    """Whether the groups are few, or a source without hash joins and without an index would compare each pair."""
    right = context.estimator.of(tree.right)
    if right.rows < ROWS:
        return False
    if not pairs:
        return True
    keys = [one.name for one, _ in pairs if isinstance(one, exp.Column)]
    source = place(tree)
    if source is None:
        return len(keys) == len(pairs) and right.distinct(keys) <= FEWER * right.rows
    return bool(costs(context.dialect(source)).compared) and not _indexed(tree.right, frozenset(keys))


def _indexed(tree: Operator, names: frozenset[str]) -> bool:
    """Whether one of the columns begins a key of the table that the tree reads."""
    while isinstance(tree, Filter | Project):
        tree = tree.input
    if not isinstance(tree, Scan):
        return False
    first = {key[0] for key in tree.table.keys if key}
    return any(name in first for identifier, name in tree.items if identifier in names)
