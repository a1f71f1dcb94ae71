"""The servers that the other tests stand on: ready, restartable, killable, and gone afterwards."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import MySQLdb
import psutil
import psycopg
import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.exc import DBAPIError

from tests.servers import Server
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer

Connect = Callable[[], Any]


@pytest.fixture(params=[PostgresServer, MariaServer], scope="module")
def own(request: pytest.FixtureRequest) -> Iterator[tuple[Server, Connect]]:
    """A server of this module's own: the session's are not killed under the other tests."""
    with request.param() as server:
        connect = psycopg.connect if isinstance(server, PostgresServer) else MySQLdb.connect
        yield server, lambda: _connect(connect, server.dsn)


def _connect(connect: Callable[..., Any], dsn: Any) -> Any:
    return closing(connect(dsn) if isinstance(dsn, str) else connect(**dsn))


def _driver(url: str) -> str:
    return url.replace("postgresql:", "postgresql+psycopg:").replace("mariadb:", "mariadb+mysqldb:")


def _rows(connect: Connect, statement: str) -> list[tuple[Any, ...]]:
    with connect() as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        rows = list(cursor.fetchall()) if cursor.description else []
        connection.commit()
        return rows


def test_committed_rows_survive_restart_and_kill(own: tuple[Server, Connect]) -> None:
    server, connect = own
    port = server.port
    _rows(connect, "CREATE TABLE kept (n int)")
    _rows(connect, "INSERT INTO kept VALUES (1)")
    server.restart()
    assert _rows(connect, "SELECT n FROM kept") == [(1,)]
    if isinstance(server, PostgresServer):
        _rows(connect, "CHECKPOINT")
    server.kill()
    with pytest.raises((psycopg.OperationalError, MySQLdb.OperationalError)):
        _rows(connect, "SELECT 1")
    server.start()
    assert server.port == port
    assert _rows(connect, "SELECT n FROM kept") == [(1,)]


def test_server_does_not_run_as_root(own: tuple[Server, Connect]) -> None:
    server, _ = own
    assert psutil.Process(server.pid).uids().real != 0


def test_server_listens_on_loopback_alone(own: tuple[Server, Connect]) -> None:
    server, _ = own
    listening = [c for c in psutil.Process(server.pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}


def test_settings(postgres: PostgresServer, mariadb: MariaServer) -> None:
    with psycopg.connect(postgres.socket_dsn) as connection:
        row = connection.execute("SELECT current_setting('max_connections')::int").fetchone()
        assert row == (300,)
    with closing(MySQLdb.connect(**mariadb.socket_dsn)) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT @@max_connections, @@local_infile, @@character_set_database")
        assert cursor.fetchone() == (300, 1, "utf8mb4")


def test_settings_are_overridable() -> None:
    with PostgresServer({"work_mem": "7MB"}) as server, psycopg.connect(server.dsn) as connection:
        assert connection.execute("SHOW work_mem").fetchone() == ("7MB",)


@pytest.mark.parametrize("which", ["postgres_url", "mariadb_url"])
def test_each_test_has_an_empty_database(which: str, request: pytest.FixtureRequest) -> None:
    engine = create_engine(_driver(request.getfixturevalue(which)))
    assert inspect(engine).get_table_names() == []
    engine.dispose()


@pytest.mark.parametrize("which", ["postgres", "mariadb"])
def test_dropping_a_database_does_not_wait_for_an_open_transaction(which: str, request: pytest.FixtureRequest) -> None:
    server = request.getfixturevalue(which)
    engine = create_engine(_driver(server.create_database("left_open")))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE busy (n int)"))
    connection = engine.connect()
    connection.execute(text("INSERT INTO busy VALUES (1)"))
    server.drop_database("left_open")
    with pytest.raises(DBAPIError):
        connection.execute(text("SELECT 1"))
    connection.close()
    engine.dispose()


@pytest.mark.parametrize("product", ["postgresql", "mariadb"])
def test_server_goes_with_the_process_that_started_it(product: str) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "tests.servers", product, "--seconds", "300"],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert started.stdout is not None
        assert started.stdout.readline().startswith(f"{product}://")
        servers = [c for c in psutil.Process(started.pid).children() if c.name() in {"postgres", "mariadbd", "mysqld"}]
        assert len(servers) == 1
        directory = Path(servers[0].cwd())
    finally:
        os.kill(started.pid, signal.SIGKILL)
        started.communicate()
    deadline = time.monotonic() + 90
    while (servers[0].is_running() or directory.exists()) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not servers[0].is_running()
    assert not directory.exists()
