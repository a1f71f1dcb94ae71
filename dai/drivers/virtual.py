"""Common refusals of resources that have no database which could be changed or called."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from dai.drivers import NO_TABLES, CallResult, Driver, Session
from dai.drivers.sql.meanings import Meant
from dai.drivers.sql.query_tables import Tables
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import NotAQueryError, NotFoundError, ParameterError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream


class Virtual(Driver):
    """``called``: what it is, with its article, as refusals begin; ``instead``: what to do, their hint."""

    called: ClassVar[str]
    instead: ClassVar[str]

    def transaction(self, *, cancellation: Cancellation, read_only: bool = False) -> AbstractContextManager[Session]:
        raise NotAQueryError(
            f"{self.called} is read-only: it has no transactions and changes nothing.", hint=self.instead
        )

    def call(
        self, procedure: str, parameters: Sequence[tuple[str, Any]], *, cancellation: Cancellation
    ) -> AbstractContextManager[CallResult]:
        raise ParameterError(f"{self.called} has no stored procedures.", hint=self.instead)

    def meant(self, sql: str, hidden: Collection[str] = ()) -> Meant | None:
        """It says itself what its columns mean, or has none."""
        return None

    def pool_state(self) -> dict[str, int]:
        """It has no connections to a database of its own."""
        return {"open": 0, "idle": 0, "limit": 0}


class WithoutTables(Virtual):
    """A resource that is asked by activities of its own, not in SQL."""

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Tables = NO_TABLES,
    ) -> Stream:
        raise NotAQueryError(f"{self.called} answers no queries.", hint=self.instead)

    def transaction(self, *, cancellation: Cancellation, read_only: bool = False) -> AbstractContextManager[Session]:
        raise NotAQueryError(f"{self.called} runs no SQL.", hint=self.instead)

    def load(
        self,
        table: str,
        stream: Stream,
        *,
        cancellation: Cancellation,
        create: bool = False,
        transactional: bool = True,
    ) -> int:
        stream.close()
        raise NotAQueryError(f"{self.called} has no tables to load into.", hint=self.instead)

    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        return ()

    def statistics(self, table: str) -> Statistics:
        raise NotFoundError(f"{self.called} has no tables.", hint=self.instead)

    def check(self) -> float:
        return 0.0
