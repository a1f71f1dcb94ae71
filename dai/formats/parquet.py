"""Apache Parquet files (https://parquet.apache.org/docs/file-format/), a row group a block.

Everything comes back as it was: what Parquet has no type for travels as text or as its nearest type, and the schema as
it was is kept in the file's metadata under ``dai.arrow`` (an Arrow IPC schema message in base64). Other readers see the
file's own columns and need to know nothing of this.
"""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq

from dai.errors import DataError, EncodingError, ParameterError, TruncatedError
from dai.formats.blocks import Sink, bounded, check_zones, closing, no_columns, plain
from dai.formats.values import text as values
from dai.streams.stream import Block, Stream

_SCHEMA = b"dai.arrow"
_MAGIC = b"PAR1"
_CODECS = ("zstd", "snappy", "gzip", "lz4", "none")
_GROUP_BYTES = 1 << 24
"""A row group holds about this many bytes of tuples at most."""
_GROUP_ROWS = 1 << 17
"""And this many rows, where nobody asked for a number."""
_SMALLEST_GROUP = 1024
"""And no fewer rows than this but the last: every row group costs memory and a place in the file's footer."""
_BATCH_ROWS = 1 << 14
"""Rows a batch of a decoded file."""
_SPOOL_BYTES = 1 << 24
"""A file larger than this is read from disk, for its end must be seen first."""
_PLACEHOLDER = "dai.rows"
"""A table without columns has this one in Parquet, which otherwise loses the number of rows."""


class Parquet:
    """A Parquet file in blocks; see the module for what keeps the types."""

    def encode(
        self, stream: Stream, blocksize: int | None = None, *, compression: str = "zstd", pieces: bool = False
    ) -> Iterator[Block]:
        """A row group a block; several where a block is large. Blocks of less than 1,024 rows share a row group: their
        bytes come with the block that completes it, and the others are empty. The footer is in the last block.

        ``compression`` is one of zstd, snappy, gzip, lz4, none. With ``pieces`` a row group leaves by itself and the
        footer follows as a piece without rows. Raises ParameterError for an unknown compression, EncodingError naming
        the column of a type that Parquet cannot hold.
        """
        if compression not in _CODECS:
            raise ParameterError(
                f"There is no Parquet compression {compression!r}.", hint=f"Known: {', '.join(_CODECS)}."
            )
        return self._blocks(stream, blocksize, compression, pieces)

    def _blocks(self, stream: Stream, blocksize: int | None, compression: str, pieces: bool) -> Iterator[Block]:
        with stream:
            tuples = plain(stream)
            schema = _storable(tuples.schema)
            writer = _Writer(schema, compression)
            group_rows = _GROUP_ROWS if blocksize is None else max(blocksize, _SMALLEST_GROUP)
            groups = (_stored(batch, schema) for batch in bounded(tuples, group_rows, _GROUP_BYTES))
            if pieces:
                for group in groups:
                    yield Block(writer.write(group), group.num_rows)
                yield Block(writer.finish(), 0)
            else:
                yield from _exact(groups, blocksize, writer)

    def decode(self, chunks: Iterable[bytes]) -> Stream:
        """Reads all of ``chunks`` at once, because the schema is at the end of a file: in memory up to 16 MiB, else in
        a temporary file that is gone when the stream is closed. Closes ``chunks``.

        Raises TruncatedError for a file whose beginning is there and whose end is not, DataError for any other that
        cannot be read.
        """
        spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - the stream closes it
        try:
            try:
                for chunk in chunks:
                    spool.write(chunk)
            finally:
                closing(chunks)()
            _whole(spool)
            try:
                file = pq.ParquetFile(pa.PythonFile(spool, "r"))
                schema = _original(file)
            except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
                raise DataError(f"The Parquet file cannot be read: {error}") from error
            check_zones(schema)
            return plain(Stream(schema, _batches(file, schema), spool.close))
        except BaseException:
            spool.close()
            raise


class _Writer:
    """Row groups to bytes."""

    def __init__(self, schema: pa.Schema, compression: str) -> None:
        self._sink = Sink()
        try:
            self._writer = pq.ParquetWriter(pa.PythonFile(self._sink, "w"), schema, compression=compression)
        except pa.ArrowException as error:
            raise EncodingError(f"Parquet cannot hold these columns: {error}") from error

    def write(self, group: pa.RecordBatch) -> bytes:
        try:
            self._writer.write_table(pa.Table.from_batches([group]), row_group_size=group.num_rows)
        except pa.ArrowException as error:
            raise EncodingError(f"Parquet cannot hold a value: {error}") from error
        return self._sink.take()

    def finish(self) -> bytes:
        self._writer.close()
        return self._sink.take()


def _exact(groups: Iterable[pa.RecordBatch], blocksize: int | None, writer: _Writer) -> Iterator[Block]:
    """Blocks of exactly ``blocksize`` rows, the bytes of a row group in the block that its last row belongs to. A block
    waits until it is known whether it is the last one, which ends with the footer.
    """
    previous: Block | None = None
    parts: list[bytes] = []
    have = 0
    for group in groups:
        data = writer.write(group)
        rows = group.num_rows
        while rows:
            take = rows if blocksize is None else min(blocksize - have, rows)
            rows, have = rows - take, have + take
            if not rows:
                parts.append(data)
            if blocksize is None or have == blocksize:
                if previous is not None:
                    yield previous
                previous, parts, have = Block(b"".join(parts), have), [], 0
    if have:
        if previous is not None:
            yield previous
        yield Block(b"".join([*parts, writer.finish()]), have)
    elif previous is not None:
        yield Block(b"".join((previous.data, writer.finish())), previous.rows)
    else:
        yield Block(writer.finish(), 0)


def _storable_type(type_: pa.DataType) -> pa.DataType:
    """What stands for a type in the file; everything else Parquet keeps, with the help of the Arrow schema in it."""
    types = pa.types
    if type_ == pa.month_day_nano_interval():
        return pa.string()
    if types.is_date64(type_):
        return pa.date32()
    if types.is_timestamp(type_) and type_.unit == "s":
        return pa.timestamp("ms", type_.tz)
    if types.is_time32(type_):
        return pa.time32("ms")
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        element = _storable_type(type_.value_type)
        return type_ if element == type_.value_type else pa.string()
    return type_


def _storable(schema: pa.Schema) -> pa.Schema:
    """The schema of the file, with ``schema`` in its metadata."""
    fields = [field.with_type(_storable_type(field.type)) for field in schema] or [pa.field(_PLACEHOLDER, pa.null())]
    serialised = base64.b64encode(schema.serialize())
    return pa.schema(fields, {**(schema.metadata or {}), _SCHEMA: serialised})


def _stored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not batch.num_columns:
        return pa.RecordBatch.from_arrays([pa.nulls(batch.num_rows)], schema=schema)
    columns = []
    for source, field, column in zip(batch.schema, schema, batch.columns, strict=True):
        try:
            if source.type == field.type:
                columns.append(column)
            elif pa.types.is_string(field.type):
                columns.append(values.to_text(column, source))
            else:
                columns.append(column.cast(field.type))
        except (pa.ArrowException, DataError) as error:
            raise EncodingError(
                f"Parquet cannot hold a value of type {source.type}: {error}", column=field.name
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _restored(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    if not len(schema):
        return no_columns(batch.num_rows, schema)
    columns = []
    for field, column in zip(schema, batch.columns, strict=True):
        if column.type == field.type:
            columns.append(column)
        elif pa.types.is_string(column.type):
            texts = values.from_text(column, values.canonical_type(field.type), column=field.name)
            columns.append(texts.cast(field.type))
        else:
            columns.append(column.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _original(file: pq.ParquetFile) -> pa.Schema:
    """The schema before ``_storable``. Who edits one of our files may carry our metadata along with columns that are no
    longer those; then the file's own schema counts.
    """
    stored = file.schema_arrow
    metadata = dict(stored.metadata or {})
    serialised = metadata.pop(_SCHEMA, None)
    if serialised is not None:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(serialised)))
        if _storable(schema).equals(stored.remove_metadata()):
            return schema
    return stored.with_metadata(metadata or None)


def _batches(file: pq.ParquetFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    row = 0
    batches = file.iter_batches(batch_size=_BATCH_ROWS)
    while True:
        try:
            batch = _restored(next(batches), schema)
            batch.validate(full=True)
        except StopIteration:
            return
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise DataError(f"The Parquet file cannot be read after {row} rows: {error}") from error
        row += batch.num_rows
        yield batch


def _whole(spool: IO[bytes]) -> None:
    """Looks at both ends of the file."""
    spool.seek(0)
    head = spool.read(len(_MAGIC))
    size = spool.seek(0, 2)
    if head != _MAGIC[: len(head)]:
        raise DataError("This is not a Parquet file: it does not begin with PAR1.")
    if size >= 3 * len(_MAGIC):
        spool.seek(-2 * len(_MAGIC), 2)
        footer = int.from_bytes(spool.read(4), "little")
        if spool.read(4) == _MAGIC and footer + 3 * len(_MAGIC) <= size:
            return
    raise TruncatedError(f"The Parquet file ends after {size} bytes without its footer.")
