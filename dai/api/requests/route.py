"""The routes of the API, which check every request before FastAPI does."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

from dai.api.requests.body import content_type
from dai.api.requests.origins import check_fetch, check_page
from dai.api.requests.parameters import misfit, names, pairs, unknown
from dai.errors import ParameterError, UnsupportedMediaTypeError
from dai.formats.compression import IDENTITY


class Route(APIRoute):
    """Refuses what FastAPI accepts: a parameter that is given twice or is unknown, a body of a media type that is not
    declared (``body.takes``), and changes and fetches by a page of another origin."""

    always_changes = False
    """Whether a GET changes something, too."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options | {"generate_unique_id_function": lambda route: route.name})

    @property
    def reads(self) -> bool:
        return (self.methods or set()) <= {"GET", "HEAD"} and not self.always_changes

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        reads, parameters = self.reads, bool(self.dependant.query_params)
        body = (self.openapi_extra or {}).get("requestBody", {}).get("content", {})

        async def checked(request: Request) -> Response:
            headers, state = dict(request.headers.raw), request.app.state
            if reads:
                check_fetch(headers, state.origins)
            else:
                check_page(headers, state.names, state.origins)
            if body:
                _check_body(request, list(body))
            if (names := _query(request)) and not parameters:
                raise unknown(next(iter(names)), [])
            return await handle(request)

        return checked


class ChangingRoute(Route):
    always_changes = True


class PullRoute(ChangingRoute):
    """For a request that comes a thousand times a second: declared as any other, but its endpoint takes the request,
    the parameters of the path and one model of query parameters, and no dependency, so that it does without FastAPI's
    search for them, its router and its exception handlers (decision 17 has the figures). It raises DaiErrors only."""

    dialect: Any = None
    """Media types for which failures are response documents: XML."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        handle = self.get_route_handler()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            response = await handle(Request(scope, receive, send))
            await response(scope, receive, send)

        self.app = app

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        if self.dependant.dependencies:
            raise TypeError(f"{self.path} has dependencies, which a PullRoute does not look up")
        path, (query,) = self.dependant.path_params, self.dependant.query_params
        body = list((self.openapi_extra or {}).get("requestBody", {}).get("content", {}))
        usual, known = query.validate({}, {}, loc=("query",)), names(cast(type[BaseModel], query.field_info.annotation))

        async def handle(request: Request) -> Response:
            check_page(dict(request.headers.raw), request.app.state.names, request.app.state.origins)
            if body:
                _check_body(request, body)
            request.state.dialect = self.dialect
            values: dict[str, Any] = {}
            for field in path:
                place = ("path", field.alias)
                values[field.name], errors = field.validate(request.path_params[field.alias], {}, loc=place)
                if errors:
                    raise misfit(errors[0], known)
            asked = _query(request)
            values[query.name], errors = query.validate(asked, {}, loc=("query",)) if asked else usual
            if errors:
                raise misfit(errors[0], known)
            response: Response = await self.endpoint(request, **values)
            return response

        return handle


class PullsFirst:
    """Sends the requests of a ``PullRoute`` past the router, the exit stack and the exception handlers, which they do
    not need: ``AccessMiddleware`` answers what they raise. All others, and other methods, go to ``app``."""

    def __init__(self, app: ASGIApp, routes: list[PullRoute]) -> None:
        self.app, self.routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for route in self.routes:
                match, matched = route.matches(scope)
                if match is Match.FULL:
                    scope.update(matched)
                    await route.app(scope, receive, send)
                    return
        await self.app(scope, receive, send)


def _query(request: Request) -> dict[str, str]:
    """Values by their names."""
    if not (text := request.scope["query_string"]):
        return {}
    try:
        listed = pairs(text)
    except ValueError as error:
        raise ParameterError("The query string of the address cannot be read.") from error
    values: dict[str, str] = {}
    for name, value in listed:
        if name in values:
            raise ParameterError(f"The parameter {name!r} is given twice.")
        values[name] = value
    return values


def _check_body(request: Request, media_types: list[str]) -> None:
    """A body has one of the media types, or one with such a suffix (RFC 6839)."""
    headers = request.headers
    if "transfer-encoding" not in headers and headers.get("content-length", "0") == "0":
        return
    if headers.get("content-encoding", IDENTITY).strip().lower() != IDENTITY:
        raise UnsupportedMediaTypeError(
            "The body has a Content-Encoding; the service takes bodies as they are.", hint="Send it without one."
        )
    kind = content_type(request)
    suffix = f"application/{kind.rpartition('+')[2]}" if "+" in kind else kind
    if {"*/*", kind, suffix}.isdisjoint(media_types):
        reason = f"is {kind[:100]}" if kind else "has no Content-Type"
        raise UnsupportedMediaTypeError(f"The body {reason}.", hint=f"Send {' or '.join(media_types)}.")
