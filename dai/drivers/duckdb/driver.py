"""DuckDB in this process, through its relation API, which streams Arrow batches.

Statements reach no file, extension or setting (``enable_external_access`` is off and the configuration locked), queries
run in read-only transactions. DuckDB keeps one instance a file and process; connections are its cursors, each for one
query or transaction: they cost next to nothing, and temporary tables, macros and the seed of random() go with them.
Types that Arrow does not have (or not losslessly) are cast in the query's outermost projection: see
``dai.drivers.duckdb.types``.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection, StatementType
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from dai.drivers import CallResult, DriverOptions, Session
from dai.drivers.connections import bulk_load as bulk
from dai.drivers.connections.interrupts import interruptible
from dai.drivers.connections.pool import Pool
from dai.drivers.connections.pooled import PooledDriver, PooledSession, Release
from dai.drivers.connections.rows import MOST_ROWS, field
from dai.drivers.duckdb import catalog as schema_of
from dai.drivers.duckdb.errors import answering, fatal_errors, translated
from dai.drivers.duckdb.names import TELLING, check_names
from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.duckdb.types import huge, kind_of, missing, of_huge, target, with_huge
from dai.drivers.sql.ddl import matched, quoted, quoted_table
from dai.drivers.sql.lexer import Bound, bind_markers, check_count, single_query, tokens
from dai.drivers.sql.query_tables import Tables
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    DataError,
    NotAQueryError,
    ParameterError,
    StatementError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

_CONFIG: dict[str, str | bool | int | float | list[str]] = {"enable_external_access": False}
SPILL_BYTES = 16 << 30
"""That queries of a database write into temporary files where its memory is limited."""
_CONFIGURING = threading.Lock()
"""Drivers of one file share its settings, which are locked once."""
_QUERIES = {StatementType.SELECT, StatementType.EXPLAIN}
_COUNTED = {StatementType.INSERT, StatementType.UPDATE, StatementType.DELETE, StatementType.MERGE_INTO}
_REFUSED = {
    StatementType.TRANSACTION,
    StatementType.ATTACH,
    StatementType.DETACH,
    StatementType.SET,
    StatementType.VARIABLE_SET,
    StatementType.PRAGMA,
    StatementType.LOAD,
    StatementType.EXTENSION,
    StatementType.COPY,
    StatementType.COPY_DATABASE,
    StatementType.EXPORT,
}
_VECTOR_ROWS = 2048
MEMORY = ":memory:"


class DuckDB(PooledDriver[DuckDBPyConnection]):
    """``Driver`` over one DuckDB database, opened when it is first used; each query has a cursor of its own."""

    dialect = "duckdb"
    syntax = SYNTAX
    telling = TELLING

    def __init__(self, path: str, options: DriverOptions) -> None:
        super().__init__(options)
        self._path, self._memory = path, options.memory
        self._root: DuckDBPyConnection | None = None
        self._looked_after = 0
        self._opening = threading.Lock()
        self._pool = Pool(
            self._cursor,
            lambda cursor: cursor.close(),
            limit=self._limit,
            idle=options.idle,
            interrupt=lambda cursor: cursor.interrupt(),
        )

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> DuckDB:
        try:
            path = make_url(url).database
        except (ArgumentError, ValueError) as error:
            raise ConfigurationError("The URL of the DuckDB database cannot be read.") from error
        return cls(path or MEMORY, options)

    def product(self) -> str:
        return f"DuckDB {duckdb.__version__}"

    def call(
        self, procedure: str, parameters: Sequence[tuple[str, Any]], *, cancellation: Cancellation
    ) -> AbstractContextManager[CallResult]:
        raise ParameterError("DuckDB has no stored procedures.", hint="Send the statements themselves.")

    def _insert(self, session: Session, table: str, schema: pa.Schema, transactional: bool) -> bulk.Insert:
        if not isinstance(session, _Session):
            raise TypeError("A session of another driver.")
        types = schema_of.column_types(session.connection, table)
        names = matched(schema.names, list(types), table)
        columns = ", ".join(quoted(name, self.syntax) for name in names)
        statement = f"INSERT INTO {quoted_table(table, self.syntax)} ({columns}) SELECT * FROM dai_load"
        wanted = [target(column, types[name]) for column, name in zip(schema, names, strict=True)]

        def insert(batch: pa.RecordBatch, row: int) -> int:
            arrays = []
            for column, type, name in zip(batch.columns, wanted, names, strict=True):
                try:
                    arrays.append(column.cast(type))
                except pa.ArrowInvalid as error:
                    raise DataError(
                        f"Column {name!r}, rows {row} to {row + batch.num_rows - 1}: a {column.type} does not fit "
                        f"a {type}.",
                        column=name,
                    ) from error
            return session.insert(statement, pa.table(arrays, names=[str(at) for at in range(len(arrays))]))

        return insert

    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        with self._pool.connection(Cancellation()) as cursor, translated():
            return schema_of.tables(cursor, pattern)

    def statistics(self, table: str) -> Statistics:
        with self._pool.connection(Cancellation()) as cursor, translated():
            return schema_of.statistics(cursor, table)

    def check(self) -> float:
        start = time.perf_counter()
        with self._pool.connection(Cancellation()) as cursor, translated():
            cursor.execute("SELECT 1").fetchall()
        return time.perf_counter() - start

    def close(self) -> None:
        super().close()
        with self._opening:
            if self._root is not None:
                # In use by somebody who asks for statistics: closed when that ends.
                with contextlib.suppress(duckdb.Error):
                    self._root.close()
                if self._path != MEMORY:
                    with contextlib.suppress(OSError):
                        os.rmdir(f"{self._path}.tmp")

    def _cursor(self) -> DuckDBPyConnection:
        with self._opening, translated():
            if self._root is not None and self._looked_after != (now := fatal_errors()):
                self._looked_after = now
                self._root = answering(self._root)
            self._root = self._opened(self._root)
            return self._root.cursor()

    def _opened(self, root: DuckDBPyConnection | None) -> DuckDBPyConnection:
        """The database as it is to be asked now; None: it was not opened yet."""
        if root is not None:
            return root
        self._check_file()
        if self._path != MEMORY:
            with contextlib.suppress(OSError):  # DuckDB would let everybody read what does not fit in memory
                os.mkdir(f"{self._path}.tmp", 0o700)
        root = duckdb.connect(self._path, config=_CONFIG)
        self._locked(root)
        return root

    def _locked(self, root: DuckDBPyConnection) -> None:
        with _CONFIGURING:
            with contextlib.suppress(duckdb.Error):  # without ICU, time zones are UTC anyway
                root.execute("SET GLOBAL TimeZone = 'UTC'")
            if not root.execute("SELECT current_setting('lock_configuration')").fetchall()[0][0]:
                if self._memory:
                    root.execute(f"SET GLOBAL memory_limit = '{self._memory}'")
                    root.execute(f"SET GLOBAL max_temp_directory_size = '{SPILL_BYTES}B'")
                root.execute("SET GLOBAL lock_configuration = true")  # once for all drivers of the same file

    def _check_file(self) -> None:
        """DuckDB would ask for an extension that reads files of SQLite."""
        with contextlib.suppress(OSError), open(self._path, "rb") as file:
            if file.read(16) == b"SQLite format 3\0":
                raise DatabaseUnavailableError(
                    "The file is not a DuckDB database.", hint="It is a SQLite database: write sqlite:///…"
                )

    def _session(self, connection: DuckDBPyConnection, cancellation: Cancellation) -> _Session:
        return _Session(self, connection, cancellation)

    def takes_tables(self) -> bool:
        return True

    def _add_tables(self, connection: DuckDBPyConnection, tables: Tables, cancellation: Cancellation) -> None:
        with translated():
            for name, table in tables.items():
                connection.register(name, table)

    def _forget(self, connection: DuckDBPyConnection, names: Sequence[str]) -> None:
        """They go with the connection."""

    def _release(self, connection: DuckDBPyConnection, broken: bool) -> None:
        self._pool.discard(connection)

    def _check(self, query: str) -> None:
        """StatementError for what would tell of the service."""
        check_names(query, self.telling)

    def stream(
        self,
        connection: DuckDBPyConnection,
        sql: str,
        parameters: Sequence[Any],
        cancellation: Cancellation,
        batch_rows: int | None,
        release: Release[DuckDBPyConnection],
    ) -> Stream:
        query = single_query(sql, self.syntax)
        self._check(query)
        bound = bind_markers(query, "qmark", self.syntax) if parameters else Bound(query, 0)
        if parameters:
            check_count(bound.count, len(parameters))
        with (
            translated(sql, bound, connection),
            interruptible(cancellation, connection.interrupt, here=True),
        ):
            statements = connection.extract_statements(bound.sql)
            if len(statements) != 1 or kind_of(statements[0]) not in _QUERIES:
                raise NotAQueryError(
                    "This is not a single query; nothing was run.",
                    sql=sql,
                    hint="Send one SELECT. A PIVOT must name its values: PIVOT t ON a IN (…).",
                )
            relation = connection.sql(bound.sql, params=list(parameters) if parameters else None)
            columns = [huge(at, name, type) for at, (name, type) in enumerate(_columns(relation), 1)]
            if any(column.cast for column in columns):
                relation = relation.project(", ".join(column.sql for column in columns))
            reader = relation.to_arrow_reader(_VECTOR_ROWS)
        schema = pa.schema([field(column.name, column.type, column.type_name) for column in columns])
        broken = False

        def read() -> pa.RecordBatch | None:
            nonlocal broken
            broken = True
            with translated(sql, bound), interruptible(cancellation, connection.interrupt, here=True):
                batch = next(reader, None)
            broken = False
            return batch

        def close() -> None:
            with contextlib.suppress(duckdb.Error, OSError):
                reader.close()
            release(connection, broken)

        try:
            first = read()
        except BaseException:
            with contextlib.suppress(duckdb.Error, OSError):
                reader.close()
            raise
        schema = with_huge(schema, first)
        record_batches = self._batches(first, read, schema)
        stream = Stream(schema, record_batches, close)
        return stream if batch_rows is None else stream.rebatch(batch_rows)

    def _batches(
        self, first: pa.RecordBatch | None, read: Callable[[], pa.RecordBatch | None], schema: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        """DuckDB's vectors, the first as it comes, the others joined to about ``batch_bytes``."""
        row, wanted = 1, 0
        while first is not None:
            parts, size = [_typed(first, schema, row)], first.nbytes
            row += first.num_rows
            rows = first.num_rows
            first = None
            while size < wanted and rows < MOST_ROWS and (first := read()) is not None:
                parts.append(_typed(first, schema, row))
                row, rows, size = row + first.num_rows, rows + first.num_rows, size + first.nbytes
            yield parts[0] if len(parts) == 1 else pa.concat_batches(parts)
            wanted = self._options.batch_bytes
            first = read()


class _Session(PooledSession[DuckDBPyConnection]):
    def begin(self, *, read_only: bool) -> None:
        with translated():
            self.connection.execute(f"BEGIN TRANSACTION{' READ ONLY' if read_only else ''}")

    def commit(self) -> None:
        with translated():
            self.connection.execute("COMMIT")

    def update(self, sql: str, parameter_rows: Iterable[Sequence[Any]] | None = None) -> int:
        self.finish()
        bound = Bound(sql, 0) if parameter_rows is None else bind_markers(sql, "qmark", SYNTAX)
        with (
            translated(sql, bound, self.connection),
            interruptible(self._cancellation, self.connection.interrupt, here=True),
        ):
            statements = self.connection.extract_statements(bound.sql)
            if len(statements) != 1:
                raise StatementError("Send one statement at a time.", sql=sql)
            statement = statements[0]
            kind = kind_of(statement)
            check_names(sql, TELLING)
            words = (sql[start:end].upper() for each, start, end in tokens(sql, SYNTAX) if each == "word")
            renames = kind == StatementType.ALTER and [*islice(words, 2)] == ["ALTER", "DATABASE"]  # for everybody
            if kind is None or kind in _REFUSED or renames:
                raise StatementError(
                    "The statement is not allowed here: it would reach files, settings or transactions.", sql=sql
                )
            changed = 0
            for row in [()] if parameter_rows is None else parameter_rows:
                self._cancellation.check()
                check_count(bound.count, len(row))
                result = self.connection.execute(statement, list(row) or None)
                if kind in _COUNTED:
                    changed += _changed(result)
            return changed

    def insert(self, statement: str, rows: pa.Table) -> int:
        self.finish()
        with translated(statement), interruptible(self._cancellation, self.connection.interrupt, here=True):
            self.connection.register("dai_load", rows)
            try:
                self.connection.execute(statement)
            except duckdb.Error:
                # The transaction is aborted: to unregister would raise that in place of the cause.
                with contextlib.suppress(duckdb.Error):
                    self.connection.unregister("dai_load")
                raise
            self.connection.unregister("dai_load")
        return int(rows.num_rows)


def _changed(result: DuckDBPyConnection) -> int:
    """The count that DuckDB gives for a change, or the rows it returned."""
    names = [column[0] for column in result.description or ()]
    rows = result.fetchall()
    return int(rows[0][0]) if names == ["Count"] and len(rows) == 1 else len(rows)


def _columns(relation: Any) -> list[tuple[str, Any]]:
    return list(zip(relation.columns, relation.types, strict=True))


def _typed(batch: pa.RecordBatch, schema: pa.Schema, row: int) -> pa.RecordBatch:
    """The batch in our types. DataError for infinite dates and timestamps and for 24:00, which Arrow does not have."""
    arrays = []
    for column, wanted in zip(batch.columns, schema, strict=True):
        if problem := missing(column):
            what, at = problem
            raise DataError(
                f"Column {wanted.name!r}, row {row + at}: {what}.",
                hint=f'Select CAST("{wanted.name}" AS VARCHAR) to get the column as text.',
                column=wanted.name,
                row=row + at,
            )
        if pa.types.is_struct(column.type):
            column = of_huge(column, wanted.type)
            if isinstance(column, int):
                raise DataError(
                    f"Column {wanted.name!r}, row {row + column}: a number of 39 digits after rows with shorter ones.",
                    hint=f'Select CAST("{wanted.name}" AS VARCHAR) to get the column as text.',
                    column=wanted.name,
                    row=row + column,
                )
        arrays.append(column if column.type == wanted.type else column.cast(wanted.type))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
