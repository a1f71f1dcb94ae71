"""Those who answer the same federated query: us, through data services over HTTP, and the peers. And: do they agree?"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from decimal import Decimal
from types import TracebackType
from typing import Any, Protocol, Self

import pyarrow as pa

import dqp
from dai.streams.cancellation import Cancellation
from perf.harness import measured, shown
from perf.peers import PeerError

US = "dqp"
PATIENCE = 60.0
"""Seconds after which a peer is not asked again."""


class Side(Protocol):
    """``run`` is what is timed: the query, until the whole answer is at hand in Arrow; ``result`` is that answer."""

    product: str

    def run(self, sql: str) -> None: ...

    def result(self) -> pa.Table: ...


class Us:
    """A federation in this process over data services at ``resources`` (alias to URL); ``settings`` are its others.
    A query that takes more than ``patience`` seconds (None: as long as it wants) is cancelled: CancelledError."""

    product = US

    def __init__(self, resources: Mapping[str, str], settings: Mapping[str, Any] | None = None) -> None:
        sources = {alias: {"url": url} for alias, url in resources.items()}
        self.lab = dqp.connect({"sources": sources, **(settings or {})})
        self.patience: float | None = None
        self._answer = pa.table({})

    def run(self, sql: str) -> None:
        cancellation = Cancellation()
        timer = None if self.patience is None else threading.Timer(self.patience, cancellation.cancel)
        if timer is not None:  # a thread of its own, which is no part of a query
            timer.start()
        try:
            self._answer = self.lab.coordinator.query(sql, cancellation=cancellation).table()
        finally:
            if timer is not None:
                timer.cancel()

    def result(self) -> pa.Table:
        return self._answer

    def close(self) -> None:
        self.lab.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def compared(sides: Mapping[str, Side], sql: str, rounds: int) -> tuple[dict[str, list[float]], list[str]]:
    """Seconds of each side that can answer, in each round, in turns; and notes: who cannot, and why, and who was too
    slow to be asked again, so that its one time stands for all rounds.

    Else the first run is not counted. The answers must be equal (AssertionError), and we have to have one.
    """
    answers: dict[str, pa.Table] = {}
    first: dict[str, float] = {}
    notes: list[str] = []
    for name, side in sides.items():
        began = time.perf_counter()
        try:
            side.run(sql)
        except PeerError as error:
            notes.append(f"{name} cannot: {str(error).splitlines()[0]}")
            continue
        first[name] = time.perf_counter() - began
        answers[name] = side.result()
    for name, answer in answers.items():
        agree(US, answers[US], name, answer)
    slow = [name for name in first if first[name] > PATIENCE and name != US]
    notes += [f"{name} took {shown(first[name])} and was asked once" for name in slow]
    cases = {name: (lambda side=sides[name]: side.run(sql)) for name in first if name not in slow}
    seconds = measured(cases, rounds, warm=0) | {name: [first[name]] * rounds for name in slow}
    return {name: seconds[name] for name in first}, notes


def agree(one: str, answer: pa.Table, other: str, another: pa.Table) -> None:
    """The same rows, whatever the order of equals: numbers to 9 digits, since sums of doubles depend on the order and
    not everybody keeps decimals; all else exactly. AssertionError shows the first difference."""
    assert answer.num_rows == another.num_rows, f"{one}: {answer.num_rows} rows, {other}: {another.num_rows}"
    for mine, theirs in zip(_rows(answer), _rows(another), strict=True):
        equal = len(mine) == len(theirs) and all(map(_same, mine, theirs))
        assert equal, f"{one}: {mine}, {other}: {theirs}"


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return sorted(zip(*columns, strict=True), key=_order)


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, int | float | Decimal) else value


def _order(row: tuple[Any, ...]) -> tuple[str, ...]:
    return tuple(f"{value:.6g}" if isinstance(value, float) else repr(value) for value in row)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)
    return bool(one == other)
