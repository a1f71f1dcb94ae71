"""A federation as a data resource: one more driver of ``dai``, which reads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dai.config import FederationConfig
from dai.drivers import (
    NO_TABLES,
    ColumnStatistics,
    Driver,
    DriverOptions,
    Parts,
    Statistics,
    TableInfo,
)
from dai.drivers import Column as ColumnInfo
from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.sql.ddl import like
from dai.drivers.sql.query_tables import Tables, refused
from dai.errors import ConfigurationError, DatabaseUnavailableError, LimitError, ParameterError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra import types
from dqp.algebra.private import PRIVATE, Plain, shown
from dqp.algebra.table import Table
from dqp.coordinator import Coordinator
from dqp.execution.execution import Execution
from dqp.interfaces.virtual import Virtual
from dqp.settings import FederationSettings, load, parse

_MOST_LOADED = 1_000


def configured(config: FederationConfig, resolve: Callable[[str], Driver]) -> Federation:
    """The driver of ``[federations.NAME]`` of a service; ``resolve`` gives the driver of one of its resources."""
    settings = parse(
        config.content,
        name=config.name,
        where=f"federations.{config.name}",
        base=config.base,
        environment=config.environment,
        served=True,
    )
    return Federation(settings, resolve)


class Federation(Virtual):
    """Tables are ``alias.table``; the SQL is DuckDB's. Read-only, except that tables can be loaded into its memory."""

    dialect = "duckdb"
    syntax = SYNTAX
    called = "A federation"
    instead = "Send it to the resource that has the table."

    def __init__(self, settings: FederationSettings, resolve: Callable[[str], Driver] | None = None) -> None:
        self.settings = settings
        self.coordinator = Coordinator(settings, resolve=resolve)
        self.catalog = self.coordinator.catalog
        self._begun: Callable[[Parts], None] | None = None
        self._loading: dict[object, int] = {}
        """Bytes of tables that are being loaded: of one of every load."""

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> Federation:
        """The federation of a federation.toml at ``dqp:///path``."""
        scheme, _, path = url.partition("://")
        if scheme != "dqp" or len(path) < 2:
            raise ConfigurationError("A federation's URL looks like dqp:///path/federation.toml.")
        return cls(load(path[1:]))

    def product(self) -> str:
        """How many sources, and which of them did not answer when they were last asked."""
        count = len(self.settings.sources)
        away = [each.alias for each in self.settings.sources if each.alias in self.catalog.away]
        return f"dqp federation of {count} source{'' if count == 1 else 's'}" + (
            f", away: {', '.join(away)}" if away else ""
        )

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Tables = NO_TABLES,
    ) -> Stream:
        if tables:
            raise refused()
        self.catalog.forget(self.settings.upload_seconds)
        report = self._begun

        def begun(execution: Execution) -> None:
            if report is not None:
                report(execution.parts)

        return self.coordinator.start(sql, parameters, cancellation=cancellation, batch_rows=batch_rows, begun=begun)[0]

    def watched(self, begun: Callable[[Parts], None]) -> Federation:
        seen = copy(self)
        seen._begun = begun
        return seen

    def load(
        self,
        table: str,
        stream: Stream,
        *,
        cancellation: Cancellation,
        create: bool = False,
        transactional: bool = True,
    ) -> int:
        """Keeps the tuples as a table ``table`` of the federation, in memory, until no query has named it for
        ``upload_seconds``; one of the same name before is replaced at once. The name ends in ``_`` and 32 random
        hexadecimal digits and is listed nowhere, so that nobody else reads or replaces the table. The tables of sources
        are never written.

        Raises ParameterError for another name and for one that without its digits means something else, LimitError
        beyond ``upload_bytes``.
        """
        with stream:
            private = PRIVATE.fullmatch(table)
            if private is None:
                raise ParameterError(
                    f"{shown(table)!r} cannot be the name of a table loaded into a federation: who knows it could "
                    "replace it.",
                    hint="A name, '_' and 32 random hexadecimal digits; Lab.upload sees to it. The tables of sources "
                    "cannot be written.",
                )
            self.catalog.check_name(private[1])
            self.catalog.forget(self.settings.upload_seconds)
            batches: list[pa.RecordBatch] = []
            this = object()
            try:
                self._loading[this] = 0
                self._check_room(table)
                for batch in stream:
                    cancellation.check()
                    self._loading[this] += batch.nbytes
                    self._check_room(table)
                    batches.append(batch)
                kept = pa.Table.from_batches(batches, stream.schema)
                with Plain("", [table]).errors():
                    self.catalog.upload(table, kept)
            finally:
                del self._loading[this]
            return int(kept.num_rows)

    def _check_room(self, table: str) -> None:
        """LimitError where the tables, ``table`` as it is loaded now, and those that others load are too many or too
        large."""
        limit, count = self.settings.upload_bytes, _MOST_LOADED
        others = {name: each for name, each in self.catalog.uploads.items() if name.casefold() != table.casefold()}
        size = sum(each.nbytes for each in others.values()) + sum(list(self._loading.values()))
        if size > limit or len(others) >= count:
            raise LimitError(
                f"The federation keeps at most {limit:,} bytes in {count:,} tables that were loaded into it.",
                hint="Load fewer rows or columns, or have its upload_bytes raised. "
                "Loading a table without rows frees what its name held.",
            )

    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        """The tables of all sources that answer, with the alias as their schema, and the views."""
        infos = [_described(each) for each in self.catalog.tables()]
        for name, shape in self.catalog.shapes_of_views().items():
            columns = tuple(ColumnInfo(each, type.lower(), str(types.arrow_type(type))) for each, type in shape)
            infos.append(TableInfo(name=name, kind="view", columns=columns))
        return tuple(each for each in infos if like(pattern, each.name) or like(pattern, f"{each.schema}.{each.name}"))

    def statistics(self, table: str) -> Statistics:
        """Of ``alias.table``, ``alias.schema.table`` or ``alias_table``."""
        alias, _, name = table.partition(".")
        schema, _, bare = name.rpartition(".")
        described = self.catalog.table(alias, bare, schema or None) if name else self.catalog.table(None, table)
        return Statistics(
            rows=int(described.rows),
            size_bytes=int(described.bytes),
            columns={
                each.name: ColumnStatistics(
                    distinct=each.distinct,
                    null_fraction=each.null_fraction,
                    low=None if each.low is None else str(each.low),
                    high=None if each.high is None else str(each.high),
                    width=each.width,
                )
                for each in described.columns
            },
        )

    def check(self) -> float:
        """Asks every source at once. DatabaseUnavailableError where none of them answers."""
        start = time.perf_counter()
        if self.settings.sources and not self.catalog.answering():
            away = ", ".join(self.catalog.away)
            raise DatabaseUnavailableError(f"None of the federation's sources answers: {away}.")
        return time.perf_counter() - start

    def close(self) -> None:
        self.coordinator.close()


def _described(table: Table) -> TableInfo:
    return TableInfo(
        name=table.name if table.schema is None else f"{table.schema}.{table.name}",
        schema=table.source,
        kind=table.kind,
        columns=tuple(
            ColumnInfo(each.name, each.source_type, str(types.arrow_type(each.type)), each.nullable)
            for each in table.columns
        ),
        primary_key=table.keys[0] if table.keys else (),
        foreign_keys=tuple(replace(each, schema=table.source) for each in table.foreign_keys),
        rows=int(table.rows),
    )
