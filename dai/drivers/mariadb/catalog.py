"""Tables of the current database, from information_schema."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa

from dai.drivers.mariadb.literals import literal
from dai.drivers.mariadb.syntax import SYNTAX
from dai.drivers.mariadb.types import kind
from dai.drivers.sql import suggestions
from dai.drivers.sql.ddl import like, quoted
from dai.drivers.sql.lexer import tokens
from dai.drivers.tables import Column, ColumnStatistics, ForeignKey, Index, Statistics, TableInfo
from dai.errors import NotFoundError, StatementError
from dai.plugins import nearest

Run = Callable[[str], list[dict[str, Any]]]
"""Runs a query of ours: one dictionary a row, text as ``str``."""

_WIRE = {
    "tinyint": 1, "smallint": 2, "int": 3, "float": 4, "double": 5, "timestamp": 7, "bigint": 8, "mediumint": 9,
    "date": 10, "time": 11, "datetime": 12, "year": 13, "bit": 16, "json": 245, "decimal": 246, "tinyblob": 249,
    "tinytext": 249, "mediumblob": 250, "mediumtext": 250, "longblob": 251, "longtext": 251, "blob": 252, "text": 252,
    "varchar": 253, "varbinary": 253, "geometry": 255,
}  # fmt: skip
_WHOLE = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_BINARY = {"binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "geometry", "point", "polygon"}
# Every column is named: MySQL writes the names of information_schema's own in capitals.
_TABLES = """
SELECT table_name AS name, table_type AS kind, table_rows AS count, data_length AS size, table_comment AS comment
FROM information_schema.tables WHERE table_schema = DATABASE() ORDER BY table_name
"""
_NAMES = """
SELECT table_name AS name, IF(table_schema = DATABASE(), table_name, CONCAT(table_schema, '.', table_name)) AS written
FROM information_schema.tables WHERE table_schema IN (DATABASE(), {0})
ORDER BY table_schema = {0}, table_name LIMIT 10000
"""
_COLUMNS = """
SELECT table_name AS tab, column_name AS name, data_type AS type, column_type AS full_type, is_nullable AS nullable,
       column_default AS std, numeric_precision AS num_precision, numeric_scale AS num_scale,
       character_maximum_length AS length, datetime_precision AS fraction, extra AS extra, column_comment AS comment,
       collation_name AS collation
FROM information_schema.columns WHERE table_schema = DATABASE() ORDER BY table_name, ordinal_position
"""
_KEYS = """
SELECT table_name AS tab, constraint_name AS name, column_name AS col, referenced_table_schema AS ref_schema,
       referenced_table_name AS ref_table, referenced_column_name AS ref_col, DATABASE() AS db
FROM information_schema.key_column_usage
WHERE table_schema = DATABASE() AND referenced_table_name IS NOT NULL
ORDER BY table_name, constraint_name, ordinal_position
"""
_INDEXES = """
SELECT table_name AS tab, index_name AS name, column_name AS col, non_unique AS non_unique,
       cardinality AS cardinality
FROM information_schema.statistics WHERE table_schema = DATABASE()
ORDER BY table_name, index_name, seq_in_index
"""

_KEPT = """
SELECT column_name AS col, min_value AS low, max_value AS high, nulls_ratio AS nulls, avg_length AS width,
avg_frequency AS frequency
FROM mysql.column_stats WHERE db_name = DATABASE() AND table_name = {}
"""


def hint_for(run: Run, code: int, message: str, sql: str | None) -> str | None:
    """A hint about the table (1146, 1051), column (1054) or function (1305) that an error's message names."""
    if code == 1305:
        called = re.match(r"FUNCTION (?:.*\.)?(\w+) does not exist", message)
        return suggestions.function_hint(called[1], {each: each for each in _functions(run)}) if called else None
    named = re.search(r"'([^']+)'", message)
    if named is None:
        return None
    database, _, name = named.group(1).rpartition(".")
    if code == 1054:
        words = {sql[start:end].strip("`").casefold() for _, start, end in tokens(sql, SYNTAX)} if sql else set()
        known = [row["name"] for row in run(_COLUMNS) if row["tab"].casefold() in words]
        return suggestions.name_hint(name, {each: each for each in known})
    rows = run(_NAMES.format(literal(database, 0)))
    return suggestions.name_hint(name, {row["name"]: row["written"] for row in rows})


def _functions(run: Run) -> list[str]:
    """Of MariaDB since 10.6; MySQL does not list them."""
    listed = run("SELECT 1 FROM information_schema.tables WHERE table_name = 'SQL_FUNCTIONS'")
    rows = run("SELECT function AS name FROM information_schema.sql_functions") if listed else []
    return [row["name"] for row in rows]


def tables(run: Run, pattern: str, database: str) -> tuple[TableInfo, ...]:
    """Tables and views of ``database`` whose name, or database.name, matches the LIKE ``pattern``."""
    columns, keys, indexes = _by_table(run(_COLUMNS)), _by_table(run(_KEYS)), _by_table(run(_INDEXES))
    return tuple(
        TableInfo(
            name=row["name"],
            columns=tuple(_column(column) for column in columns[row["name"]]),
            kind="view" if "VIEW" in row["kind"] else "table",
            primary_key=tuple(each["col"] for each in indexes[row["name"]] if each["name"] == "PRIMARY"),
            foreign_keys=tuple(_foreign_keys(keys[row["name"]])),
            indexes=tuple(_indexes(indexes[row["name"]])),
            rows=row["count"],
            comment=row["comment"] or None,
        )
        for row in run(_TABLES)
        if like(pattern, row["name"]) or like(pattern, f"{database}.{row['name']}")
    )


def statistics(run: Run, table: str) -> Statistics:
    """Row and size estimates of the storage engine; what ``ANALYZE TABLE … PERSISTENT FOR ALL`` has kept of the
    columns, where the user may read it; distinct values where an index begins with the column; the ends of the primary
    key's first column where that is a whole number, which are the ends of its index."""
    name = stored_name(run, table)
    row = next(row for row in run(_TABLES) if row["name"] == name)
    whole = {each["name"] for each in run(_COLUMNS) if each["tab"] == name and each["type"] in _WHOLE}
    first = _stored_statistics(run, name, row["count"])
    seen = set()
    for each in _by_table(run(_INDEXES))[name]:
        if each["name"] not in seen and each["cardinality"] is not None:
            known = replace(first.get(each["col"], ColumnStatistics()), distinct=float(each["cardinality"]))
            if each["name"] == "PRIMARY" and each["col"] in whole:
                key = quoted(each["col"], SYNTAX)
                ends = run(f"SELECT MIN({key}) AS low, MAX({key}) AS high FROM {quoted(name, SYNTAX)}")[0]
                low, high = (None if end is None else str(end) for end in (ends["low"], ends["high"]))
                first[each["col"]] = replace(known, low=low, high=high)
            elif each["col"] not in first:
                first[each["col"]] = known
        seen.add(each["name"])
    return Statistics(rows=row["count"], size_bytes=row["size"], columns=first)


def _stored_statistics(run: Run, name: str, count: int | None) -> dict[str, ColumnStatistics]:
    """The engine-independent statistics of a table's columns (https://mariadb.com/kb/en/mysqlcolumn_stats-table/)."""
    try:
        rows = run(_KEPT.format(literal(name, 0)))
    except StatementError:  # no right to read it; MySQL has none
        return {}
    statistics = {}
    for each in rows:
        nulls = None if each["nulls"] is None else float(each["nulls"])
        frequency = float(each["frequency"] or 0)
        distinct = count * (1 - (nulls or 0.0)) / frequency if count and frequency else None
        statistics[each["col"]] = ColumnStatistics(
            distinct=distinct,
            null_fraction=nulls,
            low=_text(each["low"]),
            high=_text(each["high"]),
            width=None if each["width"] is None else float(each["width"]),
        )
    return statistics


def _text(value: Any) -> str | None:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return None if value is None else str(value)


def stored_name(run: Run, table: str) -> str:
    """The table's own spelling of its name. NotFoundError suggests the nearest."""
    known = [row["name"] for row in run(_TABLES)]
    bare = table.rpartition(".")[2]
    same = [each for each in known if each == bare] or [each for each in known if each.casefold() == bare.casefold()]
    if same:
        return str(same[0])
    raise NotFoundError(f"There is no table {table!r}.", hint=nearest(bare, known) if known else None)


def column_names(run: Run, table: str) -> list[str]:
    """In their order; NotFoundError suggests the nearest table."""
    name = stored_name(run, table)
    return [row["name"] for row in run(_COLUMNS) if row["tab"] == name]


def _by_table(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    grouped: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[row["tab"]].append(row)
    return grouped


def _column(row: dict[str, Any]) -> Column:
    data_type, full = row["type"], row["full_type"]
    is_decimal = data_type == "decimal"
    return Column(
        name=row["name"],
        type=data_type + (" unsigned" if "unsigned" in full else ""),
        arrow=str(_arrow(row)),
        nullable=row["nullable"] == "YES",
        default=None if row["std"] in (None, "NULL") else row["std"],
        precision=row["num_precision"] if is_decimal else row["fraction"],
        scale=row["num_scale"] if is_decimal else None,
        length=row["length"],
        autoincrement="auto_increment" in (row["extra"] or ""),
        comment=row["comment"] or None,
        collation=row["collation"],
    )


def _arrow(row: dict[str, Any]) -> pa.DataType:
    unsigned = "unsigned" in row["full_type"]
    digits = row["num_scale"] or 0
    length = (row["num_precision"] or 0) + (digits > 0) + (not unsigned)
    wire = _WIRE.get(row["type"], 254)
    return kind("", wire, length, digits, 32 if unsigned else 0, row["type"] in _BINARY).type


def _foreign_keys(rows: list[dict[str, Any]]) -> list[ForeignKey]:
    grouped: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[row["name"]].append(row)
    return [
        ForeignKey(
            columns=tuple(row["col"] for row in same),
            table=same[0]["ref_table"],
            referred_columns=tuple(row["ref_col"] for row in same),
            schema=None if same[0]["ref_schema"] == same[0]["db"] else same[0]["ref_schema"],
            name=re.sub(r"\s", " ", name),
        )
        for name, same in grouped.items()
    ]


def _indexes(rows: list[dict[str, Any]]) -> list[Index]:
    grouped: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        if row["name"] != "PRIMARY":
            grouped[row["name"]].append(row)
    return [
        Index(name, tuple(filter(None, columns)), not same[0]["non_unique"] and None not in columns)
        for name, same in grouped.items()
        for columns in ([row["col"] for row in same],)
    ]
