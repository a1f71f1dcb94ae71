"""The operations of UDDI v2 for one caller, and their faults."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from lxml import etree

from dai.errors import DaiError, DeniedError, NotFoundError
from dai.security.identity import Caller
from dai.service.registry import operations
from dai.service.registry.access import Access
from dai.service.registry.draft import Draft
from dai.service.registry.entries import Entry
from dai.service.registry.mirror import Mirror
from dai.service.registry.operations import Publication
from dai.service.registry.uddi import assertions, structures
from dai.service.registry.uddi.faults import Refused, fault, report
from dai.service.registry.uddi.finding import Search, most_of
from dai.service.registry.uddi.structures import KINDS, OPERATOR, entries, iri
from dai.service.registry.uddi.types import NAMESPACE, PORTS, UDDI
from dai.service.soap import envelope, opened

_TOKEN = "authToken:"
_NAMES = {"business": "business", "service": "service", "binding": "binding", "tModel": "tmodel"}
"""Kinds by what operations call them."""


async def answer(access: Access, part: str, message: bytes, most: int) -> tuple[int, bytes]:
    """Status and message. ``part``: ``inquiry`` or ``publication``."""
    try:
        _, element = opened(message, NAMESPACE, most)
        name = etree.QName(element).localname
        port = PORTS[part]
        if name not in port.calls:
            raise Refused("E_unsupported", f"There is no operation {name[:100]} at the address of {part}.")
        asked = UDDI.read(element)
        if asked.get("generic") != "2.0":
            raise Refused("E_unrecognizedVersion", 'This is UDDI version 2: generic="2.0".')
        token = str(asked.get("authInfo") or "")
        if token.startswith(_TOKEN) and token != _TOKEN + access.caller.name:
            raise Refused("E_authTokenExpired", "The token was for another caller; ask for one with get_authToken.")
        work = _APART.get(name) or _OPERATIONS[name.partition("_")[0]]
        said = await work(access, name, asked)
        return 200, envelope(UDDI.message(port.calls[name], {"generic": "2.0", "operator": OPERATOR, **said}))
    except DeniedError as error:
        # without credentials it would have no owner
        return 500, fault(error if access.caller.name else Refused("E_authTokenRequired", str(error)))
    except DaiError as error:
        return 500, fault(error)


async def _find(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    kind = _NAMES[name.partition("_")[2]]
    most = most_of(asked)

    def find(mirror: Mirror) -> dict[str, Any]:
        search = Search(mirror, access.caller, kind, asked)
        within = asked.get("businessKey") or asked.get("serviceKey")
        among = None
        if within:
            top = mirror.seen(iri(within), access.caller)
            if top is None:
                raise NotFoundError(f"There is no key {within!r}.")
            among = [each.key for each in mirror.below(top.key) if each.kind == kind]
        matches = search.matching(among)
        said: dict[str, Any] = {"truncated": "true"} if len(matches) > most else {}
        matches = matches[:most]
        match kind:
            case "business":
                infos = [structures.business_info(mirror, each, access.caller) for each in matches]
                return said | {"businessInfos": {"businessInfo": infos}}
            case "service":
                return said | {"serviceInfos": {"serviceInfo": [structures.service_info(each) for each in matches]}}
            case "tmodel":
                return said | {"tModelInfos": {"tModelInfo": [structures.tmodel_info(each) for each in matches]}}
        return said | {"bindingTemplate": [structures.structure(mirror, each, access.caller) for each in matches]}

    return await access.read(find)


async def _get(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    extended = name.endswith("Ext")
    called = name.removeprefix("get_").removesuffix("Ext").removesuffix("Detail")
    keys = [iri(each) for each in asked.get(f"{called}Key", [])]

    def details(mirror: Mirror) -> dict[str, Any]:
        matches = [_there(mirror, each, _NAMES[called], access.caller) for each in keys]
        said = [structures.structure(mirror, each, access.caller) for each in matches]
        if extended:
            return {"businessEntityExt": [{"businessEntity": each} for each in said]}
        return {KINDS[_NAMES[called]]: said}

    return await access.read(details)


def _there(mirror: Mirror, key: str, kind: str, caller: Caller) -> Entry:
    entry = mirror.seen(key, caller)
    if entry is None or entry.kind != kind:
        raise NotFoundError(f"There is no {kind} with the key {structures.key_of(key, tmodel=kind == 'tmodel')!r}.")
    return entry


async def _save(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    access.may("write", "change")
    kind = _NAMES[name.partition("_")[2]]
    above = {"service": "businessKey", "binding": "serviceKey"}.get(kind)
    new_keys: set[str] = set()
    trees = [
        list(entries(new_keys, kind, each, iri(each[above]) if above and each.get(above) else None))
        for each in asked.get(KINDS[kind], [])
    ]

    def save(draft: Draft) -> list[str]:
        for tree in trees:
            for each in tree:
                if each.key not in new_keys and draft.get(each.key) is None:
                    raise NotFoundError(f"There is no key {structures.key_of(each.key)!r}.")
            whole = draft.get(tree[0].key) is not None and kind in ("business", "service")
            publications = [Publication(_with_members_unknown_to_uddi(draft, each)) for each in tree]
            operations.publish(draft, access.caller, publications, access.registry.settings, whole=whole)
        return [tree[0].key for tree in trees]

    keys = await access.change(save)
    return await access.read(
        lambda mirror: {
            KINDS[kind]: [
                structures.structure(mirror, _there(mirror, each, kind, access.caller), access.caller) for each in keys
            ]
        }
    )


def _with_members_unknown_to_uddi(draft: Draft, entry: Entry) -> Entry:
    """With what UDDI does not know."""
    before = draft.get(entry.key)
    return entry if before is None else replace(entry, readers=before.readers, deprecates=before.deprecates)


async def _delete(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    access.may("write", "change")
    called = name.partition("_")[2]
    kind = _NAMES[called]
    keys = [iri(each) for each in asked.get(f"{called}Key", [])]

    def delete(draft: Draft) -> None:
        for each in keys:
            if operations.there(draft, each, access.caller).kind != kind:
                raise NotFoundError(f"There is no {kind} with the key {structures.key_of(each)!r}.")
        if kind == "tmodel":
            # it is found no more, but others may refer to it
            for each in keys:
                if operations.there(draft, each, access.caller).deprecated:
                    raise Refused("E_keyRetired", f"The tModel {structures.key_of(each, tmodel=True)!r} is deleted.")
                operations.deprecate(draft, access.caller, each)
        else:
            operations.delete(draft, access.caller, keys)

    await access.change(delete)
    return report(0, {"errCode": "E_success"})


async def _token(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    """The token of UDDI. The request identifies the caller; the token only says that it did."""
    access.may("write", "change")
    if name == "get_authToken":
        return {"authInfo": _TOKEN + access.caller.name}
    return report(0, {"errCode": "E_success"})


async def _registered(access: Access, name: str, asked: dict[str, Any]) -> dict[str, Any]:
    access.may("write", "change")

    def registered(mirror: Mirror) -> dict[str, Any]:
        own = {
            kind: [
                each
                for each in mirror.shown(mirror.having(("kind", kind)), access.caller, deprecated=True)
                if each.owner == access.caller.name
            ]
            for kind in ("business", "tmodel")
        }
        businesses = [structures.business_info(mirror, each, access.caller) for each in own["business"]]
        tmodels = [structures.tmodel_info(each) for each in own["tmodel"]]
        return {"businessInfos": {"businessInfo": businesses}, "tModelInfos": {"tModelInfo": tmodels}}

    return await access.read(registered)


_OPERATIONS: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    "find": _find,
    "get": _get,
    "save": _save,
    "delete": _delete,
}
_APART: dict[str, Callable[..., Coroutine[Any, Any, dict[str, Any]]]] = {
    "get_authToken": _token,
    "discard_authToken": _token,
    "get_registeredInfo": _registered,
    "find_relatedBusinesses": assertions.related,
    "add_publisherAssertions": assertions.add,
    "delete_publisherAssertions": assertions.delete,
    "get_publisherAssertions": assertions.own,
    "set_publisherAssertions": assertions.replace_all,
    "get_assertionStatusReport": assertions.status,
}
