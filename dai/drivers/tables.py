"""Descriptions of a database's tables."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Column:
    """``type`` is the source's own type name, ``arrow`` the Arrow type a query of the column gives. ``collation``: by
    what the source compares texts of the column; None where that is their bytes, as far as the driver can tell
    (MariaDB and MySQL: always the name, whose first part is the character set). ``unit``, ``ucd``, ``quantity`` as in
    ``dai.streams.meaning.Meaning``: said by others than the database."""

    name: str
    type: str
    arrow: str
    nullable: bool = True
    default: str | None = None
    precision: int | None = None
    scale: int | None = None
    length: int | None = None
    autoincrement: bool = False
    comment: str | None = None
    collation: str | None = None
    unit: str | None = None
    ucd: str | None = None
    quantity: str | None = None


@dataclass(frozen=True, slots=True)
class ForeignKey:
    """``columns`` refer to ``referred_columns`` of ``table``, in order."""

    columns: tuple[str, ...]
    table: str
    referred_columns: tuple[str, ...]
    schema: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """``unique``: for all rows of the table, not only for those of a partial index, and by these columns alone, without
    the expressions that some databases have no names for."""

    name: str
    columns: tuple[str, ...]
    unique: bool


@dataclass(frozen=True, slots=True)
class TableInfo:
    """``rows`` is the database's own estimate (None: it has none); ``kind`` is ``table`` or ``view``."""

    name: str
    columns: tuple[Column, ...]
    schema: str | None = None
    kind: str = "table"
    primary_key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    indexes: tuple[Index, ...] = ()
    rows: int | None = None
    comment: str | None = None


COMMON, COMMON_LENGTH = 0.02, 100
"""Least part of the rows that a common value has, and most characters of its text."""


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """From the database's own statistics; None where it keeps none. ``low`` and ``high`` are text forms.
    ``correlation``: of the values with the places of their rows, from -1 (descending) over 0 (anywhere) to 1.
    ``common``: values that COMMON of the rows have at least, in text form, each with its part of the rows."""

    distinct: float | None = None
    null_fraction: float | None = None
    low: str | None = None
    high: str | None = None
    width: float | None = None
    correlation: float | None = None
    common: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Statistics:
    """``rows`` and ``size_bytes`` are estimates."""

    rows: int | None
    size_bytes: int | None = None
    columns: dict[str, ColumnStatistics] = field(default_factory=dict)
