"""A table as plans see it: what its source says of it, in the federation's types.

All figures are estimates, bounds too: a plan may be chosen by them, an answer may not depend on them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dai.drivers import Column as ColumnInfo
from dai.drivers import ColumnStatistics, ForeignKey, Statistics, TableInfo
from dai.errors import NotFoundError
from dai.plugins import nearest
from dqp.algebra import types
from dqp.algebra.dialects import properties

DEFAULT_SCHEMAS = ("", "main", "public")
"""Schemas of a source whose tables need no schema in their names, first come first. "" is what a source calls so."""
MOST_UNCOUNTED_ROWS = 10_000_000.0
UNKNOWN_ROWS = 10_000.0
"""Taken for the rows of a table of which its source says nothing."""
Replica = tuple[str, str | None, str]
"""Alias, schema (None where the name needs none) and name of a table that has the rows of another one."""


@dataclass(frozen=True, slots=True)
class Column:
    """``type`` is DuckDB's, ``source_type`` the source's own name. ``low`` and ``high`` are Python values; ``width`` is
    bytes, about. None: the source keeps no such statistics. ``collation`` as in ``dai.drivers.Column``."""

    name: str
    type: str
    source_type: str = ""
    nullable: bool = True
    distinct: float | None = None
    null_fraction: float | None = None
    low: Any = None
    high: Any = None
    width: float = 8.0
    collation: str | None = None
    source_name: str | None = None
    """Its name in the source; None: the same."""


@dataclass(frozen=True, eq=False)
class Table:
    """A table of a source. ``schema``: in the source; None where its name needs none. ``keys``: unique, the primary one
    first. ``rows`` and ``bytes`` are estimates. ``replicas`` have the same rows, best first."""

    source: str
    name: str
    columns: tuple[Column, ...]
    schema: str | None = None
    keys: tuple[tuple[str, ...], ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    rows: float = UNKNOWN_ROWS
    bytes: float = 0.0
    kind: str = "table"
    replicas: tuple[Replica, ...] = field(default=(), repr=False)

    def column(self, name: str) -> Column:
        """Whatever the case of its letters. NotFoundError suggests the nearest."""
        found = self._by_name.get(name.casefold())
        if found is None:
            hint = nearest(name, [each.name for each in self.columns])
            raise NotFoundError(f"There is no column {name!r} in {self}.", hint=hint)
        return found

    @cached_property
    def _by_name(self) -> dict[str, Column]:
        return {each.name.casefold(): each for each in self.columns}

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
    """The name of a table with the column ``value`` of that type: a list that came with a statement."""
    return f"__list_{number}_{type.lower()}"


def list_type(name: str) -> str | None:
    """The type of the values of the list with that name; None for the name of anything else."""
    found = re.fullmatch(r"__list_\d+_([a-z]+)", name)
    return found[1].upper() if found else None


def named(columns: Sequence[ColumnInfo]) -> dict[str, ColumnInfo]:
    """The columns by the names that they have here. DuckDB does not tell names apart by case: columns that differ in
    nothing else have numbers behind their names, all of them, so that none is ever taken for another."""
    count = Counter(each.name.casefold() for each in columns)
    found: dict[str, ColumnInfo] = {}
    numbers: Counter[str] = Counter()
    for each in columns:
        name, folded = each.name, each.name.casefold()
        while count[folded] > 1 and (name == each.name or name.casefold() in count):
            numbers[folded] += 1
            name = f"{each.name}_{numbers[folded]}"
        found[name] = each
    return found


def with_federation_types(info: TableInfo, dialect: str) -> TableInfo:
    """The table with the types that the federation takes its columns for: a number that no DECIMAL holds (of more than
    38 digits, or ``numeric`` of PostgreSQL without a precision, as are sums and averages in views) arrives as a text,
    which is no number to SQL. What is unique in the source is a key here only where no two of its values become one."""
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
    """In a list, too."""
    if not types.duckdb_type(column.arrow).startswith(types.TEXT):
        return False
    return "decimal256" in column.arrow or column.type.lower().startswith(properties(dialect).TEXT_NUMBERS)


def table_of(alias: str, info: TableInfo, statistics: Statistics, replicas: tuple[Replica, ...] = ()) -> Table:
    """The table of a source, with the statistics that the source has."""
    known = statistics.rows if statistics.rows is not None else info.rows
    rows = _span(info, statistics) if known is None else float(known)
    by_name = named(info.columns)
    found = by_name.values()
    names = {each.name: name for name, each in by_name.items()}
    fixed = {each.name: _width(each, statistics.columns.get(each.name)) for each in found}
    unknown = [name for name, width in fixed.items() if width is None]
    if unknown and statistics.size_bytes and rows:
        rest = statistics.size_bytes / rows - sum(width for width in fixed.values() if width is not None)
        share: float | None = max(rest / len(unknown), 1.0)
    else:
        share = None
    single = info.primary_key[0] if len(info.primary_key) == 1 else None
    columns = []
    for each in found:
        said = statistics.columns.get(each.name) or ColumnStatistics()
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
                distinct=rows if said.distinct is None and each.name == single else said.distinct,
                null_fraction=0.0 if said.null_fraction is None and not each.nullable else said.null_fraction,
                low=types.value(said.low, type),
                high=types.value(said.high, type),
                width=width,
                collation=each.collation,
            )
        )
    nullable = {each.name for each in found if each.nullable}
    # An index may have expressions where others have columns.
    indexed = [each.columns for each in info.indexes if each.unique and names.keys() >= set(each.columns)]
    unique = [each for each in indexed if each and not nullable & set(each)]
    given = [*([info.primary_key] if info.primary_key else []), *unique]
    keys = dict.fromkeys(tuple(names[each] for each in key) for key in given)
    return Table(
        source=alias,
        name=info.name,
        schema=info.schema,
        columns=tuple(columns),
        keys=tuple(keys),
        foreign_keys=info.foreign_keys,
        rows=rows,
        bytes=rows * sum(each.width for each in columns),
        kind=info.kind,
        replicas=replicas,
    )


def _span(info: TableInfo, statistics: Statistics) -> float:
    """Rows of a table that nobody has counted: about as many as its key has numbers."""
    for key in info.primary_key[:1]:
        said = statistics.columns.get(key)
        low, high = (types.value(each, "BIGINT") for each in ((said.low, said.high) if said else (None, None)))
        if low is not None and high is not None:
            return min(float(high - low + 1), MOST_UNCOUNTED_ROWS)
    return UNKNOWN_ROWS


def _width(column: ColumnInfo, statistics: ColumnStatistics | None) -> float | None:
    """Bytes of a value; None where it varies and nobody says."""
    if statistics is not None and statistics.width is not None:
        return statistics.width
    type = types.duckdb_type(column.arrow)
    return None if type in (types.TEXT, "BLOB") or type.endswith("]") else types.width(type)
