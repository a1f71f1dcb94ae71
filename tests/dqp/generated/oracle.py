"""The answer that is right: one DuckDB database with all the tables.

There are two of them, the second with its rows the other way round and on one thread: where they differ, the query does
not determine its answer and says nothing about a federation.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import duckdb
import pyarrow as pa

from tests.dqp.generated.schema import SOURCES, TABLES, Table, data


def fill(connection: duckdb.DuckDBPyConnection, where: str, table: Table, backwards: bool = False) -> None:
    """Makes the table there, of the types that a federation sees, with its rows."""
    rows = data(table)
    if backwards:
        rows = rows.take(pa.array(range(rows.num_rows - 1, -1, -1), pa.int64()))
    columns = ", ".join(f"{name} {table.type(name)}" for name in table.columns)
    connection.execute(f"CREATE TABLE {where} ({columns})")
    connection.register("rows", rows)
    connection.execute(f"INSERT INTO {where} SELECT * FROM rows")
    connection.unregister("rows")


class Oracle:
    def __init__(self, backwards: bool = False) -> None:
        self.connection = duckdb.connect(config={"threads": 1 if backwards else 2})
        for source in SOURCES:
            self.connection.execute(f"CREATE SCHEMA {source}")
        for table in TABLES:
            where = f"{table.source}.{table.name}"
            fill(self.connection, where, table, backwards)
            self.connection.execute(f"CREATE VIEW {table.source}_{table.name} AS SELECT * FROM {where}")

    def answer(self, sql: str) -> pa.Table:
        """Raises duckdb.Error."""
        return self.connection.sql(sql).to_arrow_table()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.connection.close()
