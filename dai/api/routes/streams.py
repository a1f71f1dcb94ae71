"""``/sessions/{s}/streams``: blocks are pulled and pushed by number.

A block that is there is answered at once on the event loop; for one that is not, the request waits for the mailbox.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dai.api.blocks.changes import Changes, disconnected
from dai.api.blocks.framing import read_frames
from dai.api.blocks.pulling import MOST_WAIT, Pull, Seconds, pulled
from dai.api.dependencies import TheAccess, TheBody, TheService
from dai.api.monitoring.access import Access
from dai.api.problems import answers, header
from dai.api.requests.body import block_rows, content_type, takes
from dai.api.requests.parameters import WHOLE, Asked, Flag, Text, Unsaid
from dai.api.requests.route import ChangingRoute, PullRoute
from dai.api.service import Service
from dai.errors import (
    BackPressureError,
    BusyError,
    CancelledError,
    ClosedError,
    ConflictError,
    DaiError,
    DataError,
    GoneError,
    LimitError,
    NotFoundError,
    SlowRequestError,
    TooLargeError,
    TruncatedError,
)
from dai.formats.frames import MEDIA_TYPE
from dai.service.sessions import Session
from dai.streams.mailbox import Budget, Mailbox
from dai.streams.stream import Block

STREAM = "/sessions/{session}/streams/{stream}"
router = APIRouter(route_class=ChangingRoute, prefix=STREAM, tags=["sessions"])
pulls = APIRouter(route_class=PullRoute, prefix=STREAM, tags=["sessions"])
PUSH_WAIT = 20
Number = Annotated[int, Field(ge=0, le=2**53, description="of the block, from 0"), WHOLE]
Producer = Annotated[str, Field(min_length=1, max_length=100)]
NOT_YET: dict[str, Any] = {
    "description": "There is no block yet; ask again",
    "headers": {"Retry-After": header("seconds")},
}


class Push(Asked):
    last: Flag = Field(False, description="this block ends the stream")
    wait: Seconds = PUSH_WAIT
    taken: Flag = Field(False, description="answer when the reader has taken it; 202 if it does not in time")
    producer: Producer | Unsaid = Field(None, description="who pushes: blocks of another producer are refused")


class Ended(Asked):
    direction: Literal["input", "output"] = Field(
        "output", description="input: one that clients push into, output: one that they pull from"
    )
    producer: Producer | Unsaid = Field(None, description="who pushed: ends the stream of no other producer")


class Rest(Asked):
    wait: Seconds = MOST_WAIT


@pulls.get(
    "/blocks/{number}",
    summary="Pull a block, and the next ones; acknowledges the blocks before it",
    response_class=Response,
    responses=answers(
        *(NotFoundError, ConflictError, GoneError),
        ok={
            200: {
                "description": "The blocks, one after the other",
                "content": {"*/*": {}, MEDIA_TYPE: {}},
                "headers": {
                    "X-Dai-Blocks": header("how many blocks these are"),
                    "X-Block-Rows": header("how many rows are in them"),
                    "X-Block-Last": header("true where the last is known to be the last of the stream"),
                },
            },
            202: NOT_YET,
            204: {"description": "The stream has ended before this block"},
        },
    ),
)
async def get_block(
    request: Request,
    session: Text,
    stream: Text,
    number: Number,
    options: Annotated[Pull, Query()],
) -> Response:
    access: Access = request.state.access
    access.quiet = True
    opened = request.app.state.service.sessions.get(session, access.caller)
    return await pulled(request, opened, opened.find_output(stream), number, options)


@router.put(
    "/blocks/{number}",
    status_code=204,
    summary="Push a block, or several in frames; a number that is sent again counts once",
    responses=answers(
        *(NotFoundError, ConflictError, GoneError, DataError, TooLargeError, BackPressureError, SlowRequestError),
        ok={
            202: {"description": "It is there, but not taken yet; send it again", "headers": NOT_YET["headers"]},
            204: {"description": "It is there, or was taken where that was asked for"},
        },
    ),
    openapi_extra=takes({"application/octet-stream": None, MEDIA_TYPE: None, "*/*": None}, required=False),
)
async def put_block(
    request: Request,
    service: TheService,
    access: TheAccess,
    body: TheBody,
    session: Text,
    stream: Text,
    number: Number,
    options: Annotated[Push, Query()],
) -> Response:
    """Reads the body once there is room for it: until then it waits where it comes from."""
    access.quiet = True
    opened = service.sessions.get(session, access.caller)
    mailbox = opened.find_input(stream)
    limit = service.config.limits.block_bytes
    size = body.size(limit)
    try:
        with Changes(opened, options.wait, mailbox, service.sessions.budget) as changes:
            mailbox.check_offer(number, options.producer)
            while (full := opened.budget.reserve(size, mailbox.awaits(number))) is not None:
                if not await changes.wait():
                    raise _full(service.sessions.budget, full)
                mailbox.check_offer(number, options.producer)
            try:
                blocks = await _pushed(service, request, mailbox, number, await body.read(limit))
                final = number + len(blocks) - 1
                for at, block in enumerate(blocks, number):
                    while not mailbox.offer(at, block, options.last and at == final, options.producer):
                        if not await changes.wait():
                            raise BackPressureError(
                                "The stream is full: its reader is behind.", hint="Send the block again."
                            )
            finally:
                opened.budget.release(size)
            while options.taken and mailbox.acknowledged <= final:
                in_time = await changes.wait()
                mailbox.check_offer(final, options.producer)
                if not in_time:
                    return Response(status_code=202, headers={"Retry-After": "0"})
    except ClosedError as error:
        if isinstance(error.__cause__, GoneError):  # the session has ended, not only who read the stream
            raise error.__cause__ from None
        raise GoneError("The request that read this stream has ended; no more blocks can be pushed into it.") from error
    return Response(status_code=204)


async def _pushed(service: Service, request: Request, mailbox: Mailbox, number: int, data: bytes) -> list[Block]:
    """The blocks of a body: those of frames as the document had them, or the body as it is."""
    if content_type(request) != MEDIA_TYPE or not data:
        return [Block(data, block_rows(request))]
    most = service.config.limits.block_bytes
    payloads, static = await read_frames(service, data, mailbox.static, number, most)
    blocks = [Block(payload, count) for payload, count in payloads]
    if not number:
        blocks[0] = Block(static + payloads[0][0], payloads[0][1], len(static))
    return blocks


def _full(all: Budget, full: Budget) -> DaiError:
    if full is all:
        return BusyError(
            "The service has no more room for blocks: those of all sessions fill it.", hint="Send the block again."
        )
    return BackPressureError(
        "This session has no more room for blocks: nobody has read those that it holds.",
        hint="Read its output streams, then send the block again. A stream that a document reads can still be pushed.",
    )


@router.delete(
    "",
    status_code=204,
    summary="End a stream early: the activity that writes or reads it stops",
    responses=answers(NotFoundError, ConflictError, GoneError),
)
async def delete_stream(
    service: TheService, access: TheAccess, session: Text, stream: Text, options: Annotated[Ended, Query()]
) -> Response:
    opened = service.sessions.get(session, access.caller)
    if options.direction == "input":
        mailbox = opened.find_input(stream)
        if options.producer is not None:
            mailbox.check_producer(options.producer)
        mailbox.fail(TruncatedError("The producer of this stream closed it before the last block."))
    else:
        opened.find_output(stream).discard(GoneError("The reader of this stream has stopped reading."))
    return Response(status_code=204)


@router.get(
    "",
    summary="All remaining blocks of a stream",
    response_class=Response,
    responses=answers(
        *(NotFoundError, ConflictError, GoneError),
        ok={
            200: {"description": "The blocks, one after the other", "content": {"*/*": {}}},
            202: NOT_YET,
            204: {"description": "The stream has ended and all its blocks were taken"},
        },
    ),
)
async def get_stream(
    service: TheService, access: TheAccess, session: Text, stream: Text, options: Annotated[Rest, Query()]
) -> Response:
    opened = service.sessions.get(session, access.caller)
    mailbox = opened.find_output(stream)
    with Changes(opened, options.wait, mailbox) as changes:
        while True:
            number = mailbox.acknowledged
            blocks, more = mailbox.poll_many(number, 1)
            if blocks:
                seconds = service.config.limits.seconds or 1e9
                return _WholeStream(access, opened, mailbox, number, blocks[0], seconds)
            if not more:
                return Response(status_code=204)
            if not await changes.wait():
                return Response(status_code=202, headers={"Retry-After": "1"})


class _WholeStream(Response):
    """All blocks that are left, one after the other, for ``seconds`` at most. The first was awaited before the status
    line."""

    def __init__(
        self, access: Access, session: Session, mailbox: Mailbox, number: int, first: Block, seconds: float
    ) -> None:
        super().__init__(headers={"content-type": mailbox.media_type})
        del self.headers["content-length"]
        self._access, self._session, self._mailbox = access, session, mailbox
        self._number, self._first, self._seconds = number, first, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        gone = asyncio.Event()
        with Changes(self._session, self._seconds, self._mailbox) as changes:
            watching = asyncio.create_task(disconnected(receive, gone, changes))
            try:
                block: Block | None = self._first
                while block is not None and not gone.is_set():
                    self._access.rows += block.rows
                    body = memoryview(block.data).cast("B")
                    await send({"type": "http.response.body", "body": body, "more_body": True})
                    self._number += 1
                    self._session.touch()
                    block = await self._next(changes, gone)
                if not gone.is_set():
                    await send({"type": "http.response.body", "body": b""})
            except DaiError as error:
                # returning without the last chunk makes the server close the connection
                self._access.error = error
            finally:
                watching.cancel()

    async def _next(self, changes: Changes, gone: asyncio.Event) -> Block | None:
        while True:
            blocks, more = self._mailbox.poll_many(self._number, 1)
            if blocks:
                return blocks[0]
            if not more:
                return None
            if gone.is_set():
                raise CancelledError("The client has gone.")
            if not await changes.wait():
                raise LimitError("The stream took longer than a request may.")
