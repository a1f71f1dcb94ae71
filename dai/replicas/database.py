"""The database of a local replica catalog: SQLite, or PostgreSQL by URL.

The statements are the same for both; ``?`` stands for a value. They go to the database's own connection and not
through SQLAlchemy's, which takes longer for a look-up than the database does.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dai.errors import ConfigurationError, DatabaseUnavailableError

Row = tuple[Any, ...]
_SQLITE = (
    "pragma journal_mode=wal",
    # an acknowledged change is on the disk
    "pragma synchronous=full",
    "pragma busy_timeout=30000",
    "pragma case_sensitive_like=on",
    "pragma cache_size=-131072",
    "pragma mmap_size=1073741824",
    # names in no order touch many pages: they are written back seldom
    "pragma wal_autocheckpoint=16384",
)
_TABLES = """
create table if not exists dai_mappings (
    logical {name} not null, target {name} not null, primary key (logical, target)
){bare};
create index if not exists dai_mappings_by_target on dai_mappings (target, logical);
create table if not exists dai_attributes (
    name {name} not null, kind integer not null, type {name} not null, primary key (name, kind)
){bare};
create table if not exists dai_attribute_values (
    kind integer not null, key {name} not null, name {name} not null,
    text {name}, whole bigint, real double precision, primary key (kind, key, name)
){bare};
create index if not exists dai_values_by_text on dai_attribute_values (kind, name, text);
create index if not exists dai_values_by_whole on dai_attribute_values (kind, name, whole);
create index if not exists dai_values_by_real on dai_attribute_values (kind, name, real);
create table if not exists dai_indexes (
    url {name} not null, flags integer not null, pattern {name} not null, primary key (url, pattern)
){bare}"""
_LOCK = 0x6461695F7265  # "dai_re": the catalog's writers take turns


def among(column: str, sqlite: bool) -> str:
    """The condition that a column is one of the names of which ``listed`` makes a value."""
    return f"{column} in (select value from json_each(?))" if sqlite else f"{column} = any(?)"


def listed(names: Iterable[str], sqlite: bool) -> str | list[str]:
    return json.dumps(list(names)) if sqlite else list(names)


class Connection:
    """For one thread. Raises DatabaseUnavailableError."""

    def __init__(self, raw: Any, sqlite: bool) -> None:
        self._raw, self.sqlite = raw, sqlite
        self._cursor = raw.cursor()

    def all(self, statement: str, *values: Any) -> list[Row]:
        try:
            return self._cursor.execute(self._own(statement), values).fetchall()  # type: ignore[no-any-return]
        except Exception as error:
            raise _away(error) from error

    def run(self, statement: str, *values: Any) -> int:
        """How many rows it changed."""
        try:
            return int(self._cursor.execute(self._own(statement), values).rowcount)
        except Exception as error:
            raise _away(error) from error

    def many(self, statement: str, rows: Sequence[Row]) -> None:
        try:
            if rows:
                self._cursor.executemany(self._own(statement), rows)
        except Exception as error:
            raise _away(error) from error

    def among(self, column: str) -> str:
        return among(column, self.sqlite)

    def listed(self, names: Iterable[str]) -> str | list[str]:
        return listed(names, self.sqlite)

    def _own(self, statement: str) -> str:
        return statement if self.sqlite else statement.replace("?", "%s")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Alone with the catalog; committed at the end, undone where it fails."""
        self.run("begin immediate" if self.sqlite else "begin")
        try:
            if not self.sqlite:
                self.all(f"select pg_advisory_xact_lock({_LOCK})")
            yield
            self.run("commit")
        except BaseException:
            with suppress(DatabaseUnavailableError):
                self.run("rollback")
            raise

    def close(self) -> None:
        with suppress(Exception):
            self._raw.close()


class Database:
    """Where catalogs' connections come from. ``location``: a URL of SQLAlchemy."""

    def __init__(self, location: str) -> None:
        url = make_url(location)
        product = url.get_backend_name()
        if product not in ("sqlite", "postgresql"):
            raise ConfigurationError(
                f"replicas.catalog: a replica catalog is kept in SQLite or PostgreSQL, not in {product}."
            )
        self.sqlite = product == "sqlite"
        if self.sqlite and url.database in (None, "", ":memory:"):
            raise ConfigurationError(
                "replicas.catalog: a catalog in memory would be lost.", hint='It looks like "sqlite:///replicas.db".'
            )
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False} if self.sqlite else {}
        if not self.sqlite:
            url = url.set(drivername="postgresql+psycopg")
            options = {"autocommit": True, "connect_timeout": 10}
        self._engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args=options)
        self._file = url.database if self.sqlite else None
        connection = self.connect()
        names = {"name": "text", "bare": " without rowid"} if self.sqlite else {"name": 'text collate "C"', "bare": ""}
        try:
            with connection.transaction():
                for each in _TABLES.format_map(names).split(";"):
                    connection.run(each)
        finally:
            connection.close()
        if self._file:
            os.chmod(self._file, 0o600)

    def connect(self) -> Connection:
        try:
            raw = self._engine.raw_connection()
            raw.detach()
        except (SQLAlchemyError, OSError) as error:
            raise DatabaseUnavailableError("The database of the replica catalog cannot be reached.") from error
        connection = Connection(raw, self.sqlite)
        if self.sqlite:
            for each in _SQLITE:
                connection.all(each)
        return connection

    def close(self) -> None:
        self._engine.dispose()


def _away(error: Exception) -> Exception:
    if isinstance(error, DBAPIError) or type(error).__module__.split(".")[0] in ("sqlite3", "psycopg"):
        return DatabaseUnavailableError("The database of the replica catalog did not carry that out.")
    return error
