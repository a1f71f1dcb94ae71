"""One service in front of every database, for the tests of a module."""

import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest

from dai import dbapi
from dai.api.server.serve import Background
from tests.client.databases import Connect, served
from tests.servers.mariadb import MySQLServer


@pytest.fixture(scope="module")
def databases(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Background]:
    """Resources ``postgresql``, ``mariadb``, ``mysql`` (where there is one), ``sqlite``, ``duckdb``; a federation
    ``lab``."""
    directory = tmp_path_factory.mktemp("service")
    sqlite3.connect(directory / "data.db").close()
    urls = {"sqlite": f"sqlite:///{directory}/data.db", "duckdb": f"duckdb:///{directory}/data.duckdb"}
    for name, fixture in (
        ("postgresql", "postgres_module_url"),
        ("mariadb", "mariadb_module_url"),
        ("mysql", "mysql_module_url"),
    ):
        if name != "mysql" or MySQLServer.found():
            urls[name] = request.getfixturevalue(fixture)
    with served(directory, urls) as running:
        yield running


@pytest.fixture
def connect(databases: Background) -> Iterator[Connect]:
    """A connection to a resource of that name."""
    made: list[dbapi.Connection] = []

    def connected(name: str, **options: Any) -> dbapi.Connection:
        if name == "mysql" and not MySQLServer.found():
            pytest.skip("there is no MySQL here")
        made.append(dbapi.connect(f"{databases.url}/{name}", **options))
        return made[-1]

    yield connected
    for each in made:
        each.close()
