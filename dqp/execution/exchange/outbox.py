"""The buffer between a producing fragment and its consumers: bounded; it spills rather than deadlocks.

Why an ``Outbox`` may have to spill: fragments wait for each other, a producer for room and a reader for tuples. Such
waits can only close into a ring through a producer with several readers (in a ring of an acyclic plan one fragment
feeds both ways round), where one reader wants what is behind another one's unread tuples. So

1. an outbox with a single reader never spills: full, it holds its producer, and so a slow client slows the database;
2. an outbox with several readers, full, holds its producer while all readers that have something to read take it;
3. a partition that has lain unread for ``grace`` seconds has a reader that is blocked elsewhere. While the outbox is
   full, the fullest such partition gives its oldest batches to the disk;
4. with ``disk_bytes`` on disk the producer is held again; when no reader has taken anything for ``patience`` seconds
   either, the outbox raises LimitError.

This is not a ``dai.streams.mailbox.Mailbox``: that one bounds one reader's blocks of bytes, numbered and kept until
acknowledged, so that a lost HTTP reply can be repaired. An exchange shares one bound among all partitions, passes
batches by reference, forgets what was taken, and has a lost reader repaired by a new attempt of the query.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from dai.errors import ClosedError, ConflictError, DaiError, DataError, LimitError, NotFoundError
from dai.streams.cancellation import Cancellation
from dai.streams.spool import Spilled, Spool
from dai.streams.stream import Stream
from dai.streams.waiting import Condition
from dqp.execution.execution import Measure, Measurement

MEMORY_BYTES = 64 << 20
DISK_BYTES = 16 << 30
GRACE = 0.1
"""Seconds. Longer than any consumer that works needs for one block, short beside what a false wait costs."""
PATIENCE = 60.0


@dataclass(slots=True, eq=False)
class _Item:
    """One batch: in memory, or on disk where that is None."""

    batch: pa.RecordBatch | None
    size: int
    spilled: Spilled | None = None


class _Sequence:
    """Batches in order and where each reader stands. The oldest ``spilled`` of them are on disk, the others in
    memory."""

    def __init__(self, readers: Sequence[int], lock: threading.Lock, directory: Path | None) -> None:
        self.arrived = Condition(lock)
        self.items: deque[_Item] = deque()
        self.first = 0  # the number of items[0]
        self.spilled = 0
        self.memory = 0
        self.unread_since = 0.0  # when items[0] became the first
        self.positions = dict.fromkeys(readers, 0)
        self.spool = Spool(
            directory,
            "rows that a slower reader of an exchange has not read yet",
            hint="Free disk space, or allow the exchange more memory.",
        )


class Outbox:
    """What a producing fragment writes and its consumers read: ``partitions`` sequences with one reader each, or with
    ``broadcast`` one sequence that each of ``partitions`` readers reads whole, without copies. With ``copies`` all of
    this is there several times, for as many consumers, without copies too: partition i of n is read by the readers i,
    n + i, 2n + i ...

    Of the batches that wait at most ``memory_bytes`` are in memory, one batch always fits, and each reader may have
    one more in its hands. ``directory`` is where others may go, None for nowhere. ``abandoned`` is called, once, when
    the last reader has left before the end. ``measure`` is told how long producers are held, and what goes to disk.
    Thread-safe; several threads may put, each one's order is kept.
    """

    def __init__(
        self,
        schema: pa.Schema,
        partitions: int,
        *,
        copies: int = 1,
        memory_bytes: int = MEMORY_BYTES,
        directory: Path | None = None,
        disk_bytes: int = DISK_BYTES,
        broadcast: bool = False,
        grace: float = GRACE,
        patience: float = PATIENCE,
        abandoned: Callable[[], None] = lambda: None,
        measure: Measure | None = None,
    ) -> None:
        self.schema, self.partitions, self.broadcast = schema, partitions, broadcast
        self._memory_bytes, self._disk_bytes = memory_bytes, disk_bytes
        self.readers = partitions * copies
        self._directory = directory if self.readers > 1 else None
        self._grace, self._patience, self._abandoned = grace, patience, abandoned
        self.measure = measure or Measure(Measurement("exchange"))
        self._lock = threading.Lock()
        self._room = Condition(self._lock)
        self._spilling = threading.Lock()
        readers = range(self.readers)
        of = [readers] if broadcast else [readers[each::partitions] for each in range(partitions)]
        self._sequences = [_Sequence(each, self._lock, directory) for each in of]
        self._unclaimed, self._reading = set(readers), set(readers)
        self._memory = 0
        self._taken = 0.0
        self._finished = False
        self._cause: DaiError | None = None

    @property
    def sequences(self) -> int:
        """How many sequences there are to put into: one where all readers read the same."""
        return len(self._sequences)

    @property
    def drained(self) -> bool:
        """Finished, and every reader has read all or left."""
        return self._finished and not self._reading

    @property
    def held(self) -> tuple[int, int]:
        """Bytes in memory and on disk."""
        with self._lock:
            return self._memory, self._disk

    @property
    def _disk(self) -> int:
        return sum(each.spool.size for each in self._sequences)

    # the producer's side

    def put(self, partition: int, batch: pa.RecordBatch, cancellation: Cancellation) -> None:
        """Adds the batch to a sequence (0 with ``broadcast``), held or spilling while there is no room.

        Dropped where its reader has left. Raises the cancellation's cause, ClosedError when all readers have left or
        the outbox was closed, the failure it was given, ConflictError after the end, DataError for another schema,
        LimitError when the disk may or can hold no more. A failed put adds nothing.
        """
        if not batch.schema.equals(self.schema):
            raise DataError(f"A batch has the schema {batch.schema}, the exchange {self.schema}.")
        cancellation.check()
        if not batch.num_rows:
            return
        size = batch.nbytes
        if batch.get_total_buffer_size() > 2 * size:  # a slice would keep more than it counts
            batch = pa.concat_batches([batch])
        with self._lock:
            if self._added(partition, batch, size):
                return
        began = time.monotonic()
        with self.measure.waiting(held=True):
            while not self._added_in_time(partition, batch, size, began, cancellation):
                self._spill()

    def _added(self, partition: int, batch: pa.RecordBatch, size: int) -> bool:
        if self._cause is not None:
            raise self._cause
        if self._finished:
            raise ConflictError("This exchange has ended; nothing more can be put into it.")
        if not self._reading:
            raise ClosedError("All readers of this exchange are gone.")
        sequence = self._sequences[partition]
        if sequence.positions:
            if self._memory and self._memory + size > self._memory_bytes:
                return False
            if not sequence.items:
                sequence.unread_since = time.monotonic()
            sequence.items.append(_Item(batch, size))
            sequence.memory += size
            self._memory += size
            sequence.arrived.notify_all()
        return True

    def _added_in_time(
        self, partition: int, batch: pa.RecordBatch, size: int, began: float, cancellation: Cancellation
    ) -> bool:
        """Waits for room; False when it is time to spill."""
        with self._lock:
            while True:
                cancellation.check()
                if self._added(partition, batch, size):
                    return True
                now = time.monotonic()
                if self._directory is None:
                    left = None
                elif self._disk < self._disk_bytes:
                    filled = [each.unread_since for each in self._sequences if each.memory]
                    left = min(filled) + self._grace - now
                    if left <= 0:
                        return False
                else:
                    left = max(self._taken, began) + self._patience - now
                    if left <= 0:
                        raise LimitError(
                            f"An exchange between fragments holds {self._disk:,} bytes on disk, and no reader "
                            "reads on.",
                            hint="Allow it more disk or memory, or make the query smaller.",
                        )
                self._room.wait(cancellation, left)

    def _spill(self) -> None:
        """One batch, the oldest of the fullest unread sequence, goes from memory to disk. Readers go on meanwhile."""
        with self._spilling:
            with self._lock:
                latest = time.monotonic() - self._grace
                unread = [each for each in self._sequences if each.memory and each.unread_since <= latest]
                if not unread or self._cause is not None:
                    return
                sequence = max(unread, key=lambda each: each.memory)
                item = sequence.items[sequence.spilled]
                batch = item.batch
            spilled = sequence.spool.write(batch)
            with self._lock:
                index = sequence.spilled
                if index < len(sequence.items) and sequence.items[index] is item:
                    item.batch, item.spilled = None, spilled
                    sequence.spilled += 1
                    sequence.memory -= item.size
                    self._memory -= item.size
                    self.measure.spooled(item.size)
                    self._room.notify_all()
                else:  # it was read meanwhile
                    spilled.release()

    def finish(self) -> None:
        """No more batches will come."""
        with self._lock:
            self._finished = True
            self._notify_all()

    def fail(self, error: DaiError) -> None:
        """Readers get ``error`` at once, never what looks like an end; what is held is forgotten. The first one
        stays."""
        with self._lock:
            if self._cause is None:
                self._cause = error
            for sequence in self._sequences:
                while sequence.items:
                    self._forget_first(sequence)
            self._notify_all()

    def wait(self, cancellation: Cancellation) -> None:
        """Returns when it is drained, or has no reader left. Raises the cancellation's cause."""
        with self._lock:
            self._room.wait_for(lambda: not self._reading or self._cause is not None, cancellation)

    def close(self) -> None:
        """Removes everything, in memory and on disk; readers that have not reached the end get ClosedError."""
        self.fail(ClosedError("The exchange was closed."))

    # the readers' side

    def stream(self, reader: int, cancellation: Cancellation | None = None) -> Stream:
        """What is put into the partition of the reader, who is the only one of this number. Pulling raises the
        producer's failure, the cancellation's cause, ClosedError when the outbox was closed before the end. Raises
        ConflictError for a reader who is there already, NotFoundError for one who does not exist."""
        with self._lock:
            if not 0 <= reader < self.readers:
                raise NotFoundError(f"There is no partition {reader}; the exchange has {self.readers}.")
            if reader not in self._unclaimed:
                raise ConflictError(f"Partition {reader} already has a reader.")
            self._unclaimed.remove(reader)
        batches = self._read(reader, cancellation or Cancellation())
        return Stream(self.schema, batches, lambda: self._leave(reader))

    def _of(self, reader: int) -> _Sequence:
        return self._sequences[reader % len(self._sequences)]

    def _read(self, reader: int, cancellation: Cancellation) -> Iterator[pa.RecordBatch]:
        sequence = self._of(reader)
        while True:
            with self._lock:
                sequence.arrived.wait_for(lambda: not self._pending(sequence, reader), cancellation)
                cancellation.check()
                index = sequence.positions[reader] - sequence.first
                if index == len(sequence.items):
                    return
                item = sequence.items[index]
                batch, spilled = item.batch, item.spilled
                if spilled is not None:
                    spilled.hold()
                sequence.positions[reader] += 1
                self._taken = time.monotonic()
                self._forget(sequence)
            if spilled is not None:
                try:
                    batch = spilled.read()
                finally:
                    with self._lock:
                        spilled.release()
                        self._room.notify_all()
            yield batch

    def _pending(self, sequence: _Sequence, reader: int) -> bool:
        if self._cause is not None:
            raise self._cause
        if reader not in sequence.positions:
            raise ClosedError("This reader has left the exchange.")
        return not self._finished and sequence.positions[reader] - sequence.first == len(sequence.items)

    def _forget(self, sequence: _Sequence) -> None:
        """Drops what every reader has taken."""
        slowest = min(sequence.positions.values(), default=sequence.first + len(sequence.items))
        while sequence.first < slowest and sequence.items:
            self._forget_first(sequence)

    def _forget_first(self, sequence: _Sequence) -> None:
        item = sequence.items.popleft()
        sequence.first += 1
        sequence.unread_since = time.monotonic()
        if item.spilled is not None:
            sequence.spilled -= 1
            item.spilled.release()
        else:
            sequence.memory -= item.size
            self._memory -= item.size
        self._room.notify_all()

    def _leave(self, reader: int) -> None:
        with self._lock:
            self._reading.discard(reader)
            sequence = self._of(reader)
            sequence.positions.pop(reader, None)
            self._forget(sequence)
            self._room.notify_all()
            left_alone = not self._reading and not self._finished and self._cause is None
        if left_alone:
            self._abandoned()

    def _notify_all(self) -> None:
        self._room.notify_all()
        for sequence in self._sequences:
            sequence.arrived.notify_all()
