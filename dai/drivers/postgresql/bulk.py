"""Many rows: COPY in binary, decoded by ADBC, with one batch read ahead while the consumer has its turn."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress

import adbc_driver_manager as adbc
import pyarrow as pa
from adbc_driver_manager._reader import AdbcRecordBatchReader  # the reader of its dbapi: it alone keeps the SQLSTATE

from dai.drivers.connections.interrupts import interruptible
from dai.drivers.connections.pool import Pool
from dai.drivers.postgresql.errors import from_adbc
from dai.drivers.postgresql.read import Description, Projection, Query, Stale
from dai.drivers.postgresql.syntax import SYNTAX
from dai.drivers.postgresql.types import finished
from dai.drivers.postgresql.wire import BEGIN_READ_ONLY, ROLLBACK, UNLOCK
from dai.drivers.sql.lexer import replace_markers
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

WORTH_A_THREAD = 1 << 18
"""Bytes of a first batch from which on the next one is read ahead."""
CANCEL_AGAIN_SECONDS = 0.05


def bulk(
    pool: Pool[adbc.AdbcConnection],
    query: Query,
    description: Description,
    *,
    cancellation: Cancellation,
    batch_rows: int,
    batch_bytes: int,
) -> Stream:
    """Rows by COPY. Raises Stale when the columns are not those described.

    COPY takes no parameters. They are bound as settings of this transaction (``set_config`` with bound values), and the
    query reads them with ``current_setting``, cast to the type that the database said they have.
    """
    connection = pool.take(cancellation)
    copy = _Copy(pool, connection, query, description, cancellation)
    try:
        copy.start(batch_bytes)
    except BaseException as error:
        copy.close()
        if isinstance(error, adbc.Error):
            cancellation.check()
            raise from_adbc(error, query.sql) from error
        raise
    return Stream(description.schema, copy.batches(batch_rows), copy.close)


class _Copy:
    """A COPY under way on a connection, which it gives back."""

    def __init__(
        self,
        pool: Pool[adbc.AdbcConnection],
        connection: adbc.AdbcConnection,
        query: Query,
        description: Description,
        cancellation: Cancellation,
    ) -> None:
        self._pool, self._connection = pool, connection
        self._query, self._description, self._cancellation = query, description, cancellation
        self._statement = adbc.AdbcStatement(connection)
        self._reader: AdbcRecordBatchReader | None = None
        self._ahead: Future[pa.RecordBatch | None] | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._clean = self._closed = False

    def start(self, batch_bytes: int) -> None:
        query, description, statement = self._query, self._description, self._statement
        with interruptible(self._cancellation, statement.cancel):
            run(self._connection, BEGIN_READ_ONLY.decode())
            sql = description.many.sql
            if query.parameters.values:
                inner = _set_parameters(self._connection, query, description)
                sql = Projection.of(inner, description.many.shapes).sql
            statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(batch_bytes)})
            statement.set_sql_query(sql + "\n")  # ADBC puts it into parentheses, and it may end in a comment
            handle, _ = statement.execute_query()
            self._reader = AdbcRecordBatchReader._import_from_c(handle.address)
        if [storage(field.type) for field in self._reader.schema] != [
            each.wire_type for each in description.many.shapes
        ]:
            raise Stale

    def batches(self, batch_rows: int) -> Iterator[pa.RecordBatch]:
        seen = 0
        whole = self._read()
        while whole is not None:
            seen += whole.num_rows
            if self._thread is None and whole.nbytes >= WORTH_A_THREAD:
                self._thread = ThreadPoolExecutor(1, "copy")
            if self._thread is not None:
                self._ahead = self._thread.submit(self._read)
            for start in range(0, whole.num_rows, batch_rows):
                yield whole if whole.num_rows <= batch_rows else whole.slice(start, batch_rows)
            whole = self._read() if self._ahead is None else self._ahead.result()
        self._clean = not self._cancellation.cancelled
        self._description.rows = float(seen)

    def _read(self) -> pa.RecordBatch | None:
        assert self._reader is not None
        try:
            with interruptible(self._cancellation, self._statement.cancel):
                read = self._reader.read_next_batch()
        except StopIteration:
            return None
        except adbc.Error as error:
            self._cancellation.check()
            raise from_adbc(error, self._query.sql) from error
        return finished_batch(self._description, read)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if not self._clean:
            self._stop()
        if self._thread is not None:
            self._thread.shutdown()
        with suppress(Exception):
            if self._reader is not None:
                self._reader.close()
        with suppress(Exception):
            self._statement.close()
        if self._clean:
            try:
                for sql in (ROLLBACK, UNLOCK):
                    run(self._connection, sql.decode())
            except adbc.Error:
                self._clean = False
        (self._pool.give_back if self._clean else self._pool.discard)(self._connection)

    def _stop(self) -> None:
        """Cancels the statement, or closing the reader would read all the rest."""
        with suppress(Exception):
            self._statement.cancel()
        while self._ahead is not None and wait([self._ahead], CANCEL_AGAIN_SECONDS).not_done:
            with suppress(Exception):
                self._statement.cancel()


def finished_batch(description: Description, read: pa.RecordBatch) -> pa.RecordBatch:
    """A batch as ADBC gives it with the types of the description. DataError names the column that cannot be cast."""
    shapes = description.many.shapes
    if not shapes:
        return read
    arrays = [finished(each, read.column(index)) for index, each in enumerate(shapes)]
    return pa.RecordBatch.from_arrays(arrays, schema=description.schema)


def storage(kind: pa.DataType) -> pa.DataType:
    """The storage type of an extension type; any other type itself."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def run(connection: adbc.AdbcConnection, sql: str) -> None:
    """A statement without rows that matter."""
    with adbc.AdbcStatement(connection) as statement:
        statement.set_sql_query(sql)
        statement.execute_update()


def settings(query: Query, description: Description) -> tuple[str, list[str], str]:
    """The statement that keeps the values of the parameters as settings, these values in its order, and the query that
    reads them."""
    values = [None if value is None else value.decode() for value in query.parameters.values]
    bound = [(number, value) for number, value in enumerate(values, 1) if value is not None]
    calls = (f"set_config('dai.p{number}', ${at}, true)" for at, (number, _) in enumerate(bound, 1))

    def text(number: int) -> str:
        value = "NULL" if values[number - 1] is None else f"current_setting('dai.p{number}')"
        return f"CAST({value} AS {description.parameter_types[number - 1]})"

    return f"SELECT {', '.join(calls)}", [value for _, value in bound], replace_markers(query.text, text, SYNTAX).sql


def _set_parameters(connection: adbc.AdbcConnection, query: Query, description: Description) -> str:
    """Binds the values; the query that reads them."""
    sql, values, inner = settings(query, description)
    if values:
        names = [f"p{number}" for number in range(1, len(values) + 1)]
        row = pa.RecordBatch.from_arrays([pa.array([value], pa.string()) for value in values], names)
        with adbc.AdbcStatement(connection) as statement:
            statement.set_sql_query(sql)
            statement.bind_stream(pa.RecordBatchReader.from_batches(row.schema, [row]))
            handle, _ = statement.execute_query()
            with AdbcRecordBatchReader._import_from_c(handle.address) as reader:
                reader.read_all()
    return inner
