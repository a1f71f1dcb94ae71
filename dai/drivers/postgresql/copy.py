"""Record batches as the CSV that COPY reads: NULL is nothing, everything else is quoted, so "" stays a text.

Text, not PostgreSQL's binary format: the server converts it to whatever type the column has (a number into a numeric, a
text into a uuid), where binary would have to match the column exactly.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.types as types

from dai.errors import DataError

_OPTIONS = pyarrow.csv.WriteOptions(include_header=False, quoting_style="all_valid")
_YEAR_1, _YEAR_10000 = -62_135_596_800, 253_402_300_800
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def csv_bytes(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """The batch in one piece."""
    columns = [plain_text(column, field.name) for column, field in zip(batch.columns, batch.schema, strict=True)]
    sink = pa.BufferOutputStream()
    names = [str(number) for number in range(len(columns))]
    pyarrow.csv.write_csv(pa.RecordBatch.from_arrays(columns, names), sink, _OPTIONS)
    yield memoryview(sink.getvalue())


def plain_text(array: pa.Array, name: str) -> pa.Array:
    """In a type that Arrow's CSV writer writes as PostgreSQL reads it."""
    kind = array.type
    if types.is_dictionary(kind):
        return plain_text(array.dictionary_decode(), name)
    if isinstance(kind, pa.BaseExtensionType):
        return plain_text(array.storage, name)
    if types.is_binary_view(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind):
        return _hexadecimal(array.cast(pa.binary()))
    if types.is_binary(kind):
        return _hexadecimal(array)
    if types.is_string_view(kind) or types.is_null(kind):
        return array.cast(pa.string())
    if types.is_timestamp(kind):
        _in_range(array.cast(pa.int64()), _PER_SECOND[kind.unit], name)
        # PostgreSQL rounds to the microsecond: what is finer is refused rather than lost.
        return _microseconds(array, pa.timestamp("us", kind.tz), name)
    if types.is_date(kind):
        days = array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64())
        _in_range(pc.multiply(days, 86_400), 1, name)
        return array.cast(pa.date32())
    if types.is_time64(kind):
        return _microseconds(array, pa.time64("us"), name)
    if types.is_duration(kind):
        numbers = _microseconds(array, pa.duration("us"), name).cast(pa.int64()).cast(pa.string())
        return pc.binary_join_element_wise(numbers, " microseconds", "")
    if types.is_interval(kind):
        return pa.array([None if each is None else _interval(each, name) for each in array.to_pylist()], pa.string())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _lists(array, name)
    if types.is_struct(kind) or types.is_map(kind) or types.is_union(kind):
        raise DataError(f"The column {name!r} is a {kind}, for which PostgreSQL has no text form.", column=name)
    return array


def _microseconds(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return array.cast(kind)
    except pa.ArrowInvalid as error:
        raise DataError(
            f"The column {name!r} has times finer than a microsecond, which PostgreSQL cannot hold.", column=name
        ) from error


def _in_range(numbers: pa.Array, per_second: int, name: str) -> None:
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is not None and not (
        _YEAR_1 * per_second <= extremes["min"] and extremes["max"] < _YEAR_10000 * per_second
    ):
        raise DataError(
            f"The column {name!r} holds a date outside the years 1 to 9999, which cannot be loaded.", column=name
        )


def _hexadecimal(array: pa.Array) -> pa.Array:
    """``\\x`` and two digits a byte, for the whole buffer at once."""
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    data = memoryview(array.buffers()[2] or b"")[offsets[0] : offsets[-1]]
    digits = pa.py_buffer(data.hex().encode())
    doubled = pa.py_buffer(((offsets - offsets[0]).astype(np.int64) * 2).tobytes())
    text = pa.LargeStringArray.from_buffers(len(array), doubled, digits)
    marked = pc.binary_join_element_wise(pa.scalar("\\x", pa.large_string()), text, pa.scalar("", pa.large_string()))
    return pc.if_else(array.is_valid(), marked, pa.scalar(None, pa.large_string()))


def _interval(value: pa.MonthDayNano, name: str) -> str:
    if value.nanoseconds % 1000:
        raise DataError(
            f"The column {name!r} has times finer than a microsecond, which PostgreSQL cannot hold.", column=name
        )
    return f"{value.months} months {value.days} days {value.nanoseconds // 1000} microseconds"


def _lists(array: pa.Array, name: str) -> pa.Array:
    """``{"a",NULL}``: the elements' texts quoted, joined list by list."""
    if types.is_fixed_size_list(array.type):
        array = array.cast(pa.list_(array.type.value_type))
    if types.is_nested(array.type.value_type):
        raise DataError(f"The column {name!r} holds lists of lists, which cannot be loaded.", column=name)
    values = plain_text(array.flatten(), name)
    text = values.cast(pa.string())
    escaped = pc.replace_substring(pc.replace_substring(text, "\\", "\\\\"), '"', '\\"')
    quoted = pc.if_else(text.is_valid(), pc.binary_join_element_wise('"', escaped, '"', ""), "NULL")
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    joined = pc.binary_join(pa.ListArray.from_arrays(offsets, quoted), ",")
    marked = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(array.is_valid(), marked, pa.scalar(None, pa.string()))
