"""Chooses the dynamic semi-joins that pay, and their order: a semi-join program (Bernstein and Chiu 1981). The choice
is repeated whenever an input has been read.

The keys of a small input (the build) become a filter in the statement of a large one (the probe). The probe may be the
build of a later step, so a step also counts what it saves there. The program first takes all steps, the smallest build
first; then it drops every step that costs more than it saves. A step costs the time of its keys, and that its probe
begins only when its build has been read: beside the work of all statements counts the longest chain of statements that
wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from sqlglot import exp

from dqp.algebra.chains import conjuncts
from dqp.algebra.keys import MOST_KEYS
from dqp.algebra.operators import (
    OF_LEFT,
    OF_RIGHT,
    Aggregate,
    Call,
    Distinct,
    Filter,
    Inline,
    Join,
    Operator,
    Project,
    Remote,
    Scan,
    SetOperation,
    Sort,
)
from dqp.algebra.trees import plans_in, remotes, walk_deep
from dqp.algebra.types import EXACT, same_values
from dqp.planning.context import Context
from dqp.planning.costing.columns import UNKNOWN, ColumnStatistics
from dqp.planning.costing.cost import ROUND_TRIP, costs
from dqp.planning.costing.elapsed import statement_keys
from dqp.planning.costing.estimates import Estimate
from dqp.planning.costing.key_lists import LARGEST_PART, NUMBER, most_listed
from dqp.planning.costing.selectivity import keys_of, referred
from dqp.planning.costing.work import Work, indexed
from dqp.planning.predicates import equality, partition_keys

UNSURE = 2.0
"""A build may be estimated to have so many times more keys than a list may have, because it may turn out smaller."""
WAITING = 0.1
"""The part of a probe's own seconds that it may wait for a build at no cost: the keys may leave less than expected."""
NEXT = 5e-3
"""Seconds from the rows of a build to the statement with its keys: planning, and a thread that begins."""
MANY = 24
"""From so many probes on, a query only reduces probes that take longer to fetch than one statement."""
MOST_WEIGHED = 48
"""Most steps that are compared with each other."""
MOST_ALIKE = 16
"""Most columns with one key on a side of a join that are tried: of 200 relations there would be 40,000 steps."""
_ORDERED = frozenset({"DATE", "TIMESTAMP"})
Leaf = Remote | Inline


@dataclass(frozen=True)
class Reduction:
    """A possible step. ``build``: a subtree to read, or tuples in memory. ``pairs``: (identifier in the build,
    identifier in the probe) that the join's condition makes equal."""

    build: Leaf
    probe: Remote
    pairs: tuple[tuple[str, str], ...]


def program(
    tree: Operator,
    context: Context,
    limit: float,
    begun: Mapping[Remote, float] = MappingProxyType({}),
    tried: Set[tuple[Leaf, tuple[tuple[str, str], ...]]] = frozenset(),
    known: Sequence[Reduction] | None = None,
) -> list[Reduction]:
    """The steps, in order. ``limit``: most bytes of a build; ``begun``: subtrees that are being read already, so that
    they cannot be reduced, each with the seconds until its rows are here; ``tried``: build and pairs of steps that
    must not be repeated; ``known``: the tree's candidates, where somebody has them."""
    if known is None:
        known = candidates(tree, context)
    possible = [each for each in known if each.probe not in begun and (each.build, each.pairs) not in tried]
    if len({each.probe for each in possible}) > MANY:
        possible = [each for each in possible if _is_long(each.probe, context)]
    return _Program(possible, tree, context, limit, begun).steps() if possible else []


def seconds_of(remote: Remote, context: Context) -> float:
    """Seconds until the rows of a statement are here."""
    dialect = context.dialect(remote.source)
    return Work(context.estimator, dialect).tree(remote.tree) + context.estimator.fetch(remote, dialect)


def _is_long(probe: Remote, context: Context) -> bool:
    return context.estimator.fetch(probe, context.dialect(probe.source)) > 2 * ROUND_TRIP


def candidates(tree: Operator, context: Context) -> list[Reduction]:
    """The reductions that the equalities of the tree's joins allow."""
    context.learn(tree)
    pairs_of: dict[tuple[Leaf, Remote], list[tuple[str, str]]] = {}
    converting: set[int] = set()
    _converts(tree, context, converting)
    for join in walk_deep(tree):
        if not isinstance(join, Join):
            continue
        for one, other in _equal(join, context, converting):
            for (build, key), (probe, name) in (
                ((join.right, other), (join.left, one)),
                ((join.left, one), (join.right, other)),
            ):
                kinds = {"inner", "semi", "right", "asof"} if probe is join.left else OF_LEFT
                if join.kind not in kinds or (source := _source_of(build, key)) is None:
                    continue
                for leaf, wanted in filter(None, targets(probe, name, context)):
                    if _comparable(source[1], wanted, context):
                        pairs_of.setdefault((source[0], leaf), []).append((source[1], wanted))
    # A nested plan may stand in two places.
    return [
        Reduction(build, probe, tuple(dict.fromkeys(pairs)))
        for (build, probe), pairs in pairs_of.items()
        if build != probe
    ]


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """A step of the program. ``build`` and ``probe`` are numbers of leaves; ``looked_up``: whether an index finds the
    probe's rows by the keys."""

    build: int
    probe: int
    reduction: Reduction
    looked_up: bool


class _Program:
    def __init__(
        self,
        possible: Sequence[Reduction],
        tree: Operator,
        context: Context,
        limit: float,
        begun: Mapping[Remote, float],
    ) -> None:
        self._context, self._limit = context, limit
        numbers: dict[Leaf, int] = {}
        self._possible = [
            _Step(
                numbers.setdefault(each.build, len(numbers)),
                numbers.setdefault(each.probe, len(numbers)),
                each,
                any(is_looked_up(each.probe.tree, other) for _, other in each.pairs),
            )
            for each in possible
        ]
        self._estimates = [context.estimator.of(each) for each in numbers]
        self._begun = [0.0 if isinstance(leaf, Inline) else begun.get(leaf) for leaf in numbers]
        self._row = [self._seconds_a_row(leaf, number) for leaf, number in numbers.items()]
        self._works = [self._work(leaf) for leaf in numbers]
        copies = statement_keys(walk_deep(tree), context.dialect)
        self._copies = [copies.get(leaf) if isinstance(leaf, Remote) else None for leaf in numbers]
        self._elsewhere = {key for leaf, key in copies.items() if leaf not in numbers}
        others = (each for each in remotes(tree) if each not in numbers and each not in begun)
        self._others = max((seconds_of(each, context) for each in others), default=0.0)
        self._parts: dict[tuple[_Step, float], tuple[float, float]] = {}

    def _seconds_a_row(self, leaf: Leaf, number: int) -> float:
        if isinstance(leaf, Inline):
            return 0.0
        of = costs(self._context.dialect(leaf.source))
        return of.row + of.byte * self._estimates[number].width

    def _work(self, leaf: Leaf) -> tuple[float, float]:
        """Seconds of the source's work for the leaf: reading its tables, and all else, which rows that keys leave out
        do not take."""
        if isinstance(leaf, Inline):
            return 0.0, 0.0
        work = Work(self._context.estimator, self._context.dialect(leaf.source))
        whole = work.tree(leaf.tree)
        reading = work.scans(leaf.tree)
        return reading, whole - reading

    def steps(self) -> list[Reduction]:
        chosen = self._all()
        if len(chosen) > MOST_WEIGHED:
            return [each.reduction for each in chosen]
        cost = self._cost(chosen)
        for step in reversed(chosen):
            if step not in chosen:
                continue
            for without in (
                [each for each in chosen if each is not step],
                [each for each in chosen if each.probe != step.build],
            ):
                less = self._cost(without)
                if less <= cost:
                    chosen, cost = without, less
                    break
        return [each.reduction for each in chosen]

    def _all(self) -> list[_Step]:
        """Every step that makes a probe smaller, the smallest build first."""
        chosen: list[_Step] = []
        left = [1.0] * len(self._estimates)
        read: set[int] = set()
        while True:
            steps_of: dict[int, list[tuple[_Step, float]]] = {}
            for each in self._possible:
                if each.build in read or each.probe in read:
                    continue
                if self._estimates[each.build].bytes * left[each.build] <= self._limit:
                    part, _ = self._kept(each, left)
                    if part <= LARGEST_PART:
                        steps_of.setdefault(each.build, []).append((each, part))
            if not steps_of:
                return chosen
            build = min(steps_of, key=lambda each: self._estimates[each].rows * left[each])
            read.add(build)
            for each, part in steps_of[build]:
                chosen.append(each)
                left[each.probe] *= part

    def _cost(self, steps: Sequence[_Step]) -> float:
        """Seconds for the reduced probes and the keys, and of the longest chain of statements."""
        left = [1.0] * len(self._estimates)
        read = [1.0] * len(self._estimates)
        begins = [0.0] * len(self._estimates)
        seconds = 0.0
        for each in steps:
            allowed = WAITING * self._seconds(each.probe, left[each.probe], read[each.probe])
            waits = self._ends(each.build, begins, left, read) + NEXT - allowed
            begins[each.probe] = max(begins[each.probe], waits)
            part, listing = self._kept(each, left)
            seconds += listing
            left[each.probe] *= part
            if each.looked_up:
                read[each.probe] *= part
        longest = self._others
        whole = set(self._elsewhere)  # a statement that stands in the tree twice runs once, unless keys reduce one
        for at, copy in enumerate(self._copies):
            longest = max(longest, self._ends(at, begins, left, read))
            if left[at] == 1.0 and copy is not None:
                if copy in whole:
                    continue
                whole.add(copy)
            seconds += self._seconds(at, left[at], read[at])
        return seconds + longest

    def _seconds(self, leaf: int, left: float, read: float) -> float:
        reading, rest = self._works[leaf]
        return left * (self._estimates[leaf].rows * self._row[leaf] + rest) + read * reading

    def _ends(self, leaf: int, begins: Sequence[float], left: Sequence[float], read: Sequence[float]) -> float:
        """Seconds until the leaf has been read."""
        begun = self._begun[leaf]
        if begun is not None:
            return begun
        return begins[leaf] + ROUND_TRIP + self._seconds(leaf, left[leaf], read[leaf])

    def _kept(self, step: _Step, left: Sequence[float]) -> tuple[float, float]:
        """The part of the probe's rows that the step keeps, and the seconds that its list of keys takes: a range that
        keeps as few takes none."""
        key = step, left[step.build]
        if key not in self._parts:
            self._parts[key] = self._part(*key)
        return self._parts[key]

    def _part(self, step: _Step, left: float) -> tuple[float, float]:
        """As ``_kept``, where this part of the build's rows is left."""
        build, probe = self._estimates[step.build], self._estimates[step.probe]
        types = self._context.types
        part = 1.0
        seconds = 0.0
        for one, other in step.reduction.pairs:
            keys, values = build.columns.get(one, UNKNOWN), probe.columns.get(other, UNKNOWN)
            count = build.values(one, left)
            if count <= UNSURE * most_keys(step.reduction.probe.source, types.get(other, ""), self._context):
                # A column that nobody knows has the values of the other.
                every = keys_of(build, one, values.distinct or 0.0)
                distinct = values.distinct or min(every or keys.distinct or probe.rows, probe.rows * 0.5)
                listed = (
                    referred(distinct, every, count)
                    if distinct < every
                    else _chosen(count, distinct, keys, probe, other)
                )
                if listed < part:
                    part, seconds = listed, NUMBER * count
            if keys.low is not None and keys.high is not None:
                ranged = share(keys.low, keys.high, values)
                if values.distinct is not None:
                    ranged = _chosen(ranged * values.distinct, values.distinct, keys, probe, other)
                if ranged <= part:
                    part, seconds = ranged, 0.0
        return part, seconds


def _chosen(count: float, distinct: float, keys: ColumnStatistics, probe: Estimate, name: str) -> float:
    """The part of a probe's values that are among so many of all ``distinct`` ones. As in ``referred``: of a table with
    many more keys than values refer to, such as a calendar, filters have left values that are referred to."""
    left = min(distinct, probe.rows, probe.columns.get(name, UNKNOWN).most or math.inf)
    chance = min(1.0, (keys.distinct or distinct) / max(1.0, distinct))
    return (1 - chance) * min(1.0, count / max(1.0, left)) + chance * min(1.0, count / max(1.0, distinct))


def most_keys(source: str, type: str, context: Context) -> float:
    """Most keys of the type in a statement for the source, in any form."""
    return MOST_KEYS if context.takes_tables(source) else most_listed(type, context.dialect(source))


def share(low: float, high: float, values: ColumnStatistics) -> float:
    """The part of the column's values that lie between two ends, of which it has both; 1 if it is unknown."""
    if values.low is None or values.high is None or values.high <= values.low:
        return 1.0
    part = max(0.0, min(1.0, (min(high, values.high) - max(low, values.low)) / (values.high - values.low)))
    if values.distinct is None or low > values.high or high < values.low:
        return part
    # As many steps between two values as there are values, less one: one value of three is a third of them.
    return min(1.0, part + (1.0 - part) / max(1.0, values.distinct))


def _converts(tree: Operator, context: Context, converting: set[int]) -> bool:
    """Whether a join in the tree compares columns of which one is converted: two BIGINTs that equal the same DOUBLE may
    differ. Adds the ids of all such trees to ``converting``."""
    for plan in plans_in(tree):
        _converts(plan, context, converting)
    below = [
        _converts(each, context, converting) for each in ((tree.tree,) if isinstance(tree, Remote) else tree.inputs)
    ]
    here = isinstance(tree, Join) and any(
        not same_values(*map(context.types.get, pair)) for pair in map(equality, conjuncts(tree.condition)) if pair
    )
    if here or any(below):
        converting.add(id(tree))
    return id(tree) in converting


def _equal(join: Join, context: Context, converting: Set[int]) -> Iterator[tuple[str, str]]:
    """The columns (left, right) that the join's condition makes equal, also through equalities of joins below."""
    left, right = context.estimator.of(join.left).same, context.estimator.of(join.right).same
    seen: set[tuple[str, str]] = set()
    for one, other in join.equal_columns:
        both = left.get(one, one), right.get(other, other)
        if both not in seen:
            seen.add(both)
            yield from product(
                [one] if id(join.left) in converting else _alike(join.left, left, one),
                [other] if id(join.right) in converting else _alike(join.right, right, other),
            )


def _alike(tree: Operator, same: Mapping[str, str], name: str) -> list[str]:
    """The tree's columns that are equal to this one, with the column itself; of very many only some."""
    group = same.get(name, name)
    alike = [each for each in tree.columns if same.get(each, each) == group]
    return alike if len(alike) <= MOST_ALIKE else list(dict.fromkeys((name, *alike)))[:MOST_ALIKE]


def leaf_of(tree: Operator, name: str) -> tuple[Remote, str] | None:
    """The remote subtree that a column comes from, and its identifier there. That column has all values of this one."""
    if isinstance(tree, Remote):
        return tree, name
    below = origin(tree, name)
    return None if below is None else leaf_of(*below)


def _source_of(tree: Operator, name: str) -> tuple[Remote | Inline, str] | None:
    """As ``leaf_of``; also the tuples in memory that a column comes from."""
    while not isinstance(tree, Remote | Inline):
        below = origin(tree, name)
        if below is None:
            return None
        tree, name = below
    return tree, name


def origin(tree: Operator, name: str) -> tuple[Operator, str] | None:
    """The input that a column comes from, and the column's identifier there."""
    if isinstance(tree, Filter | Distinct | Sort | Call):
        return (tree.input, name) if name in tree.input.columns else None
    if isinstance(tree, Join):
        return next(((each, name) for each in tree.inputs if name in each.columns), None)
    if isinstance(tree, Project | Aggregate):
        if isinstance(tree, Aggregate) and tree.sets is not None:
            return None
        items = dict(tree.items if isinstance(tree, Project) else tree.keys)
        item = items.get(name)
        return (tree.input, item.name) if isinstance(item, exp.Column) else None
    return None


def is_looked_up(tree: Operator, name: str) -> bool:
    """Whether the tree reads only those rows of a table that have certain values in this column."""
    below: tuple[Operator, str] | None = tree, name
    while below is not None and not isinstance(below[0], Scan):
        below = origin(*below)
    return below is not None and bool(indexed(below[0], {below[1]}))


def targets(tree: Operator, name: str, context: Context) -> Iterator[tuple[Remote, str] | None]:
    """The remote subtrees that a filter on this column may move to, each with the column there: of a union one for each
    of its queries. None for what it does not reach; without one, the filters there are the filter here."""
    if isinstance(tree, Remote):
        yield tree, name
    elif isinstance(tree, SetOperation) and name in tree.names:
        at, type = tree.names.index(name), context.types.get(name)
        for each in tree.inputs:
            if type is not None and context.types.get(each.columns[at]) == type:
                yield from targets(each, each.columns[at], context)
            else:
                yield None
    elif (below := origin(tree, name)) is None or not commutes(tree, *below):
        yield None
    else:
        yield from targets(*below, context)


def commutes(tree: Operator, input: Operator, name: str) -> bool:
    """Whether a filter of the tree may be one of this input, by its column ``name``, which the tree passes on."""
    if isinstance(tree, Sort):
        return tree.limit is None and not tree.offset
    if isinstance(tree, Project):
        partitions = partition_keys(tree.expressions)
        return partitions is None or name in partitions
    if isinstance(tree, Join):
        sides = zip(tree.inputs, (OF_LEFT, OF_RIGHT), strict=True)
        return any(input is each and tree.kind in kinds for each, kinds in sides)
    return True


def _comparable(one: str, other: str, context: Context) -> bool:
    types = context.types.get(one), context.types.get(other)
    if not same_values(*types):
        return False
    return all(
        each in EXACT or each in _ORDERED or each == "VARCHAR" or each.startswith("DECIMAL") for each in map(str, types)
    )
