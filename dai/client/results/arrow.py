"""Arrow IPC streams read from a body: the bytes of a batch go from the socket into Arrow's memory, once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from dai.client.http.body import Reading
from dai.errors import DataError, TruncatedError
from dai.streams.stream import Stream

_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""The end-of-stream marker of the encapsulated message format."""
_SMALL = 1 << 10


class _File:
    """What ``pyarrow.PythonFile`` reads from; remembers whether the end marker was the last that it gave.

    Arrow keeps this file, and what it raises, where Python's garbage collection does not see it. So a failure is the
    end for Arrow, and ``ended`` raises it: the frames of an exception hold the whole query.
    """

    closed = False

    def __init__(self, source: Reading) -> None:
        self._source: Reading | None = source
        self._last = b""
        self._failure: BaseException | None = None

    def ended(self) -> None:
        """Nothing more is read. Raises what went wrong while Arrow read."""
        self._source = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    @property
    def at_end(self) -> bool:
        return self._last == _END

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.closed = True

    def read(self, size: int = -1) -> Any:
        if self._source is None or self._failure is not None:
            return b""
        try:
            return self._read(self._source, size)
        except BaseException as error:  # noqa: BLE001
            self._failure = error
            return b""

    def _read(self, source: Reading, size: int) -> Any:
        if size < 0:
            raise DataError("An Arrow stream can only be read message by message.")
        if size <= _SMALL:
            array = bytearray(size)
            count = source.readinto(memoryview(array))
            data = bytes(array[:count])
            self._last = (self._last + data)[-len(_END) :]
            return data
        buffer = pa.allocate_buffer(size)
        count = source.readinto(memoryview(buffer).cast("B"))
        self._last = b""
        return buffer if count == size else buffer.slice(0, count)


def read_stream(source: Reading) -> Stream:
    """The tuples of an Arrow IPC stream. Raises DataError for what is none, TruncatedError where its end is missing."""
    file = _File(source)
    try:
        reader = pa.ipc.open_stream(pa.PythonFile(file, mode="r"))
    except (pa.ArrowException, OSError) as error:
        file.ended()
        raise DataError(f"This is not an Arrow stream: {error}.") from error
    return Stream(reader.schema, _batches(reader, file, source))


def _batches(reader: Any, file: _File, source: Reading) -> Iterator[pa.RecordBatch]:
    try:
        for batch in reader:
            batch.validate(full=True)  # its offsets are addresses, and whoever answers may be anybody
            yield batch
    except (pa.ArrowException, OSError) as error:
        file.ended()
        if source.read1(1):
            raise DataError(f"The Arrow stream cannot be read: {error}.") from error
        raise _truncated() from error
    finally:
        file.ended()
    if not file.at_end:
        raise _truncated()
    # The end of the body is behind the end of the stream.
    if source.read1(1):
        raise DataError("Bytes follow the end of the Arrow stream.")


def _truncated() -> TruncatedError:
    return TruncatedError("The Arrow stream ends without its end mark; what arrived is not the whole result.")
