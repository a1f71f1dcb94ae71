"""Moves filters as near to the tables as the answer allows, and adds filters that follow from the equalities of join
conditions. An outer join whose unmatched rows a filter, or another join, drops becomes an inner join."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlglot import exp

from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.operators import (
    ASOF,
    OF_LEFT,
    OF_RIGHT,
    Aggregate,
    Distinct,
    Exchange,
    Filter,
    Join,
    Nested,
    Operator,
    Project,
    SetOperation,
    Sort,
    column,
)
from dqp.algebra.trees import used
from dqp.algebra.types import same_values
from dqp.planning.context import Context
from dqp.planning.definitions import same_type
from dqp.planning.predicates import (
    FALSE,
    bare,
    changing,
    comparison,
    equality,
    filtered,
    is_false,
    is_true,
    partition_keys,
    rejects_nulls,
    replaced,
)
from dqp.planning.rules.simplify import folded
from dqp.sql.dialects.constants import number
from dqp.sql.dialects.typing import WHOLE, compared, is_exact, is_within, parsed

Predicates = list[exp.Expression]


def push_filters(tree: Operator, context: Context) -> Operator:
    """Rule: every condition as far down as it may go, and what follows from it across equalities."""
    return _pushed(tree, [], context)


def _kept(tree: Operator, predicates: Predicates) -> Operator:
    """The tree with the predicates that can go no further."""
    return filtered(tree, _different(each for each in predicates if not is_true(each)))


def _different(predicates: Iterable[exp.Expression]) -> Predicates:
    return list(dict.fromkeys(predicates))


def _pushed(tree: Operator, predicates: Predicates, context: Context) -> Operator:
    if any(map(is_false, predicates)):
        return Filter(_pushed(tree, [each for each in predicates if not is_false(each)], context), FALSE)
    if isinstance(tree, Filter):
        mine = conjuncts(tree.condition)
        still = [each for each in mine if changing(each, context.options.functions)]
        if still:
            # A function that differs from call to call must get the same rows, an expensive one no more of them.
            first = [each for each in mine if each not in still]
            return _kept(_pushed(tree.input, first, context), [*still, *predicates])
        return _pushed(tree.input, [*mine, *predicates], context)
    if isinstance(tree, Join):
        return _join(tree, predicates, context)
    if isinstance(tree, Project):
        return _project(tree, predicates, context)
    if isinstance(tree, Aggregate):
        return _aggregate(tree, predicates, context)
    if isinstance(tree, Distinct | Exchange):
        return tree.with_inputs(_pushed(tree.input, predicates, context))
    if isinstance(tree, Sort) and tree.limit is None and not tree.offset:
        return tree.with_inputs(_pushed(tree.input, predicates, context))
    if isinstance(tree, SetOperation):
        return _set(tree, predicates, context)
    below = tree.with_inputs(*(_pushed(each, [], context) for each in tree.inputs))
    return _kept(below, predicates)


def _project(tree: Project, predicates: Predicates, context: Context) -> Operator:
    items = dict(tree.items)
    partitions = partition_keys(tree.expressions)
    down: Predicates = []
    kept: Predicates = []
    for each in predicates:
        names = used(each) & items.keys()
        sources = [bare(items[name]) for name in names]
        fits = partitions is None or all(isinstance(one, exp.Column) and one.name in partitions for one in sources)
        if not names or not fits or any(_fixed(one, context) for one in sources):
            kept.append(each)
        else:
            below = replaced(each, {name: items[name] for name in names})
            down.append(below if used(below) else folded(below, context))
    return _kept(tree.with_inputs(_pushed(tree.input, down, context)), kept)


def _fixed(item: exp.Expression, context: Context) -> bool:
    """Whether an item has to be computed where it is."""
    return bool(item.find(exp.Window, Nested)) or changing(item, context.options.functions)


def _aggregate(tree: Aggregate, predicates: Predicates, context: Context) -> Operator:
    keys = dict(tree.keys)
    everywhere = set(keys)
    for one in tree.sets or ():
        everywhere &= set(one)
    down: Predicates = []
    kept: Predicates = []
    for each in predicates:
        names = used(each) & set(tree.columns)
        simple = not any(keys[name].find(Nested) for name in names & everywhere)
        if names and names <= everywhere and simple:
            down.append(replaced(each, {name: keys[name] for name in names}))
        else:
            kept.append(each)
    return _kept(tree.with_inputs(_pushed(tree.input, down, context)), kept)


def _set(tree: SetOperation, predicates: Predicates, context: Context) -> Operator:
    sides = []
    kept: Predicates = []
    alike = {
        name
        for name, one, other in zip(tree.names, tree.left.columns, tree.right.columns, strict=True)
        if same_type(tree.left, one, tree.right, other, context)
    }
    down = [each for each in predicates if used(each) & set(tree.names) <= alike]
    kept = [each for each in predicates if not used(each) & set(tree.names) <= alike]
    for side in tree.inputs:
        names: dict[str, exp.Expression] = {
            name: column(one) for name, one in zip(tree.names, side.columns, strict=True)
        }
        sides.append(_pushed(side, [replaced(each, names) for each in down], context))
    return _kept(tree.with_inputs(*sides), kept)


def _join(tree: Join, predicates: Predicates, context: Context) -> Operator:
    left, right = frozenset(tree.left.columns), frozenset(tree.right.columns)
    tree = _narrowed(tree, predicates, left, right)
    condition = conjuncts(tree.condition)
    kind = tree.kind
    to_left: Predicates = []
    to_right: Predicates = []
    here: Predicates = []
    above: Predicates = []

    for each in predicates:
        names = used(each)
        of_left, of_right = not names.isdisjoint(left), not names.isdisjoint(right) and kind not in ("semi", "anti")
        if of_left and not of_right and kind in OF_LEFT:
            to_left.append(each)
        elif of_right and not of_left and kind in OF_RIGHT:
            to_right.append(each)
        elif of_left and of_right and kind == "inner":
            here.append(each)
        else:
            above.append(each)
    for each in condition:
        names = used(each)
        of_left, of_right = not names.isdisjoint(left), not names.isdisjoint(right)
        if changing(each, context.options.functions):
            here.append(each)
        elif of_left and not of_right and kind in ("inner", "right", "semi"):
            to_left.append(each)
        elif of_right and not of_left and kind in ("inner", "left", "semi", "anti"):
            to_right.append(each)
        elif not is_true(each):
            here.append(each)

    if kind != "full":
        known_left, known_right = [*to_left, *facts(tree.left)], [*to_right, *facts(tree.right)]
        equalities = here
        if kind == "inner":
            inferred = _inferred(equalities, [*known_left, *known_right], context)
            to_left += [each for each in inferred if used(each) <= left and each not in known_left]
            to_right += [each for each in inferred if used(each) <= right and each not in known_right]
        else:
            # Rows of the side that is not preserved are of use only where they can match.
            if kind != "right":
                inferred = _inferred(equalities, known_left, context)
                to_right += [each for each in inferred if used(each) <= right and each not in known_right]
            if kind in ("right", "semi", "asof"):
                inferred = _inferred(equalities, known_right, context)
                to_left += [each for each in inferred if used(each) <= left and each not in known_left]
    below_left = _matched(tree.left, here) if kind in ("inner", "right", "semi", "asof") else tree.left
    below_right = _matched(tree.right, here) if kind in ("inner", "left", "semi", *ASOF) else tree.right
    join = replace(
        tree,
        left=_pushed(below_left, _different(to_left), context),
        right=_pushed(below_right, _different(to_right), context),
        condition=all_of(_different(here)),
    )
    return _kept(join, above)


def _matched(tree: Operator, conditions: Predicates) -> Operator:
    """The side of a join whose other rows are dropped, without outer rows that its conditions never match."""
    if isinstance(tree, Filter):
        return tree.with_inputs(_matched(tree.input, conditions))
    if not isinstance(tree, Join):
        return tree
    tree = _narrowed(tree, conditions, frozenset(tree.left.columns), frozenset(tree.right.columns))
    left = _matched(tree.left, conditions) if tree.kind not in ("right", "full") else tree.left
    right = _matched(tree.right, conditions) if tree.kind in OF_RIGHT else tree.right
    return tree.with_inputs(left, right)


def _narrowed(tree: Join, predicates: Predicates, left: frozenset[str], right: frozenset[str]) -> Join:
    """The join without the outer rows that the predicates drop anyway."""
    kind = tree.kind
    if kind in ("left", "full") and any(rejects_nulls(each, right) for each in predicates):
        kind = "inner" if kind == "left" else "right"
    if kind == "asof left" and any(rejects_nulls(each, right) for each in predicates):
        kind = "asof"
    if kind in ("right", "full") and any(rejects_nulls(each, left) for each in predicates):
        kind = "inner" if kind == "right" else "left"
    return tree if kind == tree.kind else replace(tree, kind=kind)


def _inferred(equalities: Predicates, known: Predicates, context: Context) -> Predicates:
    """What follows for columns that are equal to those of simple predicates."""
    groups: dict[str, set[str]] = {}
    for each in equalities:
        pair = equality(each)
        if pair is not None and same_values(context.types.get(pair[0]), context.types.get(pair[1])):
            group = groups.get(pair[0], {pair[0]}) | groups.get(pair[1], {pair[1]})
            groups.update(dict.fromkeys(group, group))
    if not groups:
        return []
    inferred: Predicates = []
    for each in known:
        if (name := simple_column(each)) is not None:
            others = sorted(groups.get(name, set()) - {name})
            inferred += [
                replaced(each, {name: column(other)}) for other in others if _says_it(each, name, other, context)
            ]
    return _different(inferred)


def _says_it(predicate: exp.Expression, name: str, other: str, context: Context) -> bool:
    """Whether the predicate says the same about the other column: a text becomes a number of the column's own type,
    '1.5' an INTEGER of 2, and a number of many digits may have no room in a type that both have in common."""
    type = context.types.get(other, "")
    return context.types.get(name) == type or all(_meets(each, type) for each in predicate.find_all(exp.Literal))


def _meets(literal: exp.Literal, type: str) -> bool:
    """Whether a number is compared with every value of an exact type without an overflow."""
    if literal.is_string:
        return False
    one, other = parsed(type), number(literal.name)[1]
    if not is_exact(other) or {one, other} <= WHOLE:
        return True
    both = compared(one, other)
    return is_within(one, both) and is_within(other, both)


def simple_column(node: exp.Expression) -> str | None:
    """The one column that the predicate compares with literals."""
    node = bare(node)
    compared = comparison(node)
    if compared is not None:
        return compared[0]
    if isinstance(node, exp.Between | exp.In):
        operand = bare(node.this)
        if isinstance(operand, exp.Column) and used(node) == {operand.name} and not node.find(Nested, exp.Query):
            return operand.name
    return None


def facts(tree: Operator) -> Predicates:
    """Simple predicates that are true for every row of the tree."""
    if isinstance(tree, Filter):
        mine = [each for each in conjuncts(tree.condition) if simple_column(each) is not None]
        return [*mine, *facts(tree.input)]
    if isinstance(tree, Join):
        of_sides: Predicates = []
        if tree.kind in OF_LEFT:
            of_sides += facts(tree.left)
        if tree.kind in (*OF_RIGHT, "asof"):
            of_sides += facts(tree.right)
        return of_sides
    if isinstance(tree, Project):
        names: dict[str, str] = {}
        for name, each in tree.items:
            if isinstance(each, exp.Column):
                names.setdefault(each.name, name)
        return _renamed(facts(tree.input), names)
    if isinstance(tree, Aggregate) and tree.sets is None:
        keys = {each.name: name for name, each in tree.keys if isinstance(each, exp.Column)}
        return _renamed(facts(tree.input), keys)
    if isinstance(tree, Distinct | Sort | Exchange):
        return facts(tree.input)
    return []


def _renamed(known: Predicates, names: dict[str, str]) -> Predicates:
    predicates = []
    for each in known:
        name = simple_column(each)
        if name is not None and (other := names.get(name)) is not None:
            predicates.append(each if other == name else replaced(each, {name: column(other)}))
    return predicates
