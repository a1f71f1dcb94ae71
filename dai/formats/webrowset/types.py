"""Arrow types and java.sql.Types: writes the column-definition of a column, and reads it.

The table is in ARCHITECTURE.md. A column-definition mostly says enough to restore the Arrow type: ``column-type`` and
the source's own ``column-type-name``. Where it does not (lists, a name that means several things, metadata of our own),
the encoder adds the Arrow schema to the metadata as a processing instruction, ``<?arrow-schema BASE64?>``, which other
readers pass over; Parquet files carry it in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import DataError, EncodingError
from dai.formats.values import text as values
from dai.streams.stream import PRECISION, SCHEMA_NAME, TABLE, TYPE_NAME

VARCHAR, DATE, TIME, TIMESTAMP, VARBINARY, DECIMAL, NUMERIC = 12, 91, 92, 93, -3, 3, 2
JAVA_WRITES = frozenset({-7, 16, -6, 5, 4, -5, 7, 6, 8, NUMERIC, DECIMAL, DATE, TIME, TIMESTAMP, 1, VARCHAR, -1})
"""The types whose values the JDK's own writer writes; of all others it leaves them out, NULL or not."""
_DAY_MS = 86_400_000

_WRITTEN: dict[pa.DataType, tuple[int, str, int]] = {
    pa.bool_(): (16, "boolean", 1),
    pa.int8(): (-6, "tinyint", 3),
    pa.int16(): (5, "smallint", 5),
    pa.int32(): (4, "integer", 10),
    pa.int64(): (-5, "bigint", 19),
    pa.uint8(): (5, "tinyint unsigned", 3),
    pa.uint16(): (4, "smallint unsigned", 5),
    pa.uint32(): (-5, "integer unsigned", 10),
    pa.uint64(): (DECIMAL, "bigint unsigned", 20),
    pa.float32(): (7, "real", 7),
    pa.float64(): (8, "double precision", 15),
    pa.string(): (VARCHAR, "text", 0),
    pa.binary(): (VARBINARY, "varbinary", 0),
    pa.date32(): (DATE, "date", 10),
    pa.time64("us"): (VARCHAR, "time", 0),
    pa.timestamp("us"): (VARCHAR, "timestamp", 0),
    pa.timestamp("us", "UTC"): (VARCHAR, "timestamp with time zone", 0),
    pa.duration("us"): (VARCHAR, "interval day to second", 0),
    pa.month_day_nano_interval(): (VARCHAR, "interval", 0),
    pa.null(): (VARCHAR, "null", 0),
}
"""The column-type, the type name where the source gave none, and the digits or characters of the longest value."""

_READ: dict[int, pa.DataType] = {
    16: pa.bool_(), -7: pa.bool_(),
    -6: pa.int8(), 5: pa.int16(), 4: pa.int32(), -5: pa.int64(),
    7: pa.float32(), 6: pa.float64(), 8: pa.float64(),
    -2: pa.binary(), VARBINARY: pa.binary(), -4: pa.binary(), 2004: pa.binary(),
    DATE: pa.date32(), TIME: pa.time64("us"), TIMESTAMP: pa.timestamp("us"), 0: pa.null(),
}  # fmt: skip
"""The Arrow types of java.sql.Types; types that are missing are text."""
_READ_UNSIGNED: dict[str, pa.DataType] = {
    "tinyint": pa.uint8(), "smallint": pa.uint16(), "mediumint": pa.uint32(), "int": pa.uint32(),
    "integer": pa.uint32(), "bigint": pa.uint64(),
}  # fmt: skip
"""By the name: JDBC drivers call an unsigned type by the number of the signed one."""
_READ_VARCHAR: dict[str, pa.DataType] = {
    "time": pa.time64("us"),
    "time without time zone": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamp without time zone": pa.timestamp("us"),
    "datetime": pa.timestamp("us"),
    "timestamp with time zone": pa.timestamp("us", "UTC"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "interval": pa.month_day_nano_interval(),
    "interval day to second": pa.duration("us"),
    "null": pa.null(),
}
"""The Arrow types of columns with this type name and the column-type VARCHAR."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column-definition. ``scale`` of a time is its number of digits below the second when ``precision`` is not 0."""

    name: str
    java_type: int
    type_name: str
    precision: int = 0
    scale: int = 0
    nullable: bool = True
    signed: bool = False
    schema_name: str = ""
    table_name: str = ""

    def __str__(self) -> str:
        return f"{self.name!r}"


def described(field: pa.Field) -> Column:
    """The column-definition of a field. Raises EncodingError for a type without a text form."""
    try:
        type_ = values.canonical_type(field.type)
    except DataError as error:
        raise EncodingError(f"Column {field.name!r}: {error.detail}", column=field.name, hint=error.hint) from error
    metadata = field.metadata or {}
    types = pa.types
    declared = metadata.get(PRECISION, b"").decode()
    digits = int(declared) if declared.isdigit() and len(declared) < 10 else None
    scale = 0
    if types.is_decimal(type_):
        java_type, name, precision, scale = NUMERIC, "numeric", type_.precision, type_.scale
    elif type_ in _WRITTEN:
        java_type, name, precision = _WRITTEN[type_]
    else:
        java_type, name, precision = VARCHAR, _name(type_), 0
    if types.is_time(type_) or types.is_timestamp(type_) or types.is_duration(type_):
        if digits is not None:
            precision, scale = (8 if types.is_time(type_) else 19) + (digits + 1 if digits else 0), digits
            if digits <= 3 and not types.is_duration(type_) and getattr(type_, "tz", None) is None:
                java_type = TIME if types.is_time(type_) else TIMESTAMP
    elif types.is_string(type_) or types.is_binary(type_):
        precision = digits or 0
    return Column(
        field.name,
        java_type,
        metadata.get(TYPE_NAME, name.encode()).decode(errors="replace"),
        precision,
        scale,
        field.nullable,
        types.is_signed_integer(type_) or types.is_floating(type_) or types.is_decimal(type_),
        metadata.get(SCHEMA_NAME, b"").decode(errors="replace"),
        metadata.get(TABLE, b"").decode(errors="replace"),
    )


def _name(type_: pa.DataType) -> str:
    """A type name for what has none in SQL: nanoseconds, and lists after the manner of PostgreSQL."""
    if pa.types.is_list(type_):
        return described(pa.field("", type_.value_type)).type_name.removesuffix("[]") + "[]"
    return str(type_)


def restored(column: Column) -> pa.Field:
    """The field that a column-definition describes."""
    type_ = _type(column)
    number = column.java_type in (DECIMAL, NUMERIC) and type_ == pa.string()
    type_name = column.type_name or ("numeric" if number else "")
    metadata = {TYPE_NAME: type_name} if type_name else {}
    types = pa.types
    if types.is_time(type_) or types.is_timestamp(type_) or types.is_duration(type_):
        if column.precision:
            metadata[PRECISION] = str(column.scale)
    elif (types.is_string(type_) or types.is_binary(type_)) and column.precision:
        metadata[PRECISION] = str(column.precision)
    if column.schema_name:
        metadata[SCHEMA_NAME] = column.schema_name
    if column.table_name:
        metadata[TABLE] = column.table_name
    return pa.field(column.name, type_, column.nullable, metadata or None)


def _type(column: Column) -> pa.DataType:
    name = column.type_name.lower()
    if "unsigned" in name and column.java_type in (-6, 5, 4, -5, DECIMAL):
        whole = column.java_type != DECIMAL or (column.precision, column.scale) == (20, 0)
        unsigned = _READ_UNSIGNED.get(name.replace("(", " ").partition(" ")[0])
        if whole and unsigned is not None:
            return unsigned
    if column.java_type in (DECIMAL, NUMERIC):
        if 0 < column.precision <= 38 and -38 <= column.scale <= column.precision:
            return pa.decimal128(column.precision, column.scale)
        if 0 < column.precision <= 76 and -76 <= column.scale <= column.precision:
            return pa.decimal256(column.precision, column.scale)
        return pa.string()
    if column.java_type == VARCHAR:
        return _READ_VARCHAR.get(name, pa.string())
    return _READ.get(column.java_type, pa.string())


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """``schema`` with the types its values have after a journey."""
    return pa.schema([field.with_type(values.canonical_type(field.type)) for field in schema], schema.metadata)


def restored_schema(columns: Sequence[Column]) -> pa.Schema:
    """The Arrow schema that the metadata of a document stand for."""
    return pa.schema([restored(column) for column in columns])


def column_text(array: pa.Array, field: pa.Field, column: Column) -> pa.StringArray:
    """The text of each value in a columnValue, not escaped; NULL stays NULL.

    Raises EncodingError for a value with more digits than its column declares, for milliseconds would lose them.
    """
    if column.java_type not in (DATE, TIME, TIMESTAMP):
        return values.to_text(array, field)
    array = values.canonical(array, field.name)
    if column.java_type == DATE:
        return pc.multiply(array.cast(pa.int32()).cast(pa.int64()), _DAY_MS).cast(pa.string())
    shorter = pa.time32("ms") if column.java_type == TIME else pa.timestamp("ms")
    try:
        numbers = array.cast(shorter)
    except pa.ArrowInvalid as error:
        raise EncodingError(
            f"Column {field.name!r} has a time with more than the {column.scale} decimal places that the column "
            "declares.",
            column=field.name,
        ) from error
    return numbers.cast(pa.int32() if column.java_type == TIME else pa.int64()).cast(pa.string())


def column_values(strings: pa.StringArray, column: Column, field: pa.Field, first_row: int) -> pa.Array:
    """The inverse of ``column_text``. Raises DataError naming column and row (``first_row`` numbers the first).

    Dates and times are milliseconds; a document of others may have them in ISO 8601. The JDK writes a date as the
    midnight of its own time zone, so the nearest day is meant.
    """
    if column.java_type not in (DATE, TIME, TIMESTAMP) or not pa.types.is_temporal(field.type):
        return values.from_text(strings, field.type, column=column.name, first_row=first_row)
    try:
        numbers = strings.cast(pa.int64())
    except pa.ArrowInvalid:
        return values.from_text(strings, field.type, column=column.name, first_row=first_row)
    try:
        if column.java_type == DATE:
            return _whole(numbers, _DAY_MS // 2).cast(pa.int32()).cast(field.type)
        if column.java_type == TIME:
            days = pc.multiply(_whole(numbers, 0), _DAY_MS)
            return pc.subtract(numbers, days).cast(pa.int32()).cast(pa.time32("ms")).cast(field.type)
        return numbers.cast(pa.timestamp("ms")).cast(field.type)
    except pa.ArrowInvalid as error:
        last = first_row + len(strings) - 1
        raise DataError(f"Rows {first_row} to {last}, column {column}: out of range: {error}") from error


def _whole(milliseconds: pa.Array, plus: int) -> pa.Array:
    """Days since 1970, rounded down after adding."""
    filled = milliseconds.fill_null(0).to_numpy(zero_copy_only=False)
    days = np.floor_divide(filled, _DAY_MS) + (np.mod(filled, _DAY_MS) + plus) // _DAY_MS
    return pc.if_else(milliseconds.is_valid(), pa.array(days, pa.int64()), None)
