"""Changes to a database: transactions, updates, procedures and bulk loads, all by psycopg.

A connection that ran a caller's statements is reset before its next user gets it (DISCARD ALL): settings, temporary
tables, prepared statements and session locks go with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

import psycopg
import pyarrow as pa

from dai.drivers import CallResult, Driver, Session
from dai.drivers.connections import bulk_load as bulk
from dai.drivers.connections.interrupts import interruptible
from dai.drivers.postgresql.catalog import TABLE_NAMES
from dai.drivers.postgresql.copy import csv_bytes
from dai.drivers.postgresql.errors import from_psycopg, unavailable
from dai.drivers.postgresql.read import Description, Descriptions, Query, prepared_query, small
from dai.drivers.postgresql.syntax import SYNTAX
from dai.drivers.postgresql.wire import UNLOCK, Connection, Parameters, check_most, dumped, tidy
from dai.drivers.sql.ddl import create_table, matched, quoted, quoted_table
from dai.drivers.sql.lexer import bind_markers, check_count, keyword, single_query
from dai.drivers.sql.suggestions import name_hint
from dai.errors import NotFoundError, ParameterError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import TYPE_NAME, Stream

MOST_ROWS = 1 << 31
PIPELINED_ROWS = 1_000
REFCURSOR = 1790
LOOK = "SET client_connection_check_interval = '2s'"
"""While a statement works the server looks whether its client is still there: without that the statement of a client
that was killed goes on until it has rows to send. Not every system can."""
_LOOKS = 140_000
"""The version of PostgreSQL from which it can."""
_SETTINGS = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "3",
    "xmlbinary": "base64",
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "quote_all_identifiers": "off",
    "gin_fuzzy_search_limit": "0",
}
"""What the same statement would have other answers by, whatever is set for the role, the database or the server. The
order of day and month in a date that is read stays as it is set there, and so do the schemas to search."""
_PATH = "pg_catalog.current_setting('search_path')"
for _old, _new in (('"pg_catalog"', "pg_catalog"), (", pg_catalog", ""), (",pg_catalog", "")):
    _PATH = f"pg_catalog.replace({_PATH}, '{_old}', '{_new}')"
SETTINGS = "SELECT " + ", ".join(
    f"pg_catalog.set_config('{name}', {value}, false)"
    for name, value in [*((name, f"'{value}'") for name, value in _SETTINGS.items()), ("search_path", _PATH)]
)
"""A path without pg_catalog is searched after it: no function of another schema hides one of PostgreSQL's own."""
_ENDS = frozenset({"BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SAVEPOINT", "RELEASE", "PREPARE"})


def prepare(connection: Connection) -> None:
    """Sets what every session has: SETTINGS, LOOK."""
    connection.execute(SETTINGS.encode())
    if connection.info.server_version >= _LOOKS:
        with suppress(psycopg.Error):
            connection.execute(LOOK.encode())
            connection.looks = True


def renew(connection: Connection) -> None:
    """The same, after everything was discarded that a user has left there. Nobody waits for it: see ``tidy``."""
    tidy(connection, [b"DISCARD ALL", UNLOCK, SETTINGS.encode(), *[LOOK.encode()] * connection.looks])


class PostgreSQLSession(Session):
    """See ``Session``. One thread at a time."""

    def __init__(
        self,
        connection: Connection,
        descriptions: Descriptions,
        cancellation: Cancellation,
        batch_bytes: int,
    ) -> None:
        self.connection, self.cancellation = connection, cancellation
        self._descriptions, self._batch_bytes = descriptions, batch_bytes
        self._open: Stream | None = None

    @contextmanager
    def transaction(self, *, read_only: bool) -> Iterator[None]:
        """Around all the session does; afterwards the connection is as new, or an exception says that it is not."""
        self.execute("BEGIN READ ONLY" if read_only else "BEGIN")
        try:
            yield
            self._close_stream()
            self.cancellation.check()
            self.execute("COMMIT")
        except BaseException:
            if not self.connection.closed:
                self._close_stream()
            raise  # the pool closes the connection, which rolls back
        try:
            renew(self.connection)
        except psycopg.Error:  # what was committed stays so
            self.connection.close()

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Stream:
        text = single_query(sql, SYNTAX)
        self._close_stream()
        query = prepared_query(text, dumped(self.connection, parameters))
        with interruptible(self.cancellation, self.interrupt):
            description = self._descriptions.describe(self.connection, query, transaction=False, plan=False)
        self._descriptions.forget(query)  # it may speak of tables that only this transaction sees
        return self._small(query, description)

    def _small(self, query: Query, description: Description) -> Stream:
        self._close_stream()
        self._open = small(
            self.connection,
            query,
            description,
            release=lambda clean: None,
            cancellation=self.cancellation,
            batch_rows=MOST_ROWS,
            batch_bytes=self._batch_bytes,
            transaction=False,
        )
        return self._open

    def update(self, sql: str, parameter_rows: Iterable[Sequence[Any]] | None = None) -> int:
        first = keyword(sql, SYNTAX)
        if first in _ENDS:
            raise StatementError(
                f"{first} is not allowed here: the service begins and ends the transaction.",
                sql=sql,
                hint="Put statements that belong together into one transaction (sqlBag).",
            )
        self._close_stream()
        if parameter_rows is None:
            return self.execute(sql, caller_sql=sql)
        bound = bind_markers(sql, "dollar", SYNTAX)
        check_most(bound.count)
        changed = 0
        for rows in _portions(parameter_rows, PIPELINED_ROWS):
            for row in rows:
                check_count(bound.count, len(row))
            with self._translated(sql, bound.original), psycopg.RawCursor(self.connection) as cursor:
                cursor.executemany(bound.sql.encode(), rows)
                changed += max(cursor.rowcount, 0)
        return changed

    def execute(self, sql: str, parameters: Sequence[Any] | None = None, caller_sql: str | None = None) -> int:
        """Runs one statement: the number of rows changed."""
        with self._translated(caller_sql), psycopg.RawCursor(self.connection) as cursor:
            # Binary: the extended protocol, which takes one statement only.
            cursor.execute(sql.encode(), parameters, binary=True)
            reads = (cursor.statusmessage or "").startswith(("SELECT", "FETCH", "SHOW"))
            return 0 if reads else max(cursor.rowcount, 0)

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The rows of one of our own statements."""
        with self._translated(None), psycopg.RawCursor(self.connection) as cursor:
            return cursor.execute(sql.encode(), parameters).fetchall()

    def call(self, sql: str, parameters: Sequence[Any]) -> tuple[tuple[Any, ...], list[str]]:
        """CALL: the values of the out parameters, and the names of the cursors among them."""
        with self._translated(None), psycopg.RawCursor(self.connection) as cursor:
            cursor.execute(sql.encode(), parameters)
            row = cursor.fetchone() if cursor.description else None
            if row is None or cursor.description is None:
                return (), []
            opened = [
                value
                for value, column in zip(row, cursor.description, strict=True)
                if column.type_code == REFCURSOR and value is not None
            ]
            return row, opened

    def cursor(self, name: str) -> Stream:
        """What a cursor that a procedure opened has still to give, asked for when it is first pulled."""
        sql = f"FETCH ALL FROM {quoted(name, SYNTAX)}"
        query = prepared_query(sql, Parameters())
        with interruptible(self.cancellation, self.interrupt):
            description = self._descriptions.describe(self.connection, query, transaction=False, plan=False)
        self._descriptions.forget(query)

        def batches() -> Iterator[pa.RecordBatch]:
            with self._small(query, description) as stream:
                yield from stream

        return Stream(description.schema, batches())

    def interrupt(self) -> None:
        self.connection.cancel_safe(timeout=5.0)

    @contextmanager
    def _translated(self, sql: str | None, position: Callable[[int], int] | None = None) -> Iterator[None]:
        with interruptible(self.cancellation, self.interrupt):
            try:
                yield
            except psycopg.Error as error:
                self.cancellation.check()
                raise from_psycopg(error, sql, position) from error
            except (OverflowError, ValueError) as error:
                raise ParameterError(f"A parameter cannot be bound: {error}.") from error

    def copy(self, statement: str, data: Iterable[bytes | memoryview]) -> int:
        """COPY … FROM STDIN: rows loaded."""
        with self._translated(None), psycopg.RawCursor(self.connection) as cursor:
            with cursor.copy(statement.encode()) as copying:
                for part in data:
                    copying.write(part)
            return max(cursor.rowcount, 0)

    def _close_stream(self) -> None:
        if self._open is not None:
            stream, self._open = self._open, None
            stream.close()
            if self.connection.pgconn.pipeline_status != psycopg.pq.PipelineStatus.OFF:
                raise unavailable("A query of this transaction was left half-read.")


def _portions(rows: Iterable[Sequence[Any]], size: int) -> Iterator[list[Sequence[Any]]]:
    portion: list[Sequence[Any]] = []
    for row in rows:
        portion.append(row)
        if len(portion) == size:
            yield portion
            portion = []
    if portion:
        yield portion


_COLUMNS = """
SELECT a.attname FROM pg_catalog.pg_attribute a
WHERE a.attrelid = to_regclass($1) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum"""


def load(
    driver: Driver, table: str, stream: Stream, *, cancellation: Cancellation, create: bool, transactional: bool
) -> int:
    """Rows loaded by COPY. NotFoundError names a table that is not there. Closes the stream."""

    def prepare(session: Session, create: bool) -> bulk.Insert:
        assert isinstance(session, PostgreSQLSession)
        target = quoted_table(table, SYNTAX)
        if create:
            session.execute(create_table(table, stream.schema, SYNTAX))
        names = [name for (name,) in session.rows(_COLUMNS, [target])]
        if not names:
            known = {name: plain for name, plain, _ in session.rows(TABLE_NAMES, ["." in table])}
            hint = "Names are case-sensitive; write schema.table for a table outside the search path."
            raise NotFoundError(f"There is no table {table!r}.", hint=name_hint(table, known) or hint)
        columns = ", ".join(quoted(name, SYNTAX) for name in matched(stream.schema.names, names, table))
        statement = f"COPY {target} ({columns}) FROM STDIN (FORMAT csv)"
        return lambda batch, row: session.copy(statement, csv_bytes(batch))

    return bulk.load(driver, stream, prepare, cancellation=cancellation, create=create, transactional=transactional)


@contextmanager
def call(
    transaction: AbstractContextManager[Session], procedure: str, parameters: Sequence[tuple[str, Any]]
) -> Iterator[CallResult]:
    """A procedure by CALL, a function by SELECT * FROM; the cursors that either opens are result sets."""
    with transaction as session:
        assert isinstance(session, PostgreSQLSession)
        places = [place for place, (mode, _) in enumerate(parameters, 1) if mode != "in"]
        target = quoted_table(procedure, SYNTAX)
        if _kind(session, procedure) == "p":
            values = [value for _, value in parameters]
            markers = ", ".join(f"${number}" for number in range(1, len(values) + 1))
            row, opened = session.call(f"CALL {target}({markers})", values)
            out = dict(zip(places, row, strict=False))
            yield CallResult(tuple(session.cursor(name) for name in opened), out)
            return
        values = [value for mode, value in parameters if mode != "out"]
        stream = session.query(f"SELECT * FROM {target}({', '.join('?' * len(values))})", values)
        cursors = [at for at, field in enumerate(stream.schema) if field.metadata[TYPE_NAME] == b"refcursor"]
        if not cursors and not places:
            yield CallResult((stream,), {})
            return
        table = stream.table()
        names = [name for at in cursors for name in table.column(at).to_pylist() if name is not None]
        out = {}
        if places and table.num_rows:
            out = {place: column[0].as_py() for place, column in zip(places, table.columns, strict=False)}
        yield CallResult(tuple(session.cursor(name) for name in names), out)


def _kind(session: PostgreSQLSession, procedure: str) -> str:
    """``p`` for a procedure, ``f`` for a function."""
    schema, _, name = procedure.rpartition(".")
    kinds = session.rows(
        "SELECT DISTINCT p.prokind::text FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n"
        " ON n.oid = p.pronamespace WHERE p.proname = $1 AND p.prokind IN ('p', 'f')"
        " AND CASE WHEN $2 = '' THEN pg_catalog.pg_function_is_visible(p.oid) ELSE n.nspname = $2 END",
        [name, schema],
    )
    if not kinds:
        raise NotFoundError(f"There is no procedure or function {procedure!r}.", hint="Names are case-sensitive.")
    return str(kinds[0][0])
