"""A small table inside a document: an Arrow IPC stream in base64."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from dai.errors import DataError, TooLargeError, TruncatedError
from dai.formats.arrow import Arrow
from dai.stream import Stream

_COMPRESSION = 3
"""The number of the field in RecordBatch of https://github.com/apache/arrow/blob/main/format/Message.fbs."""
_HEADER = 2


def text_of(table: pa.Table) -> str:
    """The table as text; its buffers are not compressed."""
    blocks = Arrow().encode(Stream.of(table))
    return base64.b64encode(b"".join(bytes(memoryview(each.data)) for each in blocks)).decode()


def table_of(text: str, most: int) -> pa.Table:
    """The table that ``text`` is. Raises DataError for what is none, and for compressed buffers, whose size nobody
    knows before they are unpacked; TooLargeError beyond ``most`` bytes."""
    if len(text) // 4 * 3 > most + 2:
        raise TooLargeError(f"A table has more than the {most:,} bytes allowed.", hint="Load it as a table.")
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError("A table is an Arrow stream in base64; this is no base64.") from error
    _check_plain(data)
    try:
        with Arrow().decode([data]) as stream:
            return stream.table()
    except TruncatedError as error:
        raise DataError(f"A table is an Arrow stream in base64. {error.detail}") from error


def tables_of(document: Mapping[str, Any], most: int) -> dict[str, pa.Table]:
    """The member ``tables`` of a JSON document, by name; ``most`` bytes together."""
    given = document.get("tables") or {}
    if not isinstance(given, Mapping) or not all(isinstance(each, str) for each in given.values()):
        raise DataError("'tables' must be an object: the name of each table with its Arrow stream in base64.")
    found: dict[str, pa.Table] = {}
    for name, text in given.items():
        found[name] = table_of(text, most)
        most -= len(text) // 4 * 3
    return found


def _check_plain(data: bytes) -> None:
    try:
        reader = pa.ipc.MessageReader.open_stream(pa.py_buffer(data))
        while True:
            message = reader.read_next_message()
            if message.type in ("record batch", "dictionary") and _is_compressed(message):
                raise DataError("The buffers of a table must not be compressed.")
    except StopIteration:
        return
    except (pa.ArrowException, OSError, struct.error) as error:
        raise DataError("A table is an Arrow stream in base64; this is no Arrow stream.") from error


def _is_compressed(message: pa.ipc.Message) -> bool:
    """By the FlatBuffers table that describes the message; a dictionary's batch lies one level further down."""
    data = message.metadata.to_pybytes()
    header = _table(data, _field(data, _at(data, 0), _HEADER))
    if message.type == "dictionary":
        header = _table(data, _field(data, header, 1))
    return header is not None and _field(data, header, _COMPRESSION) is not None


def _at(data: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", data, place)[0])


def _table(data: bytes, place: int | None) -> int | None:
    return None if place is None else _at(data, place)


def _field(data: bytes, table: int | None, number: int) -> int | None:
    """Where the field of a FlatBuffers table lies; None where it is not there."""
    if table is None:
        return None
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    size = int(struct.unpack_from("<H", data, vtable)[0])
    if 4 + 2 * number >= size:
        return None
    offset = int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])
    return table + offset if offset else None
