"""Removes columns that nothing above needs."""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import replace

from sqlglot import exp

from dqp.algebra.operators import (
    Aggregate,
    Distinct,
    Exchange,
    Filter,
    Inline,
    Item,
    Join,
    Nested,
    Operator,
    Project,
    Scan,
    SetOperation,
    Sort,
    Verbatim,
    column,
)
from dqp.algebra.trees import everywhere, used
from dqp.planning.context import Context, nested_plans
from dqp.planning.predicates import rebuilt


def prune_columns(tree: Operator, context: Context) -> Operator:
    """Rule: no operator computes or reads a column that nothing uses."""
    pruned = in_order(_pruned(tree, frozenset(tree.columns)), tree.columns)
    return everywhere(pruned, lambda each: rebuilt(each, _existing)) if nested_plans(pruned) else pruned


def _existing(node: exp.Expression) -> exp.Expression | None:
    """Of the plan of an EXISTS only the rows count."""
    if not isinstance(node, Nested) or node.kind != "exists":
        return None
    return node.over(_pruned(node.plan, frozenset()))


def in_order(tree: Operator, columns: tuple[str, ...]) -> Operator:
    """The tree with exactly these columns, in this order."""
    if tree.columns == columns:
        return tree
    if isinstance(tree, Project):
        items = dict(tree.items)
        return replace(tree, items=tuple((each, items[each]) for each in columns))
    return Project(tree, tuple((each, column(each)) for each in columns))


def _all_used(expressions: Iterable[exp.Expression]) -> frozenset[str]:
    names: frozenset[str] = frozenset()
    for each in expressions:
        names |= used(each)
    return names


def _pruned(tree: Operator, needed: Set[str]) -> Operator:
    """The tree with at least the needed ones of its columns, in any order."""
    if isinstance(tree, Scan):
        return _scan(tree, needed)
    if isinstance(tree, Inline):
        items = tuple(each for each in tree.items if each[0] in needed) or tree.items[:1]
        return tree if items == tree.items else replace(tree, items=items)
    if isinstance(tree, Project):
        return _project(tree, needed)
    if isinstance(tree, Filter | Sort | Exchange):
        return tree.with_inputs(_pruned(tree.input, needed | _all_used(tree.expressions)))
    if isinstance(tree, Join):
        wanted = needed | _all_used(tree.expressions)
        return tree.with_inputs(*(_pruned(each, wanted & set(each.columns)) for each in tree.inputs))
    if isinstance(tree, Aggregate):
        aggregates = tuple(each for each in tree.aggregates if each[0] in needed)
        if not aggregates and not tree.keys:
            aggregates = tree.aggregates[:1]
        if len(aggregates) < len(tree.aggregates):
            tree = replace(tree, aggregates=aggregates)
        return tree.with_inputs(_pruned(tree.input, _all_used(tree.expressions)))
    if isinstance(tree, SetOperation):
        return _set(tree, needed)
    if isinstance(tree, Verbatim):
        shown = [frozenset(each for _, each in exposed) for exposed in tree.exposed]
        return tree.with_inputs(*map(_pruned, tree.parts, shown))
    if isinstance(tree, Distinct):
        return tree.with_inputs(in_order(_pruned(tree.input, frozenset(tree.columns)), tree.columns))
    return tree


def _scan(tree: Scan, needed: Set[str]) -> Operator:
    items = tuple(each for each in tree.items if each[0] in needed)
    if not items:
        # Rows without a column cannot be sent: the narrowest stands for them.
        items = (min(tree.items, key=lambda each: tree.table.column(each[1]).width or 8.0),)
    return tree if len(items) == len(tree.items) else replace(tree, items=items)


def _project(tree: Project, needed: Set[str]) -> Operator:
    items: tuple[Item, ...] = tuple(each for each in tree.items if each[0] in needed)
    if not items:
        return _pruned(tree.input, frozenset())
    inner = tree.input
    if isinstance(inner, Project) and _merged(items, inner):
        below = dict(inner.items)
        items = tuple((name, below[each.name] if isinstance(each, exp.Column) else each) for name, each in items)
        return _project(Project(inner.input, items), frozenset(name for name, _ in items))
    inner = _pruned(inner, _all_used(each for _, each in items))
    if all(isinstance(each, exp.Column) and each.name == name for name, each in items):
        return inner
    return replace(tree, input=inner, items=items)


def _merged(items: tuple[Item, ...], inner: Project) -> bool:
    """Whether the upper one only picks among the items of the lower one, each at most once."""
    names = [each.name for _, each in items if isinstance(each, exp.Column)]
    inner_names = {name for name, _ in inner.items}
    return len(names) == len(items) and len(set(names)) == len(names) and inner_names.issuperset(names)


def _set(tree: SetOperation, needed: Set[str]) -> Operator:
    places = range(len(tree.names))
    if tree.kind == "union" and tree.all:
        places = [place for place in places if tree.names[place] in needed] or [0]  # type: ignore[assignment]
    sides = []
    for side in tree.inputs:
        wanted = tuple(side.columns[place] for place in places)
        sides.append(in_order(_pruned(side, frozenset(wanted)), wanted))
    return replace(tree, left=sides[0], right=sides[1], names=tuple(tree.names[place] for place in places))
