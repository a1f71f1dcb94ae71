"""Any legal WebRowSet, by lxml's parser events: no tree, no DTD, no entities of its own, nothing from the network.

The reader is fed bytes and gives batches; it neither reads nor closes anything. So the vectorised decoder can hand over
to it in the middle of a document, having fed it the head only.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from lxml import etree

from dai.errors import DataError, TruncatedError
from dai.formats.blocks import no_columns
from dai.formats.values import text as values
from dai.formats.webrowset.encode import DECLARATION
from dai.formats.webrowset.types import JAVA_WRITES, Column, column_values, restored_schema

NAMESPACE = "http://java.sun.com/xml/ns/jdbc"
_NIL = "{http://www.w3.org/2001/XMLSchema-instance}nil"
_BATCH_ROWS = 8192
_BATCH_CHARACTERS = 1 << 22
_LIMIT = 10**9
"""Characters of one row, and bytes without anything that makes progress; libxml2's own limit is the same."""
_MOST_COLUMNS = 1 << 16

_LAST_BYTES = 64
_HALF = re.compile(rb"&[\w#:.-]*$|<[^>]*$")
_REFERENCE_FAULTS = frozenset({etree.ErrorTypes.ERR_NAME_REQUIRED, etree.ErrorTypes.ERR_ENTITYREF_SEMICOL_MISSING})

_UPDATES = frozenset({"updateValue", "updateRow"})
"""The new value of the column before: as the schema calls it, and as the JDK writes it."""
_VALUES = _UPDATES | {"columnValue"}
_ROWS = frozenset({"currentRow", "insertRow", "modifyRow", "deleteRow", "insdel"})
_GONE = frozenset({"deleteRow", "insdel"})
_CHILDREN: dict[str, frozenset[str]] = {
    "": frozenset({"webRowSet"}),
    "webRowSet": frozenset({"properties", "metadata", "data"}),
    "metadata": frozenset({"column-count", "column-definition"}),
    "column-definition": frozenset(
        "column-index auto-increment case-sensitive currency nullable signed searchable column-display-size "
        "column-label column-name schema-name column-precision column-scale table-name catalog-name column-type "
        "column-type-name".split()
    ),
    "data": _ROWS,
    **dict.fromkeys(_ROWS, _VALUES),
    **dict.fromkeys(_VALUES, frozenset({"null", "emptyString"})),
}
"""Which elements may be in which; elements that are not listed may have any content, but not too deep (properties)."""
_DEPTH = 8


class Reader:
    """``feed`` bytes, then take ``batches()``; ``close`` at the end. ``schema`` is known once ``in_data`` is true."""

    def __init__(self) -> None:
        self._events = _Events()
        target: Any = self._events  # lxml's stubs know no targets that take text only
        self._parser = etree.XMLParser(
            target=target, resolve_entities=False, no_network=True, load_dtd=False, huge_tree=True
        )
        self._silent = 0
        self._first = self._fed = b""

    @property
    def in_data(self) -> bool:
        return self._events.in_data

    @property
    def schema(self) -> pa.Schema:
        return self._events.schema

    @property
    def columns(self) -> list[Column]:
        return self._events.columns

    def skip(self, rows: int) -> None:
        """Skips so many rows, which another decoder has read."""
        self._events.row_number += rows
        self._events.taken += rows

    def feed(self, data: bytes) -> None:
        """Raises DataError for what is malformed or no WebRowSet."""
        before = self._events.progress
        if len(self._first) < len(DECLARATION):
            self._first += data[: len(DECLARATION) - len(self._first)]
            self._events.ours = self._first == DECLARATION
        try:
            self._parser.feed(data)
        except etree.XMLSyntaxError as error:
            raise self._malformed(error) from error
        self._fed = data[-_LAST_BYTES:] if len(data) >= _LAST_BYTES else (self._fed + data)[-_LAST_BYTES:]
        self._silent = self._silent + len(data) if before == self._events.progress else 0
        if self._silent > _LIMIT:
            raise DataError(f"{self._events.place()}: there are more than {_LIMIT} bytes without a value.")

    def batches(self, at_end: bool = False) -> Iterator[pa.RecordBatch]:
        """What has been read; less than a whole batch waits until ``at_end``."""
        events = self._events
        while len(events.rows) >= _BATCH_ROWS or events.held > _BATCH_CHARACTERS or (at_end and events.rows):
            rows, events.rows = events.rows[:_BATCH_ROWS], events.rows[_BATCH_ROWS:]
            if not events.rows:
                events.held = 0
            first, events.taken = events.taken + 1, events.taken + len(rows)
            if not events.columns:
                yield no_columns(len(rows), events.schema)
                continue
            texts = [pa.array(each, pa.string()) for each in zip(*rows, strict=True)]
            yield batch_of(texts, events.columns, events.schema, first)

    def close(self) -> None:
        """Raises TruncatedError where the document is not complete."""
        early = TruncatedError(f"The WebRowSet ends early: {self._events.place()}.")
        try:
            self._parser.close()
        except etree.XMLSyntaxError as error:
            # A broken reference stops lxml at once, but it says so only here, where it looks like an early end.
            broken = getattr(error, "code", 0) in _REFERENCE_FAULTS and not _HALF.search(self._fed.replace(b"\0", b""))
            raise (self._malformed(error) if self._events.ended or broken else early) from error
        except DataError as error:
            # Half a tag is taken for a whole one at the end; a whole one may only be noticed here.
            if self._fed.rstrip(b"\0 \t\r\n").endswith(b">"):
                raise
            raise early from error
        if not self._events.ended:
            raise early

    def _malformed(self, error: etree.XMLSyntaxError) -> DataError:
        hint = (
            None
            if self._events.in_data
            else "Java writes & and < in the names of columns and tables without escaping them."
        )
        return DataError(f"{self._events.place()}: not well-formed XML: {error.msg}", hint=hint)


class _Events:
    """The parser's target: a pushdown automaton over ``_CHILDREN``."""

    def __init__(self) -> None:
        self.columns: list[Column] = []
        self.schema: pa.Schema = pa.schema([])
        self.rows: list[list[str | None]] = []
        self.row_number = self.taken = self.held = self.progress = 0
        self.in_data = self.ended = self.ours = False
        self._arrow: str | None = None
        self._count: int | None = None
        self._definition: dict[str, str] = {}
        self._definitions: list[dict[str, str]] = []
        self._path = [""]
        self._row: list[str | None] = []
        self._text: list[str] | None = None
        self._length = self._row_length = 0
        self._null = self._empty = self._modified = False
        self._left_out: list[int] = []

    def place(self) -> str:
        if not self.in_data:
            return "Before the first row"
        inside = any(name in _ROWS for name in self._path)
        return f"In row {self.row_number + 1}" if inside else f"After row {self.row_number}"

    def doctype(self, *_: object) -> None:
        raise DataError("A WebRowSet has no document type declaration.", hint="DTDs and entities are refused.")

    def pi(self, target: str, data: str | None = None) -> None:
        if target == "arrow-schema" and self._path[-1] == "metadata":
            self._arrow = (data or "").strip()

    def comment(self, text: str) -> None:
        """Comments are between the lines."""

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.progress += 1
        namespace, _, name = tag.rpartition("}")
        if namespace not in ("", "{" + NAMESPACE):
            raise DataError(f"{self.place()}: the element {tag} does not belong to WebRowSet.")
        parent = self._path[-1]
        allowed = _CHILDREN.get(parent)
        if (allowed is not None and name not in allowed) or len(self._path) > _DEPTH:
            raise DataError(
                f"{self.place()}: <{name}> may not stand in <{parent}>." if parent else "This is not a WebRowSet."
            )
        self._path.append(name)
        if name in _VALUES:
            self._text, self._length, self._null = [], 0, attributes.get(_NIL) in ("true", "1")
            self._empty = False
        elif name == "null" and parent in _VALUES:
            self._null = True
        elif name == "emptyString" and parent in _VALUES:
            self._empty = True
        elif name in _ROWS:
            self._row, self._row_length, self._modified = [], 0, False
        elif name == "data" and parent == "webRowSet":
            self._begin()
        elif name == "column-definition":
            self._definition, self._row_length = {}, 0
        elif parent in ("column-definition", "metadata"):
            self._text, self._length = [], 0
        elif parent == "webRowSet" and self.in_data:
            raise DataError(f"<{name}> may not follow <data>.")

    def data(self, data: str) -> None:
        self.progress += 1
        if self._text is None:
            if self._path[-1] in _CHILDREN and data.strip(" \t\r\n"):
                raise DataError(f"{self.place()}: there is text outside a value: {data.strip()[:40]!r}.")
            return
        self._text.append(data)
        self._length += len(data)
        self._row_length += len(data)
        if self._row_length > _LIMIT:
            raise DataError(f"{self.place()}: a value has more than {_LIMIT} characters.")

    def end(self, tag: str) -> None:
        self.progress += 1
        name = self._path.pop()
        parent = self._path[-1]
        if name in _VALUES:
            self._value(name)
        elif name in _ROWS:
            self._finish_row(name)
        elif name == "column-definition":
            self._definitions.append(self._definition)
            if len(self._definitions) > _MOST_COLUMNS:
                raise DataError(f"The WebRowSet has more than {_MOST_COLUMNS} columns.")
        elif parent == "column-definition" and self._text is not None:
            self._definition[name] = "" if self._null else "".join(self._text)
            self._text = None
        elif name == "column-count" and self._text is not None:
            self._count = _integer("".join(self._text), "column-count")
            self._text = None
        elif name == "webRowSet":
            if not self.in_data:
                raise DataError("The WebRowSet has no <data>.")
            self.ended = True

    def close(self) -> None:
        """lxml asks for it; the reader knows when the document ended."""

    def _value(self, name: str) -> None:
        text: str | None = "".join(self._text or ())
        self._text = None
        if self._null or self._empty:
            if text and text.strip(" \t\r\n"):
                raise DataError(f"{self.place()}: a value is {'NULL' if self._null else 'empty'} and has text.")
            text = None if self._null else ""
        elif not text and len(self._row) - (name in _UPDATES) in self._left_out:
            text = None
        self.held += self._length
        if name == "columnValue":
            self._row.append(text)
            if len(self._row) > len(self.columns):
                raise self._wrong_length()
        elif not self._row:
            raise DataError(f"{self.place()}: there is no <columnValue> before <{name}>, which replaces one.")
        else:
            self._row[-1] = text
            self._modified = self._modified or name == "updateValue"

    def _finish_row(self, name: str) -> None:
        if len(self._row) != len(self.columns):
            raise self._wrong_length()
        self.row_number += 1
        # The JDK's modifyRow is a row that was inserted and deleted again; its own updates are called updateRow.
        if name not in _GONE and (name != "modifyRow" or self._modified):
            self.rows.append(self._row)

    def _wrong_length(self) -> DataError:
        row = self.row_number + 1
        return DataError(f"Row {row} has {len(self._row)} values, the metadata {len(self.columns)} columns.", row=row)

    def _begin(self) -> None:
        if self.in_data:
            raise DataError("The WebRowSet has more than one <data>.")
        if self._count is None or self._count != len(self._definitions):
            raise DataError(
                f"The column-count is {self._count}, but there are {len(self._definitions)} column-definitions."
            )
        self.columns = _columns(self._definitions, self.ours)
        if not self.ours:
            self._left_out = [n for n, column in enumerate(self.columns) if column.java_type not in JAVA_WRITES]
        self.schema = _schema(self.columns, self._arrow)
        self.in_data = True


def batch_of(texts: list[pa.StringArray], columns: list[Column], schema: pa.Schema, first_row: int) -> pa.RecordBatch:
    """The values of a batch from their texts. White space around what is not text is forgiven."""
    arrays = []
    for strings, column, field in zip(texts, columns, schema, strict=True):
        try:
            arrays.append(column_values(strings, column, field, first_row))
        except DataError:
            arrays.append(column_values(pc.ascii_trim_whitespace(strings), column, field, first_row))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _integer(text: str, name: str, default: int | None = None) -> int:
    text = text.strip()
    if not text and default is not None:
        return default
    try:
        return int(text) if len(text) < 12 else int("")
    except ValueError as error:
        raise DataError(f"{name} must be a number, not {text[:40]!r}.") from error


def _columns(definitions: list[dict[str, str]], ours: bool) -> list[Column]:
    """In the order of their index. Java says "not nullable" of every column of which its program said nothing."""
    if all("column-index" in each for each in definitions):
        order = [_integer(each["column-index"], "column-index") for each in definitions]
        if sorted(order) != list(range(1, len(order) + 1)):
            raise DataError("The column-index of the columns must count from 1, each once.")
        definitions = [each for _, each in sorted(zip(order, definitions, strict=True), key=lambda pair: pair[0])]
    return [
        Column(
            name=each.get("column-label") or each.get("column-name", ""),
            java_type=_integer(each.get("column-type", ""), "column-type"),
            type_name=each.get("column-type-name", ""),
            precision=_integer(each.get("column-precision", ""), "column-precision", 0),
            scale=_integer(each.get("column-scale", ""), "column-scale", 0),
            nullable=_integer(each.get("nullable", ""), "nullable", 1) != 0 or not ours,
            schema_name=each.get("schema-name", ""),
            table_name=each.get("table-name", ""),
        )
        for each in definitions
    ]


def _schema(columns: list[Column], arrow: str | None) -> pa.Schema:
    """As the columns are described, or as the Arrow schema of our own encoder says more exactly."""
    if arrow is None:
        return restored_schema(columns)
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(arrow, validate=True)))
    except (binascii.Error, pa.ArrowException, OSError, ValueError) as error:
        raise DataError("The arrow-schema of the metadata cannot be read.") from error
    types = [values.canonical_type(field.type) for field in schema]
    if len(schema) != len(columns) or types != schema.types:
        raise DataError("The arrow-schema of the metadata does not fit its columns.")
    return schema
