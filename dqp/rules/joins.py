"""The order of inner joins, by cost: dynamic programming over all bushy orders of up to ``MOST`` relations, the
cheapest next join (greedy) beyond. A plan is known for each place where a join's result can be: in a source, as long as
all of it is there, or here. What is fetched from a source is paid when it leaves; so a join stays in its source as long
as its result costs less to fetch than its inputs do. What is joined here with something small that was fetched before
is expected to be reduced by its keys (``dqp.rules.program``), and to cost less by that. The side that is built is the
smaller one and stands right."""

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
from dqp.rules.program import LARGEST_PART, NUMBER, most_listed
from dqp.selectivity import joined

MOST = 10
HERE = ""
"""The place that is no source."""
HOPED = 0.7
"""The part of what reductions are expected to save that is counted: a statement that is one saves for certain."""
MOST_BYTES = 16e6
"""Of what is expected to reduce something else."""


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
class _Sent:
    """A set of relations that a source sends, with the rows that are left of it."""

    relations: int
    where: str
    rows: float


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to have a set of relations at a place: seconds, and the two sets it is joined from (none: a leaf).
    ``sent``: what of it was fetched."""

    seconds: float
    left: tuple[int, str] | None = None
    right: tuple[int, str] | None = None
    sent: tuple[_Sent, ...] = ()


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
        self.edges = [
            (1 << self.owners[one], one, 1 << self.owners[other], other)
            for each, over in self.predicates
            if (pair := equality(each)) is not None and pair[0] in self.owners and pair[1] in self.owners
            for one, other in (pair, pair[::-1])
            if over & (over - 1)
        ]
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
                    ways[HERE] = _Way(seconds, (relations, where), None, (_Sent(relations, where, rows),))

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
            sent: tuple[_Sent, ...] = ()
            if where == HERE:
                saved, sent = self._reduced(way.sent, match.sent)
                seconds = (first + second + rows) * LOCAL_ROW + min(first, second) * LOCAL_BUILD - saved
            else:
                seconds = self._joining_there(one, other, rows, where)
            seconds += way.seconds + match.seconds
            if where not in ways or seconds < ways[where].seconds:
                left, right = (one, other) if first >= second else (other, one)
                ways[where] = _Way(seconds, (left, where), (right, where), sent)

    def _joining_there(self, one: int, other: int, rows: float, where: str) -> float:
        """Seconds that a source needs to join two sets. One that has no hash joins looks every row of one set up in an
        index of a table, or compares all rows of both."""
        first, second, of = self.rows[one].rows, self.rows[other].rows, self._costs(where)
        if not of.lookup:
            return (max(first, second) + rows) * of.scan + min(first, second) * of.work
        found = [
            outer
            for inner, outer in ((one, second), (other, first))
            if not inner & (inner - 1) and self._indexed(inner, one | other)
        ]
        if found:
            return rows * of.work + min(found) * of.lookup
        return rows * of.work + (first * second * of.compared or (first + second) * of.lookup)

    def _indexed(self, relation: int, both: int) -> bool:
        """Whether a key of the table has one of the columns that it is joined by within the two sets."""
        keys = self.rows[relation].keys
        return any(a == relation and b & both and any(name in key for key in keys) for a, name, b, _ in self.edges)

    def _reduced(self, one: tuple[_Sent, ...], other: tuple[_Sent, ...]) -> tuple[float, tuple[_Sent, ...]]:
        """Seconds that are saved when what is small on one side of a join reduces what is large on the other, and what
        is sent then."""
        sent = [list(one), list(other)]
        saved = 0.0
        for builds, probes in (sent, sent[::-1]):
            for build in builds:
                if build.rows * self._width(build.relations) > MOST_BYTES:
                    continue
                for small, here, large, there in self.edges:
                    for number, probe in enumerate(probes):
                        if build.relations & small and probe.relations & large and build.rows < probe.rows:
                            seconds, rows = self._step(build, here, probe, there, large)
                            if seconds > 0:
                                saved += seconds
                                probes[number] = _Sent(probe.relations, probe.where, rows)
        return saved, (*sent[0], *sent[1])

    def _step(self, build: _Sent, here: str, probe: _Sent, there: str, owner: int) -> tuple[float, float]:
        """Seconds that a reduction saves, and the rows that it leaves."""
        types, dialect, of = self.context.types, self.context.dialect(probe.where), self._costs(probe.where)
        known = self.rows[build.relations]
        keys = known.values(here, build.rows / known.rows)
        values = self.rows[probe.relations].columns[there].distinct or 0.5 * self.rows[probe.relations].rows
        part = keys / max(1.0, values)
        if part > LARGEST_PART or keys > most_listed(types.get(there, ""), dialect):
            return 0.0, probe.rows
        saved = probe.rows * (of.row + of.byte * self._width(probe.relations))
        if probe.relations != owner:  # it is joined there, with fewer rows
            saved += self.rows[owner].rows * (of.lookup or of.scan) + probe.rows * of.scan
        return HOPED * (1 - part) * saved - ROUND_TRIP - NUMBER * keys, part * probe.rows

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
