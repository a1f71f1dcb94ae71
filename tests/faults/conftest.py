"""Services that are killed, in front of databases that are killed: nothing here is shared with other tests."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import MySQLdb
import psycopg
import pytest

from tests.processes import ServiceProcess
from tests.servers import MariaServer, PostgresServer

Start = Callable[..., ServiceProcess]


@dataclass(frozen=True)
class Database:
    """A database server, with a statement whose rows never end and one that never answers."""

    server: PostgresServer | MariaServer
    endless: str
    stuck: str
    busy: str
    """Asks how many statements of others run now."""
    connected: str
    """Asks how many connections others have."""

    def ask(self, sql: str) -> int:
        library: Any = psycopg if isinstance(self.server, PostgresServer) else MySQLdb
        dsn = self.server.dsn
        opened = library.connect(dsn) if isinstance(dsn, str) else library.connect(**dsn)
        with closing(opened) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(sql)
            (count,) = cursor.fetchone()
            return int(count)

    @property
    def at_work(self) -> int:
        return self.ask(self.busy)

    @property
    def connections(self) -> int:
        return self.ask(self.connected)


@pytest.fixture(scope="package", params=["postgresql", "mariadb"])
def database(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A server of the tests in this folder alone; who ends it starts it again."""
    others = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    listed = "from information_schema.processlist where user = 'dai' and id <> connection_id()"
    if request.param == "postgresql":
        with PostgresServer() as postgres:
            yield Database(
                postgres,
                # in the select list the series streams; in FROM the server would gather it first
                "select generate_series(1, 2000000000) as i, repeat('x', 200) as s",
                "select 1 as i, pg_sleep(600)::text as s",
                f"select count(*) {others} and state = 'active'",
                f"select count(*) {others}",
            )
    else:
        with MariaServer() as mariadb:
            yield Database(
                mariadb,
                "select seq as i, repeat('x', 200) as s from seq_1_to_2000000000",
                "select 1 as i, sleep(600) as s",
                f"select count(*) {listed} and command = 'Query'",
                f"select count(*) {listed}",
            )


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a service; it ends with the test and must leave nothing behind."""
    with ExitStack() as stack:

        def begin(**settings: Any) -> ServiceProcess:
            service = ServiceProcess(tmp_path / "service", **settings)
            stack.callback(service.stop)
            return service.start()

        yield begin
