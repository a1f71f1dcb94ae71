"""VOTable 1.4 of the IVOA (``application/x-votable+xml``), with its values as text (TABLEDATA).

Booleans, integers and floats are what they are; decimals are ``double``, written with all their digits; 64-bit integers
without a sign and everything else are texts (``unicodeChar``), moments in ISO 8601. NULL is an empty cell. Metadata of
a field (``unit``, ``ucd``, ``utype``, ``description``) become those of the FIELD. A result that a limit cut on purpose
ends with ``QUERY_STATUS`` ``OVERFLOW``, as DALI 1.1 has it.

What this module wrote it reads exactly: the Arrow schema is in a processing instruction, and NULL (``<TD/>``) is
another cell than an empty text (``<TD></TD>``). Of other documents the first table is read, where it is TABLEDATA.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from dai.errors import DataError, TruncatedError
from dai.formats.blocks import check_text, closing, no_columns, row_texts, text_blocks
from dai.formats.rows import concatenated
from dai.formats.values import text as values
from dai.formats.webrowset.encode import legal
from dai.formats.webrowset.rows import escaped
from dai.formats.webrowset.types import Column, described
from dai.streams.limited import is_truncated
from dai.streams.stream import Block, Stream

_OPEN = b'<VOTABLE version="1.4" xmlns="http://www.ivoa.net/xml/VOTable/v1.3">\n'
_SCHEMA = re.compile(rb"<\?arrow-schema ([A-Za-z0-9+/=]*)\?>\n")
_ROWS, _ROW_END = b"<DATA><TABLEDATA>\n", b"</TR>\n"
_HEAD_BYTES = 1 << 24
_MOST_ROWS = 4096
"""Of a document of another program, in a batch."""
_TYPES: tuple[tuple[Any, str], ...] = (
    (types.is_boolean, "boolean"),
    (types.is_uint8, "unsignedByte"),
    (lambda type_: types.is_int8(type_) or types.is_int16(type_), "short"),
    (lambda type_: types.is_uint16(type_) or types.is_int32(type_), "int"),
    (lambda type_: types.is_uint32(type_) or types.is_int64(type_), "long"),
    (lambda type_: types.is_float16(type_) or types.is_float32(type_), "float"),
    (lambda type_: types.is_float64(type_) or types.is_decimal(type_), "double"),
)
_READ: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "unsignedByte": pa.uint8(),
    "short": pa.int16(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
}
_BOOLEANS = {"t": True, "true": True, "1": True, "f": False, "false": False, "0": False}


def _end(truncated: bool) -> bytes:
    status = b'<INFO name="QUERY_STATUS" value="OVERFLOW"/>\n' if truncated else b""
    return b"</TABLEDATA></DATA>\n</TABLE>\n" + status + b"</RESOURCE>\n</VOTABLE>\n"


class VOTable:
    """A table of the Virtual Observatory; see the module."""

    def encode(
        self, stream: Stream, blocksize: int | None = None, *, pieces: bool = False, on_invalid: str = "error"
    ) -> Iterator[Block]:
        """Raises EncodingError for a character that XML cannot carry, or replaces it (``on_invalid="replace"``)."""
        with stream:
            check_text(stream.schema)
            columns = [described(field) for field in stream.schema]
            texts = partial(_row_text, columns=columns, substitute=on_invalid == "replace")
            end = _end(is_truncated(stream.schema))
            yield from text_blocks(_head(stream.schema), row_texts(stream, texts), blocksize, end, pieces=pieces)

    def decode(self, chunks: Iterable[bytes]) -> Stream:
        """Reads the first rows at once. Closing the stream closes ``chunks``. Raises TruncatedError for a document that
        ends too early, DataError for what is no VOTable or has no TABLEDATA."""
        close = closing(chunks)
        try:
            source = iter(chunks)
            data = b""
            while len(data) < _HEAD_BYTES and data.startswith(_OPEN[: len(data)]) and _ROWS not in data:
                if (chunk := next(source, None)) is None:
                    break
                data += chunk
            head, separator, rest = data.partition(_ROWS)
            own = _SCHEMA.match(head, len(_OPEN)) if separator and head.startswith(_OPEN) else None
            if own is None:
                return _foreign(data, source, close)
            schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(own[1], validate=True)))
            return Stream(schema, _own(rest, source, schema), close)
        except (pa.ArrowException, OSError, ValueError) as error:
            close()
            raise DataError(f"The Arrow schema of the VOTable cannot be read: {error}.") from error
        except BaseException:
            close()
            raise


def _head(schema: pa.Schema) -> bytes:
    fields = "".join(_field(each) for each in schema)
    kept = base64.b64encode(pa.schema(list(map(_canonical, schema)), schema.metadata).serialize()).decode()
    return (
        _OPEN
        + f"<?arrow-schema {kept}?>\n"
        f'<RESOURCE type="results">\n<INFO name="QUERY_STATUS" value="OK"/>\n<TABLE>\n{fields}'.encode()
        + _ROWS
    )


def _canonical(field: pa.Field) -> pa.Field:
    return field.with_type(values.canonical_type(field.type))


def _field(field: pa.Field) -> str:
    meaning = {key.decode(): value.decode(errors="replace") for key, value in (field.metadata or {}).items()}
    kind = _datatype(field)
    attributes = {"name": field.name, "datatype": kind}
    if kind == "unicodeChar":
        attributes["arraysize"] = "*"
        if types.is_timestamp(field.type) or types.is_date(field.type):
            attributes["xtype"] = "timestamp"
    attributes |= {name: meaning[name] for name in ("unit", "ucd", "utype") if meaning.get(name)}
    written = " ".join(f"{name}={quoteattr(legal(value))}" for name, value in attributes.items())
    if about := meaning.get("description"):
        return f"<FIELD {written}><DESCRIPTION>{escape(legal(about))}</DESCRIPTION></FIELD>\n"
    return f"<FIELD {written}/>\n"


def _datatype(field: pa.Field) -> str:
    if values.is_numeric_text(field) and types.is_string(field.type):
        return "double"
    type_ = values.canonical_type(field.type)
    return next((name for fits, name in _TYPES if fits(type_)), "unicodeChar")


def _row_text(batch: pa.RecordBatch, row: int, columns: list[Column], substitute: bool) -> pa.Array:
    if not batch.num_columns:
        return pa.repeat("<TR></TR>\n", batch.num_rows)
    parts: list[str | pa.StringArray] = ["<TR>"]
    for field, array, column in zip(batch.schema, batch.columns, columns, strict=True):
        array = values.canonical(array, field.name)
        text = values.to_text(array, field)
        if types.is_floating(array.type):
            text = pc.replace_substring(pc.replace_substring(text, "Infinity", "+Inf"), "-+", "-")
        elif not (types.is_integer(array.type) or types.is_boolean(array.type) or types.is_decimal(array.type)):
            text = escaped(text, column, row, substitute)
        parts.append(pc.binary_join_element_wise("<TD>", text, "</TD>", ""))
    return concatenated([*parts, "</TR>\n"], "<TD/>")


# --- Reading what this module wrote ----------------------------------------------------------------------------------


def _own(rest: bytes, source: Iterator[bytes], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Rows are cut at their ends, and values at the tags between them: text has no ``<`` of its own."""
    row = 1
    while True:
        end = rest.rfind(_ROW_END) + len(_ROW_END)
        if end >= len(_ROW_END):
            batch = _batch(rest[:end], schema, row)
            row += batch.num_rows
            yield batch
            rest = rest[end:]
        if (chunk := next(source, None)) is None:
            break
        rest += chunk
    if rest not in (_end(False), _end(True)):
        raise TruncatedError(f"The VOTable breaks off after row {row - 1:,}.")


def _batch(data: bytes, schema: pa.Schema, row: int) -> pa.RecordBatch:
    try:
        text = data.decode().replace("<TD/>", "<TD>\0</TD>")  # no text in XML has the character
    except UnicodeDecodeError as error:
        raise DataError(f"The VOTable is not UTF-8 from row {row:,} on.") from error
    count = text.count("</TR>\n")
    if not len(schema):
        return no_columns(count, schema)
    cells = text.removeprefix("<TR><TD>").removesuffix("</TD></TR>\n")
    texts = cells.replace("</TD></TR>\n<TR><TD>", "</TD><TD>").split("</TD><TD>")
    if len(texts) != count * len(schema):
        raise DataError(f"Rows {row:,} to {row + count - 1:,} of the VOTable do not have {len(schema)} cells each.")
    columns = []
    for place, field in enumerate(schema):
        strings = pa.array([None if each == "\0" else each for each in texts[place :: len(schema)]], pa.string())
        for reference, character in (("&#60;", "<"), ("&#62;", ">"), ("&#13;", "\r"), ("&#38;", "&")):
            strings = pc.replace_substring(strings, reference, character)
        if types.is_floating(field.type):
            strings = pc.replace_substring(pc.replace_substring(strings, "+", ""), "Inf", "Infinity")
        array = values.from_text(strings, field.type, column=field.name, first_row=row)
        columns.append(array.cast(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# --- Documents of other programs -------------------------------------------------------------------------------------


def _foreign(data: bytes, source: Iterator[bytes], close: Any) -> Stream:
    reader = _Reader()
    parts = reader.parts(chain([data], source))
    first = next(parts, None)
    schema = pa.schema(reader.fields)

    def batches() -> Iterator[pa.RecordBatch]:
        number, part = 1, first
        while part is not None:
            yield _typed(part, schema, number)
            number += len(part)
            part = next(parts, None)

    return Stream(schema, batches(), close)


class _Reader:
    """The first table of a document, event by event."""

    def __init__(self) -> None:
        self.fields: list[pa.Field] = []
        self._rows: list[list[str | None]] = []
        self._cell: str | None = None
        self._begun = self._ended = False
        self._parser = expat.ParserCreate(namespace_separator=" ")
        self._parser.buffer_text = True
        self._parser.StartDoctypeDeclHandler = self._doctype
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._parser.CharacterDataHandler = self._text

    def parts(self, chunks: Iterable[bytes]) -> Iterator[list[list[str | None]]]:
        """The texts of rows, some at a time. The fields are known with the first."""
        try:
            for chunk in chunks:
                self._parser.Parse(chunk, False)
                if len(self._rows) >= _MOST_ROWS:
                    rows, self._rows = self._rows, []
                    yield rows
            self._parser.Parse(b"", True)
        except expat.ExpatError as error:
            kind = TruncatedError if self._begun else DataError
            raise kind(f"The VOTable cannot be read: {error}.") from error
        if not self._ended:
            raise DataError("The document has no TABLE.")
        if self._rows:
            yield self._rows

    @staticmethod
    def _doctype(*_: object) -> None:
        raise DataError("The VOTable has a DTD.", hint="Send it without one.")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        tag = name.rpartition(" ")[2]
        if not self._begun and tag != "VOTABLE":
            raise DataError("This is not a VOTable.", hint="A VOTable begins with <VOTABLE>.")
        self._begun = True
        if self._ended:
            return
        if tag in ("BINARY", "BINARY2", "FITS"):
            raise DataError(
                f"The VOTable has its values in {tag}, which is not supported.", hint="Write it with TABLEDATA."
            )
        if tag == "FIELD":
            kind, single = attributes.get("datatype", ""), attributes.get("arraysize") in (None, "1")
            meaning = {key: attributes[key] for key in ("unit", "ucd", "utype") if attributes.get(key)}
            type_ = _READ.get(kind, pa.string()) if single else pa.string()
            self.fields.append(pa.field(attributes.get("name", ""), type_, metadata=meaning or None))
        elif tag == "TR":
            self._rows.append([])
        elif tag == "TD":
            self._cell = ""

    def _text(self, text: str) -> None:
        if self._cell is not None:
            self._cell += text

    def _end(self, name: str) -> None:
        tag = name.rpartition(" ")[2]
        if self._ended:
            return
        if tag == "TD":
            self._rows[-1].append(self._cell or None)
            self._cell = None
        elif tag == "TR" and len(self._rows[-1]) != len(self.fields):
            raise DataError(f"A row of the VOTable has {len(self._rows[-1])} cells instead of {len(self.fields)}.")
        elif tag == "TABLE":
            self._ended = True


def _typed(part: list[list[str | None]], schema: pa.Schema, row: int) -> pa.RecordBatch:
    columns = []
    for place, field in enumerate(schema):
        texts = [each[place] for each in part]
        try:
            if types.is_boolean(field.type):
                columns.append(pa.array([_BOOLEANS.get((each or "").strip().lower()) for each in texts], pa.bool_()))
            elif types.is_string(field.type):
                columns.append(pa.array(texts, pa.string()))
            elif types.is_floating(field.type):
                columns.append(pa.array([None if each is None else float(each) for each in texts], field.type))
            else:
                columns.append(pa.array([None if each is None else int(each, 0) for each in texts], field.type))
        except (ValueError, OverflowError, pa.ArrowException) as error:
            raise DataError(
                f"Column {field.name!r} of the VOTable, row {row:,} and following: {error}.", column=field.name
            ) from error
    return pa.RecordBatch.from_arrays(columns, schema=schema) if columns else no_columns(len(part), schema)
