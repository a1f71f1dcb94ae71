"""The JDK's own reader reads what we write, and we read what its writer writes."""

import datetime as dt
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lxml import etree

from dai.formats import format_named
from dai.formats.webrowset import WebRowSet
from dai.streams.stream import PRECISION, SCHEMA_NAME, TABLE, TYPE_NAME, Stream
from tests.interop.java import java

SCHEMA = etree.XMLSchema(etree.parse(Path(__file__).parents[2] / "schemas" / "webrowset.xsd"))


def written(table: pa.Table, path: Path) -> Path:
    with path.open("wb") as file:
        for block in WebRowSet().encode(Stream.of(table), 1000):
            file.write(memoryview(block.data))
    return path


def read(table: pa.Table, path: Path, *options: str, zone: str = "UTC") -> list[list[Any]]:
    lines = java("ReadWebRowSet", *options, written(table, path), zone=zone).split("\n")
    return [line.split("\x1f") for line in lines if line]


def decoded(path: Path, size: int) -> pa.Table:
    data = path.read_bytes()
    return WebRowSet().decode(data[start : start + size] for start in range(0, len(data), size)).table()


CASES: list[tuple[pa.DataType, str, Any, int, str]] = [
    (pa.bool_(), "bool", True, 16, "true"),
    (pa.int8(), "tinyint", -128, -6, "-128"),
    (pa.int16(), "int2", 32767, 5, "32767"),
    (pa.int32(), "int4", -(2**31), 4, "-2147483648"),
    (pa.int64(), "int8", 2**63 - 1, -5, "9223372036854775807"),
    (pa.uint8(), "tinyint unsigned", 255, 5, "255"),
    (pa.uint16(), "smallint unsigned", 65535, 4, "65535"),
    (pa.uint32(), "int unsigned", 2**32 - 1, -5, "4294967295"),
    (pa.uint64(), "bigint unsigned", 2**64 - 1, 3, "18446744073709551615"),
    (pa.decimal128(12, 2), "numeric", Decimal("-0.50"), 2, "-0.50"),
    (pa.decimal128(38, 10), "numeric", Decimal("1E-10"), 2, "0.0000000001"),
    (pa.decimal256(76, 0), "numeric", Decimal("9" * 76), 2, "9" * 76),
    (pa.float32(), "float4", 0.5, 7, "0.5"),
    (pa.float64(), "float8", math.inf, 8, "Infinity"),
    (pa.float64(), "float8", -math.inf, 8, "-Infinity"),
    (pa.float64(), "float8", math.nan, 8, "NaN"),
    (pa.float64(), "float8", 5e-324, 8, "4.9E-324"),
    (pa.string(), "text", "", 12, ""),
    (pa.string(), "text", " &<>]]>\r\n\té\U0001f600 ", 12, " &<>]]>\r\x1e\té\U0001f600 "),
    (pa.string(), "uuid", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", 12, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    (pa.binary(), "bytea", b"a\x00", -3, b"YQA=".hex()),
    (pa.date32(), "date", dt.date(2024, 2, 29), 91, "1709164800000"),
    (pa.time64("us"), "time", dt.time(1, 2, 3, 4), 12, "01:02:03.000004"),
    (pa.timestamp("us"), "timestamp", dt.datetime(2024, 2, 29, 1, 2, 3, 4), 12, "2024-02-29T01:02:03.000004"),
    (pa.timestamp("us", "UTC"), "timestamptz", dt.datetime(2024, 2, 29, tzinfo=dt.UTC), 12,
     "2024-02-29T00:00:00.000000Z"),
    (pa.duration("us"), "time", dt.timedelta(hours=-838), 12, "-838:00:00.000000"),
    (pa.month_day_nano_interval(), "interval", (14, 3, 10**9), 12, "P1Y2M3DT1S"),
    (pa.list_(pa.string()), "_text", ["a b", None, "c"], 12, '{"a b",NULL,c}'),
]  # fmt: skip


def test_every_type(tmp_path: Path) -> None:
    fields = [pa.field(f"c{n}", type_, metadata={TYPE_NAME: name}) for n, (type_, name, *_) in enumerate(CASES)]
    arrays = [pa.array([value, None], type_) for type_, _, value, *_ in CASES]
    for precision, type_, name, value in (
        ("3", pa.timestamp("us"), "datetime", dt.datetime(1970, 1, 1, 0, 0, 1)),
        ("0", pa.time64("us"), "time", dt.time(0, 0, 1)),
    ):
        fields.append(pa.field("short", type_, metadata={TYPE_NAME: name, PRECISION: precision}))
        arrays.append(pa.array([value, None], type_))
    fields.append(pa.field("nothing", pa.null()))
    arrays.append(pa.nulls(2))
    lines = read(pa.table(arrays, schema=pa.schema(fields)), tmp_path / "every.xml")
    columns, rows = lines[: len(fields)], lines[len(fields) :]
    expected_types = [str(java_type) for *_, java_type, _ in CASES] + ["93", "92", "12"]
    assert [line[:3] for line in columns] == [
        ["column", field.name, type_] for field, type_ in zip(fields, expected_types, strict=True)
    ]
    assert [line[3] for line in columns[:-1]] == [field.metadata[TYPE_NAME].decode() for field in fields[:-1]]
    assert rows[0] == ["row", *(text for *_, text in CASES), "1000", "1000", "\x00"]
    assert rows[1] == ["row", *["\x00"] * len(fields)]
    assert rows[2] == ["rows", "2"]


def test_many_ampersands(tmp_path: Path) -> None:
    rows = 70_000  # the JDK expands 64,000 entities
    table = pa.table({"n": pa.array(range(rows), pa.int32()), "s": pa.array(["a & b"] * rows)})
    characters = sum(len(str(n)) for n in range(rows)) + rows * len("a & b")
    assert read(table, tmp_path / "many.xml", "--count") == [["rows", str(rows), str(characters)]]


def test_no_rows(tmp_path: Path) -> None:
    assert read(pa.table({"n": pa.array([], pa.int32())}), tmp_path / "none.xml")[-1] == ["rows", "0"]


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_document_that_java_changed(tmp_path: Path, size: int) -> None:
    names = ["a", "b", "c", "d", "", "<&>'\"\n"]
    table = pa.table({"id": pa.array(range(1, 7), pa.int32()), "name": names})
    changed = tmp_path / "changed.xml"
    java("WriteWebRowSet", written(table, tmp_path / "original.xml"), changed)
    for markup in ("<emptyString/>", "<updateRow>", "<insertRow>", "<deleteRow>", "<modifyRow>"):
        assert markup in changed.read_text()
    SCHEMA.assertValid(etree.parse(changed))
    rows = decoded(changed, size).to_pydict()
    assert dict(zip(rows["id"], rows["name"], strict=True)) == {
        1: "", 20: None, 100: "new", 101: "newer", 5: "", 6: "<&>'\"\n",
    }  # fmt: skip
    assert len(rows["id"]) == 6


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_every_type_that_java_writes(tmp_path: Path, size: int) -> None:
    path = tmp_path / "types.xml"
    java("WriteWebRowSet", path)
    table = decoded(path, size)
    assert table.schema.names == [f"c{number}" for number in range(1, 21)]
    assert all(field.nullable for field in table.schema)
    rows = sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=lambda row: row[0] is None)
    assert rows == [
        (True, False, -128, 7, -1, 2**60, 1.5, 1.25, 1e300, "1E+3", "-0.50", "c ", "\xe9 <&>'\"\n", "",
         dt.date(2024, 2, 29), dt.time(0, 0, 1), dt.datetime(2024, 2, 29, 0, 0, 0, 500_000), None, None, None),
        (None,) * 20,
    ]  # fmt: skip
    for form in ("parquet", "arrow"):
        assert b"".join(memoryview(block.data) for block in format_named(form).encode(Stream.of(table)))


NAMES = [
    "id<5",
    "a&b",
    "a>b",
    "a]b]c",
    "m[1][2]",
    "]]",
    "two\nlines\nmore",
    "&lt;",
    "<![CDATA[",
    "<data>\n",
    "é<\U0001f600",
]


def test_java_reads_whole_names(tmp_path: Path) -> None:
    names = [*NAMES, "a]]>b"]
    metadata = {TYPE_NAME: "mood<&>", TABLE: "t&[1][2]", SCHEMA_NAME: "<s>"}
    schema = pa.schema([pa.field(name, pa.string(), metadata=metadata) for name in names])
    path = tmp_path / "names.xml"
    lines = read(pa.table([["x"]] * len(names), schema=schema), path)[: len(names)]
    assert [line[1].replace("\x1e", "\n") for line in lines] == [*NAMES, ">b"]
    assert {line[3] for line in lines} == {"mood<&>"}
    SCHEMA.assertValid(etree.parse(path))
    for size in (1, 1 << 20):
        assert decoded(path, size).schema.equals(schema, check_metadata=True)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York", "Asia/Tokyo"])
def test_milliseconds_are_those_of_the_day_in_every_zone(tmp_path: Path, zone: str) -> None:
    """What docs/service.md tells Java users to rely on."""
    days = [dt.date(1500, 1, 1), dt.date(1582, 10, 14), dt.date(2024, 2, 29)]
    rows = read(pa.table({"d": pa.array(days)}), tmp_path / "days.xml", zone=zone)[1:-1]
    assert [dt.date(1970, 1, 1) + dt.timedelta(milliseconds=int(row[1])) for row in rows] == days
