"""Record batches and blocks that have no room in memory, in temporary files.

The files have no names: each is gone with its descriptor, when nothing of it is held any more, and even when the
process is killed. A batch is an Arrow stream of its own (its dictionaries travel along), a block its bytes.
"""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from dai.errors import InternalError, LimitError
from dai.streams.stream import Block

FILE_BYTES = 64 << 20
"""A new file is begun at this size, so that disk space is freed while much is still to be read."""
MOST_BYTES = 16 << 30
"""On disk, of one spool; what DuckDB may have, too."""
FREE_BYTES, FREE_SHARE = 10 << 30, 0.1
"""Disk space that stays free, the less of the two, because the state of the service may be on the same disk."""


class Spool:
    """One thread writes at a time; any number may read what was written. ``contents`` and ``hint``: for the messages
    where the disk is full. ``compressed``: half of the bytes of common columns and next to none of texts that repeat
    themselves, at about a disk's speed; a file that stays in memory is faster without."""

    def __init__(
        self, directory: Path | None, contents: str, hint: str | None = None, *, compressed: bool = True
    ) -> None:
        self._options = pa.ipc.IpcWriteOptions(compression="lz4" if compressed else None)
        self._directory, self._contents, self._hint = directory, contents, hint
        self._lock = threading.Lock()
        self._file: _File | None = None
        self.size = 0
        """Bytes on disk."""

    def write(self, item: pa.RecordBatch | Block) -> Spilled:
        """The item on disk, until it is released. Raises LimitError where there is no room for it."""
        file = self._current()
        handle = file.handle
        try:
            offset = handle.tell()
            if isinstance(item, Block):
                handle.write(item.data)
            else:  # without a copy in between
                with pa.ipc.new_stream(pa.PythonFile(handle, "w"), item.schema, options=self._options) as writer:
                    writer.write_batch(item)
            handle.flush()
            length = handle.tell() - offset
        except OSError as error:
            self._file = None
            self.add(file, -1)
            raise LimitError(f"There is no room on disk for {self._contents}.", hint=self._hint) from error
        with self._lock:
            file.size += length
            self.size += length
        shape = (item.rows, item.head, item.tail) if isinstance(item, Block) else None
        return Spilled(self, file, offset, length, shape)

    def _current(self) -> _File:
        """The file to write to, held."""
        with self._lock:
            if self._file is None or self._file.size >= FILE_BYTES:
                try:
                    file = _File(self._directory)
                except OSError as error:
                    raise LimitError(f"No temporary file can be made for {self._contents}.", hint=self._hint) from error
                full = self.size > MOST_BYTES - FILE_BYTES
                if why := f"{_gib(self.size)} are written, the most" if full else file.full():
                    file.handle.close()
                    raise LimitError(f"There is no room on disk for {self._contents}: {why}.", hint=self._hint)
                self._file = file
            self._file.holders += 1
            return self._file

    def add(self, file: _File, holders: int) -> None:
        """Adds so many holders of the file (fewer, if negative); without any it is closed."""
        with self._lock:
            file.holders += holders
            if file.holders:
                return
            self.size -= file.size
            if self._file is file:
                self._file = None
        with suppress(OSError):  # of what a full disk did not take
            file.handle.close()


class _File:
    def __init__(self, directory: Path | None) -> None:
        self.handle = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115 - closed by its last holder
        self.size = self.holders = 0

    def full(self) -> str:
        """Why the disk takes no more; empty where it does."""
        disk = os.fstatvfs(self.handle.fileno())
        free, kept = disk.f_bavail * disk.f_frsize, min(FREE_BYTES, FREE_SHARE * disk.f_blocks * disk.f_frsize)
        return "" if free > kept else f"its last {_gib(kept)} stay free"


def _gib(size: float) -> str:
    return f"{size / (1 << 30):,.1f} GiB"


class Spilled:
    """Where an item stands; ``shape``: rows, head and tail of a block. Held once when it is written; to be released as
    often as it is held."""

    __slots__ = ("_file", "_length", "_offset", "_shape", "_spool")

    def __init__(self, spool: Spool, file: _File, offset: int, length: int, shape: tuple[int, int, int] | None) -> None:
        self._spool, self._file, self._offset, self._length, self._shape = spool, file, offset, length, shape

    def hold(self) -> None:
        self._spool.add(self._file, 1)

    def release(self) -> None:
        self._spool.add(self._file, -1)

    def read(self) -> pa.RecordBatch | Block:
        data, offset = pa.allocate_buffer(self._length), self._offset
        view = memoryview(data).cast("B")
        while view:
            count = os.preadv(self._file.handle.fileno(), [view], offset)
            if not count:
                raise InternalError("A temporary file was cut short.")
            view, offset = view[count:], offset + count
        if self._shape is not None:
            return Block(data, *self._shape)
        with pa.ipc.open_stream(data) as reader:
            return reader.read_next_batch()
