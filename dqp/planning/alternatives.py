"""The alternative that may overtake a statement without a row: the same subtree computed here, over its filtered
tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from dai.streams.stream import Stream
from dqp.algebra.keys import without_members
from dqp.algebra.operators import Operator, Remote, Scan
from dqp.algebra.trees import rewritten, walk_deep
from dqp.planning.context import Context
from dqp.planning.costing.elapsed import elapsed
from dqp.planning.rules.subtrees import is_plain, push_subtrees

Columns = tuple[tuple[str, str], ...]
"""(identifier, DuckDB type)."""
SHARE, TIMES = 0.25, 2.0
"""Least part of the alternative's estimated seconds that a statement gets, so that large inputs are not fetched too
soon; and how often it may get them."""
FASTER = 0.8
"""Where the alternative is expected to take less than this part of the statement's seconds (the plan hoped for keys
that did not come), it starts once it would be ready itself."""

MOST_TABLES = 100
"""Tables of a statement that has an alternative, which sends a statement for each."""


@dataclass(frozen=True)
class Alternative:
    """A subtree computed here. ``context``: its own; ``statement`` and ``here``: the estimated seconds of the statement
    and of the alternative."""

    tree: Operator
    context: Context
    statement: float
    here: float

    def after(self, multiple: float) -> float:
        """Seconds without a row after which it starts: ``multiple`` times as many as the statement was expected to
        take, unless the alternative takes less."""
        most = self.here if self.here < FASTER * self.statement else TIMES * self.here
        return max(min(multiple * self.statement, most), min(1.0, multiple) * SHARE * self.here)


@dataclass(frozen=True)
class Chance:
    """The alternatives of one query's statements. A statement gets at least ``least`` seconds, and ``multiple`` times
    its estimate. ``run``: the rows of an alternative with these columns, as a part of an execution."""

    least: float
    multiple: float
    context: Context
    run: Callable[[Alternative, Columns, Any], Stream]

    def alternative(self, remote: Remote) -> Alternative | None:
        return alternative(remote, self.context)


@dataclass(frozen=True)
class Overtaking:
    """A statement beside which its alternative started ``after`` so many seconds. ``first``: seconds until the winner
    had its first row; None: not known. ``estimated`` and ``here``: seconds of the statement and of the alternative.
    ``failure`` and ``statements``: of the alternative."""

    remote: Remote
    estimated: float = 0.0
    here: float = 0.0
    after: float = 0.0
    won: bool = False
    first: float | None = None
    failure: str | None = None
    statements: tuple[str, ...] = ()

    def __str__(self) -> str:
        expected = f"about {self.estimated:.2g} s expected"
        begin = f"{self.remote.source}: a statement without a row after {self.after:.2g} s ({expected})"
        if self.failure is not None:
            return f"{begin} was to be overtaken, but computing it here failed: {self.failure}"
        if self.won:
            later = (self.first or 0.0) - self.after
            return f"{begin} was overtaken: computed here, its first row came {later:.2g} s later; it was cancelled"
        return f"{begin} was computed here beside it, but it gave its first row itself, after {self.first or 0.0:.2g} s"


def has_alternative(remote: Remote) -> bool:
    """Whether the statement does more than read a table, or read hundreds of them."""
    scans = sum(isinstance(each, Scan) for each in walk_deep(remote.tree))
    return scans <= MOST_TABLES and not is_plain(remote.tree)


def alternative(remote: Remote, context: Context) -> Alternative | None:
    """The alternative; None if the source must compute the subtree, or if it would make no difference."""
    own = replace(context.anew(remote.tree), options=replace(context.options, pushdown="none"))
    tree = push_subtrees(remote.tree, own)
    if isinstance(tree, Remote):
        return None
    tree = rewritten(tree, without_members)  # no table here has them
    own.learn(tree)

    def seconds(of: Operator) -> float:
        return elapsed(of, own.estimator, own.dialect, lambda *_: 1, sources=own)

    return Alternative(tree, own, seconds(remote), seconds(tree))
