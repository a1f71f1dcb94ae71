"""Common to the operations: the registry with the caller's rights, and reading and showing of entries."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Depends
from pydantic import Field

from dai.api.dependencies import TheCaller, TheService
from dai.api.requests.parameters import WHOLE, Asked
from dai.api.service import Service
from dai.config import DeliveryConfig
from dai.errors import DataError, DeniedError, NotFoundError, TooLargeError, UnsupportedMediaTypeError
from dai.perform.delivery.addresses import allowed
from dai.perform.delivery.http import got
from dai.security.identity import Caller
from dai.service.registry.draft import Draft
from dai.service.registry.entries import EVERYBODY, Entry, Metadata, Reference, Text, new_key
from dai.service.registry.mirror import Mirror
from dai.service.registry.registry import Registry
from dai.service.registry.sparql.process import SOLUTIONS
from dai.streams.cancellation import Cancellation

T = TypeVar("T")
MOST_BODY = 32 << 20
MOST_PAGE = 10_000
BODY = (DataError, TooLargeError, UnsupportedMediaTypeError)
Offset = Annotated[int, Field(ge=0, le=2**53), WHOLE]
Page = Annotated[int, Field(ge=1, le=MOST_PAGE, description="the most entries"), WHOLE]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Form = Literal["string", "uri", "rdf"]


class Book:
    """The registry of this service and who asks it."""

    def __init__(self, service: Service, caller: Caller) -> None:
        if service.registry is None or service.webhooks is None:
            raise NotFoundError("This service has no registry.", hint="Its operator can set store in [registry].")
        self.registry: Registry = service.registry
        self.webhooks = service.webhooks
        self.service, self.caller = service, caller
        self.may("read", "look into")

    def may(self, work: str, what: str) -> None:
        self.service.registry_policy.check(work, self.caller, what)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.service.locating, work, *arguments)

    async def read(self, work: Callable[[Mirror], T]) -> T:
        def reading() -> T:
            with self.registry.reading() as mirror:
                return work(mirror)

        return await self.run(reading)

    async def query(self, sparql: str) -> bytes:
        await self.run(self.registry.settle)
        answer = await self.service.registry_queries.asked(sparql, self.caller, SOLUTIONS[:1])
        return answer.body

    async def fetch(self, url: str, most: int) -> str:
        config = dataclasses.replace(self.service.config.delivery, bytes=most)
        return await self.run(_fetched, url, config)

    async def change(self, operation: Callable[[Draft], T]) -> T:
        return await asyncio.wrap_future(self.registry.submit(operation))


def _fetched(url: str, config: DeliveryConfig) -> str:
    address = allowed(url, config)
    if address.scheme not in ("http", "https"):
        raise DeniedError("Documents can only be fetched by http and https.")
    with got(address, config, Cancellation()) as (_, blocks):
        data = b"".join(blocks)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise DataError("The document is not UTF-8.") from error


async def _reading(service: TheService, caller: TheCaller) -> Book:
    return Book(service, caller)


Reading = Annotated[Book, Depends(_reading)]


async def _writing(book: Reading) -> Book:
    book.may("write", "change")
    return book


Writing = Annotated[Book, Depends(_writing)]


class Phrase(Asked):
    text: str
    language: str = ""


class Category(Asked):
    """A value in a taxonomy or a scheme of identifiers."""

    tmodel: str = ""
    value: str
    name: str = ""


class Said(Asked):
    """The value of metadata."""

    type: str = Field(description="what is said, an IRI")
    value: str
    form: Form = "string"


class Published(Asked):
    """An entry as it is published."""

    key: str = Field("", description="an IRI; empty: the registry makes one")
    kind: str
    parent: str | None = None
    name: str | list[Phrase] = ""
    description: str | list[Phrase] = ""
    categories: list[Category] = Field(default_factory=list)
    identifiers: list[Category] = Field(default_factory=list)
    properties: dict[str, Any] = Field(default_factory=dict)
    implements: list[str] = Field(default_factory=list, description="keys of tModels")
    metadata: Said | None = None
    readers: list[str] = Field(
        default_factory=lambda: [*EVERYBODY], description="who sees it: names, group:NAME, *, anonymous"
    )
    seconds: Seconds | None = Field(None, description="how long its lease lasts; without it the entry has no end")
    then: Literal["delete", "deprecate"] = Field("delete", description="what comes of it when its lease ends")

    def entry(self) -> Entry:
        return Entry(
            key=self.key or new_key(),
            kind=self.kind,
            parent=self.parent,
            names=_texts(self.name),
            descriptions=_texts(self.description),
            categories=tuple(Reference(each.tmodel, each.value, each.name) for each in self.categories),
            identifiers=tuple(Reference(each.tmodel, each.value, each.name) for each in self.identifiers),
            properties=self.properties,
            implements=tuple(self.implements),
            metadata=None if self.metadata is None else Metadata(**self.metadata.model_dump()),
            readers=tuple(self.readers),
            deprecates=self.then == "deprecate",
        )


def _texts(said: str | list[Phrase]) -> tuple[Text, ...]:
    if isinstance(said, str):
        return ((said, ""),) if said else ()
    return tuple((each.text, each.language) for each in said)


def _text_members(texts: tuple[Text, ...]) -> str | list[dict[str, str]]:
    if not texts:
        return ""
    if len(texts) == 1 and not texts[0][1]:
        return texts[0][0]
    return [{"text": text, "language": language} for text, language in texts]


def entry_members(entry: Entry) -> dict[str, Any]:
    """As callers read it; what is empty is left out."""
    members = {
        "key": entry.key,
        "kind": entry.kind,
        "parent": entry.parent,
        "owner": entry.owner,
        "name": _text_members(entry.names),
        "description": _text_members(entry.descriptions),
        "categories": entry.categories,
        "identifiers": entry.identifiers,
        "properties": entry.properties,
        "metadata": entry.metadata,
        "implements": entry.implements,
        "readers": entry.readers if entry.restricted else None,
        "published": round(entry.published, 3),
        "modified": round(entry.modified, 3),
        "expires": None if entry.expires is None else round(entry.expires, 3),
        "then": None if entry.expires is None else ("deprecate" if entry.deprecates else "delete"),
        "deprecated": entry.deprecated or None,
    }
    empty: tuple[Any, ...] = (None, "", (), {})
    return {name: value for name, value in members.items() if name == "owner" or value not in empty}
