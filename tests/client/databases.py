"""One service in front of every database, and a federation over two of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dai.api.server.serve import Background, background
from dai.config import parse
from tests.processes import WRITABLE

DATABASES = ("postgresql", "mariadb", "mysql", "sqlite", "duckdb")


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
