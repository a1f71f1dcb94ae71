"""The methods that read the catalog."""

from __future__ import annotations

from dai.replicas.codes import LOGICAL, MISSING, Code, Refused
from dai.replicas.names import OPERATORS, TYPES, value_of
from dai.replicas.rpc.calls import (
    END,
    Arguments,
    Items,
    Rpc,
    Run,
    apart,
    described,
    kind_of,
    listed,
    number_of,
    portion,
    quick,
    typed,
)


def partners(kind: int) -> Run:
    @quick
    def run(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
        name, limit = before[0], number_of(before[2])
        others = rpc.catalog.partners(kind, name, number_of(before[1]), limit)
        return portion([(name, each) if kind == LOGICAL else (each, name) for each in others], limit)

    return run


def matching(kind: int) -> Run:
    @apart
    def run(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
        limit = number_of(before[2])
        return portion(rpc.catalog.matching(kind, before[0], number_of(before[1]), limit), limit)

    return run


def partners_bulk(kind: int) -> Run:
    @apart
    def run(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
        names = [name for (name,) in items]
        partners_of, texts = rpc.catalog.partners_of(kind, names), []
        for name in names:
            for each in partners_of.get(name, ()):
                texts += ["0", name, each] if kind == LOGICAL else ["0", each, name]
            if name not in partners_of:
                texts += [str(int(MISSING[kind])), name]
        return [*texts, END]

    return run


@quick
def exists(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    name, kind = before[0], kind_of(before[1])
    if not rpc.catalog.existing(kind, [name]):
        raise Refused(MISSING[kind], name)
    return [END]


@apart
def exists_bulk(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    kind, names = kind_of(before[0]), [name for (name,) in items]
    existing = rpc.catalog.existing(kind, names)
    return listed(["0", name, ""] if name in existing else [str(int(MISSING[kind])), name] for name in names)


@quick
def mapping_exists(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    if not rpc.catalog.has(*before):
        raise Refused(Code.MAPPING_NEXIST, ",".join(before))
    return [END]


@quick
def attributes(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    of_object = rpc.catalog.attributes(kind_of(before[1]), before[0])
    return listed((name, str(TYPES[type].number)) for name, _, type in of_object)


@quick
def values(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    of_object = rpc.catalog.values(kind_of(before[2]), before[0], before[1])
    return listed([each.name, *typed(each)] for each in of_object)


@apart
def values_bulk(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    name, kind = before[0], kind_of(before[1])
    texts: list[str] = []
    for (key,) in items:
        try:
            for each in rpc.catalog.values(kind, key, name):
                texts += ["0", key, each.name, *typed(each)]
        except Refused as error:
            texts += [str(int(error.code)), key, name]
    return [*texts, END]


@apart
def search(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    name, kind, operator, *operands, offset, most = before
    number, limit = number_of(operator), number_of(most)
    if number >= len(OPERATORS):
        raise Refused(Code.BADARG, f"operator {operator}")
    (attribute,) = rpc.catalog.attributes(kind_of(kind), name)
    count = {"all": 0, "between": 2}.get(OPERATORS[number], 1)
    wanted = [value_of(attribute.type, each) for each in operands[:count]]
    fitting = rpc.catalog.search(kind_of(kind), name, OPERATORS[number], wanted, number_of(offset), limit)
    if not fitting and not number_of(offset):
        raise Refused(Code.ATTR_VALUE_NEXIST, name)
    return portion([[each.key, *typed(each)] for each in fitting], limit)


@quick
def indexes(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    """Those that the catalog tells; of one that is named, without an end of the list."""
    by_url = {each.url: each for each in rpc.catalog.indexes(*before)}
    texts = listed(described(rpc, each) for each in by_url.values())
    return texts[:-1] if before else texts


@quick
def partitions(rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    wanted = (each for each in rpc.catalog.indexes(before[0]) if before[1] in ("", each.pattern))
    return listed((each.url, each.pattern) for each in wanted)
