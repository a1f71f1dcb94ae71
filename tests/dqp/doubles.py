"""A source that answers as a test says."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dai.drivers import NO_TABLES
from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import Remote, Scan
from dqp.algebra.table import Column, Table
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DescribedSource
from dqp.execution.execution import Execution, ExecutionOptions
from dqp.settings import FederationSettings
from tests.processes import SECONDS

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
        tables: Mapping[str, pa.Table] = NO_TABLES,
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


def ends_when_cancelled(ask: Callable[[], object], cancellation: Cancellation) -> bool:
    """Whether ``ask``, which waits for what never comes, ends with the cancellation."""
    raised: list[DaiError] = []

    def asked() -> None:
        try:
            ask()
        except DaiError as error:
            raised.append(error)

    asking = threading.Thread(target=asked, daemon=True)
    asking.start()
    cancellation.cancel()
    asking.join(SECONDS)
    return raised == [cancellation.cause]
