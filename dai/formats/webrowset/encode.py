"""WebRowSet from batches: the document, of which the head is text of its own and the rows are those of ``rows``."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from xml.sax.saxutils import escape, quoteattr

import pyarrow as pa

from dai.formats import PIECE_BYTES
from dai.formats.blocks import OfSchema, row_texts, text_blocks
from dai.formats.webrowset.rows import BETWEEN, CLOSE, FORBIDDEN, OPEN, row_text
from dai.formats.webrowset.types import VARCHAR, Column, canonical_schema, described, restored_schema
from dai.streams.meaning import Meaning
from dai.streams.stream import Block, Stream

DECLARATION = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n<webRowSet xmlns="http://java.sun.com/xml/ns/jdbc" '
    b'xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" '
    b'xsi:schemaLocation="http://java.sun.com/xml/ns/jdbc http://java.sun.com/xml/ns/jdbc/webrowset.xsd">\n'
)
DATA = b"<data>\n"
TAIL = b"</data>\n</webRowSet>"
_FORBIDDEN_CHARACTER = re.compile(FORBIDDEN)
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
        said = _kept if len(stream.schema) <= _KEPT_COLUMNS else _described
        columns, metadata = said(stream.schema)
        head = DECLARATION + _properties(properties).encode() + metadata + DATA
        frame = len(OPEN) + len(BETWEEN) * len(columns) + len(CLOSE)
        text = partial(row_text, columns=columns, substitute=on_invalid == "replace")
        rows = row_texts(stream, text, max(1, PIECE_BYTES // frame))
        yield from text_blocks(head, rows, blocksize, TAIL, pieces=pieces)


def _described(schema: pa.Schema) -> tuple[list[Column], bytes]:
    """The columns, and what the head of a document says of them."""
    columns = [described(field) for field in schema]
    parts = ["<metadata>\n"]
    wanted = canonical_schema(schema)
    safe = [replace(column, name=legal(column.name), type_name=legal(column.type_name)) for column in columns]
    if not restored_schema(safe).equals(wanted, check_metadata=True):
        parts.append(f"<?arrow-schema {base64.b64encode(wanted.serialize()).decode()}?>\n")
    parts.append(f"<column-count>{len(columns)}</column-count>\n")
    parts += [_definition(index, column) for index, column in enumerate(safe, 1)]
    parts += [_meaning(index, said) for index, each in enumerate(schema, 1) if (said := Meaning.of(each.metadata).said)]
    parts.append("</metadata>\n")
    return columns, "".join(parts).encode()


_kept = OfSchema(_described)
_KEPT_COLUMNS = 64
"""Of schemas whose descriptions are kept, a few hundred bytes a column."""


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
