"""The blocks of a session's stream, pulled by their numbers.

Read as a result, a stream comes in frames (``dai.formats.frames``): its static part once, then tuples alone, with
checksums, and compressed where the service is on another machine. As many blocks a request as are there and fit into
``REQUEST_BYTES``: of small blocks the time between requests is most of the time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from dai.client.http.body import Pieces
from dai.client.http.transport import Reply, Transport
from dai.client.progress import Asked
from dai.client.results.result import Result
from dai.errors import DataError, NotFoundError
from dai.formats import frames

HELD = 20
"""Seconds the service holds a request for a block that is not there yet, or that has no room yet."""
REQUEST_BYTES = 1 << 18
MOST_BLOCKS = 32
"""Of one request, where nobody says how many."""
LINGER = 5
"""Milliseconds that a block which is there waits for those after it."""


class Pull(Pieces):
    """The blocks of a stream, as bytes, in order; each that is asked for acknowledges those before it.

    Also the source of a ``Result``: ``session.pull("x").result().arrow()``.
    """

    def __init__(self, transport: Transport, path: str, count: int | None = None, start: int = 0) -> None:
        self._transport, self._path, self._count = transport, path, count
        self.next = start
        """Number of the next block to ask for."""
        self.media_type: str | None = None
        self.received = 0
        self._ended = False
        self._contexts = frames.KnownContexts()
        self._static: bytes | None = None
        self._ready = deque[bytes | memoryview]()
        self._together = 1

    def __iter__(self) -> Iterator[bytes]:
        while (block := self.block()) is not None:
            yield block

    def block(self) -> bytes | None:
        """The next block (``count`` of them, joined), None after the last one. Raises the producer's error."""
        reply = self._reply(self._count or 1, {"Accept": _DOCUMENTS})
        return None if reply is None else self._taken(reply)

    def result(self, progress: Asked = None) -> Result:
        """What is left of the stream as a result."""
        return Result(self, None, progress=progress)

    def piece(self) -> bytes | memoryview | None:
        """Of a document that begins with this block."""
        if self._count is not None:
            return self.block()
        while not self._ready:
            if self._ended:
                return None
            self._pull()
        return self._ready.popleft()

    def _pull(self) -> None:
        asked = frames.Asked(self._contexts.latest, self._transport.compresses)
        reply = self._reply(self._together, {"Accept": f"{asked}, */*;q=0.5"}, LINGER)
        if reply is None:
            if self._static is not None:
                self._ready.append(frames.tail_of(self._static))
            return
        in_frames = reply.media_type == frames.MEDIA_TYPE
        data = self._taken(reply)
        if not in_frames:
            self._ready.append(data)
            return
        received = list(frames.read(data))
        for number, frame in enumerate(received, self.next - len(received)):
            if frame.number != number:
                raise DataError(f"Block {number} was asked for, and block {frame.number} came.")
            tuples = self._tuples(frame)
            if self._static is None:
                self._static = self._contexts.static(frame)
                self._ready.append(self._static)
                self.media_type = frames.format_of(self._static).media_type
            if len(tuples):
                self._ready.append(tuples)
        if received:
            fitting = REQUEST_BYTES * len(received) // len(data)
            self._together = max(1, min(4 * self._together, MOST_BLOCKS, fitting))

    def _tuples(self, frame: frames.Frame) -> bytes | memoryview:
        try:
            return self._contexts.tuples(frame)
        except NotFoundError:
            reply = self._transport.send("GET", f"/contexts/{frame.context}")
            with reply.body:
                self._contexts.learn(frame.context, reply.body.read_all())
            return self._contexts.tuples(frame)

    def _reply(self, count: int, headers: dict[str, str], linger: int | None = None) -> Reply | None:
        """With the next block, and up to ``count``; None after the last one."""
        query = f"?wait={HELD}" + (f"&count={count}" if count > 1 else "")
        if linger is not None and count > 1:
            query += f"&linger={linger}"
        while not self._ended:
            reply = self._transport.send("GET", f"{self._path}/blocks/{self.next}{query}", headers=headers)
            if reply.status == 200:
                return reply
            with reply.body:
                reply.body.read_all()
            # 202: not there yet, ask again; 204: after the last.
            self._ended = reply.status == 204
        return None

    def _taken(self, reply: Reply) -> bytes:
        with reply.body:
            data = reply.body.read_all()
        self.received += len(data)
        self.media_type = self.media_type or reply.media_type
        self.next += int(reply.headers.get("x-dai-blocks", 1))
        return data

    def close(self) -> None:
        """Ask for no more. The stream stays in its session."""
        self._ended, self._left = True, memoryview(b"")
        self._ready.clear()


_DOCUMENTS = "application/vnd.apache.arrow.stream, application/vnd.webrowset+xml, */*;q=0.5"
"""Blocks as they were written, whose concatenation is the document."""
