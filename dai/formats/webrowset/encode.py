"""WebRowSet from batches: the text of each row is one string of one array, put together by Arrow kernels.

The offsets of that array are the borders of the rows, so a block of any number of rows is a slice of its bytes.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from xml.sax.saxutils import escape, quoteattr

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import DataError, EncodingError
from dai.formats import PIECE_BYTES
from dai.formats.blocks import byte_view, row_texts, text_blocks
from dai.formats.rows import concatenated
from dai.formats.webrowset.types import VARCHAR, Column, canonical_schema, column_text, described, restored_schema
from dai.streams.meaning import Meaning
from dai.streams.stream import Block, Stream

DECLARATION = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<webRowSet xmlns="http://java.sun.com/xml/ns/jdbc" '
    b'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
    b'xsi:schemaLocation="http://java.sun.com/xml/ns/jdbc http://java.sun.com/xml/ns/jdbc/webrowset.xsd">\n'
)
DATA = b"<data>\n"
TAIL = b"</data>\n</webRowSet>"
OPEN, BETWEEN, CLOSE = (
    "<currentRow><columnValue>",
    "</columnValue><columnValue>",
    "</columnValue></currentRow>\n",
)
EMPTY_ROW = "<currentRow></currentRow>\n"
NULL = "<null/>"
REFERENCES = (("&", "&#38;"), ("<", "&#60;"), (">", "&#62;"), ("\r", "&#13;"))
"""Numeric, because readers limit the number of named entities; the ampersand first."""

_FORBIDDEN = "[\\x00-\\x08\\x0b\\x0c\\x0e-\\x1f\ufffe\uffff]"
"""XML 1.0, section 2.2, production 2; surrogates are no UTF-8."""
_FORBIDDEN_CHARACTER = re.compile(_FORBIDDEN)
_SPLIT_BY_JAVA = frozenset("&<>]\n")


def encoded(
    stream: Stream,
    blocksize: int | None,
    pieces: bool,
    on_invalid: str,
    properties: dict[str, str | None],
) -> Iterator[Block]:
    """The document in blocks; closes the stream at the end, at a failure and when it is closed itself."""
    with stream:
        columns = [described(field) for field in stream.schema]
        head = document_head(stream.schema, columns, properties)
        frame = len(OPEN) + len(BETWEEN) * len(columns) + len(CLOSE)
        text = partial(_row_text, columns=columns, substitute=on_invalid == "replace")
        rows = row_texts(stream, text, max(1, PIECE_BYTES // frame))
        yield from text_blocks(head, rows, blocksize, TAIL, pieces=pieces)


def document_head(schema: pa.Schema, columns: list[Column], properties: dict[str, str | None]) -> bytes:
    """Everything up to and including ``<data>``."""
    parts = [_properties(properties), "<metadata>\n"]
    wanted = canonical_schema(schema)
    safe = [replace(column, name=legal(column.name), type_name=legal(column.type_name)) for column in columns]
    if not restored_schema(safe).equals(wanted, check_metadata=True):
        parts.append(f"<?arrow-schema {base64.b64encode(wanted.serialize()).decode()}?>\n")
    parts.append(f"<column-count>{len(columns)}</column-count>\n")
    parts += [_definition(index, column) for index, column in enumerate(safe, 1)]
    parts += [_meaning(index, said) for index, each in enumerate(schema, 1) if (said := Meaning.of(each.metadata).said)]
    parts.append("</metadata>\n")
    return DECLARATION + "".join(parts).encode() + DATA


def _properties(properties: dict[str, str | None]) -> str:
    """The values that tell nothing of the source, but for the ``given`` ones; NULL for what nobody gave."""

    def text(name: str) -> str:
        value = properties.get(name)
        return f"<{name}>{_safe(value) if value else '<null/>'}</{name}>\n"

    return (
        f"<properties>\n{text('command')}<concurrency>1008</concurrency>\n<datasource><null/></datasource>\n"
        "<escape-processing>true</escape-processing>\n<fetch-direction>1000</fetch-direction>\n"
        "<fetch-size>0</fetch-size>\n<isolation-level>2</isolation-level>\n<key-columns></key-columns>\n<map></map>\n"
        "<max-field-size>0</max-field-size>\n<max-rows>0</max-rows>\n<query-timeout>0</query-timeout>\n"
        "<read-only>true</read-only>\n<rowset-type>ResultSet.TYPE_SCROLL_INSENSITIVE</rowset-type>\n"
        f"<show-deleted>false</show-deleted>\n{text('table-name')}<url><null/></url>\n"
        "<sync-provider>\n<sync-provider-name>com.sun.rowset.providers.RIOptimisticProvider</sync-provider-name>\n"
        "<sync-provider-vendor>Oracle Corporation</sync-provider-vendor>\n"
        "<sync-provider-version>1.0</sync-provider-version>\n<sync-provider-grade>2</sync-provider-grade>\n"
        "<data-source-lock>1</data-source-lock>\n</sync-provider>\n</properties>\n"
    )


def legal(text: str) -> str:
    """For names and statements: what XML cannot carry becomes U+FFFD. The true names are in the Arrow schema."""
    return _FORBIDDEN_CHARACTER.sub("\ufffd", text.encode(errors="replace").decode())


def _safe(text: str) -> str:
    return escape(legal(text), {"\r": "&#13;"})


def _name(text: str) -> str:
    """The JDK's reader keeps of a name what follows the last reference, and the last but one bracket or line break: it
    takes a CDATA section whole."""
    if _SPLIT_BY_JAVA.isdisjoint(text):
        return _safe(text)
    text = legal(text).replace("]]>", "]]]]><![CDATA[>").replace("\r", "]]>&#13;<![CDATA[")
    return f"<![CDATA[{text}]]>"


def _definition(index: int, column: Column) -> str:
    members = (
        ("column-index", index),
        ("auto-increment", "false"),
        ("case-sensitive", "true" if column.java_type == VARCHAR else "false"),
        ("currency", "false"),
        ("nullable", int(column.nullable)),
        ("signed", "true" if column.signed else "false"),
        ("searchable", "true"),
        ("column-display-size", column.precision),
        ("column-label", _name(column.name)),
        ("column-name", _name(column.name)),
        ("schema-name", _name(column.schema_name)),
        ("column-precision", column.precision),
        ("column-scale", column.scale),
        ("table-name", _name(column.table_name)),
        ("catalog-name", ""),
        ("column-type", column.java_type),
        ("column-type-name", _name(column.type_name)),
    )
    inner = "".join(f"<{name}>{value}</{name}>" for name, value in members)
    return f"<column-definition>{inner}</column-definition>\n"


def _meaning(index: int, said: Mapping[str, str]) -> str:
    """A processing instruction: readers that do not know it pass it over."""
    written = " ".join(f"{name}={quoteattr(legal(value))}" for name, value in said.items())
    return f'<?column-meaning index="{index}" {written}?>\n'


def _row_text(batch: pa.RecordBatch, row: int, columns: list[Column], substitute: bool) -> pa.StringArray:
    """One ``currentRow`` a row; ``row`` is the number of the first. Raises EncodingError for a forbidden character."""
    if not columns:
        return pa.repeat(EMPTY_ROW, batch.num_rows)
    parts: list[str | pa.StringArray] = []
    for field, array, column in zip(batch.schema, batch.columns, columns, strict=True):
        text = column_text(array, field, column)
        if _may_need_escape(array.type):
            text = escaped(text, column, row, substitute)
        parts += [BETWEEN, text]
    return concatenated([OPEN, *parts[1:], CLOSE], NULL)


def _may_need_escape(type_: pa.DataType) -> bool:
    types = pa.types
    if types.is_dictionary(type_) or types.is_run_end_encoded(type_) or hasattr(type_, "value_type"):
        return _may_need_escape(type_.value_type)
    if isinstance(type_, pa.BaseExtensionType):
        return _may_need_escape(type_.storage_type)
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def escaped(text: pa.StringArray, column: Column, row: int, substitute: bool) -> pa.StringArray:
    """As text of XML. EncodingError for a character that XML cannot carry, or U+FFFD in its place."""
    data = byte_view(text)
    if not len(data):
        return text
    if data.max() >= 0x80:
        text = _valid_utf8(text, column, row, substitute)
        data = byte_view(text)
    odd = np.count_nonzero(data < 0x20)
    if (odd and odd != sum(np.count_nonzero(data == code) for code in b"\t\n\r")) or (data == 0xEF).any():
        text = _without_forbidden(text, column, row, substitute)
        data = byte_view(text)
    for character, reference in REFERENCES:
        if (data == ord(character)).any():
            text = pc.replace_substring(text, character, reference)
    return text


def _valid_utf8(text: pa.StringArray, column: Column, row: int, substitute: bool) -> pa.StringArray:
    """Drivers pass on what a database without an encoding holds; lone surrogates are no UTF-8 either."""
    try:
        text.validate(full=True)
    except pa.ArrowInvalid as error:
        if substitute:
            raw = text.cast(pa.binary()).to_pylist()
            return pa.array([None if each is None else each.decode(errors="replace") for each in raw], pa.string())
        low, high = 0, len(text)
        while high - low > 1:
            middle = (low + high) // 2
            try:
                pa.concat_arrays([text.slice(low, middle - low)]).validate(full=True)
                low = middle
            except pa.ArrowInvalid:
                high = middle
        raise EncodingError(
            f"Row {row + low}, column {column}: the text is not valid UTF-8.", column=column.name, row=row + low
        ) from error
    return text


def _without_forbidden(text: pa.StringArray, column: Column, row: int, substitute: bool) -> pa.StringArray:
    position = pc.index(pc.match_substring_regex(text, _FORBIDDEN), True).as_py()
    if position < 0:
        return text
    if substitute:
        return pc.replace_substring_regex(text, _FORBIDDEN, "\ufffd")
    value = text[position].as_py()
    code = next(ord(each) for each in value if each in "\ufffe\uffff" or (each < " " and each not in "\t\n\r"))
    raise EncodingError(
        f"Row {row + position}, column {column}: XML cannot carry the character U+{code:04X}.",
        column=column.name,
        row=row + position,
        hint='Remove it in the query, ask for Arrow or CSV, or have it replaced: invalidCharacters="replace" of '
        "sqlResultsToXML, ?invalidCharacters=replace of /query.",
    )


def check_options(blocksize: int | None, on_invalid: str) -> None:
    """DataError for what cannot be meant."""
    if blocksize is not None and blocksize < 1:
        raise DataError(f"A block has at least one row, not {blocksize}.")
    if on_invalid not in ("error", "replace"):
        raise DataError(f"on_invalid is 'error' or 'replace', not {on_invalid!r}.")
