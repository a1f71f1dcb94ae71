"""Catalogs without databases, for tests of what comes before a query runs.

::

    catalog = catalog_of(pg={"orders": "id int, k int, amt decimal(12,2), s varchar"}, rows={"pg.orders": 1e6})
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dqp.algebra.table import Column, Table
from dqp.catalog.catalog import Catalog

_NAMES = {"INT": "INTEGER", "TEXT": "VARCHAR", "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE", "BOOL": "BOOLEAN"}
_WIDTHS = {"INTEGER": 4.0, "BIGINT": 8.0, "DOUBLE": 8.0, "DATE": 4.0, "BOOLEAN": 1.0, "VARCHAR": 24.0}


def table_of(
    alias: str,
    name: str,
    columns: str,
    *,
    rows: float = 1000.0,
    keys: tuple[tuple[str, ...], ...] = (),
    **facts: Mapping[str, Any],
) -> Table:
    """A table from a list like that of CREATE TABLE: ``id int not null, s varchar``. The first column is its key where
    it is called ``id`` and nothing else is said. ``facts``: other fields of single columns, by name."""
    actual = []
    for each in re.split(r",(?![^(]*\))", columns):
        column, _, type = each.strip().partition(" ")
        needed = "not null" in type.lower()
        type = re.sub(r"(?i)\s*not null\s*", "", type).strip().upper()
        type = _NAMES.get(type, type)
        defaults: dict[str, Any] = {"width": _WIDTHS.get(type, 16.0), "nullable": not needed}
        if not actual and not keys and column.lower() == "id":
            keys = ((column,),)
        if (column,) in keys:
            defaults["distinct"] = rows
        actual.append(Column(column, type, type.lower(), **{**defaults, **facts.get(column, {})}))
    return Table(
        source=alias,
        name=name,
        columns=tuple(actual),
        keys=keys,
        rows=rows,
        bytes=rows * sum(each.width for each in actual),
    )


def catalog_of(
    *,
    views: Mapping[str, str] | None = None,
    rows: Mapping[str, float] | None = None,
    dialects: Mapping[str, str] | None = None,
    **sources: Mapping[str, str],
) -> Catalog:
    """A catalog of ``alias={table: columns}``. Dialects of the aliases pg, maria, lite and duck need not be said."""
    usual = {"pg": "postgresql", "maria": "mariadb", "lite": "sqlite", "duck": "duckdb"}
    tables = [
        table_of(alias, name, columns, rows=(rows or {}).get(f"{alias}.{name}", 1000.0))
        for alias, actual in sources.items()
        for name, columns in actual.items()
    ]
    return Catalog.of(tables, views=views, dialects={**usual, **(dialects or {})})
