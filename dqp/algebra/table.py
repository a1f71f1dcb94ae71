"""Defines ``Table``, a source's table as the planner sees it, in the federation's types.

All figures are estimates, also the lowest and highest values: they may decide a plan, never an answer.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dai.drivers.sql.meanings import meaning
from dai.drivers.tables import Column as ColumnInfo
from dai.drivers.tables import ColumnStatistics, ForeignKey, Statistics, TableInfo
from dai.errors import NotFoundError
from dai.plugins import nearest
from dai.streams.meaning import NOTHING, Meaning
from dqp.algebra import types
from dqp.algebra.dialects import properties

DEFAULT_SCHEMAS = ("", "main", "public")
"""Schemas whose tables need no schema in their names, in order of precedence. A source may call its schema ""."""
MOST_UNCOUNTED_ROWS = 10_000_000.0
ROWID = "rowid"
"""What SQLite calls the number of a row."""
UNKNOWN_ROWS = 10_000.0
"""The assumed rows of a table without any statistics."""
NONE: Mapping[str, Any] = {}
Replica = tuple[str, str | None, str]
"""Alias, schema (None where the name needs none) and name of a table that has the rows of another one."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column. ``type`` is DuckDB's type, ``source_type`` the source's name for it. ``low`` and ``high`` are Python
    values; ``width`` is in bytes; ``correlation`` as in ``dai.drivers.tables.ColumnStatistics``. None: the source has
    no such statistics. ``collation`` as in ``dai.drivers.tables.Column``."""

    name: str
    type: str
    source_type: str = ""
    nullable: bool = True
    distinct: float | None = None
    null_fraction: float | None = None
    low: Any = None
    high: Any = None
    width: float = 8.0
    correlation: float | None = None
    collation: str | None = None
    source_name: str | None = None
    """Its name in the source; None if that is ``name``."""
    common: tuple[tuple[Any, float], ...] = ()
    """Values that many rows have, and the part of the rows that each has."""
    meaning: Meaning = NOTHING

    @property
    def comment(self) -> str | None:
        return self.meaning.description


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a source. ``schema`` is None if the name needs none. ``keys`` are its unique keys, the primary key
    first; ``indexes`` the columns of all its indexes. ``rowid``: SQLite's number of each row, in whose order the rows
    stand; None where a column is that number. ``rows`` and ``bytes`` are estimates. ``replicas`` have the same rows,
    the best one first. ``logical``: the logical name of which it is the best copy."""

    source: str
    name: str
    columns: tuple[Column, ...]
    schema: str | None = None
    keys: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    indexes: tuple[tuple[str, ...], ...] = ()
    rowid: Column | None = None
    rows: float = UNKNOWN_ROWS
    counted: bool = True
    """Whether the source says how many rows there are; else ``rows`` is assumed."""
    bytes: float = 0.0
    kind: str = "table"
    replicas: tuple[Replica, ...] = field(default=(), repr=False)
    logical: str | None = None
    comment: str | None = None

    def column(self, name: str) -> Column:
        """The column of that name; case does not count. NotFoundError suggests the nearest name."""
        column = self._by_name.get(name.casefold())
        if column is None:
            hint = nearest(name, [each.name for each in self.columns])
            raise NotFoundError(f"There is no column {name!r} in {self}.", hint=hint)
        return column

    @property
    def ranged(self) -> Column | None:
        """The column by whose ranges the table is read in parts: ``rowid``, else the first column of the first key.
        None for a table with a ``rowid`` and replicas, because copies need not number their rows alike."""
        if self.rowid is not None:
            return None if self.replicas else self.rowid
        return self.column(self.keys[0][0]) if self.keys else None

    @property
    def readable(self) -> tuple[Column, ...]:
        """All that a statement can read: the columns, and ``rowid``."""
        return self.columns if self.rowid is None else (*self.columns, self.rowid)

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {each.name.casefold(): each for each in self.readable}

    @cached_property
    def identity(self) -> tuple[str, str | None, str]:
        return (self.source, self.schema, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Table) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)

    def __str__(self) -> str:
        schema = None if (self.schema or "") in DEFAULT_SCHEMAS else self.schema
        return ".".join(part for part in (self.source, schema, self.name) if part)


def list_name(type: str, number: int) -> str:
    """The name of the table for a long list in a statement; its only column is ``value``, of that type."""
    return f"__list_{number}_{type.lower()}"


def list_type(name: str) -> str | None:
    """The type of the values in the list of that name; None if the name is not a list's."""
    match = re.fullmatch(r"__list_\d+_([a-z]+)", name)
    return match[1].upper() if match else None


def named(columns: Sequence[ColumnInfo]) -> dict[str, ColumnInfo]:
    """The columns by their names in the federation. DuckDB does not tell names apart by case, so columns whose names
    differ only in case all get numbers."""
    count = Counter(each.name.casefold() for each in columns)
    by_name: dict[str, ColumnInfo] = {}
    numbers: Counter[str] = Counter()
    for each in columns:
        name, folded = each.name, each.name.casefold()
        while count[folded] > 1 and (name == each.name or name.casefold() in count):
            numbers[folded] += 1
            name = f"{each.name}_{numbers[folded]}"
        by_name[name] = each
    return by_name


def with_federation_types(info: TableInfo, dialect: str) -> TableInfo:
    """The table with the federation's types. A number that no DECIMAL holds (of more than 38 digits, or PostgreSQL's
    ``numeric`` without a precision, also from sums and averages in views) arrives as text, so it becomes DOUBLE. A
    unique key of the source stays a key only if different values stay different here."""
    columns = tuple(
        replace(each, arrow=_WIDE.sub("double", each.arrow)) if _is_wide(each, dialect) else each
        for each in info.columns
    )
    merging = {each.name for each in columns if not _is_injective(each, dialect)}
    return replace(
        info,
        columns=columns,
        primary_key=() if merging & {*info.primary_key} else info.primary_key,
        indexes=tuple(replace(each, unique=each.unique and not merging & {*each.columns}) for each in info.indexes),
    )


_FLOATING = ("float", "real", "double")
_INJECTIVE = {
    *"BOOLEAN TINYINT SMALLINT INTEGER BIGINT UTINYINT USMALLINT UINTEGER UBIGINT DATE BLOB DECIMAL TIME".split(),
    *"TIMESTAMP TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS".split(), "TIMESTAMP WITH TIME ZONE", types.TEXT,
}  # fmt: skip


def _is_injective(column: ColumnInfo, dialect: str) -> bool:
    """Whether values of the column that differ in the source differ here. Several numbers may be one DOUBLE, unless the
    column is declared as floating. Texts that a collation takes for different have different bytes."""
    type = types.duckdb_type(column.arrow).partition("(")[0]
    if type in ("FLOAT", "DOUBLE"):
        return column.type.lower().startswith(_FLOATING)
    return type in _INJECTIVE and not type.startswith(properties(dialect).MERGED_TYPES)


_WIDE = re.compile(r"decimal256\([^)]*\)|string")


def _is_wide(column: ColumnInfo, dialect: str) -> bool:
    """Whether it is a number, or a list of numbers, that no DECIMAL holds."""
    if not types.duckdb_type(column.arrow).startswith(types.TEXT):
        return False
    return "decimal256" in column.arrow or column.type.lower().startswith(properties(dialect).TEXT_NUMBERS)


def table_of(
    alias: str,
    info: TableInfo,
    statistics: Statistics,
    replicas: tuple[Replica, ...] = (),
    common: Mapping[str, tuple[tuple[Any, float], ...]] = NONE,
    said: Mapping[str, Meaning] = NONE,
) -> Table:
    """The table of a source with the source's statistics. ``common``: values that many rows have, by column;
    ``said``: what the federation says of columns, by ``alias.table.column``."""
    known = statistics.rows if statistics.rows is not None else info.rows
    rows = _span(info, statistics) if known is None else float(known)
    by_name = named(info.columns)
    infos = by_name.values()
    names = {each.name: name for name, each in by_name.items()}
    fixed = {each.name: _width(each, statistics.columns.get(each.name)) for each in infos}
    unknown = [name for name, width in fixed.items() if width is None]
    if unknown and statistics.size_bytes and rows:
        rest = statistics.size_bytes / rows - sum(width for width in fixed.values() if width is not None)
        share: float | None = max(rest / len(unknown), 1.0)
    else:
        share = None
    single = info.primary_key[0] if len(info.primary_key) == 1 else None
    columns = []
    for each in infos:
        stored = statistics.columns.get(each.name) or ColumnStatistics()
        type = types.duckdb_type(each.arrow)
        width = fixed[each.name]
        if width is None:
            width = types.width(type) if share is None else share
            if each.length:
                width = min(width, float(each.length))
        columns.append(
            Column(
                name=names[each.name],
                type=type,
                source_name=each.name,
                source_type=each.type,
                nullable=each.nullable,
                distinct=rows if stored.distinct is None and each.name == single else stored.distinct,
                null_fraction=0.0 if stored.null_fraction is None and not each.nullable else stored.null_fraction,
                low=types.value(stored.low, type),
                high=types.value(stored.high, type),
                width=width,
                correlation=stored.correlation,
                collation=each.collation,
                common=common.get(each.name) or _common(stored, type),
                meaning=_meaning(alias, info, each, said),
            )
        )
    nullable = {each.name for each in infos if each.nullable}
    # An index may be on expressions instead of columns.
    plain = [each for each in info.indexes if each.columns and names.keys() >= set(each.columns)]
    unique = [each.columns for each in plain if each.unique and not nullable & set(each.columns)]
    unique_keys = [*([info.primary_key] if info.primary_key else []), *unique]
    keys = dict.fromkeys(tuple(names[each] for each in key) for key in unique_keys)
    return Table(
        source=alias,
        name=info.name,
        schema=info.schema,
        columns=tuple(columns),
        keys=tuple(keys),
        foreign_keys=info.foreign_keys,
        indexes=tuple(
            dict.fromkeys(tuple(names[each] for each in index) for index in (each.columns for each in plain))
        ),
        rowid=rowid(info, statistics),
        rows=rows,
        counted=known is not None,
        bytes=rows * sum(each.width for each in columns),
        kind=info.kind,
        replicas=replicas,
        comment=info.comment,
    )


def _common(stored: ColumnStatistics, type: str) -> tuple[tuple[Any, float], ...]:
    values = ((types.value(text, type), part) for text, part in stored.common)
    return tuple((value, part) for value, part in values if value is not None)


def rowid(info: TableInfo, statistics: Statistics) -> Column | None:
    """The column that is not among the table's; None where it has none."""
    ends = statistics.columns.get(ROWID)
    if ends is None or any(each.name.casefold() == ROWID for each in info.columns):
        return None
    low, high = (types.value(each, "BIGINT") for each in (ends.low, ends.high))
    return Column(ROWID, "BIGINT", source_type="integer", nullable=False, low=low, high=high)


def _meaning(alias: str, info: TableInfo, column: ColumnInfo, said: Mapping[str, Meaning]) -> Meaning:
    if not said:
        return meaning(column)
    names = (f"{alias}.{info.schema}.{info.name}.{column.name}", f"{alias}.{info.name}.{column.name}")
    first, second = (said.get(name, NOTHING) for name in names)
    return first.or_else(second).or_else(meaning(column))


def _span(info: TableInfo, statistics: Statistics) -> float:
    """Estimated rows of a table without a row count: the span of its key's numbers."""
    for key in info.primary_key[:1]:
        stored = statistics.columns.get(key)
        low, high = (types.value(each, "BIGINT") for each in ((stored.low, stored.high) if stored else (None, None)))
        if low is not None and high is not None:
            return min(float(high - low + 1), MOST_UNCOUNTED_ROWS)
    return UNKNOWN_ROWS


def _width(column: ColumnInfo, statistics: ColumnStatistics | None) -> float | None:
    """Bytes of a value; None if they vary and there are no statistics."""
    if statistics is not None and statistics.width is not None:
        return statistics.width
    type = types.duckdb_type(column.arrow)
    return None if type in (types.TEXT, "BLOB") or type.endswith("]") else types.width(type)
