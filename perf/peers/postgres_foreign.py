"""PostgreSQL with foreign tables: a database of its own, whose schemas ``pg`` and ``maria`` are those of the sources.

Needs no process beside the server's. postgres_fdw comes with PostgreSQL, mysql_fdw with a Debian package of its own
(``perf/peers/install``). Statistics of the foreign tables are taken where the wrapper can (mysql_fdw cannot); without
nested loops, which send a statement a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

import psycopg
import pyarrow as pa
from psycopg import sql
from sqlalchemy import make_url

from perf.peers import PeerError
from tests.servers.postgresql import PostgresServer

ROWS_A_FETCH = "50000"


class PostgresForeign:
    """The same faces as ``Peer``; ``server`` is where its database is made."""

    def __init__(self, server: PostgresServer, urls: Mapping[str, str]) -> None:
        self._connection = psycopg.connect(server.create_database("foreign_tables"), autocommit=True)
        self._answer = pa.table({})
        try:
            for alias, url in urls.items():
                self._import(alias, url)
            self._connection.execute("SET enable_nestloop = off")
        except psycopg.Error as error:
            self.close()
            raise PeerError(str(error)) from error
        self.product = f"PostgreSQL {self._connection.info.server_version // 10000}"

    def _import(self, alias: str, address: str) -> None:
        """The tables of a source as foreign tables in a schema of its alias."""
        url = make_url(address)
        is_postgres = url.get_backend_name() == "postgresql"
        wrapper, user = ("postgres_fdw", "user") if is_postgres else ("mysql_fdw", "username")
        database = url.database or ""
        options = {"host": str(url.host), "port": str(url.port), "fetch_size": ROWS_A_FETCH}
        if is_postgres:
            options |= {"dbname": database, "use_remote_estimate": "true"}
        login = {user: str(url.username), "password": str(url.password)}
        name, extension = sql.Identifier(alias), sql.Identifier(wrapper)
        for statement in (
            sql.SQL("CREATE EXTENSION IF NOT EXISTS {}").format(extension),
            sql.SQL("CREATE SERVER {} FOREIGN DATA WRAPPER {} OPTIONS ({})").format(name, extension, _options(options)),
            sql.SQL("CREATE USER MAPPING FOR CURRENT_USER SERVER {} OPTIONS ({})").format(name, _options(login)),
            sql.SQL("CREATE SCHEMA {}").format(name),
            sql.SQL("IMPORT FOREIGN SCHEMA {} FROM SERVER {} INTO {}").format(
                sql.Identifier("public" if is_postgres else database), name, name
            ),
        ):
            self._connection.execute(statement)
        if is_postgres:
            self._connection.execute("ANALYZE")
        else:
            self._truths(alias)

    def _truths(self, alias: str) -> None:
        """``flag`` arrives as the tinyint that MariaDB keeps; here it is a boolean."""
        self._connection.execute(
            sql.SQL("ALTER FOREIGN TABLE {}.big10 ALTER COLUMN flag TYPE boolean").format(sql.Identifier(alias))
        )

    def run(self, query: str) -> None:
        try:
            cursor = self._connection.execute(query.encode())
            rows = cursor.fetchall()
        except psycopg.Error as error:
            raise PeerError(str(error)) from error
        columns: list[list[Any]] = [list(column) for column in zip(*rows, strict=True)]
        columns = columns or [[] for _ in cursor.description or ()]
        self._answer = pa.table(columns, names=[str(at) for at in range(len(columns))])

    def result(self) -> pa.Table:
        return self._answer

    def plan(self, query: str) -> str:
        """PostgreSQL's own account, with the statements that it sends."""
        return "\n".join(row[0] for row in self._connection.execute(f"EXPLAIN VERBOSE {query}".encode()))

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _options(values: Mapping[str, str]) -> sql.Composable:
    pairs = [sql.SQL("{} {}").format(sql.Identifier(name), sql.Literal(value)) for name, value in values.items()]
    return sql.SQL(", ").join(pairs)
