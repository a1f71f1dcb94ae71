"""Eight tables over four sources: every ordinary type, keys that match partly, values that sources treat differently.

``x`` holds multiples of a quarter: its sums are exact in any order, the same however a sum is split.
``y`` holds the far ends of a double; it is compared and counted, never summed.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

SOURCES = ("pg", "maria", "lite", "duck")

TEXTS = (
    "", " ", "a", "A", "a ", " a", "ab", "AB", "aB", "b", "e", "é", "E", "É", "e\u0301", "ss", "ß", "a%b", "a_b",
    "a\\b", "it's", 'say "x"', "10", "9", "-1", "0", "1.50", "日本", "Ångström", "NULL", "𝄞",
    "i", "İ", "ı", "tab\tx", "z" * 30,
)  # fmt: skip
CODES = ("a", "A", "a ", "b", "é", "e", "")
LONGS = (0, 1, -1, 7, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63), 10**12, -(10**12), 42)
SHORTS = (0, 1, -1, 2, 3, 3, 5, 100, -100, 32767, -32768)
HUGE = ("0", "-0.000001", "12345678901234567890123456789012.345678", "-99999999999999999999999999999999.999999")
AMOUNTS = (
    "0.00",
    "0.01",
    "-0.01",
    "1.50",
    "1.50",
    "2.00",
    "-2.00",
    "99.99",
    "1234567.89",
    "9999999999.99",
    "-9999999999.99",
)
DATES = (
    date(1000, 1, 1), date(1582, 10, 15), date(1899, 12, 31), date(1969, 12, 31), date(1970, 1, 1), date(2000, 2, 29),
    date(2023, 12, 31), date(2024, 1, 1), date(2024, 2, 29), date(2024, 2, 29), date(2024, 3, 31), date(9999, 12, 31),
)  # fmt: skip
MOMENTS = (
    datetime(1000, 1, 1), datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1970, 1, 1), datetime(2000, 2, 29, 12),
    datetime(2024, 2, 29, 0, 0, 0, 1), datetime(2024, 2, 29), datetime(2024, 3, 31, 2, 30),
    datetime(2024, 12, 31, 23, 59, 59), datetime(9999, 12, 31, 23, 59, 59, 999999),
)  # fmt: skip
FAR = (
    0.1,
    0.30000000000000004,
    -0.1,
    1e15 + 0.5,
    1.7976931348623157e308,
    -1.7976931348623157e308,
    2.2250738585072014e-308,
    1e-9,
    3.0,
    -0.0,
)
BEYOND = (float("inf"), float("-inf"), float("nan"))
"""Only PostgreSQL, DuckDB and Arrow keep these."""

TYPES: dict[str, pa.DataType] = {
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "DOUBLE": pa.float64(),
    "DECIMAL(12,2)": pa.decimal128(12, 2),
    "DECIMAL(38,6)": pa.decimal128(38, 6),
    "VARCHAR": pa.string(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "BOOLEAN": pa.bool_(),
}
_DECLARED: dict[str, dict[str, str]] = {
    "pg": {"DOUBLE": "double precision", "VARCHAR": "text"},
    "maria": {"VARCHAR": "varchar(60)", "TIMESTAMP": "datetime(6)"},
    "lite": {"VARCHAR": "TEXT"},
    "duck": {},
}

COLUMNS = {
    "id": "INTEGER",
    "k": "INTEGER",
    "s": "SMALLINT",
    "big": "BIGINT",
    "x": "DOUBLE",
    "y": "DOUBLE",
    "amt": "DECIMAL(12,2)",
    "huge": "DECIMAL(38,6)",
    "name": "VARCHAR",
    "code": "VARCHAR",
    "d": "DATE",
    "ts": "TIMESTAMP",
    "ok": "BOOLEAN",
}
_SEEN = {("maria", "BOOLEAN"): "TINYINT", ("lite", "INTEGER"): "BIGINT", ("lite", "SMALLINT"): "BIGINT"}


@dataclass(frozen=True)
class Table:
    """``id`` is the primary key of every table; ``keys`` says from what range ``k`` comes. A table or view that stands
    in no source has the empty text for it."""

    source: str
    name: str
    rows: int
    columns: tuple[str, ...]
    keys: tuple[int, int]
    types: Mapping[str, str]

    @property
    def where(self) -> str:
        """Its name in SQL."""
        return f"{self.source}.{self.name}" if self.source else self.name

    @property
    def classic(self) -> str:
        return f"{self.source}_{self.name}" if self.source else self.name

    def type(self, column: str) -> str:
        """DuckDB's type of the column as the federation sees it: MariaDB has no truth values, SQLite one kind of
        integers."""
        actual = self.types.get(column, COLUMNS[column])
        return _SEEN.get((self.source, actual), actual)


def described(source: str, name: str, rows: int, columns: str, keys: tuple[int, int], **types: str) -> Table:
    return Table(source, name, rows, tuple(columns.split()), keys, types)


WIDE = "id k s big x y amt name code d ts ok"
TABLES = (
    described("pg", "item", 40, WIDE, (1, 45)),
    described("pg", "tag", 12, "id k code amt d huge", (0, 9)),
    described("maria", "event", 35, WIDE, (20, 60)),
    described("maria", "sort", 10, "id k code x ts huge", (0, 40), k="BIGINT"),
    described("lite", "note", 30, WIDE, (-5, 30)),
    described("lite", "single", 1, "id k code d ok", (3, 3)),
    described("duck", "gauge", 25, WIDE, (1, 25)),
    described("duck", "nothing", 0, "id k code amt x huge", (0, 0)),
)


def _value(table: Table, column: str, row: int, rng: random.Random) -> Any:
    if column == "id":
        return row + 1
    if table.rows > 1 and rng.random() < 0.12:
        return None
    match column:
        case "k":
            return rng.randint(*table.keys)
        case "s":
            return rng.choice(SHORTS)
        case "big":
            return rng.choice(LONGS)
        case "x":
            return rng.randint(-40, 40) / 4
        case "y":
            return rng.choice(FAR + BEYOND if table.source in ("pg", "duck", "") else FAR)
        case "amt":
            return Decimal(rng.choice(AMOUNTS))
        case "huge":
            return Decimal(rng.choice(HUGE))
        case "name":
            return rng.choice(TEXTS)
        case "code":
            return rng.choice(CODES)
        case "d":
            return rng.choice(DATES) if rng.random() < 0.7 else date(2024, 1, 1) + timedelta(rng.randint(0, 60))
        case "ts":
            return rng.choice(MOMENTS)
        case _:
            return rng.random() < 0.5


def data(table: Table, state: str = "") -> pa.Table:
    """The rows of a table, the same in every run; ``state``: of several tables of the same name."""
    rng = random.Random(f"{table.source}.{table.name}{state}")
    rows = [{column: _value(table, column, row, rng) for column in table.columns} for row in range(table.rows)]
    schema = pa.schema([(column, TYPES[table.types.get(column, COLUMNS[column])]) for column in table.columns])
    return pa.Table.from_pylist(rows, schema)


def create(table: Table) -> str:
    """CREATE TABLE in the dialect of the table's own source."""
    declared = _DECLARED[table.source]
    columns = [
        f"{column} {declared.get(type, type)}{' PRIMARY KEY' if column == 'id' else ''}"
        for column in table.columns
        for type in (table.types.get(column, COLUMNS[column]),)
    ]
    return f"CREATE TABLE {table.name} ({', '.join(columns)})"
