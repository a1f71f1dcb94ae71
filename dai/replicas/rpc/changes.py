"""The methods that change the catalog: their arguments, and their result for each item."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from dai.replicas.catalog import operations
from dai.replicas.catalog.operations import Attribute, Index, Operation, Value
from dai.replicas.codes import Code, Refused, text
from dai.replicas.names import all_names, check_name, value_of
from dai.replicas.rpc.calls import END, Arguments, Items, Rpc, Run, kind_of, listed, number_of, type_of
from dai.replicas.updates import fitting


@dataclass(frozen=True)
class Submitted:
    """A change of the catalog. ``results``: the texts that answer, from the codes of the items."""

    operation: Operation
    items: Sequence[Any]
    results: Callable[[list[Code]], list[str]]


class Failed(Exception):
    """A method that ends with a code and a text."""

    def __init__(self, code: int, text: str) -> None:
        self.code, self.text = code, text


def change(operation: Operation, item: Callable[[Sequence[str]], Any], about: Callable[[Any], str]) -> Run:
    def run(rpc: Rpc, before: Arguments, items: Items) -> Any:
        changed = item(before)
        return _one(operation, changed, lambda code: text(code, about(changed)))

    return run


def _one(operation: Operation, item: Any, say: Callable[[Code], str]) -> Submitted:
    def results(codes: list[Code]) -> list[str]:
        if codes[0]:
            raise Failed(codes[0], say(codes[0]))
        return []

    return Submitted(operation, [item], results)


def bulk(
    operation: Operation, item: Callable[[Sequence[str]], Any], shown: Callable[[Sequence[str]], list[str]]
) -> Run:
    def run(rpc: Rpc, before: Arguments, items: Items) -> Submitted:
        """The results are the items that were refused, with their codes."""
        good: list[tuple[Sequence[str], Any]] = []
        refused: list[str] = []
        if item is pair and all_names([*chain.from_iterable(items)]):
            good = [(each, (each[0], each[1])) for each in items]
        else:
            for each in items:
                try:
                    good.append((each, item(each)))
                except Refused as error:
                    refused += [str(int(error.code)), *shown(each)]

        def results(codes: list[Code]) -> list[str]:
            if not any(codes):
                return [*refused, END]
            failed = ([str(int(code)), *shown(each)] for (each, _), code in zip(good, codes, strict=True) if code)
            return [*refused, *listed(failed)]

        return Submitted(operation, [changed for _, changed in good], results)

    return run


def clear(rpc: Rpc, before: Arguments, items: Items) -> Submitted:
    return _one(operations.clear, None, text)


def pair(texts: Sequence[str]) -> tuple[str, str]:
    return check_name(texts[0]), check_name(texts[1])


def attribute(texts: Sequence[str]) -> Attribute:
    return Attribute(check_name(texts[0]), kind_of(texts[1]), type_of(texts[2]) if len(texts) > 2 else "")


def value(texts: Sequence[str]) -> Value:
    """Of: key, name, kind, type, value; or without the last two."""
    if len(texts) == 3:
        return Value(check_name(texts[0]), kind_of(texts[2]), check_name(texts[1]))
    type = type_of(texts[3])
    return Value(check_name(texts[0]), kind_of(texts[2]), check_name(texts[1]), type, value_of(type, texts[4]))


def bulk_value(texts: Sequence[str]) -> Value:
    """Of: key, kind, type, name, value; or key, kind, name."""
    if len(texts) == 3:
        return value([texts[0], texts[2], texts[1]])
    return value([texts[0], texts[3], texts[1], texts[2], texts[4]])


def key_and_name(texts: Sequence[str]) -> list[str]:
    return [texts[0], texts[3] if len(texts) == 5 else texts[2]]


def add_index(rpc: Rpc, before: Arguments, items: Items) -> Submitted:
    fitting(before[2])
    index = Index(check_name(before[0]), number_of(before[1]), before[2])
    if not rpc.replicas.tells(index.url):
        raise Refused(Code.BADURL, index.url)
    return _one(operations.add_index, index, lambda code: text(code, index.url))
