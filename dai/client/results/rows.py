"""From record batches to Python rows, portion by portion."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from dai.client.results.values import values_of
from dai.errors import DataError
from dai.formats.values.text import is_numeric_text
from dai.streams.stream import Stream

PORTION = 8192
"""Rows that are Python values at the same time, but for those that a caller keeps."""
Row = tuple[Any, ...]


_paused = threading.Lock()


@contextmanager
def uncollected(rows: int) -> Iterator[None]:
    """Without passes of the garbage collector, which would look at all rows again and again while they are made and has
    nothing to free among them. For a moment of computing, not of waiting: it concerns all threads.

    ``rows``: how many the fetch has made, with those to come. Many are as old to the collector afterwards as what a
    program loads at its start, so that they are not the reason for a pass either. What was young before is collected
    first, and then as old as they are.
    """
    if not gc.isenabled() or not _paused.acquire(blocking=False):
        yield  # somebody else has paused it, who lets it go on
        return
    try:
        many = _are_many(rows)
        if many:
            gc.collect(1)
        try:
            gc.disable()
            yield
        finally:
            try:
                if many and not gc.get_freeze_count():  # what somebody has frozen stays so
                    _make_old()
            finally:
                gc.enable()
    finally:
        _paused.release()


def _are_many(rows: int) -> bool:
    """Whether what a program has would be old if it made the rows itself. Fewer make nothing old: old garbage stays for
    long, with the rows that it holds."""
    young, passes, _ = gc.get_threshold()
    return 0 < 2 * young * passes < rows


def _make_old() -> None:
    try:
        gc.freeze()
    finally:
        gc.unfreeze()


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
            if self._at - self._first >= len(self._rows) and not self._convert(len(taken)):
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

    def _convert(self, before: int) -> bool:
        """Makes the next portion Python values; False after the last. ``before``: rows that the fetch has already."""
        while self._batch is None or self._at >= self._batch.num_rows:
            self._batch = next(self._stream, None)
            self._at, self._first, self._rows = 0, 0, []
            if self._batch is None:
                return False
        part = self._batch.slice(self._at, PORTION)
        with uncollected(before + part.num_rows):
            columns = list(map(_values, part.columns, self.schema, self._numeric))
            self._rows = list(zip(*columns, strict=True)) if columns else [()] * part.num_rows
        self._first = self._at
        return True


def _values(column: pa.Array, field: pa.Field, numeric: bool) -> list[Any]:
    """DataError for what Python cannot hold."""
    try:
        return values_of(column, numeric)
    except (OverflowError, ValueError, pa.ArrowException) as error:
        raise DataError(
            f"Column {field.name!r} has a value that Python's types cannot hold: {error}.",
            hint="Use fetch_arrow_table(), or cast the column to text in the query.",
            column=field.name,
        ) from error
