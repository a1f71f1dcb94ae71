"""Entries as UDDI calls them, and back. Keys are UUIDs there (of tModels with ``uuid:``), IRIs in the registry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from dai.errors import NotFoundError
from dai.security.identity import Caller
from dai.service.registry.entries import Entry, Reference, Text, new_key
from dai.service.registry.mirror import Mirror

OPERATOR = "dai"
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
KINDS = {"business": "businessEntity", "service": "businessService", "binding": "bindingTemplate", "tmodel": "tModel"}
KEYS = {"business": "businessKey", "service": "serviceKey", "binding": "bindingKey", "tmodel": "tModelKey"}
_DETAILS = {
    "business": ("discoveryURLs", "contacts"),
    "service": (),
    "binding": ("accessPoint", "hostingRedirector", "tModelInstanceDetails"),
    "tmodel": ("overviewDoc",),
}
"""Members of structures that an entry has no field for."""


def iri(key: str) -> str:
    """NotFoundError for what is no key."""
    bare = key.strip().removeprefix("uuid:").removeprefix("UUID:")
    if _UUID.fullmatch(bare):
        return f"urn:uuid:{bare.lower()}"
    if ":" not in key:
        raise NotFoundError(f"There is no key {key[:100]!r}: it is not a UUID.")
    return key.strip()


def key_of(entry_key: str, *, tmodel: bool = False) -> str:
    uuid = entry_key.removeprefix("urn:uuid:")
    return f"uuid:{uuid}" if tmodel and uuid != entry_key else uuid


# From UDDI


def entries(new_keys: set[str], kind: str, said: dict[str, Any], parent: str | None = None) -> Iterator[Entry]:
    """A structure, and those in it behind it. ``made`` gets the keys that were not said."""
    if said.get(KEYS[kind]):
        key = iri(said[KEYS[kind]])
    else:
        new_keys.add(key := new_key())
    names = said.get("name", [])
    bags = [said.get(bag, {}).get("keyedReference", []) for bag in ("categoryBag", "identifierBag")]
    instances = said.get("tModelInstanceDetails", {}).get("tModelInstanceInfo", [])
    point = said.get("accessPoint", {}).get("text", "")
    yield Entry(
        key=key,
        kind=kind,
        parent=parent,
        names=_texts(names if isinstance(names, list) else [names]),
        descriptions=_texts(said.get("description", [])),
        categories=references(bags[0]),
        identifiers=references(bags[1]),
        properties={"address": point} if point else {},
        implements=tuple(iri(each["tModelKey"]) for each in instances if each.get("tModelKey")),
        details={name: said[name] for name in _DETAILS[kind] if name in said},
    )
    below = {
        "business": ("service", said.get("businessServices", {}).get("businessService", [])),
        "service": ("binding", said.get("bindingTemplates", {}).get("bindingTemplate", [])),
    }
    for_below, structures = below.get(kind, ("", []))
    for each in structures:
        yield from entries(new_keys, for_below, each, key)


def references(said: Iterable[dict[str, Any]]) -> tuple[Reference, ...]:
    return tuple(
        Reference(
            iri(each["tModelKey"]) if each.get("tModelKey") else "", each.get("keyValue", ""), each.get("keyName", "")
        )
        for each in said
    )


def _texts(said: Iterable[dict[str, Any]]) -> tuple[Text, ...]:
    return tuple((each.get("text", ""), each.get("lang", "")) for each in said)


# To UDDI


def structure(mirror: Mirror, entry: Entry, caller: Caller) -> dict[str, Any]:
    """As ``types.write`` takes it, with what stands below it and the caller sees."""
    said: dict[str, Any] = {KEYS[entry.kind]: key_of(entry.key, tmodel=entry.kind == "tmodel"), **entry.details}
    if entry.names:
        said["name"] = _text_members(entry.names)[0] if entry.kind == "tmodel" else _text_members(entry.names)
    if entry.descriptions:
        said["description"] = _text_members(entry.descriptions)
    for name, bag in (("categoryBag", entry.categories), ("identifierBag", entry.identifiers)):
        if bag and not (name == "identifierBag" and entry.kind == "service"):
            said[name] = {"keyedReference": [reference(each) for each in bag]}
    match entry.kind:
        case "business":
            said |= {"operator": OPERATOR, "authorizedName": entry.owner}
            if services := mirror.shown_below(entry, "service", caller):
                said["businessServices"] = {"businessService": [structure(mirror, each, caller) for each in services]}
        case "tmodel":
            said |= {"operator": OPERATOR, "authorizedName": entry.owner}
        case "service":
            said["businessKey"] = key_of(entry.parent or "")
            bindings = [structure(mirror, each, caller) for each in mirror.shown_below(entry, "binding", caller)]
            if not bindings and (address := _address(entry)):
                bindings = [{"bindingKey": "", "serviceKey": said["serviceKey"], "accessPoint": address}]
            said["bindingTemplates"] = {"bindingTemplate": bindings}
        case "binding":
            said["serviceKey"] = key_of(entry.parent or "")
            if "accessPoint" not in said and (address := _address(entry)):
                said["accessPoint"] = address
            said.setdefault("tModelInstanceDetails", {
                "tModelInstanceInfo": [{"tModelKey": key_of(each, tmodel=True)} for each in entry.implements]
            })  # fmt: skip
    return said


def business_info(mirror: Mirror, entry: Entry, caller: Caller) -> dict[str, Any]:
    services = [service_info(each) for each in mirror.shown_below(entry, "service", caller)]
    return {"businessKey": key_of(entry.key), **texts_of(entry), "serviceInfos": {"serviceInfo": services}}


def texts_of(entry: Entry) -> dict[str, Any]:
    said = {"name": _text_members(entry.names)}
    return said | {"description": _text_members(entry.descriptions)} if entry.descriptions else said


def service_info(entry: Entry) -> dict[str, Any]:
    return {
        "serviceKey": key_of(entry.key),
        "businessKey": key_of(entry.parent or ""),
        "name": _text_members(entry.names),
    }


def tmodel_info(entry: Entry) -> dict[str, Any]:
    return {"tModelKey": key_of(entry.key, tmodel=True), "name": _text_members(entry.names)[0]}


def _text_members(texts: Iterable[Text]) -> list[dict[str, str]]:
    return [{"text": text, "lang": language} for text, language in texts]


def reference(each: Reference) -> dict[str, str]:
    tmodel = key_of(each.tmodel, tmodel=True) if each.tmodel else ""
    return {"tModelKey": tmodel, "keyName": each.name, "keyValue": each.value}


def _address(entry: Entry) -> dict[str, str] | None:
    """Of what was published by another interface."""
    value = entry.properties.get("address")
    text = value["uri"] if isinstance(value, dict) else value
    if not isinstance(text, str):
        return None
    scheme = text.partition(":")[0]
    return {"text": text, "URLType": scheme if scheme in ("http", "https", "ftp", "mailto") else "other"}
