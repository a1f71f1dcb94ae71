"""Binary results of libpq to Arrow arrays: for the few rows of a small result, where a connection of ADBC's own would
cost more than all the decoding. The formats are those of PostgreSQL's send functions (src/backend/utils/adt).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pyarrow as pa
from psycopg import pq

from dai.drivers.postgresql.types import DAY, NUMERIC, Shape, bounds_refused, not_carried, out_of_range

Cells = Sequence[bytes | None]

FEW = 32
_EPOCH_DAYS = 10_957  # from 1970 to 2000, where PostgreSQL counts from
_EPOCH_MICROSECONDS = _EPOCH_DAYS * DAY
_numeric_loader = psycopg.adapters.get_loader(NUMERIC, pq.Format.BINARY)
assert _numeric_loader is not None
_load_numeric: Callable[[bytes], Any] = _numeric_loader(NUMERIC).load
_NUMBERS = {
    "bool": "?",
    "int2": "h",
    "int4": "i",
    "int8": "q",
    "oid": "I",
    "float4": "f",
    "float8": "d",
    "date": "i",
    "time": "q",
    "timestamp": "q",
    "timestamptz": "q",
}
_SHIFTS = {"date": (_EPOCH_DAYS, 32), "timestamp": (_EPOCH_MICROSECONDS, 64), "timestamptz": (_EPOCH_MICROSECONDS, 64)}


def batch(
    schema: pa.Schema, struct: pa.StructType, shapes: Sequence[Shape], columns: Sequence[Cells]
) -> pa.RecordBatch:
    """At least one column of cells each. ``struct`` has the schema's fields. Raises DataError for what Arrow cannot
    hold."""
    if len(columns[0]) <= FEW:
        # One conversion for all columns: between two round trips Arrow's code has left the processor's cache, and every
        # further call pays for that again.
        try:
            rows = list(zip(*map(_objects, shapes, columns), strict=True))
            return pa.RecordBatch.from_struct_array(pa.array(rows, struct))
        except pa.ArrowInvalid:
            pass  # by column it is known whose value it is
    return pa.RecordBatch.from_arrays(list(map(decoded, shapes, columns)), schema=schema)


def _objects(shape: Shape, cells: Cells) -> Sequence[Any]:
    """Values that pa.array takes for the type of the field."""
    if shape.array:
        return [None if cell is None else _scalars(shape, _elements(cell)) for cell in cells]
    return _scalars(shape, cells)


def _scalars(shape: Shape, cells: Cells) -> Sequence[Any]:
    kind = shape.field.type.value_type if shape.array else shape.field.type
    if shape.wire == "text" and pa.types.is_decimal(kind):
        return [None if cell is None else Decimal(cell.decode()) for cell in cells]
    return _values(shape, cells)


def decoded(shape: Shape, cells: Cells) -> pa.Array:
    """One column. Raises DataError for what Arrow cannot hold."""
    if shape.array:
        return _lists(shape, cells)
    return _column(shape, _values(shape, cells), shape.field.type)


def _column(shape: Shape, values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    if not pa.types.is_decimal(kind):
        return pa.array(values, kind)
    try:
        if shape.wire == "numeric":
            return pa.array(values, kind)
        return pa.array(values, pa.string()).cast(kind)
    except pa.ArrowInvalid as error:
        raise not_carried(shape) from error


def _lists(shape: Shape, cells: Cells) -> pa.Array:
    flat: list[bytes | None] = []
    offsets: list[int | None] = [0]
    for cell in cells:
        if cell is None:
            offsets[-1] = None
        else:
            flat += _elements(cell)
        offsets.append(len(flat))
    element = shape.field.type.value_type
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), _column(shape, _values(shape, flat), element))


def _values(shape: Shape, cells: Cells) -> Sequence[Any]:
    wire = shape.wire
    code = _NUMBERS.get(wire)
    if code is not None:
        values = _numbers(code, cells)
        if wire in _SHIFTS:
            return _shifted(shape, values)
        if wire == "time" and any(value is not None and value >= DAY for value in values):
            raise out_of_range(shape, "24:00:00")
        return values
    if wire == "jsonb":
        return [None if cell is None else cell[1:] for cell in cells]  # a version number stands before the text
    if wire == "interval":
        return [None if cell is None else _interval(shape, cell) for cell in cells]
    if wire == "numeric":
        decimals = [None if cell is None else _load_numeric(cell) for cell in cells]
        if pa.types.is_decimal(shape.field.type):
            return decimals
        return [None if value is None else format(value, "f") for value in decimals]
    if wire == "uuid":
        return [None if cell is None else str(UUID(bytes=cell)) for cell in cells]
    return cells


def _numbers(code: str, cells: Cells) -> Sequence[Any]:
    if None not in cells:
        return struct.unpack(f">{len(cells)}{code}", b"".join(cells))  # type: ignore[arg-type]
    unpack: Callable[[bytes], tuple[Any, ...]] = struct.Struct(f">{code}").unpack
    return [None if cell is None else unpack(cell)[0] for cell in cells]


def _shifted(shape: Shape, values: Sequence[Any]) -> Sequence[Any]:
    shift, bits = _SHIFTS[shape.wire]
    limit = (1 << bits - 1) - shift
    # The infinities are the ends of the integer's range.
    if any(value is not None and (value >= limit or value == -(1 << bits - 1)) for value in values):
        raise out_of_range(shape, "infinity, -infinity or a time beyond the year 294246")
    return [None if value is None else value + shift for value in values]


def _interval(shape: Shape, cell: bytes) -> tuple[int, int, int]:
    microseconds, days, months = struct.unpack(">qii", cell)
    nanoseconds = microseconds * 1000
    if not -(1 << 63) <= nanoseconds < 1 << 63 or abs(months) == 0x7FFFFFFF:
        raise out_of_range(shape, "a time longer than 292 years, or an infinity")
    return months, days, nanoseconds


def _elements(cell: bytes) -> list[bytes | None]:
    dimensions = int.from_bytes(cell[:4], "big")
    if dimensions == 0:
        return []
    count, lower = struct.unpack(">ii", cell[12:20])
    if dimensions > 1 or lower != 1:
        bounds = struct.unpack(f">{2 * dimensions}i", cell[12 : 12 + 8 * dimensions])
        raise bounds_refused(
            "".join(f"[{low}:{low + n - 1}]" for n, low in zip(bounds[::2], bounds[1::2], strict=True))
        )
    elements: list[bytes | None] = []
    at = 20
    for _ in range(count):
        length = int.from_bytes(cell[at : at + 4], "big", signed=True)
        at += 4
        if length < 0:
            elements.append(None)
        else:
            elements.append(cell[at : at + length])
            at += length
    return elements
