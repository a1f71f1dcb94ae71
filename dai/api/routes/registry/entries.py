"""``/registry/entries``, ``/registry/metadata``, ``/registry/leases``: what is published, and for how long."""

from __future__ import annotations

from functools import partial
from typing import Annotated

import orjson
from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from dai.api.dependencies import TheBody
from dai.api.problems import answers
from dai.api.requests.body import JSON, takes
from dai.api.requests.parameters import Asked, Flag, Text, Unsaid, element, members
from dai.api.requests.route import Route
from dai.api.responses import JSONAnswer
from dai.api.routes.registry.common import (
    BODY,
    MOST_BODY,
    MOST_PAGE,
    Form,
    Offset,
    Page,
    Published,
    Reading,
    Said,
    Seconds,
    Writing,
    entry_members,
)
from dai.errors import (
    ConflictError,
    DataError,
    DeniedError,
    LimitError,
    NotFoundError,
    ParameterError,
    QuotaError,
    TooLargeError,
)
from dai.service.registry import operations
from dai.service.registry.entries import MEANT, METADATA, Entry, Metadata, new_key
from dai.service.registry.finding import find
from dai.service.registry.mirror import Mirror

router = APIRouter(route_class=Route, prefix="/registry", tags=["registry"])
MOST_AT_ONCE = 100_000
_CHANGED = (NotFoundError, DeniedError, ParameterError, ConflictError, *BODY)
_ROOM = (*_CHANGED, LimitError, QuotaError)


class Listed(Asked):
    kind: Text | Unsaid = Field(None, description="business, service, table, column, metadata …")
    name: Text | Unsaid = Field(None, description="the beginning of a name, ignoring case; needs kind")
    parent: Text | Unsaid = Field(None, description="the key of the entry directly above them")
    tmodel: Text | Unsaid = Field(None, description="a tModel that they implement")
    deprecated: Flag = Field(False, description="also deprecated entries")
    offset: Offset = 0
    limit: Page = 1000


class Key(Asked):
    key: Text


class Shown(Key):
    below: Flag = Field(False, description="also the entries below it")


class Several(Asked):
    entries: list[Published] = Field(max_length=MOST_AT_ONCE, description="what stands below another comes after it")
    whole: bool = Field(False, description="what else stood below the first entry goes, but for metadata")


class Leases(Asked):
    keys: list[str] = Field(max_length=MOST_PAGE)
    seconds: Seconds


class Readers(Key):
    readers: list[str] = Field(description="who sees the entry, and what stands below it")


class Asking(Asked):
    about: Text | Unsaid = Field(None, description="the key of an entry")
    type: Text | Unsaid = None
    value: Text | Unsaid = Field(None, description="needs type")
    offset: Offset = 0
    limit: Page = 1000


class Annotation(Said):
    key: str = Field("", description="an IRI; empty: the registry makes one. One that is there is replaced")
    about: str = Field(description="the key of an entry, whoever owns that")
    form: Form = "string"
    seconds: Seconds | None = None


class Sought(Asked):
    text: Text | Unsaid = None
    unit: Text | Unsaid = Field(None, description="of a column")
    ucd: Text | Unsaid = Field(None, description="of a column, or the beginning of one of its words")
    quantity: Text | Unsaid = Field(None, description="of a column")
    kind: Text | Unsaid = None
    limit: Page = 20


@router.get("", summary="What is here", responses=answers(NotFoundError, DeniedError))
async def get_registry(book: Reading) -> Response:
    def counted(mirror: Mirror) -> dict[str, object]:
        return {
            "entries": len(mirror.entries),
            "number": mirror.number,
            "time": book.registry.now(),
            "identified": bool(book.service.config.identity.methods),
        }

    return JSONAnswer(await book.read(counted))


@router.get(
    "/entries",
    summary="The entries with a valid lease, by their keys",
    responses=answers(NotFoundError, DeniedError, ParameterError),
)
async def get_entries(book: Reading, asked: Annotated[Listed, Query()]) -> Response:
    if asked.name is not None and asked.kind is None:
        raise ParameterError("'name' needs 'kind': names are looked up by the kind of what has them.")

    def listed(mirror: Mirror) -> list[dict[str, object]]:
        wanted: list[tuple[str, ...]] = []
        if asked.kind is not None:
            wanted.append(("kind", asked.kind))
        if asked.tmodel is not None:
            wanted.append(("tmodel", asked.tmodel))
        if asked.parent is not None:
            keys = {each.key for each in mirror.below(asked.parent)}
            keys = keys & mirror.having(*wanted) if wanted else keys
        else:
            keys = mirror.having(*wanted)
        if asked.name is not None:
            keys = keys & set(mirror.named(str(asked.kind), asked.name))
        entries = mirror.shown(keys, book.caller, deprecated=asked.deprecated)
        return [entry_members(each) for each in entries[asked.offset : asked.offset + asked.limit]]

    return _page(await book.read(listed), asked.offset, asked.limit)


def _page(entries: list[dict[str, object]], offset: int, limit: int) -> Response:
    return JSONAnswer({"entries": entries, "next": offset + len(entries) if len(entries) == limit else None})


@router.get(
    "/entry",
    summary="An entry, deprecated or not",
    responses=answers(NotFoundError, DeniedError),
)
async def get_entry(book: Reading, asked: Annotated[Shown, Query()]) -> Response:
    def read(mirror: Mirror) -> dict[str, object]:
        entry = mirror.seen(asked.key, book.caller)
        if entry is None:
            raise operations.missing(asked.key)
        answer = {**entry_members(entry), "time": book.registry.now()}
        return {**answer, "below": below(mirror, entry.key)} if asked.below else answer

    def below(mirror: Mirror, key: str) -> list[dict[str, object]]:
        seen = mirror.shown((each.key for each in mirror.below(key)), book.caller, deprecated=True)
        return [{**entry_members(each), "below": below(mirror, each.key)} for each in seen]

    return JSONAnswer(await book.read(read))


@router.post(
    "/entries",
    summary="Publish entries, or replace them: all of them, or none",
    openapi_extra=takes({JSON: Several.model_json_schema()}),
    responses=answers(*_ROOM),
)
async def post_entries(book: Writing, body: TheBody) -> Response:
    settings = book.registry.settings
    asked, publications = await book.run(_publications, await body.read(MOST_BODY), settings.entry_bytes)
    published = await book.change(
        lambda draft: operations.publish(draft, book.caller, publications, settings, whole=asked.whole)
    )
    return await book.run(lambda: JSONAnswer({"entries": [entry_members(each) for each in published]}))


def _publications(body: bytes, most: int) -> tuple[Several, list[operations.Publication]]:
    """Entry by entry: a large body keeps nobody else waiting, and what is wrong ends it at once."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise DataError(f"The body is not JSON: {error}.") from error
    entries = said.get("entries") if isinstance(said, dict) else None
    if not isinstance(entries, list):
        return members(Several, body), []
    if len(entries) > MOST_AT_ONCE:
        raise ParameterError(f"'entries' has {len(entries):,} entries; {MOST_AT_ONCE:,} are allowed.")
    asked = members(Several, orjson.dumps({**said, "entries": []}))
    publications = []
    for number, each in enumerate(entries):
        if (size := len(orjson.dumps(each))) > 4 * most:  # what is stored may be shorter than what is sent
            raise TooLargeError(f"The entry {number} has {size:,} bytes; {most:,} are allowed.")
        entry = element(Published, each, "entries", number)
        publications.append(operations.Publication(entry.entry(), entry.seconds))
    return asked, publications


@router.delete(
    "/entries",
    summary="Delete an entry and the entries below it",
    status_code=204,
    responses=answers(NotFoundError, DeniedError),
)
async def delete_entry(book: Writing, asked: Annotated[Key, Query()]) -> Response:
    await book.change(lambda draft: operations.delete(draft, book.caller, [asked.key]))
    return Response(status_code=204)


@router.post(
    "/deprecated",
    summary="Deprecate an entry: until it is published or renewed, only its key finds it",
    openapi_extra=takes({JSON: Key.model_json_schema()}),
    responses=answers(*_CHANGED),
)
async def deprecate_entry(book: Writing, body: TheBody) -> Response:
    asked = members(Key, await body.read())
    return JSONAnswer(
        entry_members(await book.change(lambda draft: operations.deprecate(draft, book.caller, asked.key)))
    )


@router.post(
    "/leases",
    summary="Renew leases: all of them, or none",
    openapi_extra=takes({JSON: Leases.model_json_schema()}),
    responses=answers(*_CHANGED),
)
async def post_leases(book: Writing, body: TheBody) -> Response:
    asked = members(Leases, await body.read(MOST_BODY))
    renewing = partial(operations.renew, keys=asked.keys, seconds=asked.seconds, settings=book.registry.settings)
    renewed = await book.change(lambda draft: renewing(draft, book.caller))
    return JSONAnswer({"expires": {each.key: round(each.expires or 0.0, 3) for each in renewed}})


@router.post(
    "/readers",
    summary="Set who sees an entry",
    openapi_extra=takes({JSON: Readers.model_json_schema()}),
    responses=answers(*_CHANGED),
)
async def post_readers(book: Writing, body: TheBody) -> Response:
    asked = members(Readers, await body.read())
    readers = tuple(asked.readers)
    return JSONAnswer(
        entry_members(await book.change(lambda draft: operations.restrict(draft, book.caller, asked.key, readers)))
    )


@router.get(
    "/services",
    summary="The services with a valid lease",
    responses=answers(NotFoundError, DeniedError, ParameterError),
)
async def get_services(book: Reading, asked: Annotated[Listed, Query()]) -> Response:
    if asked.kind not in (None, "service"):
        raise ParameterError("This address has services only; other entries are in /registry/entries.")
    return await get_entries(book, asked.model_copy(update={"kind": "service"}))


@router.get(
    "/metadata",
    summary="Metadata about entries, by their owners and by others",
    responses=answers(NotFoundError, DeniedError, ParameterError),
)
async def get_metadata(book: Reading, asked: Annotated[Asking, Query()]) -> Response:
    if asked.value is not None and asked.type is None:
        raise ParameterError("'value' needs 'type', which says what it is a value of.")

    def listed(mirror: Mirror) -> list[dict[str, object]]:
        wanted: list[tuple[str, ...]] = [("kind", METADATA)]
        if asked.type is not None:
            wanted = [("metadata", asked.type) if asked.value is None else ("metadata", asked.type, asked.value)]
        if asked.about is None:
            keys = mirror.having(*wanted)
        else:
            keys = {each.key for each in mirror.below(asked.about)} & mirror.having(*wanted)
        entries = mirror.shown(keys, book.caller)
        return [entry_members(each) for each in entries[asked.offset : asked.offset + asked.limit]]

    return _page(await book.read(listed), asked.offset, asked.limit)


@router.post(
    "/metadata",
    summary="Add metadata to an entry, whoever owns the entry",
    openapi_extra=takes({JSON: Annotation.model_json_schema()}),
    responses=answers(*_ROOM),
)
async def post_metadata(book: Writing, body: TheBody) -> Response:
    asked = members(Annotation, await body.read())
    metadata = Metadata(type=asked.type, value=asked.value, form=asked.form)
    entry = Entry(key=asked.key or new_key(), kind=METADATA, parent=asked.about, metadata=metadata)
    publications = [operations.Publication(entry, asked.seconds)]
    (published,) = await book.change(
        lambda draft: operations.publish(draft, book.caller, publications, book.registry.settings)
    )
    return JSONAnswer(entry_members(published))


@router.get(
    "/find",
    summary="The entries that match a text best, with the reasons",
    responses=answers(NotFoundError, DeniedError, ParameterError),
)
async def find_entries(book: Reading, asked: Annotated[Sought, Query()]) -> Response:
    meanings = {word: str(said) for word in sorted(MEANT) if (said := getattr(asked, word)) is not None}
    if asked.text is None and not meanings:
        raise ParameterError("Nothing to look for: give 'text', 'unit', 'ucd' or 'quantity'.")
    hits = await book.read(
        lambda mirror: find(mirror, book.caller, asked.text or "", asked.kind, asked.limit, meanings)
    )
    entries = [
        {"score": round(each.score, 3), "reasons": list(each.reasons), **entry_members(each.entry)} for each in hits
    ]
    return JSONAnswer({"found": entries})
