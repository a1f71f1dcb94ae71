"""Tuples in the shapes that people ask for by short names: the same on results of a service and on queries of a lab."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from dai.client.results.elsewhere import OF_RESULTS, Elsewhere, UnknownLength
from dai.client.results.preview import SHOWN_ROWS, first_rows, printed
from dai.errors import ParameterError

if TYPE_CHECKING:
    import pyarrow as pa

    from dai.client.results.rows import Row, Rows
    from dai.streams.stream import Stream


class Tabular(Elsewhere, ABC):
    """``fetchone``, ``fetchmany`` and ``fetchall`` go through the rows once, as a cursor does. ``len`` is the number of
    all rows, once they were read: before, it is a TypeError, and nothing is read."""

    _instead = OF_RESULTS
    _decimals = True
    """Whether decimal numbers that travel as text are ``decimal.Decimal`` in rows."""
    _fetched: Rows | None = None

    @abstractmethod
    def stream(self) -> Stream: ...

    @abstractmethod
    def reader(self) -> pa.RecordBatchReader: ...

    @abstractmethod
    def arrow(self) -> pa.Table: ...

    def to_pandas(self, *, exact: bool = False, **options: Any) -> Any:
        """All of it as a pandas DataFrame; ``options`` are those of ``pyarrow.Table.to_pandas``. Decimals without a
        declared precision are DOUBLE; with ``exact`` they are text, with all their digits."""
        from dai.client.results import frames

        return frames.to_pandas(self.arrow, exact or not self._decimals, **options)

    def to_polars(self, *, exact: bool = False) -> Any:
        """All of it as a polars DataFrame. Decimals without a declared precision, or of more than 38 digits, are
        DOUBLE; with ``exact`` they are text, with all their digits."""
        from dai.client.results import frames

        return frames.to_polars(self.arrow, exact or not self._decimals)

    @abstractmethod
    def head(self, rows: int = SHOWN_ROWS) -> pa.Table:
        """The first rows, as an Arrow table. All of them can still be read."""

    def df(self, *, exact: bool = False, **options: Any) -> Any:
        """``to_pandas``."""
        return self.to_pandas(exact=exact, **options)

    def pl(self, *, exact: bool = False) -> Any:
        """``to_polars``."""
        return self.to_polars(exact=exact)

    def save(self, path: str | os.PathLike[str], form: str | None = None) -> int:
        """Write a file in the form that its suffix says (``.csv``, ``.parquet``, ``.arrow``, ``.json``, ``.xml``, each
        with ``.gz`` or ``.zst`` behind it, too), or in ``form``; without either, Arrow. Gives the number of its bytes.
        The file appears under its name when it is whole."""
        from dai.client.results.files import format_of_path, save_file
        from dai.formats import format_named

        form, coding = format_of_path(path, form)
        with self.stream() as stream:
            return save_file(path, (block.data for block in format_named(form or "arrow").encode(stream)), coding)

    def rows(self) -> list[Row]:
        """All rows as Python values, with ``decimal.Decimal``; asked for again, the same ones."""
        from dai.client.results.rows import Rows
        from dai.streams.stream import Stream

        return Rows(Stream.of(self.arrow()), decimals=self._decimals).take(None)

    @abstractmethod
    def _length(self) -> int | None:
        """How many rows there are, where that is known."""

    def __len__(self) -> int:
        length = self._length()
        if length is None:
            raise UnknownLength("How many rows there are is known when they were read: .arrow() reads and keeps them.")
        return length

    def __bool__(self) -> bool:
        return True

    def fetchone(self) -> Row | None:
        """The next row as Python values, with ``decimal.Decimal``; None after the last."""
        rows = self.fetchmany(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int) -> list[Row]:
        """The next rows; fewer at the end."""
        return self._rows_left().take(size)

    def fetchall(self) -> list[Row]:
        """The rows that are left."""
        return self._rows_left().take(None)

    def show(self, rows: int = SHOWN_ROWS) -> None:
        """Prints the first rows. All of them can still be read."""
        table = self.head(rows)
        for line in printed(table.schema, first_rows(table.to_batches(), rows)):
            print(line)

    def to_duckdb(self, connection: Any = None) -> Any:
        """All of it as a relation of DuckDB, of ``connection`` if one is given."""
        from dai.client.results.frames import needed

        return (connection or needed("duckdb")).from_arrow(self.arrow())

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """For libraries that take whatever streams Arrow: ``polars.DataFrame``, ``pa.table``."""
        return self.reader().__arrow_c_stream__(requested_schema)

    def _rows_left(self) -> Rows:
        if self._fetched is None:
            from dai.client.results.rows import Rows

            self._fetched = Rows(self.stream(), decimals=self._decimals)
        return self._fetched


def first(stream: Stream, rows: int) -> pa.Table:
    """The first rows of a stream; no more is read."""
    import pyarrow as pa

    batches: list[pa.RecordBatch] = []
    left = checked_rows(rows)
    while left > 0 and (batch := next(stream, None)) is not None:
        batches.append(batch.slice(0, left))
        left -= batch.num_rows
    return pa.Table.from_batches(batches, stream.schema)


def checked_rows(rows: int) -> int:
    if rows < 0:
        raise ParameterError(f"At least 0 rows can be shown, not {rows}.")
    return rows
