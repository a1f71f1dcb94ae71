"""Blocks of a session's stream as frames that leave while further blocks are made.

So a reader decodes while the service works. The answer has as many blocks as were asked for, then a frame that ends it;
the next request acknowledges them, as ever. Where the answer breaks off before, its reader has not got that frame and
asks again for the block behind the last one that arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dai.api.blocks.changes import Changes, disconnected
from dai.api.blocks.framing import framed_blocks
from dai.api.monitoring.access import Access
from dai.api.service import Service
from dai.errors import CancelledError, DaiError
from dai.formats.frames import MEDIA_TYPE, Frame, context_of
from dai.service.sessions import Session
from dai.streams.mailbox import Mailbox
from dai.streams.stream import Block

GATHER_BYTES, GATHER_SECONDS = 1 << 17, 0.005
"""After the first blocks, blocks are sent together: so many bytes, or those that came in this time."""
SENT_BYTES = 1 << 18
"""Of blocks that leave in one piece: what is larger would be copied into memory that is new to the processor."""
FLOWED_SECONDS = 60.0
"""After this time an answer ends. The reader sends a new request and is identified again."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """At most ``count`` blocks, of ``size`` bytes together, for a reader that ``accept`` says more of. The answer ends
    where none has come for ``wait`` seconds."""

    accept: str | None
    count: int
    size: int
    wait: float


class Flowing(Response):
    """``blocks`` from ``number`` on, and those that come. What is ``said`` besides stands in the head."""

    def __init__(
        self,
        service: Service,
        access: Access,
        session: Session,
        mailbox: Mailbox,
        number: int,
        blocks: list[Block],
        wanted: Wanted,
        said: Mapping[str, str],
    ) -> None:
        super().__init__(headers={"content-type": f"{MEDIA_TYPE};flow=true", **said})
        del self.headers["content-length"]
        self._service, self._access, self._session, self._mailbox = service, access, session, mailbox
        self._number, self._blocks, self._wanted = number, blocks, wanted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.Event()
        with Changes(self._session, 1e9, self._mailbox) as changes:
            watching = asyncio.create_task(disconnected(receive, gone, changes))
            try:
                number, rest = await self._flow(send, changes, gone)
                rows = int(self._mailbox.is_last(number - 1))
                end = Frame(context_of(self._mailbox.static), self._session.id, number, rows, b"", end=True)
                await send({"type": "http.response.body", "body": b"".join((rest, *end.parts()))})
            except DaiError as error:
                # returning without the last chunk makes the server close the connection
                self._access.error = error
            finally:
                watching.cancel()

    async def _flow(self, send: Send, changes: Changes, gone: asyncio.Event) -> tuple[int, bytes]:
        """Sends the blocks; the number behind them, and the frames that leave with the end of the answer: the last ones
        of the stream. What failed is told to whoever asks for that one."""
        wanted, mailbox, session = self._wanted, self._mailbox, self._session
        number, count, size = self._number, wanted.count, wanted.size
        blocks, more, begun = self._blocks, True, False
        loop = asyncio.get_running_loop()
        until = loop.time() + FLOWED_SECONDS
        while (blocks or more) and loop.time() < until:
            if gone.is_set():
                raise CancelledError("The client has gone.")
            if blocks:
                session.touch()
                for together in _gathered(blocks):
                    frames = (self._service, session, mailbox, number, together, wanted.accept)
                    data = await framed_blocks(*frames, begun=begun)
                    number, count, begun = number + len(together), count - len(together), True
                    size -= sum(map(len, together))
                    self._access.rows += sum(block.rows for block in together)
                    if mailbox.is_last(number - 1):
                        return number, data
                    await send({"type": "http.response.body", "body": data, "more_body": True})
                bytes_there = mailbox.bytes_before(number) + min(size, GATHER_BYTES)
                await changes.gather(GATHER_SECONDS, partial(mailbox.has, number, count, bytes_there))
            elif not await changes.wait(min(wanted.wait, until - loop.time())):
                break
            blocks, more = mailbox.peek(number, count, size)
        return number, b""


def _gathered(blocks: list[Block]) -> Iterator[list[Block]]:
    """So many that they have SENT_BYTES at most, or one."""
    together: list[Block] = []
    size = 0
    for block in blocks:
        if together and size + len(block) > SENT_BYTES:
            yield together
            together, size = [], 0
        together.append(block)
        size += len(block)
    yield together
