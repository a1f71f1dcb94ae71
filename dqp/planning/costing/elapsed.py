"""Estimates the seconds of a plan whose leaves are statements, until all its rows are here."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Protocol

from dqp.algebra.dialects import properties
from dqp.algebra.operators import Aggregate, Distinct, Inline, Join, Operator, Remote, Scan
from dqp.algebra.shapes import shape_of_columns
from dqp.algebra.trees import walk, walk_deep
from dqp.planning.costing.cost import Estimator
from dqp.planning.costing.reductions import HOPED, Sources, reductions
from dqp.planning.costing.work import Work
from dqp.planning.splitting import FEW
from dqp.sql import dialects

OVERLAP = 0.75
"""The part of the seconds of several statements that they take at the same time: each keeps the source and this side
busy."""
PARALLEL = 1 / 3
"""The part of the seconds of reading that a database saves by its own workers."""
SMALL = 100_000.0
"""Rows of a table whose hashes stay in the cache of a processor."""


class ComputedOnce(Protocol):
    """What of a tree is computed once (``dqp.planning.common_subtrees.Sharing``)."""

    def nodes(self, tree: Operator) -> Iterable[Operator]: ...

    def twins(self, leaf: Operator) -> Sequence[tuple[Remote, Mapping[str, str]]]: ...


def elapsed(
    tree: Operator,
    estimator: Estimator,
    dialect: Callable[[str], str],
    parts: Callable[[Remote, float], int],
    left: float = 1.0,
    hoped: float = HOPED,
    once: ComputedOnce | None = None,
    sources: Sources | None = None,
    reached: Set[str] | None = None,
) -> float:
    """Seconds of a plan until all its rows are here. ``dialect``: of a source; ``parts``: in which a statement is
    read at the same time, if so much of its rows is left; ``left``: the part of the rows that keys from elsewhere
    leave. Statements run at the same time, those that are reduced by keys after the one that has the keys. ``hoped``:
    as ``HOPED``. ``once``: what of the tree is computed once; without it each use counts. ``sources``: as of
    ``reductions``. ``reached``: the columns that keys from elsewhere are of, so that they reduce only statements that
    read one of these; None: all."""
    nodes = list(walk_deep(tree))
    expected = reductions(nodes, estimator, hoped, sources)
    kept, after, read = expected.left, expected.after, expected.read
    if once is not None:
        nodes = list(once.nodes(tree))
        for each in nodes:
            for twin, _ in once.twins(each):
                assert isinstance(each, Remote)
                kept[each], read[each] = max(kept[each], kept[twin]), max(read[each], read[twin])
    remotes = fetched(nodes, dialect, after)
    seconds: dict[Remote, float] = {}
    for each in remotes:
        star = is_star(each.tree, estimator)
        work = Work(estimator, dialect(each.source), star=star)
        scans, whole = work.scans(each.tree), work.tree(each.tree)
        rows, anyway = 1.0, scans
        if reached is None or _reads(each.tree, reached):
            rows = left
            anyway = Work(estimator, dialect(each.source), star=star, reached=reached).scans(each.tree)
        there = scans * read[each] + (anyway - scans) + rows * (whole - anyway)
        if not properties(dialect(each.source)).SINGLE_THREADED and not _streams(each.tree):
            there -= scans * read[each] * PARALLEL
        rows *= kept[each]
        there += rows * estimator.fetch(each, dialect(each.source))
        seconds[each] = there / parts(each, rows) + expected.seconds[each]
        seconds[each] = max(seconds[each], estimator.seconds(each))  # with the keys that it had
    first = {each: max((seconds.get(one, 0.0) for one in after[each]), default=0.0) for each in remotes}
    longest = max((seconds[each] + first[each] for each in remotes), default=0.0)
    here = Work(estimator, "duckdb", kept)
    local = sum(here.node(each) for each in nodes if not isinstance(each, Remote | Inline))
    return max(longest, sum(seconds.values()) * OVERLAP) + left * local


def fetched(
    nodes: Iterable[Operator], dialect: Callable[[str], str], after: Mapping[Remote, Set[Remote]] = MappingProxyType({})
) -> list[Remote]:
    """The remote subtrees among the nodes; of those that are read once, with the same keys, the one that has all their
    columns. ``after``: what has the keys."""
    nodes = list(nodes)
    different: dict[Hashable, Remote] = {}
    keys = statement_keys(nodes, dialect)
    for each in nodes:
        if isinstance(each, Remote):
            reduced = frozenset(keys.get(one, one) for one in after.get(each, ()))
            key = (keys[each], reduced) if each in keys else each
            different[key] = max(different.get(key, each), each, key=lambda one: len(one.columns))
    return list(different.values())


def statement_keys(nodes: Iterable[Operator], dialect: Callable[[str], str]) -> dict[Remote, Hashable]:
    """For each remote subtree that reads the same tables as another one what is equal if both are read once: they have
    the same rows, and one of them the columns of both, whatever these are called."""
    by_tables: dict[Hashable, list[Remote]] = defaultdict(list)
    for each in nodes:
        if isinstance(each, Remote):
            by_tables[each.source, *(one.table for one in walk(each.tree) if isinstance(one, Scan))].append(each)
    keys: dict[Remote, Hashable] = {}
    texts: dict[int, Hashable] = {}
    for each, wide in (pair for alike in by_tables.values() if len(alike) > 1 for pair in _widest(alike)):
        if id(wide) not in texts:
            try:
                texts[id(wide)] = each.source, dialects.statement(wide.numbered, dialect(each.source)).sql
            except dialects.NotPushed:
                texts[id(wide)] = wide
        keys[each] = texts[id(wide)]
    return keys


def _widest(alike: Iterable[Remote]) -> Iterator[tuple[Remote, Remote]]:
    """Each with the one of the same rows that has its columns and the most others."""
    by_rows: dict[str, list[tuple[Remote, frozenset[str]]]] = defaultdict(list)
    for each in alike:
        rows, columns = shape_of_columns(each.tree)
        by_rows[rows].append((each, columns))
    for same in by_rows.values():
        for each, columns in same:
            yield each, max((one for one in same if one[1] >= columns), key=lambda one: len(one[1]))[0]


def is_star(tree: Operator, estimator: Estimator) -> bool:
    """Whether the tree joins one table with small ones, and few of its rows are left. What a filter leaves of a second
    large table does not make it small: a database that expects few rows beside it looks each of them up in its index,
    however many come."""
    tables = sorted(estimator.rows(each) for each in walk(tree) if isinstance(each, Scan))
    return len(tables) > 1 and tables[-2] <= SMALL and estimator.rows(tree) <= FEW * tables[-1]


def _streams(tree: Operator) -> bool:
    """Whether the rows leave the source as it reads them."""
    return not any(isinstance(each, Aggregate | Distinct | Join) for each in walk(tree))


def _reads(tree: Operator, names: Set[str]) -> bool:
    return any(not names.isdisjoint(each.columns) for each in walk(tree) if isinstance(each, Scan))
