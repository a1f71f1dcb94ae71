"""A database of each dialect with the table of edge values."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dqp.dialects.edges import Edge, edge
from tests.servers.mariadb import MySQLServer

NAMES = ("postgresql", "mariadb", "sqlite", "duckdb", *(["mysql"] if MySQLServer.found() else []))


@pytest.fixture(scope="module", params=NAMES)
def edges(
    request: pytest.FixtureRequest,
    postgres_module_url: str,
    mariadb_module_url: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Edge]:
    folder: Path = tmp_path_factory.mktemp("edges")
    urls = {
        "postgresql": postgres_module_url,
        "mariadb": mariadb_module_url,
        "sqlite": f"sqlite:///{folder / 'edge.db'}",
        "duckdb": f"duckdb:///{folder / 'edge.duckdb'}",
    }
    if request.param == "mysql":
        urls["mysql"] = request.getfixturevalue("mysql_module_url")
    made = edge(request.param, urls[request.param])
    try:
        yield made
    finally:
        made.catalog.close()
