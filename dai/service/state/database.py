"""The state database, opened: its transactions, and its errors as ours."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from dai.config.database_files import address
from dai.errors import ConfigurationError, DatabaseUnavailableError
from dai.service.state.file import StateFile, marked
from dai.service.state.tables import METADATA, add_columns
from dai.streams.files import check_writable, make_private

log = logging.getLogger("dai.service.state")

_STORES = {
    "service.state": "state database",
    "replicas.catalog": "database of the replica catalog",
    "registry.store": "database of the registry",
}


class Database:
    """Thread-safe. Raises DatabaseUnavailableError if it cannot be reached or written; ConfigurationError if it cannot
    be opened."""

    def __init__(self, url: str) -> None:
        self._file: StateFile | None = None
        parsed = make_url(url)
        sqlite = parsed.get_backend_name() == "sqlite"
        if parsed.drivername == "postgresql":
            # the PostgreSQL library that is installed with us is not SQLAlchemy's default
            parsed = parsed.set(drivername="postgresql+psycopg")
        in_memory = sqlite and parsed.database in (None, "", ":memory:")
        options: dict[str, Any] = {}
        if in_memory:
            # one connection holds the database, so everybody takes turns on it
            options = {"poolclass": sa.pool.QueuePool, "pool_size": 1, "max_overflow": 0}
        if sqlite:
            options["connect_args"] = {"timeout": 30, "check_same_thread": False}
        try:
            if sqlite and not in_memory:
                make_private(parsed.database)  # it has what callers asked
            self.engine = sa.create_engine(parsed, pool_pre_ping=not sqlite, **options)
            self.is_sqlite = sqlite
            if sqlite:
                sa.event.listen(self.engine, "connect", _prepare_sqlite)
            self.create(METADATA)
            add_columns(self.engine)
            if sqlite and not in_memory and not str(parsed.database).startswith("file:"):
                self._file = StateFile(Path(str(parsed.database)), marked(self.engine))
        except (SQLAlchemyError, OSError, ImportError) as error:
            raise _refused(url, "service.state", error) from error

    def create(self, tables: sa.MetaData) -> None:
        # a table of an earlier version may lack an index
        wanted: list[sa.Table | sa.Index] = [*tables.sorted_tables]
        wanted += [index for table in tables.sorted_tables for index in table.indexes]
        for each in wanted:
            try:
                each.create(self.engine, checkfirst=True)
            except SQLAlchemyError:  # another process makes the same at this moment: look again
                each.create(self.engine, checkfirst=True)

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        self._check_file()
        with translating(), self.engine.begin() as connection:
            yield connection

    @contextmanager
    def sqlite(self) -> Iterator[sqlite3.Connection]:
        """A transaction without SQLAlchemy, whose part of a short one is twice that of SQLite."""
        self._check_file()
        with translating(), closing(self.engine.raw_connection()) as pooled:  # which rolls back what is not committed
            connection: Any = pooled.driver_connection
            yield connection
            connection.commit()

    @contextmanager
    def durable(self) -> Iterator[sa.Connection]:
        """A transaction that is on the disk when it has ended; the others on SQLite may be lost with the power."""
        self._check_file()
        with translating(), self.engine.connect() as connection:
            if self.is_sqlite:  # not within a transaction
                connection.exec_driver_sql("PRAGMA synchronous=FULL")
                connection.commit()
            try:
                with connection.begin():
                    yield connection
            finally:
                if self.is_sqlite:
                    connection.exec_driver_sql("PRAGMA synchronous=NORMAL")
                    connection.commit()

    def close(self) -> None:
        self.engine.dispose()
        if self._file is not None:
            self._file.close()

    def _check_file(self) -> None:
        if self._file is not None:
            self._file.check()


def check_store(url: str, key: str) -> None:
    """ConfigurationError where the database of this ``key``, of the state or of other tables of ours, cannot be opened.
    A file is not made."""
    parsed = make_url(url)
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    file = None
    if parsed.get_backend_name() == "sqlite":
        if parsed.database in (None, "", ":memory:") or str(parsed.database).startswith("file:"):
            return
        file = Path(str(parsed.database))
    try:
        if file is not None:
            check_writable(file.parent)  # SQLite puts files beside it
            if not file.exists():
                return
            file.open("r+b").close()
        engine = sa.create_engine(parsed, poolclass=sa.pool.NullPool)
        with engine.connect() as connection:
            connection.execute(sa.select(sa.literal(1)) if file is None else sa.text("PRAGMA schema_version"))
    except (SQLAlchemyError, OSError, ImportError) as error:
        raise _refused(url, key, error) from error


def _refused(url: str, key: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"The {_STORES[key]} ({key}) cannot be opened: {_reason(error)}", hint=f"Check {key}: {address(url)}."
    )


def _reason(error: Exception) -> str:
    """In one line. SQLAlchemy adds its own words to those of the database."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    said = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(cause)
    return (said.strip() or type(cause).__name__).splitlines()[0].rstrip(".:") + "."


@contextmanager
def translating() -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _translated(error) from error


def _translated(error: Exception) -> DatabaseUnavailableError:
    log.error("the state database failed", exc_info=error)
    return DatabaseUnavailableError("The service cannot reach or write its own state.", hint="Try again later.")


def _prepare_sqlite(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()
