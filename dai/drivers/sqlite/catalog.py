"""Tables and views from SQLite's own schema tables."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from dai.drivers.connections.rows import FIRST_ROWS, columns_of
from dai.drivers.sql.collations import declared
from dai.drivers.sql.ddl import like, quoted
from dai.drivers.sqlite.syntax import SYNTAX
from dai.drivers.sqlite.types import choose, declared_type, type_name
from dai.drivers.tables import Column, ColumnStatistics, ForeignKey, Index, Statistics, TableInfo
from dai.errors import DataError, NotFoundError
from dai.plugins import nearest

Run = Callable[..., list[tuple[Any, ...]]]
First = Callable[[str], list[tuple[Any, ...]] | None]
"""Runs a query unless that takes long."""

_LONGEST = 100
"""Characters of a text that may be a date, a time or a decimal."""
_NAMES = (
    "SELECT name, type FROM sqlite_master WHERE type IN ('table', 'view') AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
)


def names(run: Run) -> list[str]:
    """Of all tables and views, in order."""
    return [name for name, _ in run(f"{_NAMES} ORDER BY name")]


def column_names(run: Run) -> list[str]:
    """Of all tables; not of views, where one of them is of something that is gone."""
    try:
        return [name for (name,) in run(f"SELECT DISTINCT i.name FROM ({_NAMES}) m, pragma_table_xinfo(m.name) i")]
    except sqlite3.Error:
        own = "SELECT name FROM sqlite_schema WHERE type = 'table'"
        return [name for (name,) in run(f"SELECT DISTINCT i.name FROM ({own}) m, pragma_table_xinfo(m.name) i")]


def function_names(run: Run) -> list[str]:
    """But those that begin with an underscore."""
    return [name for (name,) in run("SELECT DISTINCT name FROM pragma_function_list WHERE substr(name, 1, 1) <> '_'")]


def declared_types(run: Run, table: str) -> dict[str, str]:
    """Declared types of the columns that can be written, by name. NotFoundError suggests the nearest table."""
    name = _stored_name(run, table)
    return {row[1]: row[2] for row in run("SELECT * FROM pragma_table_xinfo(?)", (name,)) if row[6] == 0}


def tables(run: Run, first: First, pattern: str) -> tuple[TableInfo, ...]:
    """Tables and views whose name, or main.name, matches the LIKE ``pattern``. Leaves out those that cannot be queried:
    views whose tables are gone, or whose functions are missing or not allowed; virtual tables of unknown modules."""
    return tables_and_others(run, first, pattern)[0]


def tables_and_others(run: Run, first: First, pattern: str) -> tuple[tuple[TableInfo, ...], dict[str, str]]:
    """``tables``, and those that it leaves out, with the reason."""
    found, others = [], {}
    for name, kind in run(f"{_NAMES} ORDER BY name"):
        if like(pattern, name) or like(pattern, f"main.{name}"):
            try:
                found.append(_table(run, first, name, kind))
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname not in ("SQLITE_ERROR", "SQLITE_AUTH"):
                    raise
                others[name] = str(error)
    return tuple(found), others


def statistics(run: Run, table: str) -> Statistics:
    """Row and distinct counts come from ANALYZE; without it SQLite knows none. Bounds are the ends of indexes; also of
    ``rowid``, in whose order the rows stand, where no column has that name or these values."""
    name = _stored_name(run, table)
    rows = _rows(run, name)
    columns = {}
    for column, repeated in _indexed(run, name).items():
        distinct = rows / repeated if rows is not None and repeated else None
        end_of = f"({quoted(column, SYNTAX)}) AS TEXT) FROM {quoted(name, SYNTAX)}"
        # Each of the two is one step in the index; both in one statement would read it all.
        low, high = (run(f"SELECT CAST({end}{end_of}")[0][0] for end in ("min", "max"))
        columns[column] = ColumnStatistics(distinct=distinct, low=low, high=high)
    if _has_rowid(run, name):
        with suppress(sqlite3.OperationalError):  # WITHOUT ROWID
            low, high = (
                run(f"SELECT CAST({end}(rowid) AS TEXT) FROM {quoted(name, SYNTAX)}")[0][0] for end in ("min", "max")
            )
            columns["rowid"] = ColumnStatistics(low=low, high=high)
    return Statistics(rows=rows, columns=columns)


def _indexed(run: Run, name: str) -> dict[str, float | None]:
    """Columns that an index of all rows begins with; and how many rows a value has, on average."""
    columns: dict[str, float | None] = {}
    if (key := _rowid(run, name)) is not None:
        columns[key] = 1.0
    analyzed: dict[str, str] = {}
    if run("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"):
        analyzed = {row[0]: row[1] for row in run("SELECT idx, stat FROM sqlite_stat1 WHERE tbl = ?", (name,))}
    for index, partial in run("SELECT name, partial FROM pragma_index_list(?)", (name,)):
        first = run(
            "SELECT name FROM pragma_index_xinfo(?) WHERE seqno = 0 AND coll = 'BINARY' AND name IS NOT NULL", (index,)
        )
        if first and not partial:
            counts = analyzed.get(index, "").split()
            columns.setdefault(str(first[0][0]), float(counts[1]) if len(counts) > 1 and counts[1].isdigit() else None)
    return columns


def _rowid(run: Run, name: str) -> str | None:
    """The column that is the table's rowid. (Where an index is the primary key, none is: WITHOUT ROWID, or DESC.)"""
    keys = [row for row in run("SELECT * FROM pragma_table_xinfo(?)", (name,)) if row[5]]
    if len(keys) != 1 or keys[0][2].upper() != "INTEGER":
        return None
    indexed = run("SELECT 1 FROM pragma_index_list(?) WHERE origin = 'pk'", (name,))
    return None if indexed else str(keys[0][1])


def _has_rowid(run: Run, name: str) -> bool:
    """Whether the rows may have numbers that are no column's: those of views and virtual tables have none."""
    names = {row[1].casefold() for row in run("SELECT * FROM pragma_table_xinfo(?)", (name,))}
    stored = run("SELECT 1 FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND name = ?", (name,))
    return bool(stored) and "rowid" not in names and _rowid(run, name) is None


def _stored_name(run: Run, table: str) -> str:
    known = names(run)
    bare = table.removeprefix("main.")
    for name in known:
        if name == table or name.casefold() == bare.casefold():
            return name
    raise NotFoundError(f"There is no table {table!r}.", hint=nearest(bare, known) if known else None)


def _table(run: Run, first: First, name: str, kind: str) -> TableInfo:
    info = [row for row in run("SELECT * FROM pragma_table_xinfo(?)", (name,)) if row[6] != 1]
    written = run("SELECT sql FROM sqlite_master WHERE name = ? AND type = 'table'", (name,))
    collations = declared(written[0][0], SYNTAX) if written else {}
    keys = sorted((row[5], row[1]) for row in info if row[5])
    primary = tuple(column for _, column in keys)
    rowid = _rowid(run, name)
    return TableInfo(
        name=name,
        columns=tuple(
            _column(row, arrow, collations.get(row[1].casefold()), autoincrement=row[1] == rowid)
            for row, arrow in zip(info, _types(first, name, info), strict=True)
        ),
        kind=kind,
        primary_key=primary,
        foreign_keys=_foreign_keys(run, name),
        indexes=tuple(
            Index(index, tuple(map(str, filter(None, names))), bool(unique and not partial and None not in names))
            for index, unique, origin, partial in run(
                'SELECT name, "unique", origin, partial FROM pragma_index_list(?)', (name,)
            )
            if origin != "pk"
            for names in ([row[2] for row in run("SELECT * FROM pragma_index_info(?)", (index,))],)
        ),
        rows=_rows(run, name),
    )


def _types(first: First, name: str, info: Sequence[Sequence[Any]]) -> list[pa.DataType]:
    """What a query of the table gives: of each column the type that its first rows have. Where they have none that is
    the same for all of them, or it would take long to get them from a view, the declared one."""
    declared = [(row[1], row[2], declared_type(row[2])) for row in info]
    columns = ", ".join(_typical(quoted(column, SYNTAX), wanted) for column, _, wanted in declared)
    rows = first(f"SELECT {columns} FROM {quoted(name, SYNTAX)} LIMIT {FIRST_ROWS}")
    arrow_types = []
    for (column, type, wanted), values in zip(declared, columns_of(rows or [], len(info)), strict=True):
        try:
            chosen = None if rows is None else choose(column, type, values, len(rows) < FIRST_ROWS).type
            if wanted is not None and pa.types.is_temporal(wanted) and chosen == pa.string():
                # one that cannot be read makes no text of the others
                chosen = next((wanted for each in values if _is_read(each, type, wanted)), chosen)
        except DataError:
            chosen = None
        arrow_types.append(chosen or wanted or pa.string())
    return arrow_types


def _is_read(value: Any, declared: str, wanted: pa.DataType) -> bool:
    return value is not None and choose("", declared, [value], False).type == wanted


def _typical(column: str, wanted: pa.DataType | None) -> str:
    """A value that has the type of the column's; texts and bytes, which may be long, only where it depends on them."""
    read = wanted is not None and (pa.types.is_temporal(wanted) or pa.types.is_decimal(wanted))
    text = f"substr({column}, 1, {_LONGEST})" if read else "''"
    return f"CASE typeof({column}) WHEN 'text' THEN {text} WHEN 'blob' THEN x'' ELSE {column} END"


def _column(row: Sequence[Any], arrow: pa.DataType, collation: str | None, *, autoincrement: bool) -> Column:
    _, name, declared, not_null, default = row[:5]
    size = [int(digits) for digits in re.findall(r"\d+", declared.partition("(")[2])]
    is_decimal = pa.types.is_decimal(arrow)
    return Column(
        name=name,
        type=type_name(declared, arrow) if declared else "",
        arrow=str(arrow),
        nullable=not (not_null or autoincrement),  # other primary keys take NULL
        default=default,
        precision=size[0] if is_decimal and size else None,
        scale=(size[1] if len(size) > 1 else 0) if is_decimal and size else None,
        length=size[0] if size and arrow in (pa.string(), pa.binary()) else None,
        autoincrement=autoincrement,
        collation=None if collation is None or collation.upper() == "BINARY" else collation,
    )


def _foreign_keys(run: Run, name: str) -> tuple[ForeignKey, ...]:
    keys: dict[int, list[Sequence[Any]]] = {}
    for row in run("SELECT * FROM pragma_foreign_key_list(?) ORDER BY id, seq", (name,)):
        keys.setdefault(row[0], []).append(row)
    return tuple(
        ForeignKey(
            columns=tuple(row[3] for row in rows),
            table=rows[0][2],
            referred_columns=tuple(row[4] for row in rows) if rows[0][4] is not None else _primary_key(run, rows[0][2]),
        )
        for rows in keys.values()
    )


def _primary_key(run: Run, name: str) -> tuple[str, ...]:
    keys = sorted((row[5], row[1]) for row in run("SELECT * FROM pragma_table_xinfo(?)", (name,)) if row[5])
    return tuple(column for _, column in keys)


def _rows(run: Run, name: str) -> int | None:
    if not run("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_stat1'"):
        return None
    statistics_rows = run("SELECT stat FROM sqlite_stat1 WHERE tbl = ?", (name,))
    return max((int(stat.split()[0]) for (stat,) in statistics_rows if stat), default=None)
