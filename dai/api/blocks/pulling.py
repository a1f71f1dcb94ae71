"""Answers to readers who pull blocks of a session's stream, also by the request with the document that fills the
stream."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Annotated

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from dai.api.blocks.changes import Changes, wait_for_disconnect
from dai.api.blocks.flowing import Flowing, Wanted
from dai.api.blocks.framing import dictionary_coded_blocks, framed_blocks, wants_flow, wants_frames
from dai.api.monitoring.access import Access
from dai.api.requests.head import listed
from dai.api.requests.parameters import WHOLE, Asked
from dai.api.responses import answer
from dai.api.service import Service
from dai.errors import CancelledError, DaiError
from dai.formats.frames import MEDIA_TYPE
from dai.service.sessions import Session
from dai.streams.mailbox import Mailbox
from dai.streams.stream import Block

MOST_WAIT = 60
MOST_BLOCKS = 1000
MOST_LINGER = 60_000
MOST_SIZE = 1 << 40
_LINGER = "milliseconds to wait for more blocks once there is one, within the time that the answer may be held"
_SIZE = "the most bytes of all blocks of an answer together; a single block may have more"
_BEHIND = "how many blocks before this one are still on their way to you; only the blocks before those are acknowledged"
Seconds = Annotated[int, Field(ge=0, le=MOST_WAIT, description="to hold the answer"), WHOLE]


class Pull(Asked):
    count: Annotated[int, Field(ge=1, le=MOST_BLOCKS, description="the number of blocks"), WHOLE] = 1
    behind: Annotated[int, Field(ge=0, le=MOST_BLOCKS, description=_BEHIND), WHOLE] = 0
    linger: Annotated[int, Field(ge=0, le=MOST_LINGER, description=_LINGER), WHOLE] = MOST_LINGER

    @property
    def ahead(self) -> int:
        """Who lingers pulls one block after the other: as many are made meanwhile."""
        return self.count if self.linger < MOST_LINGER else 0

    size: Annotated[int, Field(ge=1, le=MOST_SIZE, description=_SIZE), WHOLE] = MOST_SIZE
    wait: Seconds = 0


FIRST = Pull(count=256, size=1 << 21, linger=5, wait=20)
"""What is pulled by the request that sends the document."""


async def pulled(
    request: Request,
    session: Session,
    mailbox: Mailbox,
    number: int,
    options: Pull,
    said: Mapping[str, str] | None = None,
) -> Response:
    """The blocks from ``number`` on; what is ``said`` besides stands in the head of the answer."""
    accept, said = listed(request, "accept"), said or {}
    blocks, more = mailbox.poll_many(number, options.count, options.ahead, options.behind, options.size)
    if more:
        blocks, more = await _awaited(options, session, mailbox, number, accept)
        if more and not blocks:
            return Response(status_code=202, headers={"Retry-After": "1", **said})
    if not blocks:
        return Response(status_code=204, headers=dict(said))
    service: Service = request.app.state.service
    access: Access = request.state.access
    if wants_flow(accept, mailbox):
        wanted = Wanted(accept, options.count, options.size, options.wait)
        return Flowing(service, access, session, mailbox, number, blocks, wanted, said)
    access.rows = sum(block.rows for block in blocks)
    headers = {"x-dai-blocks": str(len(blocks)), "x-block-rows": str(access.rows), **said}
    if mailbox.is_last(number + len(blocks) - 1):
        headers["x-block-last"] = "true"
    if wants_frames(accept, mailbox):
        frames = await framed_blocks(service, session, mailbox, number, blocks, accept)
        return answer(frames, MEDIA_TYPE, 200, headers)
    body = b"".join(memoryview(block.data) for block in blocks)
    body, coded = await dictionary_coded_blocks(service, request, mailbox, body)
    return answer(body, mailbox.media_type, 200, headers | coded)


async def pulled_at_once(request: Request, session: Session, mailbox: Mailbox, said: Mapping[str, str]) -> Response:
    """The first blocks, for the request that sent the document. Its session ends where the client leaves before the
    answer begins, or nothing but a failure comes: nobody would know it."""
    pulling = asyncio.create_task(pulled(request, session, mailbox, 0, FIRST, said))
    leaving = asyncio.create_task(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait((pulling, leaving), return_when=asyncio.FIRST_COMPLETED)
        if pulling.done():
            return await pulling
        raise CancelledError("The client has gone.")
    except DaiError as error:
        service: Service = request.app.state.service
        await service.in_control(service.sessions.end, session, error.detail)
        raise
    finally:
        pulling.cancel()
        leaving.cancel()


async def _awaited(
    options: Pull, session: Session, mailbox: Mailbox, number: int, accept: str | None
) -> tuple[list[Block], bool]:
    """The blocks once they are there, or what is there when the time is up; and whether more were to come. Where they
    flow, the first one is enough."""
    in_time = True
    with Changes(session, options.wait, mailbox) as changes:
        while True:
            blocks, more = mailbox.poll_many(number, options.count, options.ahead, options.behind, options.size)
            if not more or not in_time or (blocks and wants_flow(accept, mailbox)):
                return blocks, more
            if blocks:
                changes.linger(options.linger / 1000, partial(mailbox.has, number, options.count, options.size))
            in_time = await changes.wait()
