"""Makes groups once that a query uses several times with different filters on their keys: all groups that any use
needs, filtered where they are used.

Sums by customer and year, used once for this year and once for the last, need one pass over the sales of two years.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from dqp.algebra.chains import all_of, any_of, conjuncts
from dqp.algebra.operators import OF_RIGHT, Aggregate, Filter, Join, Nested, Operator, Project, column
from dqp.algebra.trees import used, walk
from dqp.planning.common_subtrees import alike
from dqp.planning.context import Context
from dqp.planning.predicates import bare, changing, comparison, filtered, replaced
from dqp.planning.rules.filters import push_filters
from dqp.planning.rules.places import place
from dqp.planning.rules.repeated import worth_asking

Predicates = list[exp.Expression]


def share_groups(tree: Operator, context: Context) -> Operator:
    """Rule: aggregates that are equal but for filters on their keys become equal."""
    if context.options.pushdown != "cost":
        return tree
    groups = [each for each in walk(tree) if isinstance(each, Aggregate) and each.keys and each.sets is None]
    shared = _shared([_lifted(each, context) for each in groups], context) if len(groups) > 1 else {}
    return _replaced(tree, shared) if shared else tree


def _replaced(tree: Operator, by: Mapping[int, Operator]) -> Operator:
    other = by.get(id(tree))
    return tree.with_inputs(*(_replaced(each, by) for each in tree.inputs)) if other is None else other


@dataclass(frozen=True)
class _Groups:
    """The ``groups`` of an ``aggregate`` without its filters on keys, and these, as filters above it."""

    aggregate: Aggregate
    groups: Operator
    filters: Predicates


def _lifted(tree: Aggregate, context: Context) -> _Groups:
    keys = {each.name: name for name, each in tree.keys if isinstance(each, exp.Column)}
    filters: Predicates = []
    return _Groups(tree, tree.with_inputs(_without(tree.input, keys, filters, context)), filters)


def _without(tree: Operator, keys: Mapping[str, str], filters: Predicates, context: Context) -> Operator:
    """The tree without conditions on keys (column: key), which are added to the filters."""
    if isinstance(tree, Filter):
        rest: Predicates = []
        for each in conjuncts(tree.condition):
            names = used(each)
            if names and names <= keys.keys() and each.find(Nested) is None and not _changing(each, context):
                filters.append(replaced(each, {name: column(keys[name]) for name in names}))
            else:
                rest.append(each)
        return filtered(_without(tree.input, keys, filters, context), rest)
    if isinstance(tree, Project):
        if any(each.find(exp.Window) for each in tree.expressions):
            return tree
        below_keys = {
            each.name: keys[name] for name, each in tree.items if name in keys and isinstance(each, exp.Column)
        }
        return tree.with_inputs(_without(tree.input, below_keys, filters, context))
    if isinstance(tree, Join):
        left = _without(tree.left, keys, filters, context) if tree.kind not in ("right", "full") else tree.left
        right = _without(tree.right, keys, filters, context) if tree.kind in OF_RIGHT else tree.right
        return tree.with_inputs(left, right)
    return tree


def _changing(condition: exp.Expression, context: Context) -> bool:
    return changing(condition, context.options.functions)


def _shared(groups: list[_Groups], context: Context) -> Mapping[int, Operator]:
    """By the id of an aggregate, its replacement: groups that are made once, filtered."""
    equals = alike([each.groups for each in groups])
    uses: dict[int, list[tuple[_Groups, Mapping[str, str]]]] = {}
    for each in groups:
        first, names = equals.get(id(each.groups), (each.groups, {name: name for name in each.groups.columns}))
        uses.setdefault(id(first), []).append((each, names))
    shared: dict[int, Operator] = {}
    for together in uses.values():
        if len(together) > 1:
            shared |= _wide(together, context)
    return shared


def _wide(together: list[tuple[_Groups, Mapping[str, str]]], context: Context) -> Mapping[int, Operator]:
    """The aggregates, each as a filter over groups that all of them can use."""
    filters = [
        [replaced(each, {old: column(new) for old, new in names.items()}) for each in groups.filters]
        for groups, names in together
    ]
    common = [each for each in filters[0] if all(each in other for other in filters)]
    own = [[each for each in one if each not in common] for one in filters]
    if not any(own):
        return {}
    wanted = common if not all(own) else [*common, _either(own)]
    condition = all_of(_needed(wanted))
    replacements: dict[int, Operator] = {}
    for (groups, names), rest in zip(together, own, strict=True):
        back = {new: column(old) for old, new in reversed([*names.items()])}
        if any(not used(each) <= back.keys() for each in (*wanted, *rest)):
            return {}
        wide = groups.groups
        if condition is not None:
            wide = push_filters(Filter(wide, replaced(condition, back)), context)
        if place(wide) is not None and not worth_asking(wide, context):
            return {}
        replacements[id(groups.aggregate)] = filtered(wide, [replaced(each, back) for each in rest])
    context.remark(f"{len(together)} uses of groups differ in filters on their keys, so these groups are made once")
    return replacements


def _needed(predicates: Predicates) -> Predicates:
    """The predicates without those that follow from another one: estimates, ours and the source's, would count both."""
    lists = [_listed(each) for each in predicates]
    implied = [
        mine is not None
        and any(
            other is not None and mine[0] == other[0] and (other[1] < mine[1] or (other[1] == mine[1] and at < number))
            for at, other in enumerate(lists)
        )
        for number, mine in enumerate(lists)
    ]
    return [each for each, follows in zip(predicates, implied, strict=True) if not follows]


def _listed(predicate: exp.Expression) -> tuple[str, frozenset[exp.Expression]] | None:
    """The column that must have one of some constants of one kind, and these; None for other predicates."""
    predicate = bare(predicate)
    if isinstance(predicate, exp.EQ) and (compared := comparison(predicate)) is not None:
        name, constants = compared[0], [bare(compared[2])]
    elif isinstance(predicate, exp.In) and isinstance(bare(predicate.this), exp.Column) and predicate.expressions:
        name, constants = bare(predicate.this).name, [bare(each) for each in predicate.expressions]
    else:
        return None
    kinds = {each.is_string if isinstance(each, exp.Literal) else None for each in constants}
    return (name, frozenset(constants)) if len(kinds) == 1 and None not in kinds else None


def _either(filters: list[Predicates]) -> exp.Expression:
    """The condition for the rows that any of the uses needs."""
    alternatives = list(dict.fromkeys(each for each in map(all_of, filters) if each is not None))
    compared = [comparison(bare(each)) for each in alternatives]
    pairs = [each for each in compared if each is not None and each[1] is exp.EQ]
    if len(pairs) == len(alternatives) and len({name for name, _, _ in pairs}) == 1:
        return exp.In(this=column(pairs[0][0]), expressions=[literal for _, _, literal in pairs])
    either = any_of(alternatives)
    assert either is not None
    return either
