"""Any other database, through SQLAlchemy: correctness first.

Statements go to the database's own Python driver in its paramstyle, rows come in portions from a server-side cursor
where the driver has one. A running statement is stopped by the driver's ``cancel`` or ``interrupt`` (KILL QUERY for
MySQL); where a driver has neither, the work stops with the portion that is being fetched. Queries run in a transaction
that is rolled back, read-only where SQLAlchemy knows how. A connection that ran somebody's update is closed: nobody
knows what all databases keep of it. After queries it is kept, since connecting may take a second; what a function of
the database keeps beyond a rollback (a lock of the session) is then there for the next query.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from difflib import get_close_matches
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.pool import NullPool

from dai.drivers import DRIVERS, CallResult, DriverOptions, Session
from dai.drivers.connections import bulk_load as bulk
from dai.drivers.connections.interrupts import interruptible
from dai.drivers.connections.pool import Pool
from dai.drivers.connections.pooled import PooledDriver, PooledSession, Release
from dai.drivers.connections.rows import FIRST_ROWS, Portions, batches, columns_of, field
from dai.drivers.generic.catalog import table_info
from dai.drivers.generic.types import Kind, array, choose, sql_type
from dai.drivers.sql.ddl import like, matched
from dai.drivers.sql.lexer import Style, bind_markers, check_count, keyword, single_query
from dai.drivers.sql.syntax import STANDARD, Syntax
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    MissingDependencyError,
    NotAQueryError,
    NotFoundError,
    ParameterError,
    StatementError,
)
from dai.plugins import nearest
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

_STYLES: dict[str, Style] = {
    "qmark": "qmark",
    "format": "format",
    "pyformat": "format",
    "numeric": "numeric",
    "named": "named",
    "numeric_dollar": "dollar",
}
_CONTROL = {
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT",
    "RELEASE",
    "START",
    "SET",
    "ATTACH",
    "DETACH",
    "PRAGMA",
    "USE",
    "LOAD",
}
_CHANGED = "dai_changed"
"""Marks a connection that ran an update."""


_KNOWN = ("postgresql", "mariadb", "mysql", "sqlite", "duckdb")


def _hint(backend: str) -> str:
    known = {"postgres": "postgresql", "pg": "postgresql"}.get(backend)
    close = known or next(iter(get_close_matches(backend, _KNOWN)), None)
    return f"Write {close}://…" if close else "Install the SQLAlchemy dialect of the database."


class AnyDatabase(PooledDriver[sa.Connection]):
    """``Driver`` over a SQLAlchemy engine; the pool is ours, as connections must be interrupted and thrown away."""

    def __init__(self, engine: sa.Engine, options: DriverOptions) -> None:
        super().__init__(options)
        self._engine = engine
        self.dialect = engine.dialect.name
        self.syntax = _syntax(self.dialect)
        self._pool = Pool(
            self._connect,
            lambda connection: connection.close(),
            limit=self._limit,
            idle=options.idle,
            check=self._alive,
            interrupt=self._interrupt,
        )

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> AnyDatabase:
        try:
            parsed = sa.make_url(url)
            arguments = {"check_same_thread": False} if parsed.get_backend_name() == "sqlite" else {}
            return cls(sa.create_engine(parsed, poolclass=NullPool, connect_args=arguments), options)
        except exc.NoSuchModuleError as error:
            backend = url.partition(":")[0]
            raise ConfigurationError(f"There is no driver for {backend!r}.", hint=_hint(backend)) from error
        except ModuleNotFoundError as error:
            raise MissingDependencyError(
                f"This database needs the Python package {error.name!r}.", hint=f"pip install {error.name}"
            ) from error
        except (exc.ArgumentError, ValueError, TypeError) as error:
            raise ConfigurationError("The URL of the database cannot be read.") from error

    def product(self) -> str:
        with self._pool.connection(Cancellation()) as connection:
            version = connection.dialect.server_version_info or ()
            return " ".join([self.dialect, ".".join(map(str, version))]).strip()

    def call(
        self, procedure: str, parameters: Sequence[tuple[str, Any]], *, cancellation: Cancellation
    ) -> AbstractContextManager[CallResult]:
        raise ParameterError(
            "Stored procedures cannot be called in this kind of database.",
            hint="PostgreSQL, MariaDB and MySQL resources can.",
        )

    def _create(self, session: Session, table: str, schema: pa.Schema) -> None:
        if not isinstance(session, _Session):
            raise TypeError("A session of another driver.")
        columns = [sa.Column(each.name, sql_type(each), nullable=each.nullable) for each in schema]
        with self._translated():
            _table(table, *columns).create(session.connection)

    def _undo_create(self, table: str) -> None:
        with self._engine.begin() as connection:
            _table(table).drop(connection, checkfirst=True)

    def _insert(self, session: Session, table: str, columns: pa.Schema, transactional: bool) -> bulk.Insert:
        if not isinstance(session, _Session):
            raise TypeError("A session of another driver.")
        schema, _, name = table.rpartition(".")
        with self._translated():
            inspector = sa.inspect(session.connection)
            known = inspector.get_table_names(schema or None) + inspector.get_view_names(schema or None)
            if name not in known:
                raise NotFoundError(f"There is no table {name!r}.", hint=nearest(name, known) if known else None)
            target = sa.Table(name, sa.MetaData(), autoload_with=session.connection, schema=schema or None)
        names = matched(columns.names, [column.name for column in target.columns], name)
        statement = target.insert()

        def insert(batch: pa.RecordBatch, row: int) -> int:
            values = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            rows = [dict(zip(names, each, strict=True)) for each in values]
            session.run(lambda connection: connection.execute(statement, rows))
            return int(batch.num_rows)

        return insert

    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        with self._pool.connection(Cancellation()) as connection, self._translated():
            inspector = sa.inspect(connection)
            default = inspector.default_schema_name or ""
            infos = tuple(
                table_info(inspector, name, kind)
                for kind, names in (("table", inspector.get_table_names()), ("view", inspector.get_view_names()))
                for name in names
                if like(pattern, name) or like(pattern, f"{default}.{name}")
            )
            connection.rollback()
            return infos

    def statistics(self, table: str) -> Statistics:
        """None: how to ask for an estimate differs from database to database."""
        with self._pool.connection(Cancellation()) as connection, self._translated():
            schema, _, name = table.rpartition(".")
            known = sa.inspect(connection).get_table_names(schema or None)
            connection.rollback()
        if name not in known:
            raise NotFoundError(f"There is no table {table!r}.", hint=nearest(name, known) if known else None)
        return Statistics(rows=None)

    def check(self) -> float:
        start = time.perf_counter()
        with self._pool.connection(Cancellation()) as connection, self._translated():
            connection.execute(sa.select(1)).all()
            connection.rollback()
        return time.perf_counter() - start

    def close(self) -> None:
        super().close()
        self._engine.dispose()

    # Connections

    def _connect(self) -> sa.Connection:
        try:
            connection = self._engine.connect()
            thread = getattr(connection.connection.dbapi_connection, "thread_id", None)
            if callable(thread):  # of MySQL's protocol
                connection.info["dai_thread"] = int(thread())  # later it would wait for the statement to end
            return connection
        except (exc.SQLAlchemyError, OSError) as error:
            raise DatabaseUnavailableError(
                "The database cannot be reached, or refuses the credentials in its URL."
            ) from error

    def _alive(self, connection: sa.Connection) -> bool:
        connection.execute(sa.select(1)).all()
        connection.rollback()
        return True

    def _session(self, connection: sa.Connection, cancellation: Cancellation) -> _Session:
        return _Session(self, connection, cancellation)

    def _release(self, connection: sa.Connection, broken: bool) -> None:
        try:
            if not broken:
                connection.rollback()
        except exc.SQLAlchemyError:
            broken = True
        if broken or _CHANGED in connection.info:
            self._pool.discard(connection)
        else:
            self._pool.give_back(connection)

    def _interrupt(self, connection: sa.Connection) -> None:
        raw = connection.connection.dbapi_connection
        for name in ("cancel", "interrupt"):
            if callable(stop := getattr(raw, name, None)):
                stop()
                return
        if "dai_thread" in connection.info:
            with self._engine.connect() as other:
                other.exec_driver_sql(f"KILL QUERY {connection.info['dai_thread']}")

    # Statements

    def _bound(self, sql: str, parameters: Sequence[Any]) -> tuple[str, Any]:
        bound = bind_markers(sql, _STYLES[self._engine.dialect.paramstyle], self.syntax)
        check_count(bound.count, len(parameters))
        if self._engine.dialect.paramstyle == "named":
            return bound.sql, {f"p{at}": value for at, value in enumerate(parameters, 1)}
        return bound.sql, tuple(parameters)

    def stream(
        self,
        connection: sa.Connection,
        sql: str,
        parameters: Sequence[Any],
        cancellation: Cancellation,
        batch_rows: int | None,
        release: Release[sa.Connection],
    ) -> Stream:
        query = single_query(sql, self.syntax)
        text, values = self._bound(query, parameters) if parameters else (query, None)
        options = {"stream_results": True, "no_parameters": True, "max_row_buffer": 1}
        asking = partial(self._asking, connection, sql, cancellation)
        with asking():
            result = connection.exec_driver_sql(text, values, execution_options=options)
            if not result.returns_rows:
                raise NotAQueryError("The statement gives no rows.", sql=sql)
            names = [column[0] for column in result.cursor.description]
        portions = Portions(result.fetchmany, asking)

        def close() -> None:
            if not portions.at_end:
                with contextlib.suppress(Exception):
                    self._interrupt(connection)
            with contextlib.suppress(Exception):
                result.close()
            release(connection, portions.broken or not portions.at_end)

        first = portions.next(min(FIRST_ROWS, batch_rows or FIRST_ROWS))
        values_of = zip(names, columns_of(first, len(names)), strict=True)
        kinds = [choose(name, each, portions.at_end) for name, each in values_of]
        schema = pa.schema([field(kind.name, kind.type, kind.type_name) for kind in kinds])
        convert, columns = partial(_arrays, kinds), _arrays(kinds, first, 1)
        rows = batches(columns, len(first), portions, convert, schema, self._options.batch_bytes, batch_rows)
        return Stream(schema, rows, close)

    @contextmanager
    def _asking(self, connection: sa.Connection, sql: str, cancellation: Cancellation) -> Iterator[None]:
        """The block waits for the database: a cancellation ends the statement, errors are ours."""
        with interruptible(cancellation, lambda: self._interrupt(connection)), self._translated(sql):
            yield

    @contextmanager
    def _translated(self, sql: str | None = None) -> Iterator[None]:
        try:
            yield
        except (exc.SQLAlchemyError, self._engine.dialect.dbapi.Error) as error:  # type: ignore[union-attr]
            _raise(error, sql)


def _syntax(dialect: str) -> Syntax:
    """That of the database's own driver, where there is one and what it needs is installed."""
    try:
        known: Syntax = DRIVERS[dialect].syntax
    except (KeyError, MissingDependencyError):
        known = STANDARD
    return known


class _Session(PooledSession[sa.Connection]):
    _driver: AnyDatabase

    def begin(self, *, read_only: bool) -> None:
        with self._driver._translated():
            self.connection.execution_options(postgresql_readonly=read_only)  # other dialects pass over it
            self.connection.begin()

    def commit(self) -> None:
        with self._driver._translated():
            self.connection.commit()

    def update(self, sql: str, parameter_rows: Iterable[Sequence[Any]] | None = None) -> int:
        if keyword(sql, self._driver.syntax) in _CONTROL:
            raise StatementError(
                "The statement is not allowed here: it would reach files, settings or transactions.", sql=sql
            )
        self.connection.info[_CHANGED] = True
        if parameter_rows is None:
            options = {"no_parameters": True}
            return self.run(lambda conn: conn.exec_driver_sql(sql, execution_options=options), sql)
        changed = 0
        for row in parameter_rows:
            text, values = self._driver._bound(sql, row)
            changed += self.run(lambda conn, text=text, values=values: conn.exec_driver_sql(text, values), sql)  # type: ignore[misc]
        return changed

    def run(self, execute: Callable[[sa.Connection], sa.CursorResult[Any]], sql: str | None = None) -> int:
        self.finish()
        driver = self._driver
        with interruptible(self._cancellation, lambda: driver._interrupt(self.connection)), driver._translated(sql):
            result = execute(self.connection)
            changed = max(result.rowcount, 0)
            result.close()
            return changed


def _table(name: str, *columns: sa.Column[Any]) -> sa.Table:
    """By its name, with or without a schema before it."""
    schema, _, table = name.rpartition(".")
    return sa.Table(table, sa.MetaData(), *columns, schema=schema or None)


def _arrays(kinds: Sequence[Kind], rows: Sequence[tuple[Any, ...]], row: int) -> list[pa.Array]:
    return [array(kind, values, row) for kind, values in zip(kinds, columns_of(rows, len(kinds)), strict=True)]


def _raise(error: Exception, sql: str | None) -> NoReturn:
    if isinstance(error, exc.DBAPIError) and error.connection_invalidated:
        raise DatabaseUnavailableError("The connection to the database was lost.") from error
    original = getattr(error, "orig", None) or error
    parts = [str(part) for part in original.args if isinstance(part, str)] or [str(original)]
    message = next((line.strip() for line in parts[0].splitlines() if line.strip()), "The statement failed")
    name = type(original).__name__
    if name in ("InterfaceError", "ProgrammingError") and "type" in message and "not supported" in message:
        raise ParameterError(f"{message}.") from error
    raise StatementError(
        message.rstrip(".") + ".", sql=sql, sqlstate=getattr(original, "sqlstate", None) or None
    ) from error
