"""One source, several readers, each of which sees all of it at its own pace.

The slowest reader's distance is held in memory up to a limit and beyond it in a ``Spool``, so that a reader that waits
for another one (a join of a stream with itself, a later step of a sequence) never deadlocks and never fills the memory.
The source is pulled by whichever reader comes first, while the others can go on with what is held; it is closed when
all readers are.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from dai.streams.spool import Spilled, Spool
from dai.streams.stream import Block, ByteStream, Encoded, Stream

MEMORY_BYTES = 32 << 20


class FanOut:
    """``readers`` branches over ``source``; each branch is a source of the same kind, read by one thread."""

    def __init__(
        self, source: Stream | ByteStream, readers: int, memory: int = MEMORY_BYTES, scratch: Path | None = None
    ) -> None:
        self._source: Stream | ByteStream = source.tuples if isinstance(source, Encoded) else source
        self._template = source
        self._memory = memory
        self._spool = Spool(
            scratch,
            "data that a slower reader of the same output has not read yet",
            hint="Read the outputs at the same time, or request less.",
            compressed=False,
        )
        self._pulling = threading.Lock()
        self._lock = threading.Lock()
        self._window: deque[pa.RecordBatch | Block | Spilled] = deque()
        self._first = 0
        self._positions: dict[int, int] = dict.fromkeys(range(readers), 0)
        self._held = 0
        self._ended = False
        self._failure: BaseException | None = None

    def branches(self) -> list[Stream | ByteStream]:
        """One for each reader; to be asked for once."""
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
        """Pull the source to its end: what readers of a later step will want is then held here. Nothing is pulled
        once all readers have left. Raises what the source raises."""
        while self._positions and self._pull():
            pass

    def _read(self, reader: int) -> Iterator[Any]:
        while True:
            with self._lock:
                position = self._positions[reader]
                entry = self._window[position - self._first] if position - self._first < len(self._window) else None
                if entry is not None:
                    item = entry.read() if isinstance(entry, Spilled) else entry
                    self._positions[reader] += 1
                    self._forget()
            if entry is not None:
                yield item
            elif not self._pull(beyond=position):
                return

    def _pull(self, beyond: int | None = None) -> bool:
        """Take one more item from the source, unless another reader did so meanwhile. False at the end."""
        with self._pulling:
            if beyond is not None and beyond < self._first + len(self._window):
                return True
            if self._failure is not None:
                raise self._failure
            if self._ended:
                return False
            try:
                item = next(self._source)
                with self._lock:
                    if self._positions:
                        self._window.append(self._keep(item))
            except StopIteration:
                self._ended = True
                return False
            except BaseException as error:
                self._failure = error
                raise
            return True

    def _keep(self, item: pa.RecordBatch | Block) -> pa.RecordBatch | Block | Spilled:
        size = _size(item)
        if self._held + size <= self._memory:
            self._held += size
            return item
        return self._spool.write(item)

    def _forget(self) -> None:
        slowest = min(self._positions.values(), default=self._first + len(self._window))
        while self._window and self._first < slowest:
            item = self._window.popleft()
            self._first += 1
            if isinstance(item, Spilled):
                item.release()
            else:
                self._held -= _size(item)

    def _leave(self, reader: int) -> None:
        with self._lock:
            self._positions.pop(reader, None)
            self._forget()
            if self._positions:
                return
        self._source.close()


def _size(item: pa.RecordBatch | Block) -> int:
    return item.nbytes if isinstance(item, pa.RecordBatch) else len(item)
