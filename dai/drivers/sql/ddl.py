"""SQL that drivers write themselves: quoted names, CREATE TABLE from an Arrow schema, and columns matched by name."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.types as types

from dai.drivers.sql.syntax import Syntax
from dai.errors import DataError, ParameterError
from dai.plugins import nearest
from dai.streams.stream import TYPE_NAME

MOST_PATTERN = 1000


def quoted(name: str, syntax: Syntax) -> str:
    """An identifier that means exactly ``name``. ParameterError for what no database takes."""
    if not name or "\0" in name:
        raise ParameterError("A name is empty or has a NUL character.")
    mark = syntax.quote
    return mark + name.replace(mark, mark * 2) + mark


def quoted_table(table: str, syntax: Syntax) -> str:
    """``name`` or ``schema.name``."""
    return ".".join(quoted(part, syntax) for part in table.split("."))


def create_table(table: str, schema: pa.Schema, syntax: Syntax) -> str:
    """CREATE TABLE for the columns of ``schema``; DataError names a column whose type the database does not have."""
    if not len(schema):
        raise DataError("A table cannot be created from a stream without columns.")
    duplicate = _duplicate(schema.names)
    if duplicate is not None:
        raise DataError(f"The column {duplicate!r} occurs twice.", hint="Give the columns different names with AS.")
    lines = (
        f"{quoted(field.name, syntax)} {column_type(field, syntax)}{'' if field.nullable else ' NOT NULL'}"
        for field in schema
    )
    return f"CREATE TABLE {quoted_table(table, syntax)} ({', '.join(lines)})"


def column_type(field: pa.Field, syntax: Syntax) -> str:
    """The type of a column that holds the field's values without loss."""
    type_name = (field.metadata or {}).get(TYPE_NAME, b"").decode("utf-8", "replace")
    known = syntax.types
    if known is None:
        raise DataError("No table can be created in this database: its types are not known.")
    named = known.named.get(type_name) if types.is_string(field.type) else None
    sql_type = named or known.of(field.type)
    if not sql_type:
        raise DataError(
            f"The column {field.name!r} is a {field.type}, for which this database has no type.",
            hint="Cast it to text in the query that gives it.",
            column=field.name,
        )
    return sql_type


def matched(names: Sequence[str], columns: Sequence[str], table: str) -> tuple[str, ...]:
    """The table's own spelling of the columns of a stream, in the stream's order: exact names first, then without case.

    DataError for a name that comes twice, and for one that the table does not have, with the nearest it has.
    """
    folded = {column.casefold(): column for column in columns}
    table_columns = []
    for name in names:
        column = name if name in columns else folded.get(name.casefold())
        if column is None:
            raise DataError(
                f"The table {table!r} has no column {name!r}.", hint=nearest(name, list(columns)), column=name
            )
        table_columns.append(column)
    duplicate = _duplicate(table_columns)
    if duplicate is not None:
        raise DataError(f"The column {duplicate!r} occurs twice.", hint="Give the columns different names with AS.")
    return tuple(table_columns)


def _duplicate(names: Sequence[str]) -> str | None:
    return next((name for name in names if names.count(name) > 1), None)


def like(pattern: str, name: str) -> bool:
    """SQL's LIKE, without regard to case: ``%`` any text, ``_`` any character, a backslash takes the next literally.
    No name fits a pattern of more than MOST_PATTERN characters."""
    if len(pattern) > MOST_PATTERN:
        return False
    parts = [""]
    for each in re.findall(r"\\.|.", pattern, re.DOTALL):
        if each == "%":
            parts.append("")
        else:
            parts[-1] += "." if each == "_" else re.escape(each.removeprefix("\\") or each)
    first, *others = parts
    if others:
        # each part where it comes first, for good: to try all places of all parts could take for ever
        *within, last = others
        first += "".join(f"(?>.*?{each})" for each in within if each) + f".*{last}"
    return re.fullmatch(first, name, re.IGNORECASE | re.DOTALL) is not None
