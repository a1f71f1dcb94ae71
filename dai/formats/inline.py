"""A small table inside a document: an Arrow IPC stream in base64.

Only types whose values take about as many bytes in memory as on the wire may travel: dictionaries, run ends and views
say a value once that stands in any number of rows, so that a few bytes would become gigabytes. A column of nulls has no
bytes at all; its rows are counted.
"""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.types as types

from dai.errors import DataError, TooLargeError, TruncatedError
from dai.formats.arrow import Arrow
from dai.formats.messages import is_compressed
from dai.streams.stream import Stream, size_of

_PLAIN = (
    types.is_primitive,
    types.is_string,
    types.is_large_string,
    types.is_decimal128,
    types.is_decimal256,
    types.is_null,
)


def text_of(table: pa.Table) -> str:
    """The table as text: its buffers are not compressed, and its values are plain."""
    columns = [column.cast(pa.string()) if _is_text(column.type) else column for column in table.columns]
    blocks = Arrow().encode(Stream.of(pa.Table.from_arrays(columns, names=table.column_names)))
    return base64.b64encode(b"".join(bytes(memoryview(each.data)) for each in blocks)).decode()


def table_of(text: str, most: int) -> pa.Table:
    """The table that ``text`` is. Raises DataError for what is none, and, before anything of it is decoded, for
    compressed buffers and types whose size nobody knows before they are unpacked; TooLargeError beyond ``most`` bytes,
    of the text or of the tuples, as soon as that many are read."""
    if len(text) // 4 * 3 > most + 2:
        raise _too_large(most)
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError("A table must be an Arrow stream in base64; this is not base64.") from error
    _check_plain(data)
    try:
        batches, size = [], 0
        with Arrow().decode([data]) as stream:
            for batch in stream:
                size += size_of(batch)
                if size > most:
                    raise _too_large(most)
                batches.append(batch)
            return pa.Table.from_batches(batches, stream.schema)
    except TruncatedError as error:
        raise DataError(f"A table must be an Arrow stream in base64. {error.detail}") from error


def tables_of(document: Mapping[str, Any], most: int) -> dict[str, pa.Table]:
    """The member ``tables`` of a JSON document, by name; ``most`` bytes together."""
    encoded = document.get("tables") or {}
    if not isinstance(encoded, Mapping) or not all(isinstance(each, str) for each in encoded.values()):
        raise DataError("'tables' must be an object: the name of each table with its Arrow stream in base64.")
    tables: dict[str, pa.Table] = {}
    for name, text in encoded.items():
        tables[name] = table_of(text, most)
        most -= max(len(text) // 4 * 3, size_of(tables[name]))
    return tables


def _is_text(type: pa.DataType) -> bool:
    """Which a database takes for text, but which do not travel as they are."""
    return bool(types.is_null(type) or types.is_string_view(type))


def _too_large(most: int) -> TooLargeError:
    return TooLargeError(f"A table has more than the {most:,} bytes allowed.", hint="Load it as a table.")


def _check_plain(data: bytes) -> None:
    try:
        # not pa.ipc.read_schema, which takes any message for a schema and reads memory that is not there
        for field in pa.ipc.open_stream(data).schema:
            if not any(fits(field.type) for fits in _PLAIN):
                raise DataError(
                    f"The column {field.name!r} is a {_short(field.type)}, which a query-scoped table cannot have.",
                    hint="Send numbers, dates, times and texts, without dictionaries, run ends and views.",
                    column=field.name,
                )
        reader = pa.ipc.MessageReader.open_stream(data)
        while True:
            message = reader.read_next_message()
            if message.type == "record batch" and is_compressed(message.metadata.to_pybytes()):
                raise DataError("The buffers of a table must not be compressed.")
    except StopIteration:
        return
    except (pa.ArrowException, OSError, UnicodeDecodeError, struct.error) as error:
        raise DataError("A table must be an Arrow stream in base64; this is not an Arrow stream.") from error


def _short(type: pa.DataType) -> str:
    text = str(type)
    return text if len(text) <= 100 else f"{text[:100]}…"
