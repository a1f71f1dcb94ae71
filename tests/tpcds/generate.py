"""Writes TPC-DS with DuckDB's own extension: ``python generate.py SCALE DIRECTORY`` for a Parquet file a table and
``queries.json``; ``python generate.py gather FILE PARQUET …`` for a DuckDB file with these tables.

Runs in the peers' environment, the only one that has the extension, where nothing of the project is installed.
"""

from __future__ import annotations

import json
import re
import sys
from importlib.resources import files
from pathlib import Path

import duckdb


def generate(scale: float, directory: Path) -> None:
    package = files("duckdb_extension_tpcds")
    extension = package / "extensions" / f"v{duckdb.__version__}" / "tpcds.duckdb_extension"
    with duckdb.connect(str(directory / "whole.duckdb")) as connection:
        connection.execute(f"LOAD '{extension}'")
        connection.execute(f"CALL dsdgen(sf = {scale})")
        for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall():
            connection.execute(f"COPY {name} TO '{directory / name}.parquet'")
        queries = connection.execute("SELECT query_nr, query FROM tpcds_queries()").fetchall()
        texts = {f"q{number:02}": _decided(connection, sql) for number, sql in queries}
    (directory / "whole.duckdb").unlink()
    (directory / "queries.json").write_text(json.dumps(texts))


def _decided(connection: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The query, where it is cut by LIMIT, with all columns at the end of its ORDER BY: ties are then no matter of
    chance. It stays the same otherwise."""
    cut = re.fullmatch(r"(.*\S)(\s+LIMIT\s+\d+)\s*;?\s*", sql, flags=re.IGNORECASE | re.DOTALL)
    if cut is None:
        return sql.strip().rstrip(";")
    columns = len(connection.execute(f"DESCRIBE {sql}").fetchall())
    positions = ", ".join(str(at + 1) for at in range(columns))
    ordered = re.search(r"\sORDER\s+BY\s[^()]*(\([^()]*(\([^()]*\)[^()]*)*\)[^()]*)*$", cut[1], re.IGNORECASE)
    return f"{cut[1]}{', ' if ordered else ' ORDER BY '}{positions}{cut[2]}"


def gather(file: Path, tables: list[Path]) -> None:
    with duckdb.connect(str(file)) as connection:
        for each in tables:
            connection.execute(f"CREATE TABLE {each.stem} AS FROM '{each}'")


if __name__ == "__main__":
    if sys.argv[1] == "gather":
        gather(Path(sys.argv[2]), [Path(each) for each in sys.argv[3:]])
    else:
        generate(float(sys.argv[1]), Path(sys.argv[2]))
