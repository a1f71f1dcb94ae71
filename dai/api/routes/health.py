"""Health, metrics, schemas and the description of the API itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import Response

import dai
from dai.api.dependencies import Accept, TheAccess, TheCaller, TheService
from dai.api.problems import answers
from dai.api.requests.negotiation import DOCUMENT, best
from dai.api.requests.parameters import Text
from dai.api.requests.route import Route
from dai.api.responses import JSONAnswer, answer
from dai.errors import DaiError, DeniedError, NotFoundError
from dai.perform.parser import DIALECTS, xsd
from dai.perform.xsd import fixed
from dai.security.policies import check_metrics

router = APIRouter(route_class=Route, tags=["operations"])
METRICS = "text/plain; version=0.0.4; charset=utf-8"


@router.get(
    "/",
    summary="The service, as a page or as JSON",
    response_class=Response,
    responses=answers(ok={200: {"content": {"application/json": {}, "text/html": {}}}}),
)
async def get_service(accept: Accept, access: TheAccess) -> Response:
    """Callers without any rights may see this, so it names no resource."""
    access.quiet = True
    if best(accept, ["application/json", "text/html"]) != "text/html":
        return JSONAnswer(
            {"service": TITLE, "version": dai.__version__, "links": {name: url for name, url, _ in _LINKS}}
        )
    rows = "".join(f'<li><a href="{url}">{name}</a>: {about}</li>\n' for name, url, about in _LINKS)
    page = (
        f"<!doctype html>\n<html lang=en>\n<meta charset=utf-8>\n<title>{TITLE}</title>\n<h1>{TITLE}</h1>\n"
        f"<p>Version {dai.__version__}. SQL over HTTP in front of databases: "
        f"<code>GET /resources/NAME/query?sql=select 1&amp;limit=100</code>, or in Python "
        f"<code>dai.connect(&quot;this address/NAME&quot;)</code>.</p>\n<ul>\n{rows}</ul>\n"
    )
    return answer(page.encode(), "text/html; charset=utf-8", headers={"Vary": "Accept"})


TITLE = "dai data service"
_LINKS = (
    ("resources", "/resources", "the databases, and what can be asked of them"),
    ("docs", "/docs", "every call, to try"),
    ("openapi", "/openapi.json", "the same for programs"),
    ("jobs", "/jobs", "work that goes on by itself"),
    ("schemas", "/schemas", "the XML schemas"),
    ("health", "/health", "whether the service is ready"),
)


@router.get("/health/live", summary="The process answers", responses=answers())
async def get_live(access: TheAccess) -> dict[str, str]:
    access.quiet = True
    return {"status": "live"}


async def _outcome(check: Awaitable[None]) -> str:
    try:
        await check
    except DaiError as error:
        return error.code
    return "ok"


@router.get(
    "/health",
    summary="The same as /health/ready",
    responses=answers(ok={503: {"description": "Not ready", "content": {"application/json": {}}}}),
    name="get_health",
)
@router.get(
    "/health/ready",
    summary="The state database and at least one resource answer",
    responses=answers(ok={503: {"description": "Not ready", "content": {"application/json": {}}}}),
)
async def get_ready(service: TheService, access: TheAccess) -> JSONAnswer:
    """A resource that is away does not make the service unready for the others. Nobody is asked who they are here, so
    where callers must say it the names of the resources are not told."""
    access.quiet = True
    parts = {
        "state": service.check_state(),
        **{f"resource {n}": service.check(r) for n, r in service.resources.items()},
    }
    outcomes = await asyncio.gather(*(_outcome(check) for check in parts.values()))
    checks = dict(zip(parts, outcomes, strict=True))
    resources = [value for name, value in checks.items() if name != "state"]
    ready = checks["state"] == "ok" and (not resources or "ok" in resources)
    shown = {"state": checks["state"]} if service.identification.asks else checks
    if service.stuck:
        shown["statements"] = "stuck"
    return JSONAnswer({"status": "ready" if ready else "not ready", "checks": shown}, 200 if ready else 503)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses=answers(DeniedError, ok={200: {"content": {"text/plain": {}}}}),
)
async def get_metrics(service: TheService, caller: TheCaller, access: TheAccess) -> Response:
    """Its labels name all resources: where callers are identified, for administrators and for those whom `metrics` of
    `[identity]` names."""
    access.quiet = True
    check_metrics(service.config.identity, caller)
    return answer(service.metrics.text(await service.gauges()), METRICS)


@cache
def _schemas() -> dict[str, bytes]:
    """By file name: those of requests, written from the installed activities, and those of what is answered."""
    names = ("perform.xsd", "perform-2005-10.xsd", "perform-preview.xsd")
    return {name: xsd(dialect) for name, dialect in zip(names, DIALECTS, strict=True)} | fixed()


@router.get("/schemas", summary="The XML schemas of requests and answers", responses=answers())
async def list_schemas() -> dict[str, list[str]]:
    return {"schemas": [f"/schemas/{name}" for name in _schemas()]}


@router.get(
    "/schemas/{name}",
    summary="One schema",
    response_class=Response,
    responses=answers(NotFoundError, ok={200: {"content": {DOCUMENT: {}}}}),
)
async def get_schema_file(name: Text) -> Response:
    schema = _schemas().get(name)
    if schema is None:
        raise NotFoundError(f"There is no schema {name!r}.", hint=f"Known: {', '.join(_schemas())}.")
    return answer(schema, DOCUMENT)


@router.get("/openapi.json", summary="This description", responses=answers())
async def get_openapi(request: Request) -> dict[str, Any]:
    description: dict[str, Any] = request.app.openapi()
    return description


@router.get(
    "/docs",
    summary="This description as a page",
    response_class=Response,
    responses=answers(ok={200: {"content": {"text/html": {}}}}),
)
async def get_docs() -> Response:
    return get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="dai data service",
        swagger_js_url="/docs/swagger-ui-bundle.js",
        swagger_css_url="/docs/swagger-ui.css",
        swagger_favicon_url="/docs/favicon.png",
    )


_PAGE_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}


@cache
def _page_file(name: str) -> bytes:
    """Swagger UI as the package fastapi-offline carries it: the page works without any other host."""
    return files("fastapi_offline").joinpath("static", name).read_bytes()


@router.get(
    "/docs/{name}",
    summary="The scripts and styles of that page",
    response_class=Response,
    responses=answers(NotFoundError, ok={200: {"content": {"*/*": {}}}}),
)
async def get_docs_file(name: Text) -> Response:
    if name not in _PAGE_FILES:
        raise NotFoundError(f"The description has no file {name!r}.", hint="GET /docs is its page.")
    return answer(_page_file(name), _PAGE_FILES[name], headers={"Cache-Control": "max-age=86400"})
