"""DuckDB's SQL: its strings, names and comments, and its names of types."""

from __future__ import annotations

import pyarrow as pa

from dai.drivers.sql import syntax


def _decimal(precision: int, scale: int) -> str:
    if (precision, scale) == (39, 0):
        return "hugeint"
    return f"decimal({precision},{scale})" if precision <= 38 else ""


_TYPES = syntax.Types(
    simple={
        pa.bool_(): "boolean",
        pa.int8(): "tinyint",
        pa.int16(): "smallint",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.uint8(): "utinyint",
        pa.uint16(): "usmallint",
        pa.uint32(): "uinteger",
        pa.uint64(): "ubigint",
        pa.float16(): "float",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.date32(): "date",
        pa.date64(): "date",
        pa.month_day_nano_interval(): "interval",
        pa.null(): "varchar",
    },
    text="varchar",
    binary="blob",
    decimal=_decimal,
    time="time",
    timestamp="timestamp",
    timestamptz="timestamptz",
    timestamp_ns="timestamp_ns",
    duration="interval",
    named={"uuid": "uuid", "json": "json", "jsonb": "json"},
    lists=True,
)
SYNTAX = syntax.Syntax(
    (
        syntax.SPACE,
        syntax.LINE_COMMENT_TO_RETURN,
        syntax.OPEN_COMMENT,
        syntax.ESCAPE_STRING,
        syntax.STRING,
        r'(?P<name>"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z))',
        syntax.DOLLAR_STRING,
        syntax.REST,
    ),
    queries=syntax.QUERIES | {"FROM", "SHOW", "EXPLAIN", "DESCRIBE", "SUMMARIZE", "PIVOT", "UNPIVOT"},
    nested_comments=True,
    types=_TYPES,
)

OF_THE_GRAMMAR = ("coalesce", "ifnull", "nullif", "cast", "try_cast", "extract", "trim", "position")
"""Functions that DuckDB does not list among its own."""
