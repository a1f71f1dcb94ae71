"""WebRowSet to batches by whole buffers, as long as the text is what ``webrowset_encode`` writes.

Where a "less than" stands, a tag begins; their number says where the values would be if the text were ours. The
encoder then writes these values again: only where that gives the same bytes is the text ours. Otherwise lxml takes over
from the row it is in. So nothing is guessed: a text is either exactly canonical or read by a real parser.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dai.formats.blocks import byte_view, closing, no_columns
from dai.formats.rows import concatenated
from dai.formats.webrowset.encode import BETWEEN, CLOSE, DATA, DECLARATION, EMPTY_ROW, NULL, OPEN, REFERENCES, TAIL
from dai.formats.webrowset.reader import Reader, batch_of
from dai.streams.stream import Stream

_OPEN, _CLOSE, _EMPTY, _NULL = (each.encode() for each in (OPEN, CLOSE, EMPTY_ROW, NULL))
_VALUE, _ROW_END, _LESS = b"<columnValue>", b"</currentRow>\n", ord("<")
_AMPERSAND_MARK = "\x1c"
_REFERENCES = (
    *((reference, text) for text, reference in REFERENCES if text != "&"),
    ("&lt;", "<"), ("&gt;", ">"), ("&quot;", '"'), ("&apos;", "'"),
    ("&#38;", _AMPERSAND_MARK), ("&amp;", _AMPERSAND_MARK),
)  # fmt: skip
"""An ampersand is put back last, so that it begins no reference."""
_FIRST_BYTES, _MOST_BYTES = 1 << 16, 1 << 19
"""Text is decoded when there is so much of it, at first as soon as there is a row."""
_HEAD_BYTES = 1 << 24
_ROW_BYTES = 1 << 26
"""A head or a row longer than this is left to the parser, which has limits of its own."""


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
        reader = Reader()
        head, rest = (b"", b"") if by_parser else _head(source)
        reader.feed(head)
        canonical = bool(head) and reader.in_data
        while not reader.in_data:
            if not rest and (chunk := next(source, None)) is not None:
                rest = chunk
            elif not rest:
                reader.close()
            reader.feed(rest)
            rest = b""
        batches = _canonical(reader, source, rest) if canonical else _parsed(reader, source, rest)
        return Stream(reader.schema, batches, close)
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


def _parsed(reader: Reader, source: Iterator[bytes], rest: bytes) -> Iterator[pa.RecordBatch]:
    reader.feed(rest)
    yield from reader.batches()
    for chunk in source:
        reader.feed(chunk)
        yield from reader.batches()
    reader.close()
    yield from reader.batches(at_end=True)


def _canonical(reader: Reader, source: Iterator[bytes], rest: bytes) -> Iterator[pa.RecordBatch]:
    rows, wanted = 0, 1
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
            batch = _batch(data[:end], reader, rows + 1)
            if batch is None:
                break
            rows += batch.num_rows
            yield batch
            data = data[end:]
            wanted = min(max(_FIRST_BYTES, 2 * wanted), _MOST_BYTES)
        elif _is_foreign(data) or len(data) > _ROW_BYTES:
            break
        else:
            wanted = max(wanted, 2 * len(data), 1)
        if at_end:
            break
        pieces, size = [data], len(data)
    if data == TAIL and at_end:
        return
    reader.skip(rows)
    yield from _parsed(reader, source, data)


def _is_foreign(data: bytes) -> bool:
    """Whether a text without the end of a row is one that will never become ours by more bytes."""
    for expected in (_OPEN, _EMPTY, TAIL):
        length = min(len(data), len(expected))
        if data[:length] == expected[:length]:
            return b"</currentRow>" in data[:-1] or data.startswith(TAIL + b"<")
    return True


def _batch(data: bytes, reader: Reader, first_row: int) -> pa.RecordBatch | None:
    """The rows of ``data``, or None where it is not exactly canonical: where its values, written again, are another
    text."""
    count = len(reader.columns)
    if not count:
        rows = len(data) // len(_EMPTY)
        return no_columns(rows, reader.schema) if data == _EMPTY * rows else None
    if not data.endswith(_CLOSE):
        return None
    text = np.frombuffer(data, np.uint8)
    tags = np.flatnonzero(text == _LESS)
    null = text[tags + 1] == _NULL[1]
    nulls = np.count_nonzero(null)
    if nulls:
        tags = tags[~null]
    tags_a_row = 2 + 2 * count
    rows, left = divmod(len(tags), tags_a_row)
    begins = tags.reshape(-1, tags_a_row)[:, 1:-1:2] + len(_VALUE) if not left else tags
    ends = tags.reshape(-1, tags_a_row)[:, 2::2] if not left else tags
    if left or (begins > ends).any() or not _is_text(data, text, rows, len(null)):
        return None
    # Every second string of these arrays is a value, the others are what stands between them.
    every_second = pa.array(np.arange(0, 2 * rows, 2, dtype=np.int32))
    values = []
    for column in range(count):
        offsets = np.empty(2 * rows, np.int32)
        offsets[::2], offsets[1::2] = begins[:, column], ends[:, column]
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
        values.append(pa.Array.from_buffers(pa.string(), 2 * rows - 1, buffers).take(every_second))
    if not _writes(values, data):
        return None
    if nulls:
        values = [_with_nulls(each) for each in values]
        if sum(each.null_count for each in values) != nulls:
            return None
    unescaped = [_unescaped(each) for each in values]
    if any(each is None for each in unescaped):
        return None
    return batch_of(unescaped, reader.columns, reader.schema, first_row)


def _writes(values: list[pa.StringArray], data: bytes) -> bool:
    """Whether the encoder makes ``data`` of these texts."""
    parts = [each for value in values for each in (BETWEEN, value)]
    written = concatenated([OPEN, *parts[1:], CLOSE], NULL)
    return len(byte_view(written)) == len(data) and written.buffers()[2].slice(0, len(data)).equals(pa.py_buffer(data))


def _with_nulls(value: pa.StringArray) -> pa.StringArray:
    """Those that are the element of NULL and nothing else, which no text is."""
    return pc.if_else(pc.equal(value, NULL), None, value)


def _is_text(data: bytes, characters: NDArray[np.uint8], lines: int, tags: int) -> bool:
    """UTF-8 of characters that XML allows, without a CR, which a parser would change, and without "]]>", where the
    markup has so many line feeds and as many of its last character as it has ``tags``."""
    controls = np.count_nonzero(characters < 0x20)
    if controls != lines and controls != data.count(b"\n") + data.count(b"\t"):
        return False
    if np.count_nonzero(characters == ord(">")) != tags and b"]]>" in data:
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
