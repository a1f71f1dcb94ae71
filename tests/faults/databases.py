"""Database servers as the tests of faults see them."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import MySQLdb
import psycopg

from tests.servers import DATABASE
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer


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
        with closing(self._connected()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(sql)
            (count,) = cursor.fetchone()
            return int(count)

    def run(self, *statements: str, name: str = DATABASE) -> None:
        """In the database of that name."""
        with closing(self._connected(name)) as connection, closing(connection.cursor()) as cursor:
            for each in statements:
                cursor.execute(each)
                if cursor.description is not None:
                    cursor.fetchall()
            connection.commit()

    @contextmanager
    def holding(self, lock: str) -> Iterator[None]:
        """A connection that holds a lock."""
        with closing(self._connected()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(lock)
            yield

    def _connected(self, name: str = DATABASE) -> Any:
        if isinstance(self.server, PostgresServer):
            return psycopg.connect(self.server.url_of(name))
        return MySQLdb.connect(**{**self.server.dsn, "database": name})

    @property
    def at_work(self) -> int:
        return self.ask(self.busy)

    @property
    def connections(self) -> int:
        return self.ask(self.connected)


def postgres_database(server: PostgresServer) -> Database:
    others = "from pg_stat_activity where backend_type = 'client backend' and pid <> pg_backend_pid()"
    return Database(
        server,
        # in the select list the series streams; in FROM the server would gather it first
        "select generate_series(1, 2000000000) as i, repeat('x', 200) as s",
        "select 1 as i, pg_sleep(600)::text as s",
        f"select count(*) {others} and state = 'active'",
        f"select count(*) {others}",
    )


def maria_database(server: MariaServer) -> Database:
    listed = "from information_schema.processlist where user = 'dai' and id <> connection_id()"
    return Database(
        server,
        "select seq as i, repeat('x', 200) as s from seq_1_to_2000000000",
        "select 1 as i, sleep(600) as s",
        f"select count(*) {listed} and command = 'Query'",
        f"select count(*) {listed}",
    )
