"""Hands over a statement that the driver's connection has begun: where its rows are many or take long, a process reads
them from the beginning.

At most a few rows, or some 20 milliseconds, are computed twice, or 80 where no process is free at first. What is read
row by row costs several times as much, and holds Python's lock.
"""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from dai.drivers.connections.rows import Convert, Portions, batches, portion_rows
from dai.drivers.sqlite.readers import Query, Reader, ReaderError, Readers, rows_of
from dai.errors import DataError
from dai.streams.stream import Stream

log = logging.getLogger("dai.drivers.sqlite")

Asking = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""What surrounds a wait for a process, which the function ends."""

MANY_ROWS = 2048
"""Rows of a result that the driver's connection reads, and then once more the process."""
STEPS = 100_000
"""Of SQLite's machine, 1 to 20 ms: how often the time is checked, for which SQLite waits for Python's lock."""
FIRST_SECONDS, TIMES = 0.01, 8
"""Processor time: if the first rows take more, a process reads them and the connection stops. Where none is free then,
one is asked for again after as long, but not more often: it would compute all of that again."""
WAIT_SECONDS = 0.2
"""How long a result of many rows waits for a process: the connection takes several times as long, and holds Python's
lock."""
SOME_SECONDS = 0.02
"""Processor time after which a process is asked also for fewer than MANY_ROWS. Elapsed time would count waits for
Python's lock, which ``sqlite3`` gives up for each row."""
AGAIN_SECONDS = 0.1
"""Processor time of the connection from which on no process is asked, as it would compute all of that again."""
_MOST_BYTES = 32 << 20
"""Of rows that the connection reads before it asks a process."""
START_ROWS = 30_000
"""Rows of a result, read without a process, from which one is started for those that follow."""
_FEW_ROWS = 1 << 10
"""Of a batch at most where rows come slowly, which are not to wait for many others."""
BATCH_SECONDS = 0.1
"""The connection's time for the rows of a batch."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A query that the driver's connection has begun to execute: the columns of its ``have`` first rows, how many
    ``seconds`` of processor time these took, and the others with what makes columns of them."""

    columns: list[pa.Array]
    have: int
    seconds: float
    portions: Portions
    convert: Convert

    def read(self) -> Begun:
        """The same, with MANY_ROWS at least, if there are, unless they take SOME_SECONDS or have _MOST_BYTES."""
        parts, have, most = [self.columns], self.have, portion_rows(len(self.columns))
        size, spent, began = _size(self.columns), 0.0, time.thread_time()
        while have < MANY_ROWS and size < _MOST_BYTES and spent < SOME_SECONDS:
            if not (more := self.portions.next(min(most, have))):
                break
            parts.append(self.convert(more, 1 + have))
            have += len(more)
            size += _size(parts[-1])
            spent = time.thread_time() - began
        columns = [pa.concat_arrays(each) for each in zip(*parts, strict=True)]
        return Begun(columns, have, self.seconds + spent, self.portions, self.convert)

    def batch_rows(self, batch_bytes: int) -> int:
        """How many rows a batch of a process may have."""
        fast = max(_FEW_ROWS, int(self.have * BATCH_SECONDS / max(self.seconds, 1e-6)))
        return max(1, min(fast, batch_bytes * self.have // max(1, _size(self.columns))))

    def rows(self, schema: pa.Schema, batch_bytes: int, batch_rows: int | None) -> Iterator[pa.RecordBatch]:
        """All of them, by the connection."""
        return batches(self.columns, self.have, self.portions, self.convert, schema, batch_bytes, batch_rows)


class Handover:
    """A statement that the driver's connection begins, and a process reads from the beginning if it takes long or has
    many rows. ``watch`` sets the connection's progress handler; ``asking`` is around each wait."""

    def __init__(
        self, readers: Readers, watch: Callable[[Callable[[], bool] | None, int], None], asking: Asking
    ) -> None:
        self._readers, self._watch, self._asking = readers, watch, asking
        self._reader: Reader | None = None
        self._whole = False
        self._tries, self._next = 0, FIRST_SECONDS

    @contextmanager
    def watched(self) -> Iterator[None]:
        """After FIRST_SECONDS the statement ends, if a process waits, which is then ``taken``."""
        began = time.thread_time()
        self._watch(lambda: self._interrupts(time.thread_time() - began), STEPS)
        try:
            yield
        except sqlite3.OperationalError:
            if not self.taken:
                raise
        finally:
            self._watch(None, 0)

    def _interrupts(self, seconds: float) -> bool:
        if self._tries == TIMES or seconds < self._next:
            return False
        self._tries, self._next = self._tries + 1, seconds + FIRST_SECONDS
        return self._take()

    def _take(self, seconds: float = 0.0) -> bool:
        self._reader = self._reader or self._readers.take(seconds)
        return self.taken

    @property
    def taken(self) -> bool:
        return self._reader is not None

    def first(self, query: Query, batch_rows: int | None) -> Iterator[pa.RecordBatch] | None:
        """All rows of the query, once it is ``taken``; None if the process cannot be used, or its first rows do not
        have these types."""
        rows = self._answered(query, min(_FEW_ROWS, batch_rows or _FEW_ROWS), batch_rows)
        try:
            first = next(rows, None)
        except (ReaderError, DataError):
            self._replace()
            return None
        return chain(() if first is None else (first,), rows)

    def rows(
        self, query: Query, begun: Begun, batch_bytes: int, batch_rows: int | None, alike: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        """All rows of the query, by a process if many come fast. ``alike``: whether it computes the same."""
        if begun.seconds < AGAIN_SECONDS and self._readers.any():
            begun = begun.read()
            if not begun.portions.at_end and begun.seconds < AGAIN_SECONDS and self._may_take(alike):
                try:
                    yield from self._answered(query, begun.batch_rows(batch_bytes), batch_rows)
                    return
                except ReaderError as error:
                    log.warning("a process that reads SQLite could not be used", extra={"error": str(error)})
                    self._replace()
        read = 0
        for batch in begun.rows(query.schema, batch_bytes, batch_rows):
            yield batch
            if read < START_ROWS <= read + batch.num_rows and alike():
                self._readers.start()
            read += batch.num_rows

    def _may_take(self, alike: Callable[[], bool]) -> bool:
        with self._asking(_nothing):  # a cancellation ends the wait
            return alike() and self._take(WAIT_SECONDS)

    def _replace(self) -> None:
        """The process has rows of this query, and ends; another one starts."""
        self.close()
        self._readers.start()

    def _answered(self, query: Query, most: int, batch_rows: int | None) -> Iterator[pa.RecordBatch]:
        if (reader := self._reader) is None:
            raise AssertionError("No process has been taken.")
        stream = Stream(query.schema, self._awaited(rows_of(self._readers.uri, reader, query, most), reader))
        yield from stream if batch_rows is None else stream.rebatch(batch_rows)

    def _awaited(self, rows: Iterator[pa.RecordBatch], reader: Reader) -> Iterator[pa.RecordBatch]:
        while True:
            reader.left_at = None
            with self._asking(reader.kill):
                batch = next(rows, None)
            reader.left_at = time.monotonic()
            if batch is None:
                self._whole = True
                self.close()
                return
            yield batch

    def close(self) -> None:
        """The process is there for others, or ends where it has rows of this query."""
        reader, self._reader = self._reader, None
        if reader is not None:
            self._readers.give_back(reader, self._whole)


def _size(columns: Sequence[pa.Array]) -> int:
    return sum(each.nbytes for each in columns)


def _nothing() -> None:
    """Stops nothing."""
