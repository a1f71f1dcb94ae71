"""A PostgreSQL server."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.servers import DATABASE, PASSWORD, USER, Server


@dataclass
class PostgresServer(Server):
    """PostgreSQL; `dai` is a superuser."""

    product = "PostgreSQL"
    scheme = "postgresql"
    system_user = "postgres"
    package = "postgresql"
    stop_signal = signal.SIGINT  # "fast": break connections, then shut down in order
    watchdog_signal = "QUIT"  # "immediate": also removes the shared memory
    defaults: Mapping[str, str | int] = field(
        init=False,
        default_factory=lambda: {
            "max_connections": 300,
            "shared_buffers": "128MB",
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "autovacuum": "off",
            "max_wal_size": "2GB",
        },
    )

    @property
    def dsn(self) -> str:
        """libpq connection string over TCP, as psycopg and ADBC take it."""
        return self.url

    @property
    def socket_dsn(self) -> str:
        """libpq connection string over the Unix socket."""
        return f"host={self.directory} port={self.port} user={USER} dbname={DATABASE}"

    def create_database(self, name: str) -> str:
        self._execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        return self.url_of(name)

    def drop_database(self, name: str) -> None:
        self._execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _execute(self, statement: str, database: str = DATABASE) -> None:
        import psycopg

        with psycopg.connect(self.url_of(database), autocommit=True) as connection:
            connection.execute(statement.encode())

    def _initialise(self) -> None:
        password = self._write("password", PASSWORD)
        # With SCRAM each of the thousands of connections takes 9 ms of a processor more than these 7: it hashes 4,096
        # times, on both sides.
        self._run(
            *(self._binary("initdb"), "--pgdata", str(self.directory / "data"), "--username", USER),
            *("--pwfile", str(password), "--auth-local=trust", "--auth-host=md5"),
            *("--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"),
        )

    def _command(self) -> Sequence[str]:
        settings = {**self.defaults, **self.settings}
        settings |= {"listen_addresses": "127.0.0.1", "unix_socket_directories": str(self.directory)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [self._binary("postgres"), "-D", str(self.directory / "data"), "-p", str(self.port), *options]

    def _answers(self) -> bool:
        import psycopg

        try:
            self._execute("SELECT 1", "postgres")
            try:
                self._execute("SELECT 1")
            except psycopg.OperationalError:  # the first start: our database is not there yet
                self._execute(f"CREATE DATABASE {DATABASE} TEMPLATE template0", "postgres")
        except psycopg.OperationalError:
            return False
        return True
