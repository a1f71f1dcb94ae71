"""Common to all methods: the catalog and the index, where a method runs, its arguments and its results as texts."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from dai.replicas.catalog.operations import Index, Value
from dai.replicas.codes import Code, Refused
from dai.replicas.names import BY_NUMBER, TYPES
from dai.replicas.replicas import Replicas

Arguments = list[str]
Items = list[list[str]]
END, _MORE = "", "\x01"


class Rpc:
    """What the methods ask: one ``Replicas``."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas, self.catalog, self.index = replicas, replicas.catalog, replicas.index
        self.begun = time.time()


Work = Callable[[Rpc, Arguments, Items], list[str]]
Run = Callable[[Rpc, Arguments, Items], Any]


async def _apart(work: Work, rpc: Rpc, before: Arguments, items: Items) -> list[str]:
    return await asyncio.get_running_loop().run_in_executor(None, work, rpc, before, items)


def apart(work: Work) -> Run:
    """A method that takes time: it runs in another thread."""
    return functools.partial(_apart, work)


def quick(work: Work) -> Run:
    """A method that runs at once where the catalog is a file here, which takes less than a change of threads."""

    def run(rpc: Rpc, before: Arguments, items: Items) -> Any:
        return work(rpc, before, items) if rpc.catalog.at_once else _apart(work, rpc, before, items)

    return run


def number_of(value: str) -> int:
    try:
        number = int(value)
    except ValueError:
        raise Refused(Code.BADARG, f"{value[:40]!r} is no number") from None
    if not 0 <= number < 1 << 53:
        raise Refused(Code.BADARG, f"{value[:40]!r} is out of range")
    return number


def kind_of(value: str) -> int:
    if value not in ("0", "1"):
        raise Refused(Code.BADARG, f"{value[:40]!r} is no kind of object")
    return int(value)


def type_of(value: str) -> str:
    number = number_of(value)
    if number not in BY_NUMBER:
        raise Refused(Code.INV_ATTR_TYPE, value)
    return BY_NUMBER[number]


def typed(value: Value) -> list[str]:
    """Its type and its text."""
    return [str(TYPES[value.type].number), TYPES[value.type].write(value.value)]


def described(rpc: Rpc, each: Index) -> list[str]:
    seconds, last = rpc.replicas.sent(each.url)
    return [each.url, str(int(seconds)), str(each.flags), str(int(last))]


def listed(rows: Iterable[Iterable[str]]) -> list[str]:
    """A whole list."""
    return [*chain.from_iterable(rows), END]


def portion(rows: Sequence[Iterable[str]], limit: int) -> list[str]:
    """A list that says whether the limit has cut it."""
    return [*chain.from_iterable(rows), _MORE if limit and len(rows) >= limit else END]
