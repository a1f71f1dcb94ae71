"""Values as SQL literals that can hold nothing but the value.

mysqlclient has no server-side parameters, so values reach the server in user variables (``SET @dai1 = …``) that a
prepared statement uses, or in the rows of a bulk INSERT. Text and bytes are written in hexadecimal, which has nothing
to escape; numbers are written from numbers; dates from dates.
"""

from __future__ import annotations

import datetime
import math
import uuid
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dai.drivers.sql.parameters import moment
from dai.errors import DataError, ParameterError

_HEX = np.frombuffer(b"".join(b"%02X" % byte for byte in range(256)), np.uint16)
_MOST_DIGITS = 65


def literal(value: Any, at: int) -> str:
    """Parameter number ``at`` as a literal. ParameterError for what the database has no type for."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "1" if value else "0"
        case int():
            if len(str(abs(value))) > _MOST_DIGITS:
                raise ParameterError(f"Parameter {at}: numbers in the database have at most {_MOST_DIGITS} digits.")
            return str(value)
        case float():
            if not math.isfinite(value):
                raise ParameterError(f"Parameter {at}: the database has neither NaN nor infinity.")
            return f"{value!r}e0" if "e" not in repr(value) else repr(value)
        case Decimal():
            text = f"{value:f}" if value.is_finite() else ""
            if not text or sum(map(str.isdigit, text)) > _MOST_DIGITS:
                raise ParameterError(f"Parameter {at}: {value} is not a number of at most {_MOST_DIGITS} digits.")
            return text
        case str():
            try:
                return f"_utf8mb4 X'{value.encode().hex()}'"
            except UnicodeEncodeError as error:
                raise ParameterError(
                    f"Parameter {at}: the text has half a surrogate pair, which is not Unicode."
                ) from error
        case bytes() | bytearray() | memoryview():
            return f"X'{bytes(value).hex()}'"
        case datetime.datetime():
            return f"'{moment(value, at)}'"
        case datetime.date() | datetime.time():
            return f"'{value.isoformat()}'"
        case datetime.timedelta():
            return f"'{_time(value)}'"
        case uuid.UUID():
            return f"'{value}'"
    raise ParameterError(f"Parameter {at}: the database has no type for a Python {type(value).__name__}.")


def _time(value: datetime.timedelta) -> str:
    sign, value = ("-", -value) if value < datetime.timedelta(0) else ("", value)
    seconds = value.days * 86400 + value.seconds
    return f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{value.microseconds:06}"


def inserts(prefix: bytes, names: Sequence[str], batch: pa.RecordBatch, row: int, most_bytes: int) -> list[bytes]:
    """Multi-row INSERT statements of at most about ``most_bytes`` each, made column by column by Arrow's kernels."""
    columns = [_literals(column, name, row) for name, column in zip(names, batch.columns, strict=True)]
    parts: list[Any] = ["("]
    for column in columns:
        parts += [column, ","]
    parts[-1] = ")"
    rows = pc.binary_join_element_wise(*parts, "")
    ends = np.cumsum(pc.binary_length(rows).to_numpy(zero_copy_only=False).astype(np.int64) + 1)
    statements, start = [], 0
    while start < len(rows):
        spent = int(ends[start - 1]) if start else 0
        stop = max(int(np.searchsorted(ends, spent + most_bytes, "right")), start + 1)
        whole = pa.ListArray.from_arrays(pa.array([0, stop - start], pa.int32()), rows[start:stop])
        statements.append(prefix + pc.binary_join(whole, ",")[0].as_buffer().to_pybytes())
        start = stop
    return statements


def _literals(column: pa.Array, name: str, row: int) -> pa.Array:
    type = column.type
    if pa.types.is_dictionary(type):
        return _literals(column.cast(type.value_type), name, row)
    if pa.types.is_string(type) or pa.types.is_large_string(type) or pa.types.is_string_view(type):
        text = pc.binary_join_element_wise("_utf8mb4 X'", _hex(column.cast(pa.large_string())), "'", "")
    elif any(
        fits(type)
        for fits in (
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_fixed_size_binary,
            pa.types.is_binary_view,
        )
    ):
        text = pc.binary_join_element_wise("X'", _hex(column.cast(pa.large_binary())), "'", "")
    else:
        text = plain_text(column, name, row)
        if not any(fits(type) for fits in _UNQUOTED):
            text = _quoted(text)
    return pc.fill_null(text.cast(pa.string()), "NULL")


_UNQUOTED = (pa.types.is_floating, pa.types.is_boolean, pa.types.is_integer, pa.types.is_null)


def plain_text(column: pa.Array, name: str, row: int = 1) -> pa.Array:
    """Numbers, dates and times as the database reads them from a text, without quotes. DataError for what it has no
    type for; ``row`` is the number of the first."""
    type = column.type
    if pa.types.is_floating(type):
        _refuse(pc.invert(pc.is_finite(column)), column, name, row, "the database has neither NaN nor infinity")
        return column.cast(pa.float32() if pa.types.is_float16(type) else type).cast(pa.string())
    if pa.types.is_boolean(type):
        return column.cast(pa.int8()).cast(pa.string())
    if any(fits(type) for fits in (pa.types.is_integer, pa.types.is_decimal, pa.types.is_date, pa.types.is_null)):
        return column.cast(pa.string())
    if pa.types.is_time(type):
        return _micros(column, pa.time64("us"), name).cast(pa.string())
    if pa.types.is_timestamp(type):
        return _micros(column, pa.timestamp("us", type.tz), name).cast(pa.timestamp("us")).cast(pa.string())
    if pa.types.is_duration(type):
        return _times(_micros(column, pa.duration("us"), name))
    raise DataError(
        f"The column {name!r} is a {type}, for which the database has no type.",
        hint="Cast it to text in the query that gives it.",
        column=name,
    )


def _micros(column: pa.Array, type: pa.DataType, name: str) -> pa.Array:
    try:
        return column.cast(type)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"Column {name!r} has times finer than microseconds.", hint="Round them in the query.", column=name
        ) from error


def _quoted(text: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise("'", text, "'", "")


def _times(column: pa.Array) -> pa.Array:
    micros = column.cast(pa.int64())
    size = pc.abs(micros)
    seconds = pc.divide(size, 1_000_000)
    parts = (
        pc.divide(seconds, 3600),
        pc.subtract(pc.divide(seconds, 60), pc.multiply(pc.divide(seconds, 3600), 60)),
        pc.subtract(seconds, pc.multiply(pc.divide(seconds, 60), 60)),
        pc.subtract(size, pc.multiply(seconds, 1_000_000)),
    )
    hours, minutes, rest, fraction = (
        pc.utf8_lpad(part.cast(pa.string()), width, "0") for part, width in zip(parts, (2, 2, 2, 6), strict=True)
    )
    sign = pc.if_else(pc.less(micros, 0), "-", "")
    clock = pc.binary_join_element_wise(hours, minutes, rest, ":")
    return pc.binary_join_element_wise(sign, clock, ".", fraction, "")


def _hex(column: pa.Array) -> pa.Array:
    """Upper-case hexadecimal digits of each value (64-bit offsets in, text with 64-bit offsets out)."""
    validity = column.is_valid()
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    data = column.buffers()[2]
    source = np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]] if data is not None else np.empty(0, np.uint8)
    digits = pa.py_buffer(_HEX[source])
    places = pa.py_buffer(((offsets - offsets[0]) * 2).astype(np.int64))
    text = pa.Array.from_buffers(pa.large_string(), len(column), [None, places, digits])
    return pc.if_else(validity, text, pa.scalar(None, pa.large_string())).cast(pa.string())


def _refuse(bad: pa.Array, column: pa.Array, name: str, row: int, why: str) -> None:
    at = pc.index(bad, True).as_py()
    if at >= 0:
        raise DataError(f"Column {name!r}, row {row + at}: {column[at].as_py()}: {why}.", column=name, row=row + at)
