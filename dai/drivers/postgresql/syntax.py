"""PostgreSQL's SQL: its strings and comments, and its names of types."""

from __future__ import annotations

import pyarrow as pa

from dai.drivers.sql import syntax

_TYPES = syntax.Types(
    simple={
        pa.bool_(): "boolean",
        pa.int8(): "smallint",
        pa.int16(): "smallint",
        pa.int32(): "integer",
        pa.int64(): "bigint",
        pa.uint8(): "smallint",
        pa.uint16(): "integer",
        pa.uint32(): "bigint",
        pa.uint64(): "numeric(20,0)",
        pa.float16(): "real",
        pa.float32(): "real",
        pa.float64(): "double precision",
        pa.date32(): "date",
        pa.date64(): "date",
        pa.month_day_nano_interval(): "interval",
        pa.null(): "text",
    },
    text="text",
    binary="bytea",
    decimal=lambda precision, scale: f"numeric({precision},{scale})" if precision <= 1000 else "",
    time="time(6)",
    timestamp="timestamp",
    timestamptz="timestamptz",
    duration="interval",
    named={"uuid": "uuid", "json": "json", "jsonb": "jsonb"},
    lists=True,
)
SYNTAX = syntax.Syntax(
    (
        syntax.SPACE,
        syntax.LINE_COMMENT_TO_RETURN,
        syntax.OPEN_COMMENT,
        syntax.ESCAPE_STRING,
        syntax.STRING,
        syntax.NAME,
        syntax.DOLLAR_STRING,
        syntax.REST,
    ),
    queries=syntax.QUERIES | {"SHOW", "EXPLAIN"},
    nested_comments=True,
    types=_TYPES,
    # The empty array takes the type of the other operand. Written as an operator, = binds like IN.
    in_nothing="OPERATOR(pg_catalog.=) ANY ('{}')",
    not_in_nothing="OPERATOR(pg_catalog.<>) ALL ('{}')",
)
