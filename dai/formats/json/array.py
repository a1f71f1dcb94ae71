"""JSON arrays (RFC 8259, ``application/json``): one array of objects, each as in JSON lines, on a line of its own.

A document ends with its bracket, so one that was cut is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import DataError, TruncatedError
from dai.formats.blocks import check_text, closing, row_texts, text_blocks
from dai.formats.json import JsonLines, row_text, unique
from dai.streams.stream import Block, Stream

_TOKEN = re.compile(
    rb'(?P<object>\{(?:[^{}\[\]"\n\r]|"(?:[^"\\]|\\.)*+")*+\})|"(?:[^"\\]|\\.)*+"|(?P<open>[\[{])|(?P<close>[\]}])'
    rb'|(?P<comma>,)|(?P<space>[ \t\r\n]+)|(?P<cut>["{].*\Z|")|[^"\[\]{},\s]+',
    re.DOTALL,
)
"""A flat object as one token; ``cut``: what may go on in the next chunk."""


class JsonArray:
    """One JSON array of objects; see the module."""

    def encode(self, stream: Stream, blocksize: int | None = None, *, pieces: bool = False) -> Iterator[Block]:
        """As JSON lines, with a comma between them. Raises EncodingError naming the column of a type without a text
        form."""
        with stream:
            check_text(stream.schema)
            keys = [orjson.dumps(name).decode() for name in unique(stream.schema.names)]

            def texts(batch: pa.RecordBatch, row: int) -> pa.Array:
                """Each row begins with its separator: nothing, or the comma after the row before."""
                text = row_text(batch, keys, "")
                if row > 1:
                    return pc.binary_join_element_wise(",\n", text, "")
                rest = pc.binary_join_element_wise(",\n", text.slice(1), "")
                return pa.concat_arrays([text.slice(0, 1), rest])

            yield from text_blocks(b"[", row_texts(stream, texts), blocksize, b"]", pieces=pieces)

    def decode(self, chunks: Iterable[bytes], *, schema: pa.Schema | None = None) -> Stream:
        """As ``JsonLines.decode``, of an array of objects, however it is written. TruncatedError where its end is
        missing."""
        close = closing(chunks)
        rows = JsonLines().decode(_lines(chunks), schema=schema)
        return Stream(rows.schema, rows, close)


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The members of the array, each on a line of its own."""
    depth, rest, ended = 0, b"", False
    for chunk in chunks:
        rest, parts = rest + chunk, []
        at = 0
        while at < len(rest):
            token = _TOKEN.match(rest, at)
            if token is None or token.lastgroup == "cut":
                break
            kind, text = token.lastgroup, token[0]
            if kind is None and token.end() == len(rest) and depth:  # a number may go on
                break
            at = token.end()
            if kind == "space":
                continue
            if ended or (depth == 0 and text != b"["):
                raise DataError("This is not a JSON array of objects.", hint="For JSON lines use the format 'json'.")
            depth += (kind == "open") - (kind == "close")
            ended = depth == 0
            if (depth == 1 and text == b"[" and kind == "open") or ended:
                continue
            parts.append(b"\n" if depth == 1 and kind == "comma" else text)
        rest = rest[at:]
        if parts:
            yield b"".join(parts)
    if not ended:
        raise TruncatedError("The JSON array has no end.")
    yield b"\n"
