"""Services that are killed, in front of databases that are killed: nothing here is shared with other tests."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.faults.databases import Database, maria_database, postgres_database
from tests.faults.evaluated import World, world
from tests.faults.federation import POSTGRES_CONTENT, Side, two_sides
from tests.processes import ServiceProcess
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer

__all__ = ["Database", "Start"]

Start = Callable[..., ServiceProcess]


@pytest.fixture(scope="package")
def on_postgresql() -> Iterator[Database]:
    """A server of the tests in this folder alone; who ends it starts it again."""
    with PostgresServer() as server:
        yield postgres_database(server)


@pytest.fixture(scope="package")
def on_mariadb() -> Iterator[Database]:
    with MariaServer() as server:
        yield maria_database(server)


@pytest.fixture(scope="module", params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Database:
    """Each, or those that a test names: where what it shows is no matter of the database, one is enough."""
    database: Database = request.getfixturevalue(f"on_{request.param}")
    return database


@pytest.fixture(scope="package")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Side]]:
    """By alias, both databases with the tables of a federation, and a service in front of each."""
    with two_sides(tmp_path_factory.mktemp("sides")) as actual:
        yield actual


@pytest.fixture
def sides(both: Mapping[str, Side]) -> Mapping[str, Side]:
    """Both sides of a federation, running: a test ends what it wants."""
    for each in both.values():
        each.begin()
    return both


@pytest.fixture(scope="module")
def evaluated(both: Mapping[str, Side], tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A federation of both sides, with two evaluators."""
    for each in both.values():
        each.begin()
    with world(tmp_path_factory.mktemp("evaluated"), both) as setting:
        yield setting


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A service over another database, which has the same tables."""
    with PostgresServer() as server, ExitStack() as stack:
        postgres_database(server).run(*POSTGRES_CONTENT)
        service = ServiceProcess(tmp_path_factory.mktemp("replica"), {"copy": server.url})
        stack.callback(service.stop)
        yield service.start()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a service; it ends with the test and must leave nothing behind."""
    with ExitStack() as stack:

        def begin(**settings: Any) -> ServiceProcess:
            service = ServiceProcess(tmp_path / "service", **settings)
            stack.callback(service.stop)
            return service.start()

        yield begin


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this process makes temporary files during the test, empty at its begin."""
    actual = tmp_path / "temporary"
    actual.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(actual))
    return actual
