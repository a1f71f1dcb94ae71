"""Query-scoped tables: small ones of the caller's, seen by that one statement under their names.

They need no right but to read, and nothing is written where others could see it (docs/decisions/0015). How a database
has them differs: an expression in front of the query whose values are bound (PostgreSQL, MariaDB), a table of the
connection's own that is dropped behind it (SQLite), a view of the Arrow table itself (DuckDB).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from dai.drivers.sql.ddl import quoted
from dai.drivers.sql.lexer import tokens
from dai.drivers.sql.syntax import Syntax
from dai.errors import DataError, LimitError, NotAQueryError, ParameterError
from dai.streams.stream import size_of

Tables = Mapping[str, pa.Table]
MOST_TABLES, MOST_COLUMNS = 16, 64
MOST_BYTES = 64 << 20
"""Of all tables of one query, in memory."""
_PLAIN = (types.is_primitive, types.is_string, types.is_decimal128, types.is_decimal256)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)


def checked(tables: Tables) -> Tables:
    """The tables, each in one piece and with plain values. ParameterError for names that no database has or that two
    of them share, LimitError for more than may travel."""
    if len(tables) > MOST_TABLES:
        raise LimitError(f"A query can have at most {MOST_TABLES} query-scoped tables.")
    _check_size(sum(size_of(each) + sum(map(_decoded_size, each.columns)) for each in tables.values()))
    _different("tables", tables)
    plain: dict[str, pa.Table] = {}
    size = 0
    for name, table in tables.items():
        plain[name] = _plain(name, table)
        size += size_of(plain[name])
        _check_size(size)
    return plain


def _check_size(size: int) -> None:
    if size > MOST_BYTES:
        raise LimitError(f"The tables of a query have more than {MOST_BYTES:,} bytes.", hint="Load them as tables.")


def _plain(name: str, table: pa.Table) -> pa.Table:
    if not _NAME.fullmatch(name):
        raise ParameterError(
            f"{name!r} cannot be the name of a query-scoped table.",
            hint="Use a letter and then letters, digits or '_', at most 63 characters.",
        )
    if not 1 <= table.num_columns <= MOST_COLUMNS:
        raise ParameterError(f"The table {name!r} has {table.num_columns} columns; 1 to {MOST_COLUMNS} are allowed.")
    _different(f"columns of {name!r}", table.column_names)
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        if not field.name or "\0" in field.name or len(field.name.encode()) > 63:
            raise ParameterError(f"A column of the table {name!r} has no name that a database takes.")
        wanted = _plain_type(field.type) or field.type
        if not any(fits(wanted) for fits in _PLAIN):
            raise DataError(
                f"The column {field.name!r} is a {field.type}, which a query-scoped table cannot have.",
                hint="Cast it to text.",
                column=field.name,
            )
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        columns.append(array if wanted == array.type else array.cast(wanted))
        fields.append(field.with_type(columns[-1].type).remove_metadata())
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _plain_type(type: pa.DataType) -> pa.DataType | None:
    """The plain type of the same values; no unsigned ones, which few databases have, and no views, whose size nobody
    knows before they are copied."""
    if pa.types.is_dictionary(type):
        return _plain_type(type.value_type) or type.value_type
    if pa.types.is_large_string(type) or pa.types.is_null(type):
        return pa.string()
    if pa.types.is_uint64(type):
        return pa.decimal128(20)
    if pa.types.is_unsigned_integer(type):
        return pa.int32() if type.bit_width < 32 else pa.int64()
    return None


def _decoded_size(column: pa.ChunkedArray) -> int:
    """Bytes of the texts that a dictionary stands for; other values are small."""
    type = column.type
    if not types.is_dictionary(type) or not (
        types.is_string(type.value_type) or types.is_large_string(type.value_type)
    ):
        return 0
    sizes = (pc.sum(pc.binary_length(each.dictionary).take(each.indices)).as_py() for each in column.chunks)
    return sum(int(each or 0) for each in sizes)


def _different(what: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for each in names:
        if each.casefold() in seen:
            raise ParameterError(f"Two of the {what} have the name {each!r}.")
        seen.add(each.casefold())


def refused() -> ParameterError:
    """For a query with query-scoped tables of a resource that takes none."""
    return ParameterError(
        "This resource takes no query-scoped tables.", hint="Resources that do have the property tables: true."
    )


def definition(name: str, columns: Iterable[str], select: str, syntax: Syntax) -> str:
    """One common table expression."""
    named = ", ".join(quoted(each, syntax) for each in columns)
    return f"{quoted(name, syntax)} ({named}) AS ({select})"


def preceded(sql: str, definitions: Iterable[str], syntax: Syntax) -> tuple[str, tuple[int, int]]:
    """The query with common table expressions in front, which its own may use; where they were put in, and how many
    characters. Raises NotAQueryError for what takes none (SHOW, EXPLAIN)."""
    words = [each for each in tokens(sql, syntax) if each.kind != "comment"]
    first = sql[words[0].start : words[0].end].upper() if words else ""
    if first not in ("SELECT", "WITH", "VALUES", "TABLE", "("):
        raise NotAQueryError(f"{first or 'This'} cannot have query-scoped tables.", sql=sql, hint="Send a SELECT.")
    text = ", ".join(definitions)
    at, clause = words[0].start, f"WITH {text} "
    if first == "WITH":
        recursive = len(words) > 1 and sql[words[1].start : words[1].end].upper() == "RECURSIVE"
        at, clause = words[1 if recursive else 0].end, f" {text},"
    return sql[:at] + clause + sql[at:], (at, len(clause))
