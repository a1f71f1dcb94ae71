"""XML documents in collections, in a database: SQLite or PostgreSQL, through SQLAlchemy Core.

A collection has a path, ``musicians/folksingers``; the topmost one, ``""``, is always there. A document has a name in
its collection. Everything goes through a ``Transaction``: one that reads sees the documents of one moment however long
it takes, one that writes is alone with its collections and is committed as a whole.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from dai.drivers import DriverOptions
from dai.errors import (
    BusyError,
    ConflictError,
    DaiError,
    DatabaseUnavailableError,
    LimitError,
    NotFoundError,
    ParameterError,
)
from dai.plugins import nearest
from dai.streams.cancellation import Cancellation
from dai.streams.files import make_private

log = logging.getLogger("dai.drivers.collections")

CHUNK_BYTES = 1 << 20
_FIRST_BYTES = 1 << 16
"""A search begins with less, so that its first results come early."""
_CHUNK_ROWS = 1000
_LOG_BYTES = 64 << 20
_MOST_NAME = 255
_LOCK_SECONDS = 0.05
_RETRY_SECONDS = 0.01
_MAKING = 0x6461695F786D  # "dai_xm"
"""The advisory lock of PostgreSQL under which one process makes the tables."""
_LOCK_TIMEOUT = "55P03"  # PostgreSQL, appendix A: lock_not_available
_BUSY = "Another request changes these XML collections."

_metadata = sa.MetaData()
_collections = sa.Table(
    "dai_xml_collections",
    _metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("parent", sa.Integer, index=True),
    sa.Column("path", sa.String(4000), nullable=False, unique=True),
)
_documents = sa.Table(
    "dai_xml_documents",
    _metadata,
    # SQLite has a number of its own only in a column of this type
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer, "sqlite"), primary_key=True),
    sa.Column("collection", sa.Integer, nullable=False),
    sa.Column("name", sa.String(_MOST_NAME), nullable=False),
    sa.Column("bytes", sa.Integer, nullable=False),
    sa.Column("content", sa.LargeBinary, nullable=False),
    sa.Index("dai_xml_names", "collection", "name", unique=True),
    # what a search looks up before it reads any document
    sa.Index("dai_xml_sizes", "collection", "id", "bytes"),
    sqlite_autoincrement=True,
)


@dataclass(frozen=True, slots=True)
class Document:
    """``id`` grows in the order in which documents were stored."""

    id: int
    name: str
    content: bytes


class Store:
    """Thread-safe. Raises DatabaseUnavailableError where the database cannot be reached or written, BusyError where no
    connection comes free, or another transaction writes, for ``pool_wait`` seconds."""

    def __init__(self, url: str, options: DriverOptions) -> None:
        self._url, self._options = make_url(url), options
        self._sqlite = self._url.get_backend_name() == "sqlite"
        arguments: dict[str, Any] = {"connect_timeout": max(1, round(options.connect_wait))}
        if self._sqlite:
            # transactions begin where we say so; whoever waits for a lock looks at its cancellation meanwhile
            arguments = {"timeout": _LOCK_SECONDS, "check_same_thread": False, "isolation_level": None}
        elif self._url.drivername == "postgresql":
            # the PostgreSQL library that is installed with us is not SQLAlchemy's default
            self._url = self._url.set(drivername="postgresql+psycopg")
        self._engine = sa.create_engine(
            self._url,
            poolclass=sa.pool.QueuePool,
            pool_size=options.pool_size,
            max_overflow=0,
            pool_timeout=options.pool_wait,
            pool_pre_ping=not self._sqlite,
            connect_args=arguments,
        )
        if self._sqlite:
            sa.event.listen(self._engine, "connect", _bound_log)
        self._lock = threading.Lock()
        self._ready = False

    def product(self) -> str:
        """Of the database, with its version."""
        with self._connected() as connection:
            number = ".".join(map(str, connection.dialect.server_version_info or ()))
            return f"{'SQLite' if self._sqlite else 'PostgreSQL'} {number}"

    @contextmanager
    def transaction(self, cancellation: Cancellation, *, write: bool = False) -> Iterator[Transaction]:
        """Committed at the end of the block where it writes, rolled back when an exception leaves it."""
        with self._connected() as connection, ExitStack() as stack:
            driver: Any = connection.connection.dbapi_connection
            stop = driver.interrupt if self._sqlite else driver.cancel
            stack.enter_context(cancellation.on_cancel(stop))
            try:
                self._begin(connection, write, cancellation)
                yield Transaction(connection)
                if write:
                    cancellation.check()
                    connection.commit()
            except SQLAlchemyError as error:
                cancellation.check()
                if getattr(getattr(error, "orig", None), "sqlstate", None) == _LOCK_TIMEOUT:
                    raise BusyError(_BUSY) from error
                raise
            finally:
                stack.close()
                with suppress(SQLAlchemyError):
                    connection.rollback()

    def pool_state(self) -> dict[str, int]:
        pool: Any = self._engine.pool
        return {"open": pool.checkedin() + pool.checkedout(), "idle": pool.checkedin(), "limit": pool.size()}

    def close(self) -> None:
        self._engine.dispose()

    def _begin(self, connection: sa.Connection, write: bool, cancellation: Cancellation) -> None:
        if not self._sqlite:
            if write:
                self._bound_waiting(connection)
            else:
                connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            return
        self._locking(connection, "BEGIN IMMEDIATE" if write else "BEGIN", cancellation)

    def _bound_waiting(self, connection: sa.Connection) -> None:
        """PostgreSQL waits for a lock as long as for a connection."""
        wait = max(1, round(self._options.pool_wait * 1000))
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {wait}")

    def _locking(self, connection: sa.Connection, statement: str, cancellation: Cancellation) -> None:
        """Runs a statement of SQLite that locks the file, when nobody else does."""
        end = time.monotonic() + self._options.pool_wait
        while True:
            try:
                connection.exec_driver_sql(statement)
                return
            except sa.exc.OperationalError as error:
                cancellation.check()
                if "locked" not in str(error.orig):
                    raise
                if time.monotonic() > end:
                    raise BusyError(_BUSY) from error
            time.sleep(_RETRY_SECONDS)

    @contextmanager
    def _connected(self) -> Iterator[sa.Connection]:
        try:
            self._prepare()
            with self._engine.connect() as connection:
                yield connection
        except PoolTimeout as error:
            raise BusyError(f"No connection came free within {self._options.pool_wait:g} seconds.") from error
        except (SQLAlchemyError, OSError) as error:
            raise _translated(error) from error

    def _prepare(self) -> None:
        """The tables, when the database is first used."""
        with self._lock:
            if self._ready:
                return
            if self._sqlite and self._url.database:
                Path(self._url.database).parent.mkdir(parents=True, exist_ok=True)
                make_private(self._url.database)
            with self._engine.connect() as connection:
                if self._sqlite:
                    self._locking(connection, "PRAGMA journal_mode=WAL", Cancellation())
                    connection.commit()
                if not _are_made(connection):
                    connection.rollback()
                    self._make(connection)
                connection.commit()
            self._ready = True

    def _make(self, connection: sa.Connection) -> None:
        """One process after the other: all workers of a service may begin at once."""
        if self._sqlite:
            self._locking(connection, "BEGIN IMMEDIATE", Cancellation())
        else:
            # each statement sees what another process has made meanwhile
            connection.execution_options(isolation_level="READ COMMITTED")
            self._bound_waiting(connection)
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_MAKING)))
        _metadata.create_all(connection)
        if not _has_root(connection):
            connection.execute(_collections.insert().values(path=""))


def _are_made(connection: sa.Connection) -> bool:
    """Looks without a lock: who only reads waits for nobody who writes."""
    there = set(sa.inspect(connection).get_table_names())
    return there >= set(_metadata.tables) and _has_root(connection)


def _has_root(connection: sa.Connection) -> bool:
    return connection.execute(sa.select(_collections.c.id).where(_collections.c.path == "")).first() is not None


class Transaction:
    """Paths are those of the document that asks: NotFoundError names what is not there."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection

    def collection(self, path: str, *, lock: bool = False) -> int:
        """Its number. ``lock``: whoever else wants to change it waits."""
        path = path.strip("/")
        query = sa.select(_collections.c.id).where(_collections.c.path == path)
        row = self._connection.execute(query.with_for_update() if lock else query).first()
        if row is None:
            paths = self._connection.execute(sa.select(_collections.c.path).limit(_CHUNK_ROWS)).scalars()
            hint = nearest(path, [each for each in paths if each])
            raise NotFoundError(f"There is no collection {path!r}.", hint=hint)
        return int(row.id)

    def collections(self, collection: int) -> list[str]:
        """The names of those directly in it."""
        query = sa.select(_collections.c.path).where(_collections.c.parent == collection)
        return sorted(path.rpartition("/")[2] for path in self._connection.execute(query).scalars())

    def create_collection(self, path: str, name: str) -> None:
        parent, path = self.collection(path, lock=True), path.strip("/")
        inner = f"{path}/{_checked(name)}" if path else _checked(name)
        if self._connection.execute(sa.select(_collections.c.id).where(_collections.c.path == inner)).first():
            raise ConflictError(f"There is already a collection {inner!r}.")
        self._connection.execute(_collections.insert().values(parent=parent, path=inner))

    def remove_collection(self, path: str, name: str) -> None:
        """With the collections and the documents in it."""
        path = path.strip("/")
        doomed = [self.collection(f"{path}/{_checked(name)}" if path else _checked(name), lock=True)]
        for each in doomed:
            inner = sa.select(_collections.c.id).where(_collections.c.parent == each).with_for_update()
            doomed.extend(self._connection.execute(inner).scalars())
        for each in doomed:
            self._connection.execute(_documents.delete().where(_documents.c.collection == each))
            self._connection.execute(_collections.delete().where(_collections.c.id == each))

    def names(self, collection: int) -> Iterator[str]:
        """Of the documents, in the order in which they were stored."""
        last = 0
        while True:
            query = sa.select(_documents.c.id, _documents.c.name).where(*_after(collection, last))
            rows = self._connection.execute(query.order_by(_documents.c.id).limit(_CHUNK_ROWS)).all()
            if not rows:
                return
            yield from (row.name for row in rows)
            last = rows[-1].id

    def count(self, collection: int) -> int:
        query = sa.select(sa.func.count()).where(_documents.c.collection == collection)
        return self._connection.execute(query).scalar_one()

    def document(self, collection: int, name: str) -> Document:
        columns = (_documents.c.id, _documents.c.name, _documents.c.content)
        query = sa.select(*columns).where(_documents.c.collection == collection, _documents.c.name == name)
        row = self._connection.execute(query).first()
        if row is None:
            raise NotFoundError(f"The collection has no document {name!r}.", hint="listResources lists its documents.")
        return Document(row.id, row.name, bytes(row.content))

    def chunks(self, collection: int) -> Iterator[list[Document]]:
        """All documents, in the order in which they were stored, about CHUNK_BYTES at a time."""
        last, most = 0, _FIRST_BYTES
        while True:
            sizes = sa.select(_documents.c.id, _documents.c.bytes).where(*_after(collection, last))
            rows = self._connection.execute(sizes.order_by(_documents.c.id).limit(_CHUNK_ROWS)).all()
            if not rows:
                return
            at = 0
            while at < len(rows):
                until, size = at, 0
                while until < len(rows) and (until == at or size + rows[until].bytes <= most):
                    size += rows[until].bytes
                    until += 1
                yield self._between(collection, rows[at].id, rows[until - 1].id)
                at, most = until, CHUNK_BYTES
            last = rows[-1].id

    def _between(self, collection: int, first: int, last: int) -> list[Document]:
        columns = (_documents.c.id, _documents.c.name, _documents.c.content)
        query = sa.select(*columns).where(_documents.c.collection == collection, _documents.c.id.between(first, last))
        rows = self._connection.execute(query.order_by(_documents.c.id))
        return [Document(id, name, bytes(content)) for id, name, content in rows]

    def put(self, collection: int, name: str, content: bytes) -> None:
        """A new document, or another content of the one of this name."""
        values = {"bytes": len(content), "content": content}
        where = (_documents.c.collection == collection, _documents.c.name == _checked(name))
        if not self._connection.execute(_documents.update().where(*where).values(**values)).rowcount:
            self._connection.execute(_documents.insert().values(collection=collection, name=name, **values))

    def add(self, collection: int, documents: Sequence[tuple[str, bytes]]) -> None:
        """Many new documents."""
        rows = [
            {"collection": collection, "name": _checked(name), "bytes": len(content), "content": content}
            for name, content in documents
        ]
        self._connection.execute(_documents.insert(), rows)

    def replace(self, document: Document, content: bytes) -> None:
        values = {"bytes": len(content), "content": content}
        self._connection.execute(_documents.update().where(_documents.c.id == document.id).values(**values))

    def remove(self, collection: int, name: str) -> None:
        self._connection.execute(_documents.delete().where(_documents.c.id == self.document(collection, name).id))


def _bound_log(connection: Any, _: Any) -> None:
    """What a large change leaves of SQLite's write-ahead log."""
    connection.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")


def _after(collection: int, last: int) -> tuple[sa.ColumnElement[bool], ...]:
    return (_documents.c.collection == collection, _documents.c.id > last)


def _checked(name: str) -> str:
    """A name of a collection or a document: one part of a path."""
    if not name or len(name) > _MOST_NAME or name in (".", "..") or "/" in name or not name.isprintable():
        raise ParameterError(
            f"{name[:_MOST_NAME]!r} is not a name for a collection or a document.",
            hint=f"A name has up to {_MOST_NAME} printable characters and no '/'.",
        )
    return name


def _translated(error: Exception) -> DaiError:
    said = str(getattr(error, "orig", error))
    if "disk is full" in said or "No space left" in said:
        return LimitError("The database of the XML collections is full.")
    log.error("the database of XML collections failed", exc_info=error)
    return DatabaseUnavailableError("The database of the XML collections cannot be read or written.")
