"""Errors as answers: RFC 9457 problem documents, and their description in OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

from dai.api.requests.head import listed
from dai.api.requests.negotiation import accepts_xml
from dai.api.requests.parameters import misfit, names
from dai.api.responses import answer
from dai.errors import (
    BackPressureError,
    BusyError,
    DaiError,
    DatabaseUnavailableError,
    DeniedError,
    HeadTooLargeError,
    InternalError,
    MethodError,
    NotFoundError,
    ParameterError,
    QuotaError,
    RangeError,
    SlowRequestError,
    UnauthenticatedError,
)
from dai.perform.statuses import MEDIA_TYPE, failure

PROBLEM = "application/problem+json"
_WORK = ("perform", "query")
"""Addresses below that of a resource, which takes no work itself."""
ALWAYS: tuple[type[DaiError], ...] = (
    ParameterError,
    UnauthenticatedError,
    DeniedError,
    HeadTooLargeError,
    InternalError,
    DatabaseUnavailableError,
    BusyError,
)
"""Errors that any operation may answer with."""


_SCHEMA = {"schema": {"$ref": "#/components/schemas/Problem"}}


class Problem(BaseModel):
    """RFC 9457"""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="stable error code")
    title: str
    status: int
    detail: str = ""
    hint: str = Field("", description="what to try")
    instance: str = Field(description="correlation id; also in the log of the service")


def answers(
    *problems: type[DaiError],
    ok: Mapping[int, Mapping[str, Any]] | None = None,
    media_types: Sequence[str] = (PROBLEM,),
) -> dict[int | str, dict[str, Any]]:
    """For ``responses=`` of a route: the answer of success (``ok``), and the statuses of these errors and of ALWAYS."""
    documented: dict[int | str, dict[str, Any]] = {status: dict(success) for status, success in (ok or {}).items()}
    for each in dict.fromkeys((*problems, *ALWAYS)):
        known = documented.setdefault(each.status, {"description": ""})
        titles = [*filter(None, known["description"].split("; ")), f"{each.title} ({each.code})"]
        content = {media_type: _SCHEMA if media_type == PROBLEM else {} for media_type in media_types}
        known.update(description="; ".join(titles), content=content | known.get("content", {}))
    for about in documented.values():
        about["headers"] = {"X-Request-ID": header("correlation id"), **about.get("headers", {})}
    return documented


def header(about: str) -> dict[str, Any]:
    """Of an answer in the OpenAPI document."""
    return {"description": about, "schema": {"type": "string"}}


def response(error: DaiError, request: Request) -> Response:
    """The problem document. Where an operation has set ``request.state.dialect``, XML that is asked for is a response
    document."""
    id, dialect = request.state.access.id, getattr(request.state, "dialect", None)
    if dialect is not None and accepts_xml(listed(request, "accept")):
        return answer(failure(error, dialect, id), MEDIA_TYPE, error.status, headers_of(error))
    body = orjson.dumps(error.problem(id), default=str)
    return Response(body, error.status, headers_of(error), PROBLEM)


def headers_of(error: DaiError) -> dict[str, str]:
    """The headers of an answer with this error."""
    match error:
        case UnauthenticatedError():
            return {"WWW-Authenticate": 'Bearer realm="dai"'}
        case BusyError() | BackPressureError() | QuotaError():
            return {"Retry-After": str(error.retry_after)}
        case SlowRequestError():
            return {"Connection": "close"}
        case MethodError():
            return {"Allow": str(error.extra["allow"])}
        case RangeError():
            return {"Content-Range": f"bytes */{error.extra['length']}"}
    return {}


def install(app: FastAPI) -> None:
    """The exception handlers."""

    @app.exception_handler(DaiError)
    async def refused(request: Request, error: DaiError) -> Response:
        request.state.access.error = error
        return response(error, request)

    @app.exception_handler(RequestValidationError)
    async def misfitting(request: Request, error: RequestValidationError) -> Response:
        return await refused(request, misfit(dict(error.errors()[0]), _names(request)))

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> Response:
        if error.status_code != 405:
            return await refused(
                request,
                NotFoundError(
                    "There is nothing at this address.",
                    hint="A resource is at /resources/NAME; GET /openapi.json lists all addresses.",
                ),
            )
        path = request.scope["path"]
        allowed = ", ".join(sorted(_methods(request, path)))
        below = [each for name in _WORK if request.method in _methods(request, each := f"{path}/{name}")]
        hint = f"Possible: {allowed}." + (f" {request.method} goes to {' or '.join(below)}." if below else "")
        return await refused(
            request, MethodError(f"{request.method[:20]} is not possible here.", hint=hint, allow=allowed)
        )


def _methods(request: Request, path: str) -> set[str]:
    """Those of the address."""
    routes = [each for each in iter_route_contexts(request.app.routes) if each.path_regex.match(path)]
    return {method for each in routes for method in each.methods or ()}


def _names(request: Request) -> list[str]:
    """Of the query parameters that the address takes."""
    models = [each.field_info.annotation for each in request.scope["route"].dependant.query_params]
    return [name for model in models for name in names(model)]
