"""The shared counters of a service's workers: a row of numbers for each worker, in memory that all of them share.

A worker writes its own row alone (but ``in_a_row``), and the supervisor clears that of one that died: what it had taken
is free again. What signed requests were ``seen`` stands behind the rows and outlives workers. The lock is one of the
file (``lockf``), which the system releases when its holder dies.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dai.security.identity import replay
from dai.streams.tally import Tally

COLUMNS = (
    *("small", "large", "small_waiting", "large_waiting", "small_since", "large_since", "reserved_until"),
    "in_a_row",
    *("jobs", "jobs_running", "sessions", "stream_bytes", "result_bytes", "feeds", "feed_bytes"),
    *("connections", "accepted", "stuck", "alive"),
)
"""Of requests (``admission``): how many are at work and wait, since when the first of them waits, until when places are
kept for small ones; in the first row, how many small ones went in a row. Of tallies. ``accepted``: connections that
the supervisor handed over and the worker has taken, since the service began. ``stuck``: statements that cannot be
stopped. ``alive``: grows while the worker runs."""
_PLACES = {name: number for number, name in enumerate(COLUMNS)}


def _bytes(workers: int) -> int:
    return 8 * len(COLUMNS) * workers


class Table:
    """In the file of ``descriptor``, which every process inherits; thread-safe."""

    def __init__(self, descriptor: int, workers: int, own: int | None = None) -> None:
        self.descriptor, self.workers, self.own = descriptor, workers, own
        rows = _bytes(workers)
        self._memory = memoryview(mmap.mmap(descriptor, rows + replay.BYTES))
        self._numbers = self._memory[:rows].cast("d")
        self.seen = replay.Seen(self._memory[rows:], self.locked)
        self._threads = threading.Lock()

    @classmethod
    def create(cls, workers: int) -> Table:
        """The supervisor's."""
        with tempfile.TemporaryFile() as file:
            os.ftruncate(file.fileno(), _bytes(workers) + replay.BYTES)
            return cls(os.dup(file.fileno()), workers)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process or thread is in such a block meanwhile. Not to be nested."""
        with self._threads:
            fcntl.lockf(self.descriptor, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self.descriptor, fcntl.LOCK_UN)

    def get(self, name: str, row: int | None = None) -> float:
        return self._numbers[self._place(name, row)]

    def set(self, name: str, value: float, row: int | None = None) -> None:
        self._numbers[self._place(name, row)] = value

    def column(self, name: str) -> list[float]:
        """That number of each worker."""
        return list(self._numbers[_PLACES[name] :: len(COLUMNS)])

    def total(self, name: str) -> float:
        return sum(self.column(name))

    def clear(self, row: int) -> None:
        """Releases what a worker that died had taken."""
        with self.locked():
            for name in COLUMNS:
                if name != "accepted":
                    self._numbers[self._place(name, row)] = 0.0

    def _place(self, name: str, row: int | None) -> int:
        row = self.own if row is None else row
        assert row is not None
        return row * len(COLUMNS) + _PLACES[name]


class SharedTally(Tally):
    """A column of the table. ``given_back`` is called, from any thread, with the total before something was."""

    def __init__(self, table: Table, name: str, given_back: Callable[[int], None] | None = None) -> None:
        self._table, self._name, self._given_back = table, name, given_back

    @property
    def own(self) -> int:
        return int(self._table.get(self._name))

    @property
    def total(self) -> int:
        return int(self._table.total(self._name))

    def take(self, amount: int, most: float, *, first: bool = False) -> bool:
        with self._table.locked():
            total = self._table.total(self._name)
            if total + amount > most and not (first and not total):
                return False
            self._table.set(self._name, self._table.get(self._name) + amount)
            return True

    def add(self, amount: int) -> None:
        with self._table.locked():
            before = self.total
            self._table.set(self._name, self._table.get(self._name) + amount)
        if amount < 0 and self._given_back is not None:
            self._given_back(before)
