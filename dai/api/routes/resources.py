"""``/resources``: what there is, and its schema."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from dai.api.dependencies import NamedResource, TheAccess, TheCaller, TheService
from dai.api.problems import answers, header
from dai.api.requests.head import listed
from dai.api.requests.parameters import Asked, Text, Unsaid
from dai.api.requests.route import Route
from dai.api.responses import JSONAnswer
from dai.api.service import ALIVE_SECONDS, Service
from dai.errors import BusyError, DatabaseUnavailableError, NotFoundError, StatementError
from dai.service.resources import Resource

router = APIRouter(route_class=Route, prefix="/resources", tags=["resources"])


class ResourceDescription(BaseModel):
    """A resource."""

    model_config = ConfigDict(extra="allow")

    name: str
    kind: str
    description: str | None = None
    dialect: str | Unsaid = None
    product: str | None = Field(None, description="null while the database cannot be reached")
    available: bool | Unsaid = None
    tables: bool | Unsaid = Field(None, description="whether a query may have query-scoped tables")
    activities: list[str] | Unsaid = None
    links: dict[str, str]


class ResourceList(BaseModel):
    resources: list[ResourceDescription]


class Column(BaseModel):
    """What is null the database does not know."""

    distinct: float | None
    null_fraction: float | None
    low: str | None
    high: str | None
    width: float | None
    correlation: float | None
    common: list[tuple[str, float]]


class Statistics(BaseModel):
    resource: str
    table: str
    rows: int | None
    size_bytes: int | None
    columns: dict[str, Column]


class Tables(Asked):
    tables: Text = Field("%", description="an SQL LIKE pattern for table names")


class Table(Asked):
    table: Text = Field(description="a table's name, or schema.name")


def _linked(resource: Resource, answers: bool = True) -> dict[str, Any]:
    base = f"/resources/{resource.name}"
    links = {"self": base, **{each: f"{base}/{each}" for each in ("schema", "statistics", "perform", "query")}}
    return {**resource.properties(answers), "links": links}


async def _listed(service: Service, resource: Resource) -> dict[str, Any]:
    """A database that does not answer in time keeps nobody from what is known of the other resources."""
    try:
        async with asyncio.timeout(ALIVE_SECONDS):
            return await service.ask(resource, _linked, resource)
    except (TimeoutError, BusyError):
        return _linked(resource, answers=False)


@router.get("", summary="The data resources", response_model=ResourceList, responses=answers())
async def list_resources(service: TheService, caller: TheCaller) -> Response:
    """Those that the caller may use."""
    asked = [_listed(service, each) for each in service.resources.seen_by(caller)]
    return JSONAnswer({"resources": await asyncio.gather(*asked)})


@router.get(
    "/{resource}",
    summary="One resource: its product, the activities it offers, links",
    response_model=ResourceDescription,
    responses=answers(NotFoundError),
)
async def get_resource(service: TheService, resource: NamedResource) -> Response:
    return JSONAnswer(await service.ask(resource, _linked, resource))


@router.get(
    "/{resource}/alive",
    summary="The database of the resource answers",
    description="Its process does, that is, however much it has to do.",
    responses=answers(NotFoundError, DatabaseUnavailableError),
)
async def get_alive(service: TheService, resource: NamedResource, access: TheAccess) -> dict[str, str]:
    access.quiet = True
    if not await service.alive(resource):
        raise DatabaseUnavailableError(f"The database of {resource.name} does not answer.")
    return {"status": "live"}


@router.get(
    "/{resource}/schema",
    summary="Tables, columns, keys and row estimates",
    responses=answers(
        NotFoundError,
        StatementError,
        ok={
            200: {"headers": {"ETag": header("changes with the schema")}},
            304: {"description": "The schema has the ETag that was sent in If-None-Match"},
        },
    ),
)
async def get_schema(
    request: Request, service: TheService, resource: NamedResource, options: Annotated[Tables, Query()]
) -> Response:
    fresh = "no-cache" in request.headers.get("cache-control", "")
    schema = None if fresh else resource.known_schema(options.tables)
    if schema is None:
        schema = await service.ask(resource, resource.schema, options.tables, fresh)
    headers = {"ETag": f'"{schema.etag}"', "Cache-Control": "max-age=30"}
    if headers["ETag"] in (listed(request, "if-none-match") or ""):
        return Response(status_code=304, headers=headers)
    return JSONAnswer({"resource": resource.name, "tables": schema.tables}, headers=headers)


@router.get(
    "/{resource}/statistics",
    summary="The database's statistics of a table, without reading all of it",
    description="Estimates of rows and bytes, and of columns: different values, fraction of NULLs, smallest and "
    "largest value as text, bytes, the correlation of values with their places, values that two in a hundred rows "
    "have. null: the database does not know.",
    response_model=Statistics,
    responses=answers(NotFoundError, StatementError),
)
async def get_statistics(
    service: TheService, caller: TheCaller, resource: NamedResource, options: Annotated[Table, Query()]
) -> Response:
    resource.policy.check("statistics", caller, "see statistics of")
    statistics = await service.ask(resource, resource.driver.statistics, options.table)
    return JSONAnswer({"resource": resource.name, "table": options.table, **dataclasses.asdict(statistics)})
