"""Query-scoped tables: JSON in a user variable, read by JSON_TABLE in an expression in front of the query.

It needs no right and makes no table. The expression is materialised (the LIMIT limits nothing), or MariaDB might read
the JSON once for each row of another table.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from dai.drivers.mariadb.literals import plain_text
from dai.drivers.mariadb.syntax import NULLABLE, SYNTAX
from dai.drivers.sql.ddl import column_type
from dai.drivers.sql.query_tables import Tables, definition
from dai.errors import DataError, LimitError

SINCE = (10, 6)
"""The version of MariaDB that has JSON_TABLE."""
_ROW_CHARACTERS = 16_000
"""Of all texts of a row that still fit into a row of MariaDB's."""
_ALL = "18446744073709551615"


def definitions(tables: Tables) -> Iterator[str]:
    """Common table expressions that read the variables."""
    for variable, (name, table) in zip(variables(tables), tables.items(), strict=True):
        columns = ", ".join(
            f"c{at} {_type(field, table)} PATH '$[{at}]' NULL ON EMPTY ERROR ON ERROR"
            for at, field in enumerate(table.schema)
        )
        select = f"SELECT * FROM JSON_TABLE({variable}, '$[*]' COLUMNS ({columns})) AS given LIMIT {_ALL}"
        yield definition(name, table.column_names, select, SYNTAX)


def variables(tables: Tables) -> list[str]:
    """The names of the variables that hold the tables, in their order."""
    return [f"@dai_table{at}" for at in range(len(tables))]


def settings(tables: Tables, most: int) -> Iterator[str]:
    """The statements that bind the tables, none longer than ``most`` bytes: LimitError for a table that needs one."""
    for variable, (name, table) in zip(variables(tables), tables.items(), strict=True):
        statement = f"SET {variable} = _utf8mb4 X'{_json(table).hex()}'"
        if len(statement) > most:
            raise LimitError(
                f"The table {name!r} is larger than the database takes in one statement.",
                hint="Its setting max_allowed_packet is the limit.",
            )
        yield statement


def _type(field: pa.Field, table: pa.Table) -> str:
    if not types.is_string(field.type):
        return "tinyint" if types.is_boolean(field.type) else column_type(field, SYNTAX).removesuffix(NULLABLE)
    texts = sum(map(types.is_string, table.schema.types))
    longest = max(1, pc.max(pc.utf8_length(table.column(field.name))).as_py() or 1)
    short = longest * texts <= _ROW_CHARACTERS
    return f"{f'varchar({longest})' if short else 'longtext'} CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin"


def _json(table: pa.Table) -> bytes:
    columns = [_values(column, field) for field, column in zip(table.schema, table.columns, strict=True)]
    parts: list[pa.Array | str] = ["["]
    for each in columns:
        parts += [each, ","]
    parts[-1] = "]"
    rows = pc.binary_join_element_wise(*parts, "")
    whole = pa.ListArray.from_arrays(pa.array([0, len(rows)], pa.int32()), rows)
    joined: bytes = pc.binary_join(whole, ",")[0].as_buffer().to_pybytes()
    return b"[" + joined + b"]"


def _values(chunked: pa.ChunkedArray, field: pa.Field) -> pa.Array:
    """Each value as JSON: whole numbers as they are, all others as the text that the database reads exactly."""
    column = pa.concat_arrays(chunked.chunks) if chunked.num_chunks else pa.array([], chunked.type)
    if types.is_string(field.type):
        if pc.any(pc.match_substring(column, "\0")).as_py():
            raise DataError(f"The column {field.name!r} holds the character NUL.", column=field.name)
        text = column
        for each in ("\\", '"'):
            text = pc.replace_substring(text, each, "\\" + each)
        for control in _CONTROLS:
            text = pc.replace_substring(text, control, f"\\u{ord(control):04x}")
    else:
        text = plain_text(column, field.name)
    if not (types.is_integer(field.type) or types.is_boolean(field.type)):
        text = pc.binary_join_element_wise('"', text, '"', "")
    return pc.fill_null(text, "null")


_CONTROLS = tuple(map(chr, range(1, 32)))
