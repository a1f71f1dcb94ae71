"""Connections that are kept open and shared, one user at a time.

A ``Pool`` opens connections when they are asked for, up to its ``Limit``; a caller that finds none free waits for its
turn, and finally gets BusyError. There is no thread behind it: a connection that lay idle for long is checked when it
is next asked for, and a broken one is replaced then. Several pools may share one limit (two libraries that talk to the
same database): a pool that finds the limit reached closes what lies idle in another. Several limits may stand
``within`` one (users of the same database): each has its own size, the sum is that of the common one, and whoever holds
the fewest connections is served first.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from dai.drivers.connections.interrupts import AGAIN_SECONDS
from dai.errors import BusyError, DatabaseUnavailableError
from dai.streams.cancellation import Cancellation
from dai.streams.waiting import Condition

C = TypeVar("C")
INTERRUPT_SECONDS = 60.0
"""Seconds for which statements on connections of a closed pool are interrupted again and again."""


class Limit:
    """``size`` connections at most, over all pools that share it; ``wait`` seconds for one to come free."""

    def __init__(self, size: int, wait: float, within: Limit | None = None) -> None:
        self.size, self.wait, self.within = size, wait, within
        self.open = 0
        self.closed = False
        self.pools: list[Pool[Any]] = []
        self.lock: threading.Lock = within.lock if within is not None else threading.Lock()
        self.queue: deque[tuple[Condition, Limit]] = within.queue if within is not None else deque()

    @property
    def idle(self) -> int:
        return sum(len(pool.idle) for pool in self.pools)

    @property
    def full(self) -> bool:
        return self.open >= self.size

    @property
    def free(self) -> bool:
        return (not self.full or self.idle > 0) and (self.within is None or self.within.free)

    def add(self, pool: Pool[Any]) -> None:
        self.pools.append(pool)
        if self.within is not None:
            self.within.add(pool)

    def remove(self, pool: Pool[Any]) -> None:
        self.pools.remove(pool)
        if self.within is not None:
            self.within.remove(pool)

    def count(self, more: int) -> None:
        self.open += more
        if self.within is not None:
            self.within.count(more)

    def first(self) -> Condition | None:
        """The caller whose turn it is: first come, first served, among those with the fewest connections in use."""
        waiting = [each for each in self.queue if each[1].free]
        return min(waiting, key=lambda each: each[1].open - each[1].idle)[0] if waiting else None

    def wake_first(self) -> None:
        """Called with the lock held, whenever a connection or a place may have come free."""
        for turn, limit in self.queue:
            if limit.closed:
                turn.notify_all()
        if (first := self.first()) is not None:
            first.notify_all()

    def close_idle(self, seconds: float) -> None:
        """Closes the connections that nobody has used for so long."""
        for pool in list(self.pools):
            pool.clear(seconds)

    def state(self) -> dict[str, int]:
        """Of all that stand within the same limit."""
        if self.within is not None:
            return self.within.state()
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
        with limit.lock:
            limit.add(self)

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
        """Closes a connection that is broken or whose state is unknown."""
        try:
            with contextlib.suppress(Exception):
                self._close(connection)
        finally:
            with self._limit.lock:
                self._taken.pop(id(connection), None)
                self._limit.count(-1)
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

    def clear(self, seconds: float = 0.0) -> None:
        """Discards the connections that were idle for so long; all: where one turned out to be broken, the others
        probably are too."""
        before = time.monotonic() - seconds
        with self._limit.lock:
            connections = [connection for connection, since in self.idle if since <= before]
            self.idle = [(connection, since) for connection, since in self.idle if since > before]
        for connection in connections:
            self.discard(connection)

    def close(self) -> None:
        """Closes the limit and with it all its pools, but not what stands beside it within another limit. Interrupts
        connections in use, which are closed once they come back."""
        limit = self._limit
        with limit.lock:
            limit.closed = True
            limit.wake_first()
            pools = list(limit.pools)
        for pool in pools:
            if pool._interrupt_all():
                threading.Thread(target=pool._interrupt_again, name="interrupt", daemon=True).start()
            pool.clear()
            with limit.lock:
                limit.remove(pool)

    def _interrupt_all(self) -> bool:
        """Whether there was something to interrupt."""
        with self._limit.lock:
            taken = list(self._taken.values())
        for connection in taken:
            with contextlib.suppress(Exception):
                self._interrupt(connection)
        return bool(taken)

    def _interrupt_again(self) -> None:
        """Interrupts the statements of a closed pool again, because a database forgets an interrupt that comes just
        before a statement begins."""
        until = time.monotonic() + INTERRUPT_SECONDS
        while time.monotonic() < until and self._interrupt_all():
            time.sleep(AGAIN_SECONDS)

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
                self._limit.count(-1)
                self._limit.wake_first()
            raise
        with self._limit.lock:
            self._taken[id(connection)] = connection
            closed = self._limit.closed
        if closed:
            self.discard(connection)
            raise DatabaseUnavailableError("The connection pool is closed.")
        return connection

    def _idle_or_place(self, cancellation: Cancellation, wait: float) -> tuple[C, float] | None:
        """An idle connection, or None for the right to open one (which counts as open already)."""
        limit = self._limit
        with limit.lock:
            if self.idle and not limit.queue and not limit.closed:
                cancellation.check()
                return self._last_idle()
            turn = Condition(limit.lock)
            limit.queue.append((turn, limit))
            try:
                self._await_turn(turn, cancellation, wait)
                if self.idle:
                    return self._last_idle()
                full = limit if limit.full else limit.within
                limit.count(1)
                if full is None or full.open <= full.size:
                    return None
                pool = min((pool for pool in full.pools if pool.idle), key=lambda pool: pool.idle[0][1])
                surplus, _ = pool.idle.pop(0)
                pool._limit.count(-1)
            finally:
                limit.queue.remove((turn, limit))
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
        came = turn.wait_for(lambda: limit.closed or limit.first() is turn, cancellation, wait)
        cancellation.check()
        if not came:
            most = limit.size if limit.within is None or limit.full else limit.within.size
            raise BusyError(
                f"All {most} connections to this database are in use, and none became free in {wait:g} seconds.",
                hint="Try again later, or ask the operator of the service to raise the connection limit of this "
                "resource (pool_size).",
            )
        if limit.closed:
            raise DatabaseUnavailableError("The connection pool is closed.")
