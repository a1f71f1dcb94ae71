"""What a query that ended teaches: rows and seconds of its statements, where the estimates were far off."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Protocol

from dqp.algebra.operators import Operator, Project, Remote, Sort, walk, walk_deep
from dqp.catalog.learned import Learned
from dqp.planning.context import Context
from dqp.planning.costing.cost import COUNTED
from dqp.planning.costing.work import elapsed
from dqp.planning.rules.subtrees import is_plain
from dqp.planning.second_chance import Overtaking

LEAST_SECONDS = 0.2
"""A shorter query, or statement, teaches nothing: no plan is worth changing."""
FACTOR = 3.0
"""Between actual and estimated figures from which they are learned."""
LEAST_ROWS = 1_000
"""Between actual and estimated rows."""


class Measured(Protocol):
    """How a node of the plan ended; ``first``: seconds to its first batch."""

    @property
    def key(self) -> Hashable: ...
    @property
    def state(self) -> str: ...
    @property
    def rows(self) -> int: ...
    @property
    def first(self) -> float | None: ...


def learn(tree: Operator, context: Context, measured: Iterable[Measured], overtakings: Iterable[Overtaking]) -> None:
    """Keeps what is known now of the statements in the tree of an ended query. ``context``: of its plan."""
    learned = context.estimator.learned
    if learned is None:
        return
    context = replace(context, estimator=context.estimator.again())
    planned = {each for each in walk_deep(tree) if isinstance(each, Remote)}
    overtaken = {each.remote: each for each in overtakings if each.won}
    for remote, overtaking in overtaken.items():
        _learn_seconds(remote.tree, max(overtaking.first or 0.0, FACTOR * overtaking.here), learned)
    for each in measured:
        if not isinstance(each.key, Remote) or each.key not in planned or each.state != "done":
            continue
        _learn_rows(each.key.tree, each.rows, context, learned)
        seconds = each.first or 0.0
        if each.key in overtaken or seconds < LEAST_SECONDS:
            continue
        if seconds >= FACTOR * elapsed(each.key, context.estimator, context.dialect, lambda _: 1):
            _learn_seconds(each.key.tree, seconds / FACTOR, learned)  # the machine may be as much slower for all


def _learn_seconds(tree: Operator, seconds: float, learned: Learned) -> None:
    """Nobody knows which part of the statement took them: all that do more than read a table may."""
    for each in walk(tree):
        if not is_plain(each):
            learned.learn_seconds(each, seconds)


def _learn_rows(tree: Operator, rows: int, context: Context, learned: Learned) -> None:
    while isinstance(tree, Project) or (isinstance(tree, Sort) and tree.limit is None and not tree.offset):
        tree = tree.input
    estimate = context.estimator.rows(tree)
    ratio = max(1.0, rows) / estimate
    if isinstance(tree, COUNTED) and abs(rows - estimate) >= LEAST_ROWS and not 1 / FACTOR < ratio < FACTOR:
        learned.learn_rows(tree, rows)
