"""Stores the contexts and documents of one service."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from dai.config import LimitsConfig
from dai.drivers.connections.group_commit import GroupCommit
from dai.errors import ConflictError, LimitError, NotFoundError, PreconditionError, TooLargeError
from dai.security.identity import Caller
from dai.service.contexts.memory import Memory, Stored
from dai.service.state.store import Store

USUAL_SECONDS = 3600.0
"""Default seconds of a lease."""
COUNTED_SECONDS = 1.0
"""Seconds until data that other processes wrote count against limits."""
MOST_PARENTS = 16
MOST_ABOVE = 100
"""Contexts above one, its parents' parents included: a lease prolongs all of them, while nobody else can write."""
MOST_LISTED = 1000
MOST_OF_ONE = 100_000
"""Contexts and documents of one owner: those without bytes need room, too."""
_metadata = sa.MetaData()
_contexts = sa.Table(
    "dai_contexts",
    _metadata,
    sa.Column("service", sa.String(200), primary_key=True),
    # not the name itself: databases compare texts in ways of their own
    sa.Column("holder", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("owner", sa.String(400), nullable=False),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("size", sa.BigInteger, nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
    sa.Column("media_type", sa.String(200), nullable=False),
    sa.Column("content", sa.LargeBinary(1 << 30), nullable=False),
    sa.Index("dai_contexts_by_id", "service", "id"),
    sa.Index("dai_contexts_by_expires", "service", "expires"),
    sa.Index("dai_contexts_by_size", "service", "holder", "size"),
)
_parents = sa.Table(
    "dai_context_parents",
    _metadata,
    sa.Column("service", sa.String(200), primary_key=True),
    sa.Column("holder", sa.String(64), primary_key=True),
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("parent", sa.String(64), primary_key=True),
    sa.Index("dai_context_parents_by_parent", "service", "holder", "parent"),
)
_HEAD = tuple(each for each in _contexts.c if each.name != "content")


class Contexts:
    """Thread-safe. Changes return a Future, which is done when the change is on the disk; reads may wait for the
    database. ``check`` raises where the contexts of an owner would have so many bytes.

    Raises NotFoundError for what is not there any more or is not the caller's, TooLargeError, DatabaseUnavailableError.
    """

    def __init__(self, store: Store, limits: LimitsConfig, check: Callable[[str, int], None]) -> None:
        self._store, self._limits, self._check = store, limits, check
        store.add_tables(_metadata)
        self.memory = Memory(limits.contexts_memory)
        self._held: dict[str, tuple[int, int]] | None = None
        """How many each holder has and their bytes; of the writer's thread alone."""
        self._counted = 0.0
        self._writer = GroupCommit("contexts", self._transaction)

    # Reading

    def known(self, id: str, caller: Caller) -> Stored | None:
        """What is in memory, without waiting."""
        return self.memory.get(caller.name, id)

    def get(self, id: str, caller: Caller) -> Stored:
        if (known := self.known(id, caller)) is not None and not known.version:
            return known
        rows = self._store.read(sa.select(_contexts).where(self._of(id, caller)).order_by(_mine(caller)).limit(1))
        if not rows:
            raise missing(id)
        stored = _stored(rows[0], self._parents_of(self._store.read, rows[0].holder, id))
        if not stored.version:
            self.memory.put(stored)
        return stored

    def listed(self, caller: Caller) -> list[tuple[Stored, int]]:
        """Those that the caller sees with their bytes, the newest first, without their contents and parents."""
        query = sa.select(*_HEAD).where(self._living())
        if not caller.administrator:
            query = query.where(_contexts.c.holder == _holder(caller.name))
        rows = self._store.read(query.order_by(_contexts.c.created.desc(), _contexts.c.id).limit(MOST_LISTED))
        return [(_stored(row), row.size) for row in rows]

    # Changing

    def put(
        self, content: bytes, media_type: str, caller: Caller, seconds: float | None = None, parents: Sequence[str] = ()
    ) -> Future[tuple[Stored, bool]]:
        """The context of these bytes, and whether it is new. One that is there keeps what it has, and its lease lasts
        as long as is asked for now. ConflictError for other parents or another media type than it has, or for a parent
        that is not there; LimitError, QuotaError where there is no room."""
        self._check_size(content)
        id, now = hashlib.sha256(content).hexdigest(), time.time()
        new = Stored(
            id, caller.name, media_type, content, 0, now, self._until(now, seconds), tuple(sorted(set(parents)))
        )
        known = self.known(id, caller)
        if known is not None and known.expires >= new.expires and _same(known, new):
            done: Future[tuple[Stored, bool]] = Future()
            done.set_result((known, False))
            return done
        return self._remembered(self._writer.submit(partial(self._put, new)))

    def publish(self, content: bytes, media_type: str, caller: Caller) -> Future[tuple[Stored, bool]] | None:
        """As ``put``, for what the service itself stores again and again; None where it is there for a while yet."""
        known = self.known(hashlib.sha256(content).hexdigest(), caller)
        if known is not None and known.expires > time.time() + USUAL_SECONDS / 2:
            return None
        return self.put(content, media_type, caller)

    def renew(self, id: str, caller: Caller, seconds: float | None, *, exact: bool = False) -> Future[Stored]:
        """A lease never ends earlier by it, unless ``exact`` and nothing below needs it longer; nor do its parents'."""
        return self._remembered(
            self._writer.submit(lambda connection: self._renew(connection, id, caller, seconds, exact))
        )

    def end(self, id: str, caller: Caller) -> Future[str]:
        """Gives the owner. ConflictError for the parent of another context."""
        ended = self._writer.submit(lambda connection: self._end(connection, id, caller))
        ended.add_done_callback(self._forget(id))
        return ended

    def create(
        self, content: bytes, media_type: str, caller: Caller, seconds: float | None = None, parents: Sequence[str] = ()
    ) -> Future[Stored]:
        """A new document, of version 1. ConflictError for a parent that is not there."""
        self._check_size(content)
        id, now = secrets.token_hex(16), time.time()
        until = self._until(now, seconds)
        new = Stored(id, caller.name, media_type, content, 1, now, until, tuple(sorted(set(parents))))
        return self._writer.submit(lambda connection: self._add(connection, new))

    def replace(
        self, id: str, caller: Caller, versions: Iterable[int] | None, content: bytes, media_type: str
    ) -> Future[Stored]:
        """The next version of a document. PreconditionError where it has none of ``versions`` (None: any)."""
        self._check_size(content)
        wanted = None if versions is None else frozenset(versions)
        return self._writer.submit(
            lambda connection: self._replace(connection, id, caller, wanted, content, media_type)
        )

    def reap(self) -> None:
        """Forgets what has ended; to be called regularly."""
        over = sa.and_(_contexts.c.service == self._store.service, _contexts.c.expires <= time.time())
        rows = self._store.read(sa.select(_contexts.c.holder, _contexts.c.id).where(over).limit(MOST_LISTED))
        if rows:
            self._writer.submit(lambda connection: self._delete_all(connection, rows)).result()

    def close(self) -> None:
        self._writer.close()

    # Within a transaction

    def _put(self, new: Stored, connection: sa.Connection) -> tuple[Stored, bool]:
        holder = _holder(new.owner)
        row = self._row(connection, holder, new.id)
        if row is not None and row.expires > new.created:
            stored = _stored(row, self._parents_of(_reading(connection), holder, new.id))
            if not _same(stored, new):
                raise ConflictError(
                    f"The context {new.id} already exists with another media type or other parents.",
                    hint="A context cannot change: put it with the same ones, or end it first.",
                )
            self._extend(connection, new.owner, new.id, new.expires)
            return replace(stored, content=new.content, expires=max(stored.expires, new.expires)), False
        return self._add(connection, new, row is not None), True

    def _add(self, connection: sa.Connection, new: Stored, again: bool = False) -> Stored:
        """``again``: in the place of what is over, but still stands there."""
        holder = _holder(new.owner)
        for parent in new.parents:
            above = self._row(connection, holder, parent)
            if parent == new.id or above is None or above.expires <= new.created or (above.version and not new.version):
                raise ConflictError(
                    f"There is no context {parent}, which is to be a parent.", hint="Put the parent first."
                )
        if self._above(connection, holder, new.parents) > MOST_ABOVE:
            raise LimitError(
                f"The context would have more than {MOST_ABOVE} ancestors.",
                hint="Give it fewer parents, or parents with fewer ancestors.",
                limit="contexts above one",
            )
        self._take_room(connection, holder, new.owner, len(new.content), 1)
        if again:
            self._delete(connection, holder, new.id)
        self._write(connection, holder, new)
        for parent in new.parents:
            values = {"service": self._store.service, "holder": holder, "id": new.id, "parent": parent}
            connection.execute(_parents.insert().values(**values))
            self._extend(connection, new.owner, parent, new.expires)
        return new

    def _write(self, connection: sa.Connection, holder: str, new: Stored) -> None:
        connection.execute(
            _contexts.insert().values(
                service=self._store.service,
                holder=holder,
                id=new.id,
                owner=new.owner,
                version=new.version,
                size=len(new.content),
                created=new.created,
                expires=new.expires,
                media_type=new.media_type,
                content=new.content,
            )
        )

    def _replace(
        self,
        connection: sa.Connection,
        id: str,
        caller: Caller,
        versions: frozenset[int] | None,
        content: bytes,
        media_type: str,
    ) -> Stored:
        row = self._visible_row(connection, id, caller)
        if not row.version:
            raise ConflictError(
                f"{id} is a context, which cannot change.", hint="Put the new bytes as another context."
            )
        if versions is not None and row.version not in versions:
            raise PreconditionError(
                f"The document {id} was replaced meanwhile; it now has the version {row.version}.",
                hint="Read it again, then send yours with its ETag in If-Match.",
            )
        self._take_room(connection, row.holder, row.owner, len(content) - row.size)
        this = sa.and_(self._named(row.holder, id), _contexts.c.version == row.version)
        values = {"version": row.version + 1, "size": len(content), "media_type": media_type, "content": content}
        if not connection.execute(_contexts.update().where(this).values(**values)).rowcount:
            raise PreconditionError(f"The document {id} was replaced meanwhile.", hint="Read it again.")
        return replace(_stored(row), version=row.version + 1, content=content, media_type=media_type)

    def _renew(self, connection: sa.Connection, id: str, caller: Caller, seconds: float | None, exact: bool) -> Stored:
        row = self._visible_row(connection, id, caller)
        expires = self._until(time.time(), seconds)
        if exact and expires < row.expires:
            below = [self._row(connection, row.holder, each) for each in self._children(connection, row.holder, id)]
            expires = max(expires, *(each.expires for each in below), 0.0)
            connection.execute(_contexts.update().where(self._named(row.holder, id)).values(expires=expires))
            self.memory.forget(row.owner, id)
        else:
            self._extend(connection, row.owner, id, expires)
        stored = _stored(row, self._parents_of(_reading(connection), row.holder, id))
        return replace(stored, expires=self._row(connection, row.holder, id).expires)

    def _end(self, connection: sa.Connection, id: str, caller: Caller) -> str:
        row = self._visible_row(connection, id, caller)
        if children := self._children(connection, row.holder, id):
            raise ConflictError(f"The context {id} is the parent of {children[0]}.", hint="End the child first.")
        self._delete(connection, row.holder, id)
        return str(row.owner)

    def _children(self, connection: sa.Connection, holder: str, id: str) -> list[str]:
        links = _parents.c.service == self._store.service, _parents.c.holder == holder, _parents.c.parent == id
        return [row.id for row in connection.execute(sa.select(_parents.c.id).where(*links).order_by(_parents.c.id))]

    def _delete(self, connection: sa.Connection, holder: str, id: str) -> None:
        connection.execute(_contexts.delete().where(self._named(holder, id)))
        self._held = None
        links = _parents.c.service == self._store.service, _parents.c.holder == holder, _parents.c.id == id
        connection.execute(_parents.delete().where(*links))

    def _delete_all(self, connection: sa.Connection, rows: Iterable[Any]) -> None:
        for row in rows:
            self._delete(connection, row.holder, row.id)

    def _extend(self, connection: sa.Connection, owner: str, id: str, expires: float) -> None:
        """The lease of a context and of those above it. Parents were there before their children: no circle."""
        holder, waiting, seen = _holder(owner), [id], {id}
        while waiting:
            this = waiting.pop()
            earlier = sa.and_(self._named(holder, this), _contexts.c.expires < expires)
            if not connection.execute(_contexts.update().where(earlier).values(expires=expires)).rowcount:
                continue  # nor do those above it end earlier
            self.memory.forget(owner, this)
            above = set(self._parents_of(_reading(connection), holder, this)) - seen
            waiting += above
            seen |= above

    def _above(self, connection: sa.Connection, holder: str, parents: Iterable[str]) -> int:
        """How many there are, counted no further than MOST_ABOVE."""
        seen = set(parents)
        waiting = list(seen)
        while waiting and len(seen) <= MOST_ABOVE:
            above = set(self._parents_of(_reading(connection), holder, waiting.pop())) - seen
            waiting += above
            seen |= above
        return len(seen)

    def _check_size(self, content: bytes) -> None:
        if len(content) > self._limits.context_bytes:
            raise TooLargeError(
                f"A context can have at most {self._limits.context_bytes:,} bytes; this one has {len(content):,}.",
                hint="The operator of the service can raise limits.context_bytes.",
            )

    def _take_room(self, connection: sa.Connection, holder: str, owner: str, more: int, new: int = 0) -> None:
        """Before so many bytes are written, of as many ``new`` ones; negative where they are fewer than before."""
        held = self._held_by(connection)
        count, size = held.get(holder, (0, 0))
        if count + new > MOST_OF_ONE:
            raise LimitError(
                f"This owner has {MOST_OF_ONE:,} contexts and documents, and may have no more.",
                hint="End those that you no longer need: GET /contexts lists them.",
                limit="contexts of one owner",
            )
        if more > 0:
            if sum(each for _, each in held.values()) + more > self._limits.contexts_bytes:
                raise LimitError(
                    f"The contexts of this service use all of the {self._limits.contexts_bytes:,} bytes allowed.",
                    hint="End those that you no longer need: GET /contexts lists them.",
                    limit="limits.contexts_bytes",
                )
            self._check(owner, size + more)
        held[holder] = count + new, size + more

    def _held_by(self, connection: sa.Connection) -> dict[str, tuple[int, int]]:
        """By holder: what the database says, at most COUNTED_SECONDS ago, and what this process has written since."""
        if self._held is None or self._counted + COUNTED_SECONDS < time.monotonic():
            size = sa.func.sum(_contexts.c.size).label("bytes")
            sums = sa.select(_contexts.c.holder, sa.func.count().label("many"), size)
            query = sums.where(_contexts.c.service == self._store.service).group_by(_contexts.c.holder)
            self._held = {row.holder: (row.many, int(row.bytes)) for row in connection.execute(query)}
            self._counted = time.monotonic()
        return self._held

    @contextmanager
    def _transaction(self) -> Iterator[sa.Connection]:
        try:
            with self._store.durable() as connection:
                yield connection
        except BaseException:
            self._held = None  # what it counted was not written
            raise

    def _visible_row(self, connection: sa.Connection, id: str, caller: Caller) -> Any:
        query = sa.select(_contexts).where(self._of(id, caller)).order_by(_mine(caller)).limit(1)
        row = connection.execute(query).first()
        if row is None:
            raise missing(id)
        return row

    def _row(self, connection: sa.Connection, holder: str, id: str) -> Any:
        """Without its content."""
        return connection.execute(sa.select(*_HEAD).where(self._named(holder, id))).first()

    def _parents_of(self, read: Callable[[Any], list[Any]], holder: str, id: str) -> tuple[str, ...]:
        links = _parents.c.service == self._store.service, _parents.c.holder == holder, _parents.c.id == id
        return tuple(row.parent for row in read(sa.select(_parents.c.parent).where(*links).order_by(_parents.c.parent)))

    # Conditions

    def _named(self, holder: str, id: str) -> sa.ColumnElement[bool]:
        return sa.and_(_contexts.c.service == self._store.service, _contexts.c.holder == holder, _contexts.c.id == id)

    def _living(self) -> sa.ColumnElement[bool]:
        return sa.and_(_contexts.c.service == self._store.service, _contexts.c.expires > time.time())

    def _of(self, id: str, caller: Caller) -> sa.ColumnElement[bool]:
        """What the caller sees under that id."""
        if caller.administrator:
            return sa.and_(self._living(), _contexts.c.id == id)
        return sa.and_(self._living(), _contexts.c.id == id, _contexts.c.holder == _holder(caller.name))

    def _until(self, now: float, seconds: float | None) -> float:
        wanted = min(USUAL_SECONDS, self._limits.context_seconds) if seconds is None else seconds
        return now + min(wanted, self._limits.context_seconds)

    def _remembered(self, changed: Future[Any]) -> Future[Any]:
        def remember(done: Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None:
                result = done.result()
                stored = result[0] if isinstance(result, tuple) else result
                if not stored.version:
                    self.memory.put(stored)

        changed.add_done_callback(remember)
        return changed

    def _forget(self, id: str) -> Callable[[Future[str]], None]:
        def forget(done: Future[str]) -> None:
            if not done.cancelled() and done.exception() is None:
                self.memory.forget(done.result(), id)

        return forget


def missing(id: str) -> NotFoundError:
    return NotFoundError(f"There is no context {id!r}; its lease may have ended.", hint="PUT /contexts/ID stores one.")


def _mine(caller: Caller) -> sa.ColumnElement[int]:
    """Orders what an administrator sees: their own first."""
    return sa.case((_contexts.c.holder == _holder(caller.name), 0), else_=1)


def _holder(owner: str) -> str:
    return hashlib.sha256(owner.encode()).hexdigest()


def _same(one: Stored, other: Stored) -> bool:
    return (one.media_type, one.parents) == (other.media_type, other.parents)


def _reading(connection: sa.Connection) -> Callable[[Any], list[Any]]:
    return lambda statement: list(connection.execute(statement))


def _stored(row: Any, parents: tuple[str, ...] = ()) -> Stored:
    content = bytes(getattr(row, "content", b""))
    return Stored(row.id, row.owner, row.media_type, content, row.version, row.created, row.expires, parents)
