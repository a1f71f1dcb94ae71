"""One source, several readers, each of which sees all of it at its own pace.

The slowest reader's distance is held in memory up to a limit and beyond it in an anonymous temporary file, so that
a reader that waits for another one (a join of a stream with itself, a later step of a sequence) never deadlocks
and never fills the memory. The source is pulled by whichever reader comes first; it is closed when all readers are.
"""

from __future__ import annotations

import pickle
import tempfile
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from dai.stream import Block, ByteStream, Encoded, Stream

MEMORY_BYTES = 32 << 20


class _Spilled:
    """Where an item stands in the temporary file."""

    __slots__ = ("length", "offset")

    def __init__(self, offset: int, length: int) -> None:
        self.offset, self.length = offset, length


class FanOut:
    """``readers`` branches over ``source``; each branch is a source of the same kind."""

    def __init__(
        self, source: Stream | ByteStream, readers: int, memory: int = MEMORY_BYTES, scratch: Path | None = None
    ) -> None:
        self._source: Stream | ByteStream = source.tuples if isinstance(source, Encoded) else source
        self._template = source
        self._memory, self._scratch = memory, scratch
        self._lock = threading.Lock()
        self._window: deque[Any] = deque()
        self._first = 0
        self._positions: dict[int, int] = dict.fromkeys(range(readers), 0)
        self._held = 0
        self._ended = False
        self._failure: BaseException | None = None
        self._file: IO[bytes] | None = None

    def branches(self) -> list[Stream | ByteStream]:
        return [self._branch(reader) for reader in list(self._positions)]

    def _branch(self, reader: int) -> Stream | ByteStream:
        def close() -> None:
            self._leave(reader)

        template = self._template
        if isinstance(template, Encoded):
            tuples = Stream(template.tuples.schema, self._read(reader), close)
            return Encoded(tuples, template.format, template.blocksize, template.options, template.watch)
        if isinstance(template, Stream):
            return Stream(template.schema, self._read(reader), close)
        return ByteStream(template.media_type, self._read(reader), close)

    def drain(self) -> None:
        """Pull the source to its end: what readers of a later step will want is then held here."""
        while self._pull():
            pass

    def _read(self, reader: int) -> Iterator[Any]:
        while True:
            with self._lock:
                place = self._positions[reader] - self._first
                held = self._window[place] if place < len(self._window) else None
                if held is not None:
                    item = self._load(held)
                    self._positions[reader] += 1
                    self._forget()
            if held is not None:
                yield item
            elif not self._pull(beyond=self._positions[reader]):
                return

    def _pull(self, beyond: int | None = None) -> bool:
        """Take one more item from the source, unless another reader did so meanwhile. False at the end."""
        with self._lock:
            if beyond is not None and beyond < self._first + len(self._window):
                return True
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return False
            try:
                item = next(self._source)
            except StopIteration:
                self._ended = True
                return False
            except BaseException as error:
                self._failure = error
                raise
            self._window.append(self._keep(item))
            return True

    def _keep(self, item: Any) -> Any:
        size = _size(item)
        if self._held + size <= self._memory:
            self._held += size
            return item
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._scratch)  # noqa: SIM115 - closed when the last reader leaves
        data = _dumped(item)
        offset = self._file.seek(0, 2)
        self._file.write(data)
        return _Spilled(offset, len(data))

    def _load(self, held: Any) -> Any:
        if not isinstance(held, _Spilled) or self._file is None:
            return held
        self._file.seek(held.offset)
        return _loaded(self._file.read(held.length), self._template)

    def _forget(self) -> None:
        slowest = min(self._positions.values(), default=self._first + len(self._window))
        while self._window and self._first < slowest:
            item = self._window.popleft()
            self._first += 1
            if not isinstance(item, _Spilled):
                self._held -= _size(item)

    def _leave(self, reader: int) -> None:
        with self._lock:
            self._positions.pop(reader, None)
            self._forget()
            if self._positions:
                return
            if self._file is not None:
                self._file.close()
        self._source.close()


def _size(item: Any) -> int:
    return item.nbytes if isinstance(item, pa.RecordBatch) else len(item)


def _dumped(item: Any) -> bytes:
    if isinstance(item, pa.RecordBatch):
        return bytes(item.serialize())
    return pickle.dumps((bytes(memoryview(item.data)), item.rows))


def _loaded(data: bytes, template: Stream | ByteStream) -> Any:
    if isinstance(template, Encoded):
        template = template.tuples
    if isinstance(template, Stream):
        return pa.ipc.read_record_batch(pa.py_buffer(data), template.schema)
    content, rows = pickle.loads(data)  # noqa: S301 - our own bytes, from an anonymous file
    return Block(content, rows)
