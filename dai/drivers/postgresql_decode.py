"""Binary results of libpq to Arrow arrays: for the few rows of a small result, where a connection of ADBC's own would
cost more than all the decoding. The formats are those of PostgreSQL's send functions (src/backend/utils/adt).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pyarrow as pa

from dai.drivers.postgresql_types import Shape, finished, out_of_range
from dai.errors import DataError

Cells = Sequence[bytes | None]

_EPOCH_DAYS = 10_957  # from 1970 to 2000, where PostgreSQL counts from
_EPOCH_MICROSECONDS = _EPOCH_DAYS * 86_400_000_000
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


def decoded(shape: Shape, cells: Cells) -> pa.Array:
    """One column."""
    if not shape.array:
        return finished(shape, pa.array(_values(shape, cells), shape.wire_type))
    flat: list[bytes | None] = []
    offsets: list[int | None] = [0]
    for cell in cells:
        if cell is None:
            offsets[-1] = None
        else:
            flat += _elements(shape, cell)
        offsets.append(len(flat))
    values = pa.array(_values(shape, flat), shape.wire_type.value_type)
    return finished(shape, pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values))


def _values(shape: Shape, cells: Cells) -> Sequence[Any]:
    wire = shape.wire
    code = _NUMBERS.get(wire)
    if code is not None:
        values = _numbers(code, cells)
        if wire in _SHIFTS:
            return _shifted(shape, values)
        return values
    if wire == "jsonb":
        return [None if cell is None else cell[1:] for cell in cells]  # a version number stands before the text
    if wire == "interval":
        return [None if cell is None else _interval(shape, cell) for cell in cells]
    if wire == "numeric":
        return [None if cell is None else _numeric(cell) for cell in cells]
    if wire == "uuid":
        return [None if cell is None else str(UUID(bytes=cell)) for cell in cells]
    return cells


_SIGNS = {0x4000: "-", 0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}


def _numeric(cell: bytes) -> str:
    """Groups of four decimal digits, the first weighing 10000 ** weight, to as many decimals as the scale says."""
    count, weight, sign, scale = struct.unpack(">HhHH", cell[:8])
    if sign >= 0xC000:
        return _SIGNS[sign]
    groups = struct.unpack(f">{count}H", cell[8:])
    digits = "".join(f"{group:04d}" for group in groups)
    point = 4 * (weight + 1)
    if point <= 0:
        digits, point = "0" * (4 - point) + digits, 4
    digits = digits.ljust(point + scale, "0")
    whole = digits[:point].lstrip("0") or "0"
    return f"{_SIGNS.get(sign, '')}{whole}{'.' if scale else ''}{digits[point : point + scale]}"


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


def _elements(shape: Shape, cell: bytes) -> list[bytes | None]:
    dimensions = int.from_bytes(cell[:4], "big")
    if dimensions == 0:
        return []
    if dimensions > 1:
        raise DataError(
            f"Column {shape.field.name!r} holds an array of {dimensions} dimensions.",
            hint="Cast the column to text (column::text), or unnest it.",
        )
    count = int.from_bytes(cell[12:16], "big")
    found: list[bytes | None] = []
    at = 20
    for _ in range(count):
        length = int.from_bytes(cell[at : at + 4], "big", signed=True)
        at += 4
        if length < 0:
            found.append(None)
        else:
            found.append(cell[at : at + length])
            at += length
    return found
