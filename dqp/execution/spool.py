"""Batches in a temporary file: those of an input or an exchange that have to wait and have no room in memory."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from dai.errors import InternalError

Place = tuple[int, int]
"""Offset and length."""
_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")
"""Half of the bytes of common columns and next to none of texts that repeat themselves, at about a disk's speed."""


class Spool:
    """A file without a name: it is gone with its descriptor, even when the process is killed. One thread writes at a
    time; any number may read what was written. OSError where the disk is full."""

    def __init__(self, directory: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by close()
        self.size = 0

    def write(self, batch: pa.RecordBatch) -> Place:
        """Appends the batch as an Arrow stream of its own (dictionaries travel along), without a copy in between."""
        offset = self._file.tell()
        with pa.ipc.new_stream(pa.PythonFile(self._file, "w"), batch.schema, options=_OPTIONS) as writer:
            writer.write_batch(batch)
        self._file.flush()
        self.size = self._file.tell()
        return offset, self.size - offset

    def read(self, place: Place) -> pa.RecordBatch:
        offset, length = place
        data = pa.allocate_buffer(length)
        view = memoryview(data).cast("B")
        while view:
            count = os.preadv(self._file.fileno(), [view], offset)
            if not count:
                raise InternalError("The file for rows that have to wait was cut short.")
            view, offset = view[count:], offset + count
        with pa.ipc.open_stream(data) as reader:
            return reader.read_next_batch()

    def close(self) -> None:
        with suppress(OSError):  # of what a full disk did not take
            self._file.close()
