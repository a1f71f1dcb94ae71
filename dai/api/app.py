"""The service as a FastAPI application."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.middleware.asyncexitstack import AsyncExitStackMiddleware
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

import dai
from dai.api import problems as problem_documents
from dai.api.monitoring.access import AccessMiddleware
from dai.api.problems import Problem
from dai.api.requests.origins import own_names
from dai.api.requests.route import PullRoute, PullsFirst, Route
from dai.api.routes import (
    contexts,
    feeds,
    health,
    jobs,
    perform,
    problems,
    queries,
    resources,
    sessions,
    streams,
    wsctx,
)
from dai.api.routes.registry import changes, dcat, entries, sparql, uddi, webhooks
from dai.api.routes.replicas import attributes, index, mappings
from dai.api.service import Service

ROUTERS = (
    streams.pulls,
    queries.frequent,
    sessions.frequent,
    feeds.changing,
    *(
        each.router
        for each in (
            perform,
            queries,
            streams,
            sessions,
            wsctx,
            contexts,
            feeds,
            resources,
            jobs,
            mappings,
            attributes,
            index,
            entries,
            sparql,
            changes,
            uddi,
            webhooks,
            dcat,
            problems,
            health,
        )
    ),
)
"""The most frequent requests first: their routes are tried in this order."""


class _Application(FastAPI):
    def build_middleware_stack(self) -> ASGIApp:
        """Without what FastAPI wraps around that: ``AccessMiddleware`` catches what fails, ``Body`` bounds bodies."""
        app: ASGIApp = ExceptionMiddleware(AsyncExitStackMiddleware(self.router), handlers=self.exception_handlers)
        app = PullsFirst(app, [each for each in self.router.routes if isinstance(each, PullRoute)])
        service: Service | None = self.state.service
        if service is None:
            return app
        return AccessMiddleware(
            app,
            names=self.state.names,
            origins=self.state.origins,
            metrics=service.metrics,
            problems=service.problems,
            identification=service.identification,
            quotas=service.quotas,
            audit=service.audit,
            document_bytes=service.config.limits.document_bytes,
            tracing=service.tracing,
        )

    def openapi(self) -> dict[str, Any]:
        """Without what FastAPI documents but our exception handlers never answer."""
        if self.openapi_schema is None:
            described = super().openapi()
            schemas = described.setdefault("components", {}).setdefault("schemas", {})
            for operation in (each for path in described["paths"].values() for each in path.values()):
                refused = operation["responses"].get("422", {}).get("content", {})
                if "application/json" in refused:
                    del operation["responses"]["422"]
            for each in ("HTTPValidationError", "ValidationError"):
                schemas.pop(each, None)
            schemas["Problem"] = Problem.model_json_schema()
            self.openapi_schema = described
        return self.openapi_schema


@cache
def _routes() -> tuple[BaseRoute, ...]:
    """Those of all routers, which each application shares; what can be read, HEAD asks about."""
    routes = [route for router in ROUTERS for route in router.routes]
    heads = APIRouter(route_class=Route)
    for route in routes:
        if isinstance(route, Route) and route.reads:
            heads.add_api_route(
                route.path, route.endpoint, methods=["HEAD"], include_in_schema=False, response_model=None
            )
    return (*routes, *heads.routes)


def create_app(service: Service | None = None) -> FastAPI:
    """The application of a service, which it closes when the server stops; without one it only describes itself."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.get_running_loop().run_in_executor(None, app.state.service.close)

    app = _Application(
        title="dai data service",
        version=dai.__version__,
        description="Perform documents and queries over data resources, streamed back in blocks.",
        lifespan=lifespan,
        redirect_slashes=False,
        openapi_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.router.route_class = Route
    # a router that is included takes each of its requests through two more searches
    app.router.routes.extend(_routes())
    app.state.service = service
    problem_documents.install(app)
    if service is not None:
        app.state.names = own_names(service.config.service)
        app.state.origins = frozenset(service.config.service.origins)
    return app
