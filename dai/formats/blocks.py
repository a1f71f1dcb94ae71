"""Between batches and blocks: how tuples, and the text or bytes they became, are cut and joined, in one place."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import DataError, EncodingError
from dai.formats import PIECE_BYTES
from dai.formats.values import text as values
from dai.streams.stream import Block, Stream

T = TypeVar("T")
TEXT_BYTES = 1 << 20
"""Tuples are turned into text about so many bytes at a time: they stay in the processor's cache, and leave early."""
_TEXT_ROWS = 1 << 15
_FIRST_ROWS = 1 << 11
_FEW_ROWS = 16
"""Of a block: the borders of all rows are looked up sooner in a list, which takes its time to be made."""
BLOCK_BYTES = 1 << 23
"""A block that grows beyond this ends early: what a reader makes the service hold is bounded whatever block size it
asks for."""
EARLY_BYTES = 1 << 16
"""A piece of fewer bytes gains nothing by leaving before the next one is known."""


def cut(batch: pa.RecordBatch, nbytes: int, rows: int | None = None) -> Iterator[pa.RecordBatch]:
    """Slices of about ``nbytes`` and of ``rows`` at most, or of one row; nothing is copied. No rows, no slices."""
    if batch.num_rows > 1 and (batch.nbytes > nbytes or (rows is not None and batch.num_rows > rows)):
        half = batch.num_rows // 2
        yield from cut(batch.slice(0, half), nbytes, rows)
        yield from cut(batch.slice(half), nbytes, rows)
    elif batch.num_rows:
        yield batch


def ramped(batches: Iterable[pa.RecordBatch], nbytes: int, rows: int) -> Iterator[pa.RecordBatch]:
    """Slices of about ``nbytes`` and ``rows`` at most, the first ones shorter: the first block leaves while the rest of
    a batch is still being written."""
    most = _FIRST_ROWS
    for batch in batches:
        start = 0
        while most < rows and start < batch.num_rows:
            yield from cut(batch.slice(start, most), nbytes, rows)
            start, most = start + most, most * 2
        yield from cut(batch.slice(start), nbytes, rows)


def bounded(stream: Stream, rows: int | None, nbytes: int) -> Iterator[pa.RecordBatch]:
    """The tuples in batches of ``rows``, fewer where that many would be more than about ``nbytes``. Without ``rows`` a
    batch never waits for a later one. Holds one input and one output batch.
    """
    if rows is None:
        for batch in stream:
            yield from cut(batch, nbytes)
        return
    parts: list[pa.RecordBatch] = []
    have = size = 0
    for batch in stream:
        for piece in cut(batch, nbytes):
            start = 0
            while start < piece.num_rows:
                part = piece.slice(start, rows - have)
                if parts and size + part.nbytes > nbytes:
                    yield joined(parts)
                    parts, have, size = [], 0, 0
                    continue
                start += part.num_rows
                parts.append(part)
                have, size = have + part.num_rows, size + part.nbytes
                if have == rows:
                    yield joined(parts)
                    parts, have, size = [], 0, 0
    if parts:
        yield joined(parts)


def joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """At least one batch as one."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def no_columns(rows: int, schema: pa.Schema) -> pa.RecordBatch:
    """A batch without columns that still counts its rows."""
    empty = pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    return empty.replace_schema_metadata(schema.metadata)


def check_text(schema: pa.Schema) -> None:
    """EncodingError for the first column of a type that has no text form."""
    for field in schema:
        try:
            values.canonical_type(field.type)
        except DataError as error:
            raise EncodingError(f"Column {field.name!r}: {error.detail}", column=field.name, hint=error.hint) from error


def row_texts(
    stream: Stream, row_text: Callable[[pa.RecordBatch, int], pa.Array], most: int = _TEXT_ROWS
) -> Iterator[pa.Array]:
    """``row_text`` of the stream's batches, in slices of a good size and of ``most`` rows at most, and of the number of
    their first row. What Arrow cannot do is an EncodingError."""
    row = 1
    for piece in ramped(stream, TEXT_BYTES, min(most, _TEXT_ROWS)):
        try:
            yield row_text(piece, row)
        except (pa.ArrowException, OverflowError) as error:
            last = row + piece.num_rows - 1
            raise EncodingError(f"Rows {row} to {last} cannot be written: {error}", row=row) from error
        row += piece.num_rows


def byte_view(text: pa.Array) -> Any:
    """The bytes of all values of a string array, one after the other, as a numpy array of uint8."""
    offsets, data = _buffers(text)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if len(text) else np.zeros(0, np.uint8)


def text_blocks(
    head: bytes, texts: Iterable[pa.Array], blocksize: int | None, tail: bytes = b"", *, pieces: bool = False
) -> Iterator[Block]:
    """Blocks of exactly ``blocksize`` strings, the last one shorter, from arrays of one string a row; without
    ``blocksize`` one block an array. They are slices of the arrays' bytes; only a block that spans arrays is joined.
    A block that grows beyond BLOCK_BYTES ends there. ``head`` goes in front of the first block and ``tail`` behind the
    last one, which is all there is when there are no rows: a block that ends where its array does waits for the next
    array to know whether it is the last.

    With ``pieces`` nothing of a size waits: a large block leaves as several Blocks, and ``tail`` may be one without
    rows.
    """
    buffers: list[bytes | pa.Buffer] = [head] if head else []
    static = len(head)
    have = rows = size = 0
    empty, complete = True, False
    for text in texts:
        if not len(text):
            continue
        if complete and buffers:
            yield Block(_join(buffers), rows, static)
            static = rows = size = 0
        positions, data = _buffers(text)
        offsets = positions.tolist() if blocksize is not None and blocksize <= _FEW_ROWS else positions
        start = 0
        while start < len(text):
            take = len(text) - start if blocksize is None else min(blocksize - have, len(text) - start)
            begin = int(offsets[start])
            buffers.append(data.slice(begin, int(offsets[start + take]) - begin))
            start, have, rows, size = start + take, have + take, rows + take, size + len(buffers[-1])
            whole = blocksize is None or have == blocksize
            complete = whole or size >= (PIECE_BYTES if pieces else BLOCK_BYTES)
            if not complete:
                continue
            if whole or not pieces:
                have = 0
            early = pieces and (blocksize is not None or size >= EARLY_BYTES)
            if early or start < len(text):
                empty = False
                yield Block(_join(buffers), rows, static)
                static = rows = size = 0
    if buffers or tail or empty:
        buffers.append(tail)
        yield Block(_join(buffers), rows, static, len(tail))


def _join(parts: list[bytes | pa.Buffer]) -> bytes | pa.Buffer:
    """Joins the parts and drops them."""
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    parts.clear()
    return data


def _buffers(text: pa.Array) -> tuple[Any, pa.Buffer]:
    """The n + 1 offsets of a string array, and the bytes they point into."""
    _, positions, data = text.buffers()
    if not len(text):
        return np.zeros(1, np.int64), pa.py_buffer(b"")
    width = np.dtype(np.int64 if pa.types.is_large_string(text.type) else np.int32)
    offsets = np.frombuffer(positions, width, len(text) + 1, text.offset * width.itemsize)
    return offsets, data if data is not None else pa.py_buffer(b"")


class Sink:
    """A binary file that a streaming writer writes to and whose bytes are taken out as they come."""

    def __init__(self) -> None:
        self._parts: list[pa.Buffer | bytes] = []
        self._position = 0
        self.closed = False

    def write(self, data: pa.Buffer | bytes) -> int:
        self._parts.append(data)
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        return self._position

    def take(self) -> bytes:
        """The bytes that were written since the last call."""
        data = b"".join(self._parts)
        self._parts = []
        return data

    def flush(self) -> None:
        """Nothing waits elsewhere."""

    def close(self) -> None:
        self.closed = True


def plain_type(type: pa.DataType) -> pa.DataType:
    """The type without dictionaries and run ends: encoders need the values, not how they are stored."""
    if pa.types.is_dictionary(type) or pa.types.is_run_end_encoded(type):
        return plain_type(type.value_type)
    if pa.types.is_list(type):
        return pa.list_(type.value_field.with_type(plain_type(type.value_type)))
    if pa.types.is_large_list(type):
        return pa.large_list(type.value_field.with_type(plain_type(type.value_type)))
    return type


def check_zones(schema: pa.Schema) -> None:
    """DataError for an unknown time zone, which readers of the column could not handle."""
    for field in schema:
        for zone in _zones(field.type):
            if not _zone_exists(zone) and _zone_exists("Europe/London"):  # this machine has zones
                raise DataError(
                    f"Column {field.name!r} has the time zone {zone[:40]!r}, which is unknown.",
                    hint="Send it in UTC, or with a zone of the IANA database such as Europe/London.",
                    column=field.name,
                )


def _zone_exists(zone: str) -> bool:
    try:
        pa.array([0], pa.timestamp("s", zone)).cast(pa.string())
    except pa.ArrowException:
        return False
    return True


def _zones(type: pa.DataType) -> Iterator[str]:
    if pa.types.is_timestamp(type) and type.tz not in (None, "UTC"):
        yield type.tz
    within = (
        [type.value_type] if pa.types.is_dictionary(type) else [type.field(at).type for at in range(type.num_fields)]
    )
    for each in within:
        yield from _zones(each)


class OfSchema(Generic[T]):
    """A value computed from a schema once, and kept as long as the schema is in use: a statement that comes again has
    the same object. Equal schemas may differ in the metadata of their fields."""

    def __init__(self, compute: Callable[[pa.Schema], T]) -> None:
        self._compute = compute
        self._known: dict[int, tuple[weakref.ref[pa.Schema], T]] = {}

    def __call__(self, schema: pa.Schema) -> T:
        key = id(schema)
        if key not in self._known or self._known[key][0]() is not schema:
            self._known[key] = weakref.ref(schema, lambda _: self._known.pop(key, None)), self._compute(schema)
        return self._known[key][1]


_is_plain = OfSchema(lambda schema: all(each == plain_type(each) for each in schema.types))


def plain(stream: Stream) -> Stream:
    """The same tuples without dictionary or run-end encoding; takes over ``stream``. A batch that would become much
    larger than BLOCK_BYTES is decoded in pieces.

    Raises EncodingError naming the column that Arrow cannot decode.
    """
    if _is_plain(stream.schema):
        return stream
    schema = pa.schema([each.with_type(plain_type(each.type)) for each in stream.schema], stream.schema.metadata)

    def decoded(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = []
        for field, column in zip(schema, batch.columns, strict=True):
            try:
                whole = pc.run_end_decode(column) if pa.types.is_run_end_encoded(column.type) else column
                if whole.type != field.type and not pa.types.is_dictionary(whole.type):
                    # the cast of a slice of lists is one of all items before it too
                    whole = pa.concat_arrays([whole])
                columns.append(whole.cast(field.type))
            except pa.ArrowException as error:
                raise EncodingError(f"A {column.type} cannot be decoded: {error}", column=field.name) from error
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    def pieces() -> Iterator[pa.RecordBatch]:
        for batch in stream:
            for piece in _expandable(batch):
                yield decoded(piece)

    return Stream(schema, pieces(), stream.close)


def _expandable(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices that become about BLOCK_BYTES at most, or one row."""
    if batch.num_rows > 1 and sum(map(_expanded, batch.columns)) > BLOCK_BYTES:
        half = batch.num_rows // 2
        yield from _expandable(batch.slice(0, half))
        yield from _expandable(batch.slice(half))
    else:
        yield batch


def _expanded(column: pa.Array) -> int:
    """Bytes of the values that a dictionary or run ends stand for, those of runs at most; of other columns 0."""
    if pa.types.is_dictionary(column.type):
        sizes = _sizes(column)
        return 16 * len(column) if sizes is None else int(pc.sum(sizes).as_py() or 0)
    if pa.types.is_run_end_encoded(column.type):
        runs = column.values.slice(column.find_physical_offset(), column.find_physical_length())
        sizes = _sizes(runs)
        return len(column) * (16 if sizes is None else 16 + int(pc.max(sizes).as_py() or 0))
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _expanded(column.flatten())
    return 0


def _sizes(values: pa.Array) -> pa.Array | None:
    """Bytes of each value, where they differ."""
    type = values.type
    if pa.types.is_dictionary(type):
        sizes = _sizes(values.dictionary)
        return None if sizes is None else sizes.take(values.indices)
    known = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    return pc.binary_length(values) if any(fits(type) for fits in known) else None


def closing(source: Iterable[Any]) -> Callable[[], None]:
    """What ends ``source`` early: its ``close`` where it has one."""
    close: Callable[[], None] | None = getattr(source, "close", None)
    return close or _nothing


def _nothing() -> None:
    """A list needs no closing."""


class ChunkReader:
    """The bytes of an iterable of chunks as the file that pyarrow reads from.

    ``ended`` says that more was asked for than there was; ``failure`` is what the chunks raised, for it must come out
    as it went in.
    """

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._held = memoryview(b"")
        self.closed = False
        self.ended = False
        self.failure: BaseException | None = None

    def _more(self) -> bool:
        """Holds the next chunk that is not empty; False at the end."""
        try:
            for chunk in self._chunks:
                self._held = memoryview(chunk).cast("B")
                if self._held.nbytes:
                    return True
        except BaseException as error:
            self.failure = error
            raise
        self._held = memoryview(b"")
        return False

    def read(self, size: int) -> memoryview | bytearray:
        """Exactly ``size`` bytes, fewer at the end. A slice where one chunk has them all, else one copy."""
        if not self._held.nbytes and not self._more():
            self.ended = self.ended or size > 0
            return memoryview(b"")
        if self._held.nbytes >= size:
            taken, self._held = self._held[:size], self._held[size:]
            return taken
        parts, have = [self._held], self._held.nbytes
        while have < size:
            if not self._more():
                self.ended = True
                break
            parts.append(self._held[: size - have])
            have += parts[-1].nbytes
        self._held = self._held[parts[-1].nbytes :]
        return bytearray().join(parts)

    def exhausted(self) -> bool:
        """Whether nothing follows."""
        return not self._held.nbytes and not self._more()

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True
