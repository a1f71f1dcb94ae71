"""Operations: health, metrics, schemas and the description of the API itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi.openapi.docs import get_swagger_ui_html

from dai.api.calls.call import Call
from dai.api.calls.operations import Answer, Operation
from dai.api.calls.replies import JSON, Reply, json_reply
from dai.api.requests.negotiation import DOCUMENT
from dai.errors import DaiError, NotFoundError
from dai.perform.parser import DIALECTS, xsd
from dai.perform.xsd import fixed

_OBJECT = {"type": "object"}
METRICS = "text/plain; version=0.0.4; charset=utf-8"


async def get_live(call: Call) -> Reply:
    return json_reply({"status": "live"})


async def _outcome(check: Awaitable[None]) -> str:
    try:
        await check
    except DaiError as error:
        return error.code
    return "ok"


async def get_ready(call: Call) -> Reply:
    """What each part says, all asked at once; a resource that is away does not make the service unready for the
    others."""
    service = call.service
    parts = {
        "state": service.check_state(),
        **{f"resource {n}": service.check(r) for n, r in service.resources.items()},
    }
    outcomes = await asyncio.gather(*(_outcome(check) for check in parts.values()))
    checks = dict(zip(parts, outcomes, strict=True))
    resources = [value for name, value in checks.items() if name != "state"]
    ready = checks["state"] == "ok" and (not resources or "ok" in resources)
    return json_reply({"status": "ready" if ready else "not ready", "checks": checks}, 200 if ready else 503)


async def get_metrics(call: Call) -> Reply:
    return Reply(call.service.metrics.text(), METRICS)


@cache
def _schemas() -> dict[str, bytes]:
    """By file name: those of requests, written from the installed activities, and those of what is answered."""
    names = ("perform.xsd", "perform-2005-10.xsd")
    return {name: xsd(dialect) for name, dialect in zip(names, DIALECTS, strict=True)} | fixed()


async def list_schemas(call: Call) -> Reply:
    return json_reply({"schemas": [f"/schemas/{name}" for name in _schemas()]})


async def get_schema_file(call: Call) -> Reply:
    found = _schemas().get(call.path["name"])
    if found is None:
        raise NotFoundError(f"There is no schema {call.path['name']!r}.", hint=f"Known: {', '.join(_schemas())}.")
    return Reply(found, DOCUMENT)


async def get_openapi(call: Call) -> Reply:
    return json_reply(call.scope["app"].openapi())


async def get_docs(call: Call) -> Reply:
    page = get_swagger_ui_html(
        openapi_url="/openapi.json",
        title="dai data service",
        swagger_js_url="/docs/swagger-ui-bundle.js",
        swagger_css_url="/docs/swagger-ui.css",
        swagger_favicon_url="/docs/favicon.png",
    )
    return Reply(bytes(page.body), "text/html; charset=utf-8")


_PAGE_FILES = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css", "favicon.png": "image/png"}


@cache
def _page_file(name: str) -> bytes:
    """Swagger UI as the package fastapi-offline carries it: the page works without any other host."""
    return files("fastapi_offline").joinpath("static", name).read_bytes()


async def get_docs_file(call: Call) -> Reply:
    name = call.path["name"]
    if name not in _PAGE_FILES:
        raise NotFoundError(f"The description has no file {name!r}.", hint="GET /docs is its page.")
    return Reply(_page_file(name), _PAGE_FILES[name], headers={"Cache-Control": "max-age=86400"})


def _get(path: str, handler: Any, about: str, media_type: str, *, quiet: bool = False, **more: Any) -> Operation:
    schema = _OBJECT if media_type == JSON else None
    answers = {200: Answer(about, {media_type.partition(";")[0]: schema}), **more.pop("answers", {})}
    return Operation("GET", path, handler, about, answers, tag="operations", quiet=quiet, **more)


OPERATIONS = (
    _get("/health/live", get_live, "The process answers", JSON, quiet=True),
    _get(
        "/health/ready",
        get_ready,
        "The state database answers, and a resource does",
        JSON,
        quiet=True,
        answers={503: Answer("Not ready", {JSON: _OBJECT})},
    ),
    _get("/metrics", get_metrics, "Metrics for Prometheus", METRICS, quiet=True),
    _get("/schemas", list_schemas, "The XML schemas of requests and answers", JSON),
    _get("/schemas/{name}", get_schema_file, "One schema", DOCUMENT, problems=(NotFoundError,)),
    _get("/openapi.json", get_openapi, "This description", JSON),
    _get("/docs", get_docs, "This description, to read", "text/html"),
    _get("/docs/{name}", get_docs_file, "What that page is made of", "*/*", problems=(NotFoundError,)),
)
