"""``/registry/changes``: what happened to entries, which others follow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from dai.api.dependencies import Accept
from dai.api.problems import answers
from dai.api.requests.negotiation import best
from dai.api.requests.parameters import WHOLE, Asked, Unsaid
from dai.api.requests.route import Route
from dai.api.responses import JSONAnswer
from dai.api.routes.registry.common import Book, Page, Reading
from dai.errors import BusyError, DaiError, DeniedError, GoneError, NotFoundError, ParameterError
from dai.service.registry.database import RENEWED, Change
from dai.service.registry.mirror import sees

router = APIRouter(route_class=Route, prefix="/registry", tags=["registry"])
EVENTS = "text/event-stream"
LOOK_SECONDS = 1.0
"""How often changes by other processes are looked for."""
SILENT_SECONDS = 15.0
"""After which a follower is told that the connection lives."""
MOST_FOLLOWERS = 1000


class After(Asked):
    after: Annotated[int, Field(ge=0, le=2**53), WHOLE] | Unsaid = Field(
        None, description="the number of the last change that is known; without it those from now on"
    )
    limit: Page = 1000


@router.get(
    "/changes",
    summary="What happened to entries, as a page or as server-sent events",
    description="Accept: text/event-stream follows the changes; Last-Event-ID goes on where a connection broke off.",
    responses=answers(
        NotFoundError, DeniedError, ParameterError, GoneError, BusyError, ok={200: {"content": {EVENTS: {}}}}
    ),
    response_model=None,
)
async def get_changes(request: Request, book: Reading, accept: Accept, asked: Annotated[After, Query()]) -> Response:
    after = asked.after
    if (last := request.headers.get("last-event-id", "")).isascii() and last.isdigit() and len(last) < 17:
        after = int(last)
    if after is None:
        after = await book.run(book.registry.number)
    first = await _changes(book, after, asked.limit)
    if best(accept, ["application/json", EVENTS]) != EVENTS:
        number = first[-1].number if first else after
        told = [each.told() for each in first if _is_for(each, book)]
        return JSONAnswer({"changes": told, "number": number, "more": len(first) == asked.limit})
    if book.service.registry_followers >= MOST_FOLLOWERS:
        raise BusyError("As many follow the changes as can.", retry_after=10)
    return StreamingResponse(_events(book, after, first), media_type=EVENTS, headers={"cache-control": "no-store"})


async def _changes(book: Book, after: int, most: int) -> list[Change]:
    found = await book.run(book.registry.changes, after, most)
    if found is None:
        raise GoneError(
            f"The changes from {after} on are not kept any more.", hint="Read the entries anew, then what follows."
        )
    return found


async def _events(book: Book, after: int, first: list[Change]) -> AsyncIterator[bytes]:
    """Those of the caller, until the caller leaves or the service stops."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        loop.call_soon_threadsafe(changed.set)

    listeners = book.registry.listeners
    listeners.append(tell)
    book.service.registry_followers += 1
    try:
        yield b": the changes follow\n\n"
        found, silent = first, 0.0
        while not book.service.ending:
            told = [each for each in found if _is_for(each, book)]
            if told:
                silent = 0.0
                yield b"".join(b"id: %d\nevent: %s\ndata: %s\n\n" % _event(each) for each in told)
            if found:
                after = found[-1].number
            elif silent >= SILENT_SECONDS:
                silent = 0.0
                yield b":\n\n"
            changed.clear()
            found = await _changes(book, after, 1000)
            if not found:
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    silent += LOOK_SECONDS
                found = await _changes(book, after, 1000)
    except DaiError as error:
        yield b"event: error\ndata: %s\n\n" % orjson.dumps(error.problem())
    finally:
        book.service.registry_followers -= 1
        listeners.remove(tell)


def _is_for(change: Change, book: Book) -> bool:
    return change.action != RENEWED and sees(book.caller, change.audience)


def _event(change: Change) -> tuple[int, bytes, bytes]:
    return change.number, change.action.encode(), orjson.dumps(change.told())
