"""Hypothesis strategies for columns of every type of the table, with the odd values that break encoders."""

import decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

COLUMNS: list[pa.DataType] = [
    pa.null(), pa.bool_(),
    pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64(),
    pa.decimal128(1, 0), pa.decimal128(12, 2), pa.decimal128(38, 0), pa.decimal128(38, 38), pa.decimal128(20, 10),
    pa.decimal128(5, -3), pa.decimal256(76, 0), pa.decimal256(76, 40), pa.decimal256(76, 76),
    pa.float32(), pa.float64(), pa.string(), pa.binary(),
    pa.date32(), pa.time64("us"), pa.time64("ns"), pa.timestamp("us"), pa.timestamp("ns"),
    pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"),
    pa.duration("us"), pa.duration("ns"), pa.month_day_nano_interval(),
    pa.list_(pa.int32()), pa.list_(pa.string()), pa.list_(pa.list_(pa.string())), pa.list_(pa.decimal128(20, 10)),
    pa.list_(pa.timestamp("us", "UTC")), pa.list_(pa.binary()), pa.list_(pa.float64()),
]  # fmt: skip

_AWKWARD = st.sampled_from(
    ["", " ", " a ", "a b", "\t", "\n", "\r", "\r\n", "&", "<", ">", "]]>", "&amp;", "&#38;", "<null/>", "NULL", "null",
     '"', "\\", '\\"', "{", "}", "{}", ",", "'", "é", "\u2028", "\x7f", "\x85", "\U0001f600", "\ufffd", "\uffef",
     "</columnValue>", "<!--", "0", "-"]
)  # fmt: skip
TEXTS = _AWKWARD | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters=[*map(chr, range(9)), "\x0b", "\x0c",
                  *map(chr, range(14, 32)), "\ufffe", "\uffff"]), max_size=12
)  # fmt: skip
"""Every text XML can carry."""


def _integers(bits: int, least: int | None = None) -> st.SearchStrategy[int]:
    low, high = -(2 ** (bits - 1)) if least is None else least, 2 ** (bits - 1) - 1
    return st.integers(low, high) | st.sampled_from([low, high, 0, 1, -1])


def values(type_: pa.DataType) -> st.SearchStrategy[Any]:
    """Values ``pa.array`` takes for ``type_``, NULL left out."""
    types = pa.types
    if types.is_null(type_):
        return st.none()
    if types.is_boolean(type_):
        return st.booleans()
    if types.is_unsigned_integer(type_):
        return st.integers(0, 2**type_.bit_width - 1) | st.sampled_from([0, 2**type_.bit_width - 1])
    if types.is_integer(type_):
        return _integers(type_.bit_width)
    if types.is_decimal(type_):
        most = 10**type_.precision - 1
        unscaled = st.integers(-most, most) | st.sampled_from([0, 1, -1, most, -most])
        return unscaled.map(lambda number: decimal.Decimal(f"{number}E{-type_.scale}"))
    if types.is_floating(type_):
        return st.floats(width=type_.bit_width)
    if types.is_string(type_):
        return TEXTS
    if types.is_binary(type_):
        return st.binary(max_size=10)
    if types.is_date32(type_):
        return _integers(32)
    if types.is_time(type_):
        return st.integers(0, 86_400 * (10**6 if type_.unit == "us" else 10**9) - 1)
    if types.is_timestamp(type_) or types.is_duration(type_):
        return _integers(64, -(2**63) + 1) | st.integers(-(10**15), 10**15)
    if types.is_list(type_):
        return st.lists(st.none() | values(type_.value_type), max_size=4)
    assert type_ == pa.month_day_nano_interval()
    return st.tuples(_integers(32), _integers(32), _integers(64))


def columns(type_: pa.DataType, min_size: int = 0, max_size: int = 8) -> st.SearchStrategy[pa.Array]:
    return st.lists(st.none() | values(type_), min_size=min_size, max_size=max_size).map(
        lambda items: pa.array(items, type_)
    )


def same(left: pa.Array, right: pa.Array) -> bool:
    """Equal in type and value, NaN being itself and -0.0 not 0.0."""
    if left.type != right.type or len(left) != len(right):
        return False
    return [repr(value) for value in plain_values(left)] == [repr(value) for value in plain_values(right)]


def plain_values(array: pa.Array) -> list[Any]:
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_timestamp(array.type) or pa.types.is_duration(array.type) or pa.types.is_time64(array.type):
        return array.cast(pa.int64()).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_list(array.type):
        return [array.value_lengths().to_pylist(), plain_values(array.flatten())]
    return array.to_pylist()  # type: ignore[no-any-return]
