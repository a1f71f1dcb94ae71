"""What pandas and polars get: every type arrives, and what people calculate with is a number."""

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from dai.client.results import frames
from dai.formats import format_named
from dai.streams.stream import TYPE_NAME, Stream
from tests.formats.tables import EVERY_TYPE, every_type

EXACT = pytest.mark.parametrize("exact", [False, True])


def column(array: pa.Array | pa.ChunkedArray, type_name: str) -> pa.Table:
    return pa.table([array], schema=pa.schema([pa.field("x", array.type, metadata={TYPE_NAME: type_name})]))


def polars(table: pa.Table, exact: bool = False) -> pl.Series:
    series: pl.Series = frames.to_polars(lambda: table, exact)["x"]
    return series


def pandas(table: pa.Table, exact: bool = False) -> Any:
    return frames.to_pandas(lambda: table, exact)["x"]


@EXACT
@pytest.mark.parametrize("name", EVERY_TYPE)
def test_every_type_arrives(name: str, exact: bool) -> None:
    chunks = pa.chunked_array([EVERY_TYPE[name].slice(1), EVERY_TYPE[name]])
    for array in (chunks, chunks.slice(1), chunks.slice(0, 0), pa.chunked_array([], chunks.type)):
        table = column(array, name)
        valid = array.is_valid().to_pylist()
        assert polars(table, exact).is_not_null().to_list() == valid
        assert pandas(table, exact).notna().sum() <= sum(valid)


def test_all_types_side_by_side_arrive() -> None:
    table = every_type()
    for frame in (frames.to_polars(lambda: table, False), frames.to_pandas(lambda: table, False)):
        assert frame.shape == table.shape


def test_decimals_that_travel_as_text_are_numbers_unless_asked_for_exactly() -> None:
    texts = pa.array(["1.5", None, "2.5", "-1e1", "Infinity"])
    table = column(texts, "numeric")
    assert polars(table).to_list() == [1.5, None, 2.5, -10.0, float("inf")]
    assert pandas(table).dropna().to_list() == [1.5, 2.5, -10.0, float("inf")]
    assert pandas(column(texts.slice(0, 3), "numeric")).mean() == 2.0
    assert polars(column(pa.array([["0.5", None], [], None]), "numeric[]")).to_list() == [[0.5, None], [], None]
    assert polars(column(pa.array(["123", None]), "bignum")).to_list() == [123.0, None]
    for exact in (polars(table, exact=True).to_list(), pandas(table, exact=True).dropna().to_list()):
        assert [text for text in exact if text is not None] == texts.drop_null().to_pylist()


def test_text_stays_text() -> None:
    for texts, name in ((pa.array(["1", "2"]), "text"), (pa.array(["1", "two"]), "numeric")):
        assert polars(column(texts, name)).to_list() == texts.to_pylist()
        assert pandas(column(texts, name)).to_list() == texts.to_pylist()


def test_intervals_and_long_decimals_in_polars() -> None:
    intervals = pa.array([(14, -3, 1_000), None], pa.month_day_nano_interval())
    structure = {"months": 14, "days": -3, "nanoseconds": 1_000}
    assert polars(column(intervals, "interval")).to_list() == [structure, None]
    lists = pa.array([None, [], [None, (14, -3, 1_000)]], pa.list_(pa.month_day_nano_interval()))
    for cut in range(3):
        got = polars(column(lists.slice(cut), "interval[]")).to_list()
        assert got == [None, [], [None, structure]][cut:]
    nested = pa.StructArray.from_arrays([intervals, pa.array([1, 2])], ["i", "n"], mask=pa.array([False, True]))
    assert polars(column(nested, "struct")).to_list()[0] == {"i": structure, "n": 1}
    long = pa.array([10**50, None, -1], pa.decimal256(60, 0))
    assert polars(column(long, "decimal")).to_list() == [1e50, None, -1.0]
    assert polars(column(long, "decimal"), exact=True).to_list() == [str(10**50), None, "-1"]


def test_a_table_without_columns() -> None:
    assert isinstance(frames.to_pandas(lambda: pa.table({}), False), pd.DataFrame)


def documented() -> list[list[str]]:
    page = (Path(__file__).parents[2] / "docs" / "types.md").read_text()
    lines = page[page.index("\n|") + 1 :].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines][2:]


SAMPLES: list[tuple[str, Any, pa.DataType]] = [
    ("boolean", True, pa.bool_()),
    ("bigint", -12, pa.int64()),
    ("decimal", Decimal("-0.50"), pa.decimal128(10, 2)),
    ("decimal", Decimal("-0.50"), pa.decimal256(50, 2)),
    ("numeric", "-0.50", pa.string()),
    ("real", 0.5, pa.float32()),
    ("double", 0.5, pa.float64()),
    ("text", "text", pa.string()),
    ("bytea", b"\x00\xff", pa.binary()),
    ("date", dt.date(2024, 2, 29), pa.date32()),
    ("time", dt.time(1, 2, 3, 4), pa.time64("us")),
    ("timestamp", dt.datetime(2024, 2, 29, 1, 2, 3, 4), pa.timestamp("us")),
    ("timestamptz", dt.datetime(2024, 2, 29, 1, 2, 3, 4, dt.UTC), pa.timestamp("us", "UTC")),
    ("interval", (14, 3, 10**9), pa.month_day_nano_interval()),
    ("time", dt.timedelta(hours=-838), pa.duration("us")),
    ("int8[]", [1, None], pa.list_(pa.int64())),
    ("jsonb", '{"a": [1, null]}', pa.string()),
]


@pytest.mark.parametrize(("row", "sample"), list(zip(documented(), SAMPLES, strict=True)))
def test_the_table_of_types_is_true(row: list[str], sample: tuple[str, Any, pa.DataType]) -> None:
    name, value, type_ = sample
    table = column(pa.array([value], type_), name)
    text = b"".join(memoryview(block.data) for block in format_named("json").encode(Stream.of(table))).decode()
    exact = {f"`{polars(table, exact).dtype}`" for exact in (False, True)}
    assert row[1] == f"`{type_}`"
    assert row[2].startswith(f"`{pandas(table).dtype}`")
    assert f"`{pandas(table, True).dtype}`" in row[2]
    assert row[3].startswith(f"`{polars(table).dtype}`")
    assert all(each in row[3] for each in exact)
    assert text == f'{{"x":{row[4].strip("`")}}}\n'
