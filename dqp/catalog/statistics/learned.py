"""What statements turned out to be: rows and seconds by the shape of what they compute.

It is kept with the statistics of their tables: forgotten when these change, and after their lifetime. Some true rows
beside estimates that are wrong may make a worse plan than estimates that are wrong alike. So rows have to prove
themselves: where the query that taught them takes longer with them, they are forgotten and not learned from it again.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from dqp.algebra.operators import Operator, Scan
from dqp.algebra.shapes import shape_of_rows, shape_of_work
from dqp.algebra.table import Table
from dqp.algebra.trees import walk_deep

MOST = 1_000
"""Shapes kept, those that were learned or used last."""
MOST_CHARACTERS = 20_000
"""Of a shape that is kept."""
CHANGE = 1.5
"""Ratio from which a figure is another one than before: plans are made again."""
WORSE = 1.5
"""Ratio of a query's seconds to those of before its rows were learned, from which they are forgotten."""

_Shape = Callable[[Operator], str]


@dataclass(frozen=True)
class _Actual:
    """``tables`` are those of the statement, with the statistics that they had; ``teacher`` the query."""

    figure: float
    tables: tuple[Table, ...]
    time: float
    teacher: str | None = None


@dataclass(frozen=True)
class _Teacher:
    """Seconds of a query when its rows were learned; whether they made its plan worse."""

    seconds: float
    time: float
    refused: bool = False


class Learned:
    """Thread-safe. ``lifetime`` in seconds of ``clock``."""

    def __init__(self, lifetime: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._version = 0
        self._lifetime, self._clock = lifetime, clock
        self._ends = math.inf
        """When something is to be forgotten."""
        self._lock = threading.Lock()
        self._by_shape: OrderedDict[tuple[_Shape, str], _Actual] = OrderedDict()
        self._teachers: OrderedDict[str, _Teacher] = OrderedDict()
        self._names: frozenset[frozenset[object]] = frozenset()
        """The tables of a shape, of all shapes."""
        self._speeds: dict[str, tuple[float, float]] = {}
        """Of sources, with the time when each was measured."""

    @property
    def version(self) -> int:
        """Changes when plans may change."""
        if self._clock() > self._ends:
            with self._lock:
                for key, actual in list(self._by_shape.items()):
                    if self._clock() - actual.time > self._lifetime:
                        del self._by_shape[key]
                self._changed()
        return self._version

    def rows(self, tree: Operator) -> float | None:
        """The rows of the tree when it was a statement's; None if that is not known."""
        return self._actual(tree, shape_of_rows)

    def seconds(self, tree: Operator) -> float | None:
        """The seconds that a statement took to its first row, at least; None if that is not known."""
        return self._actual(tree, shape_of_work)

    def taught(self, query: str, seconds: float) -> bool:
        """Whether the rows of this query, which took so many seconds, may be learned."""
        with self._lock:
            now, teacher = self._clock(), self._teachers.get(query)
            if teacher is None or now - teacher.time > self._lifetime:
                teacher = self._teachers[query] = _Teacher(seconds, now)
            elif not teacher.refused and seconds > WORSE * teacher.seconds:
                teacher = self._teachers[query] = _Teacher(teacher.seconds, now, refused=True)
                self._by_shape = OrderedDict((k, v) for k, v in self._by_shape.items() if v.teacher != query)
                self._changed()
            self._teachers.move_to_end(query)
            while len(self._teachers) > MOST:
                self._teachers.popitem(last=False)
            return not teacher.refused

    def learn_rows(self, tree: Operator, rows: float, teacher: str | None = None) -> None:
        self._learn(tree, shape_of_rows, rows, teacher)

    def learn_seconds(self, tree: Operator, seconds: float) -> None:
        self._learn(tree, shape_of_work, seconds)

    def speed(self, source: str) -> float | None:
        """Seconds in which the source gave a million rows of its tables; None if that is not known."""
        seconds, time = self._speeds.get(source, (0.0, -math.inf))
        return seconds if self._clock() - time <= self._lifetime else None

    def learn_speed(self, source: str, rows: float, seconds: float) -> None:
        """The mean of this time and of what was known, so that one slow answer does not decide."""
        now, before = seconds / rows * 1_000_000, self.speed(source)
        with self._lock:
            self._speeds[source] = now if before is None else (now + before) / 2, self._clock()

    def _actual(self, tree: Operator, shape: _Shape) -> float | None:
        if not self._names:
            return None
        tables = _tables(tree)
        if frozenset(each.identity for each in tables) not in self._names:
            return None
        key = (shape, shape(tree))
        with self._lock:
            actual = self._by_shape.get(key)
            if actual is None:
                return None
            if any(one is not other for one, other in zip(actual.tables, tables, strict=True)):
                del self._by_shape[key]
                self._changed()
                return None
            self._by_shape.move_to_end(key)
            return actual.figure

    def _learn(self, tree: Operator, shape: _Shape, figure: float, teacher: str | None = None) -> None:
        key = (shape, shape(tree))
        if len(key[1]) > MOST_CHARACTERS:
            return
        with self._lock:
            before = self._by_shape.pop(key, None)
            self._by_shape[key] = _Actual(figure, tuple(_tables(tree)), self._clock(), teacher)
            while len(self._by_shape) > MOST:
                self._by_shape.popitem(last=False)
            if before is None or not 1 / CHANGE < (figure + 1e-9) / (before.figure + 1e-9) < CHANGE:
                self._changed()

    def _changed(self) -> None:
        kept = self._by_shape.values()
        self._version += 1
        self._names = frozenset(frozenset(one.identity for one in each.tables) for each in kept)
        self._ends = min((each.time for each in kept), default=math.inf) + self._lifetime


def _tables(tree: Operator) -> list[Table]:
    return [each.table for each in walk_deep(tree) if isinstance(each, Scan)]
