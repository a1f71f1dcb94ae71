"""MariaDB servers, and those of MySQL, which differ in how they are made and started."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers import DATABASE, PASSWORD, USER, Server

MYSQL = Path(__file__).parents[2] / "var" / "mysql"
_ALIKE: Mapping[str, str | int] = {
    "max-connections": 300,
    "local-infile": 1,
    "innodb-buffer-pool-size": "128M",
    "innodb-flush-log-at-trx-commit": 0,
    "innodb-flush-method": "nosync",
    "max-allowed-packet": "64M",
    "character-set-server": "utf8mb4",
}
"""Of MariaDB and MySQL."""


@dataclass
class MariaServer(Server):
    """MariaDB; `dai` has every privilege, and LOAD DATA LOCAL INFILE is allowed."""

    product = "MariaDB"
    scheme = "mariadb"
    system_user = "mysql"
    package = "mariadb-server"
    defaults: Mapping[str, str | int] = field(
        init=False,
        default_factory=lambda: {
            **_ALIKE,
            "innodb-doublewrite": 0,
            "innodb-log-file-size": "256M",
            "ssl": 0,  # MariaDB from 11.4 on makes itself a certificate
        },
    )

    @property
    def dsn(self) -> dict[str, Any]:
        """Keyword arguments for `MySQLdb.connect` over TCP."""
        return {"host": "127.0.0.1", "port": self.port, "user": USER, "password": PASSWORD, "database": DATABASE}

    @property
    def socket_dsn(self) -> dict[str, Any]:
        """Keyword arguments for `MySQLdb.connect` over the Unix socket."""
        return {"unix_socket": str(self._socket), "user": USER, "password": PASSWORD, "database": DATABASE}

    @property
    def _socket(self) -> Path:
        return self.directory / "server.sock"

    def create_database(self, name: str) -> str:
        self._execute(f"CREATE DATABASE `{name}`")
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        import MySQLdb

        # An open transaction would make the DROP wait for its metadata locks.
        for (thread,) in self._execute(f"SELECT id FROM information_schema.processlist WHERE db = '{name}'"):
            with contextlib.suppress(MySQLdb.OperationalError):  # 1094: gone in the meantime
                self._execute(f"KILL CONNECTION {thread}")
        self._execute(f"DROP DATABASE IF EXISTS `{name}`")

    def _execute(self, statement: str) -> Sequence[tuple[Any, ...]]:
        import MySQLdb

        connection = MySQLdb.connect(**self.dsn, connect_timeout=5, autocommit=True)
        try:
            cursor = connection.cursor()
            cursor.execute(statement)
            return list(cursor.fetchall())
        finally:
            connection.close()

    def _initialise(self) -> None:
        self._run(
            *(self._binary("mariadb-install-db"), "--no-defaults", f"--datadir={self.directory / 'data'}"),
            *("--auth-root-authentication-method=normal", "--skip-test-db", f"--tmpdir={self.directory}"),
        )
        self._write_initial_statements()

    def _write_initial_statements(self) -> None:
        """Run at every start, as the root of the database."""
        self._write(
            "init.sql",
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n"
            + "".join(
                f"CREATE USER IF NOT EXISTS '{USER}'@'{host}' IDENTIFIED BY '{PASSWORD}';\n"
                f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'{host}' WITH GRANT OPTION;\n"
                for host in ("127.0.0.1", "localhost")
            ),
        )

    def _command(self) -> Sequence[str]:
        return [self._binary("mariadbd", "mysqld"), "--no-defaults", "--skip-name-resolve", *self._options()]

    def _options(self) -> Sequence[str]:
        settings = {**self.defaults, **self.settings}
        settings |= {"bind-address": "127.0.0.1", "port": self.port, "socket": str(self._socket)}
        settings |= {"datadir": str(self.directory / "data"), "init-file": str(self.directory / "init.sql")}
        # Of its own: a server that starts removes the temporary tables that it finds, those of others too.
        settings["tmpdir"] = str(self.directory)
        return [f"--{name}={value}" for name, value in settings.items()]

    def _answers(self) -> bool:
        import MySQLdb

        try:
            self._execute("SELECT 1")
        except MySQLdb.OperationalError:
            return False
        return True


@dataclass
class MySQLServer(MariaServer):
    """MySQL, where `scripts/mysql-server` has put it (`found`). It runs as the caller, who can surely read that."""

    product = "MySQL"
    scheme = "mysql"
    defaults: Mapping[str, str | int] = field(
        init=False,
        default_factory=lambda: {
            **_ALIKE,
            "innodb-doublewrite": "OFF",
            "innodb-redo-log-capacity": "256M",
            "performance-schema": "OFF",
            "disable-log-bin": 1,
            "mysqlx": 0,
        },
    )

    @classmethod
    def found(cls) -> bool:
        return (MYSQL / "usr/sbin/mysqld").exists()

    @property
    def _user(self) -> None:
        return None

    def _initialise(self) -> None:
        self._run(*self._program(), "--initialize-insecure", "--innodb-redo-log-capacity=64M")
        self._write_initial_statements()

    def _program(self) -> Sequence[str]:
        libraries, usr = str(MYSQL / "usr/lib/x86_64-linux-gnu"), MYSQL / "usr"
        return [
            *(f"{libraries}/ld-linux-x86-64.so.2", "--library-path", libraries, str(usr / "sbin/mysqld")),
            *("--no-defaults", f"--basedir={usr}", f"--lc-messages-dir={usr / 'share/mysql'}"),
            *(f"--character-sets-dir={usr / 'share/mysql/charsets'}", f"--plugin-dir={usr / 'lib/mysql/plugin'}"),
            *(f"--datadir={self.directory / 'data'}", f"--tmpdir={self.directory}", "--secure-file-priv=NULL"),
            *(["--user=root"] if os.geteuid() == 0 else []),
        ]

    def _command(self) -> Sequence[str]:
        return [*self._program(), "--skip-name-resolve", *self._options()]
