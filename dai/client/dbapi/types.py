"""The type objects and constructors of PEP 249."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as types

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:  # noqa: N802 - the names of PEP 249
    """The date of that many seconds since 1970, here."""
    return TimestampFromTicks(ticks).date()


def TimeFromTicks(ticks: float) -> datetime.time:  # noqa: N802
    """The time of that many seconds since 1970, here."""
    return TimestampFromTicks(ticks).time()


def TimestampFromTicks(ticks: float) -> datetime.datetime:  # noqa: N802
    """The moment that many seconds since 1970, by the local clock."""
    return datetime.datetime.fromtimestamp(ticks)  # noqa: DTZ006 - PEP 249 asks for the local time


class TypeObject:
    """Equals the Arrow types of a family: ``cursor.description[0][1] == NUMBER``."""

    def __init__(self, name: str, *fits: Callable[[pa.DataType], bool]) -> None:
        self._name, self._fits = name, fits

    def __eq__(self, other: object) -> bool:
        if isinstance(other, pa.DataType):
            return any(fits(other) for fits in self._fits)
        return self is other

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return self._name


STRING = TypeObject("STRING", types.is_string, types.is_large_string, types.is_null)
BINARY = TypeObject("BINARY", types.is_binary, types.is_large_binary)
NUMBER = TypeObject("NUMBER", types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
DATETIME = TypeObject(
    "DATETIME", types.is_date, types.is_time, types.is_timestamp, types.is_duration, types.is_interval
)
ROWID = TypeObject("ROWID")


def description(schema: pa.Schema) -> tuple[tuple[Any, ...], ...]:
    """Seven values for each column: name, Arrow type, then display size (unknown), bytes, precision, scale, and whether
    it may be NULL (unknown)."""
    return tuple((field.name, field.type, None, *_size(field.type), None) for field in schema)


def _size(type: pa.DataType) -> tuple[int | None, int | None, int | None]:
    if types.is_decimal(type):
        return type.byte_width, type.precision, type.scale
    try:
        return type.bit_width // 8 or 1, None, None
    except ValueError:  # of no fixed width
        return None, None, None
