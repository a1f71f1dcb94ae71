"""Which entry a message refers to, and which value of metadata it has."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from dai.errors import NotFoundError
from dai.security.identity import Caller
from dai.service.registry.entries import KINDS, METADATA, VOCABULARY, Entry, Metadata, listed
from dai.service.registry.metadata.documents import key_of_operation, key_of_part
from dai.service.registry.mirror import Mirror
from dai.service.registry.rdf.triples import about_itself
from dai.service.registry.uddi.faults import Refused
from dai.service.registry.uddi.structures import iri, key_of

_UDDI, _OWN = "http://www.uddi.org/schema/uddi_v2.xsd#", "http://www.grimoires.org/metadata.xsd#"
TYPES = {
    "business": f"{_UDDI}businessKey",
    "service": f"{_UDDI}serviceKey",
    "binding": f"{_UDDI}bindingKey",
    "tmodel": f"{_UDDI}tModelKey",
    "operation": f"{_OWN}operationReference",
    "part": f"{_OWN}messagePartReference",
    METADATA: "http://www.mygrid.ecs.soton.ac.uk/metadata.rdfs#hasMetadataKey",
}
"""What the interface calls the kinds of its time. Others are called as in RDF."""
ENTITY_TYPES = {kind: TYPES.get(kind, VOCABULARY + kind.capitalize()) for kind in (*KINDS, METADATA)}
_KINDS = {type: kind for kind, type in ENTITY_TYPES.items()}


def entry_of(mirror: Mirror, reference: dict[str, Any], caller: Caller) -> Entry:
    """The entry that a reference names. NotFoundError where the caller sees none."""
    kind = _KINDS.get(reference.get("entityType", ""))
    if part := reference.get("messagePartReference"):
        said = "part", key_of_part(*_named(part, "messageNamespace", "messageName", "messagePartName"))
    elif operation := reference.get("operationReference"):
        said = "operation", key_of_operation(*_named(operation, "portTypeNamespace", "portTypeName", "operationName"))
    elif key := reference.get("metadataKey"):
        said = METADATA, iri(key)
    else:
        said = kind or "", iri(reference.get("stringKey", ""))
    if kind is None and reference.get("entityType"):
        raise Refused("E_unsupported", f"There is no type of entities {reference['entityType'][:200]!r}.")
    entry = mirror.seen(said[1], caller)
    if entry is None or (kind or said[0]) not in ("", entry.kind):
        raise NotFoundError(f"There is no {kind or said[0] or 'entity'} {said[1][:200]!r}.")
    return entry


def _named(said: dict[str, str], *names: str) -> list[str]:
    return [said.get(each, "") for each in names]


def reference_to(entry: Entry) -> dict[str, Any]:
    said: dict[str, Any] = {"entityType": ENTITY_TYPES[entry.kind]}
    match entry.kind:
        case "operation":
            return said | {"operationReference": operation_named(entry)}
        case "part":
            names = (property_of(entry, "namespace"), property_of(entry, "messageName"), entry.name)
            return said | {
                "messagePartReference": dict(
                    zip(("messageNamespace", "messageName", "messagePartName"), names, strict=True)
                )
            }
        case "metadata":
            return said | {"metadataKey": key_of(entry.key)}
    return said | {"stringKey": key_of(entry.key, tmodel=entry.kind == "tmodel")}


def operation_named(entry: Entry) -> dict[str, str]:
    return {
        "portTypeNamespace": property_of(entry, "namespace"),
        "portTypeName": property_of(entry, "portType"),
        "operationName": entry.name,
    }


def property_of(entry: Entry, name: str) -> str:
    """Empty where whoever published the entry by JSON left it out."""
    return str(entry.properties.get(name, ""))


def uris(entry: Entry, name: str) -> Iterator[str]:
    """The addresses that a property has."""
    for each in listed(entry.properties.get(name, [])):
        if isinstance(each, dict):
            yield str(each["uri"])


def metadata_of(said: dict[str, Any]) -> Metadata:
    """The type and the value that a message has. Refused without a value."""
    value = value_of(said.get("metadataValue", {}))
    if value is None:
        raise Refused("E_fatalError", "A metadataValue is a stringValue, a uriValue or a triplesAssertion.")
    return Metadata(type=said.get("metadataType", ""), value=value[1], form=value[0])


def value_of(said: dict[str, Any]) -> tuple[str, str] | None:
    """Its form and text; None where nothing is said."""
    if "stringValue" in said:
        return "string", said["stringValue"]
    if "uriValue" in said:
        return "uri", said["uriValue"]
    if triples := said.get("triplesAssertion"):
        names = ("triples", "language", "base", "resourceIdentifier")
        return "rdf", about_itself(*(triples.get(each, "") for each in names))
    return None


def info_of(entry: Entry) -> dict[str, Any]:
    """``metadataInfo``."""
    assert entry.metadata is not None
    said = entry.metadata.value
    value: dict[str, Any] = {"uriValue" if entry.metadata.form == "uri" else "stringValue": said}
    if entry.metadata.form == "rdf":
        assertion = {"triples": said, "resourceIdentifier": entry.key, "language": "TURTLE", "base": entry.key}
        value = {"triplesAssertion": assertion}
    return {
        "metadataKey": key_of(entry.key),
        "metadataType": entry.metadata.type,
        "metadataValue": value,
        "author": entry.owner,
        "date": date_of(entry),
    }


def date_of(entry: Entry) -> str:
    return datetime.fromtimestamp(entry.modified, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
