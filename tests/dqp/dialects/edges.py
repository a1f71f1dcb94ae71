"""A table of edge values in every database, and what DuckDB makes of it.

Each kind of value has two columns, ``KIND_x`` and ``KIND_y``, which hold the same values in different orders, and ``g``
makes groups. What a driver delivers of the whole table is the truth that DuckDB computes from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import time
from functools import cache, cached_property, partial
from typing import Any

import duckdb
import pyarrow as pa
from sqlglot import exp, parse_one

from dai.drivers import Driver, driver_for
from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import Aggregate, Inline, Operator, Project, Scan, column
from dqp.algebra.table import Table
from dqp.algebra.trees import walk
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from dqp.settings import FederationSettings
from dqp.sql import dialects
from dqp.sql.render_duckdb import duckdb_sql

ROWS = 36
_WHOLE = {
    "tinyint": 8,
    "smallint": 16,
    "integer": 32,
    "bigint": 64,
}
_NUMBERS: dict[str, list[str]] = {
    name: ["NULL", "0", "1", "-1", "5", "7", str(2 ** (bits - 1) - 1), str(-(2 ** (bits - 1)))]
    for name, bits in _WHOLE.items()
}
_NUMBERS["bigint"] += ["9007199254740993", "10000000000", "4611686018427387904"]
_NUMBERS |= {f"u{name}": ["NULL", "0", "1", "5", "7", str(2**bits - 1)] for name, bits in _WHOLE.items()}
_TEXTS = [
    "NULL", "", "a", "A", "á", "Á", "a ", " a", "aB", "o'x", "b\\c", "100%", "a_b", "ß", "ss", "é", "e\u0301", "日本",
    "👍🏽x", "Brand#23", "z", "Z", "\t", "a\nb", "ab", "a?*[b]", "x" * 300, "0", "1994-01-01", "|", "a|b", "Ａ",
]  # fmt: skip
_LETTERS = ["z", "a", "b", "o'x", "100%", ""]
_LISTED = ", ".join("'" + each.replace("'", "''") + "'" for each in _LETTERS)
_DATES = "NULL 1969-12-31 1970-01-01 2000-02-29 1900-02-28 0001-01-01 9999-12-31 2024-12-31 1994-01-01".split()
_MOMENTS = [
    "NULL", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00", "2000-02-29 12:30:00.5", "1994-01-01 00:00:00",
    "0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "2024-12-31 23:00:00.000001",
]  # fmt: skip
_DOUBLES = "NULL 0.0 -0.0 1.5 -1.5 1e300 -1e300 1e-300 0.1 9007199254740992 0.30000000000000004 5".split()
_DECIMALS = "NULL 0.00 0.01 -0.01 1.00 0.05 0.07 123.45 9999999999999.99 -9999999999999.99 1000000.00".split()
VALUES: dict[str, list[str]] = {
    **_NUMBERS,
    "boolean": ["NULL", "true", "false"],
    "decimal": _DECIMALS,
    "float": ["NULL", "0.0", "1.5", "-1.5", "0.1", "16777216"],
    "double": _DOUBLES,
    "varchar": _TEXTS,
    "date": _DATES,
    "timestamp": _MOMENTS,
    "blob": ["NULL", "", "a", "A", "é\\"],
    "time": ["NULL", "00:00:00", "23:59:59.999999", "12:30:00"],
    "timestamptz": [
        each if each == "NULL" else f"{each}Z" for each in _MOMENTS if each == "NULL" or "1970-01-02" < each < "2038"
    ],
    "uuid": [
        "NULL",
        "00000000-0000-0000-0000-000000000000",
        "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
        "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ],
    "char": ["NULL", "", "a", "A", "a ", "ab", "á", "Á", "o'x", "b\\c", "100%", "日本"],
    "enum": ["NULL", *_LETTERS],
    "inet": ["NULL", "10.0.0.1", "10.0.0.0/8", "9.255.0.1", "::1", "fe80::/10"],
}
_BEYOND = {"postgresql": {"double": ["NaN", "inf", "-inf"]}, "duckdb": {"double": ["NaN", "inf", "-inf"]}}
TYPES: dict[str, dict[str, str]] = {
    "postgresql": {
        "boolean": "boolean", "smallint": "smallint", "integer": "integer", "bigint": "bigint",
        "decimal": "numeric(15,2)", "float": "real", "double": "double precision", "varchar": "varchar(400)",
        "date": "date", "timestamp": "timestamp", "time": "time", "timestamptz": "timestamptz", "uuid": "uuid",
        "char": "char(5)", "enum": "letter", "inet": "inet",
    },
    "mariadb": {
        "tinyint": "tinyint", "smallint": "smallint", "integer": "int", "bigint": "bigint",
        "utinyint": "tinyint unsigned", "usmallint": "smallint unsigned", "uinteger": "int unsigned",
        "ubigint": "bigint unsigned", "decimal": "decimal(15,2)", "double": "double", "varchar": "varchar(400)",
        "date": "date", "timestamp": "datetime(6)", "timestamptz": "timestamp(6) null", "char": "char(5)",
        "enum": f"enum({_LISTED})",
    },
    "sqlite": {
        "boolean": "boolean", "bigint": "integer", "double": "double", "varchar": "varchar(400)", "date": "date",
    },
    "duckdb": {name: name for name in VALUES if name not in ("char", "uuid", "enum", "inet")}
              | {"decimal": "decimal(15,2)"},
}  # fmt: skip
"""By dialect: the kinds that it has, and how a column is declared."""
TYPES["mysql"] = TYPES["mariadb"]
_MADE = {
    "boolean": "{} > 0",
    "bounded": "cast({} as double)",
    "integer": "case when {0} > 0 then 5 when {0} < 0 then -2147483648 end",
}
_ADAPTERS = {"boolean": lambda text: text == "true", "double": float, "float": float, "time": time.fromisoformat}


def kinds(dialect: str) -> list[str]:
    return list(TYPES[dialect])


def values(dialect: str, kind: str) -> list[Any]:
    texts = VALUES[kind] + _BEYOND.get(dialect, {}).get(kind, [])
    if kind in _NUMBERS:
        return [None if each == "NULL" else int(each) for each in texts]
    adapt = _ADAPTERS.get(kind, str)
    return [None if each == "NULL" else adapt(each) for each in texts]


_ARROW = {
    "boolean": pa.bool_(),
    "float": pa.float32(),
    "double": pa.float64(),
    **{f"{sign}{name}": getattr(pa, f"{sign}int{bits}")() for name, bits in _WHOLE.items() for sign in ("", "u")},
}
_CAST = {
    "blob": pa.binary(),
    "time": pa.time64("us"),
    "decimal": pa.decimal128(15, 2),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
}


def content(dialect: str) -> pa.Table:
    columns: dict[str, pa.Array] = {
        "id": pa.array(range(ROWS), pa.int64()),
        "g": pa.array([n % 3 for n in range(ROWS)]),
    }
    for kind in kinds(dialect):
        known = values(dialect, kind)
        for name, step, start in (("x", 1, 0), ("y", 7, 3)):
            table = pa.array([known[(n * step + start) % len(known)] for n in range(ROWS)], _ARROW.get(kind))
            columns[f"{kind}_{name}"] = table.cast(_CAST[kind]) if kind in _CAST else table
    return pa.table(columns)


@dataclass(frozen=True)
class Edge:
    """A database with the table ``edge``, and DuckDB with the same rows in ``"src"."edge"``."""

    dialect: str
    driver: Driver
    catalog: Catalog
    reference: duckdb.DuckDBPyConnection
    answers: dict[str, tuple[list[tuple[str, str]], pa.Table | None]] = field(default_factory=dict)
    """Of DuckDB, with their types, by the statement: the same is expected several times."""

    @cached_property
    def table(self) -> Table:
        return self.catalog.table("src", "edge")

    def scan(self, prefix: str = "", only: Collection[str] = ()) -> Scan:
        """Identifiers are the names of the columns behind ``prefix``; of all, or of those that are named."""
        columns = [each.name for each in self.table.columns if not only or each.name in only]
        return Scan(self.table, tuple((prefix + each, each) for each in columns))

    def source(self, kind: str, *texts: str) -> Operator:
        """The table with two columns of the kind, which are made from others where the database has no such type,
        with ``id`` and ``g`` and what else the texts name."""
        of = kind if kind in kinds(self.dialect) else "bigint"
        named = {each.name for text in texts for each in expression(text).find_all(exp.Column)}
        whole = self.scan(only={"id", "g", f"{of}_x", f"{of}_y", *named})
        if of == kind:
            return whole
        if kind == "hugeint":
            keys = tuple((each, column(each)) for each in ("id", "g"))
            return Aggregate(whole, keys, tuple((f"hugeint_{one}", expression(f"sum(bigint_{one})")) for one in "xy"))
        made = tuple((f"{kind}_{one}", expression(_MADE[kind].format(f"bigint_{one}"))) for one in "xy")
        return Project(whole, (*((each, column(each)) for each in whole.columns), *made))

    def expected(self, tree: Operator) -> pa.Table | None:
        """None where DuckDB raises an error."""
        return self.answer(tree)[1]

    def answer(self, tree: Operator) -> tuple[list[tuple[str, str]], pa.Table | None]:
        """Names and types, and what is expected."""
        sql = duckdb_sql(tree)
        if any(isinstance(each, Inline) for each in walk(tree)):  # the same text, other rows
            return self._answer(sql)
        if sql not in self.answers:
            self.answers[sql] = self._answer(sql)
        return self.answers[sql]

    def _answer(self, sql: str) -> tuple[list[tuple[str, str]], pa.Table | None]:
        relation = self.reference.sql(sql)
        types = [(name, str(type)) for name, type in zip(relation.columns, relation.types, strict=True)]
        try:
            return types, relation.to_arrow_table()
        except (duckdb.OutOfRangeException, duckdb.InvalidInputException, duckdb.ConversionException):
            return types, None

    def types(self, tree: Operator) -> list[tuple[str, str]]:
        return self.answer(tree)[0]

    def pushed(self, statement: dialects.Statement) -> pa.Table | None:
        """What the source gives, in DuckDB's types; None where it, or the cast, raises an error."""
        try:
            stream = DriverSource("src", self.driver, own=False).query(
                statement.sql, statement.parameters, cancellation=Cancellation()
            )
            arrived = stream.table()  # noqa: F841 - DuckDB reads it by its name
            columns = ", ".join(f'CAST("{name}" AS {type}) AS "{name}"' for name, type in statement.columns)
            return self.reference.sql(f"SELECT {columns} FROM arrived").to_arrow_table()
        except (DaiError, duckdb.ConversionException, duckdb.OutOfRangeException):
            return None


def edge(dialect: str, url: str) -> Edge:
    driver = driver_for(url)
    declared = ", ".join(f"{kind}_{name} {type}" for kind, type in TYPES[dialect].items() for name in "xy")
    if dialect == "postgresql":
        driver.update(f"CREATE TYPE letter AS ENUM ({_LISTED})", cancellation=Cancellation())
    driver.update(f"CREATE TABLE edge (id bigint NOT NULL, g bigint, {declared})", cancellation=Cancellation())
    made = content(dialect)
    driver.load("edge", Stream(made.schema, iter(made.to_batches())), cancellation=Cancellation())
    if dialect == "postgresql":
        driver.update("UPDATE edge SET date_x = '0044-03-15 BC' WHERE id = 20", cancellation=Cancellation())
        driver.update("UPDATE edge SET timestamp_x = '0044-03-15 10:00 BC' WHERE id = 21", cancellation=Cancellation())
    source = DriverSource("src", driver)
    catalog = Catalog(FederationSettings(), sources=[source])
    reference = duckdb.connect(config={"threads": 1})  # for a few rows
    reference.execute("SET TimeZone = 'UTC'")
    whole = source.query("SELECT * FROM edge", cancellation=Cancellation()).table()  # noqa: F841
    reference.execute("CREATE SCHEMA src; CREATE TABLE src.edge AS FROM whole ORDER BY id")
    return Edge(dialect, driver, catalog, reference)


@cache
def expression(text: str) -> exp.Expression:
    """DuckDB's SQL over the columns' identifiers."""
    parsed = parse_one(text, read="duckdb")
    return parsed.transform(lambda node: column(node.name) if isinstance(node, exp.Column) else node)


def rows(table: pa.Table) -> list[Mapping[str, Any]]:
    numbers = [  # Python has no years before 1
        column.cast(pa.int32() if pa.types.is_date(column.type) else pa.int64())
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type)
        else column
        for column in table.columns
    ]
    rows: list[Mapping[str, Any]] = pa.table(numbers, table.schema.names).to_pylist()
    return rows


def same(one: Any, other: Any, tolerance: float = 0.0) -> bool:
    """NaN equals itself."""
    if isinstance(one, float) and isinstance(other, float):
        if one != one or other != other:
            return one != one and other != other
        return one == other or abs(one - other) <= tolerance * max(abs(one), abs(other))
    return bool(one == other and type(one) is type(other))


def signed(one: Any, other: Any) -> bool:
    """The same, and zeros of the same sign."""
    zeros = isinstance(one, float) and isinstance(other, float) and one == other == 0
    return same(one, other) and (not zeros or math.copysign(1, one) == math.copysign(1, other))


ORDER = partial(same, tolerance=1e-12)
"""Sums of floating numbers may differ by the order of their terms."""


def differences(
    tree: Operator, edges: Edge, *, ordered: bool = False, equal: Callable[[Any, Any], bool] = same
) -> list[str]:
    """What differs between DuckDB's answer and the source's; empty where nothing does."""
    statement = dialects.statement(tree, edges.dialect)
    types, right = edges.answer(tree)
    if list(statement.columns) != types:
        return [f"types {statement.columns} for {types}: {statement.sql}"]
    actual = edges.pushed(statement)
    if right is None or actual is None:
        if right is None and actual is None:
            return []
        return [f"{'DuckDB' if right is None else edges.dialect} alone has an error: {statement.sql}"]
    expected_rows, found_rows = rows(right), rows(actual)
    if not ordered:
        key = _key
        expected_rows, found_rows = sorted(expected_rows, key=key), sorted(found_rows, key=key)
    if len(expected_rows) != len(found_rows):
        return [f"{len(found_rows)} rows for {len(expected_rows)}: {statement.sql}"]
    return [
        f"{two} for {one}: {statement.sql}"
        for one, two in zip(expected_rows, found_rows, strict=True)
        if not all(equal(one[name], two[name]) for name in one)
    ]


def _key(row: Mapping[str, Any]) -> tuple[tuple[bool, str], ...]:
    return tuple((value is None, repr(value + 0.0 if isinstance(value, float) else value)) for value in row.values())
