"""PostgreSQL: few rows and everything else by psycopg, many rows from its socket, or by ADBC where they cannot be read
there; one limit of connections for all.

The modules: ``wire`` sends statements, ``types`` says what each column becomes, ``read`` describes queries and reads
few rows (``decode`` makes arrays of them), ``rows`` reads many, or ``bulk`` does, ``write`` changes, calls and loads
(by the CSV of ``copy``), ``catalog`` reflects, ``errors`` translates what the database refuses.
"""

from __future__ import annotations

import re
import select
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import adbc_driver_manager as adbc
import adbc_driver_postgresql  # type: ignore[import-untyped]
import psycopg
from psycopg.conninfo import make_conninfo

from dai.drivers import NO_TABLES, CallResult, Driver, DriverOptions, Session
from dai.drivers.connections.interrupts import interruptible
from dai.drivers.connections.pool import Limit, Pool
from dai.drivers.postgresql.bulk import bulk
from dai.drivers.postgresql.catalog import FUNCTION_NAMES, TABLE_NAMES, statistics, tables
from dai.drivers.postgresql.errors import from_adbc, from_psycopg
from dai.drivers.postgresql.read import (
    Description,
    Descriptions,
    Query,
    Stale,
    batch_bytes_for,
    is_small,
    prepared_query,
    small,
)
from dai.drivers.postgresql.rows import copied, readable, shapes_of
from dai.drivers.postgresql.syntax import SYNTAX
from dai.drivers.postgresql.wire import Connection, dumped, settle
from dai.drivers.postgresql.write import LOOK, SETTINGS, PostgreSQLSession, call, load, prepare
from dai.drivers.sql.lexer import single_query
from dai.drivers.sql.query_tables import Tables, checked
from dai.drivers.sql.suggestions import function_hint, name_hint
from dai.drivers.statements import traced
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import ConfigurationError, DatabaseUnavailableError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

MOST_ROWS = 1 << 31
_NO_TABLE, _NO_FUNCTION = "42P01", "42883"
_AT_ONCE = 0.5
"""Seconds."""
_UNKNOWN = ("42", "0A")
"""Classes of SQLSTATE: a name that is not there, a plan that fits no more."""


class PostgreSQL(Driver):
    """See ``Driver``. Every query runs in a read-only transaction that is rolled back, so neither what it set nor what
    it locked meets the next user of its connection."""

    dialect = "postgres"
    syntax = SYNTAX

    def __init__(self, conninfo: str, uri: str, options: DriverOptions) -> None:
        self._conninfo, self._uri, self._options = conninfo, uri, options
        self._descriptions = Descriptions()
        self._product: str | None = None
        self._database: adbc.AdbcDatabase | None = None
        self._database_lock = threading.Lock()
        self._limit = Limit(options.pool_size, options.pool_wait, options.within)
        self._connections: Pool[Connection] = Pool(
            self._connect,
            lambda connection: connection.close(),
            limit=self._limit,
            idle=options.idle,
            check=_answers,
            alive=lambda connection: _quiet(connection, options.connect_wait),
            interrupt=lambda connection: connection.cancel_safe(timeout=5.0),
        )
        self._copiers: Pool[adbc.AdbcConnection] = Pool(
            self._connect_adbc,
            lambda connection: connection.close(),
            limit=self._limit,
            idle=options.idle,
            check=_copier_answers,
            interrupt=lambda connection: connection.cancel(),
        )

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> PostgreSQL:
        """``postgresql://user:password@host:port/database?option=value`` with libpq's options; the SQLAlchemy form
        ``postgresql+psycopg://`` is the same."""
        try:
            parts = urlsplit(url)
            query = dict(parse_qsl(parts.query))
            query.setdefault("connect_timeout", str(max(2, round(options.connect_wait))))
            query.setdefault("application_name", "dai")
            uri = parts._replace(scheme="postgresql", query=urlencode(query, quote_via=quote)).geturl()
            conninfo = make_conninfo(uri)
        except (ValueError, psycopg.Error) as error:
            raise ConfigurationError(
                "The URL of a PostgreSQL database cannot be read.",
                hint="It looks like postgresql://user:password@host:port/database; percent-encode special characters.",
            ) from error
        return cls(conninfo, uri, options)

    def product(self) -> str:
        if self._product is None:
            with self._connections.connection(Cancellation()) as connection:
                version = connection.info.parameter_status("server_version") or ""
            self._product = f"PostgreSQL {version.split(' ')[0]}"
        return self._product

    def takes_tables(self) -> bool:
        return True

    @traced
    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Tables = NO_TABLES,
    ) -> Stream:
        text = single_query(sql, self.syntax)
        tables = checked(tables) if tables else tables
        attempts = 0
        while True:
            attempts += 1
            began = time.monotonic()
            try:
                with self._suggesting(cancellation):
                    return self._query(text, parameters, cancellation, batch_rows or MOST_ROWS, tables)
            except Stale:
                if attempts > 2:
                    raise DatabaseUnavailableError(
                        "Other transactions kept changing the definitions of the query's tables.", hint="Try again."
                    ) from None
            except DatabaseUnavailableError:
                # Nothing was handed over, and a query changes nothing: connections that died idle cost one retry. They
                # say so at once; a statement that has run for a while was ended by somebody who means it.
                if attempts > 1 or self._limit.closed or time.monotonic() - began > _AT_ONCE:
                    raise
                self._connections.clear()
                self._copiers.clear()

    def _query(
        self, sql: str, parameters: Sequence[Any], cancellation: Cancellation, batch_rows: int, tables: Tables
    ) -> Stream:
        connection = self._connections.take(cancellation)
        release = self._releaser(connection)
        try:
            query = prepared_query(sql, dumped(connection, parameters), tables)
            cached = self._descriptions.get(query)
            description = cached or self._describe(connection, query, cancellation, plan=True)
            if is_small(description, self._options.batch_bytes) or not query.copyable:
                try:
                    return self._small(connection, query, description, release, cancellation, batch_rows)
                except StatementError as error:
                    if cached is not None and (error.sqlstate or "").startswith(_UNKNOWN):
                        raise Stale from error  # our projection may name columns that are no more
                    raise
            rows = description.rows
            if self._options.read_sockets and readable(connection) and shapes_of(description) is not None:
                return copied(
                    connection,
                    query,
                    self._descriptions,
                    rows=rows,
                    release=release,
                    cancellation=cancellation,
                    batch_rows=batch_rows,
                )
            description = self._describe(connection, query, cancellation, plan=False)
            description.rows = rows
        except BaseException:
            release(False)
            raise
        release(True)
        try:
            return bulk(
                self._copiers,
                query,
                description,
                cancellation=cancellation,
                batch_rows=batch_rows,
                batch_bytes=batch_bytes_for(description, self._options.batch_bytes),
            )
        except Stale:
            self._descriptions.forget(query)
            raise

    def _small(
        self,
        connection: Connection,
        query: Query,
        description: Description,
        release: Callable[[bool], None],
        cancellation: Cancellation,
        batch_rows: int,
    ) -> Stream:
        try:
            return small(
                connection,
                query,
                description,
                release=release,
                cancellation=cancellation,
                batch_rows=batch_rows,
                batch_bytes=self._options.batch_bytes,
            )
        except BaseException:
            self._descriptions.forget(query)
            raise

    def _describe(self, connection: Connection, query: Query, cancellation: Cancellation, *, plan: bool) -> Description:
        with interruptible(cancellation, lambda: connection.cancel_safe(timeout=5.0)):
            return self._descriptions.describe(connection, query, plan=plan)

    def _releaser(self, connection: Connection) -> Callable[[bool], None]:
        """Gives the connection back, once: to the pool when clean, closed otherwise."""
        lock = threading.Lock()
        done = False

        def release(clean: bool) -> None:
            nonlocal done
            with lock:
                if done:
                    return
                done = True
            usable = clean or connection.pgconn.pipeline_status == psycopg.pq.PipelineStatus.OFF
            idle = connection.unread or connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            (self._connections.give_back if usable and idle else self._connections.discard)(connection)

        return release

    @contextmanager
    def transaction(self, *, cancellation: Cancellation, read_only: bool = False) -> Iterator[Session]:
        with self._suggesting(cancellation), self._connections.connection(cancellation) as connection:
            session = PostgreSQLSession(connection, self._descriptions, cancellation, self._options.batch_bytes)
            with session.transaction(read_only=read_only):
                yield session

    @contextmanager
    def _suggesting(self, cancellation: Cancellation) -> Iterator[None]:
        """Names the table or the function that a misspelt one probably meant, if a connection is free to look."""
        try:
            yield
        except StatementError as error:
            named = re.search(r'"(.+)"', error.detail)
            if error.sqlstate == _NO_TABLE and error.hint is None and named is not None:
                with suppress(Exception):
                    table = named.group(1)
                    error.hint = name_hint(table, self._quoted_names(TABLE_NAMES, ["." in table], cancellation))
            elif error.sqlstate == _NO_FUNCTION and (called := re.match(r"function (\w+)\(", error.detail)):
                with suppress(Exception):
                    near = self._quoted_names(FUNCTION_NAMES, [], cancellation)
                    error.hint = function_hint(called.group(1), near) or error.hint
            raise

    def _quoted_names(self, names: str, values: list[Any], cancellation: Cancellation) -> dict[str, str]:
        with (
            self._connections.connection(cancellation, wait=0.0) as connection,
            interruptible(cancellation, lambda: connection.cancel_safe(timeout=5.0)),
            psycopg.RawCursor(connection) as cursor,
        ):
            rows = cursor.execute(names.encode(), values).fetchall()
        return {plain: quoted for plain, _, quoted in rows}

    def call(
        self, procedure: str, parameters: Sequence[tuple[str, Any]], *, cancellation: Cancellation
    ) -> AbstractContextManager[CallResult]:
        return call(self.transaction(cancellation=cancellation), procedure, parameters)

    def load(
        self,
        table: str,
        stream: Stream,
        *,
        cancellation: Cancellation,
        create: bool = False,
        transactional: bool = True,
    ) -> int:
        return load(self, table, stream, cancellation=cancellation, create=create, transactional=transactional)

    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        with self._connections.connection(Cancellation()) as connection:
            return tables(connection, pattern, self._descriptions)

    def statistics(self, table: str) -> Statistics:
        with self._connections.connection(Cancellation()) as connection:
            return statistics(connection, table)

    def check(self) -> float:
        start = time.perf_counter()
        connection = self._connections.take(Cancellation())
        if not _answers(connection):
            self._connections.discard(connection)
            self._connections.clear()
            connection = self._connections.take(Cancellation())
        self._connections.give_back(connection)
        return time.perf_counter() - start

    def alive(self, seconds: float) -> bool:
        try:
            psycopg.connect(self._conninfo, connect_timeout=max(2, round(seconds))).close()
        except psycopg.errors.ConnectionTimeout:
            return False
        except psycopg.Error:
            return True  # it says something, or the system says it for it: so will every statement
        return True

    def pool_state(self) -> dict[str, int]:
        return self._limit.state()

    def close(self) -> None:
        self._connections.close()
        with self._database_lock, suppress(adbc.Error):
            # Streams still open hold their connection, and each connection its database.
            if self._database is not None and self._limit.open == 0:
                self._database.close()

    def _connect(self) -> Connection:
        try:
            connection = Connection.connect(
                self._conninfo, autocommit=True, prepare_threshold=None, client_encoding="utf-8"
            )
            try:
                prepare(connection)
            except BaseException:
                connection.close()
                raise
        except psycopg.Error as error:
            raise from_psycopg(error, connecting=True) from error
        return connection

    def _connect_adbc(self) -> adbc.AdbcConnection:
        try:
            with self._database_lock:
                if self._database is None:  # knows the server's types, which takes longer than connecting
                    self._database = adbc_driver_postgresql.connect(self._uri)
            connection = adbc.AdbcConnection(self._database)
        except adbc.Error as error:
            raise from_adbc(error) from error
        for sql in (SETTINGS, LOOK):
            with suppress(adbc.Error), adbc.AdbcStatement(connection) as statement:
                statement.set_sql_query(sql)
                statement.execute_update()
        return connection


def _quiet(connection: Connection, seconds: float) -> bool:
    """Once it is settled an idle connection has nothing to say; where there is something to read, the server has gone
    or said so. A wait of ``settle`` ends after so many seconds: nobody could cancel it."""
    if connection.closed:
        return False
    settle(connection, seconds)
    poll = select.poll()
    poll.register(connection.pgconn.socket, select.POLLIN)
    return not poll.poll(0)


def _answers(connection: Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


def _copier_answers(connection: adbc.AdbcConnection) -> bool:
    with adbc.AdbcStatement(connection) as statement:
        statement.set_sql_query("ROLLBACK")
        statement.execute_update()
    return True
