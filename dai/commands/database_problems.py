"""What ``dai check-config`` finds wrong in a database that answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dai.drivers import Driver
from dai.drivers.sql.ddl import quoted
from dai.errors import DaiError
from dai.plugins import nearest
from dai.streams.cancellation import Cancellation

_LISTED = frozenset({"duckdb", "mariadb", "mysql"})
"""Dialects of databases that list views whose tables are gone."""


def database_problems(driver: Driver, meant: Iterable[str]) -> Iterator[str]:
    """Tables and views that cannot be read, and columns that are ``meant`` in the configuration and are not there."""
    unreadable = driver.unreadable()
    yield from (f"{name!r} cannot be read: {why}" for name, why in unreadable.items())
    columns: dict[str, None] = {}
    gone = set(unreadable)
    for table in driver.tables():
        name = f"{table.schema}.{table.name}" if table.schema else table.name
        if table.kind == "view" and driver.dialect in _LISTED:
            parts = [table.schema, table.name] if table.schema else [table.name]
            sql = f"SELECT * FROM {'.'.join(quoted(each, driver.syntax) for each in parts)} LIMIT 0"
            try:
                driver.query(sql, cancellation=Cancellation()).close()
            except DaiError as error:
                gone |= {name, table.name}
                yield f"the view {name!r} cannot be read: {error.detail}"
        for column in table.columns:
            columns |= {f"{each}.{column.name}": None for each in dict.fromkeys((table.name, name))}
    for each in meant:
        if each not in columns and each.rpartition(".")[0] not in gone:
            hint = nearest(each, list(columns)) if columns else ""
            yield f'columns."{each}": there is no such column. {hint}'.rstrip()
