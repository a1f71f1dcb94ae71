"""CSV as RFC 4180 has it, in UTF-8.

Records end with CRLF, the last one too. A field is quoted only where it must be: where it holds a quote, a comma or a
line break, and where it is the empty string, so that NULL (an empty field without quotes) stays different. The header
and the records of a table without columns are empty lines. A document whose first value begins with U+FEFF is preceded
by another one, for readers take the first for a byte order mark.

CSV says neither what its columns are nor where it ends. A document cut inside a quoted field or with too few fields in
its last record is refused; one cut elsewhere looks whole, so the transport must say that it was complete.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from dai.errors import DataError, TruncatedError
from dai.formats.blocks import byte_view, check_text, closing, no_columns, row_texts, text_blocks
from dai.formats.rows import concatenated
from dai.formats.values import text as values
from dai.streams.stream import Block, Stream

_BOM = "\ufeff".encode()
_QUOTE, _COMMA, _CR, _LF = b'",\r\n'
_SPECIAL = '",\r\n'
_PARSE_BYTES = 1 << 18
"""Bytes that are parsed at a time."""
_RECORD_BYTES = 1 << 28
"""A record (or a quote that is never closed) may be this long."""


class Csv:
    """Comma-separated values; see the module for what is written and what is read."""

    def encode(
        self,
        stream: Stream,
        blocksize: int | None = None,
        *,
        includeHeader: bool = True,  # noqa: N803
        pieces: bool = False,
    ) -> Iterator[Block]:
        """Blocks are slices of the text of whole batches, so their size costs nothing; the header is in the first.

        Raises EncodingError naming the column of a type without a text form.
        """
        with stream:
            check_text(stream.schema)
            head = _header(stream.schema.names) if includeHeader else b""
            first = True
            for block in text_blocks(head, row_texts(stream, _row_text), blocksize, pieces=pieces):
                if first and bytes(memoryview(block.data)[:3]) == _BOM:
                    block = Block(b"".join((_BOM, block.data)), block.rows)
                first = False
                yield block

    def decode(
        self,
        chunks: Iterable[bytes],
        *,
        schema: pa.Schema | None = None,
        includeHeader: bool = True,  # noqa: N803
    ) -> Stream:
        """Columns of strings, or of the types of ``schema``, whose names must be those of the header; without a header
        and a schema they are called ``column1``, ``column2`` … Lines may end with LF too; empty lines are records only
        in a document of one column. Reads the first records at once. Closing the stream closes ``chunks``.

        Raises TruncatedError for a document that ends inside a quoted field or before its header, DataError with the
        line for records of unequal length and quotes inside unquoted fields, and for values that do not fit the schema.
        """
        close = closing(chunks)
        try:
            records = _records(chunks)
            part, line = next(records, (b"", 1))
            names, begin = _names(part, includeHeader, schema)
            schema = schema or pa.schema([(name, pa.string()) for name in names])
            rest = part[begin:]
            first = (rest, line + part.count(b"\n", 0, begin))
            return Stream(schema, _batches(first, records, schema), close)
        except BaseException:
            close()
            raise


def _header(names: list[str]) -> bytes:
    return (",".join(_quoted_name(name) for name in names) + "\r\n").encode()


def _quoted_name(name: str) -> str:
    if name and not any(special in name for special in _SPECIAL):
        return name
    return '"' + name.replace('"', '""') + '"'


def _row_text(batch: pa.RecordBatch, _: int) -> pa.Array:
    if not batch.num_columns:
        return pa.repeat("\r\n", batch.num_rows)
    parts: list[str | pa.StringArray] = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        parts += [_field_text(column, field), ","]
    parts[-1] = "\r\n"
    return concatenated(parts, "")


def _field_text(column: pa.Array, field: pa.Field) -> pa.Array:
    text = values.to_text(column, field)
    if pa.types.is_integer(field.type) or pa.types.is_floating(field.type) or pa.types.is_decimal(field.type):
        return text
    here = byte_view(text)
    specials = [special for special in _SPECIAL if (here == ord(special)).any()]
    marked = pc.equal(text, "")
    for special in specials:
        marked = pc.or_(marked, pc.match_substring(text, special))
    if not pc.any(marked, min_count=0).as_py():
        return text
    doubled = pc.replace_substring(text, '"', '""') if '"' in specials else text
    return pc.if_else(marked, pc.binary_join_element_wise('"', doubled, '"', ""), text)


def _records(chunks: Iterable[bytes]) -> Iterator[tuple[bytes, int]]:
    """Whole records, many at a time, with the number of their first line. The last may lack its line break."""
    pieces: list[bytes] = []
    size, wanted, line = 0, _PARSE_BYTES, 1
    begun = False
    for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size < wanted:
            continue
        data = b"".join(pieces)
        if not begun:
            begun, data = True, data.removeprefix(_BOM)
        end = _last_end(data)
        if end:
            yield _checked(data[:end], line), line
            line += data.count(b"\n", 0, end)
            pieces, wanted = [data[end:]], _PARSE_BYTES
        else:
            if size > _RECORD_BYTES:
                raise DataError(f"The record that begins on line {line} is longer than {_RECORD_BYTES} bytes.")
            pieces, wanted = [data], 2 * size
        size = len(pieces[0])
        wanted = max(wanted, size + 1)
    data = b"".join(pieces)
    if not begun:
        data = data.removeprefix(_BOM)
    if data:
        yield _checked(data, line), line


def _last_end(data: bytes) -> int:
    """Where the last record that is certainly whole ends: behind its LF, 0 without one."""
    quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == _QUOTE)
    end = len(data)
    while (end := data.rfind(b"\n", 0, end)) >= 0:
        before = int(np.searchsorted(quotes, end))
        if before % 2 == 0:
            return end + 1
        end = int(quotes[before - 1])
    return 0


def _checked(data: bytes, line: int) -> bytes:
    """``data`` when all its quotes are where RFC 4180 allows them, at both ends of a field or doubled inside."""
    here = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(here == _QUOTE)
    if not len(quotes):
        return data
    edges = np.zeros(256, bool)
    edges[[_QUOTE, _COMMA, _CR, _LF]] = True
    opening, closing_ = quotes[0::2], quotes[1::2]
    wrong_before = opening[(opening > 0) & ~edges[here[opening - 1]]]
    wrong_after = closing_[(closing_ < len(data) - 1) & ~edges[here[np.minimum(closing_ + 1, len(data) - 1)]]]
    wrong = np.concatenate((wrong_before, wrong_after))
    if len(wrong):
        at = line + data.count(b"\n", 0, int(wrong.min()))
        raise DataError(f"Line {at}: a quote in the middle of a field.", hint='Write "" for a quote in a quoted field.')
    if len(quotes) % 2:
        at = line + data.count(b"\n", 0, int(quotes[-1]))
        raise TruncatedError(f"The document ends inside the quoted field that begins on line {at}.")
    return data


def _names(part: bytes, header: bool, schema: pa.Schema | None) -> tuple[list[str], int]:
    """The names of the columns, and where in ``part`` the first record behind the header begins."""
    if not header and schema is not None:
        return schema.names, 0
    if header and not part:
        raise TruncatedError("The document ends before its header.")
    try:
        lines = io.StringIO(part.decode(), newline="")
        names = next(csv.reader(lines, strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"Line 1: {error}") from error
    if not header:
        return [f"column{number}" for number in range(1, len(names) + 1)], 0
    if schema is not None and names != schema.names:
        raise DataError(f"The header names {names}, expected {schema.names}.")
    return names, len(lines.getvalue()[: lines.tell()].encode())


def _batches(
    first: tuple[bytes, int], following: Iterator[tuple[bytes, int]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    row = 1
    part, line = first
    while True:
        if part:
            batch = _parsed(part, line, schema, row)
            row += batch.num_rows
            yield batch
        try:
            part, line = next(following)
        except StopIteration:
            return


def _parsed(part: bytes, line: int, schema: pa.Schema, row: int) -> pa.RecordBatch:
    if not len(schema):
        if part.strip(b"\r\n"):
            raise DataError(f"Line {line} has a value, but the document has no columns.")
        return no_columns(part.count(b"\n"), schema)
    try:
        table = _read(part, line, [_direct_type(type_) for type_ in schema.types])
    except pa.ArrowInvalid:
        # Once more as strings, for the error that names column and row, or because Arrow's parser knows less.
        table = _strings(part, line, len(schema))
    columns = []
    for field, column in zip(schema, table.columns, strict=True):
        array = column.combine_chunks()
        if array.type != field.type:
            type_ = values.canonical_type(field.type)
            array = values.from_text(array, type_, column=field.name, first_row=row).cast(field.type)
        columns.append(array)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _direct_type(type_: pa.DataType) -> pa.DataType:
    """The types that Arrow's CSV reader itself converts exactly; all others are read as strings."""
    exact = pa.types.is_integer(type_) or pa.types.is_float64(type_) or pa.types.is_float32(type_)
    return type_ if exact else pa.string()


def _strings(part: bytes, line: int, width: int) -> pa.Table:
    try:
        return _read(part, line, [pa.string()] * width)
    except pa.ArrowInvalid as error:
        raise DataError(f"Line {line} and following: {error}") from error


def _read(part: bytes, line: int, types: list[pa.DataType]) -> pa.Table:
    """Raises DataError for a record that is too short or too long, ArrowInvalid for what does not convert."""
    names = [str(number) for number in range(len(types))]
    ragged: list[Any] = []
    if part.startswith(_BOM):
        # The document's own mark is gone; Arrow would take this one, which is data, for another.
        part = _BOM + part
    table = pa.csv.read_csv(
        pa.BufferReader(part),
        pa.csv.ReadOptions(use_threads=False, block_size=len(part) + 1, column_names=names),
        pa.csv.ParseOptions(
            newlines_in_values=True,
            ignore_empty_lines=len(types) > 1,
            invalid_row_handler=partial(_skip, ragged),
        ),
        pa.csv.ConvertOptions(
            column_types=dict(zip(names, types, strict=True)),
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
            null_values=[""],
        ),
    )
    if ragged:
        row = ragged[0]
        at = line + _line_of(part, row.number)
        raise DataError(f"Line {at}: {row.actual_columns} fields instead of {row.expected_columns}.", line=at)
    return table


def _skip(skipped: list[Any], row: Any) -> str:
    skipped.append(row)
    return "skip"


def _line_of(part: bytes, record: int) -> int:
    """How many lines come before the record of that number (from 1)."""
    reader = csv.reader(io.StringIO(part.decode(errors="replace"), newline=""))
    for _ in range(record - 1):
        next(reader, None)
    return reader.line_num
