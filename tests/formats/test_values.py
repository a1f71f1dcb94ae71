"""Every type of the table as text and back."""

import base64
import datetime as dt
import decimal
import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dai.errors import DataError
from dai.formats.values import instants
from dai.formats.values.text import canonical_type, from_text, to_text
from dai.streams.stream import PRECISION
from tests.formats.columns import COLUMNS, columns, same
from tests.thoroughness import examples


def text_of(values: list[Any], type_: pa.DataType, precision: int | None = None) -> list[str | None]:
    metadata = None if precision is None else {PRECISION: str(precision)}
    return to_text(pa.array(values, type_), pa.field("x", type_, metadata=metadata)).to_pylist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("type_", COLUMNS, ids=str)
def test_round_trip(type_: pa.DataType) -> None:
    @settings(max_examples=examples(25))
    @given(columns(type_))
    def check(array: pa.Array) -> None:
        text = to_text(array, pa.field("x", type_))
        assert text.type == pa.string()
        assert text.null_count == array.null_count
        text.validate(full=True)
        back = from_text(text, type_)
        back.validate(full=True)
        assert same(back, array)
        if len(array) > 1:
            # A slice is as good as the whole, whatever its offset.
            part = array.slice(1)
            assert to_text(part, pa.field("x", type_)).equals(text.slice(1))
            assert same(from_text(text.slice(1), type_), part)

    check()


def test_texts() -> None:
    assert text_of([True, False, None], pa.bool_()) == ["true", "false", None]
    assert text_of([-(2**63), 2**63 - 1], pa.int64()) == ["-9223372036854775808", "9223372036854775807"]
    assert text_of([2**64 - 1], pa.uint64()) == ["18446744073709551615"]
    assert text_of([math.inf, -math.inf, math.nan, -0.0, 0.1, None], pa.float64()) == [
        "Infinity", "-Infinity", "NaN", "-0", "0.1", None,
    ]  # fmt: skip
    assert text_of([0.1, 3.4028235e38], pa.float32()) == ["0.1", "3.4028235e+38"]
    assert text_of([decimal.Decimal("-0.50"), decimal.Decimal(0)], pa.decimal128(12, 2)) == ["-0.50", "0.00"]
    assert text_of([decimal.Decimal("1E-10"), decimal.Decimal("-1E-9"), None], pa.decimal128(38, 10)) == [
        "0.0000000001", "-0.0000000010", None,
    ]  # fmt: skip
    assert text_of([decimal.Decimal("0"), decimal.Decimal("1E-76")], pa.decimal256(76, 76)) == [
        "0." + "0" * 76, "0." + "0" * 75 + "1",
    ]  # fmt: skip
    assert text_of([decimal.Decimal("12300"), decimal.Decimal(0)], pa.decimal128(5, -2)) == ["12300", "0"]
    assert text_of([b"", b"a", b"ab", b"abc", b"\xff" * 4, None], pa.binary()) == [
        "", "YQ==", "YWI=", "YWJj", "/////w==", None,
    ]  # fmt: skip
    assert text_of([dt.date(2024, 2, 29)], pa.date32()) == ["2024-02-29"]
    assert text_of([-719_529, 2_932_897, 0], pa.date32()) == ["-0001-12-31", "10000-01-01", "1970-01-01"]
    assert text_of([1, None], pa.time64("us")) == ["00:00:00.000001", None]
    assert text_of([1_000_000], pa.time64("us"), 0) == ["00:00:01"]
    assert text_of([dt.datetime(2024, 2, 29, 12, 0, 0, 1)], pa.timestamp("us")) == ["2024-02-29T12:00:00.000001"]
    assert text_of([dt.datetime(2024, 2, 29, 12)], pa.timestamp("us"), 0) == ["2024-02-29T12:00:00"]
    assert text_of([dt.datetime(2024, 2, 29, 12)], pa.timestamp("us"), 3) == ["2024-02-29T12:00:00.000"]
    assert text_of([dt.datetime(2024, 2, 29, 12, 0, 0, 1)], pa.timestamp("us"), 0) == ["2024-02-29T12:00:00.000001"]
    assert text_of([0], pa.timestamp("us", "UTC")) == ["1970-01-01T00:00:00.000000Z"]
    assert text_of([0], pa.timestamp("us", "Europe/Berlin")) == ["1970-01-01T00:00:00.000000Z"]
    assert text_of([-(838 * 3600 + 59 * 60 + 59) * 1_000_000, 1], pa.duration("us")) == [
        "-838:59:59.000000", "00:00:00.000001",
    ]  # fmt: skip
    assert text_of([(14, 3, 14_706_500_000_000), (0, 0, 0), (-1, 1, -500_000_000)], pa.month_day_nano_interval()) == [
        "P1Y2M3DT4H5M6.5S", "PT0S", "P-1M1DT-0.5S",
    ]  # fmt: skip
    assert text_of([[1, None], [], None], pa.list_(pa.int32())) == ["{1,NULL}", "{}", None]
    assert text_of([["a b", "", "NULL", None, 'q"\\', "{,}", "plain"]], pa.list_(pa.string())) == [
        r'{"a b","","NULL",NULL,"q\"\\","{,}",plain}'
    ]
    assert text_of([[["a"], [], None], None], pa.list_(pa.list_(pa.string()))) == ["{{a},{},NULL}", None]
    assert text_of([None, None], pa.null()) == [None, None]


def test_types_of_the_same_family() -> None:
    def canonical(array: pa.Array) -> tuple[pa.DataType, list[Any]]:
        return canonical_type(array.type), to_text(array, pa.field("x", array.type)).to_pylist()

    assert canonical(pa.array(["a", None, "a"]).dictionary_encode()) == (pa.string(), ["a", None, "a"])
    assert canonical(pa.array(["a"], pa.large_string())) == (pa.string(), ["a"])
    assert canonical(pa.array(["a"], pa.string_view())) == (pa.string(), ["a"])
    assert canonical(pa.array([b"abc"], pa.binary(3))) == (pa.binary(), ["YWJj"])
    assert canonical(pa.array([b"abc"], pa.large_binary())) == (pa.binary(), ["YWJj"])
    assert canonical(pa.array([dt.date(2024, 1, 2)], pa.date64())) == (pa.date32(), ["2024-01-02"])
    assert canonical(pa.array([1], pa.timestamp("s"))) == (pa.timestamp("us"), ["1970-01-01T00:00:01.000000"])
    assert canonical(pa.array([1], pa.timestamp("ns"))) == (pa.timestamp("ns"), ["1970-01-01T00:00:00.000000001"])
    assert canonical(pa.array([1], pa.time32("s"))) == (pa.time64("us"), ["00:00:01.000000"])
    assert canonical(pa.array([1.5], pa.float16())) == (pa.float32(), ["1.5"])
    assert canonical(pa.array([[1, 2], None], pa.list_(pa.int8(), 2))) == (pa.list_(pa.int8()), ["{1,2}", None])
    assert canonical(pa.array([["a"]], pa.large_list(pa.large_string()))) == (pa.list_(pa.string()), ["{a}"])
    assert canonical(pa.array([decimal.Decimal("1.5")], pa.decimal64(3, 1))) == (pa.decimal128(3, 1), ["1.5"])


def test_what_has_no_text() -> None:
    with pytest.raises(DataError, match="struct"):
        to_text(pa.array([{"a": 1}]), pa.field("x", pa.struct([("a", pa.int64())])))
    with pytest.raises(DataError, match="'x'"):
        to_text(pa.array([2**62], pa.timestamp("s")), pa.field("x", pa.timestamp("s")))
    with pytest.raises(DataError, match="no date"):
        to_text(pa.array([-(2**63)], pa.timestamp("us")), pa.field("x", pa.timestamp("us")))


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("INF", pa.float64(), math.inf),
        ("1.0E10", pa.float64(), 1e10),
        ("1E+3", pa.decimal128(38, 2), decimal.Decimal("1000.00")),
        ("1E+3", pa.decimal128(6, 2), decimal.Decimal("1000.00")),
        ("+00000000000000000000000000000000000000012.50000000000", pa.decimal128(4, 1), decimal.Decimal("12.5")),
        ("-0.000000000000000000000000000000000000000000000", pa.decimal128(4, 1), decimal.Decimal("0")),
        (".5", pa.decimal128(38, 1), decimal.Decimal("0.5")),
        ("2024-02-29 12:00:00", pa.timestamp("us"), dt.datetime(2024, 2, 29, 12)),
        ("2024-02-29T12:00:00+01:00", pa.timestamp("us", "UTC"), dt.datetime(2024, 2, 29, 11, tzinfo=dt.UTC)),
        ("12:30", pa.time64("us"), dt.time(12, 30)),
        ("P2W", pa.month_day_nano_interval(), (0, 14, 0)),
        ("PT1.5S", pa.month_day_nano_interval(), (0, 0, 1_500_000_000)),
        ("100:00:00.5", pa.duration("us"), dt.timedelta(hours=100, milliseconds=500)),
        ("Y W J j", pa.binary(), b"abc"),
        ("{null,NULL,\"null\"}", pa.list_(pa.string()), [None, None, "null"]),
        (r'{a\"b,"c\\"}', pa.list_(pa.string()), ['a"b', "c\\"]),
    ],
)  # fmt: skip
def test_other_spellings(text: str, type_: pa.DataType, value: Any) -> None:
    assert from_text(pa.array([text]), type_)[0].as_py() == value


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("300", pa.int8()),
        ("1.5", pa.int32()),
        ("", pa.int32()),
        ("yes", pa.bool_()),
        ("9" * 39, pa.decimal128(38, 0)),
        ("9" * 300, pa.decimal128(38, 0)),
        ("9" * 77, pa.decimal256(76, 0)),
        ("1E50", pa.decimal128(38, 0)),
        ("9" * 36, pa.decimal128(38, 5)),
        ("1.005", pa.decimal128(38, 2)),
        ("1." + "0" * 40 + "5", pa.decimal128(38, 2)),
        ("", pa.decimal128(38, 2)),
        (".", pa.decimal128(38, 37)),
        ("1e", pa.decimal128(38, 37)),
        ("2024-02-30", pa.date32()),
        ("-0001-02-30", pa.date32()),
        ("2024-02-29T25:00:00", pa.timestamp("us")),
        ("2024-02-29T12:00:00.0000001", pa.timestamp("us")),
        ("24:00:01", pa.time64("us")),
        ("1 day", pa.month_day_nano_interval()),
        ("P", pa.month_day_nano_interval()),
        ("PT", pa.month_day_nano_interval()),
        ("P1DT", pa.month_day_nano_interval()),
        ("1:60:00", pa.duration("us")),
        ("99999999999:00:00", pa.duration("us")),
        ("YQ=", pa.binary()),
        ("Y===", pa.binary()),
        ("Y=Q=", pa.binary()),
        ("????", pa.binary()),
        ("", pa.list_(pa.int8())),
        ("{1", pa.list_(pa.int8())),
        ("{1}}", pa.list_(pa.int8())),
        ("{1}{2}", pa.list_(pa.int8())),
        ("{1,}", pa.list_(pa.int8())),
        ("{,}", pa.list_(pa.string())),
        ('{"a}', pa.list_(pa.string())),
        ('{"a"b}', pa.list_(pa.string())),
        ('{a"b"}', pa.list_(pa.string())),
        ("{{1}", pa.list_(pa.list_(pa.int8()))),
        ("x", pa.null()),
    ],
)
def test_what_is_no_such_value(text: str, type_: pa.DataType) -> None:
    good = to_text(pa.nulls(1, type_), pa.field("x", type_))
    with pytest.raises(DataError, match="Row 102, column 'x'") as raised:
        from_text(pa.concat_arrays([good, pa.array([text, text])]), type_, column="x", first_row=101)
    assert raised.value.extra["row"] == 102


@given(st.lists(st.none() | st.binary(max_size=20)))
def test_base64_is_that_of_the_standard_library(values: list[bytes | None]) -> None:
    expected = [None if value is None else base64.b64encode(value).decode() for value in values]
    assert text_of(values, pa.binary()) == expected


@given(st.lists(st.floats(width=64)))
def test_floats_keep_their_bits(values: list[float]) -> None:
    back = from_text(to_text(pa.array(values, pa.float64()), pa.field("x", pa.float64())), pa.float64()).to_pylist()
    for value, restored in zip(values, back, strict=True):
        assert math.isnan(value) == math.isnan(restored)
        assert math.isnan(value) or struct.pack("d", value) == struct.pack("d", restored)


def test_all_days_of_the_type() -> None:
    days = np.unique(np.concatenate([np.arange(-(2**31), 2**31, 99_991), [2**31 - 1]])).astype(np.int32)
    array = pa.array(days).cast(pa.date32())
    assert from_text(to_text(array, pa.field("x", pa.date32())), pa.date32()).equals(array)


INSTANTS = (
    pa.date32(),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", "UTC"),
    *(pa.time32(unit) for unit in ("s", "ms")),
    *(pa.time64(unit) for unit in ("us", "ns")),
)


@pytest.mark.parametrize("type_", INSTANTS, ids=str)
@given(data=st.data())
def test_many_instants_are_written_as_few_are(type_: pa.DataType, data: st.DataObject) -> None:
    per_second = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[getattr(type_, "unit", "s")]
    if pa.types.is_date(type_):
        least, most, edges = -30_000, 50_000, [-25_568, -25_567, 47_481, 47_482]
    elif pa.types.is_time(type_):
        least, most, edges = 0, 86_400 * per_second - 1, [0, 86_400 * per_second - 1]
    else:  # beyond what the tables hold, where a day begins and ends
        least, most = -30_000 * 86_400 * per_second, 50_000 * 86_400 * per_second
        edges = [day * 86_400 * per_second - before for day in (-25_567, 0, 47_482) for before in (0, 1)]
    number = st.none() | st.sampled_from(edges) | st.integers(least, most)
    if data.draw(st.booleans()):
        number = st.integers(0, min(most, 47_481 * 86_400 * per_second)) if not pa.types.is_date(type_) else number
    few = pa.array(data.draw(st.lists(number, min_size=1, max_size=20)), pa.int64())
    array = few.cast(pa.int32() if type_.bit_width == 32 else pa.int64()).view(type_)
    field = pa.field("x", type_)
    many = pa.concat_arrays([array] * (2 * instants.MANY // len(array) + 1)).slice(data.draw(st.integers(0, 3)))
    text = to_text(many, field)
    text.validate(full=True)
    expected = pa.concat_arrays([to_text(many.slice(at, 500), field) for at in range(0, len(many), 500)])
    assert text.equals(expected)
