"""``/registry/changes``: what happened to entries, which others follow."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response, StreamingResponse

from dai.api.dependencies import Accept
from dai.api.problems import answers
from dai.api.requests.negotiation import best
from dai.api.requests.parameters import WHOLE, Asked, Flag, Unsaid
from dai.api.requests.route import Route
from dai.api.responses import JSONAnswer
from dai.api.routes.registry.common import Book, Page, Reading
from dai.errors import BusyError, DaiError, DeniedError, GoneError, NotFoundError, ParameterError, QuotaError
from dai.service.registry.database import RENEWED, Change
from dai.service.registry.mirror import Mirror, sees

router = APIRouter(route_class=Route, prefix="/registry", tags=["registry"])
EVENTS = "text/event-stream"
LOOK_SECONDS = 1.0
"""How often changes by other processes are looked for."""
SILENT_SECONDS = 15.0
"""Seconds after which a follower gets a sign of life."""
MOST_FOLLOWERS, MOST_OF_ONE = 1000, 100
"""Most followers in all, and of one caller."""
FOLLOWED_SECONDS = 900.0
"""After this time a connection ends, and the follower connects and authenticates again."""


class After(Asked):
    after: Annotated[int, Field(ge=0, le=2**53), WHOLE] | Unsaid = Field(
        None, description="the number of the last known change; without it, only new changes"
    )
    limit: Page = 1000
    renewals: Flag = Field(False, description="also of leases, with the times when they end")


@router.get(
    "/changes",
    summary="Changes of entries, as a page or as server-sent events",
    description="Accept: text/event-stream follows the changes; Last-Event-ID goes on where a connection broke off.",
    responses=answers(
        NotFoundError,
        DeniedError,
        ParameterError,
        GoneError,
        BusyError,
        QuotaError,
        ok={200: {"content": {EVENTS: {}}}},
    ),
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
        events = await _telling(first, book, asked.renewals)
        return JSONAnswer({"changes": events, "number": number, "more": len(first) == asked.limit})
    followers = book.service.registry_followers
    if followers.total() >= MOST_FOLLOWERS:
        raise BusyError("As many clients as possible already follow the changes.", retry_after=10)
    if followers[book.caller.name] >= MOST_OF_ONE:
        raise QuotaError(f"You already follow the changes {MOST_OF_ONE} times.", retry_after=10)
    return StreamingResponse(
        _events(book, after, first, asked.renewals), media_type=EVENTS, headers={"cache-control": "no-store"}
    )


async def _changes(book: Book, after: int, most: int) -> list[Change]:
    changes = await book.run(book.registry.changes, after, most)
    if changes is None:
        raise GoneError(
            f"The changes from {after} on are no longer kept.",
            hint="Read all entries again, then follow the changes from there.",
        )
    return changes


async def _events(book: Book, after: int, first: list[Change], renewals: bool) -> AsyncIterator[bytes]:
    """Those of the caller, until the caller leaves, the service stops or FOLLOWED_SECONDS are over. Also where there
    was none for the caller, Last-Event-ID goes on from the end."""
    loop, changed = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        loop.call_soon_threadsafe(changed.set)

    listeners = book.registry.listeners
    listeners.append(tell)
    followers, end = book.service.registry_followers, loop.time() + FOLLOWED_SECONDS
    followers[book.caller.name] += 1
    try:
        yield b": the changes follow\n\n"
        changes, silent = first, 0.0
        while not book.service.ending and loop.time() < end:
            events = await _telling(changes, book, renewals)
            if events:
                silent = 0.0
                yield b"".join(map(_event, events))
            if changes:
                after = changes[-1].number
            elif silent >= SILENT_SECONDS:
                silent = 0.0
                yield b":\n\n"
            changed.clear()
            changes = await _changes(book, after, 1000)
            if not changes:
                try:
                    async with asyncio.timeout(LOOK_SECONDS):
                        await changed.wait()
                except TimeoutError:
                    silent += LOOK_SECONDS
                changes = await _changes(book, after, 1000)
        yield b"id: %d\n\n" % after
    except DaiError as error:
        yield b"event: error\ndata: %s\n\n" % orjson.dumps(error.problem())
    finally:
        followers[book.caller.name] -= 1
        followers += Counter()  # without those who have left
        listeners.remove(tell)


async def _telling(changes: list[Change], book: Book, renewals: bool) -> list[dict[str, Any]]:
    """Those that are for the caller; with ``renewals`` these, too, and ``expires`` of what has a lease now."""
    seen = [each for each in changes if (renewals or each.action != RENEWED) and sees(book.caller, each.audience)]
    if not renewals or not seen:
        return [each.event() for each in seen]

    def ends(mirror: Mirror) -> dict[str, float | None]:
        return {each.key: entry.expires for each in seen if (entry := mirror.entries.get(each.key)) is not None}

    expires = await book.read(ends)
    return [each.event() | ({"expires": end} if (end := expires.get(each.key)) else {}) for each in seen]


def _event(event: dict[str, Any]) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event["number"], event["action"].encode(), orjson.dumps(event))
