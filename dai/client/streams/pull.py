"""The blocks of a session's stream, pulled by their numbers.

Read as a result, a stream comes in frames (``dai.formats.frames``): its static part once, then tuples alone, with
checksums, and compressed where the service is on another machine. As many blocks a request as are there and fit into
``REQUEST_BYTES``: of small blocks the time between requests is most of the time. Behind a full answer the next one is
on its way while that is decoded. Where the last block is said to be the last, nobody asks for one after it before
something else is asked of the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from dai.client.http.body import Pieces
from dai.client.http.transport import Transport
from dai.client.progress import Asked
from dai.client.results.result import Result
from dai.errors import DataError, NotFoundError
from dai.formats import frames

HELD = 20
"""Seconds the service holds a request for a block that is not there yet, or that has no room yet."""
REQUEST_BYTES = 1 << 21
MOST_BLOCKS = 256
"""Of one request, where nobody says how many."""
DEEP_BLOCKS = 8
"""Of one request where several are on their way, and nobody says how many."""
LINGER = 5
"""Milliseconds that a block which is there waits for those after it."""


class Pull(Pieces):
    """The blocks of a stream, as bytes, in order; each that is asked for acknowledges those before it.

    Also the source of a ``Result``: ``session.pull("x").result().arrow()``.
    """

    def __init__(
        self,
        transport: Transport,
        path: str,
        count: int | None = None,
        start: int = 0,
        depth: int = 1,
        owing: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """``owing`` takes what acknowledges the last block, to be called unless the stream ends with its session."""
        self._transport, self._path, self._depth, self._owing = transport, path, depth, owing
        self._count = DEEP_BLOCKS if count is None and depth > 1 else count
        self.next = start
        """Number of the next block to ask for."""
        self.media_type: str | None = None
        self.received = 0
        self._ended = False
        self._contexts = frames.KnownContexts()
        self._static: bytes | None = None
        self._ready = deque[bytes | memoryview]()
        self._asked: deque[Future[_Answer]] = deque()
        self._ahead: Future[_Answer] | None = None
        self._threads: ThreadPoolExecutor | None = None

    def __iter__(self) -> Iterator[bytes]:
        while (block := self.block()) is not None:
            yield block

    def block(self) -> bytes | None:
        """The next block (``count`` of them, joined), None after the last one. Raises the producer's error."""
        self._ahead = None  # it brings frames
        answer = self._answer(self._count or 1, {"Accept": _DOCUMENTS}, deep=True)
        return None if answer is None else answer.data

    def result(self, progress: Asked = None) -> Result:
        """What is left of the stream as a result."""
        return Result(self, None, progress=progress)

    def piece(self) -> bytes | memoryview | None:
        """Of a document that begins with this block."""
        if self._count is not None and self._depth == 1:
            return self.block()
        while not self._ready:
            if self._ended:
                return None
            self._pull()
        return self._ready.popleft()

    def _pull(self) -> None:
        asked = frames.Asked(self._contexts.latest, self._transport.compresses)
        deep = asked.context is not None  # else the first block of each answer would be a whole document
        size = REQUEST_BYTES if self._count is None else None
        answer = self._answer(self._count or MOST_BLOCKS, {"Accept": _frames(asked)}, deep=deep, size=size)
        if answer is None:
            if self._static is not None:
                self._ready.append(frames.tail_of(self._static))
            return
        if answer.media_type != frames.MEDIA_TYPE:
            self._ready.append(answer.data)
            return
        received = list(frames.read(answer.data))
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
        if self._ended and self._static is not None:
            self._ready.append(frames.tail_of(self._static))
        elif size is not None and self._depth == 1 and len(answer.data) >= size // 2:
            # those that are being decoded can be asked for again
            path = self._blocks(MOST_BLOCKS, size, len(received))
            said = frames.Asked(self._contexts.latest, asked.compressed)
            self._ahead = self._in_thread(1, path, {"Accept": _frames(said)})

    def _tuples(self, frame: frames.Frame) -> bytes | memoryview:
        try:
            return self._contexts.tuples(frame)
        except NotFoundError:
            reply = self._transport.send("GET", f"/contexts/{frame.context}")
            with reply.body:
                self._contexts.learn(frame.context, reply.body.read_all())
            return self._contexts.tuples(frame)

    def _answer(self, count: int, headers: dict[str, str], *, deep: bool, size: int | None = None) -> _Answer | None:
        """The next block, and up to ``count``, with a ``size`` those that are there soon and have no more bytes; None
        after the last one. ``deep``: with so many requests on their way as were asked for; each leaves those before it
        unacknowledged, so that what is lost on the way can be asked for."""
        depth = self._depth if deep else 1
        while not self._ended:
            if self._ahead is not None:
                wait([self._ahead])
                ahead, self._ahead = self._ahead, None
                answer = ahead.result()
            elif depth == 1:
                answer = self._fetched(self._blocks(count, size), headers)
            else:
                while len(self._asked) < depth:
                    path = self._blocks(count, size, (depth - 1) * count, len(self._asked) * count)
                    self._asked.append(self._in_thread(depth, path, headers))
                answer = self._asked.popleft().result()
                if answer.blocks != count:  # those on their way ask for others than come next
                    self._forget()
            # 202: not there yet, ask again; 204: after the last.
            self._ended = answer.status == 204
            if answer.status == 200:
                self.received += len(answer.data)
                self.media_type = self.media_type or answer.media_type
                self.next += answer.blocks
                if answer.last and depth == 1 and self._owing is not None:
                    self._ended = True
                    self._owing(self._acknowledge)
                return answer
        return None

    def _blocks(self, count: int, size: int | None, behind: int = 0, after: int = 0) -> str:
        """The address of so many blocks, from so many ``after`` the next one on."""
        query = f"?wait={HELD}" + (f"&count={count}" if count > 1 else "")
        if size is not None:
            query += f"&linger={LINGER}&size={size}"
        if behind:
            query += f"&behind={behind}"
        return f"{self._path}/blocks/{self.next + after}{query}"

    def _in_thread(self, threads: int, path: str, headers: dict[str, str]) -> Future[_Answer]:
        self._threads = self._threads or ThreadPoolExecutor(threads, "pull")
        return self._threads.submit(self._fetched, path, headers)

    def _acknowledge(self) -> None:
        self._fetched(f"{self._path}/blocks/{self.next}", {})

    def _fetched(self, path: str, headers: dict[str, str]) -> _Answer:
        reply = self._transport.send("GET", path, headers=headers)
        with reply.body:
            data = reply.body.read_all()
        blocks = int(reply.headers.get("x-dai-blocks", 1)) if reply.status == 200 else 0
        return _Answer(reply.status, blocks, reply.media_type, data, reply.headers.get("x-block-last") == "true")

    def _forget(self) -> None:
        """The answers to requests on their way; they are waited for, so that none acknowledges blocks later on."""
        asked = list(self._asked)
        self._asked.clear()
        wait(asked)

    def close(self) -> None:
        """Ask for no more. The stream stays in its session."""
        self._ended, self._left = True, memoryview(b"")
        self._ready.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    blocks: int
    media_type: str
    data: bytes
    last: bool


def _frames(asked: frames.Asked) -> str:
    return f"{asked}, */*;q=0.5"


_DOCUMENTS = "application/vnd.apache.arrow.stream, application/vnd.webrowset+xml, */*;q=0.5"
"""Blocks as they were written, whose concatenation is the document."""
