"""The operations on WSDL documents: one is published, read and removed, and what it has is looked up."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from dai.errors import NotFoundError, ParameterError
from dai.service.registry import operations
from dai.service.registry.access import Access
from dai.service.registry.entries import Entry, is_iri
from dai.service.registry.metadata.documents import (
    entries,
    key_of_interface,
    key_of_message,
    key_of_operation,
    key_of_part,
)
from dai.service.registry.metadata.references import operation_named, property_of, uris
from dai.service.registry.metadata.statements import messages_of
from dai.service.registry.mirror import Mirror
from dai.service.registry.operations import Publication
from dai.service.registry.uddi.structures import iri, key_of

Said = dict[str, Any]


async def advertise(access: Access, said: Said) -> str:
    """A document as it was sent, and where it is. Published again, it takes the place of what was there; what is said
    about operations and parts that it still has stays."""
    return await _published(access, said.get("url", ""), said.get("content", ""))


async def fetch(access: Access, url: str) -> str:
    """A document from where it is, which the operator must allow."""
    access.may("write", "change")
    return await _published(access, url, await access.fetch(url, access.registry.settings.entry_bytes))


async def _published(access: Access, url: str, content: str) -> str:
    access.may("write", "change")
    if url and not is_iri(url):
        raise ParameterError(f"The url {url[:200]!r} is not a URL.")
    settings = access.registry.settings
    publications = [Publication(each) for each in entries(url, content, settings.entry_bytes)]
    await access.change(lambda draft: operations.publish(draft, access.caller, publications, settings, whole=True))
    return publications[0].entry.key


async def content(access: Access, key: str) -> str:
    return str((await _interface(access, key)).details["wsdl"])


async def content_by_url(access: Access, url: str) -> str:
    return str((await access.read(lambda mirror: _by_url(mirror, access, url))).details["wsdl"])


async def remove(access: Access, key: str) -> str:
    access.may("write", "change")
    entry = await _interface(access, key)
    await access.change(lambda draft: operations.delete(draft, access.caller, [entry.key]))
    return "true"


async def urls(access: Access, said: Said) -> Said:
    def read(mirror: Mirror) -> list[Entry]:
        return mirror.shown(mirror.having(("kind", "interface")), access.caller)

    return {"url": [each.identifiers[0].value for each in await access.read(read) if each.identifiers]}


async def services(access: Access, key: str) -> Said:
    """Those with a binding that implements the interface, or a tModel whose overview is the document."""

    def find(mirror: Mirror) -> list[Entry]:
        entry = _there(mirror, access, key)
        places = {each.value for each in entry.identifiers}
        models = [
            each.key
            for each in mirror.shown(mirror.having(("kind", "tmodel")), access.caller)
            if each.details.get("overviewDoc", {}).get("overviewURL", "").partition("#")[0] in places
        ]
        keys = {str(mirror.entries[each].parent) for of in (key, *models) for each in mirror.having(("tmodel", of))}
        if entry.parent is not None:
            keys.add(entry.parent)
        return mirror.shown(keys, access.caller)

    return {"serviceKey": [key_of(each.key) for each in await access.read(find)]}


async def operations_by_url(access: Access, url: str) -> Said:
    def read(mirror: Mirror) -> list[Entry]:
        below = mirror.below(_by_url(mirror, access, url).key)
        return mirror.shown((each.key for each in below if each.kind == "operation"), access.caller)

    return {"operationDetail": [operation_named(each) for each in await access.read(read)]}


def message_at(at: str) -> Callable[[Access, Said], Coroutine[Any, Any, Said]]:
    """The message that an operation takes or gives: ``input``, ``output`` or ``fault``, of several the first."""

    async def find(access: Access, said: Said) -> Said:
        def read(mirror: Mirror) -> Said:
            operation = _operation(mirror, access, said)
            key = next(uris(operation, at), "")
            if not key:
                raise NotFoundError(f"The operation {operation.name[:100]!r} has no {at}.")
            namespace, _, name = key.removesuffix(")").partition("wsdl11.message(")
            # a namespace that ends with # has its own
            namespaces = (namespace[:-1], namespace)
            namespace = next((each for each in namespaces if key_of_message(each, name) == key), "")
            within = mirror.below(key_of_interface(namespace))
            parts = [each for each in within if each.kind == "part" and property_of(each, "messageName") == name]
            shown = mirror.shown((each.key for each in parts), access.caller)
            names = [each.name for each in shown]
            return {"messageNamespace": namespace, "messageName": name, "partsName": {"name": names}}

        return await access.read(read)

    return find


async def interface_of_operation(access: Access, said: Said) -> str:
    return str((await access.read(lambda mirror: _operation(mirror, access, said))).parent)


async def operation_of_part(access: Access, said: Said) -> Said:
    """The first that takes or gives the message with the part."""
    names = [said.get(each, "") for each in ("messageNamespace", "messageName", "partName")]

    def find(mirror: Mirror) -> Entry:
        if mirror.seen(key_of_part(*names), access.caller) is not None:
            message = key_of_message(*names[:2])
            for each in mirror.shown(mirror.having(("kind", "operation")), access.caller):
                if message in messages_of(each):
                    return each
        raise NotFoundError(f"No operation has a message {names[1][:100]!r} with the part {names[2][:100]!r}.")

    return operation_named(await access.read(find))


def _operation(mirror: Mirror, access: Access, said: Said) -> Entry:
    names = [said.get(each, "") for each in ("portTypeNamespace", "portTypeName", "operationName")]
    entry = mirror.seen(key_of_operation(*names), access.caller)
    if entry is None:
        raise NotFoundError(f"There is no operation {names[2][:100]!r} of {names[1][:100]!r}.")
    return entry


def _by_url(mirror: Mirror, access: Access, url: str) -> Entry:
    interfaces = mirror.shown(mirror.having(("kind", "interface"), ("identifier", "", url)), access.caller)
    if not interfaces:
        raise NotFoundError(f"There is no WSDL from {url[:200]!r}.")
    return interfaces[0]


async def _interface(access: Access, key: str) -> Entry:
    return await access.read(lambda mirror: _there(mirror, access, key))


def _there(mirror: Mirror, access: Access, key: str) -> Entry:
    entry = mirror.seen(iri(key), access.caller)
    if entry is None or entry.kind != "interface" or "wsdl" not in entry.details:
        raise NotFoundError(f"There is no WSDL with the key {key[:200]!r}.")
    return entry
