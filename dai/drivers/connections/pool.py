"""Connections that are kept open and shared, one user at a time.

A ``Pool`` opens connections when they are asked for, up to its ``Limit``; whoever finds none free waits its turn, and
gives up with BusyError. There is no thread behind it: a connection that lay idle for long is checked when it is next
asked for, and a broken one is replaced then. Several pools may share one limit (two libraries that talk to the same
database): a pool that finds the limit reached closes what lies idle in another.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from dai.errors import BusyError, DatabaseUnavailableError
from dai.streams.cancellation import Cancellation
from dai.streams.waiting import Condition

C = TypeVar("C")


class Limit:
    """``size`` connections at most, over all pools that share it; ``wait`` seconds for one to come free."""

    def __init__(self, size: int, wait: float) -> None:
        self.size, self.wait = size, wait
        self.open = 0
        self.closed = False
        self.pools: list[Pool[Any]] = []
        self.lock = threading.Lock()
        self.queue: deque[Condition] = deque()

    @property
    def idle(self) -> int:
        return sum(len(pool.idle) for pool in self.pools)

    @property
    def free(self) -> bool:
        return self.open < self.size or self.idle > 0

    def wake_first(self) -> None:
        """Called with the lock held, whenever a connection or a place may have come free: first come, first served."""
        if self.queue and (self.free or self.closed):
            self.queue[0].notify_all()

    def state(self) -> dict[str, int]:
        with self.lock:
            return {"open": self.open, "idle": self.idle, "limit": self.size}


class Pool(Generic[C]):
    """Thread-safe.

    ``connect`` opens a connection (or raises a DaiError), ``close`` closes one. ``alive`` is asked each time before an
    idle connection is used and must cost next to nothing; ``check`` may talk to the database and is asked after
    ``idle`` seconds. ``interrupt`` stops, from another thread, what runs on a connection; used when the pool is closed.
    """

    def __init__(
        self,
        connect: Callable[[], C],
        close: Callable[[C], object],
        *,
        limit: Limit,
        idle: float,
        check: Callable[[C], bool] = lambda _: True,
        alive: Callable[[C], bool] = lambda _: True,
        interrupt: Callable[[C], object] = lambda _: None,
    ) -> None:
        self._connect, self._close, self._check, self._alive = connect, close, check, alive
        self._interrupt = interrupt
        self._limit, self._idle_seconds = limit, idle
        self.idle: list[tuple[C, float]] = []
        self._taken: dict[int, C] = {}
        limit.pools.append(self)

    def take(self, cancellation: Cancellation, wait: float | None = None) -> C:
        """A connection, the one used last first; the caller must give it back or discard it.

        Raises BusyError after ``wait`` seconds (by default the limit's), DatabaseUnavailableError, or the
        cancellation's cause.
        """
        while True:
            idle = self._idle_or_place(cancellation, self._limit.wait if wait is None else wait)
            if idle is None:
                return self._opened()
            connection, since = idle
            if self._usable(connection, since):
                return connection
            self.discard(connection)

    def give_back(self, connection: C) -> None:
        """The next one may use it: it is in no transaction and keeps no state of this user."""
        limit = self._limit
        with limit.lock:
            if not limit.closed:
                self._taken.pop(id(connection), None)
                self.idle.append((connection, time.monotonic()))
                limit.wake_first()
                return
        self.discard(connection)

    def discard(self, connection: C) -> None:
        """Closes a connection that is broken or whose state nobody knows."""
        try:
            with contextlib.suppress(Exception):
                self._close(connection)
        finally:
            with self._limit.lock:
                self._taken.pop(id(connection), None)
                self._limit.open -= 1
                self._limit.wake_first()

    @contextmanager
    def connection(self, cancellation: Cancellation, wait: float | None = None) -> Iterator[C]:
        """A connection for a block; discarded when an exception leaves the block."""
        connection = self.take(cancellation, wait)
        try:
            yield connection
        except BaseException:
            self.discard(connection)
            raise
        self.give_back(connection)

    def clear(self) -> None:
        """Discards the idle connections: where one turned out to be broken, the others probably are too."""
        with self._limit.lock:
            connections = [connection for connection, _ in self.idle]
            self.idle.clear()
        for connection in connections:
            self.discard(connection)

    def close(self) -> None:
        """Closes the limit and with it all its pools. Interrupts connections in use, which are closed once they come
        back."""
        limit = self._limit
        with limit.lock:
            limit.closed = True
            limit.wake_first()
        for pool in limit.pools:
            with limit.lock:
                taken = list(pool._taken.values())
            for connection in taken:
                with contextlib.suppress(Exception):
                    pool._interrupt(connection)
            pool.clear()

    def _usable(self, connection: C, since: float) -> bool:
        try:
            if not self._alive(connection):
                return False
            return time.monotonic() - since < self._idle_seconds or self._check(connection)
        except Exception:  # noqa: BLE001 - whatever a check raises, the connection is no good
            return False

    def _opened(self) -> C:
        try:
            connection = self._connect()
        except BaseException:
            with self._limit.lock:
                self._limit.open -= 1
                self._limit.wake_first()
            raise
        with self._limit.lock:
            self._taken[id(connection)] = connection
        return connection

    def _idle_or_place(self, cancellation: Cancellation, wait: float) -> tuple[C, float] | None:
        """An idle connection, or None for the right to open one (which counts as open already)."""
        limit = self._limit
        with limit.lock:
            if self.idle and not limit.queue and not limit.closed:
                cancellation.check()
                return self._last_idle()
            turn = Condition(limit.lock)
            limit.queue.append(turn)
            try:
                self._await_turn(turn, cancellation, wait)
                if self.idle:
                    return self._last_idle()
                if limit.open < limit.size:
                    limit.open += 1
                    return None
                pool = next(pool for pool in limit.pools if pool.idle)
                surplus, _ = pool.idle.pop(0)
            finally:
                limit.queue.remove(turn)
                limit.wake_first()
        with contextlib.suppress(Exception):
            pool._close(surplus)
        return None

    def _last_idle(self) -> tuple[C, float]:
        connection, since = self.idle.pop()
        self._taken[id(connection)] = connection
        return connection, since

    def _await_turn(self, turn: Condition, cancellation: Cancellation, wait: float) -> None:
        limit = self._limit
        came = turn.wait_for(lambda: limit.closed or (limit.queue[0] is turn and limit.free), cancellation, wait)
        cancellation.check()
        if not came:
            raise BusyError(
                f"All {limit.size} connections to this database are in use and none came free in {wait:g} seconds.",
                hint="Try again later, or ask for the connection limit of this resource to be raised.",
            )
        if limit.closed:
            raise DatabaseUnavailableError("The connection pool is closed.")
