"""Perform documents for statements with typed parameters."""

from __future__ import annotations

import base64
import datetime
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID
from xml.etree import ElementTree

from dai.client.documents import activity, document, element
from dai.errors import DataError, ParameterError

OUTPUT = "output"
_ROWS = "rows"
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_HEAD = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/|\()*(?P<word>\w+)", re.S)
_CHANGES = frozenset(
    """
    insert update delete merge replace upsert create drop alter truncate rename comment grant revoke call do lock set
    reset analyze vacuum optimize reindex cluster refresh copy load attach detach install begin start commit rollback
    savepoint release
    """.split()
)
_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (int, "integer"),
    (float, "double"),
    (Decimal, "decimal"),
    (datetime.datetime, "timestamp"),
    (datetime.date, "date"),
    (datetime.time, "time"),
    (str, "string"),
    (UUID, "string"),
)
JSON_TYPES = (bool, int, float, str, type(None))


def may_change(sql: str) -> bool:
    """Whether the first word is that of a statement that changes something. Others may do so, too (``with … insert``):
    the service refuses them as queries before they run."""
    head = _HEAD.match(sql)
    return head is not None and head["word"].lower() in _CHANGES


def query(sql: str, parameters: Sequence[Any]) -> bytes:
    """One query, whose end point is OUTPUT."""
    rows = element("webRowSetStream", name=OUTPUT)
    return document(activity("sqlQueryStatement", *_values(parameters), _text("expression", sql), rows, name="query"))


def change(sql: str, parameters: Sequence[Any]) -> bytes:
    """One statement that changes something; OUTPUT is the number of rows."""
    count = element("resultStream", name=OUTPUT)
    return document(
        activity("sqlUpdateStatement", *_values(parameters), _text("expression", sql), count, name="change")
    )


def insert(sql: str, parameters: Sequence[Any], identity: str) -> bytes:
    """A statement that inserts a row, and a query for the key that it got, in one transaction."""
    return document(
        activity(
            "sqlBag",
            element("statement", *_values(parameters), _text("expression", sql)),
            element("statement", _text("expression", identity), returns="rows"),
            element("resultStream", name=OUTPUT),
            name="insert",
        )
    )


def change_many(sql: str, width: int) -> bytes:
    """One statement for each of the tuples that are pushed into the stream ``rows``."""
    places = [element("sqlParameter", position=place, from_="values") for place in range(1, width + 1)]
    stream = activity("inputStream", element("toLocal", name="values"), name=_ROWS)
    count = element("resultStream", name=OUTPUT)
    update = activity("sqlUpdateStatement", *places, _text("expression", sql), count, name="change")
    return document(stream, update)


def is_written(parameters: Sequence[Any]) -> bool:
    """Whether a document can have the values; XML has not every character."""
    return not any(isinstance(each, str) and _NOT_XML.search(each) for each in parameters)


def update_count(result: bytes) -> int:
    """Of a ``<resultStream updateCount="N"/>``."""
    return int(ElementTree.fromstring(result).get("updateCount", -1))  # noqa: S314 - it comes from our service


def inserted(result: bytes) -> tuple[int, Any]:
    """Count and key, from the result of ``insert``."""
    root = ElementTree.fromstring(result)  # noqa: S314
    count = int(root[0].get("updateCount", -1))
    values = [each.text for each in root.iter() if each.tag.rpartition("}")[2] == "columnValue"]
    key = values[0] if values else None
    return count, int(key) if key is not None and key.lstrip("-").isdigit() else key


def _text(tag: str, text: str) -> ElementTree.Element:
    if found := _NOT_XML.search(text):
        raise DataError(
            f"The statement has the character U+{ord(found.group()):04X}, which cannot be sent.",
            hint="Make it a parameter.",
        )
    return element(tag, text)


def _values(parameters: Sequence[Any]) -> list[ElementTree.Element]:
    return [_value(place, value) for place, value in enumerate(parameters, 1)]


def _value(place: int, value: Any) -> ElementTree.Element:
    if value is None:
        return element("sqlParameter", position=place, type="null")
    value = plain(value)
    if isinstance(value, bytes):
        return element("sqlParameter", base64.b64encode(value).decode(), position=place, type="binary")
    kind = next((kind for known, kind in _TYPES if isinstance(value, known)), None)
    if kind is None:
        raise ParameterError(
            f"Parameter {place} is of the type {type(value).__name__}, which cannot be sent.",
            hint="Give a text, bytes, a number, a date, True, False or None; one ? for each value of a list.",
        )
    if kind == "boolean":
        written = "true" if value else "false"
    elif kind in ("date", "time", "timestamp"):
        written = value.isoformat()
    else:
        written = str(value)
    parameter = _text("sqlParameter", written)
    parameter.attrib.update(position=str(place), type=kind)
    return parameter


def plain(value: Any) -> Any:
    """NumPy's scalars and pandas' moments as Python's values, buffers as bytes."""
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if hasattr(value, "to_pydatetime"):
        return value.to_pydatetime()
    if hasattr(value, "dtype") and getattr(value, "ndim", None) == 0:
        return value.item()
    return value


def parameters_of(given: Any) -> Sequence[Any]:
    """A row of values. ParameterError for what is none."""
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise ParameterError(
            f"Parameters are a sequence of values, not {type(given).__name__}.",
            hint="Each ? in the statement stands for the next of them: execute('… where id = ?', (7,)).",
        )
    return [plain(each) for each in given]
