"""The blocks of a session's stream, pulled by their numbers.

Read as a result, a stream comes in frames (``dai.formats.frames``): its static part once, then tuples alone, with
checksums, and compressed where the service is on another machine. They flow: as many as fit into ``REQUEST_BYTES`` come
in one answer, each as soon as it is made, and are decoded while the service makes the next ones. What had not arrived
when an answer broke off is asked for again. Behind a full answer the next one is on its way while the rest is decoded.
Where the last block is said to be the last, nobody asks for one after it before something else is asked of the session.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

from dai.client.http.body import Pieces
from dai.client.http.transport import Reply, Transport
from dai.client.progress import Asked
from dai.client.results.result import Result
from dai.errors import DaiError, DataError, NotFoundError, TruncatedError, UnreachableError
from dai.formats import frames

T = TypeVar("T")
HELD = 20
"""Seconds the service holds a request for a block that is not there yet, or that has no room yet."""
REQUEST_BYTES = 1 << 21
MOST_BLOCKS = 256
"""Default number of blocks of one request."""
DEEP_BLOCKS = 8
"""Default number of blocks of one request if several requests are on their way."""
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
        begun: Reply | None = None,
        ending: Callable[[], None] | None = None,
    ) -> None:
        """``owing`` takes what acknowledges the last block, to be called unless the stream ends with its session.
        ``begun``: the answer with the first blocks, where it is there. ``ending`` asks for the end of the session."""
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
        self._flow: _Flow | None = None
        self._ahead: Future[Reply] | None = None
        if begun is not None:
            self._ahead = Future()
            self._ahead.set_result(begun)
        self._ending = ending
        self._losses = 0
        """Answers that broke off one after the other, without a block between them."""
        self._threads: ThreadPoolExecutor | None = None

    def __iter__(self) -> Iterator[bytes]:
        while (block := self.block()) is not None:
            yield block

    def block(self) -> bytes | None:
        """The next block (``count`` of them, joined), None after the last one. Raises the producer's error."""
        self._leave()  # it brings frames
        answer = self._answer(self._count or 1, {"Accept": _DOCUMENTS}, deep=True)
        return None if answer is None else answer.data

    def result(self, progress: Asked = None) -> Result:
        """The rest of the stream as a result."""
        return Result(self, None, progress=progress)

    def piece(self) -> bytes | memoryview | None:
        """Of a document that begins with this block."""
        if self._count is not None and self._depth == 1:
            return self.block()
        while not self._ready:
            if self._ended:
                return None
            if self._depth > 1:
                self._pull()
            else:
                self._take()
        return self._ready.popleft()

    def _pull(self) -> None:
        """The next answer of those on their way, as a whole."""
        asked = frames.Asked(self._contexts.latest, self._transport.compresses)
        deep = asked.context is not None  # else the first block of each answer would be a whole document
        answer = self._answer(self._count or 1, {"Accept": _frames(asked)}, deep=deep)
        if answer is None:
            self._finish()
        elif answer.media_type != frames.MEDIA_TYPE:
            self._ready.append(answer.data)
        else:
            self.next -= answer.blocks
            for frame in frames.read(answer.data):
                self._add(frame)
            if self._ended:
                self._finish()

    def _take(self) -> None:
        """What has come of the answer that flows; asks for one where there is none."""
        flow = self._flow = self._flow or self._flowing()
        if flow is None:
            return
        try:
            piece = flow.reply.body.read1()
            self.received += len(piece)
            for frame in flow.arriving.add(piece):
                flow.end = frame if frame.end else None
                if not frame.end:
                    self._add(frame)
                    self._losses = 0
            flow.bytes += len(piece)
            if piece and flow.end is None:
                return
            if flow.end is not None and flow.reply.body.read1():
                raise DataError("There are bytes after the end of an answer.")
            flow.check(self.next)
        except (TruncatedError, UnreachableError) as lost:
            self._again(lost)
            return
        self._flow = None
        if flow.last:
            self._finish()
            if self._owing is not None:
                self._owing(self._acknowledge)
        elif flow.bytes >= REQUEST_BYTES // 2:
            # those that are being decoded can be asked for again
            self._ahead = self._in_thread(1, self._ask, self.next - flow.first)

    def _flowing(self) -> _Flow | None:
        """The next answer; None where there is none yet or any more, or it came whole, as what has no frames does."""
        if self._ahead is not None:
            wait([self._ahead])
            ahead, self._ahead = self._ahead, None
            reply = ahead.result()
        else:
            reply = self._ask(0)
        if reply.status == 200 and reply.media_type == frames.MEDIA_TYPE:
            return _Flow(reply, self.next)
        answer = _answer(reply)
        self._ended = answer.status == 204
        if self._ended:
            self._finish()
        elif answer.status == 200:
            self._came(answer)
            self._ready.append(answer.data)
        return None

    def _ask(self, behind: int) -> Reply:
        path = self._blocks(MOST_BLOCKS, REQUEST_BYTES, behind)
        return self._transport.send("GET", path, headers={"Accept": flowing(self._transport, self._contexts.latest)})

    def _again(self, lost: DaiError) -> None:
        """After an answer that broke off: what did not arrive is asked for once more."""
        self._leave()
        options = self._transport.options
        if self._losses >= options.retries:
            raise lost
        time.sleep(options.backoff * 2**self._losses)
        self._losses += 1

    def _leave(self) -> None:
        """Wants no more of the answer that flows, nor of one on its way."""
        if self._flow is not None:
            self._flow.reply.body.close()
        if self._ahead is not None:
            self._ahead.add_done_callback(_closed)
        self._flow = self._ahead = None

    def _add(self, frame: frames.Frame) -> None:
        if frame.number != self.next or frame.lost:
            raise DataError(f"Block {self.next} was asked for, and block {frame.number} came.")
        tuples = self._tuples(frame)
        self.next += 1
        if self._static is None:
            self._static = self._contexts.static(frame)
            self._ready.append(self._static)
            self.media_type = frames.format_of(self._static).media_type
        if len(tuples):
            self._ready.append(tuples)

    def _finish(self) -> None:
        self._ended = True
        if self._static is not None:
            self._ready.append(frames.tail_of(self._static))
        self._end()  # the service does that while what has come is decoded

    def _end(self) -> None:
        ending, self._ending = self._ending, None
        if ending is not None:
            ending()

    def _tuples(self, frame: frames.Frame) -> bytes | memoryview:
        try:
            return self._contexts.tuples(frame)
        except NotFoundError:
            reply = self._transport.send("GET", f"/contexts/{frame.context}")
            with reply.body:
                self._contexts.learn(frame.context, reply.body.read_all())
            return self._contexts.tuples(frame)

    def _answer(self, count: int, headers: dict[str, str], *, deep: bool) -> _Answer | None:
        """The next block, and up to ``count``; None after the last one. ``deep``: with so many requests on their way as
        were asked for; each leaves those before it unacknowledged, so that what is lost on the way can be asked for."""
        depth = self._depth if deep else 1
        while not self._ended:
            if depth == 1:
                answer = self._fetched(self._blocks(count, None), headers)
            else:
                while len(self._asked) < depth:
                    path = self._blocks(count, None, (depth - 1) * count, len(self._asked) * count)
                    self._asked.append(self._in_thread(depth, self._fetched, path, headers))
                answer = self._asked.popleft().result()
                if answer.blocks != count:  # those on their way ask for others than come next
                    self._forget()
            # 202: not there yet, ask again; 204: after the last.
            self._ended = answer.status == 204
            if answer.status == 200:
                self._came(answer, owes=depth == 1)
                return answer
        return None

    def _came(self, answer: _Answer, *, owes: bool = True) -> None:
        self.received += len(answer.data)
        self.media_type = self.media_type or answer.media_type
        self.next += answer.blocks
        if answer.last and owes and self._owing is not None:
            self._ended = True
            self._owing(self._acknowledge)

    def _blocks(self, count: int, size: int | None, behind: int = 0, after: int = 0) -> str:
        """The address of so many blocks, from so many ``after`` the next one on."""
        query = f"?wait={HELD}" + (f"&count={count}" if count > 1 else "")
        if size is not None:
            query += f"&linger={LINGER}&size={size}"
        if behind:
            query += f"&behind={behind}"
        return f"{self._path}/blocks/{self.next + after}{query}"

    def _in_thread(self, threads: int, call: Callable[..., T], *arguments: Any) -> Future[T]:
        self._threads = self._threads or ThreadPoolExecutor(threads, "pull")
        return self._threads.submit(call, *arguments)

    def _acknowledge(self) -> None:
        self._fetched(f"{self._path}/blocks/{self.next}", {})

    def _fetched(self, path: str, headers: dict[str, str]) -> _Answer:
        return _answer(self._transport.send("GET", path, headers=headers))

    def _forget(self) -> None:
        """The answers to requests on their way; they are waited for, so that none acknowledges blocks later on."""
        asked = list(self._asked)
        self._asked.clear()
        wait(asked)

    def close(self) -> None:
        """Ask for no more. The stream stays in its session, unless that ends with it."""
        self._ended, self._left = True, memoryview(b"")
        self._ready.clear()
        self._leave()
        self._end()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    blocks: int
    media_type: str
    data: bytes
    last: bool


def _answer(reply: Reply) -> _Answer:
    with reply.body:
        data = reply.body.read_all()
    blocks = int(reply.headers.get("x-dai-blocks", 1)) if reply.status == 200 else 0
    return _Answer(reply.status, blocks, reply.media_type, data, reply.headers.get("x-block-last") == "true")


@dataclass(slots=True)
class _Flow:
    """An answer with frames from the block ``first`` on that is being read. That of a service which does not let them
    flow says in its head how many there are, and whether they are the last."""

    reply: Reply
    first: int
    arriving: frames.Arriving = field(default_factory=frames.Arriving)
    bytes: int = 0
    end: frames.Frame | None = None

    @property
    def last(self) -> bool:
        return self.end.rows > 0 if self.end is not None else self.reply.headers.get("x-block-last") == "true"

    def check(self, next: int) -> None:
        """TruncatedError where that is not all of it."""
        self.arriving.finish()
        counted = self.reply.headers.get("x-dai-blocks", "")
        behind = self.first + int(counted) if counted.isdigit() else self.end.number if self.end is not None else None
        if behind != next:
            raise TruncatedError(f"The answer broke off before block {next}.")


def _closed(ahead: Future[Reply]) -> None:
    """The answer that nobody reads any more."""
    if not ahead.cancelled() and ahead.exception() is None:
        ahead.result().body.close()


def flowing(transport: Transport, context: str | None = None) -> str:
    """What to accept: frames that flow, for a reader with that context; else what there is."""
    return _frames(frames.Asked(context, transport.compresses, flow=True))


def _frames(asked: frames.Asked) -> str:
    return f"{asked}, */*;q=0.5"


_DOCUMENTS = "application/vnd.apache.arrow.stream, application/vnd.webrowset+xml, */*;q=0.5"
"""Blocks as they were written, whose concatenation is the document."""
