"""Sends a follower the blocks of a feed as they come.

A slow reader delays nobody: a block is sent when the reader has taken those before. Blocks that the feed no longer
keeps by then are lost, and the reader is told how many. If the feed drops a block that was sent in part, the connection
breaks off; the reader connects again and is told, too. So a reader holds no more memory than the buffer of a
connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dai.api.blocks.changes import Changes, disconnected
from dai.api.monitoring.access import Access
from dai.api.requests.negotiation import best
from dai.errors import DaiError, NotAcceptableError, TruncatedError
from dai.formats.frames import MEDIA_TYPE, Asked, Frame, context_of, requested
from dai.service.feeds import Feed, Portion, Published

EVENTS = "text/event-stream"
PIECE = 1 << 14
"""Bytes that are handed to a connection at once."""
SILENT_SECONDS = 15.0
"""Seconds after which a sign of life is sent."""
FOLLOWED_SECONDS = 900.0
"""After this time the connection breaks off. The reader connects again and is identified again."""
PATIENCE = 60.0
"""Seconds in which a reader must take a piece."""
LOOK_SECONDS = 1.0
"""How often it is looked whether a block that leaves in parts is still kept."""
_TEXT = ("text/", "application/json", "application/xml")


@dataclass(frozen=True, slots=True)
class Form:
    """How a reader gets the blocks; ``begun``: whether an earlier one of this connection has told their context."""

    media_type: str
    block: Callable[[Feed, Published, bool], Iterable[bytes | memoryview]]
    """In parts, made as they leave: no reader has a copy of a block."""
    lost: Callable[[Feed, int, int], bytes]
    end: bytes = b""


def form_of_follower(accept: str | None, feed: Feed) -> Form:
    """Frames, or server-sent events where the blocks are text. NotAcceptableError for anything else."""
    texts = not feed.media_type or feed.media_type.startswith(_TEXT) or feed.media_type.endswith(("+json", "+xml"))
    wanted = best(accept, (MEDIA_TYPE, EVENTS) if texts else (MEDIA_TYPE,))
    if wanted == EVENTS:
        return Form(EVENTS, _event, _lost_event, b"event: end\ndata:\n\n")
    if wanted is None:
        raise NotAcceptableError(
            f"A feed is followed as {MEDIA_TYPE}" + (f" or {EVENTS}." if texts else "."),
            hint="GET …/blocks/N returns single blocks in other formats.",
        )
    said = requested(accept) if accept is not None else None
    frames = said[0] if said is not None else Asked()

    def framed(feed: Feed, published: Published, begun: bool) -> Iterable[bytes | memoryview]:
        if feed.static and not begun and frames.context != context_of(feed.static):
            return feed.whole(published)
        return (feed.compressed(published) if frames.compressed else published.frame,)

    return Form(MEDIA_TYPE, framed, _lost_frame)


def _lost_frame(feed: Feed, number: int, count: int) -> bytes:
    return bytes(Frame(context_of(feed.static), feed.id, number, count, b"", lost=True))


def _event(feed: Feed, published: Published, begun: bool) -> Iterator[bytes]:
    yield b"id: %d\ndata: " % published.number
    held = b""  # the end of a line, which may go on in the next piece; that of the last line counts no more
    for piece in _pieces(feed.document_parts([published])):
        data = held + piece
        held = next((end for end in (b"\r\n", b"\n", b"\r") if data.endswith(end)), b"")
        text = data[: len(data) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        yield text.replace(b"\n", b"\ndata: ")
    yield b"\n\n"


def _pieces(parts: Iterable[bytes | memoryview]) -> Iterator[bytes]:
    """Of PIECE bytes at most."""
    for part in parts:
        for at in range(0, len(part), PIECE):
            yield bytes(part[at : at + PIECE])


def _lost_event(feed: Feed, number: int, count: int) -> bytes:
    if not count:
        return b":\n\n"
    data = orjson.dumps({"from": number, "lost": count})
    return b"id: %d\nevent: lost\ndata: %s\n\n" % (number + count - 1, data)


class Following(Response):
    """The blocks of a feed from a number on, until it ends or the reader leaves."""

    def __init__(self, access: Access, feed: Feed, form: Form, number: int) -> None:
        super().__init__(headers={"content-type": form.media_type, "cache-control": "no-store", "connection": "close"})
        del self.headers["content-length"]
        self._access, self._feed, self._form, self._number = access, feed, form, number
        self._begun, self._until = False, 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (hold := scope.get("extensions", {}).get("dai.hold_little")) is not None:
            hold(PIECE)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone, loop = asyncio.Event(), asyncio.get_running_loop()
        self._until = loop.time() + FOLLOWED_SECONDS
        with self._feed.waiting(), Changes(None, 1e9, self._feed) as changes:
            watching = asyncio.create_task(disconnected(receive, gone, changes))
            try:
                # the head leaves at once, also where no block has come yet
                await self._alive(send)
                while not gone.is_set() and not await self._step(send):
                    if not await changes.wait(min(SILENT_SECONDS, self._until - loop.time())):
                        await self._alive(send)
                if not gone.is_set():
                    await send({"type": "http.response.body", "body": self._form.end})
            except DaiError as error:
                # returning without the last chunk makes the server close the connection
                self._access.error = error
            finally:
                watching.cancel()

    async def _step(self, send: Send) -> bool:
        """Sends what is there; True at the end of the feed. TruncatedError when the time is over."""
        while True:
            if asyncio.get_running_loop().time() >= self._until:
                raise TruncatedError(f"A feed is followed for {FOLLOWED_SECONDS:g} seconds at a time.")
            retained = self._feed.since(self._number, 1000, PIECE)
            arrived = bool(retained.lost or retained.blocks)
            if arrived:
                await self._send_parts(send, self._parts(self._number, retained), retained.blocks)
            self._number += retained.lost + len(retained.blocks)
            self._access.rows += sum(each.rows for each in retained.blocks)
            if retained.ended or not arrived:
                return retained.ended

    def _parts(self, number: int, retained: Portion) -> Iterator[bytes | memoryview]:
        if retained.lost:
            yield self._form.lost(self._feed, number, retained.lost)
        for each in retained.blocks:
            yield from self._form.block(self._feed, each, self._begun)
            self._begun = True

    async def _alive(self, send: Send) -> None:
        await self._send_parts(send, (self._form.lost(self._feed, self._number, 0),), ())

    async def _send_parts(self, send: Send, parts: Iterable[bytes | memoryview], blocks: Sequence[Published]) -> None:
        """TruncatedError where the reader takes nothing for too long, or the feed has dropped what is left of it."""
        data = bytearray()
        for piece in _pieces(parts):
            if len(data) + len(piece) > PIECE:
                await self._sent_in_part(send, bytes(data), blocks)
                data.clear()
            data += piece
        try:
            async with asyncio.timeout(PATIENCE):
                await send({"type": "http.response.body", "body": bytes(data), "more_body": True})
        except TimeoutError as error:
            raise _stuck() from error

    async def _sent_in_part(self, send: Send, data: bytes, blocks: Sequence[Published]) -> None:
        sending = asyncio.ensure_future(send({"type": "http.response.body", "body": data, "more_body": True}))
        looks = 0
        while not sending.done():
            await asyncio.wait({sending}, timeout=LOOK_SECONDS)
            looks += 1
            dropped = blocks[-1].number < self._feed.first
            if not sending.done() and (dropped or looks * LOOK_SECONDS > PATIENCE):
                sending.cancel()
                raise TruncatedError("The feed no longer keeps this block.") if dropped else _stuck()
        sending.result()


def _stuck() -> TruncatedError:
    return TruncatedError(f"The reader of the feed took nothing for {PATIENCE:g} seconds.")
