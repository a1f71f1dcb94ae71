"""Places for requests that all workers of a service share.

All follow the same rule on the same table: who waits longest is next, small ones first. A worker whose request is next
takes the place itself; otherwise it wakes the worker whose request it is.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque

from dai.api.scheduling.admission import RESERVED_SECONDS, Admission
from dai.api.workers.peers import Peers
from dai.api.workers.table import Table

_KINDS = {True: "small", False: "large"}


class SharedAdmission(Admission):
    """As ``Admission``, counted in the table."""

    def __init__(self, concurrent: int, queue: int, seconds: float, table: Table, peers: Peers) -> None:
        self._table, self._peers = table, peers
        super().__init__(concurrent, queue, seconds)
        self._since: dict[bool, deque[float]] = {True: deque(), False: deque()}

    @property
    def _in_a_row(self) -> int:  # the same for all, who would otherwise not agree on who is next
        return int(self._table.get("in_a_row", 0))

    @_in_a_row.setter
    def _in_a_row(self, value: int) -> None:
        self._table.set("in_a_row", value, 0)

    def _enter_or_wait(self, small: bool) -> asyncio.Future[None] | None:
        table = self._table
        with table.locked():
            if small:
                table.set("reserved_until", time.monotonic() + RESERVED_SECONDS)
            waiting = self._waits()
            if self._fits(small) and not table.total(f"{_KINDS[small]}_waiting"):
                self._enter(small)
                return None
            if waiting >= self.queue:
                raise self._full(int(table.total("small") + table.total("large")), waiting)
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting[small].append(turn)
            self._since[small].append(time.monotonic())
            self._publish()
            return turn

    def _waits(self) -> int:
        """How many requests wait, of all workers."""
        return int(self._table.total("small_waiting") + self._table.total("large_waiting"))

    def _give_up(self, turn: asyncio.Future[None], small: bool) -> None:
        with self._table.locked():
            if turn in self._waiting[small]:
                del self._since[small][self._waiting[small].index(turn)]
                self._waiting[small].remove(turn)
        self.wake()

    def release(self, *, small: bool = False) -> None:
        with self._table.locked():
            self._leave(small)
            waiting = self._waits()
        if waiting:
            self.wake()

    def wake(self) -> None:
        """Gives free places to the requests that are next."""
        with self._table.locked():
            self._hand_out()
            self._publish()
            first = self._first()
        if first is not None:
            self._peers.wake(first[1])

    def _enter(self, small: bool) -> None:
        super()._enter(small)
        self._count()

    def _leave(self, small: bool) -> None:
        super()._leave(small)
        self._count()

    def _count(self) -> None:
        self._table.set("small", self.running - self._large)
        self._table.set("large", self._large)

    def _publish(self) -> None:
        for small, name in _KINDS.items():
            # the two queues are popped together
            while len(self._since[small]) > len(self._waiting[small]):
                self._since[small].popleft()
            self._table.set(f"{name}_waiting", len(self._waiting[small]))
            self._table.set(f"{name}_since", self._since[small][0] if self._since[small] else 0.0)

    def _fits(self, small: bool) -> bool:
        table = self._table
        reserved = self.concurrent // 4 if time.monotonic() < max(table.column("reserved_until")) else 0
        large = table.total("large")
        return large + table.total("small") < self.concurrent and (small or large < self.concurrent - reserved)

    def _next(self) -> bool | None:
        self._publish()
        first = self._first()
        return first[0] if first is not None and first[1] == self._peers.number else None

    def _first(self) -> tuple[bool, int] | None:
        """Of which kind the request is that has the next free place, and whose; None where none is free for one."""
        longest: dict[bool, int | None] = {}
        for small, name in _KINDS.items():
            waiting = [(since, row) for row, since in enumerate(self._table.column(f"{name}_since")) if since]
            longest[small] = min(waiting)[1] if waiting else None
        kind = self._chosen(longest[True] is not None, longest[False] is not None)
        worker = longest[kind] if kind is not None else None
        return None if kind is None or worker is None else (kind, worker)
