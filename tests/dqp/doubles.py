"""A source that answers as a test says."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import Remote, Scan
from dqp.algebra.table import Column, Table
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources import DescribedSource
from dqp.execution.execution import Execution, ExecutionOptions
from dqp.settings import FederationSettings

Answer = Callable[[str, Cancellation], Stream]


class Double(DescribedSource):
    """``answer`` gives the stream of a statement, or raises; ``asked`` holds the statements sent."""

    def __init__(self, alias: str, answer: Answer, dialect: str = "postgresql") -> None:
        super().__init__(alias, dialect, ())
        self._answer = answer
        self.asked: list[str] = []

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
    ) -> Stream:
        self.asked.append(sql)
        return self._answer(sql, cancellation)


def catalog_of(*sources: Double) -> Catalog:
    return Catalog(FederationSettings(), sources=list(sources))


def numbers(
    alias: str, rows: float = 1_000.0, replicas: tuple[tuple[str, str | None, str], ...] = (), *, high: int = 1_000
) -> Table:
    """A table ``t`` with the columns id (a key from 1) and v."""
    columns = (
        Column("id", "INTEGER", "int4", False, rows, 0.0, 1, high, 4.0),
        Column("v", "BIGINT", "int8", True, None, 0.0, None, None, 8.0),
    )
    return Table(alias, "t", columns, keys=(("id",),), rows=rows, bytes=rows * 12, replicas=replicas)


def remote(table: Table, prefix: str = "") -> Remote:
    return Remote(table.source, Scan(table, ((f"{prefix}id", "id"), (f"{prefix}v", "v"))))


def batch(first: int, count: int) -> pa.RecordBatch:
    ids = pa.array(range(first, first + count), pa.int32())
    return pa.record_batch({"id": ids, "v": pa.array(range(first * 10, (first + count) * 10, 10), pa.int64())})


def execution(cancellation: Cancellation | None = None, **options: Any) -> Execution:
    return Execution(cancellation or Cancellation(), ExecutionOptions(**options))


class Watched(threading.Condition):
    """Says that somebody waits, and that he goes on: he has the lock then."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting, self.woken = threading.Event(), threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        self.waiting.set()
        found = super().wait(timeout)
        self.woken.set()
        return found


def cancelled_when_woken(reader: Any, ask: Callable[[], object], cancellation: Cancellation, wake: Any) -> bool:
    """Cancels while ``ask`` waits for what ``reader`` learns, which ``wake`` lets it learn: the interrupt comes when
    who waits has been woken by that. Whether both have come to their ends."""
    known, interrupt = Watched(), reader._wake
    reader._known = known

    def interrupted() -> None:
        wake()
        assert known.woken.wait(30)
        interrupt()

    reader._wake = interrupted
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    assert known.waiting.wait(30)
    cancelling = threading.Thread(target=cancellation.cancel, daemon=True)
    cancelling.start()
    for each in (asking, cancelling):
        each.join(30)
    return not asking.is_alive() and not cancelling.is_alive()
