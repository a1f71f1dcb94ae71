"""The database of a local replica catalog: SQLite, or PostgreSQL by URL.

The statements are the same for both; ``?`` stands for a value. They go to the database's own connection and not
through SQLAlchemy's, which takes longer for a look-up than the database does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import orjson
import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dai.errors import DatabaseUnavailableError
from dai.streams.files import make_private

Row = tuple[Any, ...]
_SQLITE = (
    "pragma journal_mode=wal",
    # an acknowledged change is on the disk
    "pragma synchronous=full",
    "pragma busy_timeout=30000",
    "pragma case_sensitive_like=on",
    # more than the pages that a large transaction changes
    "pragma cache_size=-196608",
    "pragma mmap_size=1073741824",
    # names in no order touch many pages: they are written back seldom
    "pragma wal_autocheckpoint=16384",
    "pragma journal_size_limit=67108864",
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
){bare};
create table if not exists dai_redone (up_to bigint not null)"""
_LOCK = 0x6461695F7265  # "dai_re": the catalog's writers take turns


def among(column: str, sqlite: bool) -> str:
    """The condition that a column is one of the names of which ``listed`` makes a value."""
    return f"{column} in (select value from json_each(?))" if sqlite else f"{column} = any(?)"


def present(column: str, sqlite: bool) -> str:
    """The statement that selects, of the names of which ``listed`` makes a value, those that mappings have in a
    column: it looks for one mapping each, however many there are."""
    asked = "select value as name from json_each(?)" if sqlite else "select * from unnest(?::text[]) as names (name)"
    return f"select name from ({asked}) asked where exists (select 1 from dai_mappings where {column} = asked.name)"


def listed(names: Iterable[str], sqlite: bool) -> str | list[str]:
    return orjson.dumps(list(names)).decode() if sqlite else list(names)


class Connection:
    """For one thread. Raises DatabaseUnavailableError. ``changed``: the statements that changed something with their
    values, as ``many`` takes them, where somebody wants to know."""

    def __init__(self, raw: Any, sqlite: bool) -> None:
        self._raw, self.sqlite = raw, sqlite
        self._cursor = raw.cursor()
        self.changed: list[tuple[str, Sequence[Row]]] | None = None

    def all(self, statement: str, *values: Any) -> list[Row]:
        try:
            return self._cursor.execute(self._own(statement), values).fetchall()  # type: ignore[no-any-return]
        except Exception as error:
            raise _away(error) from error

    def run(self, statement: str, *values: Any) -> int:
        """How many rows it changed."""
        count = self.control(statement, *values)
        if self.changed is not None:
            self.changed.append((statement, [values]))
        return count

    def control(self, statement: str, *values: Any) -> int:
        """As ``run``, of what changes no rows, or nobody is to know of."""
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
        if rows and self.changed is not None:
            self.changed.append((statement, rows))

    def listed(self, names: Iterable[str]) -> str | list[str]:
        return listed(names, self.sqlite)

    def _own(self, statement: str) -> str:
        return statement if self.sqlite else statement.replace("?", "%s")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Alone with the catalog; committed at the end, undone where it fails."""
        self.begin()
        try:
            yield
            self.control("commit")
        except BaseException:
            with suppress(DatabaseUnavailableError):
                self.control("rollback")
            raise

    def begin(self) -> None:
        """A transaction, alone with the catalog."""
        self.control("begin immediate" if self.sqlite else "begin")
        if not self.sqlite:
            self.all(f"select pg_advisory_xact_lock({_LOCK})")

    def close(self) -> None:
        with suppress(Exception):
            self._raw.close()


class Database:
    """Where catalogs' connections come from. ``location``: a URL of SQLAlchemy."""

    def __init__(self, location: str) -> None:
        url = make_url(location)
        self.sqlite = url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {"isolation_level": None, "check_same_thread": False} if self.sqlite else {}
        if not self.sqlite:
            url = url.set(drivername="postgresql+psycopg")
            options = {"autocommit": True, "connect_timeout": 10}
        self._url, self._options = url, options
        if self.sqlite:
            make_private(url.database)
        self._engine = sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args=options)
        connection = self.connect()
        names = {"name": "text", "bare": " without rowid"} if self.sqlite else {"name": 'text collate "C"', "bare": ""}
        try:
            with connection.transaction():
                for each in _TABLES.format_map(names).split(";"):
                    connection.control(each)
        finally:
            connection.close()
        if self.sqlite and url.database:
            os.chmod(url.database, 0o600)

    def connect(self) -> Connection:
        return self._connected(self._engine)

    def beside(self, suffix: str) -> Connection | None:
        """To a database in a file beside that of SQLite; None where there is no such file."""
        if not self.sqlite or not self._url.database or self._url.query:
            return None
        url = self._url.set(database=self._url.database + suffix)
        make_private(url.database)
        connection = self._connected(sa.create_engine(url, poolclass=sa.pool.NullPool, connect_args=self._options))
        os.chmod(url.database or "", 0o600)
        return connection

    def _connected(self, engine: sa.Engine) -> Connection:
        try:
            raw = engine.raw_connection()
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
        return DatabaseUnavailableError("The database of the replica catalog failed at this operation.")
    return error
