"""The two things that flow between activities.

A ``Stream`` is a schema and a pulled iterator of Arrow record batches: the only currency for tuples. A
``ByteStream`` is a media type and a pulled iterator of ``Block`` s of bytes: an encoded result, a file, a
tokenised text. Both have one owner that closes them; pulling is the back-pressure; both may be pulled from any
thread, one thread at a time.

An ``Encoded`` byte stream remembers the tuples it is made of until it is first pulled. So a later consumer may
still ask for blocks of another size, or for the tuples themselves, and nothing is encoded twice or decoded again.

Field metadata (all optional, UTF-8) carries what Arrow's types do not: see ``TYPE_NAME`` and its neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import pyarrow as pa

from dai.errors import DataError

T = TypeVar("T")

TYPE_NAME = b"dai.type"
"""The source's own type name (``timestamptz``, ``bigint unsigned``, ``uuid``, ``numeric`` …)."""
PRECISION = b"dai.precision"
TABLE = b"dai.table"
SCHEMA_NAME = b"dai.schema"
JOINED_BYTES = 8 << 20
"""Blocks of bytes are not joined beyond that, however many rows are asked for."""


def _no_operation() -> None:
    """What closing means for a source that holds nothing."""


@dataclass(frozen=True, slots=True)
class Block:
    """One block: ``rows`` tuples (or strings), encoded; ``data`` is any buffer of bytes. Its first ``head`` bytes are
    the static part of the document (its context), its last ``tail`` bytes end the document."""

    data: bytes | memoryview | pa.Buffer
    rows: int
    head: int = 0
    tail: int = 0

    def __len__(self) -> int:
        return memoryview(self.data).nbytes

    @property
    def static(self) -> bytes:
        return bytes(memoryview(self.data).cast("B")[: self.head])

    @property
    def payload(self) -> memoryview:
        """The tuples alone."""
        return memoryview(self.data).cast("B")[self.head : len(self) - self.tail]


class _Pulled(Generic[T]):
    """An iterator with one owner that closes it; closing is idempotent and comes by itself at the end or a failure."""

    def __init__(self, items: Iterable[T], close: Callable[[], None] = _no_operation) -> None:
        self._items = iter(items)
        self._close = close
        self._open = True

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        if not self._open:
            raise StopIteration
        try:
            return next(self._items)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Free everything below: generators first, then what ``close`` was given for. Never called while pulling."""
        if not self._open:
            return
        self._open = False
        try:
            if isinstance(self._items, Generator | _Pulled):
                self._items.close()
        finally:
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stream(_Pulled[pa.RecordBatch]):
    """Tuples: record batches that all have ``schema``. Batch sizes are the producer's choice; empty batches may
    occur."""

    def __init__(
        self, schema: pa.Schema, batches: Iterable[pa.RecordBatch], close: Callable[[], None] = _no_operation
    ) -> None:
        super().__init__(batches, close)
        self.schema = schema

    @classmethod
    def of(cls, data: pa.Table | pa.RecordBatch | pa.RecordBatchReader) -> Stream:
        """A stream over data in memory or over an Arrow reader, which it closes."""
        if isinstance(data, pa.RecordBatch):
            return cls(data.schema, [data])
        if isinstance(data, pa.Table):
            return cls(data.schema, data.to_batches())
        return cls(data.schema, data, data.close)

    def map(self, function: Callable[[pa.RecordBatch], pa.RecordBatch], schema: pa.Schema | None = None) -> Stream:
        """The stream of ``function(batch)``; takes over this one. ``schema`` where the function changes it."""
        return Stream(schema or self.schema, map(function, self), self.close)

    def rebatch(self, rows: int) -> Stream:
        """The same tuples in batches of exactly ``rows``, the last one shorter; slices where it can, copies where a
        batch is put together from several. Takes over this stream. Holds at most one output batch and one input batch.
        """
        if rows < 1:
            raise DataError(f"A block has at least one row, not {rows}.")
        return Stream(self.schema, _rebatched(self, rows), self.close)

    def reader(self) -> pa.RecordBatchReader:
        """For libraries that take an Arrow reader. Who asked still closes the stream; every batch is checked against
        the schema (``from_batches`` does not)."""
        return pa.RecordBatchReader.from_batches(self.schema, self.checked())

    def checked(self) -> Iterator[pa.RecordBatch]:
        for batch in self:
            if not batch.schema.equals(self.schema):
                raise DataError(f"A batch has the schema {batch.schema}, the stream {self.schema}.")
            yield batch

    def table(self) -> pa.Table:
        """All of it in memory; closes the stream."""
        with self:
            return pa.Table.from_batches(list(self), self.schema)


def size_of(tuples: pa.RecordBatch | pa.Table) -> int:
    """Bytes of plain tuples. Each value counts as 4 at least: Arrow needs none for a null and a bit for a boolean, but
    whatever they become next needs some."""
    return sum(max(int(column.nbytes), 4 * len(column)) for column in tuples.columns)


def _rebatched(stream: Stream, rows: int) -> Iterator[pa.RecordBatch]:
    parts: list[pa.RecordBatch] = []
    have = 0
    for batch in stream:
        start = 0
        while batch.num_rows - start >= rows - have:
            parts.append(batch.slice(start, rows - have))
            start += rows - have
            yield parts[0] if len(parts) == 1 else pa.concat_batches(parts)
            parts, have = [], 0
        if start < batch.num_rows:
            parts.append(batch.slice(start))
            have += batch.num_rows - start
    if parts:
        yield parts[0] if len(parts) == 1 else pa.concat_batches(parts)


class ByteStream(_Pulled[Block]):
    """Blocks of bytes of one media type."""

    def __init__(self, media_type: str, blocks: Iterable[Block], close: Callable[[], None] = _no_operation) -> None:
        super().__init__(blocks, close)
        self.media_type = media_type

    def reblock(self, size: int) -> ByteStream:
        """The same bytes in blocks of ``size`` rows (or strings), fewer where these would have more than JOINED_BYTES:
        blocks are joined, never cut. Takes over this one."""
        return ByteStream(self.media_type, _joined(self, size), self.close)

    def read(self) -> bytes:
        """All of it in memory; closes the stream."""
        with self:
            return b"".join(memoryview(block.data) for block in self)


def _joined(blocks: Iterable[Block], size: int) -> Iterator[Block]:
    data, rows, head = bytearray(), 0, None
    for block in blocks:
        if head is None and (block.rows >= size or len(block) >= JOINED_BYTES):
            yield block
            continue
        data += memoryview(block.data)
        rows += block.rows
        head, tail = block.head if head is None else head, block.tail
        if rows >= size or len(data) >= JOINED_BYTES:
            yield Block(bytes(data), rows, head, tail)
            data, rows, head = bytearray(), 0, None
    if head is not None:
        yield Block(bytes(data), rows, head, tail)


class Encoder(Protocol):
    """The half of a format (``dai.formats.Format``) that turns tuples into blocks of bytes."""

    @property
    def name(self) -> str: ...

    @property
    def media_type(self) -> str: ...

    @property
    def binary(self) -> bool: ...

    def encode(self, stream: Stream, blocksize: int | None = None, **options: Any) -> Iterator[Block]: ...


class Encoded(ByteStream):
    """Tuples that will be encoded when first pulled, in blocks of ``blocksize`` rows (None: the format's choice)."""

    def __init__(
        self,
        tuples: Stream,
        format: Encoder,
        blocksize: int | None = None,
        options: dict[str, Any] | None = None,
        watch: Callable[[Iterator[Any]], Iterator[Any]] = iter,
    ) -> None:
        self.tuples, self.format, self.blocksize, self.options = tuples, format, blocksize, options or {}
        self.watch = watch
        super().__init__(format.media_type, self._encode(), tuples.close)

    def _encode(self) -> Iterator[Block]:
        yield from self.watch(self.format.encode(self.tuples, self.blocksize, **self.options))

    def reblock(self, size: int) -> Encoded:
        """Blocks of exactly ``size`` rows; the concatenated bytes of a text format stay the same."""
        return Encoded(self.tuples, self.format, size, self.options, self.watch)

    def recoded(self, format: Encoder, options: dict[str, Any] | None = None) -> Encoded:
        """The same tuples in another format, nothing having been pulled yet."""
        return Encoded(self.tuples, format, self.blocksize, options, self.watch)

    def pieces(self) -> Iterator[Block]:
        """The same bytes, large blocks cut into pieces: for a consumer that only wants the bytes in order. Whoever
        pulls them closes this stream."""
        return self.watch(self.format.encode(self.tuples, self.blocksize, **{**self.options, "pieces": True}))

    def watched(self, watch: Callable[[Iterator[Any]], Iterator[Any]]) -> Encoded:
        """``watch``, too, sees the blocks pass, whatever their form in the end."""
        inner = self.watch
        return Encoded(self.tuples, self.format, self.blocksize, self.options, lambda items: watch(inner(items)))

    def unencoded(self) -> Stream:
        """The tuples themselves, nothing having been pulled yet; who watches sees the batches pass."""
        return Stream(self.tuples.schema, self.watch(self.tuples), self.tuples.close)
