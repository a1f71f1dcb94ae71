"""MariaDB and MySQL through mysqlclient, whose values are taken as raw bytes and cast by Arrow.

Queries run unbuffered in read-only transactions, on sessions whose time zone is UTC. Parameters go to the server apart
from the statement: in user variables that a statement prepared on the server uses. A statement is stopped by KILL
QUERY from a connection of its own; so is a stream that is closed before its end: what remains would have to be read.
LOCAL INFILE and multiple statements are switched off: a bulk load is INSERTs of many rows (see docs/decisions/).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import MySQLdb
import pyarrow as pa
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from dai.drivers import CallResult, DriverOptions, Session
from dai.drivers.connections import bulk_load as bulk
from dai.drivers.connections.interrupts import interruptible
from dai.drivers.connections.pool import Pool
from dai.drivers.connections.pooled import Release
from dai.drivers.connections.rows import FIRST_ROWS, MOST_ROWS, Portions, batches, columns_of
from dai.drivers.mariadb import catalog as schema_of
from dai.drivers.mariadb.connection import Connection, Connector
from dai.drivers.mariadb.errors import LOST, error_of, parts_of
from dai.drivers.mariadb.literals import inserts
from dai.drivers.mariadb.query_tables import SINCE, definitions, settings
from dai.drivers.mariadb.session import MariaSession, Server, encoded, kinds_of, prepare
from dai.drivers.mariadb.syntax import SYNTAX
from dai.drivers.mariadb.types import Kind, array, lossless_floats
from dai.drivers.mariadb.wire import Answer, readable
from dai.drivers.sql.ddl import matched, quoted, quoted_table
from dai.drivers.sql.lexer import Bound, bind_markers, check_count, single_query
from dai.drivers.sql.query_tables import Tables, preceded
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import (
    ConfigurationError,
    DaiError,
    DataError,
    NotAQueryError,
    StatementError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

_STATEMENT_BYTES = 4 << 20


class MariaDB(Server):
    """``Driver`` over mysqlclient; see the module."""

    dialect = "mysql"
    syntax = SYNTAX

    def __init__(self, url: URL, options: DriverOptions) -> None:
        super().__init__(options)
        self._url = url
        self._connector = Connector(url, options.connect_wait)
        self._takes_tables: bool | None = None
        self._pool = Pool(
            self._connector.open,
            lambda connection: connection.raw.close(),
            limit=self._limit,
            idle=options.idle,
            check=lambda connection: connection.raw.ping() is None,
            alive=Connection.quiet,
            interrupt=lambda connection: self.kill(connection.id),
        )

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> MariaDB:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError) as error:
            raise ConfigurationError("The URL of the MariaDB database cannot be read.") from error
        unknown = set(parsed.query) - {"unix_socket", "ssl_mode", "ssl_ca", "charset"}
        if unknown:
            raise ConfigurationError(
                f"The URL of the MariaDB database has an unknown option {min(unknown)!r}.",
                hint="Known: unix_socket, ssl_mode, ssl_ca.",
            )
        return cls(parsed, options)

    @property
    def system(self) -> str:
        """``mariadb`` or ``mysql``, as its URL says."""
        return self._url.get_backend_name()

    def product(self) -> str:
        with self._reading() as run:
            version = str(run("SELECT VERSION() AS version")[0]["version"])
        number = version.split("-")[0]
        return f"{'MariaDB' if 'MariaDB' in version else 'MySQL'} {number}"

    @contextmanager
    def call(
        self, procedure: str, parameters: Sequence[tuple[str, Any]], *, cancellation: Cancellation
    ) -> Iterator[CallResult]:
        """Result sets are read before the block begins (the out parameters come after them), into a temporary file when
        they are large."""
        with self.transaction(cancellation=cancellation) as session, contextlib.ExitStack() as spools:
            if not isinstance(session, MariaSession):
                raise TypeError("A session of another driver.")
            names = session.set_variables([None if mode == "out" else value for mode, value in parameters])
            sql = f"CALL {quoted_table(procedure, self.syntax)}({', '.join(names)})"
            results = tuple(spools.enter_context(result) for result in session.results(sql))
            wanted = {at: f"@dai{at}" for at, (mode, _) in enumerate(parameters, 1) if mode in ("out", "inout")}
            out: dict[int, Any] = {}
            if wanted:
                table = session.query(f"SELECT {', '.join(wanted.values())}").table()
                out = {at: table.column(index)[0].as_py() for index, at in enumerate(wanted)}
            yield CallResult(results, out)

    def _undo_create(self, table: str) -> None:
        self.update(f"DROP TABLE {quoted_table(table, self.syntax)}", cancellation=Cancellation())

    def _insert(self, session: Session, table: str, schema: pa.Schema, transactional: bool) -> bulk.Insert:
        if not isinstance(session, MariaSession):
            raise TypeError("A session of another driver.")
        name_in_database = schema_of.stored_name(session.rows, table) if "." not in table else table
        if transactional and "." not in table:
            self._require_transactions(session, name_in_database)
        known = schema_of.column_names(session.rows, table) if "." not in table else list(schema.names)
        names = matched(schema.names, known, table)
        columns = ", ".join(quoted(name, self.syntax) for name in names)
        prefix = f"INSERT INTO {quoted_table(name_in_database, self.syntax)} ({columns}) VALUES ".encode()
        session.run("START TRANSACTION")  # after a CREATE TABLE the former one is over; else it was empty
        most = min(_STATEMENT_BYTES, int(session.rows("SELECT @@max_allowed_packet AS most")[0]["most"]) // 2)

        def insert(batch: pa.RecordBatch, row: int) -> int:
            return sum(session.run(statement) for statement in inserts(prefix, names, batch, row, most))

        return insert

    def _require_transactions(self, session: MariaSession, table: str) -> None:
        rows = session.rows(
            "SELECT t.table_name AS name, e.transactions AS able FROM information_schema.tables t "
            "JOIN information_schema.engines e ON e.engine = t.engine WHERE t.table_schema = DATABASE()"
        )
        if any(row["name"] == table and row["able"] != "YES" for row in rows):
            raise DataError(
                f"The table {table!r} has an engine without transactions, so a load that fails could leave some of "
                "its rows.",
                hint="Load it with transactional=false, or ALTER TABLE … ENGINE=InnoDB.",
            )

    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        with self._reading() as run:
            return schema_of.tables(run, pattern, self._url.database or "")

    def statistics(self, table: str) -> Statistics:
        with self._reading() as run:
            return schema_of.statistics(run, table)

    def check(self) -> float:
        start = time.perf_counter()
        with self._reading() as run:
            run("SELECT 1 AS one")
        return time.perf_counter() - start

    def alive(self, seconds: float) -> bool:
        try:
            self._connector.raw(seconds).close()
        except DaiError as error:
            cause = error.__cause__
            return not (isinstance(cause, MySQLdb.Error) and cause.args and cause.args[0] in LOST)
        return True

    # Connections

    def kill(self, thread: int) -> None:
        with contextlib.closing(self._connector.raw()) as raw:
            raw.query(b"KILL QUERY %d" % thread)

    def takes_tables(self) -> bool:
        if self._takes_tables is None:
            name, _, version = self.product().partition(" ")
            self._takes_tables = name == "MariaDB" and tuple(map(int, version.split(".")[:2])) >= SINCE
        return self._takes_tables

    def _add_tables(self, connection: Connection, tables: Tables, cancellation: Cancellation) -> None:
        connection.settle()
        session = MariaSession(self, connection, cancellation)
        most = int(session.rows("SELECT @@max_allowed_packet AS most")[0]["most"])
        for statement in settings(tables, most):
            session.run(statement)
        connection.preceding = tuple(definitions(tables))

    def _forget(self, connection: Connection, names: Sequence[str]) -> None:
        connection.preceding = ()

    def _session(self, connection: Connection, cancellation: Cancellation) -> MariaSession:
        return MariaSession(self, connection, cancellation)

    def _begin_query(self, connection: Connection, cancellation: Cancellation) -> None:
        """Its answer comes before that to the query: no round trip of its own."""
        with self.translated(connection):
            if self._reads(connection.raw):
                connection.raw.send_query(b"START TRANSACTION READ ONLY")
                connection.unread += 1
            else:
                connection.raw.query(b"START TRANSACTION READ ONLY")

    def _release(self, connection: Connection, broken: bool) -> None:
        """Nobody waits for the session to be made new: whoever takes the connection next looks whether it is. With TLS
        that takes more than one round trip, so a thread waits."""
        if broken:
            self._pool.discard(connection)
        elif self._reads(connection.raw):
            self._renew(connection)
        else:
            threading.Thread(target=self._renew, args=(connection,), name="renew", daemon=True).start()

    def _reads(self, raw: Any) -> bool:
        """Whether answers on the connection are read from its socket, and not by mysqlclient."""
        return self._options.read_sockets and readable(raw)

    def _renew(self, connection: Connection) -> None:
        try:
            self._connector.renew(connection, reads=self._reads(connection.raw))
        except (MySQLdb.Error, OSError):
            self._pool.discard(connection)
        else:
            self._pool.give_back(connection)

    @contextmanager
    def _reading(self) -> Iterator[schema_of.Run]:
        with self.transaction(cancellation=Cancellation(), read_only=True) as session:
            if not isinstance(session, MariaSession):
                raise TypeError("A session of another driver.")
            yield session.rows

    @contextmanager
    def translated(self, connection: Connection, sql: str | None = None, bound: Bound | None = None) -> Iterator[None]:
        try:
            yield
        except MySQLdb.Error as error:
            code, message = parts_of(error)
            state = getattr(error, "sqlstate", None)
            if state is None and code not in LOST:
                with contextlib.suppress(MySQLdb.Error):
                    state = connection.raw.sqlstate()

            def hint_for(code: int, message: str) -> str | None:
                with contextlib.suppress(Exception):
                    return schema_of.hint_for(MariaSession(self, connection, Cancellation()).rows, code, message, sql)
                return None

            raise error_of(code, message, state, sql, bound, hint_for) from error

    # Statements

    @contextmanager
    def _asking(
        self, connection: Connection, sql: str, cancellation: Cancellation, bound: Bound | None = None
    ) -> Iterator[None]:
        """The block waits for the server: a cancellation ends the statement, errors are ours."""
        with interruptible(cancellation, lambda: self.kill(connection.id)), self.translated(connection, sql, bound):
            yield

    def stream(
        self,
        connection: Connection,
        sql: str,
        parameters: Sequence[Any],
        cancellation: Cancellation,
        batch_rows: int | None,
        release: Release[Connection],
    ) -> Stream:
        query, inserted = single_query(sql, self.syntax), (0, 0)
        if connection.preceding:
            query, inserted = preceded(query, connection.preceding, self.syntax)
        result, kinds = self._executed(connection, sql, query, inserted, parameters, cancellation)
        if any(each.is_cut for each in kinds):
            self._stop(connection, result)
            del result
            wrapped, kinds_read = lossless_floats(query, kinds)
            try:
                result, _ = self._executed(connection, sql, wrapped, inserted, parameters, cancellation)
            except StatementError as error:
                cut = next(each.name for each in kinds if each.is_cut)
                raise DataError(
                    f"Column {cut!r} is a FLOAT, which the database sends with six digits only.",
                    hint=f"Select CAST(`{cut}` AS DOUBLE) to get all of them.",
                    column=cut,
                ) from error
            kinds = kinds_read
        if isinstance(result, Answer):
            return self._read_answer(connection, result, kinds, sql, cancellation, batch_rows, release)
        return self.read(connection, result, kinds, sql, cancellation, batch_rows, release)

    def _executed(
        self,
        connection: Connection,
        sql: str,
        query: str,
        inserted: tuple[int, int],
        parameters: Sequence[Any],
        cancellation: Cancellation,
    ) -> tuple[Any, list[Kind]]:
        raw = connection.raw
        has_markers = bool(parameters or connection.preceding)
        bound = replace(
            bind_markers(query, "qmark", self.syntax) if has_markers else Bound(query, 0), inserted=inserted
        )
        if has_markers:
            check_count(bound.count, len(parameters))
        with self._asking(connection, sql, cancellation, bound):
            if parameters or not self._reads(raw):
                connection.settle()
            if parameters:
                names = prepare(raw, bound.sql, parameters)
                statement = f"EXECUTE dai_statement USING {', '.join(names)}".encode()
            else:
                statement = encoded(bound.sql)
            result: Any
            if self._reads(raw):
                unread, connection.unread = connection.unread, 0
                result = Answer(raw, statement, unread)
                kinds = result.kinds
            else:
                raw.query(statement)
                result = raw.use_result()
                kinds = None if result is None else kinds_of(result)
            if kinds is None:
                raise NotAQueryError("The statement gives no rows.", sql=sql)
            return result, kinds

    def read(
        self,
        connection: Connection,
        result: Any,
        kinds: Sequence[Kind],
        sql: str,
        cancellation: Cancellation,
        batch_rows: int | None,
        release: Release[Connection],
    ) -> Stream:
        results = [result]
        del result
        portions = Portions(
            lambda rows: results[0].fetch_row(rows), partial(self._asking, connection, sql, cancellation)
        )

        def convert(rows: Sequence[tuple[bytes | None, ...]], row: int) -> list[pa.Array]:
            columns = columns_of(rows, len(kinds))
            return [
                array(each, pa.array(values, pa.binary()), row) for each, values in zip(kinds, columns, strict=True)
            ]

        def close() -> None:
            if not portions.at_end and results:
                self._stop(connection, results[0])
            results.clear()
            release(connection, portions.broken)

        schema = pa.schema([each.field for each in kinds])
        try:
            first = portions.next(min(FIRST_ROWS, batch_rows or FIRST_ROWS))
            columns = convert(first, 1)
        except BaseException:
            if not portions.at_end:
                self._stop(connection, results[0])
            results.clear()
            raise
        rows = batches(columns, len(first), portions, convert, schema, self._options.batch_bytes, batch_rows)
        return Stream(schema, rows, close)

    def _read_answer(
        self,
        connection: Connection,
        answer: Answer,
        kinds: Sequence[Kind],
        sql: str,
        cancellation: Cancellation,
        batch_rows: int | None,
        release: Release[Connection],
    ) -> Stream:
        """The same of an answer that is read from the socket: batches as they come."""
        schema = pa.schema([each.field for each in kinds])
        broken = False

        def fetch(most: int) -> list[pa.Array] | None:
            nonlocal broken
            broken = True
            with self._asking(connection, sql, cancellation):
                columns = answer.rows(most)
            broken = False
            return columns

        def read(values: list[pa.Array] | None) -> Iterator[pa.RecordBatch]:
            row = most = 1
            while values is not None:
                arrays = [array(each, raw, row) for each, raw in zip(kinds, values, strict=True)]
                batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
                del values, arrays
                row += batch.num_rows
                most = max(1, min(MOST_ROWS, self._options.batch_bytes * batch.num_rows // max(batch.nbytes, 1)))
                yield batch
                values = None if answer.ended else fetch(most)

        def close() -> None:
            if not answer.ended:
                self._stop(connection, answer)
            release(connection, broken or answer.more)

        try:
            first = fetch(batch_rows or MOST_ROWS)
        except BaseException:
            self._stop(connection, answer)
            raise
        stream = Stream(schema, read(first), close)
        return stream if batch_rows is None else stream.rebatch(batch_rows)

    def _stop(self, connection: Connection, result: Any) -> None:
        """Ends a half-read result: the server stops sending, what it had sent already is dropped. Where it cannot be
        told so (it may take no more connections) ours is cut: all of the result would come."""
        try:
            self.kill(connection.id)
        except Exception:  # noqa: BLE001 - whatever it is, the statement goes on
            connection.cut()
        with contextlib.suppress(MySQLdb.Error):
            result.discard()
