"""The order of inner joins, by cost: dynamic programming over all bushy orders of up to ``MOST`` relations; with more,
the cheapest next join (greedy). ``by_size`` orders by the sizes of the relations alone, for so many that nothing else
ends soon (DuckDB would take minutes to order 200 relations that all have one key).

A plan is known for each place where a join's result can be: in a source, as long as all of it is there, or here. What
is fetched from a source is paid when it leaves; so a join stays in its source as long as its result costs less to fetch
than its inputs do. What is joined here with something small that was fetched before is expected to be reduced by its
keys (``dqp.planning.semijoins.program``), and to cost less by that. The side that is built is the smaller one and
stands right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from heapq import nsmallest
from itertools import combinations
from math import prod

from sqlglot import exp

from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.dialects import Costs
from dqp.algebra.operators import Filter, Join, Operator, Scan
from dqp.algebra.trees import used, walk
from dqp.algebra.types import same_values
from dqp.planning.context import Context
from dqp.planning.costing.cost import LOCAL_BUILD, LOCAL_ROW, ROUND_TRIP, costs
from dqp.planning.costing.estimates import Estimate
from dqp.planning.costing.key_lists import LARGEST_PART, NUMBER, most_listed
from dqp.planning.costing.reductions import BUILD_BYTES
from dqp.planning.costing.selectivity import joined
from dqp.planning.costing.work import indexed
from dqp.planning.predicates import equality, filtered, same
from dqp.planning.rules.places import place

MOST = 10
"""Most relations of which all orders are weighed."""
PARTNERS = 16
"""If there are too many orders, a set of relations is only tried with so many of its smallest neighbours."""
NESTED = 16
"""Most relations right of a join of very many, unless more are left of it: what stands right is nested in the SQL, and
DuckDB takes about 240 levels."""
HERE = ""
"""The place of what runs here, not in a source."""
COUNTED = 0.7
"""The part of the expected saving by reductions that is counted; joining in one statement saves for certain."""


_Part = tuple[int, Operator]
"""A set of relations, and their join."""


@dataclass(frozen=True, slots=True)
class _Sent:
    """A set of relations that a source sends, with the rows that are left of it."""

    relations: int
    where: str
    rows: float


@dataclass(frozen=True, slots=True)
class _Way:
    """A way to have a set of relations at a place: seconds, and the two sets it is joined from (none: a leaf).
    ``sent``: its sets that a source sent."""

    seconds: float
    left: tuple[int, str] | None = None
    right: tuple[int, str] | None = None
    sent: tuple[_Sent, ...] = ()


@dataclass(frozen=True, slots=True)
class _Predicate:
    """``over``: the relations whose columns (``names``) it uses; ``pair``: the columns that it says are equal."""

    condition: exp.Expression
    over: int
    names: frozenset[str]
    pair: tuple[str, str] | None


@dataclass(frozen=True, slots=True)
class _Class:
    """Columns that are all equal, with the relation of each; ``over``: all of these relations."""

    owners: Mapping[str, int]
    over: int
    firsts: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    def first(self, relations: int) -> str:
        """The first of its columns in a set that has one; each set is asked for again and again."""
        name_of_column = self.firsts.get(relations)
        if name_of_column is None:
            name_of_column = self.firsts[relations] = next(
                name for name, owner in self.owners.items() if owner & relations
            )
        return name_of_column

    def link(self, one: int, other: int) -> exp.Expression:
        """The equality of its first columns in two sets that both have one."""
        return same(*sorted((self.first(one), self.first(other))))

    def says(self, predicate: _Predicate) -> bool:
        return predicate.pair is not None and all(each in self.owners for each in predicate.pair)


class JoinOrder:
    """Sets of relations are bits of a number. What joins say is equal is kept as classes: all pairs of their columns
    would be many."""

    def __init__(
        self, leaves: list[Operator], predicates: list[exp.Expression], needed: frozenset[str], context: Context
    ) -> None:
        self.leaves, self.needed, self.context = leaves, needed, context
        self.estimates = [context.estimator.of(each) for each in leaves]
        self.correlated = {1 << number: self._times(each) for number, each in enumerate(leaves)}
        self.owners = {name: number for number, each in enumerate(leaves) for name in each.columns}
        self.predicates = [
            _Predicate(each, self._relations(names), names, equality(each))
            for each in dict.fromkeys(predicates)
            for names in (used(each),)
        ]
        self.classes = self._classes()
        self.neighbours = [0] * len(leaves)
        for over in {*(each.over for each in self.predicates), *(each.over for each in self.classes)}:
            for number in range(len(leaves)):
                if over >> number & 1:
                    self.neighbours[number] |= over & ~(1 << number)
        self.near: dict[int, int] = {}
        self.rows: dict[int, Estimate] = {}
        self.ways: dict[int, dict[str, _Way]] = {}
        self.widths: dict[int, float] = {}
        for number, leaf in enumerate(leaves):
            self.rows[1 << number] = self.estimates[number]
            where = place(leaf) or HERE
            self.ways[1 << number] = {where: _Way(self._work(leaf, where))}
            self._bring(1 << number)

    def _relations(self, names: Iterable[str]) -> int:
        bits = 0
        for name in names:
            if name in self.owners:
                bits |= 1 << self.owners[name]
        return bits

    def _times(self, leaf: Operator) -> float:
        """How many times more rows the leaf has where it is read once for all rows of the query around it, as here."""
        if not isinstance(leaf, Filter):
            return 1.0
        own = [each for each in conjuncts(leaf.condition) if used(each) <= frozenset(leaf.columns)]
        whole = filtered(leaf.input, own)
        return self.context.estimator.of(whole).rows / self.context.estimator.of(leaf).rows

    def _rows_here(self, relations: int) -> float:
        return self.rows[relations].rows * prod(self.correlated[each] for each in self.correlated if each & relations)

    def _classes(self) -> list[_Class]:
        """a, b and c where a = b and b = c: more orders without a cross product. Two columns of types that compare in
        different ways are a class of their own."""
        groups: dict[str, set[str]] = {}
        alone: list[set[str]] = []
        for each in self.predicates:
            if each.pair is None or not self.owners.keys() >= each.names:
                continue
            if not same_values(*map(self.context.types.get, each.pair)):
                alone.append(set(each.pair))
                continue
            one, other = (groups.get(name, {name}) for name in each.pair)
            one |= other
            groups.update(dict.fromkeys(one, one))
        classes = [*{id(each): each for each in groups.values()}.values(), *alone]
        return [
            _Class({name: 1 << self.owners[name] for name in sorted(each)}, self._relations(each)) for each in classes
        ]

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
        width = self.widths.get(relations)
        if width is None:
            outside = self.needed.union(
                *(each.names for each in self.predicates if each.over & relations and each.over & ~relations),
                *(each.owners for each in self.classes if each.over & relations and each.over & ~relations),
            )
            width = 0.0
            for number, estimate in enumerate(self.estimates):
                if relations >> number & 1:
                    width += sum(each.width for name, each in estimate.columns.items() if name in outside)
            self.widths[relations] = width
        return width

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
            self.rows[both] = joined(self.rows[one], self.rows[other], "inner", self._conditions(one, other))
        ways = self.ways.setdefault(both, {})
        first, second, rows = (self._rows_here(each) for each in (one, other, both))
        for where, way in self.ways[one].items():
            match = self.ways[other].get(where)
            if match is None or (where != HERE and self.context.options.pushdown == "none"):
                continue
            sent: tuple[_Sent, ...] = ()
            if where == HERE:
                saved, sent = self._reduced(way.sent, match.sent)
                seconds = (first + second + rows) * LOCAL_ROW + min(first, second) * LOCAL_BUILD - saved
            else:
                seconds = self._joining_there(one, other, self.rows[both].rows, where)
            seconds += way.seconds + match.seconds
            if where not in ways or seconds < ways[where].seconds:
                left, right = (one, other) if first >= second else (other, one)
                ways[where] = _Way(seconds, (left, where), (right, where), sent)

    def _between(self, one: int, other: int) -> list[_Predicate]:
        """What the join of two sets is the first to have the columns for."""
        outside = ~(one | other)
        return [each for each in self.predicates if each.over & one and each.over & other and not each.over & outside]

    def _conditions(self, one: int, other: int) -> list[exp.Expression]:
        """The conditions of the join of two sets: predicates, and of the classes that none of them speaks of, one
        equality each."""
        predicates = self._between(one, other)
        links = [
            each.link(one, other)
            for each in self.classes
            if each.over & one and each.over & other and not any(map(each.says, predicates))
        ]
        return [*(each.condition for each in predicates), *links]

    def _joining_there(self, one: int, other: int, rows: float, where: str) -> float:
        """Seconds that a source needs to join two sets. One that has no hash joins looks every row of one set up in an
        index of a table, or compares all rows of both."""
        first, second, of = self.rows[one].rows, self.rows[other].rows, self._costs(where)
        if not of.lookup:
            return (max(first, second) + rows) * of.scan + min(first, second) * of.work
        outer_rows = [
            outer
            for inner, outer in ((one, second), (other, first))
            if not inner & (inner - 1) and self._indexed(inner, one | other)
        ]
        if outer_rows:
            return rows * of.work + min(outer_rows) * of.lookup
        return rows * of.work + (first * second * of.compared or (first + second) * of.lookup)

    def _indexed(self, relation: int, both: int) -> bool:
        """Whether an index of the table begins with one of the columns that it is joined by within the two sets."""
        others = both & ~relation
        names = {
            name
            for each in self.classes
            if each.over & relation and each.over & others
            for name, owner in each.owners.items()
            if owner == relation
        }
        return bool(indexed(self.leaves[relation.bit_length() - 1], names))

    def _reduced(self, one: tuple[_Sent, ...], other: tuple[_Sent, ...]) -> tuple[float, tuple[_Sent, ...]]:
        """Seconds that are saved when the small sets on one side of a join reduce the large ones on the other, and the
        sets that are sent then."""
        sent = [list(one), list(other)]
        saved = 0.0
        for builds, probes in (sent, sent[::-1]):
            for build in builds:
                if build.rows * self._width(build.relations) > BUILD_BYTES:
                    continue
                for each in self.classes:
                    if not each.over & build.relations:
                        continue
                    here = each.first(build.relations)
                    for number, probe in enumerate(probes):
                        if each.over & probe.relations and build.rows < probe.rows:
                            there = each.first(probe.relations)
                            seconds, rows = self._step(build, here, probe, there, each.owners[there])
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
        return COUNTED * (1 - part) * saved - ROUND_TRIP - NUMBER * keys, part * probe.rows

    def _connected(self, one: int, other: int) -> bool:
        return bool(self._near(one) & other)

    def _near(self, relations: int) -> int:
        """The relations that predicates connect with the set."""
        near = self.near.get(relations)
        if near is None:
            near = 0
            for number in range(len(self.leaves)):
                if relations >> number & 1:
                    near |= self.neighbours[number]
            self.near[relations] = near
        return near

    def best(self) -> Operator:
        every = (1 << len(self.leaves)) - 1
        if len(self.leaves) <= MOST:
            self._all_orders(every)
        if every not in self.ways:
            self._greedy()
        where = min(self.ways[every], key=lambda each: self._finished(every, each))
        return self._with_constants(self._tree(every, where))

    def by_size(self) -> Operator:
        """Joins those of a source first; what nothing connects, at last."""
        places = [place(leaf) or number for number, leaf in enumerate(self.leaves)]
        groups: list[_Part] = []
        for where in dict.fromkeys(places):
            groups += self._in_sequence((1 << at, self.leaves[at]) for at, each in enumerate(places) if each == where)
        _, tree = reduce(self._together, self._sorted(self._in_sequence(groups)))
        return self._with_constants(tree)

    def _in_sequence(self, parts: Iterable[_Part]) -> Iterator[_Part]:
        """The smallest with what predicates connect with it, the smallest next; then what is left in the same way."""
        rest = self._sorted(parts)
        while rest:
            whole = rest.pop(0)
            while near := [each for each in rest if self._connected(whole[0], each[0])]:
                self.context.check()
                rest.remove(near[0])
                whole = self._together(whole, near[0])
            yield whole

    def _together(self, one: _Part, other: _Part) -> _Part:
        (few, small), (many, large) = self._sorted((one, other))
        if few.bit_count() > max(NESTED, many.bit_count()):
            small, large = large, small
        return one[0] | other[0], Join(large, small, "inner", all_of(self._conditions(one[0], other[0])))

    def _sorted(self, parts: Iterable[_Part]) -> list[_Part]:
        return sorted(parts, key=lambda each: self.context.estimator.of(each[1]).rows)

    def _with_constants(self, tree: Operator) -> Operator:
        return filtered(tree, (each.condition for each in self.predicates if not each.over))

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
        largest connected sets that have a way. Of more sets than ``PARTNERS`` each is tried with the smallest ones."""
        sets = self._components() if len(self.leaves) <= MOST else [1 << each for each in range(len(self.leaves))]
        possible: dict[tuple[int, int], float] = {}
        while len(sets) > 1:
            self.context.check()
            if not possible:
                near = {frozenset((one, other)) for one in sets for other in self._partners(one, sets)}
                pairs = combinations(sets, 2)
                possible = {each: self._possible(*each) for each in pairs if not near or frozenset(each) in near}
            one, other = min(possible, key=lambda each: (possible[each], each))
            sets = [each for each in sets if each not in (one, other)]
            possible = {
                each: rows for each, rows in possible.items() if not {one, other} & {*each} and self._connected(*each)
            }
            for each in self._partners(one | other, sets):
                possible[each, one | other] = self._possible(each, one | other)
            sets.append(one | other)

    def _partners(self, one: int, sets: Iterable[int]) -> list[int]:
        """The smallest of the sets that predicates connect with one."""
        near = [each for each in sets if each != one and self._connected(one, each)]
        return nsmallest(PARTNERS, near, key=lambda each: self.rows[each].rows)

    def _possible(self, one: int, other: int) -> float:
        """The rows of the join of two sets."""
        if one | other not in self.ways:
            self._join(one, other)
            self._bring(one | other)
        return self.rows[one | other].rows

    def _components(self) -> list[int]:
        """The sets of relations that predicates connect."""
        components: list[int] = []
        for number in range(len(self.leaves)):
            group = 1 << number
            for each in list(components):
                if self._connected(each, group) or self._connected(group, each):
                    components.remove(each)
                    group |= each
            components.append(group)
        return components

    def _tree(self, relations: int, where: str) -> Operator:
        way = self.ways[relations][where]
        if way.left is None:
            return self.leaves[relations.bit_length() - 1]
        if way.right is None:
            return self._tree(*way.left)
        one, other = way.left[0], way.right[0]
        return Join(self._tree(*way.left), self._tree(*way.right), "inner", all_of(self._conditions(one, other)))


def _halves(relations: int) -> Iterator[int]:
    """Each way to part the set, once."""
    lowest = relations & -relations
    rest = relations & ~lowest
    part = rest
    while part:
        part = (part - 1) & rest
        yield part | lowest
