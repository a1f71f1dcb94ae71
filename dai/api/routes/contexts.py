"""``/contexts``: contexts, which never change, under their SHA-256, and documents, which have a version."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from dai.api.dependencies import TheBody, TheCaller, TheService
from dai.api.problems import answers, header
from dai.api.requests.body import content_type, takes
from dai.api.requests.head import listed
from dai.api.requests.parameters import Asked, Unsaid
from dai.api.requests.route import Route
from dai.api.responses import JSONAnswer, answer
from dai.errors import (
    ConflictError,
    DataError,
    LimitError,
    NotFoundError,
    ParameterError,
    PreconditionError,
    PreconditionRequiredError,
    QuotaError,
    SlowRequestError,
    TooLargeError,
)
from dai.formats.frames import SHA256, context_of
from dai.service.contexts.contexts import MOST_PARENTS
from dai.service.contexts.memory import Stored

router = APIRouter(route_class=Route, prefix="/contexts", tags=["contexts"])
_OCTETS = "application/octet-stream"
_BODY = takes({_OCTETS: None, "*/*": None}, required=False)
_ETAG = {"ETag": header("of a context its id, of a document its version")}
_DICTIONARY = 'match="/sessions/*/streams/*/blocks/*"'
_ROOM = (TooLargeError, SlowRequestError, LimitError, QuotaError)
Id = Annotated[
    str,
    Path(
        pattern="^([0-9a-f]{64}|[0-9a-f]{32})$",
        description="of a context its SHA-256, 64 hexadecimal digits; of a document 32",
    ),
]


class Lease(Asked):
    seconds: float | Unsaid = Field(None, gt=0, le=1e9, description="how long to keep it (default: an hour)")


class Putting(Lease):
    parents: str | Unsaid = Field(None, description=f"ids of up to {MOST_PARENTS} contexts, with commas between them")


class ContextDescription(BaseModel):
    """A context, or a document."""

    id: str
    type: str
    bytes: int
    version: int = Field(description="of a document; 0: a context")
    created: float = Field(description="seconds since 1970")
    expires: float
    parents: list[str]


class ContextList(BaseModel):
    contexts: list[ContextDescription]


@router.get("", summary="The contexts and documents, the newest first", response_model=ContextList, responses=answers())
async def list_contexts(service: TheService, caller: TheCaller) -> Response:
    """At most 1,000, without their parents."""
    contexts = await service.in_control(service.contexts.listed, caller)
    return JSONAnswer({"contexts": [described(each, size) for each, size in contexts]})


@router.post(
    "",
    status_code=201,
    summary="Create a document, of version 1",
    response_model=ContextDescription,
    responses=answers(*_ROOM, ok={201: {"headers": {"Location": header("the document"), **_ETAG}}}),
    openapi_extra=_BODY,
)
async def post_document(
    request: Request, service: TheService, caller: TheCaller, body: TheBody, lease: Annotated[Lease, Query()]
) -> Response:
    content = await body.read(service.config.limits.context_bytes)
    creation = service.contexts.create(content, _type(request), caller, lease.seconds)
    stored = await asyncio.wrap_future(creation)
    return JSONAnswer(described(stored), 201, {"Location": f"/contexts/{stored.id}", "ETag": etag(stored)})


@router.put(
    "/{context}",
    summary="Store a context, or replace a document",
    description="A stored context is renewed. A document needs If-Match with its ETag, or *.",
    response_model=ContextDescription,
    responses=answers(
        *(*_ROOM, DataError, NotFoundError, ConflictError, PreconditionError, PreconditionRequiredError),
        ok={200: {"headers": _ETAG}, 201: {"description": "The context is new", "headers": _ETAG}},
    ),
    openapi_extra=_BODY,
)
async def put_context(
    request: Request,
    service: TheService,
    caller: TheCaller,
    body: TheBody,
    context: Id,
    options: Annotated[Putting, Query()],
) -> Response:
    content = await body.read(service.config.limits.context_bytes)
    if SHA256.fullmatch(context):
        if (digest := context_of(content)) != context:
            raise DataError(f"The body is not the context {context}: its SHA-256 is {digest}.")
        parents = _parents(options.parents)
        stored, new = await asyncio.wrap_future(
            service.contexts.put(content, _type(request), caller, options.seconds, parents)
        )
        return JSONAnswer(described(stored), 201 if new else 200, {"ETag": etag(stored)})
    if options.seconds is not None or options.parents is not None:
        raise ParameterError(
            "A document cannot be replaced with 'seconds' or 'parents'.", hint="PUT …/lease renews it."
        )
    versions = _versions(listed(request, "if-match"))
    replaced = service.contexts.replace(context, caller, versions, content, _type(request))
    stored = await asyncio.wrap_future(replaced)
    return JSONAnswer(described(stored), 200, {"ETag": etag(stored)})


@router.get(
    "/{context}",
    summary="A context or a document",
    response_class=Response,
    responses=answers(
        NotFoundError,
        ok={
            200: {
                "description": "Its bytes, with the media type with which they came",
                "content": {"*/*": {}},
                "headers": {**_ETAG, "Link": header('its parents, rel="up"')},
            },
            304: {"description": "It has the ETag that was sent in If-None-Match"},
        },
    ),
)
async def get_context(request: Request, service: TheService, caller: TheCaller, context: Id) -> Response:
    stored = service.contexts.known(context, caller)
    if stored is None:
        stored = await service.in_control(service.contexts.get, context, caller)
    left = max(0, int(stored.expires - time.time()))
    caching = "private, no-cache" if stored.version else f"private, immutable, max-age={left}"
    headers = {"etag": etag(stored), "cache-control": caching}
    if not stored.version:  # RFC 9842: browsers compress what they pull with it
        headers["use-as-dictionary"] = _DICTIONARY
    if stored.parents:
        headers["link"] = ", ".join(f'</contexts/{each}>; rel="up"' for each in stored.parents)
    known = listed(request, "if-none-match")
    if known is not None and (known.strip() == "*" or etag(stored) in (each.strip() for each in known.split(","))):
        return Response(status_code=304, headers=headers)
    return answer(stored.content, stored.media_type, 200, headers)


@router.delete(
    "/{context}",
    status_code=204,
    summary="Delete a context or a document",
    responses=answers(NotFoundError, ConflictError),
)
async def delete_context(service: TheService, caller: TheCaller, context: Id) -> Response:
    await asyncio.wrap_future(service.contexts.end(context, caller))
    return Response(status_code=204)


@router.get(
    "/{context}/lease",
    summary="How long a context or document is kept",
    response_model=ContextDescription,
    responses=answers(NotFoundError),
)
async def get_lease(service: TheService, caller: TheCaller, context: Id) -> Response:
    return JSONAnswer(described(await service.in_control(service.contexts.get, context, caller)))


@router.put(
    "/{context}/lease",
    summary="Renew the lease of a context or document, and of its parents",
    description="A renewal never shortens a lease.",
    response_model=ContextDescription,
    responses=answers(NotFoundError),
)
async def put_lease(service: TheService, caller: TheCaller, context: Id, lease: Annotated[Lease, Query()]) -> Response:
    return JSONAnswer(described(await asyncio.wrap_future(service.contexts.renew(context, caller, lease.seconds))))


def described(stored: Stored, size: int | None = None) -> dict[str, Any]:
    return {
        "id": stored.id,
        "type": stored.media_type,
        "bytes": len(stored.content) if size is None else size,
        "version": stored.version,
        "created": round(stored.created, 3),
        "expires": round(stored.expires, 3),
        "parents": list(stored.parents),
    }


def etag(stored: Stored) -> str:
    return f'"{stored.version or stored.id}"'


def _type(request: Request) -> str:
    kind = content_type(request) or _OCTETS
    if len(kind) > 200 or not (kind.isascii() and kind.isprintable()):
        raise ParameterError("The Content-Type is not a media type.")
    return kind


def _parents(text: str | None) -> list[str]:
    parents = [each.strip() for each in text.split(",")] if text else []
    if len(parents) > MOST_PARENTS or not all(map(SHA256.fullmatch, parents)):
        raise ParameterError(f"'parents' must be at most {MOST_PARENTS} ids of contexts, separated by commas.")
    return parents


def _versions(if_match: str | None) -> set[int] | None:
    """Those that If-Match names; None: any."""
    if if_match is None:
        raise PreconditionRequiredError(
            "Replacing a document needs If-Match, which says what version it replaces.",
            hint="Send If-Match with the ETag of that version, or *.",
        )
    if if_match.strip() == "*":
        return None
    tags = (each.strip().strip('"') for each in if_match.split(","))
    return {int(each) for each in tags if each.isascii() and each.isdigit() and len(each) < 10}
