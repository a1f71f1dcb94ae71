"""Python values of a column. NumPy and ``map`` over C functions make those of most types several times as fast as
pyarrow, which makes the others."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from itertools import compress, islice, repeat
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

Values = list[Any]


def values_of(column: pa.Array, numeric: bool = False) -> Values:
    """``numeric``: texts become ``decimal.Decimal``. OverflowError, ValueError or ArrowException for what Python cannot
    hold."""
    if numeric:
        return _decimals_of_texts(objects(column))
    for fits, convert in _CONVERSIONS.items():
        if fits(column.type):
            made = convert(column)
            if made is not None:
                return made
            break
    plain: Values = column.to_pylist()
    return plain


def objects(column: pa.Array) -> Values:
    """By way of NumPy."""
    values: Values = column.to_numpy(zero_copy_only=False).tolist()
    return values


_FEW = 256
"""Values that are not worth a preparation."""


def _filled(column: pa.Array, value: Any) -> pa.Array:
    return column.fill_null(value) if column.null_count else column


def _with_nulls(values: Values, column: pa.Array) -> Values:
    """None where the column has it; ``values`` has something else there."""
    if column.null_count:
        for place in compress(range(len(values)), objects(column.is_null())):
            values[place] = None
    return values


def _numbers(column: pa.Array) -> Values:
    return _with_nulls(objects(_filled(column, False if types.is_boolean(column.type) else 0)), column)


_EXACT = Context(prec=76)
"""Whatever the caller's context is."""


def _decimals(column: pa.Array) -> Values:
    """Those of 64 bits are integers times the unit of the last digit."""
    type_ = column.type
    if types.is_decimal128(type_) and len(column) > _FEW:
        digits = pa.Array.from_buffers(
            pa.decimal128(38, 0), len(column), column.buffers(), column.null_count, column.offset
        )
        try:
            whole = _filled(digits.cast(pa.int64()), 0)
        except pa.ArrowInvalid:  # not all of them have 64 bits
            return objects(column)
        unit = Decimal((0, (1,), -type_.scale))
        return _with_nulls(list(map(_EXACT.multiply, objects(whole), repeat(unit))), column)
    return objects(column)


def _decimals_of_texts(texts: Values) -> Values:
    try:
        return [None if each is None else Decimal(each) for each in texts]
    except InvalidOperation:  # SQLite holds what it is given
        return list(map(_decimal, texts))


def _decimal(text: Any) -> Any:
    try:
        return None if text is None else Decimal(text)
    except InvalidOperation:
        return text


_COMMON = -62_135_596_800_000_000, 253_402_300_799_999_999
"""The microseconds of the years 1 and 9999."""
_DAYS = -719_162, 2_932_896
"""Their days."""
_OF_A_DAY = 0, 86_399_999_999
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _moments(column: pa.Array) -> Values | None:
    whole = column.cast(pa.int64())
    if column.type.unit != "us" or not _is_within(whole, _COMMON):
        return None
    if column.type.tz is None:
        return objects(column)
    since = objects(_filled(whole, 0).cast(pa.duration("us")))
    return _with_nulls(list(map(_EPOCH.__add__, since)), column)  # ``replace(tzinfo=…)`` takes eight times as long


def _times(column: pa.Array) -> Values | None:
    whole = column.cast(pa.int64())
    if column.type.unit != "us" or not _is_within(whole, _OF_A_DAY):
        return None
    moments = objects(_filled(whole, 0).cast(pa.timestamp("us")))
    return _with_nulls(list(map(datetime.datetime.time, moments)), column)


_BLOCK = 12
"""Bits of the days that are made at once, 11 years."""
_BLOCKS = 16


def _dates(column: pa.Array) -> Values | None:
    """Many have few different values, which are made once and shared."""
    days = column.cast(pa.int32())
    least, most = _bounds(days)
    if least is None:
        return [None] * len(column)
    if least < _DAYS[0] or most > _DAYS[1]:
        return None
    first, last = least >> _BLOCK, most >> _BLOCK
    if len(column) > _FEW and last - first < _BLOCKS:
        places = _filled(days, least).to_numpy() - (first << _BLOCK)
        return _with_nulls(_days(first, last)[places].tolist(), column)
    return list(column.to_numpy(zero_copy_only=False).astype(object))


@lru_cache(maxsize=8)
def _days(first: int, last: int) -> Any:
    """The dates of these blocks."""
    return np.arange(first << _BLOCK, (last + 1) << _BLOCK).astype("M8[D]").astype(object)


def _is_within(numbers: pa.Array, bounds: tuple[int, int]) -> bool:
    least, most = _bounds(numbers)
    return least is None or (least >= bounds[0] and most <= bounds[1])


def _bounds(numbers: pa.Array) -> tuple[Any, Any]:
    """The least and the greatest; None without values."""
    known = pc.min_max(numbers)
    return known["min"].as_py(), known["max"].as_py()


def _lists(column: pa.Array) -> Values:
    values = iter(values_of(column.flatten()))
    lengths = objects(_filled(column.value_lengths(), 0))
    return _with_nulls([list(islice(values, length)) for length in lengths], column)


_CONVERSIONS: Mapping[Callable[[pa.DataType], bool], Callable[[pa.Array], Values | None]] = {
    types.is_integer: _numbers,
    types.is_floating: _numbers,
    types.is_boolean: _numbers,
    types.is_string: objects,
    types.is_binary: objects,
    types.is_decimal: _decimals,
    types.is_timestamp: _moments,
    types.is_time64: _times,
    types.is_date32: _dates,
    types.is_list: _lists,
}
"""None for values that are left to pyarrow."""
