"""``/feeds``: blocks that are published once and followed by many."""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from dai.api.blocks.changes import Changes
from dai.api.blocks.following import EVENTS, Following, Form, form_of_follower
from dai.api.blocks.framing import read_frames
from dai.api.blocks.pulling import MOST_BLOCKS, Seconds
from dai.api.dependencies import Accept, TheAccess, TheBody, TheCaller, TheService
from dai.api.problems import answers, header
from dai.api.requests.body import JSON, block_rows, content_type, takes
from dai.api.requests.negotiation import best
from dai.api.requests.parameters import WHOLE, Asked, Flag, Text, members
from dai.api.requests.route import ChangingRoute, Route
from dai.api.responses import JSONAnswer, answer
from dai.api.routes.streams import NOT_YET, Number
from dai.errors import (
    BusyError,
    ConflictError,
    DataError,
    DeniedError,
    GoneError,
    NotAcceptableError,
    NotFoundError,
    QuotaError,
    SlowRequestError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from dai.formats.frames import LARGE, MEDIA_TYPE, context_of, format_of, requested
from dai.formats.frames import Asked as AskedFrames
from dai.service.feeds import Feed, Portion, described

router = APIRouter(route_class=Route, prefix="/feeds", tags=["feeds"])
changing = APIRouter(route_class=ChangingRoute, prefix="/feeds", tags=["feeds"])
Names = Annotated[list[Annotated[str, Field(min_length=1, max_length=200)]], Field(max_length=100)]


class NewFeed(Asked, strict=True):
    title: Annotated[str, Field(max_length=200)] = ""
    readers: Annotated[
        Names,
        Field(default_factory=list, description="who follows it: names, group:NAME, * and anonymous, as in a policy"),
    ]
    writers: Annotated[Names, Field(default_factory=list, description="who else publishes in it, and reads")]
    blocks: Annotated[int, Field(ge=1, le=100_000, description="that it keeps")] | None = None
    bytes: Annotated[int, Field(ge=1, description="that it keeps, a block counted twice")] | None = None
    seconds: Annotated[float, Field(gt=0, description="that it keeps a block, and lives without use")] | None = None


class FeedDescription(BaseModel):
    """A feed."""

    model_config = ConfigDict(extra="allow")

    id: str
    first: int = Field(description="the number of the first block that is kept")
    next: int = Field(description="the number of the next block to come")


class FeedList(BaseModel):
    feeds: list[FeedDescription]


class Publishing(Asked):
    last: Flag = Field(False, description="this is the last block of the feed")
    producer: Annotated[str, Field(max_length=100)] = Field(
        "", description="each producer counts its blocks from 0; one that is sent again counts once"
    )


class Pulling(Asked):
    count: Annotated[int, Field(ge=1, le=MOST_BLOCKS, description="the most blocks"), WHOLE] = 1
    wait: Seconds = 0


class Start(Asked):
    start: Annotated[int, Field(ge=0, le=2**53), WHOLE] | Literal["first", "next"] = Field(
        "next", description="the number of the first block, or the first that is kept, or the next to come"
    )


class Placed(BaseModel):
    """Where a feed stands."""

    first: int
    next: int


@router.get("", summary="The feeds that you may follow", response_model=FeedList, responses=answers())
async def list_feeds(service: TheService, caller: TheCaller) -> Response:
    """With several workers, the feeds of one of them."""
    return JSONAnswer({"feeds": [described(each) for each in service.feeds.all() if each.may_read(caller)]})


@router.post(
    "",
    status_code=201,
    summary="Create a feed",
    response_model=FeedDescription,
    responses=answers(
        *(TooLargeError, UnsupportedMediaTypeError, SlowRequestError, QuotaError),
        ok={201: {"headers": {"Location": header("the feed")}}},
    ),
    openapi_extra=takes({JSON: NewFeed.model_json_schema()}, required=False),
)
async def post_feed(service: TheService, caller: TheCaller, body: TheBody) -> Response:
    wanted = members(NewFeed, await body.read() or b"{}")
    feed = service.feeds.create(
        caller.name,
        wanted.readers,
        wanted.writers,
        blocks=wanted.blocks,
        bytes=wanted.bytes,
        seconds=wanted.seconds,
        title=wanted.title,
    )
    return JSONAnswer(described(feed), 201, {"Location": f"/feeds/{feed.id}"})


@router.get("/{feed}", summary="A feed", response_model=FeedDescription, responses=answers(NotFoundError))
async def get_feed(service: TheService, caller: TheCaller, feed: Text) -> Response:
    return JSONAnswer(described(service.feeds.get(feed, caller)))


@router.delete(
    "/{feed}",
    status_code=204,
    summary="End a feed and drop its blocks",
    description="PUT …/blocks/N?last=true ends one whose readers shall have what is left.",
    responses=answers(NotFoundError, DeniedError),
)
async def delete_feed(service: TheService, caller: TheCaller, feed: Text) -> Response:
    open_feed = service.feeds.get(feed, caller)
    if not caller.sees(open_feed.owner):
        raise DeniedError("Only the owner of a feed can end it.")
    service.feeds.end(open_feed)
    return Response(status_code=204)


@router.put(
    "/{feed}/blocks/{number}",
    summary="Publish a block, or several in frames; a number that a producer sends again counts once",
    response_model=Placed,
    responses=answers(
        *(NotFoundError, DeniedError, ConflictError, GoneError, DataError, TooLargeError, SlowRequestError, BusyError)
    ),
    openapi_extra=takes({MEDIA_TYPE: None, "*/*": None}, required=False),
)
async def publish_block(
    request: Request,
    service: TheService,
    access: TheAccess,
    body: TheBody,
    feed: Text,
    number: Number,
    options: Annotated[Publishing, Query()],
) -> Response:
    """In frames: the first is a whole document, so that the feed learns its context. Any other body is a message."""
    access.quiet = True
    open_feed = service.feeds.get(feed, access.caller)
    open_feed.check_writer(access.caller)
    most = service.config.limits.feed_bytes
    data = await body.read(most)
    static, kind = b"", content_type(request)
    if kind == MEDIA_TYPE:
        payloads, static = await read_frames(service, data, open_feed.static, number, most)
        kind = _form_of(static) if static else kind
    else:
        payloads = [(data, block_rows(request))] if data or not options.last else []
    open_feed.publish(options.producer, number, payloads, kind or "application/octet-stream", static, last=options.last)
    return JSONAnswer({"first": open_feed.first, "next": open_feed.next})


@changing.get(
    "/{feed}/blocks/{number}",
    summary="A block of a feed, and the next ones",
    response_class=Response,
    responses=answers(
        *(NotFoundError, ConflictError, GoneError),
        ok={
            200: {
                "description": "The blocks: frames, one document, or messages one after the other",
                "content": {"*/*": {}, MEDIA_TYPE: {}},
                "headers": {
                    "X-Dai-Blocks": header("how many blocks these are"),
                    "X-Block-Rows": header("how many rows are in them"),
                    "X-Block-Last": header("true where the last is the last of the feed"),
                },
            },
            202: NOT_YET,
            204: {"description": "The feed has ended before this block"},
        },
    ),
)
async def get_feed_block(
    service: TheService,
    access: TheAccess,
    accept: Accept,
    feed: Text,
    number: Number,
    options: Annotated[Pulling, Query()],
) -> Response:
    """A block that is not kept any more is 410: ``lost`` says how many, ``first`` with which to go on."""
    access.quiet = True
    open_feed = service.feeds.get(feed, access.caller)
    at = await _awaited(open_feed, number, options)
    if at.lost:
        raise open_feed.lost(number, at.lost)
    if not at.blocks:
        return Response(status_code=204 if at.ended else 202, headers={} if at.ended else {"Retry-After": "1"})
    access.rows = sum(each.rows for each in at.blocks)
    headers = {"x-dai-blocks": str(len(at.blocks)), "x-block-rows": str(access.rows)}
    if at.ended:
        headers["x-block-last"] = "true"
    if best(accept, (open_feed.media_type, MEDIA_TYPE)) != MEDIA_TYPE:
        return answer(open_feed.document(at.blocks), open_feed.media_type, 200, headers)
    said = requested(accept) if accept is not None else None
    wanted = said[0] if said is not None else AskedFrames()
    knows = not open_feed.static or wanted.context == context_of(open_feed.static)

    def frames() -> bytes:
        """The first is a whole document for a reader that does not have their context."""
        first, rest = ((), at.blocks) if knows else (open_feed.whole(at.blocks[0]), at.blocks[1:])
        return b"".join((*first, *(open_feed.compressed(each) if wanted.compressed else each.frame for each in rest)))

    large = sum(len(each.payload) for each in at.blocks) > LARGE
    loop = asyncio.get_running_loop()
    body = await loop.run_in_executor(service.files, frames) if wanted.compressed and large else frames()
    return answer(body, MEDIA_TYPE, 200, headers)


async def _awaited(feed: Feed, number: int, options: Pulling) -> Portion:
    at = feed.since(number, options.count)
    if at.blocks or at.lost or at.ended or not options.wait:
        return at
    with Changes(feed, options.wait, feed) as changes:
        while not ((at := feed.since(number, options.count)).blocks or at.lost or at.ended):
            if not await changes.wait():
                break
    return at


@changing.get(
    "/{feed}/blocks",
    summary="Follow a feed: its blocks as they arrive, as frames or server-sent events",
    description="A reader who is slower than the feed keeps blocks is told how many were lost, and goes on with the "
    "first that is left. Last-Event-ID goes on where a connection of events broke off.",
    response_class=Response,
    responses=answers(
        *(NotFoundError, ConflictError, GoneError, NotAcceptableError),
        ok={200: {"description": "The blocks, until the feed ends", "content": {MEDIA_TYPE: {}, EVENTS: {}}}},
    ),
)
async def follow(
    request: Request,
    service: TheService,
    access: TheAccess,
    accept: Accept,
    feed: Text,
    options: Annotated[Start, Query()],
) -> Response:
    access.quiet = True
    open_feed = service.feeds.get(feed, access.caller)
    form: Form = form_of_follower(accept, open_feed)
    start = options.start
    if (last := request.headers.get("last-event-id", "")).isascii() and last.isdigit() and len(last) < 17:
        start = int(last) + 1
    number = {"first": open_feed.first, "next": open_feed.next}.get(start) if isinstance(start, str) else start
    assert number is not None
    open_feed.since(number, 1)
    if service.feeds.followers >= service.config.limits.followers:
        raise BusyError("The feeds of this service have as many followers as they can have.", retry_after=10)
    return Following(access, open_feed, form, number)


def _form_of(static: bytes) -> str:
    """The media type of documents that begin so. DataError for what is the beginning of none."""

    form = format_of(static)
    if form.tail is None:
        raise DataError(f"A feed cannot have blocks of the format {form.name}.")
    return form.media_type
