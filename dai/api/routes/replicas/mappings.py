"""``/replicas/mappings`` and ``/replicas/names``: logical names and their targets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dai.api.dependencies import Accept, TheBody
from dai.api.problems import answers
from dai.api.requests.body import JSON, takes
from dai.api.requests.negotiation import best
from dai.api.requests.parameters import Asked, Text, Unsaid, members
from dai.api.requests.route import Route
from dai.api.responses import JSONAnswer
from dai.api.routes.replicas.location import (
    BODY,
    MOST_BODY,
    MOST_PAGE,
    Administering,
    Location,
    Of,
    Offset,
    Page,
    Reading,
    Writing,
    attribute_value,
    checked,
    json_body,
)
from dai.errors import DataError, DeniedError, NotFoundError, ParameterError
from dai.replicas.catalog import operations
from dai.replicas.codes import KINDS, LOGICAL
from dai.replicas.names import like

router = APIRouter(route_class=Route, prefix="/replicas", tags=["replicas"])
LINES = "application/x-ndjson"


class Mappings(Asked):
    logical: Text | Unsaid = Field(None, description="name whose targets are asked for")
    target: Text | Unsaid = Field(None, description="target whose logical names are asked for")
    logical_pattern: Text | Unsaid = Field(None, alias="logicalPattern", description="with * and ?")
    target_pattern: Text | Unsaid = Field(None, alias="targetPattern", description="with * and ?")
    offset: Offset = 0
    limit: Page = 1000


class Names(Asked):
    of: Of = "logical"
    names: list[str] = Field(max_length=MOST_PAGE)
    attributes: bool = Field(False, description="also the attributes of the names and of their partners")


class Pair(Asked):
    logical: str
    target: str


class Mapped(Asked):
    mappings: list[Pair]


class How(Asked):
    mode: Literal["create", "add", "put"] = Field(
        "put", description="create: the names are new; add: they are there; put: either, and the mapping may be there"
    )


class Rename(Asked):
    before: str = Field(alias="from")
    after: str = Field(alias="to")


class Renames(Asked):
    of: Of = "logical"
    names: list[Rename] = Field(max_length=MOST_PAGE)


class _Lines(Response):
    """JSON lines of an iterator, which is read in threads, a portion at a time."""

    def __init__(self, here: Location, portions: Iterator[list[Any]]) -> None:
        super().__init__(headers={"content-type": LINES})
        del self.headers["content-length"]
        self._here, self._portions = here, portions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await self._here.run(next, self._portions, None)
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        portion = first
        while portion is not None:
            body = b"".join(orjson.dumps(each, option=orjson.OPT_APPEND_NEWLINE) for each in portion)
            await send({"type": "http.response.body", "body": body, "more_body": True})
            portion = await self._here.run(next, self._portions, None)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _named(pair: operations.Pair) -> dict[str, Any]:
    return {"logical": pair[0], "target": pair[1]}


async def _pairs(body: TheBody, request: Request) -> list[operations.Pair]:
    data = await body.read(MOST_BODY)
    if request.headers.get("content-type", "").startswith(LINES):
        listed = b",".join(line for line in data.split(b"\n") if line.strip())
        data = b'{"mappings":[%s]}' % listed
    try:
        mappings = orjson.loads(data)["mappings"]
        pairs = [(each["logical"], each["target"]) for each in mappings if len(each) == 2]
        if len(pairs) != len(mappings) or not all(type(each) is str for pair in pairs for each in pair):
            raise TypeError
    except orjson.JSONDecodeError as error:
        raise DataError(f"The body is not JSON: {error}.") from error
    except (KeyError, TypeError) as error:
        raise ParameterError(
            "A mapping must be an object with the texts 'logical' and 'target'.",
            hint='It looks like {"mappings": [{"logical": "lfn", "target": "https://…"}]}.',
        ) from error
    checked(*(each for pair in pairs for each in pair))
    return pairs


_MAPPED = takes({JSON: Mapped.model_json_schema(), LINES: Pair.model_json_schema()})


@router.get("", summary="What is here", responses=answers(NotFoundError, DeniedError))
async def get_replicas(here: Reading) -> Response:
    catalog = await here.run(here.replicas.catalog.counts)
    return JSONAnswer({"url": here.replicas.settings.url, "catalog": catalog, "index": here.replicas.index.counts()})


@router.get(
    "/mappings",
    summary="The mappings of a name, or of the names that match a pattern",
    responses=answers(NotFoundError, DeniedError, ParameterError),
)
async def get_mappings(here: Reading, accept: Accept, asked: Annotated[Mappings, Query()]) -> Response:
    catalog = here.replicas.catalog
    said = [
        (kind, name, pattern)
        for kind, (name, pattern) in enumerate(
            ((asked.logical, asked.logical_pattern), (asked.target, asked.target_pattern))
        )
        if name is not None or pattern is not None
    ]
    if len(said) > 1 or (said and None not in said[0][1:]):
        raise ParameterError("Give one of 'logical', 'target', 'logicalPattern' and 'targetPattern'.")
    kind, name, pattern = said[0] if said else (LOGICAL, None, "*")
    if name is None and best(accept, [JSON, LINES]) == LINES:
        return _Lines(here, ([*map(_named, pairs)] for pairs in catalog.pages(kind, like(pattern or "*"))))
    if name is not None:
        others = await here.run(catalog.partners, kind, name, asked.offset, asked.limit)
        pairs = [(name, each) if kind == LOGICAL else (each, name) for each in others]
    else:
        try:
            pairs = await here.run(catalog.matching, kind, like(pattern or "*"), asked.offset, asked.limit)
        except NotFoundError:
            pairs = []  # a pattern is a question for what is there; a name is one for that name
    following = asked.offset + len(pairs) if len(pairs) == asked.limit else None
    return JSONAnswer({"mappings": [*map(_named, pairs)], "next": following})


@router.post(
    "/mappings/query",
    summary="The mappings of many names at once",
    openapi_extra=json_body(Names),
    responses=answers(NotFoundError, DeniedError, *BODY),
)
async def query_mappings(here: Reading, body: TheBody) -> Response:
    asked = members(Names, await body.read(MOST_BODY))
    kind, catalog = KINDS[asked.of], here.replicas.catalog
    there = await here.run(catalog.partners_of, kind, asked.names)
    answer: dict[str, Any] = {"found": there, "missing": [each for each in asked.names if each not in there]}
    if asked.attributes:
        partners = sorted({each for targets in there.values() for each in targets})
        valued = answer["attributes"] = {word: {} for word in KINDS}
        for of, names in ((kind, list(there)), (1 - kind, partners)):
            for each in await here.run(catalog.values_of, of, names):
                said = valued[list(KINDS)[of]].setdefault(each.key, {})
                said[each.name] = {"type": each.type, "value": attribute_value(each)}
    return JSONAnswer(answer)


@router.post(
    "/mappings",
    summary="Add mappings; each succeeds or is refused by itself",
    openapi_extra=_MAPPED,
    responses=answers(NotFoundError, DeniedError, *BODY),
)
async def post_mappings(here: Writing, how: Annotated[How, Query()], body: TheBody, request: Request) -> Response:
    modes = {"create": operations.create, "add": operations.add, "put": operations.put}
    return await here.change(modes[how.mode], await _pairs(body, request), _named)


@router.post(
    "/mappings/delete",
    summary="Delete mappings; a name without a mapping is deleted with its attributes",
    openapi_extra=_MAPPED,
    responses=answers(NotFoundError, DeniedError, *BODY),
)
async def delete_mappings(here: Writing, body: TheBody, request: Request) -> Response:
    return await here.change(operations.delete, await _pairs(body, request), _named)


@router.post(
    "/names/rename",
    summary="Rename names; they keep their mappings and attributes",
    openapi_extra=json_body(Renames),
    responses=answers(NotFoundError, DeniedError, *BODY),
)
async def rename(here: Writing, body: TheBody) -> Response:
    asked = members(Renames, await body.read(MOST_BODY))
    pairs = [(each.before, each.after) for each in asked.names]
    checked(*(each for pair in pairs for each in pair))
    operation = operations.rename_logical if asked.of == "logical" else operations.rename_target
    return await here.change(operation, pairs, lambda pair: {"from": pair[0], "to": pair[1]})


@router.delete(
    "/mappings",
    summary="Delete every mapping, and every attribute of a name; for administrators",
    responses=answers(NotFoundError, DeniedError),
)
async def clear(here: Administering) -> Response:
    return await here.change(operations.clear, [None], lambda _: {})
