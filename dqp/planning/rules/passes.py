"""Computes aggregates over one table with different filters in one pass over it.

Each of them has one row, so their cross join is one aggregate over the rows that any of them needs, in which each has
its own FILTER.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sqlglot import exp

from dqp.algebra.chains import all_of, any_of, conjuncts
from dqp.algebra.operators import Aggregate, Filter, Item, Join, Nested, Operator, Project, Scan, column
from dqp.algebra.trees import free, used, walk
from dqp.planning.common_subtrees import alike
from dqp.planning.context import Context
from dqp.planning.predicates import calm, changing, filtered, rebuilt, replaced
from dqp.planning.rules.columns import in_order

_SIMPLE = (exp.Count, exp.Sum, exp.Avg, exp.Min, exp.Max)


def one_pass(tree: Operator, context: Context) -> Operator:
    """Rule: aggregates without groups that are joined, over the same rows but for filters, become one."""
    return _within(tree, context)


def _within(tree: Operator, context: Context, joined: bool = False) -> Operator:
    """``joined``: whether the tree is a side of an inner join, which was looked at as a whole."""
    if _is_inner(tree) and not joined:
        tree = _joined(tree, context)
    return tree.with_inputs(*(_within(each, context, _is_inner(tree)) for each in tree.inputs))


def _is_inner(tree: Operator) -> bool:
    return isinstance(tree, Join) and tree.kind == "inner"


@dataclass(frozen=True)
class _Pass:
    """One of the joined trees: the columns ``items``, of the ``aggregates`` over the rows of ``base`` for which the
    ``conditions`` hold."""

    tree: Operator
    base: Operator
    conditions: tuple[exp.Expression, ...]
    aggregates: tuple[Item, ...]
    items: tuple[Item, ...]

    def over(self, base: Operator, names: Mapping[str, str]) -> _Pass:
        """The same over an equal tree, in which the columns have these names."""
        by = {name: column(other) for name, other in names.items()}
        return replace(
            self,
            base=base,
            conditions=tuple(replaced(each, by) for each in self.conditions),
            aggregates=tuple((name, replaced(each, by)) for name, each in self.aggregates),
        )


def _joined(tree: Operator, context: Context) -> Operator:
    leaves: list[Operator] = []
    predicates: list[exp.Expression] = []
    _flatten(tree, leaves, predicates)
    passes = [each for each in (_pass(leaf, context) for leaf in leaves) if each is not None]
    merged: dict[int, Operator] = {}
    gone: set[int] = set()
    for together in _groups(passes):
        one = _merged(together, context)
        if one is not None:
            context.remark(f"{len(together)} aggregates over the same rows, but for filters, are made in one pass")
            merged[id(together[0].tree)] = one
            gone |= {id(each.tree) for each in together[1:]}
    if not merged:
        return tree
    first, *others = (merged.get(id(each), each) for each in leaves if id(each) not in gone)
    for each in others:
        first = Join(first, each)
    return in_order(filtered(first, predicates), tree.columns)


def _flatten(tree: Operator, leaves: list[Operator], predicates: list[exp.Expression]) -> None:
    if isinstance(tree, Join) and tree.kind == "inner":
        predicates += conjuncts(tree.condition)
        _flatten(tree.left, leaves, predicates)
        _flatten(tree.right, leaves, predicates)
    else:
        leaves.append(tree)


def _pass(tree: Operator, context: Context) -> _Pass | None:
    """The tree as a pass over rows; None where it has groups, or what must not see more rows than it does."""
    items: tuple[Item, ...] = tuple((name, column(name)) for name in tree.columns)
    inner = tree
    while isinstance(inner, Project):
        if any(not _plain(each, context) for each in inner.expressions):
            return None
        items, inner = _below(items, inner), inner.input
    if not isinstance(inner, Aggregate) or inner.keys or inner.sets is not None or free(tree):
        return None
    aggregates, conditions = inner.aggregates, []
    base = inner.input
    while isinstance(base, Filter | Project):
        if isinstance(base, Filter):
            conditions += conjuncts(base.condition)
        elif any(not _plain(each, context) for each in base.expressions):
            return None
        else:
            by = dict(base.items)
            aggregates = _below(aggregates, base)
            conditions = [replaced(each, by) for each in conditions]
        base = base.input
    if not all(isinstance(each, _SIMPLE) and _calm(each, context) for _, each in aggregates):
        return None
    return _Pass(tree, base, tuple(conditions), aggregates, items)


def _below(items: tuple[Item, ...], project: Project) -> tuple[Item, ...]:
    by = dict(project.items)
    return tuple((name, replaced(each, by)) for name, each in items)


def _plain(expression: exp.Expression, context: Context) -> bool:
    return expression.find(Nested, exp.Window) is None and not changing(expression, context.options.functions)


def _calm(aggregate: exp.Expression, context: Context) -> bool:
    """Whether its argument can be computed for rows that it does not count."""
    argument = aggregate.this
    if aggregate.expressions or isinstance(argument, exp.Star):
        return not aggregate.expressions
    values = argument.expressions if isinstance(argument, exp.Distinct) else [argument]
    return len(values) == 1 and calm(values[0], context.types)


def _groups(passes: list[_Pass]) -> list[list[_Pass]]:
    """Those over equal rows, but for their conditions."""
    equals = alike([each.base for each in passes])
    groups: dict[int, list[_Pass]] = {}
    for each in passes:
        base, names = equals.get(id(each.base), (each.base, {}))
        groups.setdefault(id(base), []).append(each.over(base, names) if names else each)
    return [each for each in groups.values() if len(each) > 1]


def _merged(passes: list[_Pass], context: Context) -> Operator | None:
    """One aggregate with the columns of all; None where the rows that any of them wants cannot be read at once: what
    they differ in is to be a matter of one table, which then can drop the others."""
    base = passes[0].base
    shared = [each for each in passes[0].conditions if all(each in other.conditions for other in passes)]
    own = [all_of([each for each in one.conditions if each not in shared]) for one in passes]
    different = list(dict.fromkeys(each for each in own if each is not None))
    names = frozenset[str]().union(*map(used, different))
    if different and not any(isinstance(each, Scan) and names <= {*each.columns} for each in walk(base)):
        return None
    if not all(calm(each, context.types) for each in different):
        return None
    conditions = shared if None in own else [*shared, any_of(different)]
    below = filtered(base, (each for each in conditions if each is not None))
    known: dict[exp.Expression, str] = {}
    items: list[Item] = []
    for one, passing in zip(passes, own, strict=True):
        names_of = {}
        for name, each in one.aggregates:
            counted = each if passing is None else exp.Filter(this=each, expression=exp.Where(this=passing))
            names_of[name] = known.setdefault(counted, name)
        items += [(name, _renamed(each, names_of)) for name, each in one.items]
    return Project(Aggregate(below, (), tuple((name, each) for each, name in known.items())), tuple(items))


def _renamed(expression: exp.Expression, names: Mapping[str, str]) -> exp.Expression:
    return rebuilt(
        expression, lambda node: column(names.get(node.name, node.name)) if isinstance(node, exp.Column) else None
    )
