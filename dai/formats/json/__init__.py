"""JSON lines (https://jsonlines.org, ``application/x-ndjson``): one object a row, keys in the order of the columns.

=========================  ============================================================================================
boolean, NULL              ``true``, ``false``, ``null``
integers, decimals         numbers with all their digits and their full scale, also decimals that travel as text
                           (``numeric`` without a declared precision). JSON sets no limit, many readers take binary
                           doubles: beyond 2^53 and 15 digits they round, unless told the types
floats                     the shortest number that gives the same value; ``"NaN"``, ``"Infinity"``, ``"-Infinity"``
lists                      arrays
json, jsonb, struct, map   the JSON value itself, on one line; what is no JSON is a string. The value ``null`` cannot be
                           told from NULL
everything else            a string with the text of ``dai.formats.values.text``: ISO 8601, base64 …
=========================  ============================================================================================

Names that occur twice get ``_2``, ``_3`` … from the second on, as far as these are free.

A document does not say where it ends: one cut inside a row is refused, one cut between two rows looks whole, so the
transport must say that it was complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.json

from dai.errors import DataError, TruncatedError
from dai.formats.blocks import check_text, closing, no_columns, row_texts, text_blocks
from dai.formats.json.encode import is_json_text, json_text
from dai.formats.rows import concatenated
from dai.formats.values import lists as values_list
from dai.formats.values import text as values
from dai.streams.stream import Block, Stream

_PARSE_BYTES = 1 << 18
"""Bytes that are parsed at a time."""
_INFER_BYTES = 1 << 22
"""Without a schema, the types are those of about so many bytes at the beginning."""
_ROW_BYTES = 1 << 28
"""A row may be this long."""


class JsonLines:
    """One JSON object a row; see the module for how each type is written."""

    def encode(self, stream: Stream, blocksize: int | None = None, *, pieces: bool = False) -> Iterator[Block]:
        """Blocks are slices of the text of whole batches, so their size costs nothing.

        Raises EncodingError naming the column of a type without a text form.
        """
        with stream:
            check_text(stream.schema)
            keys = [orjson.dumps(name).decode() for name in unique(stream.schema.names)]
            texts = row_texts(stream, lambda batch, _: row_text(batch, keys, "\n"))
            yield from text_blocks(b"", texts, blocksize, pieces=pieces)

    def decode(self, chunks: Iterable[bytes], *, schema: pa.Schema | None = None) -> Stream:
        """Columns of the types of ``schema``; a key that is missing is NULL, one that is not in the schema an error.

        Without a schema the types are what pyarrow.json finds in the first 4 MiB (text that looks like a timestamp is
        taken for one, integers beyond 64 bits for doubles) and what comes later must fit them. Reads the first rows at
        once. Closing the stream closes ``chunks``.

        Raises TruncatedError for a document that ends inside a row, DataError with the line for what is no JSON object
        or does not fit.
        """
        close = closing(chunks)
        try:
            parts = _lines(chunks, _INFER_BYTES if schema is None else _PARSE_BYTES)
            first = next(parts, (b"", 1))
            if schema is None:
                return _inferred(first, parts, close)
            return Stream(schema, _batches(first, parts, schema), close)
        except BaseException:
            close()
            raise


def unique(names: list[str]) -> list[str]:
    """The names, with a number behind each that occurred before."""
    taken = set(names)
    seen: set[str] = set()
    result = []
    for name in names:
        wanted, number = name, 2
        while name in seen:
            name = f"{wanted}_{number}"
            if name in taken:
                name = wanted
            number += 1
        seen.add(name)
        result.append(name)
    return result


def row_text(batch: pa.RecordBatch, keys: list[str], end: str) -> pa.Array:
    """Each row as an object, with ``end`` behind it."""
    if not batch.num_columns:
        return pa.repeat(f"{{}}{end}", batch.num_rows)
    parts: list[str | pa.StringArray] = []
    before = "{"
    for key, field, column in zip(keys, batch.schema, batch.columns, strict=True):
        parts += [f"{before}{key}:", json_text(values.canonical(column, field.name), field)]
        before = ","
    return concatenated([*parts, f"}}{end}"], "null")


def _lines(chunks: Iterable[bytes], first_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Whole lines, many at a time, with the number of the first. Only the last may lack its line break."""
    pieces: list[bytes] = []
    size, wanted, line = 0, first_bytes, 1
    for chunk in chunks:
        pieces.append(chunk)
        size += len(chunk)
        if size < wanted:
            continue
        data = b"".join(pieces)
        end = data.rfind(b"\n") + 1
        if end:
            yield data[:end], line
            line += data.count(b"\n", 0, end)
        elif size > _ROW_BYTES:
            raise DataError(f"Line {line} is longer than {_ROW_BYTES} bytes.")
        pieces = [data[end:]]
        size = len(pieces[0])
        wanted = max(_PARSE_BYTES, 2 * size)
    if data := b"".join(pieces):
        yield data, line


def _inferred(first: tuple[bytes, int], following: Iterator[tuple[bytes, int]], close: Any) -> Stream:
    part, line = first
    if not part.strip():
        return Stream(pa.schema([]), [], close)
    try:
        table = _read(part, None)
    except (pa.ArrowInvalid, ValueError) as error:
        raise _fault(part, line, error) from error
    schema = table.schema
    if not len(schema):
        return Stream(schema, _batches(first, following, schema), close)

    def batches() -> Iterator[pa.RecordBatch]:
        yield _typed_batch(table, schema)
        for part, line in following:
            try:
                yield _typed_batch(_read(part, schema), schema)
            except (pa.ArrowInvalid, ValueError) as error:
                raise _fault(part, line, error) from error

    return Stream(schema, batches(), close)


def _typed_batch(table: pa.Table, schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], schema=schema)


def _batches(
    first: tuple[bytes, int], following: Iterator[tuple[bytes, int]], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    keys = unique(schema.names)
    row = 1
    part, line = first
    while True:
        if part:
            batch = _parsed(part, line, schema, keys, row)
            row += batch.num_rows
            yield batch
        try:
            part, line = next(following)
        except StopIteration:
            return


def _parsed(part: bytes, line: int, schema: pa.Schema, keys: list[str], row: int) -> pa.RecordBatch:
    if not len(schema):
        return no_columns(len(_objects(part, line, [])), schema)
    wire = pa.schema([(key, _wire_type(type_)) for key, type_ in zip(keys, schema.types, strict=True)])
    try:
        if any(map(is_json_text, schema)):
            raise ValueError("any value is its text")
        table = _read(_with_bare_floats(part, wire), wire)
        columns = [column.combine_chunks() for column in table.columns]
    except (pa.ArrowInvalid, ValueError):
        # Slower, for the error that names the line, or for what pyarrow.json does not take: numbers as strings, NaN in
        # a list, JSON as text.
        objects = _objects(part, line, keys)
        columns = [
            _column([each.get(key) for each in objects], key, line, field)
            for key, field in zip(keys, schema, strict=True)
        ]
    typed = [_typed(array, field.type, field.name, row) for array, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(typed, schema=schema)


def _wire_type(type_: pa.DataType) -> pa.DataType:
    """What pyarrow.json reads a column as that becomes ``type_``."""
    types = pa.types
    if types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_):
        return pa.list_(_wire_type(type_.value_type))
    if types.is_float16(type_):
        return pa.float32()
    exact = types.is_boolean(type_) or types.is_integer(type_) or types.is_floating(type_) or types.is_null(type_)
    return type_ if exact or types.is_decimal128(type_) or types.is_decimal256(type_) else pa.string()


def _with_bare_floats(part: bytes, wire: pa.Schema) -> bytes:
    """``"NaN"`` and infinities of float columns without quotes, as pyarrow.json reads them. A quote behind a brace or a
    comma opens a key, for one inside a string is escaped.
    """
    if b"NaN" not in part and b"Infinity" not in part:
        return part
    keys = [re.escape(orjson.dumps(field.name)) for field in wire if pa.types.is_floating(field.type)]
    if not keys:
        return part
    return re.sub(rb'([{,]\s*(?:%s)\s*:\s*)"(NaN|-?Infinity)"' % b"|".join(keys), rb"\1\2", part)


def _read(part: bytes, schema: pa.Schema | None) -> pa.Table:
    table = pa.json.read_json(
        pa.BufferReader(part),
        pa.json.ReadOptions(use_threads=False, block_size=len(part) + 1),
        pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error" if schema else "infer"),
    )
    table.validate(full=True)
    return table if schema is None else table.select(schema.names)


def _objects(part: bytes, line: int, keys: list[str]) -> list[dict[str, Any]]:
    """The rows as Python objects, numbers as their text. Raises DataError or TruncatedError naming the line."""
    objects = []
    for number, text in enumerate(part.split(b"\n")):
        if not text.strip():
            continue
        try:
            row = json.loads(text, parse_float=_Number, parse_int=_Number, parse_constant=_Number)
        except ValueError as error:
            raise _fault(part, line, error) from error
        if not isinstance(row, dict):
            raise DataError(f"Line {line + number} is not a JSON object.", line=line + number)
        if unknown := [key for key in row if key not in keys]:
            raise DataError(f"Line {line + number}: the key {unknown[0]!r} is not a column.", line=line + number)
        objects.append(row)
    return objects


def _fault(part: bytes, line: int, cause: Exception) -> DataError | TruncatedError:
    """The error for lines that cannot be read: which line it is, and whether only its end is missing."""
    for number, text in enumerate(part.split(b"\n")):
        try:
            if text.strip():
                json.loads(text)
        except ValueError as error:
            at = line + number
            if number == part.count(b"\n"):
                return TruncatedError(f"The document ends inside line {at}: {error}")
            return DataError(f"Line {at} is not JSON: {error}", line=at)
    return DataError(f"Line {line} and following: {cause}", hint="Give the schema of the rows.", line=line)


class _Number(str):
    """The text of a number."""


def _column(values: list[Any], key: str, line: int, field: pa.Field) -> pa.Array:
    try:
        return pa.array([_as_text(value, field.type, is_json_text(field)) for value in values])
    except (pa.ArrowException, TypeError) as error:
        raise DataError(f"Line {line} and following: the values of {key!r} are of different kinds: {error}") from error


def _as_text(value: Any, type_: pa.DataType, is_json: bool) -> Any:
    if isinstance(value, list) and (not is_json or hasattr(type_, "value_type")):
        return [_as_text(each, getattr(type_, "value_type", type_), is_json) for each in value]
    if is_json and value is not None:
        return _json_text(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        raise TypeError("an object")
    return value


def _json_text(value: Any) -> str:
    """The JSON of a value whose numbers are ``_Number``."""
    if isinstance(value, _Number):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(_json_text, value))}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_json_text(name)}: {_json_text(each)}" for name, each in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def _typed(array: pa.Array, type_: pa.DataType, column: str, row: int) -> pa.Array:
    """A column as it was read as a column of ``type_``."""
    if array.type == type_:
        return array
    if pa.types.is_null(array.type):
        return pa.nulls(len(array), type_)
    canonical = values.canonical_type(type_)
    try:
        if pa.types.is_list(array.type):
            if not pa.types.is_list(canonical):
                raise DataError(f"Column {column!r} has arrays, expected {type_}.", column=column)
            elements = _typed(array.flatten(), canonical.value_type, column, row)
            return values_list.with_values(array, elements).cast(type_)
        if pa.types.is_string(array.type):
            return values.from_text(array, canonical, column=column, first_row=row).cast(type_)
        return array.cast(type_)
    except pa.ArrowException as error:
        raise DataError(f"Column {column!r} does not fit {type_}: {error}", column=column) from error
