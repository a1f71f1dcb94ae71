"""``/replicas/index``: which catalogs have a name; ``/replicas/indexes``: which indexes this catalog tells."""

from __future__ import annotations

import asyncio
from typing import Annotated

import pyarrow as pa
from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from dai.api.dependencies import TheBody
from dai.api.problems import answers
from dai.api.requests.body import takes
from dai.api.requests.parameters import WHOLE, Asked, Flag, Text, Unsaid, members
from dai.api.requests.route import Route
from dai.api.responses import JSONAnswer
from dai.api.routes.replicas.location import (
    BODY,
    MOST_BODY,
    MOST_PAGE,
    Administering,
    Offset,
    Page,
    Reading,
    Telling,
    checked,
    json_body,
    refusing,
)
from dai.errors import ConflictError, DataError, DeniedError, LimitError, NotFoundError, ParameterError
from dai.replicas.catalog import operations
from dai.replicas.catalog.operations import Index
from dai.replicas.codes import Refused
from dai.replicas.filters import Filter
from dai.replicas.names import like
from dai.replicas.replicas import ARROW, FILTER, names_of
from dai.replicas.updates import FILTERED, fitting

router = APIRouter(route_class=Route, prefix="/replicas", tags=["replicas"])
MOST_FILTER = 1 << 28
Seconds = Annotated[float, Field(gt=0, le=10_000_000, description="how long the index knows it")]


class ToldIndexes(Asked):
    url: Text
    filter: Flag = Field(False, description="send a filter of the names in their place")
    pattern: str = Field("", description="only names that fit: a regular expression, or glob: and a Unix pattern")


class Unlisted(Asked):
    url: Text
    pattern: str = ""


class Known(Asked):
    logical: Text | Unsaid = None
    pattern: Text | Unsaid = Field(None, description="with * and ?")
    offset: Offset = 0
    limit: Page = 1000


class Lasting(Asked):
    catalog: Text = Field(description="URL of the catalog")
    seconds: Seconds


class Portion(Asked):
    catalog: Text = Field(description="URL of the catalog")
    update: Annotated[str, Field(min_length=8, max_length=64, description="made up by the sender for this update")]
    expected: Annotated[int, Field(ge=0, le=2**40, description="estimated number of names in all portions"), WHOLE]
    seconds: Seconds | Unsaid = Field(None, description="with the last portion: how long the index knows them")


class Changed(Lasting):
    added: list[str]
    removed: list[str]


class Gone(Asked):
    catalog: Text


class Looked(Asked):
    names: list[str] = Field(max_length=MOST_PAGE)


@router.get(
    "/indexes",
    summary="The indexes that get the names of this catalog",
    responses=answers(NotFoundError, DeniedError),
)
async def get_indexes(here: Reading) -> Response:
    there = await here.run(here.replicas.told_indexes)
    listed = [
        {"url": each.url, "filter": bool(each.flags & FILTERED), "pattern": each.pattern,
         "updated": here.replicas.sent(each.url)[1] or None}
        for each in there
    ]  # fmt: skip
    return JSONAnswer({"indexes": listed})


@router.post(
    "/indexes",
    summary="Add an index; for administrators",
    openapi_extra=json_body(ToldIndexes),
    responses=answers(NotFoundError, DeniedError, ConflictError, *BODY),
)
async def post_index(here: Administering, body: TheBody) -> Response:
    asked = members(ToldIndexes, await body.read())
    if not here.replicas.tells(asked.url):
        raise ParameterError(
            f"{asked.url!r} is not the URL of a service.", hint="It looks like https://data.example.org."
        )
    if here.replicas.settings.url is None:
        raise ConflictError("This catalog has no name by which indexes could know it.", hint="Set url in [replicas].")
    checked(asked.url)
    refusing(fitting, asked.pattern)
    item = Index(asked.url, FILTERED if asked.filter else 0, asked.pattern)
    (code,) = await asyncio.wrap_future(here.replicas.catalog.submit(operations.add_index, [item]))
    if code:
        raise Refused(code, asked.url).error()
    here.replicas.update_now()
    return JSONAnswer({"done": 1, "refused": []})


@router.delete(
    "/indexes",
    summary="Remove an index; for administrators",
    responses=answers(NotFoundError, DeniedError),
)
async def delete_index(here: Administering, asked: Annotated[Unlisted, Query()]) -> Response:
    item = Index(asked.url, 0, asked.pattern)
    (code,) = await asyncio.wrap_future(here.replicas.catalog.submit(operations.delete_index, [item]))
    if code:
        raise Refused(code, asked.url).error()
    return JSONAnswer({"done": 1, "refused": []})


@router.post(
    "/updates",
    summary="Send all names to all indexes, soon; for administrators",
    responses=answers(NotFoundError, DeniedError),
    status_code=202,
)
async def update_now(here: Administering) -> Response:
    here.replicas.update_now()
    return JSONAnswer({}, status_code=202)


@router.get(
    "/index",
    summary="The catalogs that have a name, or names that match a pattern",
    responses=answers(NotFoundError, DeniedError, ParameterError),
)
async def get_index(here: Reading, asked: Annotated[Known, Query()]) -> Response:
    if (asked.logical is None) == (asked.pattern is None):
        raise ParameterError("Give one of 'logical' and 'pattern'.")
    index = here.replicas.index
    if asked.logical is not None:
        urls = await here.run(index.catalogs, asked.logical)
        return JSONAnswer({"names": [{"logical": asked.logical, "catalog": each} for each in urls], "complete": True})
    pairs, partial = await here.run(index.matching, like(asked.pattern or ""), asked.offset, asked.limit)
    following = asked.offset + len(pairs) if len(pairs) == asked.limit else None
    listed = [{"logical": name, "catalog": url} for name, url in pairs]
    return JSONAnswer({"names": listed, "complete": not partial, "next": following})


@router.post(
    "/index/query",
    summary="The catalogs of many names at once",
    openapi_extra=json_body(Looked),
    responses=answers(NotFoundError, DeniedError, *BODY),
)
async def query_index(here: Reading, body: TheBody) -> Response:
    asked = members(Looked, await body.read(MOST_BODY))
    there = await here.run(here.replicas.index.catalogs_of, asked.names)
    return JSONAnswer({"found": there, "missing": [each for each in asked.names if each not in there]})


@router.get(
    "/index/catalogs",
    summary="The catalogs that the index knows",
    responses=answers(NotFoundError, DeniedError),
)
async def get_catalogs(here: Reading) -> Response:
    listed = [
        {"catalog": each.url, "names": each.names, "filter": each.table is None, "updated": each.updated}
        for each in here.replicas.index.senders()
    ]
    return JSONAnswer({"catalogs": listed})


@router.post(
    "/index/names",
    summary="A portion of all names of a catalog, as an Arrow stream with a column logical",
    openapi_extra=takes({ARROW: None}),
    responses=answers(NotFoundError, DeniedError, ConflictError, LimitError, *BODY),
)
async def take_names(here: Telling, asked: Annotated[Portion, Query()], body: TheBody) -> Response:
    data = await body.read(MOST_BODY)

    def take() -> int:
        try:
            names = names_of(data)
        except (pa.ArrowException, KeyError) as error:
            raise DataError("The body is not an Arrow stream with a column 'logical' of texts.") from error
        if any(type(each) is not str for each in names):
            raise DataError("A logical name must be text.")
        here.replicas.receive(asked.update, asked.catalog, asked.expected, names, asked.seconds)
        return len(names)

    return JSONAnswer({"taken": await here.run(take)})


@router.post(
    "/index/filter",
    summary="A filter of all names of a catalog",
    openapi_extra=takes({FILTER: None}),
    responses=answers(NotFoundError, DeniedError, LimitError, *BODY),
)
async def take_filter(here: Telling, asked: Annotated[Lasting, Query()], body: TheBody) -> Response:
    names = Filter.from_bytes(await body.read(MOST_FILTER))
    await here.run(here.replicas.take_filter, asked.catalog, names, asked.seconds)
    return JSONAnswer({"taken": names.names})


@router.post(
    "/index/changes",
    summary="Changes of a catalog since its last update",
    openapi_extra=json_body(Changed),
    responses=answers(NotFoundError, DeniedError, *BODY),
)
async def take_changes(here: Telling, body: TheBody) -> Response:
    asked = members(Changed, await body.read(MOST_BODY))
    checked(*asked.added, *asked.removed)
    taken = await here.run(
        here.replicas.take_changes, asked.catalog, asked.added, asked.removed, asked.seconds
    )  # not taken: all names have to be sent
    return JSONAnswer({"taken": taken})


@router.delete(
    "/index/catalogs",
    summary="Forget a catalog",
    responses=answers(NotFoundError, DeniedError),
)
async def withdraw(here: Telling, asked: Annotated[Gone, Query()]) -> Response:
    await here.run(here.replicas.withdraw, asked.catalog)
    return JSONAnswer({"taken": True})
