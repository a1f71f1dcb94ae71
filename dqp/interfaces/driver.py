"""A federation as a data resource: one more driver of ``dai``, which reads."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from weakref import WeakSet

import pyarrow as pa

from dai.client.credentials import Personal
from dai.config import FederationConfig
from dai.drivers import NO_TABLES, Driver, DriverOptions, Parts, SessionKeeps
from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.sql.ddl import like
from dai.drivers.sql.parameters import Parameters, Placed
from dai.drivers.sql.query_tables import Tables, refused
from dai.drivers.statements import traced
from dai.drivers.tables import Column as ColumnInfo
from dai.drivers.tables import ColumnStatistics, Statistics, TableInfo
from dai.drivers.virtual import Virtual
from dai.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    DeniedError,
    LimitError,
    ParameterError,
    RequestError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra import types
from dqp.algebra.table import Table
from dqp.catalog.uploads import Uploads
from dqp.coordinator import Coordinator
from dqp.execution.execution import Execution
from dqp.settings import FederationSettings, TlsSettings, load, parse

_MOST_LOADED = 1_000
_COORDINATORS = 16
"""Sessions with tables whose plans and validator are kept, of those asked last: a validator takes some 4 MB."""


def configured(config: FederationConfig, resolve: Callable[[str], Driver]) -> Federation:
    """The driver of ``[federations.NAME]`` of a service; ``resolve`` gives the driver of one of its resources."""
    settings = parse(
        config.content,
        name=config.name,
        where=f"federations.{config.name}",
        base=config.base,
        environment=config.environment,
        served=TlsSettings.of(config.tls),
    )
    return Federation(settings, resolve)


class Federation(Virtual):
    """Tables are ``alias.table``; the SQL is DuckDB's. Read-only, except that tables can be loaded into a session."""

    dialect = "duckdb"
    syntax = replace(SYNTAX, numbered=True)
    called = "A federation"
    instead = "Send it to the resource that has the table."

    def __init__(
        self,
        settings: FederationSettings,
        resolve: Callable[[str], Driver] | None = None,
        person: Personal | None = None,
    ) -> None:
        self.settings = settings
        self.coordinator = Coordinator(settings, resolve=resolve, person=person)
        self.catalog = self.coordinator.catalog
        self._begun: Callable[[Parts], None] | None = None
        self._session: SessionKeeps | None = None
        self._lock = threading.Lock()
        self._uploads: WeakSet[Uploads] = WeakSet()
        """Of all sessions."""
        self._loading: dict[object, int] = {}
        """Bytes of tables that are being loaded: of one of every load."""
        self._coordinators: OrderedDict[tuple[Coordinator, Uploads], Coordinator] = OrderedDict()
        self._home = self.coordinator
        """Under which sessions keep their tables, whoever's coordinator this one is."""
        self._is_base = self.passes_callers_on

    @property
    def passes_callers_on(self) -> bool:
        return self.settings.passes_callers_on

    def of(self, bearer: str | None, resolve: Callable[[str], Driver]) -> Federation:
        """The federation for one caller, who sent the token ``bearer``; ``resolve`` gives a resource as the caller sees
        it, or raises DeniedError."""
        federation = copy(self)
        federation.coordinator = self._home.of(bearer, resolve)
        federation.catalog = federation.coordinator.catalog
        federation._is_base = False
        return federation

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> Federation:
        """The federation of a federation.toml at ``dqp:///path``."""
        scheme, _, path = url.partition("://")
        if scheme != "dqp" or len(path) < 2:
            raise ConfigurationError("A federation's URL looks like dqp:///path/federation.toml.")
        return cls(load(path[1:]))

    @property
    def system(self) -> str:
        return "dqp"

    def product(self) -> str:
        """How many sources, and which of them did not answer when they were last asked."""
        count = len(self.settings.sources)
        if self._is_base:
            return f"dqp federation of {count} source{'' if count == 1 else 's'}, connected anew for each caller"
        away = [each.alias for each in self.settings.sources if each.alias in self.catalog.away]
        return f"dqp federation of {count} source{'' if count == 1 else 's'}" + (
            f", away: {', '.join(away)}" if away else ""
        )

    def placed(self, sql: str, parameters: Parameters) -> Placed:
        """The federation takes names and lists by itself: long lists become tables."""
        return Placed(sql, parameters, sql)

    @traced
    def query(
        self,
        sql: str,
        parameters: Parameters = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Tables = NO_TABLES,
    ) -> Stream:
        if tables:
            raise refused()
        report = self._begun

        def begun(execution: Execution) -> None:
            if report is not None:
                report(execution.parts)

        return self._over_uploads().start(
            sql, parameters, cancellation=cancellation, batch_rows=batch_rows, begun=begun
        )[0]

    def within(self, session: SessionKeeps, begun: Callable[[Parts], None]) -> Federation:
        federation = copy(self)
        federation._session, federation._begun = session, begun
        return federation

    def _check_asked_for_somebody(self) -> None:
        if self._is_base:
            raise DeniedError(
                "This federation uses its caller's credentials for its sources, and this request has no caller."
            )

    def _over_uploads(self) -> Coordinator:
        """The coordinator of queries of the session, which sees the tables that were loaded into it."""
        self._check_asked_for_somebody()
        if self._session is None:
            return self.coordinator
        with self._lock:
            uploads = self._session.kept.get(self._home)
            if uploads is None:
                return self.coordinator
            key = self.coordinator, uploads
            coordinator = self._coordinators.pop(key, None) or self.coordinator.over(uploads)
            self._coordinators[key] = coordinator
            while len(self._coordinators) > _COORDINATORS:
                self._coordinators.popitem(last=False)
        return coordinator

    def _drop(self, uploads: Uploads) -> None:
        with self._lock:
            self._uploads.discard(uploads)
            for key in [each for each in self._coordinators if each[1] is uploads]:
                del self._coordinators[key]

    def load(
        self,
        table: str,
        stream: Stream,
        *,
        cancellation: Cancellation,
        create: bool = False,
        transactional: bool = True,
    ) -> int:
        """Keeps the tuples as a table of the session of the request, in memory, until the session ends; one of the same
        name before is replaced at once. No other session sees it. The tables of sources are never written.

        Raises ParameterError for a name that means something else, RequestError outside an explicit session, LimitError
        beyond ``upload_bytes``.
        """
        with stream:
            if "." in table:
                raise ParameterError(
                    f"The name {table!r} has a dot.",
                    hint="The tables of sources cannot be written. Choose a name without a dot.",
                )
            session = self._session
            if session is None or not session.explicit:
                raise RequestError(
                    f"The table {table!r} would be lost at the end of this request: a federation keeps loaded tables "
                    "only within a session.",
                    hint="Make a session (POST /sessions), and send this request and the queries that read the "
                    "table with "
                    "?session=ID. Lab.upload does so.",
                )
            self.catalog.check_name(table)
            uploads = session.keep(self._home, lambda: Uploads(self._drop))
            with self._lock:
                self._uploads.add(uploads)
            batches: list[pa.RecordBatch] = []
            this = object()
            try:
                self._loading[this] = 0
                self._check_room(uploads, table)
                for batch in stream:
                    cancellation.check()
                    self._loading[this] += batch.nbytes
                    self._check_room(uploads, table)
                    batches.append(batch)
                kept = pa.Table.from_batches(batches, stream.schema)
                self.catalog.over(uploads).upload(table, kept)
            finally:
                del self._loading[this]
            return int(kept.num_rows)

    def _check_room(self, uploads: Uploads, table: str) -> None:
        """LimitError where the tables of all sessions, ``table`` as it is loaded now, and those that others load are
        too many or too large."""
        limit, most = self.settings.upload_bytes, _MOST_LOADED
        with self._lock:
            tables = [each for every in self._uploads for each in every.tables.values()]
        replaced = uploads.get(table)
        size = sum(each.nbytes for each in tables if each is not replaced) + sum(list(self._loading.values()))
        if size > limit or len(tables) - (replaced is not None) >= most:
            raise LimitError(
                f"The federation keeps at most {limit:,} bytes in {most:,} tables that were loaded into it.",
                hint="Load fewer rows or columns, end the sessions that are no longer used, or have its upload_bytes "
                "raised.",
            )

    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        """The tables of all sources that answer, with the alias as their schema, and the views."""
        self._check_asked_for_somebody()
        infos = [_described(each) for each in self.catalog.tables()]
        for name, shape in self.catalog.shapes_of_views().items():
            columns = tuple(ColumnInfo(each, type.lower(), str(types.arrow_type(type))) for each, type in shape)
            infos.append(TableInfo(name=name, kind="view", columns=columns))
        return tuple(each for each in infos if like(pattern, each.name) or like(pattern, f"{each.schema}.{each.name}"))

    def statistics(self, table: str) -> Statistics:
        """Of ``alias.table``, ``alias.schema.table`` or ``alias_table``."""
        self._check_asked_for_somebody()
        alias, _, name = table.partition(".")
        schema, _, bare = name.rpartition(".")
        described = self.catalog.table(alias, bare, schema or None) if name else self.catalog.table(None, table)
        return Statistics(
            rows=int(described.rows) if described.counted else None,
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
        """Asks every source at once. DatabaseUnavailableError where none of them answers. Nobody asks where callers are
        passed on and there is none."""
        start = time.perf_counter()
        if self._is_base:
            return 0.0
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
            ColumnInfo(
                each.name,
                each.source_type,
                str(types.arrow_type(each.type)),
                each.nullable,
                comment=each.meaning.description,
                unit=each.meaning.unit,
                ucd=each.meaning.ucd,
                quantity=each.meaning.quantity,
            )
            for each in table.columns
        ),
        primary_key=table.keys[0] if table.keys else (),
        foreign_keys=tuple(replace(each, schema=table.source) for each in table.foreign_keys),
        rows=int(table.rows) if table.counted else None,
        comment=table.comment,
    )
