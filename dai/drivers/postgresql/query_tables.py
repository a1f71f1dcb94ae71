"""Query-scoped tables: one bound array a column, unnested by an expression in front of the query.

The planner sees the arrays' lengths. Nothing is created: it works in a read-only transaction and without any right.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from dai.drivers.postgresql.copy import plain_text
from dai.drivers.postgresql.syntax import SYNTAX
from dai.drivers.sql.ddl import column_type
from dai.drivers.sql.query_tables import Tables, definition
from dai.errors import DataError


def definitions(tables: Tables) -> Iterator[str]:
    """Common table expressions with a ``?`` for each column of each table."""
    for name, table in tables.items():
        yield definition(name, table.column_names, f"SELECT {', '.join(map(_unnested, table.schema))}", SYNTAX)


def values(tables: Tables) -> Iterator[bytes]:
    """What is bound: PostgreSQL's text form of each array, in the order of the ``?``. DataError for a text that
    PostgreSQL does not have."""
    for table in tables.values():
        for field, column in zip(table.schema, table.columns, strict=True):
            yield _array(pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], field.type), field.name)


def _unnested(field: pa.Field) -> str:
    type = column_type(field, SYNTAX)
    text = f"pg_catalog.unnest(CAST(? AS {type}[]))"
    # An array forgets the precision.
    return f"CAST({text} AS {type})" if types.is_decimal(field.type) else text


def _array(column: pa.Array, name: str) -> bytes:
    text = plain_text(column, name).cast(pa.string())
    if types.is_string(column.type):
        if pc.any(pc.match_substring(text, "\0")).as_py():
            raise DataError(f"The column {name!r} has the character NUL, which PostgreSQL cannot hold.", column=name)
        for each in ("\\", '"'):
            text = pc.replace_substring(text, each, "\\" + each)
    if not types.is_integer(column.type):
        text = pc.binary_join_element_wise('"', text, '"', "")
    text = pc.fill_null(text, "NULL")
    whole = pa.ListArray.from_arrays(pa.array([0, len(text)], pa.int32()), text)
    joined: bytes = pc.binary_join(whole, ",")[0].as_buffer().to_pybytes()
    return b"{" + joined + b"}"
