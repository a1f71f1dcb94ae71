"""A source that is told what to say, for tests of what a catalog asks."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from dai.drivers import NO_TABLES
from dai.drivers.tables import Column as ColumnInfo
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import (
    UnreachableError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.catalog.sources.source import Source
from tests.processes import SECONDS


class Scripted(Source):
    """A source that says what it was told to, and counts what it is asked."""

    def __init__(self, alias: str, *tables: TableInfo, replica_of: str | None = None) -> None:
        self.alias, self.address, self.replica_of = alias, f"scripted:{alias}", replica_of
        self.infos = tables
        self.known = Statistics(rows=5)
        self.away = False
        self.asked: list[str] = []
        self.held = threading.Event()
        self.held.set()

    @property
    def dialect(self) -> str:
        return "sqlite"

    def _answer(self, what: str) -> None:
        self.asked.append(what)
        assert self.held.wait(SECONDS)
        if self.away:
            raise UnreachableError("Nothing answers at http://10.0.0.1:80.")

    def tables(self) -> tuple[TableInfo, ...]:
        self._answer("tables")
        return self.infos

    def statistics(self, table: str) -> Statistics:
        self._answer(f"statistics {table}")
        return self.known

    def fingerprint(self, *, fresh: bool = False) -> str:
        self._answer("fingerprint")
        return repr(self.infos)

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        raise UnreachableError("It runs no query, not even for a sample.")

    def close(self) -> None:
        self.asked.append("close")


def info(name: str, *columns: str, schema: str | None = None, **facts: Any) -> TableInfo:
    made = tuple(ColumnInfo(*each.split(":")) for each in columns or ("id:int:int32", "name:text:string"))
    return TableInfo(name=name, schema=schema, columns=made, **facts)
