"""``/sessions``: create, describe and end sessions. ``streams`` has the blocks that go through them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from dai.api.blocks.framing import has_context, published
from dai.api.dependencies import TheBody, TheCaller, TheService
from dai.api.problems import answers, header
from dai.api.requests.body import JSON, takes
from dai.api.requests.parameters import Asked, Text, members
from dai.api.requests.route import PullRoute, Route
from dai.api.responses import JSONAnswer
from dai.api.service import Service
from dai.errors import NotFoundError, QuotaError, SlowRequestError, TooLargeError, UnsupportedMediaTypeError
from dai.formats.frames import context_of
from dai.service.sessions import Session

router = APIRouter(route_class=Route, prefix="/sessions", tags=["sessions"])
frequent = APIRouter(route_class=PullRoute, prefix="/sessions", tags=["sessions"])


class Attributes(Asked, strict=True):
    attributes: Annotated[
        dict[str, Any],
        Field(default_factory=dict, description="what clients keep in the session; null removes an attribute"),
    ]


class NewSession(Attributes, strict=True):
    timeout: Annotated[float, Field(gt=0, le=86400, description="seconds")] | None = None


class SessionDescription(BaseModel):
    """A session."""

    model_config = ConfigDict(extra="allow")

    id: str
    timeout: float


@router.post(
    "",
    status_code=201,
    summary="Create a session",
    response_model=SessionDescription,
    responses=answers(
        *(TooLargeError, UnsupportedMediaTypeError, SlowRequestError, QuotaError),
        ok={201: {"headers": {"Location": header("the session")}}},
    ),
    openapi_extra=takes({JSON: NewSession.model_json_schema()}, required=False),
)
async def post_session(service: TheService, caller: TheCaller, body: TheBody) -> Response:
    options = members(NewSession, await body.read() or b"{}")
    session = service.sessions.create(options.timeout, options.attributes, caller.name or None)
    return JSONAnswer(described(session), 201, {"Location": f"/sessions/{session.id}"})


@router.get(
    "/{session}",
    summary="A session and its streams",
    response_model=SessionDescription,
    responses=answers(NotFoundError),
)
async def get_session(service: TheService, caller: TheCaller, session: Text) -> Response:
    opened = service.sessions.get(session, caller)
    outputs = {name: mailbox for direction, name, mailbox in opened.streams() if direction == "output"}
    # whoever learns of a context here finds it in the store
    contexts = {
        name: context_of(mailbox.static)
        for name, mailbox in outputs.items()
        if has_context(mailbox) and await published(service, opened, mailbox)
    }
    description = described(opened)
    for stream in description["streams"]:
        if stream["direction"] == "output" and stream["name"] in contexts:
            stream["context"] = contexts[stream["name"]]
    return JSONAnswer(description)


@router.patch(
    "/{session}",
    summary="Set attributes of a session",
    response_model=SessionDescription,
    responses=answers(*(NotFoundError, TooLargeError, UnsupportedMediaTypeError, SlowRequestError)),
    openapi_extra=takes({JSON: Attributes.model_json_schema()}),
)
async def patch_session(service: TheService, caller: TheCaller, session: Text, body: TheBody) -> Response:
    opened = service.sessions.get(session, caller)
    opened.change(members(Attributes, await body.read()).attributes)
    return JSONAnswer(described(opened))


@frequent.delete(
    "/{session}",
    status_code=204,
    summary="End a session and stop what runs in it",
    responses=answers(NotFoundError),
)
async def delete_session(request: Request, session: Text, options: Annotated[Asked, Query()]) -> Response:
    service: Service = request.app.state.service
    ended = service.sessions.get(session, request.state.access.caller)
    await service.in_control(service.sessions.end, ended)
    return Response(status_code=204)


def described(session: Session) -> dict[str, Any]:
    streams = []
    for direction, name, mailbox in session.streams():
        blocks, size = mailbox.held
        streams.append(
            {
                "name": name,
                "direction": direction,
                "next": mailbox.expected,
                "blocks": blocks,
                "bytes": size,
                "ended": mailbox.ended,
                "forms": mailbox.forms,
            }
        )
    return {
        "id": session.id,
        "explicit": session.explicit,
        "timeout": session.timeout,
        "idle": round(session.idle, 3),
        "requests": session.requests,
        "attributes": session.attributes,
        "frames": True,  # blocks may be pushed in frames
        "streams": streams,
    }
