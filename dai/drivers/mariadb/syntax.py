"""The SQL of MariaDB and MySQL: its strings, names and comments, and its names of types."""

from __future__ import annotations

import pyarrow as pa

from dai.drivers.sql import syntax

NULLABLE = " NULL DEFAULT NULL"
"""Without it the server fills the time of the insertion into a timestamp."""
_TYPES = syntax.Types(
    simple={
        pa.bool_(): "boolean",
        pa.int8(): "tinyint",
        pa.int16(): "smallint",
        pa.int32(): "int",
        pa.int64(): "bigint",
        pa.uint8(): "tinyint unsigned",
        pa.uint16(): "smallint unsigned",
        pa.uint32(): "int unsigned",
        pa.uint64(): "bigint unsigned",
        pa.float16(): "float",
        pa.float32(): "float",
        pa.float64(): "double",
        pa.date32(): "date",
        pa.date64(): "date",
        pa.null(): "longtext",
    },
    text="longtext",
    binary="longblob",
    decimal=lambda precision, scale: f"decimal({precision},{scale})" if precision <= 65 and scale <= 38 else "",
    time="time(6)",
    timestamp="datetime(6)",
    timestamptz=f"timestamp(6){NULLABLE}",
    duration="time(6)",
    named={"uuid": "char(36)", "json": "json", "jsonb": "json"},
)
SYNTAX = syntax.Syntax(
    (
        syntax.SPACE,
        r"(?P<comment>--(?=[\x00-\x20\x7f]|\Z)[^\n]*|\#[^\n]*)",
        r"(?P<executable>/\*M?!)",  # the version of the server decides whether what such a comment holds is run
        syntax.OPEN_COMMENT,
        r"(?P<string>'(?:[^'\\]|\\.)*(?:'|\Z)|\"(?:[^\"\\]|\\.)*(?:\"|\Z))",
        r"(?P<name>`[^`]*(?:`|\Z))",
        syntax.REST,
    ),
    queries=syntax.QUERIES | {"SHOW", "EXPLAIN", "DESCRIBE", "DESC"},
    before_into=frozenset(),  # INTO writes files and variables, in a transaction that only reads, too
    telling=frozenset({("SHOW", "GRANTS"), ("SHOW", "CREATE", "USER")}),  # the hash of the password
    locking=frozenset({("LOCK", "IN"), ("FOR", "SHARE"), ("FOR", "UPDATE")}),
    quote="`",
    types=_TYPES,
    in_nothing="IN (SELECT NULL FROM DUAL WHERE 1 = 0)",
    not_in_nothing="NOT IN (SELECT NULL FROM DUAL WHERE 1 = 0)",
)
