"""Types: what the validator says of a column is what DuckDB says of the Arrow data of that column."""

import contextlib
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dai.streams.stream import Stream
from dqp.algebra.types import arrow_type, duckdb_type, readable, value, width
from dqp.execution.engine import arrow_field

TYPES = [
    pa.bool_(),
    pa.int8(),
    pa.int16(),
    pa.int32(),
    pa.int64(),
    pa.uint8(),
    pa.uint16(),
    pa.uint32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.decimal128(12, 2),
    pa.decimal128(38, 0),
    pa.string(),
    pa.large_string(),
    pa.string_view(),
    pa.binary(),
    pa.binary(16),
    pa.date32(),
    pa.date64(),
    pa.time32("ms"),
    pa.time64("us"),
    pa.timestamp("us"),
    pa.timestamp("s"),
    pa.timestamp("ms"),
    pa.timestamp("ns"),
    pa.timestamp("us", "UTC"),
    pa.timestamp("us", "Europe/Berlin"),
    pa.duration("us"),
    pa.month_day_nano_interval(),
    pa.list_(pa.int32()),
    pa.large_list(pa.string()),
    pa.list_(pa.field("element", pa.list_(pa.decimal128(5, 1)), nullable=False)),
    pa.list_(pa.int32(), 3),
    pa.dictionary(pa.int32(), pa.string()),
    pa.dictionary(pa.int32(), pa.int64()),
    pa.struct([("a", pa.int32()), ('b "c', pa.list_(pa.float64()))]),
    pa.map_(pa.string(), pa.int64()),
    # What DuckDB has not.
    pa.float16(),
    pa.decimal256(50, 2),
    pa.decimal256(20, 2),
    pa.list_(pa.decimal256(50, 2)),
]


@pytest.mark.parametrize("type", TYPES, ids=str)
def test_duckdb_gives_its_own_type_to_what_a_source_delivers(type: pa.DataType) -> None:
    delivered = readable(Stream.of(pa.table({"a": pa.array([None], type)}))).table()
    with contextlib.closing(duckdb.connect()) as connection:
        shown = str(connection.from_arrow(delivered).types[0])
        connection.execute(f"CREATE TABLE t (a {duckdb_type(type)})")
        assert shown == str(connection.table("t").types[0])
        if not pa.types.is_struct(type):
            assert shown == duckdb_type(type)


def test_a_column_that_never_held_a_value_is_text() -> None:
    assert duckdb_type(pa.null()) == "VARCHAR"
    assert duckdb_type("something<new>") == "VARCHAR"


def test_what_duckdb_reads_passes_as_it_is() -> None:
    stream = Stream.of(pa.table({"a": [1], "b": ["x"]}))
    assert readable(stream) is stream


def test_large_decimals_are_exact_as_text() -> None:
    many = Decimal("12345678901234567890123456789012345678901234567.25")
    table = pa.table({"n": pa.array([many, None], pa.decimal256(50, 2)), "i": [1, 2]})
    lists = pa.table({"l": pa.array([[many], None], pa.list_(pa.decimal256(50, 2)))})
    assert readable(Stream.of(table)).table().to_pydict() == {"n": [str(many), None], "i": [1, 2]}
    assert readable(Stream.of(lists)).table().to_pydict() == {"l": [[str(many)], None]}


@pytest.mark.parametrize("type", [t for t in TYPES[:-4] if not pa.types.is_nested(t)], ids=str)
def test_types_and_back(type: pa.DataType) -> None:
    name = duckdb_type(type)
    again = "TIMESTAMP" if name in ("TIMESTAMP_S", "TIMESTAMP_MS") else name
    assert duckdb_type(arrow_type(name)) == again


def test_other_types_in_results() -> None:
    assert arrow_type("HUGEINT") == pa.decimal128(38, 0)
    assert arrow_type("DECIMAL(10,3)[]") == pa.list_(pa.decimal128(10, 3))
    assert arrow_type("STRUCT(a INTEGER)") == arrow_type("UUID") == pa.string()


@pytest.mark.parametrize(
    ("text", "type", "expected"),
    [
        ("12", "INTEGER", 12),
        ("-1.5", "DOUBLE", -1.5),
        ("12.50", "DECIMAL(12,2)", Decimal("12.50")),
        ("2024-02-29", "DATE", date(2024, 2, 29)),
        ("2024-02-29 12:30:00.5", "TIMESTAMP", datetime(2024, 2, 29, 12, 30, 0, 500_000)),
        ("2024-02-29 12:30:00+00", "TIMESTAMP WITH TIME ZONE", datetime(2024, 2, 29, 12, 30, tzinfo=UTC)),
        ("abc", "VARCHAR", "abc"),
        ("t", "BOOLEAN", True),
        (None, "INTEGER", None),
        ("infinity", "DATE", None),
        ("0044-03-15 BC", "DATE", None),
        ("12.5", "INTEGER", None),
        ("NaN", "DECIMAL(5,2)", None),
        ("NaN", "DOUBLE", None),
        ("nothing", "DECIMAL(5,2)", None),
        ("{1,2}", "INTEGER[]", None),
    ],
)
def test_values_of_statistics(text: str | None, type: str, expected: Any) -> None:
    assert value(text, type) == expected


def test_widths() -> None:
    assert width("INTEGER") == 4.0
    assert width("DECIMAL(12,2)") == 16.0
    assert width("BIGINT[]") > width("BIGINT")


def test_long_names_are_not_remembered() -> None:
    """A caller chooses them, up to megabytes each."""
    short, long = (arrow_field(each, "INTEGER")[0] for each in ("a name of this test", "x" * 100_000))
    assert arrow_field("a name of this test", "INTEGER")[0] is short
    assert arrow_field("x" * 100_000, "INTEGER")[0] is not long
    assert (arrow_field("x" * 100_000, "INTEGER")[0], long.name) == (long, "x" * 100_000)
