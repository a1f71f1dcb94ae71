"""The methods: what each takes, and what it answers. Patterns are SQL patterns, as the clients send them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import dai
from dai.replicas.catalog import operations
from dai.replicas.catalog.operations import Attribute, Index, Operation, Value
from dai.replicas.codes import LOGICAL, MISSING, TARGET, Code, Refused, text
from dai.replicas.names import BY_NUMBER, OPERATORS, TYPES, all_names, check_name, value_of
from dai.replicas.replicas import Replicas
from dai.replicas.updates import fitting

_PING, _QUIT, _UPDATE = "0", "1", "2"
_END, _MORE = "", "\x01"


@dataclass(frozen=True)
class Method:
    """``before``: how many arguments come first; ``items``: how many make an item of the list that follows, 0: there is
    none. ``right``: which right of the caller it needs. ``run`` takes the arguments and the items and gives the
    texts of the results; an awaitable of them where that takes time; a change of the catalog as ``Submitted``."""

    before: int
    run: Callable[[Rpc, list[str], list[list[str]]], Any]
    right: str
    items: int = 0


def _number(value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        raise Refused(Code.BADARG, f"{value[:40]!r} is no number") from None
    if not 0 <= number < 1 << 53:
        raise Refused(Code.BADARG, f"{value[:40]!r} is out of range")
    return number


def _kind(value: str) -> int:
    if value not in ("0", "1"):
        raise Refused(Code.BADARG, f"{value[:40]!r} is no kind of object")
    return int(value)


def _type(value: str) -> str:
    number = _number(value)
    if number not in BY_NUMBER:
        raise Refused(Code.INV_ATTR_TYPE, value)
    return BY_NUMBER[number]


def _shown(value: Value) -> str:
    return TYPES[value.type].write(value.value)


def _ended(texts: Iterable[str], count: int, limit: int) -> list[str]:
    return [*texts, _MORE if limit and count >= limit else _END]


class Rpc:
    """The methods, over one ``Replicas``."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas, self.catalog, self.index = replicas, replicas.catalog, replicas.index
        self.begun = time.time()

    async def apart(self, work: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, lambda: work(*arguments))

    def quick(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """At once where the catalog is a file here, which takes less than a change of threads."""
        return work(*arguments) if self.catalog.at_once else self.apart(work, *arguments)

    def partners(self, kind: int) -> Callable[..., Any]:
        def run(name: str, offset: str, most: str) -> list[str]:
            limit = _number(most)
            others = self.catalog.partners(kind, name, _number(offset), limit)
            pairs = [(name, each) if kind == LOGICAL else (each, name) for each in others]
            return _ended(chain.from_iterable(pairs), len(pairs), limit)

        return run


@dataclass(frozen=True)
class Submitted:
    """A change of the catalog. ``said``: the results, from the codes of the items."""

    operation: Operation
    items: Sequence[Any]
    said: Callable[[list[Code]], list[str]]


class Failed(Exception):
    """A method that ends with a code and a text."""

    def __init__(self, code: int, said: str) -> None:
        self.code, self.said = code, said


def _change(operation: Operation, item: Callable[[Sequence[str]], Any], about: Callable[[Any], str]) -> Any:
    def run(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
        wanted = item(before)
        return _one(operation, wanted, lambda code: text(code, about(wanted)))

    return run


def _one(operation: Operation, item: Any, say: Callable[[Code], str]) -> Submitted:
    def said(codes: list[Code]) -> list[str]:
        if codes[0]:
            raise Failed(codes[0], say(codes[0]))
        return []

    return Submitted(operation, [item], said)


def _bulk(
    operation: Operation, item: Callable[[Sequence[str]], Any], told: Callable[[Sequence[str]], list[str]]
) -> Any:
    def run(rpc: Rpc, before: list[str], items: list[list[str]]) -> Submitted:
        """Only what was refused is told, with its code."""
        good: list[tuple[Sequence[str], Any]] = []
        refused: list[str] = []
        if item is _pair and all_names([*chain.from_iterable(items)]):
            good = [(each, (each[0], each[1])) for each in items]
        else:
            for each in items:
                try:
                    good.append((each, item(each)))
                except Refused as error:
                    refused += [str(int(error.code)), *told(each)]

        def said(codes: list[Code]) -> list[str]:
            failed: list[list[str]] = []
            if any(codes):
                failed = [[str(int(code)), *told(each)] for (each, _), code in zip(good, codes, strict=True) if code]
            return [*refused, *chain.from_iterable(failed), _END]

        return Submitted(operation, [wanted for _, wanted in good], said)

    return run


def _pair(texts: Sequence[str]) -> tuple[str, str]:
    return check_name(texts[0]), check_name(texts[1])


def _attribute(texts: Sequence[str]) -> Attribute:
    return Attribute(check_name(texts[0]), _kind(texts[1]), _type(texts[2]) if len(texts) > 2 else "")


def _value(texts: Sequence[str]) -> Value:
    """Of: key, name, kind, type, value; or without the last two."""
    if len(texts) == 3:
        return Value(check_name(texts[0]), _kind(texts[2]), check_name(texts[1]))
    type = _type(texts[3])
    return Value(check_name(texts[0]), _kind(texts[2]), check_name(texts[1]), type, value_of(type, texts[4]))


def _bulk_value(texts: Sequence[str]) -> Value:
    """Of: key, kind, type, name, value; or key, kind, name."""
    if len(texts) == 3:
        return _value([texts[0], texts[2], texts[1]])
    return _value([texts[0], texts[3], texts[1], texts[2], texts[4]])


def _key_and_name(texts: Sequence[str]) -> list[str]:
    return [texts[0], texts[3] if len(texts) == 5 else texts[2]]


def _about_value(value: Value) -> str:
    return value.key


def _index_item(texts: Sequence[str]) -> Index:
    fitting(texts[2])
    return Index(check_name(texts[0]), _number(texts[1]), texts[2])


def _get(kind: int) -> Any:
    def run(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
        return rpc.quick(rpc.partners(kind), *before)

    return run


def _get_matching(kind: int) -> Any:
    def run(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
        def work() -> list[str]:
            limit = _number(before[2])
            pairs = rpc.catalog.matching(kind, before[0], _number(before[1]), limit)
            return _ended(chain.from_iterable(pairs), len(pairs), limit)

        return rpc.apart(work)

    return run


def _get_bulk(kind: int) -> Any:
    def run(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
        def work() -> list[str]:
            names = [name for (name,) in items]
            found, told = rpc.catalog.partners_of(kind, names), []
            for name in names:
                for each in found.get(name, ()):
                    told += ["0", name, each] if kind == LOGICAL else ["0", each, name]
                if name not in found:
                    told += [str(int(MISSING[kind])), name]
            return [*told, _END]

        return rpc.apart(work)

    return run


def _exists(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    name, kind = before[0], _kind(before[1])

    def work() -> list[str]:
        if not rpc.catalog.existing(kind, [name]):
            raise Refused(MISSING[kind], name)
        return [_END]

    return rpc.quick(work)


def _exists_bulk(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    kind = _kind(before[0])

    def work() -> list[str]:
        names = [name for (name,) in items]
        there = rpc.catalog.existing(kind, names)
        told = [["0", name, ""] if name in there else [str(int(MISSING[kind])), name] for name in names]
        return [*chain.from_iterable(told), _END]

    return rpc.apart(work)


def _mapping_exists(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    def work() -> list[str]:
        if not rpc.catalog.has(*before):
            raise Refused(Code.MAPPING_NEXIST, ",".join(before))
        return [_END]

    return rpc.quick(work)


def _attributes(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    def work() -> list[str]:
        each = [
            (name, str(TYPES[type].number)) for name, _, type in rpc.catalog.attributes(_kind(before[1]), before[0])
        ]
        return [*chain.from_iterable(each), _END]

    return rpc.quick(work)


def _values(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    def work() -> list[str]:
        values = rpc.catalog.values(_kind(before[2]), before[0], before[1])
        told = [(each.name, str(TYPES[each.type].number), _shown(each)) for each in values]
        return [*chain.from_iterable(told), _END]

    return rpc.quick(work)


def _values_bulk(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    name, kind = before[0], _kind(before[1])

    def work() -> list[str]:
        told: list[str] = []
        for (key,) in items:
            try:
                for each in rpc.catalog.values(kind, key, name):
                    told += ["0", key, each.name, str(TYPES[each.type].number), _shown(each)]
            except Refused as error:
                told += [str(int(error.code)), key, name]
        return [*told, _END]

    return rpc.apart(work)


def _search(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    def work() -> list[str]:
        name, kind, operator, *operands, offset, most = before
        number, limit = _number(operator), _number(most)
        if number >= len(OPERATORS):
            raise Refused(Code.BADARG, f"operator {operator}")
        (attribute,) = rpc.catalog.attributes(_kind(kind), name)
        count = {"all": 0, "between": 2}.get(OPERATORS[number], 1)
        values = [value_of(attribute.type, each) for each in operands[:count]]
        there = rpc.catalog.search(_kind(kind), name, OPERATORS[number], values, _number(offset), limit)
        if not there and not _number(offset):
            raise Refused(Code.ATTR_VALUE_NEXIST, name)
        told = [(each.key, str(TYPES[each.type].number), _shown(each)) for each in there]
        return _ended(chain.from_iterable(told), len(told), limit)

    return rpc.apart(work)


def _described(rpc: Rpc, each: Index) -> list[str]:
    seconds, last = rpc.replicas.sent(each.url)
    return [each.url, str(int(seconds)), str(each.flags), str(int(last))]


def _indexes(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    def work() -> list[str]:
        there = {each.url: each for each in rpc.catalog.indexes(*before)}
        told = list(chain.from_iterable(_described(rpc, each) for each in there.values()))
        return told if before else [*told, _END]

    return rpc.quick(work)


def _partitions(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    def work() -> list[str]:
        there = [each for each in rpc.catalog.indexes(before[0]) if before[1] in ("", each.pattern)]
        return [*chain.from_iterable((each.url, each.pattern) for each in there), _END]

    return rpc.quick(work)


def _catalogs(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    limit, offset = _number(before[2]), _number(before[1])
    urls = rpc.index.catalogs(before[0])[offset:][: limit or None]
    return _ended(chain.from_iterable((before[0], each) for each in urls), len(urls), limit)


def _catalogs_matching(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    def work() -> list[str]:
        limit = _number(before[2])
        pairs, _ = rpc.index.matching(before[0], _number(before[1]), limit)
        return _ended(chain.from_iterable(pairs), len(pairs), limit)

    return rpc.apart(work)


def _catalogs_bulk(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    def work() -> list[str]:
        there, told = rpc.index.catalogs_of([name for (name,) in items]), []
        for (name,) in items:
            for each in there.get(name, ()):
                told += ["0", name, each]
            if name not in there:
                told += [str(int(Code.LFN_NEXIST)), name]
        return [*told, _END]

    return rpc.apart(work)


_INDEX_KINDS = ("2", "3")  # a logical name, a catalog


def _known(rpc: Rpc, name: str, kind: str) -> Code:
    if kind not in _INDEX_KINDS:
        raise Refused(Code.BADARG, f"{kind[:40]!r} is no kind of object of an index")
    if kind == _INDEX_KINDS[0]:
        return Code.OK if rpc.index.catalogs_of([name]) else Code.LFN_NEXIST
    return Code.OK if any(each.url == name for each in rpc.index.senders()) else Code.LRC_NEXIST


def _index_exists(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    if code := _known(rpc, *before):
        raise Refused(code, before[0])
    return [_END]


def _index_exists_bulk(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    return [*chain.from_iterable((str(int(_known(rpc, name, before[0]))), name) for (name,) in items), _END]


def _index_mapping_exists(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    if before[1] not in rpc.index.catalogs_of(before[:1]).get(before[0], ()):
        raise Refused(Code.MAPPING_NEXIST, ",".join(before))
    return [_END]


def _senders(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    return [*chain.from_iterable((each.url, str(int(each.updated))) for each in rpc.index.senders()), _END]


def _parents(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    told = (_described(rpc, Index(url)) for url in rpc.replicas.settings.parents)
    return [*chain.from_iterable(told), _END]


def _statistics(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    def work() -> list[str]:
        own, others = rpc.catalog.counts(), rpc.index.counts()
        numbers = [
            time.time() - rpc.begun, 3, rpc.replicas.settings.update_seconds, rpc.replicas.settings.update_seconds,
            own["logical"], own["target"], own["mappings"],
            others["names"], others["catalogs"], others["catalogs"], others["names"],
        ]  # fmt: skip
        return [dai.__version__, *(str(int(each)) for each in numbers)]

    return rpc.apart(work)


def _configuration(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    there = rpc.replicas.configuration()
    if before[0] and before[0] not in there:
        raise Refused(Code.BADARG, before[0])
    told = [(name, value) for name, value in there.items() if before[0] in ("", name)]
    return [*chain.from_iterable(told), _END]


def _configure(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    rpc.replicas.configure(*before)
    return []


def _administer(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    if before[0] == _UPDATE:
        rpc.replicas.update_now()
    elif before[0] == _QUIT:
        raise Refused(Code.UNSUPPORTED, "a caller cannot stop this server")
    elif before[0] != _PING:
        raise Refused(Code.BADARG, f"command {before[0][:40]!r}")
    return []


def _clear(rpc: Rpc, before: list[str], items: list[list[str]]) -> Any:
    return _one(operations.clear, None, text)


def _joined(pair: Sequence[str]) -> str:
    return ",".join(pair)


_MAPPINGS = {
    "lrc_create": (operations.create, lambda pair: pair[0]),
    "lrc_add": (operations.add, lambda pair: pair[0]),
    "lrc_delete": (operations.delete, _joined),
    "lrc_renamelfn": (operations.rename_logical, lambda pair: pair[0]),
    "lrc_renamepfn": (operations.rename_target, lambda pair: pair[0]),
}
READ, CHANGE, READ_INDEX, CHANGE_INDEX, STATISTICS, ADMINISTER = (
    "lrc_read", "lrc_update", "rli_read", "rli_update", "stats", "admin",
)  # fmt: skip
METHODS: dict[str, Method] = {
    **{name: Method(2, _change(run, _pair, about), CHANGE) for name, (run, about) in _MAPPINGS.items()},
    **{f"{name}_bulk": Method(0, _bulk(run, _pair, list), CHANGE, 2) for name, (run, _) in _MAPPINGS.items()},
    "lrc_clear": Method(0, _clear, ADMINISTER),
    "lrc_get_pfn": Method(3, _get(LOGICAL), READ),
    "lrc_get_lfn": Method(3, _get(TARGET), READ),
    "lrc_get_pfn_wc": Method(3, _get_matching(LOGICAL), READ),
    "lrc_get_lfn_wc": Method(3, _get_matching(TARGET), READ),
    "lrc_get_pfn_bulk": Method(0, _get_bulk(LOGICAL), READ, 1),
    "lrc_get_lfn_bulk": Method(0, _get_bulk(TARGET), READ, 1),
    "lrc_exists": Method(2, _exists, READ),
    "lrc_exists_bulk": Method(1, _exists_bulk, READ, 1),
    "lrc_mapping_exists": Method(2, _mapping_exists, READ),
    "lrc_attr_create": Method(3, _change(operations.define, _attribute, lambda each: each.name), CHANGE),
    "lrc_attr_delete": Method(
        3,
        lambda rpc, before, items: _change(
            operations.undefine(before[2] == "1"), lambda texts: _attribute(texts[:2]), lambda each: each.name
        )(rpc, before, items),
        CHANGE,
    ),
    "lrc_attr_get": Method(2, _attributes, READ),
    "lrc_attr_add": Method(5, _change(operations.add_values, _value, _about_value), CHANGE),
    "lrc_attr_modify": Method(5, _change(operations.modify_values, _value, _about_value), CHANGE),
    "lrc_attr_remove": Method(3, _change(operations.remove_values, _value, _about_value), CHANGE),
    "lrc_attr_add_bulk": Method(0, _bulk(operations.add_values, _bulk_value, _key_and_name), CHANGE, 5),
    "lrc_attr_remove_bulk": Method(0, _bulk(operations.remove_values, _bulk_value, _key_and_name), CHANGE, 3),
    "lrc_attr_value_get": Method(3, _values, READ),
    "lrc_attr_value_get_bulk": Method(2, _values_bulk, READ, 1),
    "lrc_attr_search": Method(7, _search, READ),
    "lrc_rli_add": Method(3, _change(operations.add_index, _index_item, lambda each: each.url), ADMINISTER),
    "lrc_rli_delete": Method(
        2,
        _change(
            operations.delete_index,
            lambda texts: Index(check_name(texts[0]), 0, texts[1]),
            lambda each: f"{each.url}: {each.pattern}" if each.pattern else each.url,
        ),
        ADMINISTER,
    ),
    "lrc_rli_info": Method(1, _indexes, READ),
    "lrc_rli_list": Method(0, _indexes, READ),
    "lrc_rli_get_part": Method(2, _partitions, READ),
    "rli_get_lrc": Method(3, _catalogs, READ_INDEX),
    "rli_get_lrc_wc": Method(3, _catalogs_matching, READ_INDEX),
    "rli_get_lrc_bulk": Method(0, _catalogs_bulk, READ_INDEX, 1),
    "rli_exists": Method(2, _index_exists, READ_INDEX),
    "rli_exists_bulk": Method(1, _index_exists_bulk, READ_INDEX, 1),
    "rli_mapping_exists": Method(2, _index_mapping_exists, READ_INDEX),
    "rli_sender_list": Method(0, _senders, READ_INDEX),
    "rli_rli_list": Method(0, _parents, READ_INDEX),
    "stats": Method(0, _statistics, STATISTICS),
    "get_configuration": Method(1, _configuration, ADMINISTER),
    "set_configuration": Method(2, _configure, ADMINISTER),
    "admin": Method(1, _administer, ADMINISTER),
}
