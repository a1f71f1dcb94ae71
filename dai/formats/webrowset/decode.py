"""WebRowSet to batches by whole buffers, as long as the text is what ``webrowset_encode`` writes.

Between two values stands one of two fixed texts. Replaced by single control characters, which XML cannot contain, they
leave a buffer whose values lie between those characters; whatever markup is then left is not ours, and lxml takes over
from the row it is in. So nothing is guessed: a text is either exactly canonical or read by a real parser.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from dai.formats.blocks import closing, no_columns
from dai.formats.webrowset.encode import BETWEEN, CLOSE, DATA, DECLARATION, EMPTY_ROW, NULL, OPEN, REFERENCES, TAIL
from dai.formats.webrowset.reader import Reader, batch_of
from dai.streams.stream import Stream

_OPEN, _BETWEEN, _CLOSE, _EMPTY, _NULL = (each.encode() for each in (OPEN, BETWEEN, CLOSE, EMPTY_ROW, NULL))
_ROW_END = b"</currentRow>\n"
_NULL_MARK, _ROW_MARK, _VALUE_MARK = 0x1D, 0x1E, 0x1F
_AMPERSAND_MARK = b"\x1c"
_REFERENCES = (
    *((reference.encode(), text.encode()) for text, reference in REFERENCES if text != "&"),
    (b"&lt;", b"<"), (b"&gt;", b">"), (b"&quot;", b'"'), (b"&apos;", b"'"),
    (b"&#38;", _AMPERSAND_MARK), (b"&amp;", _AMPERSAND_MARK),
)  # fmt: skip
"""An ampersand is put back last, so that it begins no reference."""
_FIRST_BYTES, _MOST_BYTES = 1 << 16, 1 << 20
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
    """The rows of ``data``, or None where it is not exactly canonical."""
    count = len(reader.columns)
    if not count:
        rows = len(data) // len(_EMPTY)
        return no_columns(rows, reader.schema) if data == _EMPTY * rows else None
    if not (data.startswith(_OPEN) and data.endswith(_CLOSE) and _is_text(data)):
        return None
    body = data[len(_OPEN) : -len(_CLOSE)]
    body = body.replace(_CLOSE + _OPEN, bytes([_ROW_MARK])).replace(_BETWEEN, bytes([_VALUE_MARK]))
    nulls = body.count(_NULL)
    if nulls:
        body = body.replace(_NULL, bytes([_NULL_MARK]))
    if b"<" in body or b"]]>" in body:
        return None
    ampersands = body.count(b"&")
    if ampersands:
        replaced = _unescaped(body, ampersands)
        if replaced is None:
            return None
        body = replaced
    text = np.frombuffer(body, np.uint8)
    marks = np.flatnonzero((text == _ROW_MARK) | (text == _VALUE_MARK))
    number = len(marks) + 1
    last = np.arange(1, number) % count == 0
    if number % count or ((text[marks] == _ROW_MARK) != last).any():
        return None
    # Every second string of this array is a value, the others are the marks between them.
    offsets = np.empty(2 * number, np.int32)
    offsets[0], offsets[-1] = 0, len(body)
    offsets[1:-1:2], offsets[2::2] = marks, marks + 1
    valid = None
    if nulls:
        null = (offsets[1::2] - offsets[::2] == 1) & (text[np.minimum(offsets[::2], len(body) - 1)] == _NULL_MARK)
        if np.count_nonzero(null) != nulls:
            return None
        present = np.ones(2 * number, np.bool_)
        present[::2] = ~null
        valid = pa.py_buffer(np.packbits(present, bitorder="little"))
    strings = pa.Array.from_buffers(
        pa.string(), 2 * number - 1, [valid, pa.py_buffer(offsets), pa.py_buffer(body)], nulls
    )
    texts = [strings.take(pa.array(np.arange(2 * index, 2 * number, 2 * count))) for index in range(count)]
    return batch_of(texts, reader.columns, reader.schema, first_row)


def _is_text(data: bytes) -> bool:
    """UTF-8 of characters that XML allows, without a CR, which a parser would change."""
    characters = np.frombuffer(data, np.uint8)
    if np.count_nonzero(characters < 0x20) != data.count(b"\n") + data.count(b"\t"):
        return False
    if data.isascii():
        return True
    try:
        pa.array([data], pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return b"\xef\xbf\xbe" not in data and b"\xef\xbf\xbf" not in data


def _unescaped(body: bytes, ampersands: int) -> bytes | None:
    references = [(reference, text, body.count(reference)) for reference, text in _REFERENCES]
    if sum(count for _, _, count in references) != ampersands:
        return None
    for reference, text, count in references:
        if count:
            body = body.replace(reference, text)
    return body.replace(_AMPERSAND_MARK, b"&")
