"""What every driver must give for its database's types: (declared type, literals, Arrow type, Python values)."""

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa

from tests.servers.mariadb import MySQLServer

UTC = dt.UTC
MOMENT = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)


@dataclass(frozen=True)
class Case:
    """``literals`` are inserted into a column of ``declared``, with a NULL after them; ``values`` come back."""

    declared: str
    literals: Sequence[str]
    arrow: pa.DataType
    values: Sequence[Any]
    type_name: str | None = None


TEXT = ("'plain'", "''", "'quote '' & < > ümlaut'")
TEXTS = ["plain", "", "quote ' & < > ümlaut"]


def _integers(name: str, arrow: pa.DataType, low: int, high: int) -> Case:
    return Case(name, (str(low), "0", str(high)), arrow, [low, 0, high])


_LONG = "1234567890123456789012345678.1234567890"

CASES: dict[str, tuple[Case, ...]] = {
    "postgresql": (
        _integers("smallint", pa.int16(), -(2**15), 2**15 - 1),
        _integers("integer", pa.int32(), -(2**31), 2**31 - 1),
        _integers("bigint", pa.int64(), -(2**63), 2**63 - 1),
        Case("numeric(38,10)", (_LONG, "-0.0000000001"), pa.decimal128(38, 10), [Decimal(_LONG), Decimal("-1E-10")]),
        Case("real", ("0.1", "'Infinity'"), pa.float32(), [0.10000000149011612, float("inf")]),
        Case("double precision", ("0.1", "'-Infinity'"), pa.float64(), [0.1, float("-inf")]),
        Case("boolean", ("true", "false"), pa.bool_(), [True, False]),
        Case("text", TEXT, pa.string(), TEXTS),
        Case("varchar(40)", TEXT, pa.string(), TEXTS),
        Case("bytea", (r"'\x00ff'", "''"), pa.binary(), [b"\x00\xff", b""]),
        Case("date", ("'0001-01-01'", "'9999-12-31'"), pa.date32(), [dt.date.min, dt.date.max]),
        Case("time", ("'23:59:59.123456'",), pa.time64("us"), [dt.time(23, 59, 59, 123456)]),
        Case("timestamp", (f"'{MOMENT}'",), pa.timestamp("us"), [MOMENT]),
        Case("timestamptz", (f"'{MOMENT}+00'",), pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC)]),
        Case("interval", ("'1 mon 2 days'",), pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 0])]),
        Case(
            "uuid", ("'00000000-0000-0000-0000-00000000000f'",), pa.string(), ["00000000-0000-0000-0000-00000000000f"]
        ),
        Case("integer[]", ("'{1,NULL,3}'", "'{}'"), pa.list_(pa.int32()), [[1, None, 3], []]),
    ),
    "mariadb": (
        _integers("tinyint", pa.int8(), -128, 127),
        _integers("tinyint unsigned", pa.uint8(), 0, 255),
        _integers("smallint", pa.int16(), -(2**15), 2**15 - 1),
        _integers("smallint unsigned", pa.uint16(), 0, 2**16 - 1),
        _integers("mediumint", pa.int32(), -(2**23), 2**23 - 1),
        _integers("int", pa.int32(), -(2**31), 2**31 - 1),
        _integers("int unsigned", pa.uint32(), 0, 2**32 - 1),
        _integers("bigint", pa.int64(), -(2**63), 2**63 - 1),
        _integers("bigint unsigned", pa.uint64(), 0, 2**64 - 1),
        Case("tinyint(1)", ("1", "0", "7"), pa.int8(), [1, 0, 7], "tinyint"),
        Case("int(6) zerofill", ("42",), pa.uint32(), [42]),
        Case("bit(1)", ("b'1'", "b'0'"), pa.uint64(), [1, 0], "bit"),
        Case("bit(10)", ("b'1000000001'",), pa.uint64(), [513]),
        Case("bit(64)", ("b'" + "1" * 64 + "'",), pa.uint64(), [2**64 - 1]),
        Case("decimal(38,10)", (_LONG, "-0.0000000001"), pa.decimal128(38, 10), [Decimal(_LONG), Decimal("-1E-10")]),
        Case(
            "decimal(65,30)", ("9" * 35 + "." + "9" * 30,), pa.decimal256(65, 30), [Decimal("9" * 35 + "." + "9" * 30)]
        ),
        Case("decimal(5,0) unsigned", ("99999",), pa.decimal128(5, 0), [Decimal(99999)], "decimal unsigned"),
        Case("float", ("0.1", "16777216", "1.17549435e-38"), pa.float32(), [0.10000000149011612, 2.0**24, 2.0**-126]),
        Case("float(7,3)", ("1234.567",), pa.float32(), [1234.5670166015625]),
        Case(
            "double", ("0.1", "1.7976931348623157e308", "5e-324"), pa.float64(), [0.1, 1.7976931348623157e308, 5e-324]
        ),
        Case("char(10)", TEXT[:1], pa.string(), TEXTS[:1], "char"),
        Case("varchar(40) character set utf8mb4", ("'𝛼 😀'", "''"), pa.string(), ["𝛼 😀", ""], "varchar"),
        Case("varchar(40) character set latin1", ("'é€'",), pa.string(), ["é€"]),
        Case("varchar(40) collate utf8mb4_bin", TEXT, pa.string(), TEXTS),
        Case("longtext", TEXT, pa.string(), TEXTS, "longtext"),
        Case("json", ("'{\"a\": [1, null]}'",), pa.string(), ['{"a": [1, null]}']),
        Case("enum('a','b')", ("'a'", "'b'"), pa.string(), ["a", "b"], "enum"),
        Case("set('a','b')", ("'a,b'", "''"), pa.string(), ["a,b", ""], "set"),
        Case("binary(3)", ("X'00FF'",), pa.binary(), [b"\x00\xff\x00"]),
        Case("varbinary(9)", ("X'00FF27'", "''"), pa.binary(), [b"\x00\xff'", b""], "varbinary"),
        Case("blob", ("X'00FF'",), pa.binary(), [b"\x00\xff"], "blob"),
        Case("date", ("'1000-01-01'", "'9999-12-31'"), pa.date32(), [dt.date(1000, 1, 1), dt.date.max]),
        Case("year", ("1901", "2155"), pa.int16(), [1901, 2155], "year"),
        Case(
            "time(6)",
            ("'838:59:58.999999'", "'-838:59:58.999999'", "'00:00:00.000001'"),
            pa.duration("us"),
            [
                dt.timedelta(hours=838, minutes=59, seconds=58, microseconds=999999),
                -dt.timedelta(hours=838, minutes=59, seconds=58, microseconds=999999),
                dt.timedelta(microseconds=1),
            ],
        ),
        Case("datetime(6)", (f"'{MOMENT}'",), pa.timestamp("us"), [MOMENT], "datetime"),
        Case("datetime", ("'2024-02-29 01:02:03'",), pa.timestamp("us"), [dt.datetime(2024, 2, 29, 1, 2, 3)]),
        Case(
            "timestamp(6) null", (f"'{MOMENT}'",), pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC)], "timestamp"
        ),
        Case(
            "uuid", ("'00000000-0000-0000-0000-00000000000f'",), pa.string(), ["00000000-0000-0000-0000-00000000000f"]
        ),
        Case("inet6", ("'::1'",), pa.string(), ["::1"]),
    ),
    "sqlite": (
        _integers("integer", pa.int64(), -(2**63), 2**63 - 1),
        _integers("bigint", pa.int64(), -(2**63), 2**63 - 1),
        Case("boolean", ("1", "0"), pa.bool_(), [True, False], "boolean"),
        Case("real", ("0.1", "9e999", "-9e999"), pa.float64(), [0.1, float("inf"), float("-inf")], "real"),
        Case(
            "decimal(10,2)",
            ("1.5", "-0.01", "3"),
            pa.decimal128(10, 2),
            [Decimal("1.50"), Decimal("-0.01"), Decimal(3)],
        ),
        Case("decimal_text(38,10)", (f"'{_LONG}'",), pa.decimal128(38, 10), [Decimal(_LONG)], "decimal"),
        Case("varchar(40)", TEXT, pa.string(), TEXTS, "varchar"),
        Case("text", ("char(97,0,98)", "'😀'"), pa.string(), ["a\0b", "😀"]),
        Case("blob", ("X'00FF'", "X''"), pa.binary(), [b"\x00\xff", b""], "blob"),
        Case("date", ("'0001-01-01'", "'9999-12-31'"), pa.date32(), [dt.date.min, dt.date.max], "date"),
        Case("time", ("'23:59:59.123456'", "'01:02'"), pa.time64("us"), [dt.time(23, 59, 59, 123456), dt.time(1, 2)]),
        Case("timestamp", (f"'{MOMENT}'",), pa.timestamp("us"), [MOMENT], "timestamp"),
        Case("datetime", ("'2024-02-29T01:02:03'",), pa.timestamp("us"), [dt.datetime(2024, 2, 29, 1, 2, 3)]),
        Case("timestamptz", (f"'{MOMENT}+00:00'",), pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC)]),
        Case("date", ("2459000",), pa.int64(), [2459000], "integer"),
        Case("", ("1", "2"), pa.int64(), [1, 2], "integer"),
        Case("", ("1", "2.5"), pa.float64(), [1.0, 2.5], "real"),
        Case("", ("'x'",), pa.string(), ["x"], "text"),
    ),
    "duckdb": (
        _integers("tinyint", pa.int8(), -128, 127),
        _integers("smallint", pa.int16(), -(2**15), 2**15 - 1),
        _integers("integer", pa.int32(), -(2**31), 2**31 - 1),
        _integers("bigint", pa.int64(), -(2**63), 2**63 - 1),
        _integers("utinyint", pa.uint8(), 0, 255),
        _integers("usmallint", pa.uint16(), 0, 2**16 - 1),
        _integers("uinteger", pa.uint32(), 0, 2**32 - 1),
        _integers("ubigint", pa.uint64(), 0, 2**64 - 1),
        Case("hugeint", ("9" * 38, "-" + "9" * 38), pa.decimal128(38, 0), [Decimal("9" * 38), Decimal("-" + "9" * 38)]),
        Case("uhugeint", ("9" * 38,), pa.decimal128(38, 0), [Decimal("9" * 38)], "uhugeint"),
        Case("decimal(38,10)", (_LONG, "-0.0000000001"), pa.decimal128(38, 10), [Decimal(_LONG), Decimal("-1E-10")]),
        Case("float", ("0.1", "'inf'"), pa.float32(), [0.10000000149011612, float("inf")], "float"),
        Case("double", ("0.1", "'-inf'"), pa.float64(), [0.1, float("-inf")], "double"),
        Case("boolean", ("true", "false"), pa.bool_(), [True, False], "boolean"),
        Case("varchar", (*TEXT, "'a' || chr(0) || 'b'"), pa.string(), [*TEXTS, "a\0b"], "varchar"),
        Case("blob", (r"'\x00\xFF'", "''"), pa.binary(), [b"\x00\xff", b""], "blob"),
        Case("date", ("'0001-01-01'", "'9999-12-31'"), pa.date32(), [dt.date.min, dt.date.max], "date"),
        Case("time", ("'23:59:59.123456'",), pa.time64("us"), [dt.time(23, 59, 59, 123456)], "time"),
        Case("timetz", ("'01:02:03+02'",), pa.string(), ["01:02:03+02"], "time with time zone"),
        Case("timestamp", (f"'{MOMENT}'",), pa.timestamp("us"), [MOMENT], "timestamp"),
        Case("timestamp_s", ("'2024-02-29 01:02:03'",), pa.timestamp("us"), [dt.datetime(2024, 2, 29, 1, 2, 3)]),
        Case("timestamp_ms", ("'2024-02-29 01:02:03'",), pa.timestamp("us"), [dt.datetime(2024, 2, 29, 1, 2, 3)]),
        Case("timestamptz", (f"'{MOMENT}+00'",), pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC)]),
        Case("interval", ("'1 month 2 days'",), pa.month_day_nano_interval(), [pa.MonthDayNano([1, 2, 0])], "interval"),
        Case(
            "uuid", ("'00000000-0000-0000-0000-00000000000f'",), pa.string(), ["00000000-0000-0000-0000-00000000000f"]
        ),
        Case("json", ("'{\"a\": [1, null]}'",), pa.string(), ['{"a": [1, null]}'], "json"),
        Case("bit", ("'0101'",), pa.string(), ["0101"], "bit"),
        Case("enum('a','b')", ("'a'", "'b'"), pa.string(), ["a", "b"], "enum"),
        Case("integer[]", ("[1,NULL,3]", "[]"), pa.list_(pa.int32()), [[1, None, 3], []], "integer[]"),
        Case("integer[2]", ("[1,NULL]",), pa.list_(pa.int32()), [[1, None]], "integer[2]"),
        Case("hugeint[]", ("[1]",), pa.list_(pa.decimal128(38, 0)), [[Decimal(1)]]),
        Case(
            "struct(a date, b varchar)",
            ("{'a': '2024-01-01', 'b': 'x'}",),
            pa.string(),
            ['{"a":"2024-01-01","b":"x"}'],
            "struct",
        ),
        Case("map(varchar, integer)", ("map {'k': 1}",), pa.string(), ['{"k":1}'], "map"),
    ),
}

PARAMETERS: dict[str, tuple[Any, ...]] = {
    "postgresql": (
        "it's 😀", "", 5, -(2**63), 0.1, True, b"\0\xff", dt.date(2024, 2, 29), dt.time(1, 2, 3, 4), MOMENT,
    ),
    "mariadb": (
        "it's \\ 😀", "", 5, -(2**63), 2**64 - 1, 0.1, 1e300, Decimal("12.50"), b"\0\xff'",
    ),
    "sqlite": ("it's 😀", "a\0b", 5, -(2**63), 0.1, 1e300, b"\0\xff"),
    "duckdb": (
        "it's 😀", "", 5, -(2**63), 0.1, Decimal("12.50"), True, b"\0\xff", dt.date(2024, 2, 29), dt.time(1, 2, 3, 4),
        MOMENT, [1, 2, 3],
    ),
}  # fmt: skip
"""Values that come back as they went in."""

if MySQLServer.found():
    CASES["mysql"] = tuple(each for each in CASES["mariadb"] if each.declared not in ("uuid", "inet6"))
    # Where nothing else says what a parameter is, MySQL takes it for text: bytes need CAST(? AS BINARY).
    PARAMETERS["mysql"] = PARAMETERS["mariadb"][:-1]

_EVERYWHERE: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int64": (pa.int64(), [-(2**63), 2**63 - 1]),
    "float64": (pa.float64(), [0.1, -1e300]),
    "string": (pa.string(), ["it's \\ & \n 😀", ""]),
    "large_string": (pa.large_string(), ["x", ""]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["x", "x"]),
    "binary": (pa.binary(), [b"\0\xff'\\", b""]),
    "decimal": (pa.decimal128(12, 3), [Decimal("123456789.123"), Decimal("-0.001")]),
    "long_decimal": (pa.decimal128(38, 10), [Decimal(_LONG), Decimal("-1E-10")]),
    "date": (pa.date32(), [dt.date(1600, 2, 29), dt.date.max]),
    "timestamp": (pa.timestamp("us"), [MOMENT, dt.datetime(1970, 1, 1, 0, 0, 0, 1)]),
    "timestamp_tz": (pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC), dt.datetime(1999, 1, 1, tzinfo=UTC)]),
    "bool": (pa.bool_(), [True, False]),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1]),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1]),
    "uint32": (pa.uint32(), [0, 2**32 - 1]),
    "uint64": (pa.uint64(), [0, 2**64 - 1]),
    "float32": (pa.float32(), [0.5, 0.10000000149011612]),
    "time": (pa.time64("us"), [dt.time(23, 59, 59, 123456), dt.time(0)]),
    "nothing": (pa.null(), [None, None]),
}
_OTHERWISE: dict[str, dict[str, pa.DataType]] = {
    "postgresql": {"uint32": pa.int64(), "uint64": pa.decimal128(20, 0), "nothing": pa.string()},
    "mariadb": {"bool": pa.int8(), "time": pa.duration("us"), "nothing": pa.string()},
    "mysql": {"bool": pa.int8(), "time": pa.duration("us"), "nothing": pa.string()},
    "sqlite": {
        "int16": pa.int64(), "int32": pa.int64(), "uint32": pa.int64(), "uint64": pa.decimal128(20, 0),
        "float32": pa.float64(), "nothing": pa.string(),
    },
    "duckdb": {"nothing": pa.string()},
}  # fmt: skip


def loaded(database: str) -> list[tuple[str, pa.DataType, pa.DataType, list[Any]]]:
    """Name, type sent, type that comes back, values."""
    actual = []
    for name, (sent, values) in _EVERYWHERE.items():
        plain = pa.string() if pa.types.is_dictionary(sent) or pa.types.is_large_string(sent) else sent
        actual.append((name, sent, _OTHERWISE[database].get(name, plain), values))
    return actual


def every_type(product: str) -> list[str]:
    """Statements that make the table: each literal of each type once, and a row of NULLs."""
    cases = CASES[product]
    columns = ", ".join(f"c{number} {case.declared}" for number, case in enumerate(cases))
    rows = max(len(case.literals) for case in cases)
    values = [
        ", ".join(case.literals[row] if row < len(case.literals) else "NULL" for case in cases) for row in range(rows)
    ]
    values.append(", ".join(["NULL"] * len(cases)))
    listed = ", ".join(f"({number}, {row})" for number, row in enumerate(values))
    return [f"create table every_type (id integer primary key, {columns})", f"insert into every_type values {listed}"]


FURTHER: dict[str, tuple[str, ...]] = {
    "postgresql": (
        "numeric", "numeric(50,2)", "numeric(5,-2)", "numeric(3,5)", "numeric[]", "numeric(10,2)[]", "price", "price[]",
        "cheap", "cheap[]", "amount", "amount[]", "whole", "whole[]", "short", "mood", "mood[]", "pair", "char(5)",
        '"char"', "name", "json", "jsonb", "oid", "oid[]", "inet", "inet[]", "money", "bit(5)", "point", "int4range",
        "xml", "timestamp(3)", "time(2)", "timetz", "text[]", "uuid[]", "regclass",
    ),
    "mariadb": (
        "decimal", "decimal(65,0)", "decimal(10,2) unsigned zerofill", "real", "double(10,2)", "double unsigned",
        "boolean", "mediumint unsigned", "tinytext", "mediumtext", "text character set latin1", "char(0)", "nchar(5)",
        "varchar(40) character set binary", "tinyblob", "mediumblob", "longblob", "point", "bit(3)", "time",
        "timestamp null",
    ),
    "sqlite": (
        "numeric", "num", "decimal", "datetime", "date", "json", "uuid", "text", "real", "blob", "boolean", "double",
        "timestamptz", "float", "decimal(50,2)", "integer", "any thing",
    ),
    "duckdb": (
        "decimal(5,2)", "decimal(10,2)[]", "timestamp_s", "timestamp_ms", "timestamp_ns", "timetz", "interval[]",
        "struct(a int)[]", "union(a int, b varchar)", "varchar[][]", "hugeint[2]", "date[]", "uuid[]", "json[]", "mood",
    ),
}  # fmt: skip
"""More types that columns may be declared with."""
PREPARED: dict[str, tuple[str, ...]] = {
    "postgresql": (
        "CREATE DOMAIN price AS numeric(10,2)", "CREATE DOMAIN cheap AS price CHECK (value < 5)",
        "CREATE DOMAIN amount AS numeric", "CREATE DOMAIN whole AS integer", "CREATE DOMAIN short AS varchar(5)",
        "CREATE TYPE mood AS ENUM ('a', 'b')", "CREATE TYPE pair AS (a integer, b integer)",
    ),
    "duckdb": ("CREATE TYPE mood AS ENUM ('a', 'b')",),
}  # fmt: skip
COMPUTED: dict[str, tuple[str, ...]] = {
    "postgresql": (
        "count(*)", "sum(n)", "avg(n)", "max(n)", "min(n) / 2", "min(n) * 1.5", "max('x' || n)", "max(n::price)",
        "array_agg(n)", "max(n) > 1", "now()", "NULL",
    ),
    "mariadb": (
        "count(*)", "sum(n)", "avg(n)", "max(n)", "min(n) / 2", "min(n) * 1.5", "min(n) + 1e0", "max(n) > 1",
        "max(concat('x', n))", "min(cast(n AS decimal(50,3)))", "min(cast(n AS unsigned))", "now()", "curdate()",
        "curtime(6)", "max(if(n, 1, 1.5))", "max(json_array(n))", "group_concat(n)", "max(left('abc', 2))", "1", "1.50",
        "max(coalesce(n, 'x'))", "X'00ff'", "'x'", "max(greatest(n, 2.25))",
    ),
    "sqlite": (
        "count(*)", "sum(n)", "avg(n)", "max(n)", "min(n) / 2", "min(n) * 1.5", "max('x' || n)", "max(cast(n AS real))",
        "max(n) > 1", "cast(max(n) AS numeric)", "NULL", "date('now')", "x'00ff'", "'x'", "1.5", "max(n) IS NULL",
    ),
    "duckdb": (
        "count(*)", "sum(n)", "avg(n)", "max(n)", "min(n) / 2", "min(n) * 1.5", "max('x' || n)", "list(n)",
        "max(n) > 1", "now()", "NULL", "{'a': max(n)}", "sum(n::decimal(10,2))",
    ),
}  # fmt: skip
"""Columns of a view of the numbers ``n``, and of a table that is made from it."""
for _each in (FURTHER, PREPARED, COMPUTED):
    _each["mysql"] = _each.get("mariadb", ())
