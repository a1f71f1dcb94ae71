"""SQL that drivers write themselves: quoted names, CREATE TABLE from an Arrow schema, and columns matched by name.

Type names of a foreign source (``dai.type``) are looked up, never copied into SQL: they are data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.types as types

from dai.errors import DataError, ParameterError
from dai.plugins import nearest
from dai.streams.stream import TYPE_NAME

_SIMPLE: dict[pa.DataType, tuple[str, str, str, str]] = {
    #                 postgres, mysql, sqlite, duckdb
    pa.bool_(): ("boolean", "boolean", "BOOLEAN", "boolean"),
    pa.int8(): ("smallint", "tinyint", "TINYINT", "tinyint"),
    pa.int16(): ("smallint", "smallint", "SMALLINT", "smallint"),
    pa.int32(): ("integer", "int", "INTEGER", "integer"),
    pa.int64(): ("bigint", "bigint", "BIGINT", "bigint"),
    pa.uint8(): ("smallint", "tinyint unsigned", "SMALLINT", "utinyint"),
    pa.uint16(): ("integer", "smallint unsigned", "INTEGER", "usmallint"),
    pa.uint32(): ("bigint", "int unsigned", "BIGINT", "uinteger"),
    pa.uint64(): ("numeric(20,0)", "bigint unsigned", "DECIMAL_TEXT(20,0)", "ubigint"),
    pa.float16(): ("real", "float", "REAL", "float"),
    pa.float32(): ("real", "float", "REAL", "float"),
    pa.float64(): ("double precision", "double", "DOUBLE", "double"),
    pa.date32(): ("date", "date", "DATE", "date"),
    pa.date64(): ("date", "date", "DATE", "date"),
    pa.month_day_nano_interval(): ("interval", "", "", "interval"),
    pa.null(): ("text", "longtext", "TEXT", "varchar"),
}
_FAMILIES: tuple[tuple[Callable[[pa.DataType], bool], tuple[str, str, str, str]], ...] = (
    (types.is_time, ("time(6)", "time(6)", "TIME", "time")),
    (types.is_duration, ("interval", "time(6)", "", "interval")),
    (types.is_string, ("text", "longtext", "TEXT", "varchar")),
    (types.is_large_string, ("text", "longtext", "TEXT", "varchar")),
    (types.is_string_view, ("text", "longtext", "TEXT", "varchar")),
    (types.is_binary, ("bytea", "longblob", "BLOB", "blob")),
    (types.is_large_binary, ("bytea", "longblob", "BLOB", "blob")),
    (types.is_fixed_size_binary, ("bytea", "longblob", "BLOB", "blob")),
    (types.is_binary_view, ("bytea", "longblob", "BLOB", "blob")),
)
_NAMED = {
    "uuid": ("uuid", "char(36)", "UUID_TEXT", "uuid"),
    "json": ("json", "json", "JSON_TEXT", "json"),
    "jsonb": ("jsonb", "json", "JSON_TEXT", "json"),
}
_DIALECTS = {"postgres": 0, "postgresql": 0, "mysql": 1, "mariadb": 1, "sqlite": 2, "duckdb": 3}
_MOST_DIGITS = (1000, 65, 76, 38)
_NUMERIC_AFFINITY_DIGITS = 15
"""SQLite keeps a number of a DECIMAL column as an 8-byte float: exact to 15 digits. Longer ones are kept as text."""


def quoted(name: str, dialect: str) -> str:
    """An identifier that means exactly ``name``. ParameterError for what no database takes."""
    if not name or "\0" in name:
        raise ParameterError("A name is empty or holds a NUL character.")
    mark = "`" if dialect in ("mysql", "mariadb") else '"'
    return mark + name.replace(mark, mark * 2) + mark


def quoted_table(table: str, dialect: str) -> str:
    """``name`` or ``schema.name``."""
    return ".".join(quoted(part, dialect) for part in table.split("."))


def create_table(table: str, schema: pa.Schema, dialect: str) -> str:
    """CREATE TABLE for the columns of ``schema``; DataError names a column whose type the database does not have."""
    if not len(schema):
        raise DataError("A table cannot be made from a stream without columns.")
    duplicate = _duplicate(schema.names)
    if duplicate is not None:
        raise DataError(f"The column {duplicate!r} comes twice.", hint="Name the columns apart with AS.")
    lines = (
        f"{quoted(field.name, dialect)} {column_type(field, dialect)}{'' if field.nullable else ' NOT NULL'}"
        for field in schema
    )
    return f"CREATE TABLE {quoted_table(table, dialect)} ({', '.join(lines)})"


def column_type(field: pa.Field, dialect: str) -> str:
    """The type of a column that holds the field's values without loss."""
    type_name = (field.metadata or {}).get(TYPE_NAME, b"").decode("utf-8", "replace")
    if types.is_string(field.type) and type_name in _NAMED:
        return _NAMED[type_name][_DIALECTS[dialect]]
    found = _type(field.type, _DIALECTS[dialect])
    if dialect == "mysql" and found.startswith("timestamp"):
        found += " NULL DEFAULT NULL"  # without it the server fills in the time of the insertion
    if not found:
        raise DataError(
            f"The column {field.name!r} is a {field.type}, for which this database has no type.",
            hint="Cast it to text in the query that gives it.",
            column=field.name,
        )
    return found


def _type(type: pa.DataType, at: int) -> str:
    if types.is_dictionary(type):
        return _type(type.value_type, at)
    if type in _SIMPLE:
        return _SIMPLE[type][at]
    if types.is_decimal(type):
        return _decimal(type, at)
    if types.is_timestamp(type):
        if type.tz is not None:
            return ("timestamptz", "timestamp(6)", "TIMESTAMPTZ", "timestamptz")[at]
        return ("timestamp", "datetime(6)", "TIMESTAMP", "timestamp_ns" if type.unit == "ns" else "timestamp")[at]
    if types.is_list(type) or types.is_large_list(type) or types.is_fixed_size_list(type):
        element = _type(type.value_type, at)
        return f"{element}[]" if element and at in (0, 3) else ""
    return next((names[at] for fits, names in _FAMILIES if fits(type)), "")


def _decimal(type: pa.DataType, at: int) -> str:
    precision, scale = type.precision, type.scale
    if scale < 0:
        precision, scale = precision - scale, 0
    precision = max(precision, scale)
    if at == 3 and (precision, scale) == (39, 0):
        return "hugeint"
    if precision > _MOST_DIGITS[at] or (at == 1 and scale > 38):
        return ""
    if at == 2:
        return f"{'DECIMAL' if precision <= _NUMERIC_AFFINITY_DIGITS else 'DECIMAL_TEXT'}({precision},{scale})"
    return f"{'numeric' if at == 0 else 'decimal'}({precision},{scale})"


def matched(names: Sequence[str], columns: Sequence[str], table: str) -> tuple[str, ...]:
    """The table's own spelling of the columns of a stream, in the stream's order: exact names first, then without case.

    DataError for a name that comes twice, and for one that the table does not have, with the nearest it has.
    """
    folded = {column.casefold(): column for column in columns}
    found = []
    for name in names:
        column = name if name in columns else folded.get(name.casefold())
        if column is None:
            raise DataError(
                f"The table {table!r} has no column {name!r}.", hint=nearest(name, list(columns)), column=name
            )
        found.append(column)
    duplicate = _duplicate(found)
    if duplicate is not None:
        raise DataError(f"The column {duplicate!r} comes twice.", hint="Name the columns apart with AS.")
    return tuple(found)


def _duplicate(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def like(pattern: str, name: str) -> bool:
    """SQL's LIKE, without regard to case: ``%`` any text, ``_`` any character, a backslash takes the next literally."""
    parts = re.findall(r"\\.|.", pattern, re.DOTALL)
    wild = {"%": ".*", "_": "."}
    expression = "".join(wild.get(part) or re.escape(part.removeprefix("\\") or part) for part in parts)
    return re.fullmatch(expression, name, re.IGNORECASE | re.DOTALL) is not None
