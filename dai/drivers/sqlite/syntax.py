"""SQLite's SQL: its names, and its names of types."""

from __future__ import annotations

import pyarrow as pa

from dai.drivers.sql import syntax

_NUMERIC_AFFINITY_DIGITS = 15
"""SQLite keeps a number of a DECIMAL column as an 8-byte float: exact to 15 digits. Longer ones are kept as text."""


def _decimal(precision: int, scale: int) -> str:
    if precision > 76:
        return ""
    return f"{'DECIMAL' if precision <= _NUMERIC_AFFINITY_DIGITS else 'DECIMAL_TEXT'}({precision},{scale})"


_TYPES = syntax.Types(
    simple={
        pa.bool_(): "BOOLEAN",
        pa.int8(): "TINYINT",
        pa.int16(): "SMALLINT",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.uint8(): "SMALLINT",
        pa.uint16(): "INTEGER",
        pa.uint32(): "BIGINT",
        pa.uint64(): "DECIMAL_TEXT(20,0)",
        pa.float16(): "REAL",
        pa.float32(): "REAL",
        pa.float64(): "DOUBLE",
        pa.date32(): "DATE",
        pa.date64(): "DATE",
        pa.null(): "TEXT",
    },
    text="TEXT",
    binary="BLOB",
    decimal=_decimal,
    time="TIME",
    timestamp="TIMESTAMP",
    timestamptz="TIMESTAMPTZ",
    named={"uuid": "UUID_TEXT", "json": "JSON_TEXT", "jsonb": "JSON_TEXT"},
)
SYNTAX = syntax.Syntax(
    (
        syntax.SPACE,
        syntax.LINE_COMMENT,
        syntax.OPEN_COMMENT,
        syntax.STRING,
        r'(?P<name>"[^"]*(?:"|\Z)|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z))',
        syntax.REST,
    ),
    queries=frozenset({"SELECT", "WITH", "VALUES", "EXPLAIN"}),
    types=_TYPES,
)
