"""Fixtures every test may use: real database servers (one of each a session) and an empty database in each.

`postgres_url` and `mariadb_url` are a fresh database a test; `postgres_module_url` and `mariadb_module_url` one a
test module, for data that is loaded once and read by many tests.
"""

import functools
import gc
import inspect
import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import settings

from tests.scheduling import by_file, in_order, needs_server, starts_servers
from tests.servers import Server
from tests.servers.mariadb import MariaServer, MySQLServer
from tests.servers.postgresql import PostgresServer
from tests.thoroughness import examples

# No timed assertion: the machine may be busy.
settings.register_profile("dai", deadline=None, print_blob=True, max_examples=examples(100))
# The same examples in every run: what is new is found at a desk, not in somebody else's change.
settings.register_profile("ci", settings.get_profile("dai"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "dai")

# What is loaded and collected stays: no search for garbage goes through it, now or later (half of the time of a
# collection).
gc.disable()

_numbers = itertools.count(1)


def _as_tests_need() -> None:
    """Clients without wishes of their own share one context of TLS: each would read the authorities of the system
    again, 36 ms of a processor, and tests that wait for something make a client every 10 ms. They wait a minute for an
    answer, not five seconds: the machine may be busy."""
    transport = sys.modules["httpx._transports.default"]
    made, public = httpx.create_ssl_context, functools.cache(httpx.create_ssl_context)

    def context(verify: Any = True, cert: Any = None, trust_env: bool = True) -> Any:
        return public() if verify is True and cert is None else made(verify, cert, trust_env)

    setattr(transport, "create_ssl_context", context)  # noqa: B010 -- mypy: it is a name for its package alone
    default = inspect.signature(httpx.Client).parameters["timeout"].default
    default.connect = default.read = default.write = default.pool = 60.0


_as_tests_need()


@pytest.fixture(scope="session")
def marked(request: pytest.FixtureRequest) -> None:
    """Tests without servers start none, whatever way they come to one."""
    assert request.config.getoption("markexpr") != "not server", "mark this test: pytestmark = pytest.mark.server"


@pytest.fixture(scope="session")
def postgres(marked: None) -> Iterator[PostgresServer]:
    """A PostgreSQL server. A test that stops or kills it starts it again."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb(marked: None) -> Iterator[MariaServer]:
    """A MariaDB server. A test that stops or kills it starts it again."""
    with MariaServer() as server:
        yield server


@pytest.fixture(scope="session")
def mysql(marked: None) -> Iterator[MySQLServer]:
    """A MySQL server, for tests that ask for it where there is one (`MySQLServer.found`)."""
    with MySQLServer() as server:
        yield server


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files of which no test would be left are not loaded."""
    left_out = config.getoption("markexpr") == "not server" and collection_path.name.startswith("test_")
    return True if left_out and starts_servers(collection_path) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items[:] = in_order(items)  # pytest then brings together what shares a server
    for each in items:
        if needs_server(each):
            each.add_marker("server")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return by_file(config, log)


def pytest_report_header() -> str:
    return "MySQL: " + ("tested" if MySQLServer.found() else "NOT TESTED, scripts/mysql-server could not fetch it")


@pytest.fixture
def postgres_url(postgres: PostgresServer) -> Iterator[str]:
    with _database(postgres) as url:
        yield url


@pytest.fixture
def mariadb_url(mariadb: MariaServer) -> Iterator[str]:
    with _database(mariadb) as url:
        yield url


@pytest.fixture
def mysql_url(mysql: MySQLServer) -> Iterator[str]:
    with _database(mysql) as url:
        yield url


@pytest.fixture(scope="module")
def postgres_module_url(postgres: PostgresServer) -> Iterator[str]:
    with _database(postgres) as url:
        yield url


@pytest.fixture(scope="module")
def mariadb_module_url(mariadb: MariaServer) -> Iterator[str]:
    with _database(mariadb) as url:
        yield url


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def duckdb_url(tmp_path: Path) -> str:
    """A DuckDB file that does not exist yet."""
    return f"duckdb:///{tmp_path / 'test.duckdb'}"


@pytest.fixture(scope="module")
def mysql_module_url(mysql: MySQLServer) -> Iterator[str]:
    with _database(mysql) as url:
        yield url


@contextmanager
def _database(server: Server) -> Iterator[str]:
    name = f"test_{next(_numbers)}"
    url = server.create_database(name)
    try:
        yield url
    finally:
        server.drop_database(name)
