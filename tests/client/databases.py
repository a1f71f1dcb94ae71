"""One service in front of every database, and a federation over two of them."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dai import dbapi
from dai.api.server.serve import Background, background
from dai.config import parse
from tests.processes import WRITABLE

Connect = Callable[..., dbapi.Connection]
DATABASES = ("postgresql", "mariadb", "mysql", "sqlite", "duckdb")
BINARY = {"postgresql": "bytea", "mariadb": "blob", "mysql": "blob", "sqlite": "blob", "duckdb": "blob"}
MOMENT = {"mariadb": "datetime(6)", "mysql": "datetime(6)"}


@contextmanager
def served(directory: Path, urls: Mapping[str, str], **sections: Any) -> Iterator[Background]:
    """Resources by name, and with ``postgresql`` and ``sqlite`` among them the federation ``lab``."""
    federations = {}
    if {"postgresql", "sqlite"} <= set(urls):
        sources = [{"alias": "pg", "resource": "postgresql"}, {"alias": "lite", "resource": "sqlite"}]
        federations = {"federations": {"lab": {"sources": sources}}}
    config = parse(
        {
            "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
            "resources": {name: {"url": url, "pool_size": 4} for name, url in urls.items()},
            **WRITABLE,
            **federations,
            **sections,
        },
        directory,
        environment={},
    )
    with background(config) as running:
        yield running


def table(connection: dbapi.Connection, name: str, columns: str) -> str:
    """An empty table of that name."""
    connection.execute(f"drop table if exists {name}")
    connection.execute(f"create table {name} ({columns})")
    return name
