"""The methods that read the index."""

from __future__ import annotations

from dai.replicas.codes import Code, Refused
from dai.replicas.rpc.calls import END, Arguments, Items, Rpc, apart, listed, number_of, portion

_LOGICAL, _CATALOG = "2", "3"
"""Kinds of objects of an index."""


def catalogs(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    limit, offset = number_of(before[2]), number_of(before[1])
    urls = rpc.index.catalogs(before[0])[offset:][: limit or None]
    return portion([(before[0], each) for each in urls], limit)


@apart
def matching(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    limit = number_of(before[2])
    return portion(rpc.index.matching(before[0], number_of(before[1]), limit)[0], limit)


@apart
def catalogs_bulk(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    catalogs_of, texts = rpc.index.catalogs_of([name for (name,) in items]), []
    for (name,) in items:
        for each in catalogs_of.get(name, ()):
            texts += ["0", name, each]
        if name not in catalogs_of:
            texts += [str(int(Code.LFN_NEXIST)), name]
    return [*texts, END]


def _existence(rpc: Rpc, name: str, kind: str) -> Code:
    if kind not in (_LOGICAL, _CATALOG):
        raise Refused(Code.BADARG, f"{kind[:40]!r} is no kind of object of an index")
    if kind == _LOGICAL:
        return Code.OK if rpc.index.catalogs_of([name]) else Code.LFN_NEXIST
    return Code.OK if any(each.url == name for each in rpc.index.senders()) else Code.LRC_NEXIST


def exists(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    if code := _existence(rpc, *before):
        raise Refused(code, before[0])
    return [END]


def exists_bulk(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    return listed((str(int(_existence(rpc, name, before[0]))), name) for (name,) in items)


def mapping_exists(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    if before[1] not in rpc.index.catalogs_of(before[:1]).get(before[0], ()):
        raise Refused(Code.MAPPING_NEXIST, ",".join(before))
    return [END]


def senders(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    return listed((each.url, str(int(each.updated))) for each in rpc.index.senders())
