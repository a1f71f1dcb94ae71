"""From record batches to Python rows, portion by portion."""

from __future__ import annotations

import datetime
import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal, InvalidOperation
from itertools import compress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from dai.errors import DataError
from dai.formats.values.text import is_numeric_text
from dai.streams.stream import Stream

PORTION = 8192
"""Rows that are Python values at the same time, but for those that a caller keeps."""
Row = tuple[Any, ...]


_paused = threading.Lock()


@contextmanager
def uncollected() -> Iterator[None]:
    """Without passes of the garbage collector, which would look at all rows again and again while they are made and has
    nothing to free among them. For a moment of computing, not of waiting: it concerns all threads."""
    if not gc.isenabled() or not _paused.acquire(blocking=False):
        yield  # somebody else has paused it, who lets it go on
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        _paused.release()


class Rows:
    """The rows of a stream, as tuples or as what is left of the batches. ``decimals``: decimals that travel as text
    become ``decimal.Decimal``."""

    def __init__(self, stream: Stream, *, decimals: bool) -> None:
        self._stream = stream
        self._numeric = [decimals and is_numeric_text(field) and types.is_string(field.type) for field in stream.schema]
        self._batch: pa.RecordBatch | None = None
        self._at = 0
        """Rows of the batch that were given out."""
        self._rows: list[Row] = []
        self._first = 0
        """Where the rows begin in the batch."""
        self.taken_rows = 0

    @property
    def schema(self) -> pa.Schema:
        return self._stream.schema

    def take(self, most: int | None) -> list[Row]:
        """The next rows; fewer at the end."""
        taken: list[Row] = []
        while most is None or len(taken) < most:
            if self._at - self._first >= len(self._rows) and not self._convert():
                break
            start = self._at - self._first
            part = self._rows[start : None if most is None else start + most - len(taken)]
            taken += part
            self._at += len(part)
        self.taken_rows += len(taken)
        return taken

    def batches(self) -> Iterator[pa.RecordBatch]:
        """What is left, as it is."""
        if self._batch is not None and self._at < self._batch.num_rows:
            rest = self._batch.slice(self._at)
            self._at, self._first, self._rows, self._batch = 0, 0, [], None
            self.taken_rows += rest.num_rows
            yield rest
        for batch in self._stream:
            self.taken_rows += batch.num_rows
            yield batch

    def close(self) -> None:
        self._rows, self._batch = [], None
        self._stream.close()

    def _convert(self) -> bool:
        """Makes the next portion Python values; False after the last."""
        while self._batch is None or self._at >= self._batch.num_rows:
            self._batch = next(self._stream, None)
            self._at, self._first, self._rows = 0, 0, []
            if self._batch is None:
                return False
        part = self._batch.slice(self._at, PORTION)
        with uncollected():
            columns = list(map(_values, part.columns, self.schema, self._numeric))
            self._rows = list(zip(*columns, strict=True)) if columns else [()] * part.num_rows
        self._first = self._at
        return True


def _values(column: pa.Array, field: pa.Field, numeric: bool) -> list[Any]:
    """DataError for what Python cannot hold."""
    try:
        return _converted(column, numeric)
    except (OverflowError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"Column {field.name!r} has a value that Python's types cannot hold: {error}.",
            hint="fetch_arrow_table() gives it; a cast in the query makes it a text.",
            column=field.name,
        ) from error


def _converted(column: pa.Array, numeric: bool) -> list[Any]:
    """NumPy makes Python values of plain types several times as fast as pyarrow."""
    type_ = column.type
    if numeric:
        return [None if each is None else _decimal(each) for each in _objects(column)]
    if types.is_integer(type_) or types.is_floating(type_) or types.is_boolean(type_):
        if not column.null_count:
            return _objects(column)
        whole = _objects(column.fill_null(False if types.is_boolean(type_) else 0))
        for place in compress(range(len(whole)), _objects(column.is_null())):
            whole[place] = None
        return whole
    if types.is_string(type_) or types.is_binary(type_) or types.is_decimal(type_):
        return _objects(column)
    if types.is_timestamp(type_) and type_.unit == "us" and _is_common(column):
        moments = _objects(column.cast(pa.int64()).cast(pa.timestamp("us")))
        if type_.tz is None:
            return moments
        return [None if each is None else each.replace(tzinfo=datetime.UTC) for each in moments]
    if types.is_date32(type_) and _is_within(column.cast(pa.int32()), _DAYS):
        return list(column.to_numpy(zero_copy_only=False).astype(object))
    values: list[Any] = column.to_pylist()
    return values


def _objects(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
    return values


_COMMON = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The microseconds of the years 1 and 9999."""
_DAYS = -719_162, 2_932_896
"""Their days."""


def _is_common(column: pa.Array) -> bool:
    """Whether ``datetime`` has all of the moments."""
    return _is_within(column.cast(pa.int64()), _COMMON)


def _is_within(numbers: pa.Array, bounds: tuple[int, int]) -> bool:
    known = pc.min_max(numbers).as_py()
    return known["min"] is None or (known["min"] >= bounds[0] and known["max"] <= bounds[1])


def _decimal(text: str) -> Any:
    try:
        return Decimal(text)
    except InvalidOperation:  # SQLite holds what it is given
        return text
