"""Converts Arrow columns to text and back, without loss, by kernels: shared by WebRowSet, CSV and JSON lines.

===========================  ==========================================================================================
boolean                      ``true``, ``false``
integers                     ``-12``
decimals                     plain digits with their full scale, never an exponent: ``0.0000000001``
float32, float64             the shortest text that gives the same value, ``Infinity``, ``-Infinity``, ``NaN``
date                         ISO 8601, ``2024-02-29``; years outside 0000-9999 with as many digits as they need
time, timestamp              ISO 8601, ``12:34:56.000001``, ``2024-02-29T12:34:56.000001``; with ``dai.precision`` 0 no
                             fraction, up to 3 three digits, else the digits of the unit; with a zone in UTC and ``Z``
duration                     hours may exceed 24: ``-838:59:59.000000``
interval                     ISO 8601 with a sign at each part: ``P1Y2M3DT4H5M-6.5S``
binary                       base64 (RFC 4648 section 4)
lists                        the array text of PostgreSQL: ``{1,NULL,"a b"}``, nested ``{{1},{2}}``
===========================  ==========================================================================================

NULL stays NULL and is not the empty string.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import DataError
from dai.formats.values import binary as values_binary
from dai.formats.values import lists as values_list
from dai.formats.values import temporal as values_temporal
from dai.streams.stream import PRECISION, TYPE_NAME

_DECIMAL128_DIGITS = 38
_DECIMAL256_DIGITS = 76
_NUMBER = r"^(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?(?:[eE](?P<exponent>[+-]?[0-9]{1,4}))?$"
_PLAIN_SCALE = 6
"""Up to this scale Arrow writes decimals without an exponent."""


def is_numeric_text(field: pa.Field) -> bool:
    """Whether the texts of a column, or in its lists, are numbers: ``numeric`` without a declared precision, and whole
    numbers of any length (DuckDB)."""
    return source_type(field) in ("numeric", "decimal", "bignum") and bool(pa.types.is_string(innermost(field.type)))


def innermost(type_: pa.DataType) -> pa.DataType:
    """The type of the elements of lists, and of lists of lists."""
    while pa.types.is_list(type_) or pa.types.is_large_list(type_):
        type_ = type_.value_type
    return type_


def source_type(field: pa.Field) -> str:
    """The source's name of the type, or of the elements' type, without parameters: ``numeric`` of ``numeric[]``."""
    name = (field.metadata or {}).get(TYPE_NAME, b"").decode(errors="replace").lower()
    return re.split(r"[(\[]", name, maxsplit=1)[0].lstrip("_")


def canonical_type(type_: pa.DataType) -> pa.DataType:
    """The type of the table in ARCHITECTURE.md that carries every value of ``type_``.

    Raises DataError for a type no text form is agreed for (structs, maps, unions).
    """
    types = pa.types
    if types.is_dictionary(type_):
        return canonical_type(type_.value_type)
    if types.is_run_end_encoded(type_):
        return canonical_type(type_.value_type)
    if types.is_large_string(type_) or types.is_string_view(type_):
        return pa.string()
    if types.is_large_binary(type_) or types.is_fixed_size_binary(type_) or types.is_binary_view(type_):
        return pa.binary()
    if types.is_large_list(type_) or types.is_fixed_size_list(type_) or types.is_list(type_):
        return pa.list_(canonical_type(type_.value_type))
    if types.is_float16(type_):
        return pa.float32()
    if types.is_date64(type_):
        return pa.date32()
    if types.is_time(type_):
        return type_ if type_.unit == "ns" else pa.time64("us")
    if types.is_timestamp(type_):
        return pa.timestamp("ns" if type_.unit == "ns" else "us", None if type_.tz is None else "UTC")
    if types.is_duration(type_):
        return type_ if type_.unit == "ns" else pa.duration("us")
    if types.is_decimal32(type_) or types.is_decimal64(type_):
        return pa.decimal128(type_.precision, type_.scale)
    if (
        types.is_null(type_)
        or types.is_boolean(type_)
        or types.is_integer(type_)
        or types.is_floating(type_)
        or types.is_decimal(type_)
        or types.is_string(type_)
        or types.is_binary(type_)
        or types.is_date32(type_)
        or type_ == pa.month_day_nano_interval()
    ):
        return type_
    raise DataError(f"A value of type {type_} has no text form.", hint="Convert it to text or JSON in the query.")


def canonical(array: pa.Array, column: str = "") -> pa.Array:
    """``array`` in its ``canonical_type``; DataError for one that has none, or for a value that would change."""
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    type_ = canonical_type(array.type)
    if type_ == array.type:
        return array
    try:
        if pa.types.is_dictionary(array.type):
            return canonical(array.dictionary_decode(), column)
        if pa.types.is_run_end_encoded(array.type):
            return canonical(pc.run_end_decode(array), column)
        if pa.types.is_list(type_):
            lists = values_list.as_list(array)
            return values_list.with_values(lists, canonical(lists.flatten(), column))
        return array.cast(type_)
    except pa.ArrowException as error:
        raise DataError(f"Column {column!r} of type {array.type} does not fit {type_}: {error}") from error


def to_text(array: pa.Array, field: pa.Field) -> pa.StringArray:
    """The text of every value; NULL stays NULL. ``field`` names the column in errors and may carry ``dai.precision``.

    Raises DataError for a type without a text form.
    """
    return _text(canonical(array, field.name), _precision(field))


def _precision(field: pa.Field) -> int | None:
    declared = (field.metadata or {}).get(PRECISION)
    return int(declared) if declared is not None and declared.isdigit() else None


def _text(array: pa.Array, precision: int | None) -> pa.StringArray:
    type_, types = array.type, pa.types
    if types.is_string(type_):
        return array
    if types.is_boolean(type_):
        return pc.if_else(array, "true", "false")  # half the time of a cast
    if types.is_floating(type_):
        return _float_text(array)
    if types.is_decimal(type_):
        return array.cast(pa.string()) if 0 <= type_.scale <= _PLAIN_SCALE else _decimal_text(array)
    if types.is_binary(type_):
        return values_binary.to_base64(array)
    if types.is_list(type_):
        quoted = types.is_string(type_.value_type) or types.is_binary(type_.value_type)
        return values_list.to_text(array, lambda values: _text(values, precision), quoted)
    if types.is_temporal(type_) or types.is_interval(type_):
        return values_temporal.to_text(array, precision)
    return array.cast(pa.string())


def _float_text(array: pa.Array) -> pa.StringArray:
    text = array.cast(pa.string())
    if pc.all(pc.is_finite(array), min_count=0).as_py():
        return text
    special = pc.if_else(pc.is_nan(array), "NaN", pc.if_else(pc.greater(array, 0), "Infinity", "-Infinity"))
    return pc.if_else(pc.is_finite(array), text, special)


def _decimal_text(array: pa.Array) -> pa.StringArray:
    """Digits and point put together by hand: Arrow writes small numbers of a large scale with an exponent."""
    type_ = array.type
    make = pa.decimal128 if pa.types.is_decimal128(type_) else pa.decimal256
    unscaled = pa.Array.from_buffers(make(type_.precision, 0), len(array), array.buffers(), offset=array.offset)
    digits = unscaled.cast(pa.string())
    if type_.scale < 0:
        return pc.if_else(pc.equal(digits, "0"), digits, pc.binary_join_element_wise(digits, "0" * -type_.scale, ""))
    negative = pc.starts_with(digits, "-")
    padded = pc.ascii_lpad(pc.ascii_ltrim(digits, "-"), type_.scale + 1, "0")
    point = pc.utf8_replace_slice(padded, start=-type_.scale, stop=-type_.scale, replacement=".")
    return pc.binary_join_element_wise(pc.if_else(negative, "-", ""), point, "")


def from_text(strings: pa.Array, type_: pa.DataType, *, column: str = "", first_row: int = 1) -> pa.Array:
    """The values of a string column as ``type_``; NULL stays NULL. Reads what ``to_text`` writes and its near relations
    (``INF``, ``1E+3``, a space between date and time, offsets from UTC).

    Raises DataError naming column and row (``first_row`` is the number of the first) for a text that is no such value.
    """
    strings = strings if pa.types.is_string(strings.type) else strings.cast(pa.string())
    try:
        return _parse(strings, type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, DataError) as error:
        index = _first_failure(strings, lambda part: _parse(part, type_))
        text = strings[index].as_py()
        shown = text if len(text) <= 60 else text[:60] + "…"
        raise DataError(
            f"Row {first_row + index}, column {column!r}: {shown!r} is not a value of type {type_}.",
            column=column,
            row=first_row + index,
        ) from error


def _first_failure(strings: pa.StringArray, parse: Callable[[pa.StringArray], pa.Array]) -> int:
    """Where parsing fails first, by halving."""
    low, high = 0, len(strings)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            parse(strings.slice(low, middle - low))
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, DataError):
            high = middle
    return low


def _parse(strings: pa.StringArray, type_: pa.DataType) -> pa.Array:
    types = pa.types
    if types.is_string(type_):
        return strings
    if types.is_null(type_):
        if strings.null_count < len(strings):
            raise DataError("A column without a type can only have NULL.")
        return pa.nulls(len(strings))
    if types.is_decimal(type_):
        return _parse_decimal(strings, type_)
    if types.is_binary(type_):
        return values_binary.from_base64(strings)
    if types.is_list(type_):
        return values_list.from_text(strings, type_, lambda texts: _parse(texts, type_.value_type))
    if types.is_temporal(type_) or types.is_interval(type_):
        return values_temporal.from_text(strings, type_)
    return strings.cast(type_)


def _parse_decimal(strings: pa.StringArray, type_: pa.DataType) -> pa.Array:
    """Arrow overflows silently where a text has more digits than its integers hold, so such texts go the long way."""
    widest = _DECIMAL128_DIGITS if pa.types.is_decimal128(type_) else _DECIMAL256_DIGITS
    longest = pc.max(pc.binary_length(strings)).as_py() or 0
    if longest + type_.scale <= widest:
        return strings.cast(type_)
    parts = pc.extract_regex(strings, _NUMBER)
    if parts.null_count > strings.null_count:
        raise DataError("not a number")
    sign, whole, part, exponent = (pc.if_else(parts.is_valid(), parts.field(i), None) for i in range(4))
    digits = pc.ascii_ltrim(pc.binary_join_element_wise(whole, part, ""), "0")
    significant = pc.ascii_rtrim(digits, "0")
    power = pc.if_else(pc.equal(exponent, ""), "0", pc.ascii_ltrim(exponent, "+")).cast(pa.int32())
    # How many zeros follow the kept digits in the unscaled integer.
    zeros = pc.add(pc.subtract(pc.binary_length(digits), pc.binary_length(significant)), type_.scale)
    zeros = pc.subtract(pc.add(zeros, power), pc.binary_length(part))
    zeros = pc.if_else(pc.equal(significant, ""), 0, zeros)
    if (pc.min(zeros).as_py() or 0) < 0:
        raise DataError("more decimal places than the type holds")
    if (pc.max(pc.add(pc.binary_length(significant), zeros)).as_py() or 0) > type_.precision:
        raise DataError("more digits than the type holds")
    sign = pc.if_else(pc.equal(significant, ""), "0", pc.ascii_ltrim(sign, "+"))
    unscaled = pc.binary_join_element_wise(sign, significant, pc.binary_repeat("0", zeros), "")
    make = pa.decimal128 if pa.types.is_decimal128(type_) else pa.decimal256
    integers = unscaled.cast(make(type_.precision, 0))
    return pa.Array.from_buffers(type_, len(integers), integers.buffers(), offset=integers.offset)
