"""``/replicas/attributes`` and ``/replicas/values``: typed attributes of names."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from dai.api.dependencies import TheBody
from dai.api.problems import answers
from dai.api.requests.parameters import Asked, Flag, Text, Unsaid, members
from dai.api.requests.route import Route
from dai.api.responses import JSONAnswer
from dai.api.routes.replicas.location import (
    BODY,
    MOST_BODY,
    MOST_PAGE,
    Of,
    Offset,
    Page,
    Reading,
    Writing,
    attribute_value,
    checked,
    json_body,
    refusing,
)
from dai.errors import ConflictError, DeniedError, NotFoundError, ParameterError
from dai.replicas.catalog import operations
from dai.replicas.catalog.operations import Attribute, Value
from dai.replicas.codes import KINDS, Refused
from dai.replicas.names import like, value_of

router = APIRouter(route_class=Route, prefix="/replicas", tags=["replicas"])
_WORDS = {number: name for name, number in KINDS.items()}


class OfKind(Asked):
    of: Of = "logical"
    name: Text | Unsaid = None


class Undefined(Asked):
    of: Of = "logical"
    name: Text
    clear: Flag = Field(False, description="also remove it from the names that have it")


class Definition(Asked):
    name: Text
    of: Of = "logical"
    type: Literal["date", "float", "int", "string"] = "string"


class Definitions(Asked):
    attributes: list[Definition] = Field(max_length=1000)


class Key(Asked):
    key: Text
    of: Of = "logical"
    name: Text | Unsaid = None


class Attributed(Asked):
    key: str
    of: Of = "logical"
    name: str
    type: Literal["date", "float", "int", "string"] | Unsaid = None
    value: str | int | float | Unsaid = None


class Values(Asked):
    values: list[Attributed] = Field(max_length=MOST_PAGE)


class Changing(Asked):
    mode: Literal["add", "modify", "put"] = Field(
        "add", description="add: the names do not have it; modify: they have it; put: either"
    )


class Search(Asked):
    name: Text
    of: Of = "logical"
    operator: Literal["all", "eq", "ne", "gt", "ge", "lt", "le", "between", "like"] = "all"
    value: str | Unsaid = Field(None, description="for like a pattern with * and ?")
    value2: str | Unsaid = Field(None, description="the upper end of between")
    offset: Offset = 0
    limit: Page = 1000


@router.get(
    "/attributes",
    summary="The attributes that names may have",
    responses=answers(NotFoundError, DeniedError),
)
async def get_attributes(here: Reading, asked: Annotated[OfKind, Query()]) -> Response:
    there = await here.run(here.replicas.catalog.attributes, KINDS[asked.of], asked.name or "")
    return JSONAnswer({"attributes": [{"name": name, "of": asked.of, "type": type} for name, _, type in there]})


@router.post(
    "/attributes",
    summary="Define attributes",
    openapi_extra=json_body(Definitions),
    responses=answers(NotFoundError, DeniedError, *BODY),
)
async def define(here: Writing, body: TheBody) -> Response:
    asked = members(Definitions, await body.read())
    items = [Attribute(each.name, KINDS[each.of], each.type) for each in asked.attributes]
    checked(*(each.name for each in items))
    return await here.change(operations.define, items, lambda each: {"name": each.name})


@router.delete(
    "/attributes",
    summary="Remove an attribute that no name has, or with clear=true from all that have it",
    responses=answers(NotFoundError, DeniedError, ConflictError),
)
async def undefine(here: Writing, asked: Annotated[Undefined, Query()]) -> Response:
    item = Attribute(asked.name, KINDS[asked.of])
    (code,) = await asyncio.wrap_future(here.replicas.catalog.submit(operations.undefine(asked.clear), [item]))
    if code:
        raise Refused(code, asked.name).error()
    return JSONAnswer({"done": 1, "refused": []})


def _document(each: Value) -> dict[str, Any]:
    return {
        "key": each.key,
        "of": _WORDS[each.kind],
        "name": each.name,
        "type": each.type,
        "value": attribute_value(each),
    }


@router.get(
    "/values",
    summary="The attributes of a name",
    responses=answers(NotFoundError, DeniedError),
)
async def get_values(here: Reading, asked: Annotated[Key, Query()]) -> Response:
    there = await here.run(here.replicas.catalog.values, KINDS[asked.of], asked.key, asked.name or "")
    return JSONAnswer({"values": [*map(_document, there)]})


@router.get(
    "/values/search",
    summary="The names with a value of an attribute",
    responses=answers(NotFoundError, DeniedError, ParameterError),
)
async def search(here: Reading, asked: Annotated[Search, Query()]) -> Response:
    kind, catalog = KINDS[asked.of], here.replicas.catalog
    (attribute,) = await here.run(catalog.attributes, kind, asked.name)
    count = {"all": 0, "between": 2}.get(asked.operator, 1)
    texts = [each for each in (asked.value, asked.value2) if each is not None]
    if len(texts) != count:
        raise ParameterError(f"{asked.operator!r} takes {count} of the values 'value' and 'value2'.")
    if asked.operator == "like":
        values: list[Any] = [like(texts[0])]
    else:
        values = [refusing(value_of, attribute.type, each) for each in texts]
    there = await here.run(catalog.search, kind, asked.name, asked.operator, values, asked.offset, asked.limit)
    following = asked.offset + len(there) if len(there) == asked.limit else None
    return JSONAnswer({"values": [*map(_document, there)], "next": following})


def _valued(each: Attributed, typed: bool) -> Value:
    checked(each.key, each.name)
    if not typed:
        return Value(each.key, KINDS[each.of], each.name)
    if each.type is None or each.value is None:
        raise ParameterError("A value needs 'type' and 'value'.")
    value = refusing(value_of, each.type, each.value if isinstance(each.value, str) else str(each.value))
    return Value(each.key, KINDS[each.of], each.name, each.type, value)


def _told_value(each: Value) -> dict[str, Any]:
    return {"key": each.key, "name": each.name}


@router.post(
    "/values",
    summary="Add attributes to names, or change their values",
    openapi_extra=json_body(Values),
    responses=answers(NotFoundError, DeniedError, *BODY),
)
async def post_values(here: Writing, how: Annotated[Changing, Query()], body: TheBody) -> Response:
    items = [_valued(each, True) for each in members(Values, await body.read(MOST_BODY)).values]
    modes = {"add": operations.add_values, "modify": operations.modify_values, "put": operations.put_values}
    return await here.change(modes[how.mode], items, _told_value)


@router.post(
    "/values/delete",
    summary="Delete attributes of names",
    openapi_extra=json_body(Values),
    responses=answers(NotFoundError, DeniedError, *BODY),
)
async def delete_values(here: Writing, body: TheBody) -> Response:
    items = [_valued(each, False) for each in members(Values, await body.read(MOST_BODY)).values]
    return await here.change(operations.remove_values, items, _told_value)
