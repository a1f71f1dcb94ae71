"""WebRowSet to batches by whole buffers, as long as the text is as ``encode`` writes it.

Where a "less than" stands, a tag begins; their number says where the values would be if the text were ours. Only where
everything between these values is what the encoder writes there, byte by byte, is the text ours. Otherwise lxml takes
over from the row it is in. So nothing is guessed: a text is either exactly canonical or read by a real parser.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dai.formats.blocks import byte_view, closing, no_columns
from dai.formats.webrowset.encode import DATA, DECLARATION, TAIL
from dai.formats.webrowset.reader import Reader, batch_of
from dai.formats.webrowset.rows import BETWEEN, CLOSE, EMPTY_ROW, NULL, OPEN, REFERENCES
from dai.formats.webrowset.types import Column
from dai.streams.stream import Stream

_OPEN, _BETWEEN, _CLOSE, _EMPTY, _NULL = (each.encode() for each in (OPEN, BETWEEN, CLOSE, EMPTY_ROW, NULL))
_VALUE, _ROW_END, _LESS = b"<columnValue>", b"</currentRow>\n", ord("<")
_AMPERSAND_MARK = "\x1c"
_REFERENCES = (
    *((reference, text) for text, reference in REFERENCES if text != "&"),
    ("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"),
    ("&#38;", _AMPERSAND_MARK), ("&amp;", _AMPERSAND_MARK),
)  # fmt: skip
"""An ampersand is put back last, so that it begins no reference."""
_FIRST_BYTES, _MOST_BYTES = 1 << 16, 1 << 19
"""Text is decoded when there is so much of it, at first as soon as there is a row, then as often as it is a fourth of
what came before: while it is decoded more comes, and behind its end little is left to do."""
_HEAD_BYTES, _KEPT_BYTES = 1 << 24, 1 << 16
_ROW_BYTES = 1 << 26
"""A head or a row longer than this is left to the parser, which has limits of its own. What small heads say is kept:
results of one query begin alike."""


def decoded(chunks: Iterable[bytes]) -> Stream:
    """See ``WebRowSet.decode``."""
    return _decoded(chunks, by_parser=False)


def decoded_by_parser(chunks: Iterable[bytes]) -> Stream:
    """The same by lxml alone: what the fast way is tested and measured against."""
    return _decoded(chunks, by_parser=True)


def _decoded(chunks: Iterable[bytes], by_parser: bool) -> Stream:
    close = closing(chunks)
    try:
        source = _sliced(chunks)
        head, rest = (b"", b"") if by_parser else _head(source)
        described = (_described if len(head) <= _KEPT_BYTES else _described.__wrapped__)(head) if head else None
        if described is not None:
            return Stream(described[1], _canonical(head, *described, source, rest), close)
        reader = Reader()
        reader.feed(head)
        while not reader.in_data:
            if not rest and (chunk := next(source, None)) is not None:
                rest = chunk
            elif not rest:
                reader.close()
            reader.feed(rest)
            rest = b""
        return Stream(reader.schema, _parsed(reader, source, rest), close)
    except BaseException:
        close()
        raise


def _sliced(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """No chunk larger than what is decoded at a time, whatever comes in."""
    for chunk in chunks:
        if len(chunk) <= _MOST_BYTES:
            yield bytes(chunk)
            continue
        view = memoryview(chunk).cast("B")
        for start in range(0, len(view), _MOST_BYTES):
            yield bytes(view[start : start + _MOST_BYTES])


def _head(source: Iterator[bytes]) -> tuple[bytes, bytes]:
    """The canonical head and what was read behind it; an empty head where the document begins in another way."""
    data = b""
    while len(data) < _HEAD_BYTES:
        if not DECLARATION.startswith(data[: len(DECLARATION)]):
            return b"", data
        end = data.find(DATA)
        if end >= 0:
            return data[: end + len(DATA)], data[end + len(DATA) :]
        if (chunk := next(source, None)) is None:
            break
        data += chunk
    return b"", data


@lru_cache(64)
def _described(head: bytes) -> tuple[list[Column], pa.Schema] | None:
    """The columns of a document with that head; None where it is none."""
    reader = Reader()
    reader.feed(head)
    return (reader.columns, reader.schema) if reader.in_data else None


def _parsed(reader: Reader, source: Iterator[bytes], rest: bytes) -> Iterator[pa.RecordBatch]:
    reader.feed(rest)
    yield from reader.batches()
    for chunk in source:
        reader.feed(chunk)
        yield from reader.batches()
    reader.close()
    yield from reader.batches(at_end=True)


def _canonical(
    head: bytes, columns: list[Column], schema: pa.Schema, source: Iterator[bytes], rest: bytes
) -> Iterator[pa.RecordBatch]:
    rows, done, wanted = 0, 0, 1
    pieces, size, at_end = [rest], len(rest), False
    while True:
        while size < wanted:
            if (chunk := next(source, None)) is None:
                at_end = True
                break
            pieces.append(chunk)
            size += len(chunk)
        data = b"".join(pieces)
        end = data.rfind(_ROW_END) + len(_ROW_END)
        if end >= len(_ROW_END):
            batch = _batch(data[:end], columns, schema, rows + 1)
            if batch is None:
                break
            rows += batch.num_rows
            yield batch
            data, done = data[end:], done + end
            wanted = min(max(_FIRST_BYTES, done // 4), _MOST_BYTES)
        elif _is_foreign(data) or len(data) > _ROW_BYTES:
            break
        else:
            wanted = max(wanted, 2 * len(data), 1)
        if at_end:
            break
        pieces, size = [data], len(data)
    if data == TAIL and at_end:
        return
    reader = Reader()
    reader.feed(head)
    reader.skip(rows)
    yield from _parsed(reader, source, data)


def _is_foreign(data: bytes) -> bool:
    """Whether a text without the end of a row is one that will never become ours by more bytes."""
    for expected in (_OPEN, _EMPTY, TAIL):
        length = min(len(data), len(expected))
        if data[:length] == expected[:length]:
            return b"</currentRow>" in data[:-1] or data.startswith(TAIL + b"<")
    return True


def _batch(data: bytes, columns: list[Column], schema: pa.Schema, first_row: int) -> pa.RecordBatch | None:
    """The rows of ``data``, or None where it is not exactly canonical."""
    count = len(columns)
    if not count:
        rows = len(data) // len(_EMPTY)
        return no_columns(rows, schema) if data == _EMPTY * rows else None
    text = np.frombuffer(data, np.uint8)
    tags = np.flatnonzero(text == _LESS)
    null = text[tags + 1] == _NULL[1]
    nulls = np.count_nonzero(null)
    if nulls:
        tags = tags[~null]
    tags_a_row = 2 + 2 * count
    rows, left = divmod(len(tags), tags_a_row)
    if left:
        return None
    grid = tags.reshape(-1, tags_a_row)
    if not (_is_markup(data, grid) and _is_text(data, text, rows, len(null))):
        return None
    begins, ends = grid[:, 1:-1:2] + len(_VALUE), grid[:, 2::2]
    # Every second string of these arrays is a value, the others are what stands between them.
    every_second = pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32))
    values = []
    for column in range(count):
        offsets = np.empty(2 * rows, np.int32)
        offsets[::2], offsets[1::2] = begins[:, column], ends[:, column]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        values.append(pa.Array.from_buffers(pa.string(), 2 * rows - 1, buffers).take(every_second))
    if nulls:
        values = [_with_nulls(each) for each in values]
        if sum(each.null_count for each in values) != nulls:
            return None
    if b"&" in data:
        values = [_unescaped(each) for each in values]
        if any(each is None for each in values):
            return None
    return batch_of(values, columns, schema, first_row)


def _is_markup(data: bytes, tags: NDArray[np.int64]) -> bool:
    """Whether what the encoder writes before, between and behind values stands in ``data`` where its tags (a row of
    ``tags`` for each row) say. It has as many tags as there are, so none is left over for a value."""
    return (
        data.startswith(_OPEN)
        and data.endswith(_CLOSE)
        and _stands_at(data, tags[:, 2:-2:2], _BETWEEN)
        and _stands_at(data, tags[:-1, -2], _CLOSE + _OPEN)
    )


def _stands_at(data: bytes, places: NDArray[np.int64], markup: bytes) -> bool:
    """Whether the markup stands at each of the places, which are in order."""
    if not places.size:
        return True
    size = len(markup)
    last = len(data) - size
    if places.flat[-1] > last:
        return False
    everywhere: NDArray[np.void] = np.ndarray((last + 1,), f"V{size}", data, strides=(1,))
    return everywhere[places].tobytes() == markup * places.size


def _with_nulls(value: pa.StringArray) -> pa.StringArray:
    """Those that are the element of NULL and nothing else, which no text is."""
    return pc.if_else(pc.equal(value, NULL), None, value)


def _is_text(data: bytes, characters: NDArray[np.uint8], lines: int, tags: int) -> bool:
    """UTF-8 of characters that XML allows, without a CR, which a parser would change, and without "]]>", where the
    markup has so many line feeds and as many of its last character as it has ``tags``."""
    controls = np.count_nonzero(characters < 0x20)
    if controls != lines and controls != data.count(b"\n") + data.count(b"\t"):
        return False
    if b"]" in data and np.count_nonzero(characters == ord(">")) != tags and b"]]>" in data:
        return False
    if data.isascii():
        return True
    try:
        pa.array([data], pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return b"\xef\xbf\xbe" not in data and b"\xef\xbf\xbf" not in data


def _unescaped(value: pa.StringArray) -> pa.StringArray | None:
    """The texts with their references replaced; None where an ampersand begins no reference."""
    if not (byte_view(value) == ord("&")).any():
        return value
    for reference, text in _REFERENCES:
        value = pc.replace_substring(value, reference, text)
    if (byte_view(value) == ord("&")).any():
        return None
    return pc.replace_substring(value, _AMPERSAND_MARK, "&")
