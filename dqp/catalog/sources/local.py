"""Sources that this process reads through a driver, and tables that are only described."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from dai.drivers import NO_TABLES, Driver
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import DatabaseUnavailableError, DeniedError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.dialects import dialect_of
from dqp.algebra.types import readable
from dqp.catalog.sources.source import Source, fingerprint_of, refusing


class DriverSource(Source):
    """A database that this process speaks to through a driver. ``own``: closing the source closes the driver."""

    def __init__(self, alias: str, driver: Driver, *, own: bool = True, replica_of: str | None = None) -> None:
        self.alias, self.address, self.replica_of = alias, f"local:{alias}", replica_of
        self._driver, self._own = driver, own
        self._dialect: str | None = None

    @property
    def driver(self) -> Driver:
        return self._driver

    @property
    def dialect(self) -> str:
        if self._dialect is None:
            self._dialect = dialect_of(self.driver.dialect, self.driver.product)
        return self._dialect

    def tables(self) -> tuple[TableInfo, ...]:
        return self.driver.described()

    def statistics(self, table: str) -> Statistics:
        return self.driver.statistics(table)

    def fingerprint(self, *, fresh: bool = False) -> str:
        return fingerprint_of(self.tables())

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        return readable(self.driver.query(sql, parameters, cancellation=cancellation, tables=tables))

    def takes_tables(self) -> bool:
        return self.driver.takes_tables()

    def close(self) -> None:
        if self._own:
            self.driver.close()


class CallersSource(DriverSource):
    """A resource of this service, as a caller sees it: ``resolve`` says at each use what it is, and whether the caller
    may do that with it (``read``, ``query``, ``statistics``, ``load``)."""

    def __init__(self, alias: str, resolve: Callable[[str], Driver]) -> None:
        self.alias, self.address, self.replica_of = alias, f"local:{alias}", None
        self._resolve, self._own = resolve, False
        self._dialect = None

    @property
    def driver(self) -> Driver:
        return self._driver_to("read")

    def _driver_to(self, work: str) -> Driver:
        with refusing(self.alias):
            return self._resolve(work)

    def statistics(self, table: str) -> Statistics:
        return self._driver_to("statistics").statistics(table)

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        self._driver_to("query")
        return super().query(sql, parameters, cancellation=cancellation, tables=tables)

    def takes_tables(self) -> bool:
        try:
            return self._driver_to("load").takes_tables()
        except DeniedError:
            return False


class DescribedSource(Source):
    """Tables that are only described: queries over them can be planned but not run."""

    def __init__(self, alias: str, dialect: str, tables: tuple[TableInfo, ...]) -> None:
        self.alias, self.address = alias, f"described:{alias}"
        self._dialect, self._tables = dialect, tables

    @property
    def dialect(self) -> str:
        return self._dialect

    def tables(self) -> tuple[TableInfo, ...]:
        return self._tables

    def statistics(self, table: str) -> Statistics:
        return Statistics(rows=None)

    def fingerprint(self, *, fresh: bool = False) -> str:
        return "described"

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        raise DatabaseUnavailableError(f"The source {self.alias!r} is only a description: it has no database.")

    def close(self) -> None:
        """Does nothing: there are no connections."""
