"""The database of a registry: SQLite, or PostgreSQL by URL. Its journal keeps what was acknowledged.

Entries stand in one table, what happened to them in another, under numbers without gaps: whoever has read up to a
number learns the rest from there. Writers take turns on the row that holds the last number.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from dai.errors import DatabaseUnavailableError
from dai.service.registry.entries import Audience, Entry
from dai.streams.files import make_private

KEPT = 100_000
"""Changes that are kept for those who follow them."""
_metadata = sa.MetaData()
_entries = sa.Table(
    "dai_registry_entries",
    _metadata,
    sa.Column("key", sa.Text, primary_key=True),
    # beside the entry, since a renewal changes nothing else
    sa.Column("expires", sa.Double),
    sa.Column("entry", sa.Text, nullable=False),
)
_changes = sa.Table(
    "dai_registry_changes",
    _metadata,
    sa.Column("number", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Double, nullable=False),
    sa.Column("action", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("parent", sa.Text),
    sa.Column("audience", sa.JSON, nullable=False),
)
_last = sa.Table("dai_registry_last", _metadata, sa.Column("number", sa.BigInteger, nullable=False))
PUBLISHED, MODIFIED, RENEWED, DEPRECATED, DELETED = "published", "modified", "renewed", "deprecated", "deleted"
Row = tuple[str, float | None, str]


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to an entry. ``audience``: who saw it."""

    number: int
    time: float
    action: str
    key: str
    kind: str
    parent: str | None
    audience: Audience

    def event(self) -> dict[str, Any]:
        """As those read it who follow changes."""
        members = {name: getattr(self, name) for name in self.__slots__ if name != "audience"}
        return {**members, "time": round(self.time, 3)}


class Database:
    """Thread-safe. Raises DatabaseUnavailableError."""

    def __init__(self, location: str) -> None:
        url = make_url(location)
        product = url.get_backend_name()
        options: dict[str, Any] = {"connect_args": {"timeout": 30, "check_same_thread": False}}
        if product == "postgresql":
            url = url.set(drivername="postgresql+psycopg")
            options = {"connect_args": {"connect_timeout": 10}, "pool_pre_ping": True}
        self._engine = sa.create_engine(url, pool_size=4, max_overflow=8, **options)
        if product == "sqlite":
            make_private(url.database)
            sa.event.listen(self._engine, "connect", _durable)
        try:
            _metadata.create_all(self._engine)
            with self._engine.begin() as connection:
                missing = sa.select(sa.literal(0)).where(~sa.exists(sa.select(_last.c.number)))
                connection.execute(_last.insert().from_select(["number"], missing))
        except SQLAlchemyError as error:
            raise DatabaseUnavailableError("The database of the registry cannot be reached.") from error
        self._looking: _Looking | None = None
        if product == "sqlite" and url.database:
            os.chmod(url.database, 0o600)
            self._looking = _Looking(self._engine)

    def create(self, tables: sa.MetaData) -> None:
        """Tables of others beside its own."""
        with self._translated():
            tables.create_all(self._engine)

    @contextmanager
    def connection(self) -> Iterator[sa.Connection]:
        """In a transaction of its own, for tables of others."""
        with self._translated(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[sa.Connection]:
        """Alone with the registry; on the disk when it has ended."""
        with self._translated(), self._engine.begin() as connection:
            connection.execute(_last.update().values(number=_last.c.number))
            yield connection

    def write(
        self, connection: sa.Connection, rows: Sequence[Row], gone: Sequence[str], what: Sequence[Change]
    ) -> None:
        """``gone``: keys without an entry any more, or with another."""
        if gone:
            keys = [{"this": each} for each in gone]
            connection.execute(_entries.delete().where(_entries.c.key == sa.bindparam("this")), keys)
        if rows:
            values = [{"key": key, "expires": expires, "entry": entry} for key, expires, entry in rows]
            connection.execute(_entries.insert(), values)
        if what:
            connection.execute(_changes.insert(), [_members(each) for each in what])
            connection.execute(_last.update().values(number=what[-1].number))

    def last(self, connection: sa.Connection | None = None) -> int:
        if connection is None and self._looking is not None:
            return self._looking.number()
        return int(self._all(sa.select(_last.c.number), connection)[0][0])

    def latest(self) -> float:
        """When something was changed last; 0 where nothing was."""
        return float(self._all(sa.select(sa.func.max(_changes.c.time)), None)[0][0] or 0.0)

    def entries(self, keys: Iterable[str] | None = None, connection: sa.Connection | None = None) -> Iterator[Entry]:
        """Those of the keys, or all."""
        query = sa.select(_entries.c.expires, _entries.c.entry)
        listed = None if keys is None else list(keys)
        portions = [None] if listed is None else [listed[at : at + 500] for at in range(0, len(listed), 500)]
        for portion in portions:
            chosen = query if portion is None else query.where(_entries.c.key.in_(portion))
            for expires, entry in self._all(chosen, connection):
                yield _renewed(Entry.from_bytes(entry), expires)

    def changes(self, after: int, most: int = KEPT, connection: sa.Connection | None = None) -> list[Change] | None:
        """Those behind a number, in order; None where some of them are not kept any more."""
        query = sa.select(_changes).where(_changes.c.number > after).order_by(_changes.c.number).limit(most)
        changes = [_read(row) for row in self._all(query, connection)]
        if changes and changes[0].number != after + 1:
            return None
        return changes

    def forget(self) -> None:
        """All but the last KEPT changes."""
        with self._translated(), self._engine.begin() as connection:
            newest = sa.select(_last.c.number - KEPT).scalar_subquery()
            connection.execute(_changes.delete().where(_changes.c.number <= newest))

    def _all(self, query: sa.Select[Any], connection: sa.Connection | None) -> Sequence[Any]:
        if connection is not None:
            return connection.execute(query).all()
        with self._translated(), self._engine.connect() as fresh:
            return fresh.execute(query).all()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            raise DatabaseUnavailableError("The database of the registry failed at this operation.") from error

    def close(self) -> None:
        if self._looking is not None:
            self._looking.close()
        self._engine.dispose()


class _Looking:
    """Looks for the number of the last change in SQLite, before each answer: by a connection of its own, past all that
    SQLAlchemy does for one statement, which takes ten times as long."""

    def __init__(self, engine: sa.Engine) -> None:
        self._connection = engine.raw_connection()
        self._lock = threading.Lock()

    def number(self) -> int:
        with self._lock:
            try:
                cursor = self._connection.cursor()
                cursor.execute(f"select number from {_last.name}")
                ((number,),) = cursor.fetchall()
                return int(number)
            except Exception as error:
                raise DatabaseUnavailableError("The database of the registry cannot be read.") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()


def _durable(connection: Any, _: Any) -> None:
    for each in ("journal_mode=wal", "synchronous=full", "busy_timeout=30000"):
        connection.execute(f"pragma {each}")


def _renewed(entry: Entry, expires: float | None) -> Entry:
    return entry if entry.expires == expires else replace(entry, expires=expires)


def _members(change: Change) -> dict[str, Any]:
    audience = [[owner, list(readers)] for owner, readers in sorted(change.audience)]
    return {name: getattr(change, name) for name in change.__slots__} | {"audience": audience}


def _read(row: Any) -> Change:
    audience = frozenset((owner, tuple(readers)) for owner, readers in row.audience)
    return Change(row.number, row.time, row.action, row.key, row.kind, row.parent, audience)
