"""Errors as answers: RFC 9457 problem documents, and what the OpenAPI document says of them."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import iter_route_contexts
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.responses import Response

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
    RangeError,
    SlowRequestError,
)
from dai.plugins import nearest

PROBLEM = "application/problem+json"
ALWAYS: tuple[type[DaiError], ...] = (
    ParameterError,
    DeniedError,
    HeadTooLargeError,
    InternalError,
    DatabaseUnavailableError,
    BusyError,
)
"""What any operation may answer."""


class Problem(BaseModel):
    """RFC 9457"""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="stable error code")
    title: str
    status: int
    detail: str = ""
    hint: str = Field("", description="what to try")
    instance: str = Field(description="correlation id; also in the log of the service")


def answers(*problems: type[DaiError], media_type: str = PROBLEM) -> dict[int | str, dict[str, Any]]:
    """For ``responses=`` of a route: the statuses of these errors and of ALWAYS."""
    by_status: dict[int, list[type[DaiError]]] = {}
    for problem in dict.fromkeys((*problems, *ALWAYS)):
        by_status.setdefault(problem.status, []).append(problem)
    return {
        status: {
            "description": "; ".join(dict.fromkeys(f"{each.title} ({each.code})" for each in classes)),
            "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}, media_type: {}},
        }
        for status, classes in sorted(by_status.items())
    }


def response(error: DaiError, id: str) -> Response:
    """The problem document; ``id``: of the request."""
    body = orjson.dumps(error.problem(id), default=str)
    return Response(body, error.status, headers_of(error), PROBLEM)


def headers_of(error: DaiError) -> dict[str, str]:
    """What an answer with this error says in its head."""
    match error:
        case BusyError() | BackPressureError():
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
        return response(error, request.state.access.id)

    @app.exception_handler(RequestValidationError)
    async def misfit(request: Request, error: RequestValidationError) -> Response:
        return await refused(request, parameter_error(error.errors()[0], _names(request)))

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> Response:
        if error.status_code != 405:
            return await refused(
                request,
                NotFoundError("There is nothing at this address.", hint="GET /openapi.json lists all addresses."),
            )
        allowed = ", ".join(sorted(_methods(request)))
        return await refused(
            request,
            MethodError(f"{request.method[:20]} is not possible here.", hint=f"Possible: {allowed}.", allow=allowed),
        )


def _methods(request: Request) -> set[str]:
    """Those of the address."""
    routes = [each for each in iter_route_contexts(request.app.routes) if each.path_regex.match(request.scope["path"])]
    return {method for each in routes for method in each.methods or ()}


def _names(request: Request) -> list[str]:
    """Of the query parameters that the address takes."""
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    return [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]


def parameter_error(wrong: dict[str, Any], names: list[str]) -> ParameterError:
    """Of an error of pydantic: about a value of an address or a body that takes ``names``."""
    name = ".".join(str(each) for each in wrong["loc"] if each not in ("query", "path", "body"))
    match wrong["type"]:
        case "missing":
            return ParameterError(f"{name!r} is missing.")
        case "extra_forbidden":
            hint = nearest(name, names) if names else "It takes none."
            return ParameterError(f"{name!r} is unknown here.", hint=hint)
    return ParameterError(f"{name!r} cannot be {wrong['input']!r:.100}.", hint=f"Expected: {wrong['msg']}.")
