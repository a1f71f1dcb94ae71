"""Batches on their way from the threads that fetch them to the one that reads them.

A full buffer stops its producers while it has a reader, so a slow reader slows the database down. While it has no
reader yet (DuckDB still reads another build side), rows that do not fit go to a file: a statement that had to wait
would keep its connection, and the input that DuckDB reads first may need that connection.

All buffers of a process share ``TOTAL`` bytes of memory, however many queries run: each may use an equal part of it,
but never less than ``LEAST``.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from dai.streams.cancellation import Cancellation
from dai.streams.spool import Spilled, Spool
from dai.streams.waiting import Condition
from dqp.execution.execution import Measure

TOTAL = 256 << 20
LEAST = 16 << 20


class _Room:
    """The memory that the buffers of this process share. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._buffers = 0

    def enter(self) -> None:
        with self._lock:
            self._buffers += 1

    def leave(self) -> None:
        with self._lock:
            self._buffers -= 1

    @property
    def each(self) -> int:
        """Bytes that a buffer may hold now."""
        return max(LEAST, TOTAL // max(1, self._buffers))


_ROOM = _Room()


class Buffer:
    """``producers`` threads put, each calls ``finish`` once; one reader. Thread-safe. Batches of one producer come out
    in their order."""

    def __init__(
        self, capacity: int, producers: int, directory: Callable[[], Path], cancellation: Cancellation, measure: Measure
    ) -> None:
        self._capacity, self._producers, self._directory = capacity, producers, directory
        self._cancellation, self._measure = cancellation, measure
        self._changed = Condition()
        self._batches: deque[pa.RecordBatch] = deque()
        self._bytes = 0
        self._spool: Spool | None = None
        self._spilled: deque[Spilled] = deque()
        self._read = self._closed = False
        cancellation.check()
        _ROOM.enter()  # not before: a cancelled query leaves nothing behind

    def put(self, batch: pa.RecordBatch) -> None:
        """Raises the cancellation's cause, LimitError where the disk is full."""
        size = batch.nbytes
        with self._changed:
            if self._read and self._full(size):
                with self._measure.waiting(held=True):
                    self._changed.wait_for(lambda: not self._full(size), self._cancellation)
            self._cancellation.check()
            if self._full(size):
                if self._spool is None:
                    self._spool = Spool(self._directory(), "rows that have to wait")
                self._spilled.append(self._spool.write(batch))
                self._measure.spooled(size)
            else:
                self._batches.append(batch)
                self._bytes += size
            self._changed.notify_all()
        self._measure.passed(batch)

    def _full(self, size: int) -> bool:
        """Whether it is full. Rows on disk must be read before others may wait in memory."""
        return bool(self._spilled or (self._batches and self._bytes + size > min(self._capacity, _ROOM.each)))

    def finish(self) -> None:
        with self._changed:
            self._producers -= 1
            if not self._producers:
                self._measure.ended()
            self._changed.notify_all()

    @property
    def complete(self) -> bool:
        """Whether all producers have finished."""
        return not self._producers

    def whole(self, limit: int) -> list[pa.RecordBatch] | None:
        """Waits for the end and returns all batches if they have at most ``limit`` bytes; None as soon as they have
        more. Removes nothing."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._producers and self._fits(limit)), self._cancellation)
            self._cancellation.check()
            return list(self._batches) if self._fits(limit) else None

    def _fits(self, limit: int) -> bool:
        return not self._spilled and self._bytes <= limit

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (batch := self._next()) is not None:
            yield batch

    def _next(self) -> pa.RecordBatch | None:
        with self._changed:
            self._read = True
            if not self._arrived():
                with self._measure.waiting():
                    self._changed.wait_for(self._arrived, self._cancellation)
            self._cancellation.check()
            if self._batches:
                batch = self._batches.popleft()
                self._bytes -= batch.nbytes
            elif self._spilled:
                first = self._spilled.popleft()
                try:
                    batch = first.read()
                finally:
                    first.release()
            else:
                return None
            self._changed.notify_all()
            return batch

    def _arrived(self) -> bool:
        """A batch, or the end."""
        return bool(self._batches or self._spilled or not self._producers)

    def close(self) -> None:
        """Drops what is left. The cancellation must have stopped the producers before."""
        with self._changed:
            if not self._closed:
                self._closed = True
                _ROOM.leave()
            self._batches.clear()
            self._bytes = 0
            while self._spilled:
                self._spilled.popleft().release()
            self._changed.notify_all()
