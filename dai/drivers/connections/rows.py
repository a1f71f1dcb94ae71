"""Python rows to Arrow columns, and how many rows make a batch: shared by the drivers whose library gives tuples.

Rows are turned column by column (``zip`` and ``pyarrow.array``, both in C): no Python statement runs per row.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from dai.errors import DataError, LimitError
from dai.streams.stream import TYPE_NAME

FIRST_ROWS = 256
"""The first portion is small: the first bytes leave early, and its size says how large the others may be."""
PORTION_CELLS = 1 << 14
"""Values fetched at a time: few enough to stay in the processor's cache between fetching and conversion."""
MOST_ROWS = 65_536
ROW_BYTES = 1 << 28
"""Of one row, or of a few that a library hands over together: a few characters of a statement make gigabytes."""

Row = Sequence[Any]
Convert = Callable[[Sequence[tuple[Any, ...]], int], list[pa.Array]]
"""Rows and the number (from 1) of the first of them to columns."""


def too_long() -> LimitError:
    """For a row, or a few, of more than ``ROW_BYTES``; the connection is to be thrown away."""
    return LimitError(
        f"A row of the answer has more than {ROW_BYTES:,} bytes, or a few rows together have.",
        hint="Select long values in parts: substring(column, 1, 100000000).",
    )


def portion_rows(columns: int) -> int:
    """Rows fetched at a time. Each is an object that Python's collector of cycles counts: a portion that makes it run
    takes twice as long, so they are fewer than it waits for (``dai serve`` lets it wait longer)."""
    return max(FIRST_ROWS, min(PORTION_CELLS // max(columns, 1), gc.get_threshold()[0] * 9 // 10))


def field(name: str, type: pa.DataType, type_name: str, **metadata: object) -> pa.Field:
    """A field that carries the source's type name and what else its ``dai.`` metadata hold."""
    more: dict[bytes | str, bytes | str] = {
        f"dai.{key}": str(value) for key, value in metadata.items() if value is not None
    }
    return pa.field(name, type, metadata={TYPE_NAME: type_name.lower().encode(), **more})


def columns_of(rows: Sequence[Row], count: int) -> Sequence[Row]:
    """The columns of ``rows``; ``count`` empty ones when there are no rows."""
    return list(zip(*rows, strict=True)) if rows else [()] * count


def record_batch(columns: Sequence[pa.Array], schema: pa.Schema, rows: int) -> pa.RecordBatch:
    """Like ``from_arrays``, but a batch without columns still counts its rows."""
    if len(schema):
        return pa.RecordBatch.from_arrays(list(columns), schema=schema)
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


class Portions:
    """The rows of one statement, which ``fetch(n)`` gives. ``asking`` surrounds each fetch: errors are ours there, and
    a cancellation ends the wait. ``broken``: a fetch has failed, and nobody knows the state of the connection."""

    def __init__(
        self,
        fetch: Callable[[int], Sequence[Any]],
        asking: Callable[[], AbstractContextManager[None]],
        at_end: bool = False,
    ) -> None:
        self._fetch, self._asking = fetch, asking
        self.at_end, self.broken = at_end, False

    def next(self, rows: int) -> Sequence[Any]:
        """So many rows, fewer at the end."""
        if self.at_end:
            return ()
        self.broken = True
        with self._asking():
            portion = self._fetch(rows)
        self.broken = False
        self.at_end = len(portion) < rows
        return portion


def batches(
    first: list[pa.Array],
    have: int,
    portions: Portions,
    convert: Convert,
    schema: pa.Schema,
    batch_bytes: int,
    batch_rows: int | None,
) -> Iterator[pa.RecordBatch]:
    """Record batches of the ``first`` portion, whose columns and number of rows are known, and of all that follow."""
    parts, row, wanted, most = [first], 1, batch_rows or 0, portion_rows(len(schema))
    del first
    while have:
        while have < wanted and (more := portions.next(min(most, wanted - have))):
            parts.append(convert(more, row + have))
            have += len(more)
        whole = parts[0] if len(parts) == 1 else [pa.concat_arrays(same) for same in zip(*parts, strict=True)]
        batch = record_batch(whole, schema, have)
        del parts, whole
        yield batch
        row += have
        wanted = batch_rows or max(1, min(MOST_ROWS, batch_bytes * have // max(batch.nbytes, 1)))
        rows = portions.next(min(most, wanted))
        parts, have = [convert(rows, row)] if rows else [], len(rows)
        del rows


def unfitting(name: str, row: int, value: object, type: str, cast: str) -> DataError:
    """What to say about a value that does not fit its column's type; the value itself is not repeated at length."""
    shown = repr(value)
    return DataError(
        f"Column {name!r}, row {row}: {shown[:60] + '…' if len(shown) > 60 else shown} is not a {type}.",
        hint=f"Select {cast} to get the column as text.",
        column=name,
        row=row,
    )
