"""The operations on metadata: it is added, deleted and read, and entities are found by it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from dai.errors import NotFoundError
from dai.service.registry import operations
from dai.service.registry.access import Access
from dai.service.registry.entries import METADATA, Entry, new_key
from dai.service.registry.metadata.documents import key_of_message
from dai.service.registry.metadata.references import (
    ENTITY_TYPES,
    date_of,
    entry_of,
    info_of,
    metadata_of,
    operation_named,
    property_of,
    reference_to,
    uris,
    value_of,
)
from dai.service.registry.mirror import Mirror
from dai.service.registry.uddi import structures
from dai.service.registry.uddi.faults import Refused
from dai.service.registry.uddi.finding import Search, most_of
from dai.service.registry.uddi.structures import iri, key_of

Said = dict[str, Any]


async def add(access: Access, said: Said) -> Said:
    """With a key it takes the place of what has that."""
    access.may("write", "change")
    metadata = said.get("metadata", {})
    key = metadata.get("metadataKey", "")
    about = await access.read(lambda mirror: entry_of(mirror, said.get("entityReference", {}), access.caller))
    entry = Entry(key=iri(key) if key else new_key(), kind=METADATA, parent=about.key, metadata=metadata_of(metadata))
    publications = [operations.Publication(entry)]
    (published,) = await access.change(
        lambda draft: operations.publish(draft, access.caller, publications, access.registry.settings)
    )
    return info_of(published)


async def delete(access: Access, said: Said) -> str:
    access.may("write", "change")
    entry = await access.read(lambda mirror: _metadata(mirror, access, said))
    await access.change(lambda draft: operations.delete(draft, access.caller, [entry.key]))
    return "true"


async def detail(access: Access, said: Said) -> Said:
    return info_of(await access.read(lambda mirror: _metadata(mirror, access, said)))


def _metadata(mirror: Mirror, access: Access, said: Said) -> Entry:
    key = iri(said.get("metadataKey", ""))
    entry = mirror.seen(key, access.caller)
    if entry is None or entry.metadata is None:
        raise NotFoundError(f"There is no metadata {key_of(key)[:200]!r}.")
    return entry


async def of_entity(access: Access, said: Said) -> Said:
    def read(mirror: Mirror) -> list[Entry]:
        about = entry_of(mirror, said.get("entityReference", {}), access.caller)
        return mirror.shown((each.key for each in mirror.below(about.key) if each.metadata), access.caller)

    return {"metadataInfo": [info_of(each) for each in await access.read(read)]}


async def types(access: Access, said: Said) -> Said:
    return {"uri": list(ENTITY_TYPES.values())}


@dataclass(frozen=True, slots=True)
class _Query:
    """What metadata is to say: its type, and where said its value, who wrote it, and when (how the time begins)."""

    type: str
    value: tuple[str, str] | None
    author: str
    date: str

    def matching(self, mirror: Mirror, access: Access) -> set[str]:
        """The keys of what such metadata is about."""
        terms: tuple[str, ...] = ("metadata", self.type)
        if self.value is not None and self.value[0] != "rdf":
            terms = (*terms, self.value[1])
        return {
            each.parent
            for each in mirror.shown(mirror.having(terms), access.caller)
            if each.parent is not None
            and each.metadata is not None
            and self.value in (None, (each.metadata.form, each.metadata.value))
            and self.author in ("", each.owner)
            and date_of(each).startswith(self.date)
        }


def _queries(bag: Said) -> list[_Query]:
    queries = []
    for each in bag.get("metadataQuery", []):
        if each.get("findQualifiers", {}).get("findQualifier"):
            raise Refused("E_unsupported", "Metadata is compared as it is: there is no find qualifier for it.")
        if not each.get("metadataType"):
            raise Refused("E_fatalError", "A metadataQuery needs a metadataType.")
        value = value_of(each.get("metadataValue", {}))
        queries.append(_Query(each["metadataType"], value, each.get("author", ""), each.get("date", "")))
    return queries


def _about(mirror: Mirror, access: Access, queries: Sequence[_Query]) -> set[str]:
    """The keys of what all of the queries find."""
    matches = [each.matching(mirror, access) for each in queries]
    return set.intersection(*matches) if matches else set()


def _query_bag(said: Said) -> list[_Query]:
    queries = _queries(said.get("metadataQueryBag", {}))
    if not queries:
        raise Refused("E_fatalError", "A metadataQueryBag needs a metadataQuery.")
    return queries


async def entities(access: Access, said: Said) -> Said:
    queries = _query_bag(said)
    entries = await access.read(lambda mirror: mirror.shown(_about(mirror, access, queries), access.caller))
    return {"entityReference": [reference_to(each) for each in entries]}


async def services(access: Access, said: Said) -> Said:
    """``find_service`` of UDDI, for services of which that metadata is said."""
    queries = _queries(said.get("metadataQueryBag", {}))
    most = most_of(said)

    def find(mirror: Mirror) -> Said:
        search = Search(mirror, access.caller, "service", said)
        about = _about(mirror, access, queries)
        among = {each for each in about if mirror.entries[each].kind == "service"} if queries else None
        if within := said.get("businessKey"):
            top = mirror.seen(iri(within), access.caller)
            if top is None:
                raise NotFoundError(f"There is no key {within!r}.")
            below = {each.key for each in mirror.below(top.key) if each.kind == "service"}
            among = below if among is None else among & below
        services = search.matching(among)
        infos = [structures.service_info(each) for each in services[:most]]
        return ({"truncated": "true"} if len(services) > most else {}) | {
            "generic": "2.0",
            "operator": structures.OPERATOR,
            "serviceInfos": {"serviceInfo": infos},
        }

    return await access.read(find)


async def interfaces_by_part(access: Access, said: Said) -> Said:
    return await _interfaces(access, said, "part")


async def interfaces_by_operation(access: Access, said: Said) -> Said:
    return await _interfaces(access, said, "operation")


async def _interfaces(access: Access, said: Said, kind: str) -> Said:
    """An interface is found by what is said of its operations, or its parts, whichever of them."""
    queries = _query_bag(said)

    def find(mirror: Mirror) -> list[Entry]:
        above = [
            {
                str(each.parent)
                for each in mirror.shown(query.matching(mirror, access), access.caller)
                if each.kind == kind and each.parent is not None
            }
            for query in queries
        ]
        return mirror.shown(set.intersection(*above), access.caller)

    return {"uri": [each.key for each in await access.read(find)]}


async def found_operations(access: Access, said: Said) -> Said:
    """Operations by their names, by metadata of theirs, and by the messages that they take or give: the names of these
    and of their parts, and metadata of the parts."""
    own, of_parts = (
        _queries(said.get(each, {})) for each in ("operationMetadataQueryBag", "messagePartMetadataQueryBag")
    )
    names, messages, spaces, parts = (
        set(said.get(each, ())) for each in ("name", "messageName", "messageNamespace", "messagePartName")
    )

    def find(mirror: Mirror) -> list[Entry]:
        keys = mirror.having(("kind", "operation"))
        if own:
            keys = keys & _about(mirror, access, own)
        interfaces = [each for each in mirror.shown(keys, access.caller) if not names or each.name in names]
        if not (messages or spaces or parts or of_parts):
            return interfaces
        wanted = mirror.having(("kind", "part"))
        if of_parts:
            wanted = wanted & _about(mirror, access, of_parts)
        carried = {
            key_of_message(property_of(each, "namespace"), property_of(each, "messageName"))
            for each in mirror.shown(wanted, access.caller)
            if (not messages or property_of(each, "messageName") in messages)
            and (not spaces or property_of(each, "namespace") in spaces)
            and (not parts or each.name in parts)
        }
        return [each for each in interfaces if carried & set(messages_of(each))]

    return {"operationReference": [operation_named(each) for each in await access.read(find)]}


def messages_of(operation: Entry) -> Iterable[str]:
    for at in ("input", "output", "fault"):
        yield from uris(operation, at)
