"""SQL over streams: one query of DuckDB in memory whose tables are streams, read as the query needs them.

Each query has a database of its own, which reaches no file, extension or setting, holds ``MEMORY_BYTES`` at most and
writes what is more, up to ``DISK_BYTES``, into a temporary directory of its own. One thread: rows keep the order of
their stream.
"""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

import duckdb
import pyarrow as pa

from dai.drivers.connections.interrupts import interruptible
from dai.drivers.connections.rows import field
from dai.drivers.duckdb.errors import advisable
from dai.drivers.duckdb.inputs import StreamInput, typed
from dai.drivers.duckdb.types import projected, target
from dai.errors import DataError, InternalError, LimitError, ParameterError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

log = logging.getLogger("dai.drivers.duckdb.over")
MEMORY_BYTES = 128 << 20
DISK_BYTES = 64 << 30
_THREADS = {"threads": 1, "async_threads": 0}
"""DuckDB would begin eight others, and end the process where there is no memory for their stacks."""
_ROWS = 16 * 2048
_TEXT_ROWS = 256
"""Most bytes of a batch of the result if rows may be longer than the first ones."""
_BATCH_BYTES = 1 << 20
"""Of what DuckDB works on at a time: it does not count the texts that it computes as its memory."""


def over(
    sql: str,
    inputs: Mapping[str, Stream],
    *,
    cancellation: Cancellation,
    fields: Mapping[str, pa.Field] | None = None,
    scratch: Path | None = None,
) -> Stream:
    """The rows of a query over ``inputs``, named as its tables; each may be read once, none is before the first row is
    asked for. It closes them. ``fields``: what columns of the result are to be, by name; others are as DuckDB has them.

    Raises ParameterError for what DuckDB does not take, DataError for a value that does not fit a type, LimitError
    where memory and disk do not suffice, the cause of a failed input.
    """
    run = _Run(inputs, cancellation, scratch)
    try:
        return run.open(sql, fields or {})
    except BaseException:
        run.close()
        raise


class _Run:
    def __init__(self, inputs: Mapping[str, Stream], cancellation: Cancellation, scratch: Path | None) -> None:
        self._tuples = {name: _ForDuckDB(stream) for name, stream in inputs.items()}
        self._inputs = {name: StreamInput(each) for name, each in self._tuples.items()}
        self._cancellation, self._scratch = cancellation, scratch
        self._resources = ExitStack()
        self._reader: Any = None

    def open(self, sql: str, fields: Mapping[str, pa.Field]) -> Stream:
        directory = self._resources.enter_context(tempfile.TemporaryDirectory(prefix="tuples-", dir=self._scratch))
        with self._translated():
            config: dict[str, Any] = {**_THREADS, "memory_limit": f"{MEMORY_BYTES}B", "temp_directory": directory}
            connection = duckdb.connect(":memory:", config=config)
            self._resources.callback(connection.close)
            self._connection = connection
            with contextlib.suppress(duckdb.Error):  # without ICU, time zones are UTC anyway
                connection.execute("SET TimeZone = 'UTC'")
            # in the configuration DuckDB 2.0 shows it, but does not hold it
            connection.execute(f"SET max_temp_directory_size = '{DISK_BYTES}B'")
            connection.execute("SET enable_external_access = false; SET lock_configuration = true")
            for name, each in self._inputs.items():
                connection.register(name, each)
            relation = connection.sql(sql)
            described = zip(relation.columns, relation.types, strict=True)
            columns = [projected(at, name, type) for at, (name, type) in enumerate(described, 1)]
            wanted = [fields.get(each.name, field(each.name, each.type, each.type_name)) for each in columns]
            items = ", ".join(
                column.sql if column.name not in fields else f'#{at} AS "{at}"' for at, column in enumerate(columns, 1)
            )
            relation = relation.project(items)
        schema = pa.schema(wanted)
        return Stream(schema, self._batches(relation, schema), self.close)

    def _batches(self, relation: Any, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        narrow = all(pa.types.is_primitive(each.type) or pa.types.is_decimal(each.type) for each in schema)
        rows = _ROWS if narrow else min((each.rows_at_once() for each in self._tuples.values()), default=_TEXT_ROWS)
        with self._translated():
            self._reader = relation.to_arrow_reader(rows)
        while True:
            with self._translated():
                batch = next(self._reader, None)
            if batch is None:
                return
            yield typed(batch, schema)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with interruptible(self._cancellation, lambda: self._connection.interrupt(), here=True, waits=self._waits):
                yield
        except (duckdb.Error, OSError, RuntimeError, pa.ArrowException) as error:
            for each in self._inputs.values():
                if each.failure is not None:
                    raise each.failure from error
            _raise(error)

    def _waits(self) -> bool:
        return any(each.reading for each in self._inputs.values())

    def close(self) -> None:
        """Ends DuckDB's work, then the inputs, which it may have been waiting for."""
        with contextlib.suppress(duckdb.Error, OSError, RuntimeError, pa.ArrowException):
            if self._reader is not None:
                self._reader.close()
        for each in self._inputs.values():
            each.close()
        with contextlib.suppress(duckdb.Error):
            self._resources.close()


class _ForDuckDB(Stream):
    """The stream in types that DuckDB has, in batches of about ``_BATCH_BYTES``."""

    def __init__(self, stream: Stream) -> None:
        schema = pa.schema([each.with_type(target(each, "TIMESTAMP_NS")) for each in stream.schema])
        pieces = (typed(piece, schema, infinite=True) for each in stream for piece in _cut(each))
        self._first: list[pa.RecordBatch] = []
        super().__init__(schema, pieces, stream.close)

    def __next__(self) -> pa.RecordBatch:
        return self._first.pop() if self._first else super().__next__()

    def rows_at_once(self) -> int:
        """How many rows are about ``_BATCH_BYTES`` by those of the first batch, which this reads."""
        self._first.extend(islice(self, 1))
        width = max((int(each.nbytes) // max(1, each.num_rows) for each in self._first), default=1)
        return max(1, min(_TEXT_ROWS, _BATCH_BYTES // max(1, width)))


def _cut(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    rows = max(1, batch.num_rows * _BATCH_BYTES // max(1, batch.nbytes))
    return (batch.slice(start, rows) for start in range(0, max(1, batch.num_rows), rows))


def _raise(error: Exception) -> NoReturn:
    text = str(error)
    message = advisable(text.partition("\n")[0].partition(": ")[2] or text.partition("\n")[0])
    if isinstance(error, duckdb.OutOfMemoryException | duckdb.IOException) or "Out of Memory Error" in text:
        raise LimitError(
            "These rows need more memory and temporary disk space than there is.",
            hint="Let the database sort, join or group them, or select fewer rows or columns.",
        ) from error
    if isinstance(error, duckdb.InternalException | duckdb.FatalException):
        raise InternalError("DuckDB failed on these rows.") from error
    if isinstance(error, duckdb.BinderException | duckdb.ParserException | duckdb.CatalogException):
        raise ParameterError(f"The expression cannot be computed over these rows: {message}") from error
    raise DataError(message) from error
