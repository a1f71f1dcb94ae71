"""Values of any Python database driver as Arrow columns, and Arrow types as SQLAlchemy's.

A column's type is that of its first values; later ones that do not fit are refused, never converted with loss.
"""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
import pyarrow as pa
import sqlalchemy as sa

from dai.drivers.connections.rows import unfitting
from dai.errors import DataError

_UTC = pa.timestamp("us", "UTC")
_PLAIN: dict[type, tuple[str, pa.DataType]] = {
    bool: ("boolean", pa.bool_()),
    int: ("bigint", pa.int64()),
    float: ("double", pa.float64()),
    str: ("varchar", pa.string()),
    bytes: ("varbinary", pa.binary()),
    datetime.date: ("date", pa.date32()),
    datetime.time: ("time", pa.time64("us")),
    datetime.timedelta: ("interval", pa.duration("us")),
}
_TEXT: dict[type, tuple[str, Callable[[Any], str]]] = {
    uuid.UUID: ("uuid", str),
    dict: ("json", lambda value: orjson.dumps(value, default=str).decode()),
    list: ("json", lambda value: orjson.dumps(value, default=str).decode()),
    tuple: ("json", lambda value: orjson.dumps(value, default=str).decode()),
}
_BYTES = (bytearray, memoryview)


@dataclass(frozen=True, slots=True)
class Kind:
    """``python`` is the class of every value that is not None."""

    name: str
    type_name: str
    type: pa.DataType
    python: type


def choose(name: str, values: Sequence[Any], complete: bool) -> Kind:
    """From the first values; ``complete`` when there are no others. DataError where they have no common type."""
    python = _python_type(name, values, 1)
    if python is type(None):
        return Kind(name, "null", pa.null(), python) if complete else Kind(name, "varchar", pa.string(), str)
    if python is Decimal:
        return _decimal(name, values)
    if python is datetime.datetime:
        zoned = next(value for value in values if value is not None).tzinfo is not None
        return Kind(name, "timestamptz" if zoned else "timestamp", _UTC if zoned else pa.timestamp("us"), python)
    if python is int:
        widths = (pa.int64(), pa.uint64(), pa.decimal128(38, 0))
        arrow = next((each for each in widths if _fits(each, values)), None)
        if arrow is None:
            raise unfitting(name, 1, max(values, key=lambda value: abs(value or 0)), "decimal(38,0)", "it as text")
        return Kind(name, {pa.int64(): "bigint", pa.uint64(): "bigint unsigned"}.get(arrow, "decimal"), arrow, python)
    if python in _PLAIN:
        return Kind(name, *_PLAIN[python], python)
    if python in _TEXT:
        return Kind(name, _TEXT[python][0], pa.string(), python)
    raise DataError(
        f"Column {name!r} holds values of the Python type {python.__name__}, which no Arrow type carries.",
        hint="Cast it to text in the query.",
        column=name,
    )


def array(kind: Kind, values: Sequence[Any], row: int) -> pa.Array:
    """One portion of a column; ``row`` is the number of its first value."""
    python = _python_type(kind.name, values, row)
    if python not in (kind.python, type(None)):
        at = next(at for at, value in enumerate(values) if value is not None)
        raise unfitting(kind.name, row + at, values[at], kind.type_name, "it cast to text")
    if python in _TEXT:
        convert = _TEXT[python][1]
        values = [None if value is None else convert(value) for value in values]
    elif python is bytes:
        values = [bytes(value) if isinstance(value, _BYTES) else value for value in values]
    elif python is datetime.datetime:
        zoned = kind.type.tz is not None
        if any(value is not None and (value.tzinfo is not None) is not zoned for value in values):
            raise DataError(f"Column {kind.name!r} has moments with and without a time zone.", column=kind.name)
    try:
        return pa.array(values, kind.type)
    except (pa.ArrowInvalid, OverflowError) as error:
        at = next((at for at, value in enumerate(values) if not _fits(kind.type, [value])), 0)
        raise unfitting(kind.name, row + at, values[at], str(kind.type), "it cast to text") from error


def _python_type(name: str, values: Sequence[Any], row: int) -> type:
    kinds = set(map(type, values)) - {type(None)}
    kinds = {bytes if kind in _BYTES else kind for kind in kinds}
    if not kinds:
        return type(None)
    if len(kinds) > 1:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(
            f"Column {name!r}, rows {row} to {row + len(values) - 1}: values of several types ({names}).",
            hint="Cast it to text in the query.",
            column=name,
        )
    return kinds.pop()


def _decimal(name: str, values: Sequence[Any]) -> Kind:
    """Room for 38 digits with the scale of the first values, 76 where these are longer."""
    finite = [value for value in values if value is not None]
    if not all(value.is_finite() for value in finite):
        raise unfitting(name, 1, next(v for v in finite if not v.is_finite()), "decimal", "it cast to text")
    scale = max(max(-value.as_tuple().exponent, 0) for value in finite)
    digits = max(len(value.as_tuple().digits) + max(value.as_tuple().exponent, 0) for value in finite)
    if max(digits, scale) <= 38 and digits + 4 <= 38:
        return Kind(name, "decimal", pa.decimal128(38, scale), Decimal)
    if max(digits, scale) <= 76:
        return Kind(name, "decimal", pa.decimal256(76, scale), Decimal)
    raise unfitting(name, 1, max(finite, key=abs), "decimal(76)", "it cast to text")


def _fits(type: pa.DataType, values: Sequence[Any]) -> bool:
    try:
        pa.array(values, type)
    except (pa.ArrowInvalid, OverflowError, pa.ArrowTypeError):
        return False
    return True


def sql_type(field: pa.Field) -> sa.types.TypeEngine[Any]:
    """SQLAlchemy's type for a column of a new table. DataError if it has none."""
    type = field.type
    kinds = pa.types
    if kinds.is_dictionary(type):
        return sql_type(field.with_type(type.value_type))
    if kinds.is_decimal(type):
        return sa.Numeric(max(type.precision, type.scale), max(type.scale, 0))
    if kinds.is_timestamp(type):
        return sa.DateTime(timezone=type.tz is not None)
    column_type = next((candidate for fits, candidate in _SQL if fits(type)), None)
    if column_type is None:
        raise DataError(
            f"The column {field.name!r} is a {type}, for which there is no type in every database.",
            hint="Cast it to text in the query that gives it.",
            column=field.name,
        )
    return column_type


_SQL: tuple[tuple[Callable[[pa.DataType], bool], sa.types.TypeEngine[Any]], ...] = (
    (pa.types.is_boolean, sa.Boolean()),
    (pa.types.is_uint64, sa.Numeric(20, 0)),
    (lambda type: type in (pa.int8(), pa.int16(), pa.uint8()), sa.SmallInteger()),
    (lambda type: type in (pa.int32(), pa.uint16()), sa.Integer()),
    (pa.types.is_integer, sa.BigInteger()),
    (pa.types.is_floating, sa.Double()),
    (pa.types.is_date, sa.Date()),
    (pa.types.is_time, sa.Time()),
    (pa.types.is_duration, sa.Interval()),
    (lambda type: pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_null(type), sa.Text()),
    (lambda type: pa.types.is_binary(type) or pa.types.is_large_binary(type), sa.LargeBinary()),
)


def arrow_name(type: sa.types.TypeEngine[Any]) -> str:
    """The Arrow type that a query of a reflected column is likely to return: the drivers behind SQLAlchemy decide."""
    try:
        python = type.python_type
    except NotImplementedError:
        return "string"
    if python is Decimal:
        precision, scale = getattr(type, "precision", None) or 38, getattr(type, "scale", None) or 0
        return str(pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(min(precision, 76), scale))
    if python is datetime.datetime:
        return str(_UTC if getattr(type, "timezone", False) else pa.timestamp("us"))
    return str(_PLAIN[python][1]) if python in _PLAIN else "string"
