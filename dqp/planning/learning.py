"""Learns from a query that ended: rows and seconds of its statements, if the estimates were far off."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import replace
from functools import partial
from typing import Protocol

from dqp.algebra.operators import Filter, Operator, Project, Remote, Scan, Sort
from dqp.algebra.trees import remotes, walk
from dqp.catalog.statistics.learned import Learned
from dqp.planning.alternatives import Overtaking
from dqp.planning.context import Context
from dqp.planning.costing.cost import COUNTED
from dqp.planning.rules.subtrees import is_plain

LEAST_SECONDS = 0.2
"""Nothing is learned from a shorter query: a better plan would save too little."""
TWICE = 2.0
"""Times the estimate of its alternative that an overtaken statement takes, at least."""
FACTOR = 3.0
"""Between actual and estimated figures from which they are learned."""
LEAST_ROWS = 1_000
"""Between actual and estimated rows."""


class Measured(Protocol):
    """The measurements of a node of the plan."""

    @property
    def key(self) -> Hashable: ...
    @property
    def state(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def where(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def held(self) -> float: ...


def learn(
    query: str,
    seconds: float,
    tree: Operator,
    context: Context,
    measured: Iterable[Measured],
    overtakings: Iterable[Overtaking],
) -> None:
    """Keeps what is known now of the statements in the tree of a query that ended after so many seconds. ``context``:
    of its plan."""
    learned = context.estimator.learned
    if learned is None or seconds < LEAST_SECONDS:
        return
    context = replace(context, estimator=context.estimator.again())
    planned = set(remotes(tree))
    for overtaking in overtakings:
        if overtaking.won:
            _learn_seconds(overtaking.remote.tree, max(overtaking.first or 0.0, TWICE * overtaking.here), learned)
    measured = [each for each in measured if each.key in planned and each.state == "done"]
    for each in measured:
        if isinstance(each.key, Remote) and is_plain(each.key.tree) and each.rows >= max(1, LEAST_ROWS):
            learned.learn_speed(each.where, each.rows, max(each.seconds - each.held, 0.0))
    if learned.taught(query, seconds):
        for each in measured:
            if isinstance(each.key, Remote):
                _learn_rows(each.key.tree, each.rows, context, partial(learned.learn_rows, teacher=query))


def _learn_seconds(tree: Operator, seconds: float, learned: Learned) -> None:
    """Nobody knows which part of the statement took them: all that do more than read a table may."""
    for each in walk(tree):
        if not is_plain(each):
            learned.learn_seconds(each, seconds)


def _learn_rows(tree: Operator, rows: int, context: Context, learned: Callable[[Operator, float], None]) -> None:
    while isinstance(tree, Project) or (isinstance(tree, Sort) and tree.limit is None and not tree.offset):
        tree = tree.input
    if not isinstance(tree, (*COUNTED, Scan)) or not _far(rows, context.estimator.rows(tree)):
        return
    learned(tree, rows)
    inner: Operator = tree
    while isinstance(inner, Filter | Project):
        inner = inner.input
    if isinstance(inner, Scan) and inner is not tree and rows > context.estimator.rows(inner):
        learned(inner, rows)  # at least


def _far(rows: float, estimate: float) -> bool:
    return abs(rows - estimate) >= LEAST_ROWS and not 1 / FACTOR < max(1.0, rows) / estimate < FACTOR
