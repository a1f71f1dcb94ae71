"""Estimates what the keys of one statement leave of the rows of another one (``dqp.planning.semijoins`` decides)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Protocol

from sqlglot import exp

from dqp.algebra.keys import MOST_KEYS
from dqp.algebra.operators import ASOF, Aggregate, Join, Operator, Project, Remote, SetOperation
from dqp.algebra.trees import walk
from dqp.planning.costing.columns import UNKNOWN
from dqp.planning.costing.cost import Estimator, costs
from dqp.planning.costing.estimates import Estimate
from dqp.planning.costing.key_lists import LARGEST_PART, key_seconds
from dqp.planning.costing.selectivity import keys_of, referred
from dqp.planning.costing.work import Work, indexed

HOPED = 0.7
"""The power of the part that keys are expected to leave: a part of 1/25 counts as 1/10. The expectation is wrong by a
factor more often than by a difference, and few keys are known well (TPC-H q21: 411 of 10,000)."""
BUILD_BYTES = 16e6
"""Most bytes of the rows of a statement whose keys may reduce another one."""


class Sources(Protocol):
    """What statements may have keys, and how many (``dqp.planning.context.Context``)."""

    @property
    def types(self) -> Mapping[str, str]: ...

    def dialect(self, source: str) -> str: ...

    def takes_tables(self, source: str) -> bool: ...


@dataclass(frozen=True)
class Reductions:
    """For each remote subtree the part of its rows that the keys of others leave (``left``), those others (``after``),
    the part of its table that is read then (``read``), the ``seconds`` that the keys cost, and the ``columns`` that
    they are of."""

    left: dict[Remote, float] = field(default_factory=lambda: defaultdict(lambda: 1.0))
    after: dict[Remote, set[Remote]] = field(default_factory=lambda: defaultdict(set))
    read: dict[Remote, float] = field(default_factory=lambda: defaultdict(lambda: 1.0))
    seconds: dict[Remote, float] = field(default_factory=lambda: defaultdict(float))
    columns: dict[Remote, set[str]] = field(default_factory=lambda: defaultdict(set))


def reductions(
    nodes: list[Operator], estimator: Estimator, hoped: float = HOPED, sources: Sources | None = None
) -> Reductions:
    """What keys are expected to leave. Keys that ``sources`` say cost more than they save leave everything."""
    expected = Reductions()
    left, after = expected.left, expected.after
    seconds: dict[Remote, float] = {}
    for join in nodes:
        if not isinstance(join, Join) or join.kind not in ("inner", "semi", "left", *ASOF):
            continue
        for one, other in join.equal_columns:
            for (side, key), (other_side, name), reduces in (
                ((join.left, one), (join.right, other), True),
                ((join.right, other), (join.left, one), join.kind not in ("left", "asof left")),
            ):
                build = next(_leaves(side, key), None) if reduces else None
                if build is None or build[1] != key:  # the keys of one query of a union are not all
                    continue
                for probe, wanted in _leaves(other_side, name):
                    if probe in after[build[0]] or build[0] in after[probe]:
                        continue
                    keys, part = _part(estimator.of(build[0]), key, estimator.of(probe), wanted)
                    if part > LARGEST_PART:
                        continue
                    looked_up = bool(indexed(probe.tree, {wanted}))
                    if sources is not None:
                        if probe not in seconds:
                            seconds[probe] = reducible(probe, estimator, sources, looked_up)
                        cost = key_seconds(
                            *(keys, estimator.rows(probe), part, looked_up, sources.types.get(wanted, "")),
                            sources.dialect(probe.source),
                            tables=sources.takes_tables(probe.source),
                        )
                        if (1 - part) * seconds[probe] <= cost:
                            continue
                        found = keys * costs(sources.dialect(probe.source)).index if looked_up else 0.0
                        expected.seconds[probe] += cost + found
                    left[probe] *= part**hoped
                    expected.read[probe] *= part if looked_up else 1.0
                    after[probe].add(build[0])
                    expected.columns[probe].add(wanted)
    return expected


def origins(tree: Operator, names: Set[str]) -> frozenset[str]:
    """The columns below in the tree that have the values of these, with these."""
    known = set(names)
    for node in walk(tree):
        if isinstance(node, Project | Aggregate):
            items = node.items if isinstance(node, Project) else node.keys
            known.update(each.name for name, each in items if name in known and isinstance(each, exp.Column))
        elif isinstance(node, Join) and node.kind in ("inner", "semi"):
            for pair in node.equal_columns:
                if known.intersection(pair):
                    known.update(pair)
    return frozenset(known)


def _leaves(tree: Operator, name: str) -> Iterator[tuple[Remote, str]]:
    """The remote subtrees that the column is one of; of a union, one for each of its queries, with the column there."""
    if isinstance(tree, Remote):
        if name in tree.columns:
            yield tree, name
    elif isinstance(tree, SetOperation):
        if name in tree.names:
            at = tree.names.index(name)
            for each in tree.inputs:
                yield from _leaves(each, each.columns[at])
    else:
        for each in tree.inputs:
            yield from _leaves(each, name)


def _part(build: Estimate, key: str, probe: Estimate, name: str) -> tuple[float, float]:
    """The keys of a build, and the part of a probe's rows that they leave."""
    keys, values = build.values(key), probe.values(name)
    if build.bytes > BUILD_BYTES or build.rows >= probe.rows or keys > MOST_KEYS:
        return keys, 1.0
    if probe.columns.get(name, UNKNOWN).distinct is None:  # nobody knows the column: it refers to the key
        values = min(values, build.keys.get(frozenset((key,)), values))
    elif values < (every := keys_of(build, key, values)):
        return keys, referred(values, every, keys)
    return keys, min(1.0, keys / max(1.0, values))


def reducible(probe: Remote, estimator: Estimator, sources: Sources, looked_up: bool) -> float:
    """Seconds of a statement that its rows take: those to read its tables only where an index finds the rows."""
    dialect = sources.dialect(probe.source)
    work = Work(estimator, dialect)
    whole, reading = work.tree(probe.tree), work.scans(probe.tree)
    return estimator.fetch(probe, dialect) + whole - (0.0 if looked_up else reading)
