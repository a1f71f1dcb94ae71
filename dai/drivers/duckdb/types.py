"""DuckDB's types and Arrow's."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.sql.ddl import quoted
from dai.errors import DataError

if TYPE_CHECKING:
    from duckdb import Statement, StatementType

_UTC = pa.timestamp("us", "UTC")
_PLAIN: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "utinyint": pa.uint8(),
    "usmallint": pa.uint16(),
    "uinteger": pa.uint32(),
    "ubigint": pa.uint64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "varchar": pa.string(),
    "blob": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamp with time zone": _UTC,
    "uuid": pa.string(),
    "null": pa.null(),
    '"null"': pa.null(),
    "sqlnull": pa.null(),
    "json": pa.string(),
}
_CAST: dict[str, tuple[str, pa.DataType]] = {
    "hugeint": ("DECIMAL(38,0)", pa.decimal128(38, 0)),
    "uhugeint": ("DECIMAL(38,0)", pa.decimal128(38, 0)),
    "timestamp_s": ("TIMESTAMP", pa.timestamp("us")),
    "timestamp_ms": ("TIMESTAMP", pa.timestamp("us")),
}
_HUGE = pa.decimal256(39, 0)
_NESTED = {"struct", "map", "union", "variant"}
LONG_INTERVAL = "An interval of more than 2,562,046 hours does not fit into a result."
_INTERVAL = f"CASE WHEN abs(hour({{0}})) > 2562046 THEN error('{LONG_INTERVAL}') ELSE {{0}} END"
"""Arrow counts nanoseconds, DuckDB microseconds and does not look whether they fit."""


@dataclass(frozen=True, slots=True)
class Projected:
    """One column of a query: its Arrow field, and the SQL that computes it (``cast``: it is more than the column)."""

    name: str
    type: pa.DataType
    type_name: str
    sql: str
    cast: bool


def projected(at: int, name: str, type: Any) -> Projected:
    """Column number ``at`` (from 1) in a type Arrow carries losslessly; others as text, nested values as JSON."""
    arrow, cast = arrow_type(type)
    source = str(type).lower()
    type_name = source.split("(")[0].strip('"') if not source.endswith("]") else source
    expression = cast.format(f"#{at}") if cast else f"#{at}"
    return Projected(name, arrow, type_name, f"{expression} AS {quoted(name or ' ', SYNTAX)}", bool(cast))


def arrow_type(type: Any) -> tuple[pa.DataType, str]:
    """The Arrow type of a DuckDB type, and the template of the expression that gives it (empty: as it is)."""
    kind, name = type.id, str(type).lower()
    if kind == "interval":
        return pa.month_day_nano_interval(), _INTERVAL
    if name in _PLAIN:
        return _PLAIN[name], ""
    if name in _CAST:
        sql, arrow = _CAST[name]
        return arrow, f"CAST({{}} AS {sql})"
    if kind == "decimal":
        (_, precision), (_, scale) = type.children
        return pa.decimal128(precision, scale), ""
    if kind in ("list", "array"):
        child = type.children[0][1]
        element, cast = arrow_type(child)
        if _of_intervals(child):
            items = "{0}" if kind == "list" else f"CAST({{0}} AS {child}[])"
            return pa.list_(element), f"list_transform({items}, lambda x: {cast.format('x')})"
        if child.id in _NESTED or (cast and child.id in ("list", "array")):
            return pa.string(), "CAST(to_json({}) AS VARCHAR)"
        if not cast and kind == "list":
            return pa.list_(element), ""
        sql = str(child)
        if cast:
            sql = next((to for name, (to, _) in _CAST.items() if name == str(child).lower()), "VARCHAR")
        return pa.list_(element), f"CAST({{}} AS {sql}[])"
    if kind in _NESTED:
        return pa.string(), "CAST(to_json({}) AS VARCHAR)"
    return pa.string(), "CAST({} AS VARCHAR)"


def huge(at: int, name: str, type: Any) -> Projected:
    """Like ``projected``, but a whole number of 128 bits is a structure: as a decimal of 38 digits, or, if it has 39,
    as text; see ``with_huge``."""
    column = projected(at, name, type)
    if column.type_name not in ("hugeint", "uhugeint"):
        return column
    short = f"TRY_CAST(#{at} AS DECIMAL(38,0))"
    text = f"CASE WHEN {short} IS NULL THEN CAST(#{at} AS VARCHAR) END"
    return replace(column, sql=f"{{'short': {short}, 'long': {text}}} AS {quoted(name or ' ', SYNTAX)}")


def with_huge(schema: pa.Schema, first: pa.RecordBatch | None) -> pa.Schema:
    """Whole numbers are decimals of 38 digits, which everybody reads, unless the first rows have one of 39."""
    for at, column in enumerate(first.columns if first is not None else ()):
        if pa.types.is_struct(column.type) and _long(column).null_count < len(column):
            schema = schema.set(at, schema.field(at).with_type(_HUGE))
    return schema


def of_huge(column: pa.StructArray, wanted: pa.DataType) -> pa.Array | int:
    """The numbers of a column of ``huge``; the index of the first that ``wanted`` does not hold."""
    short, long = column.field(0).cast(wanted), _long(column)
    if long.null_count == len(long):
        return short
    if wanted != _HUGE:
        return int(pc.index(long.is_valid(), True).as_py())
    return pc.coalesce(short, long.cast(wanted))


def _long(column: pa.StructArray) -> pa.StringArray:
    return column.field(1)


def _of_intervals(type: Any) -> bool:
    return bool(type.id == "interval" or (type.id == "list" and _of_intervals(type.children[0][1])))


def kind_of(statement: Statement) -> StatementType | None:
    """None for a kind that DuckDB's Python does not know, such as UPDATE EXTENSIONS."""
    try:
        return statement.type
    except ValueError:
        return None


def missing(column: pa.Array) -> tuple[str, int] | None:
    """The first value of DuckDB that the column's Arrow type cannot hold, in words, and its index."""
    if pa.types.is_list(column.type):
        first = missing(column.flatten()) if _of_moments(column.type) else None
        return first and (first[0], pc.list_parent_indices(column)[first[1]].as_py())
    if pa.types.is_time64(column.type):
        at = pc.index(column.view(pa.int64()), 86_400_000_000).as_py()
        return ("24:00:00 is not a time of day", at) if at >= 0 else None
    if pa.types.is_timestamp(column.type) or pa.types.is_date32(column.type):
        width = pa.int32() if pa.types.is_date32(column.type) else pa.int64()
        most, bare = (1 << (width.bit_width - 1)) - 1, column.view(width)
        infinite = pc.or_(pc.equal(bare, most), pc.equal(bare, -most))
        return ("infinity is not a moment in time", pc.index(infinite, True).as_py()) if infinite.true_count else None
    return None


def _of_moments(type: pa.DataType) -> bool:
    while pa.types.is_list(type):
        type = type.value_type
    return bool(pa.types.is_time64(type) or pa.types.is_timestamp(type) or pa.types.is_date32(type))


def target(column: pa.Field, type: str) -> pa.DataType:
    """The Arrow type in which a column of a stream is handed to a DuckDB column of ``type``: what DuckDB would cut
    (nanoseconds) or does not read (decimal256) is cast before, where a loss is an error."""
    have = column.type
    if pa.types.is_dictionary(have):
        have = have.value_type
    if pa.types.is_time(have):
        return pa.time64("us")
    if pa.types.is_timestamp(have) and (have.tz is not None or type != "TIMESTAMP_NS"):
        return pa.timestamp("us", have.tz)
    if pa.types.is_duration(have):
        return pa.duration("us")
    if pa.types.is_decimal256(have):
        if have.scale == 0 and type in ("HUGEINT", "UHUGEINT"):
            return pa.string()
        if have.scale > 38:
            raise DataError(f"The column {column.name!r} is a {have}: DuckDB's decimals have 38 digits.")
        return pa.decimal128(38, have.scale)
    if pa.types.is_float16(have):
        return pa.float32()
    if pa.types.is_date64(have):
        return pa.date32()
    return have
