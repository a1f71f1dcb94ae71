"""SQLite, the embedded default, through the standard library.

Queries run on connections opened read-only, updates on others; an authorizer keeps every statement from other files
(ATTACH, VACUUM INTO, extensions) and from PRAGMA, and keeps queries from changing anything. A file that is not there is
made by the first update, in WAL mode, so that readers and a writer do not wait for each other; the mode of an existing
file is left alone. ``sqlite://`` without a file is a temporary one that lives as long as the driver.

Results of many rows are read by ADBC, which takes a third of the time or less, in processes of their own (``readers``):
it has neither declared types nor an authorizer nor an interrupt. See docs/decisions/ for the record.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import filterfalse
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from dai.drivers import CallResult, DriverOptions, Session
from dai.drivers.connections import bulk_load as bulk
from dai.drivers.connections.interrupts import interruptible
from dai.drivers.connections.pool import Pool
from dai.drivers.connections.pooled import PooledDriver, PooledSession, Release
from dai.drivers.connections.rows import FIRST_ROWS, Portions
from dai.drivers.sql.ddl import column_type, create_table, matched, quoted, quoted_table
from dai.drivers.sql.lexer import bind_markers, single_query, tokens
from dai.drivers.sql.query_tables import Tables
from dai.drivers.sqlite import catalog as schema_of
from dai.drivers.sqlite.checks import check
from dai.drivers.sqlite.connection import Connection
from dai.drivers.sqlite.errors import is_locked, locked, translated
from dai.drivers.sqlite.handover import Begun, Handover
from dai.drivers.sqlite.readers import Query, Readers, readable
from dai.drivers.sqlite.statement import Statement
from dai.drivers.sqlite.syntax import SYNTAX
from dai.drivers.sqlite.types import arrays, bound_row, chosen, storable
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import (
    BusyError,
    ConfigurationError,
    DatabaseUnavailableError,
    NotAQueryError,
    ParameterError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

_WAITED_FOR_SECONDS = 0.05
_INSERT_ROWS = 10_000
"""Of a query-scoped table, put in at once."""
_BEFORE_A_VALUE = frozenset({"(", ",", "|", "SELECT", "THEN", "ELSE"})


def _reserved(name: str) -> bool:
    return name.lower().startswith("sqlite_")


def _stored(sql: str) -> frozenset[int]:
    """The markers for what VALUES, SET or the query of an INSERT store, as they are or by a function; not those of
    other queries, of conditions and comparisons."""
    code = [(kind, sql[start:end].upper()) for kind, start, end in tokens(sql, SYNTAX, lists=True) if kind != "comment"]
    texts = ["", "", "", *(text if kind in ("word", "symbol") else kind for kind, text in code), ""]
    stored, storing, marker = set(), [""], 0
    for at, text in enumerate(texts):
        before = texts[at - 1]
        if text in ("(", "CASE"):
            storing.append("" if before == "IN" or storing[-1] == "SELECT" else storing[-1])
        elif text in (")", "END") and len(storing) > 1:
            storing.pop()
        elif text in ("VALUES", "SET", "SELECT"):
            storing[-1] = text if len(storing) == 1 else ""
        elif text in ("FROM", "WHERE", "WHEN"):
            storing[-1] = ""
        elif text == "THEN" and len(storing) > 1:
            storing[-1] = storing[-2]
        elif text == "marker":
            marker += 1
            begins = before in _BEFORE_A_VALUE or (before == "=" and texts[at - 3] in ("SET", ","))
            if storing[-1] and begins and texts[at + 1] not in ("<", ">", "=", "!"):
                stored.add(marker)
    return frozenset(stored)


class SQLite(PooledDriver[Connection]):
    """``Driver`` over the standard library's sqlite3. Queries have connections that are open for reading only;
    ``temporary`` is the directory of a database in memory, removed when the driver is closed."""

    dialect = "sqlite"
    syntax = SYNTAX
    comments = False

    def __init__(self, path: Path, options: DriverOptions, temporary: tempfile.TemporaryDirectory[str] | None) -> None:
        super().__init__(options)
        self._path, self._temporary = path, temporary
        self._readers, self._pool = self._pool_for(read_only=True), self._pool_for(read_only=False)
        self._processes = Readers(self._uri(read_only=True))

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> SQLite:
        try:
            path = make_url(url).database
        except (ArgumentError, ValueError) as error:
            raise ConfigurationError("The URL of the SQLite database cannot be read.") from error
        if path and path != ":memory:":
            return cls(Path(path), options, None)
        temporary = tempfile.TemporaryDirectory(prefix="dai-sqlite-")
        return cls(Path(temporary.name) / "memory.db", options, temporary)

    def product(self) -> str:
        return f"SQLite {sqlite3.sqlite_version}"

    def call(
        self, procedure: str, parameters: Sequence[tuple[str, Any]], *, cancellation: Cancellation
    ) -> AbstractContextManager[CallResult]:
        raise ParameterError("SQLite has no stored procedures.", hint="Send the statements themselves.")

    def _insert(self, session: Session, table: str, schema: pa.Schema, transactional: bool) -> bulk.Insert:
        if not isinstance(session, _Session):
            raise TypeError("A session of another driver.")
        declared = schema_of.declared_types(session.connection.run, table)
        names = matched(schema.names, list(declared), table)
        columns = ", ".join(quoted(name, self.syntax) for name in names)
        marks = ", ".join("?" * len(names))
        statement = f"INSERT INTO {quoted_table(table, self.syntax)} ({columns}) VALUES ({marks})"

        def insert(batch: pa.RecordBatch, row: int) -> int:
            values = [
                storable(column, name, declared[name], row) for name, column in zip(names, batch.columns, strict=True)
            ]
            return session.insert(statement, zip(*values, strict=True))

        return insert

    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        with self._reading() as connection:
            return schema_of.tables(connection.run, connection.shortly, pattern)

    def unreadable(self) -> Mapping[str, str]:
        with self._reading() as connection:
            return schema_of.tables_and_others(connection.run, connection.shortly, "%")[1]

    def statistics(self, table: str) -> Statistics:
        self._processes.expect(self._path)
        with self._reading() as connection:
            return schema_of.statistics(connection.run, table)

    def check(self) -> float:
        start = time.perf_counter()
        with self._reading() as connection:
            connection.run("SELECT 1 FROM sqlite_master LIMIT 1")
        return time.perf_counter() - start

    def close(self) -> None:
        super().close()
        self._processes.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    # Connections

    def _uri(self, *, read_only: bool) -> str:
        return f"file:{quote(os.fspath(self._path.absolute()))}?mode={'ro' if read_only else 'rwc'}"

    def _pool_for(self, *, read_only: bool) -> Pool[Connection]:
        def connect() -> Connection:
            try:
                return Connection(self._uri(read_only=read_only), read_only, self._options.connect_wait)
            except (sqlite3.Error, UnicodeDecodeError) as error:
                if not self._path.exists():
                    raise DatabaseUnavailableError(
                        "The SQLite database file does not exist.",
                        hint="Check the path: sqlite:///file.db from where the configuration is, "
                        "sqlite:////srv/file.db.",
                    ) from error
                if isinstance(error, sqlite3.Error) and is_locked(error):
                    raise locked() from error
                raise DatabaseUnavailableError("The SQLite database file cannot be opened.") from error

        return Pool(
            connect,
            lambda connection: connection.raw.close(),
            limit=self._limit,
            idle=self._options.idle,
            interrupt=lambda connection: connection.raw.interrupt(),
        )

    def _pool_of(self, connection: Connection) -> Pool[Connection]:
        return self._readers if connection.read_only else self._pool

    def _take(self, cancellation: Cancellation, *, read_only: bool) -> Connection:
        if not read_only:
            return self._pool.take(cancellation)
        if self._temporary is not None and not self._path.exists():
            self._pool.give_back(self._pool.take(cancellation))
        if os.path.exists(f"{self._path}-journal"):
            self._recover(cancellation)
        return self._readers.take(cancellation)

    def _recover(self, cancellation: Cancellation) -> None:
        """Undoes what a writer did that was killed: connections that only read cannot, and refuse every query. Does
        nothing where the writer is at work."""
        connection = self._pool.take(cancellation)
        try:
            connection.run("SELECT 1 FROM sqlite_master LIMIT 1")
        except sqlite3.Error as error:
            if is_locked(error):  # of anything else the query says what is wrong
                raise locked() from error
        finally:
            self._release(connection, False)

    def _session(self, connection: Connection, cancellation: Cancellation) -> _Session:
        return _Session(self, connection, cancellation)

    def _begin_query(self, connection: Connection, cancellation: Cancellation) -> None:
        """A query is a transaction of its own."""

    def takes_tables(self) -> bool:
        return True

    def _add_tables(self, connection: Connection, tables: Tables, cancellation: Cancellation) -> None:
        """Temporary tables of the connection's own: the database itself is open for reading only."""
        if reserved := next(filter(_reserved, tables), None):
            raise ParameterError(
                f"SQLite allows no table {reserved!r}: it keeps names that begin with 'sqlite_' for itself.",
                hint="Give the table another name.",
            )
        connection.run("PRAGMA temp_store = MEMORY")
        session = _Session(self, connection, cancellation)
        for name, table in tables.items():
            definition = create_table(name, table.schema, self.syntax).removeprefix("CREATE TABLE")
            types = {each.name: column_type(each, self.syntax) for each in table.schema}
            statement = f"INSERT INTO temp.{quoted(name, self.syntax)} VALUES ({', '.join('?' * len(types))})"
            with translated(connection, self._path), connection.owning():
                connection.raw.execute(f"CREATE TEMP TABLE{definition}")
                connection.raw.execute("BEGIN")
                for batch in table.to_batches(_INSERT_ROWS):
                    columns = zip(types.items(), batch.columns, strict=True)
                    values = [storable(column, each, type, 1) for (each, type), column in columns]
                    session.insert(statement, zip(*values, strict=True))
                connection.raw.execute("COMMIT")

    def _forget(self, connection: Connection, names: Sequence[str]) -> None:
        if connection.raw.in_transaction:
            connection.run("ROLLBACK")
        for name in filterfalse(_reserved, names):
            connection.run(f"DROP TABLE IF EXISTS temp.{quoted(name, self.syntax)}")

    def _release(self, connection: Connection, broken: bool) -> None:
        pool = self._pool_of(connection)
        (pool.discard if broken or connection.used else pool.give_back)(connection)

    def _abandon(self, connection: Connection, cancellation: Cancellation) -> None:
        self._release(connection, True)  # closing rolls back

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        connection = self._take(Cancellation(), read_only=True)
        try:
            with translated(connection, self._path):
                yield connection
        except BaseException:
            self._release(connection, True)
            raise
        self._release(connection, False)

    # Statements

    def stream(
        self,
        connection: Connection,
        sql: str,
        parameters: Sequence[Any],
        cancellation: Cancellation,
        batch_rows: int | None,
        release: Release[Connection],
    ) -> Stream:
        statement = Statement(connection, single_query(sql, self.syntax), bound_row(parameters))
        text, bound = statement.text, statement.bound
        cursor = connection.raw.cursor()
        asking = partial(self._asking, connection, sql, cancellation)
        handover = Handover(self._processes, connection.raw.set_progress_handler, asking)
        portions = Portions(cursor.fetchmany, asking)
        wanted, batch_bytes = min(FIRST_ROWS, batch_rows or FIRST_ROWS), self._options.batch_bytes

        def end() -> None:
            handover.close()
            with contextlib.suppress(sqlite3.Error):
                cursor.close()

        def close() -> None:
            end()
            release(connection, portions.broken)

        def begin() -> tuple[list[tuple[Any, ...]], float]:
            began = time.thread_time()
            cursor.execute(text, bound)
            if cursor.description is None:
                raise NotAQueryError("The statement gives no rows.", sql=sql)
            return cursor.fetchmany(wanted), time.thread_time() - began

        first, rows = None, None
        with contextlib.ExitStack() as failing:
            failing.callback(end)  # or the file would be locked as long as anybody keeps the error
            with asking():
                # Waits where the file is locked, once. Any read makes the connection see tables that others have
                # changed; making a view does not.
                connection.run("SELECT 1 FROM sqlite_schema LIMIT 0")
                statement.find_columns()
                check(connection, text, bound)
                asked = Query(text, bound, statement.promised())
                if self._processes.any() and asked.kinds and readable(asked) and statement.alone and statement.alike:
                    with handover.watched():
                        first = begin()
            if handover.taken:
                rows = handover.first(asked, batch_rows)
            if rows is None:
                if first is None:
                    with asking():
                        first = begin()
                fetched, seconds = first
                portions.at_end = len(fetched) < wanted
                types = [type for _, type in statement.columns]
                kinds = chosen([each[0] for each in cursor.description], types, fetched, portions.at_end)
                asked = Query(text, bound, kinds)
                begun = Begun(arrays(kinds, fetched, 1), len(fetched), seconds, portions, partial(arrays, kinds))
                if portions.at_end or not (readable(asked) and statement.alone):
                    rows = begun.rows(asked.schema, batch_bytes, batch_rows)
                else:
                    rows = handover.rows(asked, begun, batch_bytes, batch_rows, lambda: statement.alike)
            failing.pop_all()
        return Stream(asked.schema, rows, close)

    @contextmanager
    def _asking(
        self, connection: Connection, sql: str, cancellation: Cancellation, stop: Callable[[], None] | None = None
    ) -> Iterator[None]:
        """The block waits for SQLite: a cancellation ends the statement, errors are ours. ``stop`` ends a statement
        that runs elsewhere."""
        interrupt = stop or connection.raw.interrupt
        with translated(connection, self._path, sql), interruptible(cancellation, interrupt, here=stop is None):
            yield


class _Session(PooledSession[Connection]):
    _driver: SQLite

    def begin(self, *, read_only: bool) -> None:
        self._patiently("BEGIN" if read_only else "BEGIN IMMEDIATE")

    def commit(self) -> None:
        self._patiently("COMMIT")

    def _patiently(self, statement: str) -> None:
        """Waits for other users' locks for ``pool_wait`` seconds, and stops waiting when cancelled. BusyError after
        that: whoever writes waits in a queue."""
        until = time.monotonic() + self._driver._options.pool_wait
        with translated(self.connection, self._driver._path):
            while True:
                self._cancellation.check()
                try:
                    self.connection.run(statement)
                    return
                except sqlite3.OperationalError as error:
                    if not is_locked(error):
                        raise
                    if time.monotonic() > until:
                        raise BusyError(locked().detail, hint="Try again later.") from error
                time.sleep(_WAITED_FOR_SECONDS)

    def update(self, sql: str, parameter_rows: Iterable[Sequence[Any]] | None = None) -> int:
        if parameter_rows is None:
            return self._run(sql, lambda cursor: cursor.execute(sql))
        text = bind_markers(sql, "qmark", SYNTAX).sql
        stored = _stored(sql)
        rows = (bound_row(row, stored) for row in parameter_rows)
        return self._run(sql, lambda cursor: cursor.executemany(text, rows))

    def insert(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> int:
        """Rows of values that SQLite takes as they are."""
        return self._run(sql, lambda cursor: cursor.executemany(sql, rows))

    def _run(self, sql: str, run: Callable[[sqlite3.Cursor], object]) -> int:
        self.finish()
        raw = self.connection.raw
        with (
            self._driver._asking(self.connection, sql, self._cancellation),
            contextlib.closing(raw.cursor()) as cursor,
        ):
            run(cursor)
            if cursor.description is not None:
                cursor.fetchall()
            return max(cursor.rowcount, 0)
