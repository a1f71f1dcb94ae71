"""Arrow IPC streams (https://arrow.apache.org/docs/format/Columnar.html#serialization-and-interprocess-communication-ipc)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa

from dai.errors import DaiError, DataError, ParameterError, TruncatedError
from dai.formats import PIECE_BYTES
from dai.formats.blocks import BLOCK_BYTES, ChunkReader, OfSchema, Sink, bounded, check_zones, closing, plain
from dai.formats.messages import Watch
from dai.streams.stream import Block, Stream

END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
_CODECS = (None, "zstd", "lz4")
_head = OfSchema(pa.Schema.serialize)


class Arrow:
    """Every Arrow type travels as it is; dictionaries and run ends become plain values.

    The schema message is in the first block and the end-of-stream marker in the last, so that a stream that was cut is
    noticed (the specification lets a writer leave the marker out; we do not take such a stream for whole).
    """

    def encode(
        self, stream: Stream, blocksize: int | None = None, *, compression: str | None = None, pieces: bool = False
    ) -> Iterator[Block]:
        """One record batch a block, or a batch of the stream a block without ``blocksize``.

        ``compression`` of the buffers: ``zstd``, ``lz4`` or None. With ``pieces`` a batch is never much larger than
        PIECE_BYTES, each leaves as soon as it is made, and the end marker follows as a piece without rows; without, a
        block waits until it is known whether it is the last. Raises ParameterError for an unknown compression.
        """
        if compression not in _CODECS:
            raise ParameterError(f"There is no Arrow compression {compression!r}.", hint="Known: zstd, lz4.")
        return self._blocks(stream, blocksize, compression, pieces)

    def _blocks(self, stream: Stream, blocksize: int | None, compression: str | None, pieces: bool) -> Iterator[Block]:
        with stream:
            tuples = plain(stream)
            messages = _CompressedMessages(tuples.schema, compression) if compression else _Messages(tuples.schema)
            if pieces:
                for batch in bounded(tuples, blocksize, PIECE_BYTES):
                    yield messages.of(batch)
                yield messages.end()
                return
            previous: pa.RecordBatch | None = None
            for batch in bounded(tuples, blocksize, BLOCK_BYTES):
                if not batch.num_rows:
                    continue
                if previous is not None:
                    yield messages.of(previous)
                previous = batch
            yield messages.end() if previous is None else messages.of(previous, last=True)

    def decode(self, chunks: Iterable[bytes]) -> Stream:
        """Reads the schema at once and each batch when it is pulled; every batch is validated in full, for its offsets
        are addresses. Buffers are slices of a chunk where it holds all of them.

        Raises TruncatedError where the end-of-stream marker is missing, DataError for what is no Arrow stream and for
        bytes behind its end. Closing the stream closes ``chunks``.
        """
        close = closing(chunks)
        source = _Source(chunks)
        try:
            try:
                reader = pa.ipc.open_stream(pa.PythonFile(source, "r"))
                schema = reader.schema
                _ = schema.names  # those that are no UTF-8 fail here, not in whoever reads them first
            except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
                raise _translated(source, error) from error
            check_zones(schema)
            return plain(Stream(schema, _batches(reader, source), close))
        except BaseException:
            close()
            raise


class _Source(ChunkReader):
    """Refuses what would take too much memory once it is unpacked."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        super().__init__(chunks)
        self._watch = Watch()

    def read(self, size: int) -> memoryview | bytearray:
        piece = super().read(size)
        try:
            self._watch.see(piece)
        except DaiError as error:
            self.failure = error
            raise
        return piece


class _Messages:
    """Batches to blocks of one encapsulated message each, the schema in front of the first."""

    def __init__(self, schema: pa.Schema) -> None:
        self._head: bytes | pa.Buffer = _head(schema)

    def of(self, batch: pa.RecordBatch, last: bool = False) -> Block:
        head, self._head = self._head, b""
        message, end = self._message(batch), END if last else b""
        data = b"".join((head, message, end)) if len(head) or last else message
        return Block(data, batch.num_rows, len(head), len(end))

    def _message(self, batch: pa.RecordBatch) -> pa.Buffer | bytes:
        return batch.serialize()

    def end(self) -> Block:
        return Block(b"".join((self._head, END)), 0, len(self._head), len(END))


class _CompressedMessages(_Messages):
    """The same with compressed buffers, which only a stream writer can write."""

    def __init__(self, schema: pa.Schema, compression: str) -> None:
        super().__init__(schema)
        self._sink = Sink()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        self._writer = pa.ipc.new_stream(pa.PythonFile(self._sink, "w"), schema, options=options)
        self._schema = len(self._head)

    def _message(self, batch: pa.RecordBatch) -> bytes:
        self._writer.write_batch(batch)
        written, schema = self._sink.take(), self._schema
        self._schema = 0
        return written[schema:]


def _batches(reader: Any, source: ChunkReader) -> Iterator[pa.RecordBatch]:
    row = 0
    while True:
        try:
            batch = reader.read_next_batch()
            batch.validate(full=True)
        except StopIteration:
            break
        except (pa.ArrowException, OSError, MemoryError) as error:
            raise _translated(source, error, row) from error
        row += batch.num_rows
        yield batch
    if source.ended:
        raise TruncatedError(f"The Arrow stream ends after {row} rows without its end-of-stream marker.")
    if not source.exhausted():
        raise DataError(f"There are more bytes after the end of the Arrow stream, after {row} rows.")


def _translated(source: ChunkReader, error: Exception, row: int = 0) -> DaiError:
    if source.failure is not None:
        raise source.failure
    if source.ended:
        return TruncatedError(f"The Arrow stream ends in the middle of a message, after {row} rows.")
    return DataError(f"This is not an Arrow stream that can be read: after {row} rows, {error}")
