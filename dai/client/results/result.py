"""A result that is read as it is used: tables, data frames, blocks, or the bytes themselves."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, Self

from dai.client.http.body import Pieces, Reading
from dai.client.progress import DONE, STOPPED, Asked, Meter
from dai.client.results.choices import checked
from dai.client.results.files import IDENTITY, format_of_path, save_file
from dai.client.results.interrupted import QueryInterrupted, shortly_told
from dai.client.results.preview import SHOWN_COLUMNS, SHOWN_ROWS, drawn
from dai.client.results.tabular import Tabular, checked_rows
from dai.errors import NotAcceptableError, RequestError
from dai.formats import format_named, recognised

if TYPE_CHECKING:
    import pyarrow as pa

    from dai.streams.stream import Stream


class Source(Reading, Protocol):
    """Where a result's bytes come from: a reply's body, an end point of a response, a session's stream."""

    @property
    def received(self) -> int: ...

    def close(self) -> None: ...


class Result(Tabular):
    """Lazily streamed: nothing is read before it is asked for, and never more than a block ahead.

    A result can be read once, as tuples or as bytes; ``arrow()`` keeps its table, so that ``to_pandas()`` and
    ``to_polars()`` may follow. Closing it before its end stops the work in the service and the database, and so does
    Ctrl-C while it is read. Reading raises TruncatedError when the transfer broke off: a part is never taken for the
    whole.
    """

    def __init__(
        self,
        source: Source,
        form: str | None = "arrow",
        *,
        blocksize: int | None = None,
        progress: Asked = None,
        finished: Callable[[], None] = lambda: None,
        numeric: str | None = None,
        size: int | None = None,
    ) -> None:
        """``size``: of all bytes, where it is known."""
        self._size = size
        self._source, self._form, self._blocksize, self._numeric = source, form, blocksize, checked(numeric)
        self._finished = finished
        self._decimals = numeric != "text"
        self._meter = Meter(progress)
        self._stream: Stream | None = None
        self._first: list[pa.RecordBatch] = []
        self._table: pa.Table | None = None
        self._taken = self._closed = False
        self._read = 0
        """Rows read so far."""
        self.complete = False
        """Everything was read."""
        self.truncated = False
        """There were more rows than ``limit``, and these are the first: as asked for with ``truncate``."""

    @property
    def form(self) -> str:
        """The name of its format. Where nobody said which, the first bytes tell."""
        if self._form is None:
            self._source, self._form = _sniffed(self._source)
        return self._form

    @property
    def received(self) -> int:
        """Bytes received so far, as they travel."""
        return self._source.received

    @property
    def schema(self) -> pa.Schema:
        """Names and types of the columns; waits for the first bytes."""
        return self._table.schema if self._table is not None else self._opened().schema

    # --- tuples ---

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        """Block by block: record batches of ``blocksize`` rows where that was asked for."""
        if self._table is not None:
            yield from self._table.to_batches(self._blocksize)
            return
        stream = self._opened()
        self._take()
        for batch in self._first:
            self._count(batch)
            yield batch
        self._first = []
        try:
            for batch in stream:
                self._count(batch)
                yield batch
        except BaseException as error:
            self.close()
            if isinstance(error, KeyboardInterrupt):
                raise QueryInterrupted from None
            raise
        self._end()

    def stream(self) -> Stream:
        """The tuples as the library's own currency; closing it closes the result. Waits for the first bytes."""
        from dai.streams.stream import Stream

        return Stream(self.schema, iter(self), self.close)

    def reader(self) -> pa.RecordBatchReader:
        """For libraries that take an Arrow reader (DuckDB, polars, datasets …); reads as it is read."""
        import pyarrow as pa

        schema = self.schema
        return pa.RecordBatchReader.from_batches(schema, iter(self))

    def arrow(self) -> pa.Table:
        """All of it as one table in memory; asked for again, the same table."""
        import pyarrow as pa

        if self._table is None:
            schema = self.schema
            self._table = pa.Table.from_batches(list(self), schema)
        return self._table

    # --- bytes ---

    def chunks(self) -> Iterator[bytes]:
        """The bytes in the form they were asked for, in pieces as they arrive."""
        if self._stream is not None:
            raise RequestError("This result is already being read as rows.", hint="Run the query again to get bytes.")
        self._take()
        try:
            while piece := self._source.read1():
                self._meter.update(0, self.received, share=self._share)
                yield piece
        except BaseException:
            self.close()
            raise
        self._end()

    def bytes(self) -> bytes:
        """All of it in memory, in the form it was asked for."""
        return b"".join(self.chunks())

    def text(self) -> str:
        """All of it in memory as text (WebRowSet, CSV, JSON lines)."""
        return self.bytes().decode()

    def save(self, path: str | os.PathLike[str], form: str | None = None) -> int:
        """Write a file in the form that its suffix says, or in ``form``; gives the number of its bytes.

        ``.csv``, ``.parquet``, ``.arrow``, ``.json`` (JSON lines), ``.xml`` (WebRowSet), each with ``.gz`` or ``.zst``
        behind it, too. A name without a suffix gets the bytes as they come. NotAcceptableError for any other suffix.
        The file appears under its name when it is whole: a transfer that breaks off leaves none, and what stood at
        ``path`` stays.
        """
        try:
            form, coding = format_of_path(path, form)
        except NotAcceptableError:
            if self._form is not None:
                raise
            coding = IDENTITY  # bytes of which nobody said what they are
        return save_file(path, self._formed(form), coding)

    def _formed(self, form: str | None) -> Iterator[Any]:
        """The bytes in ``form``; as they come where that is theirs and nobody has begun to read tuples."""
        if self._stream is None and self._table is None and form in (None, self.form):
            return self.chunks()
        blocks = format_named(form or self.form).encode(self.stream())
        return (block.data for block in blocks)

    # --- ending ---

    def close(self) -> None:
        """Stop reading. Before the end: the service cancels the work. A table that was read stays."""
        if not self._closed:
            self._closed = True
            self._meter.finish(self._read, self.received, DONE if self.complete else STOPPED)
            self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _end(self) -> None:
        self.complete = True
        self.close()
        self._finished()

    def _take(self) -> None:
        if self._taken or self._closed:
            raise RequestError(
                "This result was read or closed already: it can be read only once.",
                hint="Keep a table with .arrow(), or run the query again.",
            )
        self._taken = True

    def _opened(self) -> Stream:
        if self._stream is None:
            if self._taken or self._closed:
                self._take()
            try:
                with shortly_told():
                    self._stream = self._decoded()
            except BaseException:
                self.close()
                raise
        return self._stream

    def _decoded(self) -> Stream:
        if self.form == "arrow":
            from dai.client.results.arrow import read_stream

            stream = read_stream(self._source)
        else:
            stream = format_named(self.form).decode(iter(self._source.read1, b""))
        if self._numeric is not None:
            from dai.formats.values.numbers import converted

            stream = converted(stream, self._numeric)
        return stream.rebatch(self._blocksize) if self._blocksize else stream

    def _count(self, batch: pa.RecordBatch) -> None:
        self._read += batch.num_rows
        self._meter.update(self._read, self.received, share=self._share)

    def _share(self) -> float | None:
        return self.received / self._size if self._size else None

    # --- looking at it ---

    def __repr__(self) -> str:
        if self._stream is None and self._table is None:
            state = "read" if self.complete else "closed" if self._closed else "not read yet"
            return f"<Result: {self._form or 'bytes'}, {state}>"
        columns = ", ".join(f"{field.name} {field.type}" for field in list(self.schema)[:SHOWN_COLUMNS])
        return f"<Result: {self._counted()}: {columns}>"

    def _counted(self) -> str:
        columns = len(self.schema)
        state = "" if self.complete else " read so far"
        return f"{self._read:,} rows{state} × {columns} column{'' if columns == 1 else 's'}"

    def _length(self) -> int | None:
        return self._read if self.complete and self._stream is not None else None

    def head(self, rows: int = SHOWN_ROWS) -> pa.Table:
        import pyarrow as pa

        if self._table is None:
            if self._taken or self._closed:
                self._take()
            batches = self._peeked(checked_rows(rows))
            return pa.Table.from_batches(batches, self.schema).slice(0, rows)
        return self._table.slice(0, checked_rows(rows))

    def _peeked(self, rows: int = SHOWN_ROWS) -> list[pa.RecordBatch]:
        """The first tuples, without losing them."""
        if self._table is not None:
            return list(self._table.slice(0, rows).to_batches())
        stream = self._opened()
        if not self._taken:
            while sum(each.num_rows for each in self._first) < rows and (batch := next(stream, None)) is not None:
                self._first.append(batch)
        return self._first

    def _repr_html_(self) -> str:
        """Names, types and the first rows, for notebooks."""
        if self._table is None and (self._taken or self._closed):
            return f"<p>{html.escape(repr(self))}</p>"
        batches = self._peeked()
        if self._table is not None:
            note = f"{self._counted()}, {self.received / 1e6:,.1f} MB"
        else:
            note = f"the first rows × {len(self.schema)} columns; the rest streams when it is read"
        return drawn(self.schema, batches, note)


class _Replayed(Pieces):
    """A source whose first bytes have been looked at."""

    def __init__(self, first: bytes, source: Source) -> None:
        self._left, self._source = memoryview(first), source

    @property
    def received(self) -> int:
        return self._source.received

    def piece(self) -> bytes | None:
        return self._source.read1() or None

    def close(self) -> None:
        self._source.close()


def _sniffed(source: Source) -> tuple[Source, str]:
    first = b""
    while len(first.lstrip()) < 4 and (piece := source.read1()):
        first += piece
    return _Replayed(first, source), recognised(first)
