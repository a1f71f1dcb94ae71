"""The answer that is right: one DuckDB database with all the tables.

There are two of them, the second with its rows the other way round and on one thread: where they differ, the query does
not determine its answer and says nothing about a federation.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import duckdb
import pyarrow as pa

from tests.dqp.generated.schema import SOURCES, TABLES, Table, data


def fill(connection: duckdb.DuckDBPyConnection, where: str, table: Table, backwards: bool = False) -> None:
    """Makes the table there, of the types that a federation sees, with its rows."""
    rows = data(table)
    if backwards:
        rows = _backwards(rows)
    columns = ", ".join(f"{name} {table.type(name)}" for name in table.columns)
    connection.execute(f"CREATE TABLE {where} ({columns})")
    connection.register("rows", rows)
    connection.execute(f"INSERT INTO {where} SELECT * FROM rows")
    connection.unregister("rows")


def _backwards(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows.slice(0, 0), *(rows.slice(at, 1) for at in reversed(range(rows.num_rows)))])


class Oracle:
    def __init__(self, backwards: bool = False) -> None:
        self._backwards = backwards
        self._state: tuple[Mapping[str, pa.Table], Mapping[str, str]] = ({}, {})
        self._open()

    def _open(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1 if self._backwards else 2})
        self.connection.execute("SET TimeZone = 'UTC'")
        # DuckDB 2.0 moves what a join needs below DISTINCT ON, which then keeps other rows: a wrong answer. Another one
        # is that of a join whose condition by statistics never holds, or always.
        self.connection.execute("SET disabled_optimizers = 'join_filter_pushdown,statistics_propagation'")
        for source in SOURCES:
            self.connection.execute(f"CREATE SCHEMA {source}")
        for table in TABLES:
            where = f"{table.source}.{table.name}"
            fill(self.connection, where, table, self._backwards)
            self.connection.execute(f"CREATE VIEW {table.source}_{table.name} AS SELECT * FROM {where}")
        self.state(*self._state)

    def state(self, tables: Mapping[str, pa.Table], views: Mapping[str, str]) -> None:
        """Makes tables and views that stand in no source; those of the same names before are replaced. A view that does
        not hold any more is none."""
        self._state = tables, views
        for name, rows in tables.items():
            self.connection.register("rows", _backwards(rows) if self._backwards else rows)
            self.connection.execute(f'CREATE OR REPLACE TABLE "{name}" AS SELECT * FROM rows')
            self.connection.unregister("rows")
        for name, sql in views.items():
            self.connection.execute(f'DROP VIEW IF EXISTS "{name}"')
            with suppress(duckdb.Error):
                self.connection.execute(f'CREATE VIEW "{name}" AS {sql}')

    def answer(self, sql: str, values: Mapping[str, Any] | None = None) -> pa.Table:
        """Raises duckdb.Error."""
        try:
            return self.connection.sql(sql, params=values or None).to_arrow_table()
        except (duckdb.InternalException, duckdb.FatalException):
            self._open()  # after an error in its own workings a DuckDB answers nothing any more
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()
