"""Distributes a fragment's output over the partitions that its consumers read.

``distribute`` splits each batch by its bucket column, joins the small pieces of each partition into
blocks and puts them into an ``Outbox`` (``dqp.execution.exchange.outbox``: bounded, spilling rather than deadlocking),
where one reader a partition takes them, in the same process or through ``dqp.runtimes.flight.server``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import DaiError, DataError, InternalError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.execution.exchange.outbox import Outbox

BLOCK_BYTES = 1 << 20
SLICED_BYTES = 1 << 20
"""Batches up to this size are sorted whole and sliced: a gather for each bucket would cost more than its bytes."""


def split(
    batch: pa.RecordBatch, buckets: str, partitions: int, block_bytes: int = BLOCK_BYTES
) -> list[list[pa.RecordBatch]]:
    """The rows of each bucket, in their order, without the column ``buckets`` (integers from 0 to partitions - 1), in
    pieces of about ``block_bytes``; those of a large batch have memory of their own.

    One radix sort of the bucket numbers, then one gather: 1.5 to 3 GiB/s, where a filter for each bucket falls with
    their number (0.15 GiB/s at 32) and DuckDB's sort reaches 0.5. Raises DataError for a bucket that is NULL, not an
    integer or out of range: no row is ever dropped.
    """
    index = batch.schema.get_field_index(buckets)
    if index < 0:
        raise DataError(f"The batch needs exactly one column {buckets!r} to partition by.")
    numbers = batch.column(index)
    if not pa.types.is_integer(numbers.type) or numbers.null_count:
        raise DataError(f"The column {buckets!r} has to number buckets: integers without NULLs, not {numbers.type}.")
    rest = batch.remove_column(index)
    if not batch.num_rows:
        return [[]] * partitions
    keys = numbers.to_numpy()
    if int(keys.min()) < 0 or int(keys.max()) >= partitions:
        raise DataError(f"The column {buckets!r} has buckets outside of 0 to {partitions - 1}.")
    if partitions == 1:
        return [[rest]]
    keys = keys.astype(np.uint8 if partitions <= 256 else np.uint16 if partitions <= 65536 else np.uint32)
    order = pa.array(np.argsort(keys, kind="stable").astype(np.uint32))
    ends = np.cumsum(np.bincount(keys, minlength=partitions)).tolist()
    ranges = list(zip([0, *ends], ends, strict=False))
    if batch.nbytes <= SLICED_BYTES:
        ordered = pc.take(rest, order, boundscheck=False)
        return [[ordered.slice(begin, end - begin)] if end > begin else [] for begin, end in ranges]
    rows = math.ceil(batch.num_rows * block_bytes / batch.nbytes)
    return [
        [pc.take(rest, order.slice(at, many), boundscheck=False) for at, many in _even(begin, end, rows)]
        for begin, end in ranges
    ]


def _even(begin: int, end: int, rows: int) -> Iterator[tuple[int, int]]:
    """Ranges (begin, length) of about so many rows, all of equal size."""
    count = max(1, round((end - begin) / rows))
    step = max(1, math.ceil((end - begin) / count))
    return ((at, min(step, end - at)) for at in range(begin, end, step))


@dataclass(frozen=True, slots=True)
class BlockSize:
    """What a block should reach: ``bytes`` or ``rows``, or the age in seconds after which it goes as it is."""

    bytes: int = BLOCK_BYTES
    rows: int = 1 << 17
    seconds: float = 0.05


class Coalescer:
    """Joins the small batches of one partition into blocks and cuts large ones; one thread.

    A block has at most ``size.rows`` rows and, as far as rows are alike, less than twice ``size.bytes``. A batch of at
    least half of that goes as it is, without being copied, after what is held. The first batch goes at once, and so
    does what waited ``size.seconds`` when the next one comes: a slow producer's tuples are not kept back. Less than one
    block is held between calls.
    """

    def __init__(self, size: BlockSize) -> None:
        self._size = size
        self._held: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0
        self._since = -math.inf

    def add(self, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Takes ``batch`` and returns the blocks that are ready now."""
        if not batch.num_rows:
            return iter(())
        large = batch.num_rows * 2 >= self._size.rows or batch.nbytes * 2 >= self._size.bytes
        before = self.rest() if large else iter(())
        self._held.append(batch)
        self._rows += batch.num_rows
        self._bytes += batch.nbytes
        late = time.monotonic() - self._since >= self._size.seconds
        if large or late or self._rows >= self._size.rows or self._bytes >= self._size.bytes:
            return chain(before, self.rest())
        return before

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Everything that is held."""
        if not self._held:
            return iter(())
        joined = self._held[0] if len(self._held) == 1 else pa.concat_batches(self._held)
        pieces = max(math.ceil(self._rows / self._size.rows), self._bytes // self._size.bytes, 1)
        step = math.ceil(self._rows / pieces)
        self._held, self._rows, self._bytes = [], 0, 0
        self._since = time.monotonic()
        return (joined.slice(begin, step) for begin in range(0, joined.num_rows, step))


def distribute(
    stream: Stream,
    outbox: Outbox,
    cancellation: Cancellation,
    *,
    buckets: str | None = None,
    block: BlockSize | None = None,
) -> None:
    """All of ``stream`` into ``outbox``, which is finished at the end and failed by whatever is raised here; closes the
    stream. ``buckets`` names the column that numbers the partitions; without it there is one sequence (gather,
    broadcast). Raises what the stream, ``split`` and ``Outbox.put`` raise."""
    sequences = outbox.sequences
    try:
        with stream:
            if buckets is None and sequences > 1:
                raise DataError(f"Tuples for {sequences} partitions need a column that says which.")
            size = block or BlockSize()
            coalescers = [Coalescer(size) for _ in range(sequences)]
            for batch in stream:
                parts = [[batch]] if buckets is None else split(batch, buckets, sequences, size.bytes)
                for partition, pieces in enumerate(parts):
                    for piece in pieces:
                        for ready in coalescers[partition].add(piece):
                            outbox.put(partition, ready, cancellation)
            for partition, coalescer in enumerate(coalescers):
                for ready in coalescer.rest():
                    outbox.put(partition, ready, cancellation)
        outbox.finish()
    except DaiError as error:
        outbox.fail(error)
        raise
    except BaseException:
        outbox.fail(InternalError("A fragment failed; the log of its evaluator says why."))
        raise
