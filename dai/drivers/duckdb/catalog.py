"""Tables and views from DuckDB's catalog functions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.duckdb.types import arrow_type
from dai.drivers.sql.collations import declared
from dai.drivers.sql.ddl import like, quoted
from dai.drivers.tables import (
    COMMON,
    COMMON_LENGTH,
    Column,
    ColumnStatistics,
    ForeignKey,
    Index,
    Statistics,
    TableInfo,
)
from dai.errors import NotFoundError
from dai.plugins import nearest

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Key = tuple[str, str]
"""Schema and table."""
_WITH_ZONE = "TIMESTAMP WITH TIME ZONE"
_AS_TEXT = (
    "{{'approx_unique': stats({0}).approx_unique, 'has_null': stats({0}).has_null, "
    "'has_no_null': stats({0}).has_no_null, 'min': stats({0}).min::VARCHAR, 'max': stats({0}).max::VARCHAR}}"
)
"""Statistics of a column of moments with a zone: for others than texts of them, DuckDB needs the package pytz."""
SAMPLE_ROWS, FEW = 100_000, 0.02
"""Of a sample of a table, and the part of the rows up to which distinct values are few."""

_NAMES = """
SELECT schema_name, table_name, 'table', estimated_size, comment, sql FROM duckdb_tables()
WHERE NOT internal AND database_name = current_database()
UNION ALL
SELECT schema_name, view_name, 'view', NULL, comment, NULL FROM duckdb_views()
WHERE NOT internal AND database_name = current_database() AND view_name <> 'dai_load'
ORDER BY 1, 2
"""
_COLUMNS = """
SELECT schema_name, table_name, column_name, data_type, is_nullable, column_default, numeric_precision, numeric_scale,
       comment
FROM duckdb_columns() WHERE database_name = current_database() AND NOT internal ORDER BY column_index
"""
_CONSTRAINTS = """
SELECT schema_name, table_name, constraint_type, constraint_column_names, referenced_table, referenced_column_names,
       constraint_name
FROM duckdb_constraints() WHERE database_name = current_database()
AND constraint_type IN ('PRIMARY KEY', 'FOREIGN KEY', 'UNIQUE')
"""
_INDEXES = """
SELECT schema_name, table_name, index_name, is_unique, expressions FROM duckdb_indexes()
WHERE database_name = current_database()
"""


def tables(cursor: DuckDBPyConnection, pattern: str) -> tuple[TableInfo, ...]:
    """Tables and views whose name, or schema.name, matches the LIKE ``pattern``."""
    columns, constraints, indexes = _by_table(cursor, _COLUMNS), _by_table(cursor, _CONSTRAINTS), _indexes(cursor)
    infos = []
    for schema, name, kind, rows, comment, sql in cursor.execute(_NAMES).fetchall():
        if not (like(pattern, name) or like(pattern, f"{schema}.{name}")):
            continue
        key = (schema, name)
        own = constraints[key]
        collations = declared(sql, SYNTAX) if sql else {}
        infos.append(
            TableInfo(
                name=name,
                schema=None if schema == "main" else schema,
                kind=kind,
                columns=tuple(_column(cursor, collations.get(row[0].casefold()), *row) for row in columns[key]),
                primary_key=next((tuple(row[1]) for row in own if row[0] == "PRIMARY KEY"), ()),
                foreign_keys=tuple(
                    ForeignKey(tuple(row[1]), row[2], tuple(row[3]), name=row[4])
                    for row in own
                    if row[0] == "FOREIGN KEY"
                ),
                indexes=(*(Index(row[4], tuple(row[1]), True) for row in own if row[0] == "UNIQUE"), *indexes[key]),
                rows=rows,
                comment=comment,
            )
        )
    return tuple(infos)


def statistics(cursor: DuckDBPyConnection, table: str) -> Statistics:
    """Of ``table`` or ``schema.table``; NotFoundError suggests the nearest name. Nothing is read but the catalog, and a
    sample of a large table for the values that DuckDB does not count."""
    schema, name = _key(cursor, table)
    rows = cursor.execute(
        "SELECT estimated_size FROM duckdb_tables() WHERE schema_name = ? AND table_name = ? "
        "AND database_name = current_database()",
        [schema, name],
    ).fetchone()
    if rows is None:  # a view
        return Statistics(rows=None)
    return Statistics(rows=rows[0], columns=_sampled(cursor, schema, name, rows[0]))


def _column_statistics(
    cursor: DuckDBPyConnection, schema: str, name: str, types: Mapping[str, str]
) -> dict[str, ColumnStatistics]:
    """The statistics that DuckDB keeps for its own plans; reading one row is enough to get them."""
    items = ", ".join(
        (_AS_TEXT if type == _WITH_ZONE else "stats({0})").format(quoted(each, SYNTAX)) for each, type in types.items()
    )
    rows = cursor.execute(f"SELECT {items} FROM {quoted(schema, SYNTAX)}.{quoted(name, SYNTAX)} LIMIT 1").fetchall()
    return {
        column: _statistics_of(entry)
        for column, entry in zip(types, rows[0] if rows else (), strict=False)
        if isinstance(entry, dict)
    }


def _statistics_of(entry: dict[str, Any]) -> ColumnStatistics:
    nulls = 0.0 if entry.get("has_null") is False else 1.0 if entry.get("has_no_null") is False else None
    distinct = entry.get("approx_unique")
    return ColumnStatistics(
        distinct=None if distinct is None else float(distinct),
        null_fraction=nulls,
        low=_text(entry.get("min")),
        high=_text(entry.get("max")),
    )


def _sampled(cursor: DuckDBPyConnection, schema: str, name: str, rows: int) -> dict[str, ColumnStatistics]:
    """With what DuckDB does not count, from a sample of whole vectors, which is the same each time: the part of the
    rows that is NULL, and the common values of columns that have few values."""
    types = {row[0]: row[1] for row in _by_table(cursor, _COLUMNS)[schema, name]}
    columns = _column_statistics(cursor, schema, name, types)
    items = {}
    for each, one in columns.items():
        column = quoted(each, SYNTAX)
        if one.low is not None and 1 < (one.distinct or 2.0) < rows * FEW:
            items[each] = f"left({column}, {COMMON_LENGTH + 1})" if types[each] in ("VARCHAR", "JSON") else column
        elif one.null_fraction is None:
            items[each] = f"CASE WHEN {column} IS NOT NULL THEN 0 END"
    if not items or not rows:
        return columns
    part = min(100.0, 100.0 * SAMPLE_ROWS / rows)
    sample = cursor.sql(
        f"SELECT {', '.join(items.values())} FROM {quoted(schema, SYNTAX)}.{quoted(name, SYNTAX)} "
        f"TABLESAMPLE system({part:.9f}%) REPEATABLE (1) LIMIT {2 * SAMPLE_ROWS}"
    )  # with a limit one thread chooses the vectors, or each time others would be chosen
    table = sample.to_arrow_table()
    if not table.num_rows:
        return columns
    for (each, item), values in zip(items.items(), table.columns, strict=True):
        nulls, common = values.null_count / len(values), () if item.startswith("CASE") else _common(values)
        columns[each] = replace(columns[each], null_fraction=nulls, common=common)
    return columns


def _common(values: pa.ChunkedArray) -> tuple[tuple[str, float], ...]:
    try:
        counted = values.value_counts()
    except pa.ArrowNotImplementedError:  # a type without equality
        return ()
    many = counted.filter(pc.greater_equal(counted.field("counts"), COMMON * len(values)))
    common = zip(map(_text_of, many.field("values")), many.field("counts").to_pylist(), strict=True)
    return tuple(
        (text, count / len(values)) for text, count in common if text is not None and len(text) <= COMMON_LENGTH
    )


def _text_of(value: pa.Scalar) -> str | None:
    """None for what Python has no value for, such as a day that is infinite."""
    try:
        return _text(value.as_py())
    except (OverflowError, ValueError):
        return None


def _text(bound: Any) -> str | None:
    return str(bound) if isinstance(bound, str | int | float | Decimal | date | time) else None


def column_types(cursor: DuckDBPyConnection, table: str) -> dict[str, str]:
    """Types of the columns by name. NotFoundError suggests the nearest table."""
    return {row[0]: row[1] for row in _by_table(cursor, _COLUMNS)[_key(cursor, table)]}


def _key(cursor: DuckDBPyConnection, table: str) -> Key:
    known = [(row[0], row[1]) for row in cursor.execute(_NAMES).fetchall()]
    schema, _, name = table.rpartition(".")
    for key in known:
        if (key[0].casefold(), key[1].casefold()) == ((schema or "main").casefold(), name.casefold()):
            return key
    hint = nearest(table, [name if schema == "main" else f"{schema}.{name}" for schema, name in known])
    raise NotFoundError(f"There is no table {table!r}.", hint=hint if known else None)


def _by_table(cursor: DuckDBPyConnection, sql: str) -> dict[Key, list[tuple[Any, ...]]]:
    rows: dict[Key, list[tuple[Any, ...]]] = defaultdict(list)
    for row in cursor.execute(sql).fetchall():
        rows[(row[0], row[1])].append(row[2:])
    return rows


def _indexes(cursor: DuckDBPyConnection) -> dict[Key, list[Index]]:
    """``expressions`` is the text of a list."""
    indexes: dict[Key, list[Index]] = defaultdict(list)
    for schema, table, name, unique, expressions in cursor.execute(_INDEXES).fetchall():
        columns = tuple(part.strip(" '\"") for part in expressions.strip("[]").split(","))
        indexes[(schema, table)].append(Index(name, columns, unique))
    return indexes


def _column(
    cursor: DuckDBPyConnection,
    collation: str | None,
    name: str,
    type: str,
    nullable: bool,
    default: str | None,
    precision: int,
    scale: int,
    comment: str | None,
) -> Column:
    is_decimal = type.startswith("DECIMAL")
    arrow = "string" if type.startswith("ENUM") else str(arrow_type(cursor.dtype(type))[0])
    return Column(
        name=name,
        type=type.lower() if type.endswith("]") else type.split("(")[0].lower(),
        arrow=arrow,
        nullable=nullable,
        default=default,
        precision=precision if is_decimal else None,
        scale=scale if is_decimal else None,
        autoincrement=bool(default and default.startswith("nextval(")),
        comment=comment,
        collation=None if collation is None or collation.lower() == "binary" else collation,
    )
