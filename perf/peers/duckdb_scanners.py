"""DuckDB with its scanner extensions. Settings are DuckDB's own, by name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from tempfile import gettempdir
from typing import Any
from urllib.parse import urlsplit

import duckdb

from perf.peers.serving import Opened, serve


def open_(urls: Mapping[str, str], settings: Mapping[str, Any]) -> Opened:
    # not in the project's directory: what a peer that is stopped has written there stays
    connection = duckdb.connect(config={"temp_directory": f"{gettempdir()}/dai-peer-duckdb"})
    for name in ("postgres", "mysql", "sqlite"):
        package = files(f"duckdb_extension_{name}_scanner")
        extension = package / "extensions" / f"v{duckdb.__version__}" / f"{name}_scanner.duckdb_extension"
        connection.execute(f"LOAD '{extension}'")
    for name, value in settings.items():
        connection.execute(f"SET {name} = '{value}'")
    for alias, url in urls.items():
        connection.execute(f"ATTACH '{target(url)}' AS {alias} (TYPE {kind(url)}, READ_ONLY)")

    def plan(sql: str) -> str:
        return "\n".join(row[1] for row in connection.execute(f"EXPLAIN ANALYZE {sql}").fetchall())

    return Opened(f"DuckDB {duckdb.__version__}", lambda sql: connection.sql(sql).to_arrow_table(), plan)


def kind(url: str) -> str:
    scheme = urlsplit(url).scheme
    return {"postgresql": "postgres", "mariadb": "mysql"}.get(scheme, scheme)


def target(url: str) -> str:
    """What ATTACH takes: a connection string, or a file."""
    parts = urlsplit(url)
    database = parts.path.removeprefix("/")
    if not parts.hostname:
        return database
    password, name = ("password", "dbname") if kind(url) == "postgres" else ("passwd", "database")
    return (
        f"host={parts.hostname} port={parts.port} user={parts.username} {password}={parts.password} {name}={database}"
    )


if __name__ == "__main__":
    serve(open_)
