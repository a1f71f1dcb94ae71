"""Tables to send through every format: one column of every supported type, and generated ones."""

import datetime
import math
from decimal import Decimal

import pyarrow as pa
from hypothesis import strategies as st

from dai.streams.stream import TYPE_NAME

UTC = datetime.UTC
_DAY = datetime.date
_MOMENT = datetime.datetime

EVERY_TYPE: dict[str, pa.Array] = {
    "bool": pa.array([True, None, False]),
    "int8": pa.array([-128, None, 127], pa.int8()),
    "int16": pa.array([-(2**15), None, 2**15 - 1], pa.int16()),
    "int32": pa.array([-(2**31), None, 2**31 - 1], pa.int32()),
    "int64": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
    "uint8": pa.array([0, None, 255], pa.uint8()),
    "uint16": pa.array([0, None, 2**16 - 1], pa.uint16()),
    "uint32": pa.array([0, None, 2**32 - 1], pa.uint32()),
    "uint64": pa.array([0, None, 2**64 - 1], pa.uint64()),
    "decimal128": pa.array([Decimal("-0.50"), None, Decimal("9" * 36 + ".99")], pa.decimal128(38, 2)),
    "decimal_small": pa.array([Decimal("1E-38"), None, Decimal("-0.5")], pa.decimal128(38, 38)),
    "decimal256": pa.array([Decimal("9" * 70), None, Decimal(-1)], pa.decimal256(76, 6)),
    "numeric": pa.array(["NaN", None, "1" * 200 + ".5"]),
    "float32": pa.array([math.inf, None, 0.1, math.nan, -0.0], pa.float32()),
    "float64": pa.array([-math.inf, None, 0.1, math.nan, 5e-324, 1.7976931348623157e308, 1e21, -0.0]),
    "string": pa.array(
        ["", None, "NULL", " a ", 'q"uo"te', "a,b", "a\r\nb\rc\nd", "\t\\\\n\\", "<&>'", "é𝄞\u2028", "\x7f"]
    ),
    "control": pa.array(["\x00\x01\x1f", "\x08\x0b\x0c\x0e", None]),
    "binary": pa.array([b"", None, bytes(range(256)), b"a"], pa.binary()),
    "date": pa.array([_DAY(1, 1, 1), None, _DAY(9999, 12, 31)]),
    "time": pa.array([datetime.time(0), None, datetime.time(23, 59, 59, 999999)], pa.time64("us")),
    "timestamp": pa.array([_MOMENT(1, 1, 1), None, _MOMENT(9999, 12, 31, 23, 59, 59, 999999)], pa.timestamp("us")),
    "timestamptz": pa.array([_MOMENT(1969, 12, 31, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
    "interval": pa.array([(14, -3, 1_000_001_000), None, (0, 0, 0), (-1, 0, -1000)], pa.month_day_nano_interval()),
    "duration": pa.array([-3020399000001, None, 0, 86400000000], pa.duration("us")),
    "null": pa.nulls(2),
    "list_int": pa.array([[1, None, -3], None, []], pa.list_(pa.int32())),
    "list_string": pa.array([["", None, "NULL", 'a"b', "c,d", "{}\\", " ", "\n"], None, []], pa.list_(pa.string())),
    "list_float": pa.array([[math.inf, None, 0.5, math.nan], None, []], pa.list_(pa.float64())),
    "list_timestamp": pa.array([[_MOMENT(2024, 2, 29, 1)], None, []], pa.list_(pa.timestamp("us"))),
    "list_binary": pa.array([[b"\x00\xff", None], None, []], pa.list_(pa.binary())),
    "list_interval": pa.array([[(1, 2, 3000), None], None, []], pa.list_(pa.month_day_nano_interval())),
    "list_list": pa.array([[[1, None], [2, 3]], None, [[4]]], pa.list_(pa.list_(pa.int64()))),
}


def every_type() -> pa.Table:
    """All of ``EVERY_TYPE`` side by side, filled up with NULL."""
    rows = max(len(array) for array in EVERY_TYPE.values())
    fields, columns = [], []
    for name, array in EVERY_TYPE.items():
        fields.append(pa.field(name, array.type, metadata={TYPE_NAME: name.encode()}))
        columns.append(pa.concat_arrays([array, pa.nulls(rows - len(array), array.type)]))
    return pa.table(columns, schema=pa.schema(fields))


def mixed(rows: int) -> pa.Table:
    """A table with text that needs care, numbers and NULL."""
    texts = ["plain", 'with "quotes"', "comma, and\r\nline", "", None, "ünï<&>", "back\\slash"]
    return pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "text": pa.array([texts[i % len(texts)] for i in range(rows)], pa.string()),
            "x": pa.array([None if i % 5 == 0 else i / 7 for i in range(rows)], pa.float64()),
        }
    )


_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_ELEMENTS: list[tuple[pa.DataType, st.SearchStrategy[object]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.decimal128(12, 4), st.integers(-(10**12) + 1, 10**12 - 1).map(lambda n: Decimal(n).scaleb(-4))),
    (pa.decimal256(60, 20), st.integers(-(10**27), 10**27).map(lambda n: Decimal(n).scaleb(-20))),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), _text),
    (pa.binary(), st.binary(max_size=8)),
    (pa.date32(), st.dates()),
    (pa.time64("us"), st.times()),
    (pa.timestamp("us"), st.datetimes()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC))),
    (pa.duration("us"), st.integers(-(10**13), 10**13)),
    (pa.month_day_nano_interval(), st.tuples(*[st.integers(-1000, 1000)] * 2, st.integers(-(10**9), 10**9))),
    (pa.null(), st.none()),
]


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    """Up to four columns of any type, names from anywhere and not always different, up to a dozen rows in batches."""
    rows = draw(st.integers(0, 12))
    fields, columns = [], []
    for _ in range(draw(st.integers(1, 4))):
        type_, element = draw(st.sampled_from(_ELEMENTS))
        if draw(st.integers(0, 4)) == 0 and not pa.types.is_null(type_):
            type_, element = pa.list_(type_), st.lists(st.none() | element, max_size=3)
        values = draw(st.lists(st.none() | element, min_size=rows, max_size=rows))
        fields.append(pa.field(draw(st.sampled_from(["a", "b", "A", "a_2", 'x"y', "é", "p, q\n"]) | _text), type_))
        columns.append(pa.array(values, type_))
    batch = pa.record_batch(columns, schema=pa.schema(fields))
    middle = draw(st.integers(0, rows))
    return pa.Table.from_batches([batch.slice(0, middle), batch.slice(middle)])


def same(one: pa.Table, other: pa.Table) -> bool:
    """Equal schemas with their fields' metadata, equal values; NaN equals NaN and -0.0 is not 0.0."""
    if not one.schema.equals(other.schema, check_metadata=True) or one.num_rows != other.num_rows:
        return False
    return all(_bits(left) == _bits(right) for left, right in zip(one.columns, other.columns, strict=True))


def _bits(column: pa.ChunkedArray) -> list[object]:
    return [_comparable(value) for value in column.to_pylist()] if not _temporal(column.type) else _integers(column)


def _temporal(type_: pa.DataType) -> bool:
    return pa.types.is_temporal(type_) and not pa.types.is_interval(type_)


def _integers(column: pa.ChunkedArray) -> list[object]:
    width = pa.int32() if column.type.bit_width == 32 else pa.int64()
    values: list[object] = column.cast(width).to_pylist()
    return values


def _comparable(value: object) -> object:
    if isinstance(value, float):
        return value.hex() if not math.isnan(value) else "nan"
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    return str(value) if isinstance(value, Decimal) else value
