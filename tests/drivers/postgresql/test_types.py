"""The types of PostgreSQL, of columns and of parameters: the same by every path."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from dai.drivers.postgresql.driver import PostgreSQL
from dai.errors import (
    DataError,
    ParameterError,
    StatementError,
)
from dai.streams.stream import TYPE_NAME
from tests.drivers.statements import execute, table

VALUES: list[tuple[str, pa.DataType, object, str]] = [
    ("true", pa.bool_(), True, "bool"),
    ("(-32768)::int2", pa.int16(), -32768, "int2"),
    ("2147483647", pa.int32(), 2147483647, "int4"),
    ("(-9223372036854775808)::int8", pa.int64(), -(1 << 63), "int8"),
    ("4294967295::oid", pa.uint32(), 4294967295, "oid"),
    ("1.5::real", pa.float32(), 1.5, "float4"),
    ("'-infinity'::float8", pa.float64(), float("-inf"), "float8"),
    ("12345678.90::numeric(12,2)", pa.decimal128(12, 2), Decimal("12345678.90"), "numeric"),
    ("(-0.00000001)::numeric(38,8)", pa.decimal128(38, 8), Decimal("-0.00000001"), "numeric"),
    ("(10::numeric ^ 70)::numeric(76,2)", pa.decimal256(76, 2), Decimal(10) ** 70, "numeric"),
    ("12345::numeric(3,-2)", pa.decimal128(5, 0), Decimal("12300"), "numeric"),
    ("0.00012::numeric(3,5)", pa.decimal128(5, 5), Decimal("0.00012"), "numeric"),
    ("1.10::numeric", pa.string(), "1.10", "numeric"),
    ("1e-20::numeric", pa.string(), "0.00000000000000000001", "numeric"),
    ("1e20::numeric", pa.string(), "100000000000000000000", "numeric"),
    ("'NaN'::numeric", pa.string(), "NaN", "numeric"),
    ("'-Infinity'::numeric", pa.string(), "-Infinity", "numeric"),
    ("E'\\u00e9\\u4e2d\\U0001F600\\n\"<&\\''::text", pa.string(), "é中😀\n\"<&'", "text"),
    ("''::varchar(5)", pa.string(), "", "varchar"),
    ("'a'::char(3)", pa.string(), "a  ", "bpchar"),
    ("'x'::\"char\"", pa.string(), "x", "char"),
    ("'n'::name", pa.string(), "n", "name"),
    ("'\\x0001ff'::bytea", pa.binary(), b"\0\1\xff", "bytea"),
    ("date '2024-02-29'", pa.date32(), dt.date(2024, 2, 29), "date"),
    ("time '23:59:59.999999'", pa.time64("us"), dt.time(23, 59, 59, 999999), "time"),
    ("timestamp '1969-12-31 23:59:59.999999'", pa.timestamp("us"), dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
     "timestamp"),
    ("timestamptz '2024-01-01 00:00+02'", pa.timestamp("us", "UTC"), dt.datetime(2023, 12, 31, 22, tzinfo=dt.UTC),
     "timestamptz"),
    ("timetz '10:00+02'", pa.string(), "10:00:00+02", "timetz"),
    ("interval '1 month -2 days 3.5 seconds'", pa.month_day_nano_interval(),
     pa.MonthDayNano([1, -2, 3_500_000_000]), "interval"),
    ("'c2d29867-3d0b-d497-9191-18a9d8ee7830'::uuid", pa.string(), "c2d29867-3d0b-d497-9191-18a9d8ee7830", "uuid"),
    ("'{\"a\": 1}'::json", pa.string(), '{"a": 1}', "json"),
    ("'{\"b\":1,\"a\":2}'::jsonb", pa.string(), '{"a": 2, "b": 1}', "jsonb"),
    ("xmlelement(name a)", pa.string(), "<a/>", "xml"),
    ("inet '10.1.2.3'", pa.string(), "10.1.2.3", "inet"),
    ("cidr '10.1.0.0/16'", pa.string(), "10.1.0.0/16", "cidr"),
    ("macaddr '08:00:2b:01:02:03'", pa.string(), "08:00:2b:01:02:03", "macaddr"),
    ("B'101'", pa.string(), "101", "bit"),
    ("int4range(1, 5)", pa.string(), "[1,5)", "int4range"),
    ("point(1, 2)", pa.string(), "(1,2)", "point"),
    ("to_tsvector('simple', 'a b')", pa.string(), "'a':1 'b':2", "tsvector"),
    ("row(1, 'a b')", pa.string(), '(1,"a b")', "record"),
    ("'pg_class'::regclass", pa.string(), "pg_class", "regclass"),
    ("'happy'::mood", pa.string(), "happy", "mood"),
    ("7::positive", pa.int32(), 7, "int4"),
    ("'(1,x)'::pair", pa.string(), "(1,x)", "pair"),
    ("array[1, NULL, 3]", pa.list_(pa.int32()), [1, None, 3], "int4[]"),
    ("'{}'::text[]", pa.list_(pa.string()), [], "text[]"),
    ("array['a\"b', NULL, '']", pa.list_(pa.string()), ['a"b', None, ""], "text[]"),
    ("array[1.50]::numeric(5,2)[]", pa.list_(pa.decimal128(5, 2)), [Decimal("1.50")], "numeric[]"),
    ("array[date '2000-01-01']", pa.list_(pa.date32()), [dt.date(2000, 1, 1)], "date[]"),
    ("array['happy'::mood]", pa.list_(pa.string()), ["happy"], "mood[]"),
    ("array[inet '1.2.3.4']", pa.list_(pa.string()), ["1.2.3.4"], "inet[]"),
    ("array['{}'::jsonb]", pa.list_(pa.string()), ["{}"], "jsonb[]"),
    ("array['c2d29867-3d0b-d497-9191-18a9d8ee7830'::uuid]", pa.list_(pa.string()),
     ["c2d29867-3d0b-d497-9191-18a9d8ee7830"], "uuid[]"),
    ("array[7::positive]", pa.list_(pa.int32()), [7], "int4[]"),
    ("NULL", pa.string(), None, "text"),
]  # fmt: skip


@pytest.fixture(scope="module")
def types(module_driver: PostgreSQL) -> None:
    execute(
        module_driver,
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        "CREATE TYPE pair AS (a int, b text)",
    )


@pytest.mark.usefixtures("types")
@pytest.mark.parametrize(("sql", "arrow", "value", "name"), VALUES, ids=[each[0] for each in VALUES])
def test_every_type_is_the_same_by_both_paths(
    driver: PostgreSQL, path: str, sql: str, arrow: pa.DataType, value: object, name: str
) -> None:
    actual = table(driver, f"SELECT v.c FROM (SELECT {sql} AS c) AS v, generate_series(1, 2)")
    assert actual.schema.field(0).type == arrow
    assert actual.schema.field(0).metadata[TYPE_NAME] == name.encode()
    assert actual.column(0).to_pylist() == [value, value]


@pytest.mark.usefixtures("types")
@pytest.mark.parametrize("sql", [each[0] for each in VALUES])
def test_null_of_every_type(driver: PostgreSQL, path: str, sql: str) -> None:
    actual = table(driver, f"SELECT CASE WHEN n = 2 THEN {sql} END AS c FROM generate_series(1, 3) AS n")
    assert actual.column(0).is_null().to_pylist()[0::2] == [True, True]


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("'NaN'::numeric(5,2)", "::float8"),
        ("'infinity'::date", "::text"),
        ("'-infinity'::date", "::text"),
        ("'infinity'::timestamp", "::text"),
        ("'-infinity'::timestamptz", "::text"),
        ("'294276-12-31'::timestamp", "::text"),
        ("time '24:00'", "::text"),
        ("interval '200000000 hours'", "::text"),
        ("array[[1,2],[3,4]]", "::text"),
        ("'[0:1]={1,2}'::int[]", "::text"),
        ("array['infinity'::date]", "::text"),
    ],
)
def test_what_arrow_cannot_hold_is_refused_with_a_cast_that_helps(
    driver: PostgreSQL, path: str, sql: str, hint: str
) -> None:
    with pytest.raises(DataError) as refused:
        table(driver, f"SELECT {sql} AS c")
    assert hint in str(refused.value.hint)
    assert table(driver, f"SELECT ({sql})::text AS c").num_rows == 1


def test_dates_before_christ_arrive(driver: PostgreSQL, path: str) -> None:
    actual = table(
        driver,
        "SELECT d, t, d - date '1970-01-01', extract(epoch FROM t)::int8 * 1000000"
        " FROM (SELECT date '0044-03-15 BC' AS d, timestamp '4713-01-01 BC' AS t) AS old",
    )
    assert actual.column(0).cast(pa.int32()).to_pylist() == actual.column(2).to_pylist()
    assert actual.column(1).cast(pa.int64()).to_pylist() == actual.column(3).to_pylist()


PARAMETERS: list[tuple[str, tuple[object, ...], object]] = [
    ("SELECT ?::int + 1", ("41",), 42),
    ("SELECT ? || '?' || 'a' -- ?", ("b%s$1",), "b%s$1?a"),
    ("SELECT ?::text", (None,), None),
    ("SELECT n FROM generate_series(1, 9) AS n WHERE n = ?", (3,), 3),
    ("SELECT n FROM generate_series(1, 9) AS n ORDER BY n LIMIT ?", (1,), 1),
    ("SELECT ?::numeric(10,2)", (Decimal("1.25"),), Decimal("1.25")),
    ("SELECT ?::date", ("2024-01-01",), dt.date(2024, 1, 1)),
    ("SELECT ?::timestamptz", (dt.datetime(2024, 1, 1, tzinfo=dt.UTC),), dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
    ("SELECT ?::bytea", (b"\0'\\",), b"\0'\\"),
    ("SELECT ?::bool", (True,), True),
    ("SELECT ?::int[]", ([1, 2],), [1, 2]),
    ("SELECT '{\"a\": 1}'::jsonb ?? ?", ("a",), True),
    ("SELECT ? || ?", ("x'; drop table t; --", "é"), "x'; drop table t; --é"),
]


@pytest.mark.parametrize(("sql", "values", "expected"), PARAMETERS, ids=[each[0] for each in PARAMETERS])
def test_parameters_are_bound(
    driver: PostgreSQL, path: str, sql: str, values: tuple[object, ...], expected: object
) -> None:
    assert table(driver, sql, *values).column(0).to_pylist() == [expected]


def test_parameters_that_do_not_fit(driver: PostgreSQL, path: str) -> None:
    with pytest.raises(ParameterError):
        table(driver, "SELECT ?", object())
    with pytest.raises(ParameterError):
        table(driver, "SELECT ?, ?", 1)
    with pytest.raises(ParameterError):
        table(driver, "SELECT 1", 1)
    with pytest.raises(StatementError, match="invalid input syntax"):
        table(driver, "SELECT ?::int", "x")
