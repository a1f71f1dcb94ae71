"""A cursor: one statement at a time, its rows as they stream."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Self

import pyarrow as pa

from dai.client.dbapi.errors import InterfaceError, ProgrammingError, translated
from dai.client.dbapi.source import Source
from dai.client.dbapi.types import description
from dai.client.results.rows import Row, Rows
from dai.client.statements import Parameters, may_change, parameters_of
from dai.errors import NotAQueryError
from dai.formats.values.numbers import converted
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream


class Cursor:
    """``blocksize``: rows of a batch that the service sends; None: as it sees fit. One batch is in memory at a time.

    ``rowcount``: rows that a statement changed, -1 for a query until all its rows were fetched. ``lastrowid``: the key
    that the database gave to a row, where ``insert`` asked for it.
    """

    def __init__(self, connection: Any, source: Source, numeric: str | None) -> None:
        self.connection = connection
        self._numeric = numeric
        self.arraysize = 1
        self.blocksize: int | None = None
        self.description: tuple[tuple[Any, ...], ...] | None = None
        self.rowcount = -1
        self.lastrowid: Any = None
        self._source: Source | None = source
        self._rows: Rows | None = None
        self._cancellation: Cancellation | None = None

    # --- statements ---

    def execute(self, operation: str, parameters: Parameters = ()) -> Self:
        """Runs one statement; each ``?`` in it is the next of the ``parameters``, or each ``:name`` that of a mapping,
        bound by the database; a list can be used with IN. The database has accepted it when this returns."""
        source, cancellation = self._begin()
        with translated():
            values = parameters_of(parameters)
            if not may_change(operation):
                try:
                    self._opened(source.query(operation, values, cancellation, self.blocksize))
                    return self
                except NotAQueryError as error:
                    refusal = error
                try:
                    self.rowcount = source.change(operation, [values] if values else [], cancellation)
                except NotAQueryError:
                    raise refusal from None
            else:
                self.rowcount = source.change(operation, [values] if values else [], cancellation)
        return self

    def executemany(self, operation: str, seq_of_parameters: Iterable[Parameters]) -> Self:
        """Runs a statement that changes something once for each row of parameters, all in one transaction."""
        source, cancellation = self._begin()
        with translated():
            rows = [parameters_of(each) for each in seq_of_parameters]
            if not may_change(operation):
                raise ProgrammingError("executemany is for statements that change data; run a query with execute.")
            self.rowcount = source.change(operation, rows, cancellation) if rows else 0
        return self

    def insert(self, operation: str, parameters: Parameters, identity: str) -> Self:
        """Runs a statement that inserts one row; ``lastrowid`` is what the query ``identity`` then says in the same
        transaction, such as ``select last_insert_id()``. No part of PEP 249."""
        source, cancellation = self._begin()
        with translated():
            self.rowcount, self.lastrowid = source.insert(operation, parameters_of(parameters), identity, cancellation)
        return self

    def cancel(self) -> None:
        """From another thread: stops the statement, also in the database. The thread that waits for it gets an
        OperationalError."""
        if self._cancellation is not None:
            self._cancellation.cancel()

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Does nothing: the database decides the types."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Does nothing: values arrive whole."""

    # --- rows ---

    def fetchone(self) -> Row | None:
        rows = self._take(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int | None = None) -> list[Row]:
        return self._take(self.arraysize if size is None else size)

    def fetchall(self) -> list[Row]:
        return self._take(None)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Row:
        if (row := self.fetchone()) is None:
            raise StopIteration
        return row

    def fetch_arrow_table(self) -> pa.Table:
        """The rows that are left, as an Arrow table."""
        rows = self._result()
        return pa.Table.from_batches(list(self._batches(rows)), rows.schema)

    def fetch_record_batch(self) -> pa.RecordBatchReader:
        """The rows that are left, as an Arrow reader, which streams."""
        rows = self._result()
        return pa.RecordBatchReader.from_batches(rows.schema, self._batches(rows))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.fetch_record_batch().__arrow_c_stream__(requested_schema)

    # --- ending ---

    def close(self) -> None:
        """Stops the statement if it still runs."""
        self._source = None
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> tuple[Source, Cancellation]:
        """Whatever ran before has ended."""
        source = self._open()
        self._end()
        self.description, self.rowcount, self.lastrowid = None, -1, None
        self._cancellation = Cancellation()
        return source, self._cancellation

    def _open(self) -> Source:
        if self._source is None:
            raise InterfaceError("The cursor is closed.")
        return self._source

    def _end(self) -> None:
        rows, self._rows = self._rows, None
        if rows is not None:
            rows.close()

    def _opened(self, stream: Stream) -> None:
        if self._numeric in ("double", "text"):
            stream = converted(stream, self._numeric)
        self._rows = Rows(stream, decimals=self._numeric != "text")
        self.description = description(stream.schema)

    def _result(self) -> Rows:
        self._open()
        if self._rows is None:
            raise ProgrammingError(
                "There is no result: the last statement, if any, changed data; cursor.rowcount has the number of rows. "
                "Execute a SELECT."
            )
        return self._rows

    def _take(self, most: int | None) -> list[Row]:
        rows = self._result()
        with translated():
            taken = rows.take(most)
        if most is None or len(taken) < most:
            self.rowcount = rows.taken_rows
        return taken

    def _batches(self, rows: Rows) -> Iterator[pa.RecordBatch]:
        with translated():
            yield from rows.batches()
        self.rowcount = rows.taken_rows
