"""``/resources``: what there is, and its schema."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

from dai.api.calls.call import Call
from dai.api.calls.operations import Answer, Operation, Parameter
from dai.api.calls.replies import JSON, Reply, json_reply
from dai.api.service import ALIVE_SECONDS, Service
from dai.errors import BusyError, DatabaseUnavailableError, NotFoundError, StatementError
from dai.service.resources import Resource

_OBJECT = {"type": "object"}
_ESTIMATE = {"type": ["number", "null"]}
_BOUND = {"type": ["string", "null"]}
_STATISTICS = {
    "type": "object",
    "required": ["resource", "table", "rows", "size_bytes", "columns"],
    "properties": {
        "resource": {"type": "string"},
        "table": {"type": "string"},
        "rows": {"type": ["integer", "null"]},
        "size_bytes": {"type": ["integer", "null"]},
        "columns": {
            "type": "object",
            "additionalProperties": {
                "type": "object",
                "properties": {
                    "distinct": _ESTIMATE,
                    "null_fraction": _ESTIMATE,
                    "low": _BOUND,
                    "high": _BOUND,
                    "width": _ESTIMATE,
                },
            },
        },
    },
}
_RESOURCE = {
    "type": "object",
    "required": ["name", "kind", "links"],
    "properties": {
        "name": {"type": "string"},
        "kind": {"type": "string"},
        "description": {"type": ["string", "null"]},
        "dialect": {"type": "string"},
        "product": {"type": ["string", "null"], "description": "null while the database cannot be reached"},
        "available": {"type": "boolean"},
        "tables": {"type": "boolean", "description": "whether a query may bring tables along"},
        "activities": {"type": "array", "items": {"type": "string"}},
        "links": _OBJECT,
    },
}


def _linked(resource: Resource, answers: bool = True) -> dict[str, Any]:
    base = f"/resources/{resource.name}"
    links = {"self": base, **{each: f"{base}/{each}" for each in ("schema", "statistics", "perform", "query")}}
    return {**resource.properties(answers), "links": links}


async def _listed(service: Service, resource: Resource) -> dict[str, Any]:
    """A database that does not answer in time keeps nobody from what is known of the other resources."""
    try:
        async with asyncio.timeout(ALIVE_SECONDS):
            return await service.asked(resource, _linked, resource)
    except (TimeoutError, BusyError):
        return _linked(resource, answers=False)


async def list_resources(call: Call) -> Reply:
    service = call.service
    return json_reply(
        {"resources": await asyncio.gather(*(_listed(service, each) for each in service.resources.values()))}
    )


async def get_resource(call: Call) -> Reply:
    resource = call.service.resources.named(call.path["resource"])
    return json_reply(await call.service.asked(resource, _linked, resource))


async def get_alive(call: Call) -> Reply:
    resource = call.service.resources.named(call.path["resource"])
    if not await call.service.alive(resource):
        raise DatabaseUnavailableError(f"The database of {resource.name} does not answer.")
    return json_reply({"status": "live"})


async def get_schema(call: Call) -> Reply:
    resource = call.service.resources.named(call.path["resource"])
    pattern = call.query.get("tables", "%")
    fresh = "no-cache" in (call.header(b"cache-control") or "")
    schema = None if fresh else resource.known_schema(pattern)
    if schema is None:
        schema = await call.service.asked(resource, resource.schema, pattern, fresh)
    headers = {"ETag": f'"{schema.etag}"', "Cache-Control": "max-age=30"}
    if f'"{schema.etag}"' in (call.header(b"if-none-match") or ""):
        return Reply(status=304, headers=headers)
    return json_reply({"resource": resource.name, "tables": schema.tables}, headers=headers)


async def get_statistics(call: Call) -> Reply:
    resource = call.service.resources.named(call.path["resource"])
    table = call.query["table"]
    found = await call.service.asked(resource, resource.driver.statistics, table)
    return json_reply({"resource": resource.name, "table": table, **dataclasses.asdict(found)})


OPERATIONS = (
    Operation(
        "GET",
        "/resources",
        list_resources,
        "The data resources",
        {200: Answer("All of them", {JSON: {"type": "object", "properties": {"resources": {"items": _RESOURCE}}}})},
        tag="resources",
    ),
    Operation(
        "GET",
        "/resources/{resource}",
        get_resource,
        "One resource: its product, the activities it offers, links",
        {200: Answer("The resource", {JSON: _RESOURCE})},
        problems=(NotFoundError,),
        tag="resources",
    ),
    Operation(
        "GET",
        "/resources/{resource}/alive",
        get_alive,
        "The database of the resource answers\nIts process does, that is, however much it has to do.",
        {200: Answer("It does", {JSON: {"type": "object"}})},
        problems=(NotFoundError, DatabaseUnavailableError),
        quiet=True,
        tag="resources",
    ),
    Operation(
        "GET",
        "/resources/{resource}/schema",
        get_schema,
        "Tables, columns, keys and row estimates",
        {
            200: Answer("The schema", {JSON: {"type": "object"}}, {"ETag": "changes with the schema"}),
            304: Answer("The schema has the ETag that was sent in If-None-Match"),
        },
        parameters=(Parameter("tables", "an SQL LIKE pattern for table names"),),
        problems=(NotFoundError, StatementError),
        tag="resources",
    ),
    Operation(
        "GET",
        "/resources/{resource}/statistics",
        get_statistics,
        "What the database knows of a table without reading it\nEstimates of rows and bytes, and of columns: different "
        "values, fraction of NULLs, smallest and largest value as text, bytes. null: the database does not know.",
        {200: Answer("The statistics", {JSON: _STATISTICS})},
        parameters=(Parameter("table", "a table's name, or schema.name", required=True),),
        problems=(NotFoundError, StatementError),
        tag="resources",
    ),
)
