"""Feeds: blocks that are published once and followed by many."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from dai.client.http.transport import Transport
from dai.client.streams.session import blocks_of
from dai.errors import ConflictError, TruncatedError, UnreachableError
from dai.formats import frames

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Event:
    """A block of a feed. ``data`` is a document of its own, or the message that was published; ``lost``: how many
    blocks before it were lost, because this reader was slower than the feed keeps them."""

    number: int
    rows: int
    data: bytes
    lost: int = 0

    def table(self) -> pa.Table:
        """The tuples, where they were published as such."""
        return frames.format_of(self.data).decode([self.data]).table()

    def json(self) -> Any:
        """A message that is JSON."""
        return json.loads(self.data)


class Feed:
    """The blocks that this object publishes count as those of one producer; a block that is sent again after a lost
    reply is published once."""

    def __init__(self, transport: Transport, id: str) -> None:
        self.transport, self.id = transport, id
        self._path = f"/feeds/{quote(id, safe='')}"
        self._producer, self._next = uuid.uuid4().hex, 0
        self._static = b""

    @property
    def properties(self) -> Mapping[str, Any]:
        """What the service says of it: ``first`` and ``next``, ``type``, ``context``, ``followers``, ``ended`` …."""
        said: Mapping[str, Any] = self.transport.json(self._path)
        return said

    def publish(
        self,
        data: Any,
        *,
        format: str = "webrowset",
        blocksize: int | None = None,
        media_type: str = "application/json",
        last: bool = False,
    ) -> None:
        """Adds a table, record batches or a reader of them, in blocks of ``blocksize`` rows; or messages of that
        ``media_type``: bytes, or several of them. ``last``: the feed ends with them. It does not wait for followers.

        All blocks of a feed have one form and one schema: ConflictError for others. TooLargeError for a block that the
        feed cannot keep; BusyError where other feeds have all room.
        """
        waiting: tuple[bytes, str] | None = None
        for block in blocks_of(data, format, blocksize):
            if waiting is not None:
                self._put(*waiting)
            waiting = (block, media_type) if isinstance(block, bytes) else (self._framed(block), frames.MEDIA_TYPE)
        if waiting is not None:
            self._put(*waiting, last=last)
        elif last:
            self.end()

    def _framed(self, block: Any) -> bytes:
        """The first as a whole document, so that the feed learns its context."""
        if self._next and block.head and block.static != self._static:
            raise ConflictError("These rows have another schema than those before.")
        self._static = block.static or self._static
        number, context, whole = self._next, frames.context_of(self._static), not self._next
        compressed = self.transport.compresses and not whole
        return bytes(frames.framed(context, self.id, number, block, self._static, whole=whole, compressed=compressed))

    def _put(self, body: bytes, media_type: str, *, last: bool = False) -> None:
        query = f"?producer={self._producer}" + ("&last=true" if last else "")
        headers = {"Content-Type": media_type}
        with self.transport.send("PUT", f"{self._path}/blocks/{self._next}{query}", body, headers).body as answer:
            answer.read_all()
        self._next += bool(body)

    def end(self) -> None:
        """Ends the feed: no more blocks will come; those that it keeps can still be read."""
        self._put(b"", "application/octet-stream", last=True)

    def follow(self, start: int | str = "next") -> Iterator[Event]:
        """The blocks as they come, until the feed ends: from the ``next`` one, from the ``first`` that is kept, or from
        that number. A connection that breaks off is opened again. GoneError where the feed is ended before its end."""
        known = frames.KnownContexts()
        known.learn(frames.context_of(b""), b"")
        lost, failures = 0, 0
        while True:
            arriving, asked = frames.Arriving(), frames.Asked(known.latest, self.transport.compresses)
            try:
                reply = self.transport.send("GET", f"{self._path}/blocks?start={start}", headers={"Accept": str(asked)})
                with reply.body as body:
                    while piece := body.read1():
                        for frame in arriving.add(piece):
                            failures = 0
                            start = frame.number + (frame.rows if frame.lost else 1)
                            if frame.lost:
                                lost += frame.rows
                                continue
                            yield Event(frame.number, frame.rows, known.document(frame), lost)
                            lost = 0
                arriving.finish()
                return
            except (TruncatedError, UnreachableError):
                failures += 1
                if failures > self.transport.options.retries:
                    raise

    def close(self) -> None:
        """Ends the feed; its blocks are forgotten."""
        with self.transport.send("DELETE", self._path, accepted=frozenset({404})).body:
            pass

    def __repr__(self) -> str:
        return f"<Feed {self.id} at {self.transport.base}>"
