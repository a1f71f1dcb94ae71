"""Converts decimal numbers to the type that a caller chooses: ``numeric="double" | "decimal" | "text"``."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pyarrow.types as types

from dai.errors import DataError
from dai.formats.values.text import is_numeric_text
from dai.streams.stream import Stream

_TARGETS: dict[str, pa.DataType] = {
    "double": pa.float64(),
    "decimal": pa.decimal256(76, 38),
    "text": pa.string(),
}
"""For ``decimal`` that of numbers without a declared precision; others stay what they are."""


def converted(stream: Stream, numeric: str | None) -> Stream:
    """The tuples with their decimal numbers as ``numeric``; as they travel without it. Takes over the stream.

    DataError, naming the column, for a number that is none or does not fit.
    """
    if numeric is None:
        return stream
    target = _TARGETS[numeric]
    casts: list[Callable[[pa.Array], pa.Array] | None] = [_cast(field, target) for field in stream.schema]
    if not any(casts):
        return stream
    fields = [_field(field, target) if cast else field for field, cast in zip(stream.schema, casts, strict=True)]
    schema = pa.schema(fields, stream.schema.metadata)

    def convert(batch: pa.RecordBatch) -> pa.RecordBatch:
        columns = [cast(column) if cast else column for column, cast in zip(batch.columns, casts, strict=True)]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    return stream.map(convert, schema)


def _field(field: pa.Field, target: pa.DataType) -> pa.Field:
    if types.is_string(target):  # text in JSON and data frames, too
        field = field.with_metadata({**(field.metadata or {}), b"dai.type": b"text"})
    return field.with_type(target)


def _cast(field: pa.Field, target: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    declared = types.is_decimal(field.type)
    undeclared = types.is_string(field.type) and is_numeric_text(field)
    if not (undeclared or (declared and not types.is_decimal(target))):
        return None

    def cast(column: pa.Array) -> pa.Array:
        try:
            return column.cast(target)
        except pa.ArrowInvalid as error:
            raise DataError(
                f"Column {field.name!r} has a value that does not fit {target}: {error}.",
                hint="numeric='text' returns all numbers with all their digits.",
                column=field.name,
            ) from error

    return cast
