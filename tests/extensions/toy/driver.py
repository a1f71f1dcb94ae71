"""A database that is DuckDB with SQL of its own: no SUMMARIZE, names in backquotes alone, and wide numbers only."""

from dataclasses import replace

import pyarrow as pa

from dai.drivers.duckdb.driver import DuckDB
from dai.drivers.duckdb.syntax import SYNTAX


class Toy(DuckDB):
    dialect = "toy"
    syntax = replace(
        SYNTAX,
        queries=SYNTAX.queries - {"SUMMARIZE"},
        quote="`",
        types=replace(SYNTAX.types, simple={**SYNTAX.types.simple, pa.int16(): "bigint"}),
    )

    def product(self) -> str:
        return "Toy 1.0"
