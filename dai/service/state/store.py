"""Stores jobs, tokens and counts of bytes in the state database.

A row has a job's request and progress; results are files (``dai.service.results``).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.exc import IntegrityError

from dai.security.identity import StoredToken
from dai.service.state.database import Database, translating
from dai.service.state.lease import Lease
from dai.service.state.tables import JOBS, SENT, TOKENS


@dataclass(frozen=True, slots=True)
class Job:
    """A stored job. Times are seconds since 1970 UTC; ``kind`` says how to read ``request``; ``dai.service.jobs``
    defines ``outputs`` and ``activities``; ``error`` is a problem document. ``label`` is the name that its creator gave
    it, ``beginning`` that of its SQL: the request itself is not kept after its end."""

    id: str
    service: str
    resource: str
    phase: str
    kind: str
    request: bytes
    created: float
    destruction: float
    session: str | None = None
    owner: str | None = None
    database_user: str | None = None
    blocksize: int | None = None
    started: float | None = None
    ended: float | None = None
    outputs: list[dict[str, Any]] = field(default_factory=list)
    activities: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    label: str | None = None
    beginning: str | None = None


class Store:
    """The state database, for the service of that name. Thread-safe. Raises DatabaseUnavailableError if it cannot be
    reached or written."""

    def __init__(self, url: str, service: str) -> None:
        self.service = service
        self._database = Database(url)
        self.lease = Lease(self._database, service)

    def add_token(self, token: StoredToken) -> None:
        self._run(TOKENS.insert().values(service=self.service, **asdict(token)))

    def token_of(self, id: str) -> StoredToken | None:
        rows = self._run(sa.select(TOKENS).where(TOKENS.c.id == id, TOKENS.c.service == self.service))
        return _token(rows[0]) if rows else None

    def tokens(self, name: str | None = None) -> list[StoredToken]:
        """All of the service, or of the callers of that name, the newest first."""
        query = sa.select(TOKENS).where(TOKENS.c.service == self.service)
        if name is not None:
            query = query.where(TOKENS.c.name == name)
        return [_token(row) for row in self._run(query.order_by(TOKENS.c.created.desc()))]

    def remove_token(self, id: str) -> bool:
        """Whether there was one."""
        removed = TOKENS.delete().where(TOKENS.c.id == id, TOKENS.c.service == self.service)
        with self._begin() as connection:
            return bool(connection.execute(removed).rowcount)

    def add(self, job: Job) -> int:
        """How many jobs its owner then has that have not ended, whoever else adds some. On SQLite, whose writers wait
        for each other, one transaction tells; elsewhere two that add at once would not see each other."""
        values = {each.name: getattr(job, each.name) for each in JOBS.c}
        if not self._database.is_sqlite:
            self._run(_ADD, values)
            return self.unended(job.owner or "")
        with self._sqlite() as connection:
            _executed(connection, _ADD, values)
            return int(_executed(connection, _UNENDED, self._of(job.owner or "")).fetchone()[0])

    def get(self, id: str) -> Job | None:
        rows = self._run(_GET, {"of_id": id, "of_service": self.service})
        return _job(rows[0]) if rows else None

    def listed(self, phases: Iterable[str] = (), limit: int | None = None, owner: str | None = None) -> list[Job]:
        """The jobs, newest first, without their requests, which may be large; those of an ``owner``, who may be nobody
        (an empty name), or all."""
        columns = [each for each in JOBS.c if each.name != "request"]
        query = sa.select(*columns).where(self._own())
        if owner is not None:
            query = query.where(_owned(owner))
        if chosen := list(phases):
            query = query.where(JOBS.c.phase.in_(chosen))
        rows = self._run(query.order_by(JOBS.c.created.desc(), JOBS.c.id).limit(limit))
        return [_job(row) for row in rows]

    def of_others(self) -> set[str]:
        """Ids of the jobs of other services, which may share the directory of results as well."""
        return {row[0] for row in self._run(sa.select(JOBS.c.id).where(~self._own()))}

    def due(self, now: float) -> list[str]:
        """Ids of jobs whose destruction time has come."""
        rows = self._run(sa.select(JOBS.c.id).where(self._own(), JOBS.c.destruction <= now))
        return [row[0] for row in rows]

    def change(self, job: Job, from_phases: Iterable[str], **values: Any) -> Job | None:
        """Writes new values into ``job`` and returns it; None if it has left ``from_phases`` meanwhile or is
        destroyed. Of what has ended, and so is never run again, the request is not kept."""
        written = {**values, "request": b""} if values.get("ended") is not None else values
        statement = _changing(frozenset(written), frozenset(from_phases))
        written = {"of_id": job.id, "of_service": self.service, **written}
        if self._database.is_sqlite:
            with self._sqlite() as connection:
                changed = _executed(connection, statement, written).rowcount
        else:
            with self._begin() as other:
                changed = other.execute(statement, written).rowcount
        return replace(job, **values) if changed else None

    def remove(self, id: str) -> None:
        with self._begin() as connection:
            connection.execute(JOBS.delete().where(JOBS.c.id == id, self._own()))

    def unended(self, owner: str) -> int:
        """How many jobs the owner has that have not ended."""
        return int(self._run(_UNENDED, self._of(owner))[0][0])

    def _of(self, owner: str) -> dict[str, str]:
        return {"of_service": self.service, "of_owner": owner}

    def active(self, resource: str) -> int:
        """How many jobs of the resource are queued or run."""
        return int(self._run(_ACTIVE, {"of_service": self.service, "of_resource": resource})[0][0])

    def result_bytes(self, owner: str) -> int:
        """Bytes of the results of the owner's jobs, in all forms that are kept."""
        rows = self._run(sa.select(JOBS.c.outputs).where(self._own(), _owned(owner), JOBS.c.phase == "COMPLETED"))
        return sum(each["bytes"] + each.get("forms", 0) for (outputs,) in rows for each in outputs)

    def sent(self, day: str, more: Mapping[str, int]) -> dict[str, int]:
        """Adds ``more`` bytes by caller to those of the day, and gives all of the day. Former days are forgotten."""
        own = SENT.c.service == self.service
        with self._begin() as connection:
            for caller, size in sorted(more.items()):
                row = sa.and_(own, SENT.c.caller == caller, SENT.c.day == day)
                values = {"service": self.service, "caller": caller, "day": day, "bytes": size}
                if not connection.execute(SENT.update().where(row).values(bytes=SENT.c.bytes + size)).rowcount:
                    try:
                        with connection.begin_nested():
                            connection.execute(SENT.insert().values(**values))
                    except IntegrityError:  # another process was faster
                        connection.execute(SENT.update().where(row).values(bytes=SENT.c.bytes + size))
            if more:
                connection.execute(SENT.delete().where(own, SENT.c.day < day))
            rows = connection.execute(sa.select(SENT.c.caller, SENT.c.bytes).where(own, SENT.c.day == day))
            return {caller: int(size) for caller, size in rows}

    def close(self) -> None:
        """Releases the name, if this process has claimed it."""
        self.lease.release()
        self._database.close()

    def add_tables(self, tables: sa.MetaData) -> None:
        """Makes those that are not there, for what else is kept in the state database."""
        with translating():
            self._database.create(tables)

    def read(self, statement: Any) -> list[Any]:
        """The rows of a query over tables that were added."""
        return self._run(statement)

    def durable(self) -> AbstractContextManager[sa.Connection]:
        """A transaction that is on the disk when it has ended; the others on SQLite may be lost with the power."""
        self.lease.check_in_time()
        return self._database.durable()

    def _own(self) -> sa.ColumnElement[bool]:
        return JOBS.c.service == self.service

    def _run(self, statement: Any, values: Mapping[str, Any] | None = None) -> list[Any]:
        with self._begin() as connection:
            result = connection.execute(statement, values)
            return list(result) if result.returns_rows else []

    def _begin(self) -> AbstractContextManager[sa.Connection]:
        self.lease.check_in_time()
        return self._database.transaction()

    def _sqlite(self) -> AbstractContextManager[sqlite3.Connection]:
        self.lease.check_in_time()
        return self._database.sqlite()


def _owned(owner: str | sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    return sa.func.coalesce(JOBS.c.owner, "") == owner


def _phase_in(*phases: str) -> sa.ColumnElement[bool]:
    return sa.or_(*(JOBS.c.phase == each for each in phases))


# The statements for each job are made once: making one takes SQLAlchemy four times as long as SQLite takes to run it.
# An IN would be written again each time, for as many values as it has.
_of_service = JOBS.c.service == sa.bindparam("of_service")
_of_id = JOBS.c.id == sa.bindparam("of_id")
_ADD = JOBS.insert()
_GET = sa.select(JOBS).where(_of_id, _of_service)
_UNENDED = sa.select(sa.func.count()).where(
    _of_service, _owned(sa.bindparam("of_owner")), _phase_in("PENDING", "QUEUED", "EXECUTING")
)
_ACTIVE = sa.select(sa.func.count()).where(
    _of_service, JOBS.c.resource == sa.bindparam("of_resource"), _phase_in("QUEUED", "EXECUTING")
)


_SQLITE = pysqlite.dialect(paramstyle="named")
_JSON = frozenset(each.name for each in JOBS.c if isinstance(each.type, sa.JSON))


@cache
def _changing(columns: frozenset[str], phases: frozenset[str]) -> sa.Update:
    """Writes these columns of a job that is in one of these phases."""
    which = _of_id, _of_service, _phase_in(*phases)
    return JOBS.update().where(*which).values({each: sa.bindparam(each) for each in columns})


@cache
def _in_sqlite(statement: Any) -> tuple[str, dict[str, Any]]:
    """The text of a statement, and its values as far as they are known."""
    compiled = statement.compile(dialect=_SQLITE)
    return str(compiled), dict(compiled.params)


def _executed(connection: sqlite3.Connection, statement: Any, values: Mapping[str, Any]) -> sqlite3.Cursor:
    text, known = _in_sqlite(statement)
    given = {name: json.dumps(each) if name in _JSON else each for name, each in values.items()}
    return connection.execute(text, known | given)


def _token(row: Any) -> StoredToken:
    values = dict(row._mapping)
    del values["service"]
    return StoredToken(**values | {each: tuple(values[each]) for each in ("resources", "groups")})


def _job(row: Any) -> Job:
    values = dict(row._mapping)
    values["request"] = bytes(values.get("request", b""))
    return Job(**values)
