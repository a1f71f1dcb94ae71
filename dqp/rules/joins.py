"""The order of inner joins, by cost: dynamic programming over all bushy orders of up to ``MOST`` relations, the
cheapest next join (greedy) beyond. A plan is known for each place where a join's result can be: in a source, as long as
all of it is there, or here. What is fetched from a source is paid when it leaves; so a join stays in its source as long
as its result costs less to fetch than its inputs do. The side that is built is the smaller one and stands right."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from dqp.cost import LOCAL_BUILD, LOCAL_ROW, ROUND_TRIP, Costs, costs
from dqp.estimates import Estimate
from dqp.operators import (
    Filter,
    Inline,
    Join,
    Operator,
    Remote,
    Scan,
    conjuncts,
    used,
    walk,
)
from dqp.rules.columns import in_order
from dqp.rules.context import Context, nested_plans, same_values
from dqp.rules.predicates import all_of, changing, equality, same
from dqp.selectivity import joined

MOST = 10
HERE = ""
"""The place that is no source."""


def order_joins(tree: Operator, context: Context) -> Operator:
    made = _ordered(tree, frozenset(tree.columns), context)
    return in_order(made, tree.columns)


def place(tree: Operator) -> str | None:
    """The source that holds everything the tree reads; None where several do, or what is at hand."""
    found: set[str] = set()
    if not _places(tree, found):
        return None
    return found.pop() if len(found) == 1 else None


def _places(tree: Operator, found: set[str]) -> bool:
    for each in walk(tree):
        if isinstance(each, Scan):
            found.add(each.table.source)
        elif isinstance(each, Inline | Remote):
            return False
        if len(found) > 1:
            return False
    return all(_places(each.plan, found) for each in nested_plans(tree))


def _ordered(tree: Operator, needed: frozenset[str], context: Context) -> Operator:
    """``needed``: the columns of the tree that something above it uses."""
    if isinstance(tree, Join) and tree.kind == "inner":
        leaves: list[Operator] = []
        predicates: list[exp.Expression] = []
        _flatten(tree, leaves, predicates)
        if not any(changing(each, context.options.functions) for each in predicates):
            wanted = needed.union(*map(used, predicates))
            leaves = [_ordered(each, wanted & frozenset(each.columns), context) for each in leaves]
            return _Order(leaves, predicates, needed, context).best()
    below = needed.union(*map(used, tree.expressions)) if isinstance(tree, Join | Filter) else None
    return tree.with_inputs(*(_ordered(each, _among(below, each), context) for each in tree.inputs))


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


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to have a set of relations at a place: seconds, and the two sets it is joined from (none: a leaf)."""

    seconds: float
    left: tuple[int, str] | None = None
    right: tuple[int, str] | None = None


class _Order:
    """Sets of relations are bits of a number."""

    def __init__(
        self, leaves: list[Operator], predicates: list[exp.Expression], needed: frozenset[str], context: Context
    ) -> None:
        self.leaves, self.needed, self.context = leaves, needed, context
        self.estimates = [context.estimator.of(each) for each in leaves]
        self.owners = {name: number for number, each in enumerate(leaves) for name in each.columns}
        predicates = list(dict.fromkeys(predicates))
        self.predicates = [(each, self._relations(each)) for each in (*predicates, *self._implied(predicates))]
        self.given = len(predicates)
        self.neighbours = [0] * len(leaves)
        for _, relations in self.predicates:
            for number in range(len(leaves)):
                if relations >> number & 1:
                    self.neighbours[number] |= relations & ~(1 << number)
        self.rows: dict[int, Estimate] = {}
        self.ways: dict[int, dict[str, _Way]] = {}
        self.widths: dict[int, float] = {}
        for number, leaf in enumerate(leaves):
            self.rows[1 << number] = self.estimates[number]
            where = place(leaf) or HERE
            self.ways[1 << number] = {where: _Way(self._work(leaf, where))}
            self._bring(1 << number)

    def _relations(self, predicate: exp.Expression) -> int:
        bits = 0
        for name in used(predicate):
            if name in self.owners:
                bits |= 1 << self.owners[name]
        return bits

    def _implied(self, predicates: list[exp.Expression]) -> list[exp.Expression]:
        """a = c where a = b and b = c: more orders without a cross product."""
        groups: dict[str, set[str]] = {}
        pairs = {frozenset(pair) for each in predicates if (pair := equality(each)) is not None}
        types = self.context.types
        for both in pairs:
            one, other = sorted(both)
            if same_values(types.get(one), types.get(other)):
                group = groups.get(one, {one}) | groups.get(other, {other})
                for name in group:
                    groups[name] = group
        implied = []
        for group in {id(each): each for each in groups.values()}.values():
            names = sorted(group)
            for number, one in enumerate(names):
                for other in names[number + 1 :]:
                    apart = self.owners.get(one) != self.owners.get(other)
                    if apart and frozenset((one, other)) not in pairs and one in self.owners and other in self.owners:
                        implied.append(same(one, other))
        return implied

    def _work(self, leaf: Operator, where: str) -> float:
        """Seconds that the leaf takes where it is."""
        if where == HERE:
            return 0.0
        rows = sum(self.context.estimator.of(each).rows for each in walk(leaf) if isinstance(each, Scan))
        return rows * self._costs(where).scan

    def _costs(self, where: str) -> Costs:
        return costs(self.context.dialect(where))

    def _width(self, relations: int) -> float:
        """Bytes of a row of the columns that are needed outside of the set."""
        found = self.widths.get(relations)
        if found is None:
            outside = self.needed.union(
                *(used(each) for each, over in self.predicates if over & relations and over & ~relations)
            )
            found = 0.0
            for number, estimate in enumerate(self.estimates):
                if relations >> number & 1:
                    found += sum(each.width for name, each in estimate.columns.items() if name in outside)
            self.widths[relations] = found
        return found

    def _bring(self, relations: int) -> None:
        """Adds the way that fetches the set from the source where it is cheapest."""
        ways = self.ways[relations]
        rows = self.rows[relations].rows
        for where, way in list(ways.items()):
            if where != HERE:
                one = self._costs(where)
                seconds = way.seconds + ROUND_TRIP + rows * (one.row + one.byte * self._width(relations))
                if HERE not in ways or seconds < ways[HERE].seconds:
                    ways[HERE] = _Way(seconds, (relations, where))

    def _join(self, one: int, other: int) -> None:
        """Enters the ways to join two sets."""
        both = one | other
        if both not in self.rows:
            between = [each for each, over in self.predicates if over & one and over & other and not over & ~both]
            self.rows[both] = joined(self.rows[one], self.rows[other], "inner", between)
        ways = self.ways.setdefault(both, {})
        first, second = self.rows[one].rows, self.rows[other].rows
        rows = self.rows[both].rows
        for where, way in self.ways[one].items():
            match = self.ways[other].get(where)
            if match is None or (where != HERE and not self.context.options.push_joins):
                continue
            if where == HERE:
                seconds = (first + second + rows) * LOCAL_ROW + min(first, second) * LOCAL_BUILD
            else:
                seconds = (first + second + rows) * self._costs(where).work
            seconds += way.seconds + match.seconds
            if where not in ways or seconds < ways[where].seconds:
                left, right = (one, other) if first >= second else (other, one)
                ways[where] = _Way(seconds, (left, where), (right, where))

    def _connected(self, one: int, other: int) -> bool:
        return any(self.neighbours[number] & other for number in range(len(self.leaves)) if one >> number & 1)

    def best(self) -> Operator:
        every = (1 << len(self.leaves)) - 1
        if len(self.leaves) <= MOST:
            self._all_orders(every)
        if every not in self.ways:
            self._greedy()
        where = min(self.ways[every], key=lambda each: self._finished(every, each))
        tree = self._tree(every, where, set())
        constant = all_of(each for each, over in self.predicates[: self.given] if not over)
        return tree if constant is None else Filter(tree, constant)

    def _finished(self, relations: int, where: str) -> float:
        """Seconds of a way. What is left in a source may be brought later, after a filter or an aggregate."""
        return self.ways[relations][where].seconds

    def _all_orders(self, every: int) -> None:
        for relations in range(3, every + 1):
            if relations & (relations - 1) == 0:
                continue
            for one in _halves(relations):
                other = relations & ~one
                if one in self.ways and other in self.ways and self._connected(one, other):
                    self._join(one, other)
            if relations in self.ways:
                self._bring(relations)

    def _greedy(self) -> None:
        """Joins the two sets whose join is the smallest, connected ones first, until one is left. Begins with the
        largest connected sets that have a way."""
        sets = self._components() if len(self.leaves) <= MOST else [1 << each for each in range(len(self.leaves))]
        while len(sets) > 1:
            pairs = [(one, other) for number, one in enumerate(sets) for other in sets[number + 1 :]]
            chosen = [each for each in pairs if self._connected(*each)] or pairs
            for one, other in chosen:
                if one | other not in self.ways:
                    self._join(one, other)
                    self._bring(one | other)
            one, other = min(chosen, key=lambda each: (self.rows[each[0] | each[1]].rows, each))
            sets = [each for each in sets if each not in (one, other)] + [one | other]

    def _components(self) -> list[int]:
        """The sets of relations that predicates connect."""
        found: list[int] = []
        for number in range(len(self.leaves)):
            group = 1 << number
            for each in list(found):
                if self._connected(each, group) or self._connected(group, each):
                    found.remove(each)
                    group |= each
            found.append(group)
        return found

    def _tree(self, relations: int, where: str, done: set[int]) -> Operator:
        way = self.ways[relations][where]
        if way.left is None:
            return self.leaves[relations.bit_length() - 1]
        if way.right is None:
            return self._tree(*way.left, done)
        left = self._tree(*way.left, done)
        right = self._tree(*way.right, done)
        one, other = way.left[0], way.right[0]
        between = [
            number
            for number, (_, over) in enumerate(self.predicates)
            if over and not over & ~(one | other) and number not in done and (over & one and over & other)
        ]
        done.update(between)
        return self._joining(left, right, between)

    def _joining(self, left: Operator, right: Operator, between: list[int]) -> Operator:
        conditions = [self.predicates[number][0] for number in between if number < self.given]
        extra = [self.predicates[number][0] for number in between if number >= self.given]
        if not any(equality(each) for each in conditions):
            conditions += extra[:1]
        return Join(left, right, "inner", all_of(conditions))


def _halves(relations: int) -> Iterator[int]:
    """Each way to part the set, once."""
    lowest = relations & -relations
    rest = relations & ~lowest
    part = rest
    while part:
        part = (part - 1) & rest
        yield part | lowest
