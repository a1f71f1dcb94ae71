"""DuckDB's reading of Arrow streams and its Arrow results, for queries of activities and for fragments."""

from __future__ import annotations

import logging
import threading
from typing import Any, Self

import pyarrow as pa

from dai.drivers.duckdb.types import LONG_INTERVAL, missing
from dai.errors import ClosedError, DaiError, DataError, InternalError
from dai.streams.stream import Stream

log = logging.getLogger("dai.drivers.duckdb.inputs")


class StreamInput:
    """A stream as DuckDB reads it: once. A second reader gets an error and not what the first one left. ``failure``:
    the first error of the stream, which DuckDB tells in its own words."""

    def __init__(self, stream: Stream) -> None:
        self._stream, self._batches = stream, stream.checked()
        self._lock = threading.Lock()
        self._reader: _Pulling | None = None
        self._open = True
        self.failure: DaiError | None = None

    def __arrow_c_schema__(self) -> Any:
        return self._stream.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        reader = pa.RecordBatchReader.from_batches(self._stream.schema, _Pulling(self))
        return reader.__arrow_c_stream__(requested_schema)

    def next(self, reader: _Pulling) -> pa.RecordBatch:
        with self._lock:
            try:
                if not self._open:
                    raise ClosedError("The reader of these rows has stopped.")
                if self._reader not in (None, reader):
                    raise InternalError("An input is read twice.")
                self._reader = reader
                return next(self._batches)
            except StopIteration:
                raise
            except DaiError as error:
                self.failure = self.failure or error
                raise
            except Exception:
                self.failure = self.failure or InternalError("The rows could not be read.")
                log.exception("an input failed")
                raise

    @property
    def reading(self) -> bool:
        """Whether DuckDB waits for rows of the stream."""
        return self._lock.locked()

    def close(self) -> None:
        """Closes the input; waits for a reader that is pulling."""
        with self._lock:
            if self._open:
                self._open = False
                self._stream.close()


class _Pulling:
    def __init__(self, input: StreamInput) -> None:
        self._input = input

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> pa.RecordBatch:
        return self._input.next(self)


def typed(batch: pa.RecordBatch, schema: pa.Schema, *, infinite: bool = False) -> pa.RecordBatch:
    """The batch in the schema's types. DataError for a value that does not fit, and for infinite dates and timestamps
    and 24:00, which Arrow does not have, unless it is for DuckDB, which knows its own (``infinite``)."""
    arrays = []
    for column, wanted in zip(batch.columns, schema, strict=True):
        if not infinite and (reason := missing(column)):
            raise DataError(
                f"Column {wanted.name!r}: {reason[0]}.",
                hint=f'Select CAST("{wanted.name}" AS VARCHAR) to get the column as text.',
                column=wanted.name,
            )
        try:
            arrays.append(column if column.type == wanted.type else column.cast(wanted.type))
        except (pa.ArrowException, ValueError) as error:
            raise DataError(
                f"Column {wanted.name!r}: a {column.type} does not fit a {wanted.type}.",
                hint="Cast the column in the query that the tuples come from.",
                column=wanted.name,
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def beyond_arrow(text: str) -> DataError | None:
    """The error for a value that no Arrow type holds, by DuckDB's message; None for any other."""
    if "to DECIMAL(38,0)" in text and "Could not cast value" in text:
        return DataError(
            "A HUGEINT has more than 38 digits, which no decimal column can hold.",
            hint="Cast the column AS VARCHAR to get it as text.",
        )
    if LONG_INTERVAL in text:
        return DataError(LONG_INTERVAL, hint="Cast the column AS VARCHAR to get it as text.")
    return None
