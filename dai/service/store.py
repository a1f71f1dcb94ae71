"""Stores jobs in the state database, which outlives the process. SQLite by default; SQLAlchemy Core, no ORM.

A row has a job's request and progress; results are files (``dai.service.results``). Each write is one transaction.
Several services may share one database. Each sees only the rows of its own name, and one process at a time has a name,
by a lease (``claim``) that it renews regularly.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import pysqlite
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from dai.errors import ConfigurationError, DatabaseUnavailableError
from dai.security.identity import StoredToken
from dai.service.state_file import StateFile, marked
from dai.streams.files import make_private

log = logging.getLogger("dai.service.store")

_metadata = sa.MetaData()
_jobs = sa.Table(
    "dai_jobs",
    _metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("service", sa.String(200), nullable=False),
    sa.Column("resource", sa.String(200), nullable=False),
    sa.Column("session", sa.String(64)),
    sa.Column("owner", sa.String(400)),
    sa.Column("database_user", sa.String(400)),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    # MariaDB has types by their sizes
    sa.Column("request", sa.LargeBinary(1 << 30), nullable=False),
    sa.Column("blocksize", sa.Integer),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("started", sa.Double),
    sa.Column("ended", sa.Double),
    sa.Column("destruction", sa.Double, nullable=False, index=True),
    sa.Column("outputs", sa.JSON, nullable=False),
    sa.Column("activities", sa.JSON, nullable=False),
    sa.Column("error", sa.JSON),
    sa.Column("label", sa.String(200)),
    sa.Column("beginning", sa.String(200)),
)
sa.Index("ix_dai_jobs_service_phase", _jobs.c.service, _jobs.c.phase)  # each new job has those counted that go on
_services = sa.Table(
    "dai_services",
    _metadata,
    sa.Column("name", sa.String(200), primary_key=True),
    sa.Column("token", sa.String(32), nullable=False),
    sa.Column("renewals", sa.Integer, nullable=False),
    sa.Column("host", sa.String(255), nullable=False),
    sa.Column("process", sa.Integer, nullable=False),
    sa.Column("machine", sa.String(100), nullable=False),
    sa.Column("began", sa.String(40), nullable=False),
)

_tokens = sa.Table(
    "dai_tokens",
    _metadata,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("service", sa.String(200), nullable=False, index=True),
    sa.Column("name", sa.String(200), nullable=False),
    sa.Column("digest", sa.String(64), nullable=False),
    sa.Column("created", sa.Double, nullable=False),
    sa.Column("expires", sa.Double, nullable=False),
    sa.Column("resources", sa.JSON, nullable=False),
    sa.Column("administrator", sa.Boolean, nullable=False),
    sa.Column("groups", sa.JSON, nullable=False),
)

_sent = sa.Table(
    "dai_sent",
    _metadata,
    sa.Column("service", sa.String(200), primary_key=True),
    sa.Column("caller", sa.String(400), primary_key=True),
    sa.Column("day", sa.String(10), primary_key=True),
    sa.Column("bytes", sa.BigInteger, nullable=False),
)

LEASE_SECONDS = 30.0
"""A lease ends when it was not renewed for so long. Clocks are not compared: a process that wants the name watches
whether the lease is renewed."""
LOOK_SECONDS = 0.5


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
    """The state database. Thread-safe. Raises DatabaseUnavailableError if it cannot be reached or written."""

    def __init__(self, url: str, service: str) -> None:
        self.service = service
        self._token: str | None = None
        self._claimed = False
        self._renewed = 0.0
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
                path = Path(str(parsed.database))
                path.parent.mkdir(parents=True, exist_ok=True)
                make_private(path)  # it has what callers asked
            self._engine = sa.create_engine(parsed, pool_pre_ping=not sqlite, **options)
            self._is_sqlite = sqlite
            if sqlite:
                sa.event.listen(self._engine, "connect", _prepare_sqlite)
            self._create(_metadata)
            _add_columns(self._engine)
            if sqlite and not in_memory and not str(parsed.database).startswith("file:"):
                self._file = StateFile(Path(str(parsed.database)), marked(self._engine))
        except (SQLAlchemyError, OSError, ImportError) as error:
            log.error("the state database cannot be opened", exc_info=error)
            raise ConfigurationError(
                "The state database (service.state) cannot be opened.", hint="The log says why."
            ) from error

    def _create(self, tables: sa.MetaData) -> None:
        # a table of an earlier version may lack an index
        wanted: list[sa.Table | sa.Index] = [*tables.sorted_tables]
        wanted += [index for table in tables.sorted_tables for index in table.indexes]
        for each in wanted:
            try:
                each.create(self._engine, checkfirst=True)
            except SQLAlchemyError:  # another process makes the same at this moment: look again
                each.create(self._engine, checkfirst=True)

    def claim(self) -> None:
        """Takes the service's name for this process until ``close``. Raises ConfigurationError if another process has
        it. A process that died on this machine loses it at once; a process elsewhere when its lease ends."""
        deadline = time.monotonic() + LEASE_SECONDS
        first = lease = self._holder()
        while lease is not None and (living := _living(lease)) is not False:
            if living or (first is not None and (lease.token, lease.renewals) != (first.token, first.renewals)):
                raise self._taken_by(lease)
            if time.monotonic() > deadline:
                break
            time.sleep(LOOK_SECONDS)
            lease = self._holder()
        if not self._taken(lease):
            raise self._taken_by(self._holder())

    def _holder(self) -> sa.Row[Any] | None:
        rows = self._run(sa.select(_services).where(_services.c.name == self.service))
        return rows[0] if rows else None

    def _taken_by(self, lease: sa.Row[Any] | None) -> ConfigurationError:
        who = f"process {lease.process} on {lease.host}" if lease is not None else "another process"
        return ConfigurationError(
            f"Another service named {self.service!r} already keeps its jobs in this state database "
            f"(service.state): {who}.",
            hint="Stop that service, start this one in another directory, or set another name or state in [service].",
        )

    def _taken(self, lease: sa.Row[Any] | None) -> bool:
        """Tries to take the name in place of ``lease``. False if another process was faster."""
        token, began = secrets.token_hex(16), time.monotonic()
        machine, started = _process(os.getpid())
        values = {"token": token, "renewals": 0, "host": socket.gethostname(), "process": os.getpid()}
        values.update(machine=machine, began=started)
        statement: Any = _services.insert().values(name=self.service, **values)
        if lease is not None:
            same = (_services.c.token == lease.token, _services.c.renewals == lease.renewals)
            statement = _services.update().where(_services.c.name == self.service, *same).values(**values)
        try:
            with self._begin() as connection:
                if not connection.execute(statement).rowcount:
                    return False
        except DatabaseUnavailableError as error:
            if isinstance(error.__cause__, IntegrityError):
                return False
            raise
        self._token, self._renewed, self._claimed = token, began, True
        return True

    @property
    def token(self) -> str | None:
        """Of the lease; None without one."""
        return self._token

    def join(self, token: str) -> None:
        """Shares the lease of another process of the same service. Raises DatabaseUnavailableError if it is lost."""
        self._token = token
        self.check()

    def check(self) -> None:
        """Renews the lease, which also checks that the database can be written. Raises DatabaseUnavailableError if the
        lease is lost."""
        began = time.monotonic()
        ours = (_services.c.name == self.service, _services.c.token == self._token)
        renewed = _services.update().where(*ours).values(renewals=_services.c.renewals + 1)
        with self._opened() as connection:
            if not connection.execute(renewed).rowcount:
                self._renewed = -LEASE_SECONDS  # whatever is asked next looks again
                log.error("another process has taken over the name of this service", extra={"service": self.service})
                raise DatabaseUnavailableError(
                    "Another process has taken over the state of this service.", hint="The service must be restarted."
                )
        self._renewed = began

    def add_token(self, token: StoredToken) -> None:
        self._run(_tokens.insert().values(service=self.service, **asdict(token)))

    def token_of(self, id: str) -> StoredToken | None:
        rows = self._run(sa.select(_tokens).where(_tokens.c.id == id, _tokens.c.service == self.service))
        return _token(rows[0]) if rows else None

    def tokens(self, name: str | None = None) -> list[StoredToken]:
        """All of the service, or of the callers of that name, the newest first."""
        query = sa.select(_tokens).where(_tokens.c.service == self.service)
        if name is not None:
            query = query.where(_tokens.c.name == name)
        return [_token(row) for row in self._run(query.order_by(_tokens.c.created.desc()))]

    def remove_token(self, id: str) -> bool:
        """Whether there was one."""
        removed = _tokens.delete().where(_tokens.c.id == id, _tokens.c.service == self.service)
        with self._begin() as connection:
            return bool(connection.execute(removed).rowcount)

    def add(self, job: Job) -> int:
        """How many jobs its owner then has that have not ended, whoever else adds some. On SQLite, whose writers wait
        for each other, one transaction tells; elsewhere two that add at once would not see each other."""
        values = {each.name: getattr(job, each.name) for each in _jobs.c}
        if not self._is_sqlite:
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
        columns = [each for each in _jobs.c if each.name != "request"]
        query = sa.select(*columns).where(self._own())
        if owner is not None:
            query = query.where(_owned(owner))
        if chosen := list(phases):
            query = query.where(_jobs.c.phase.in_(chosen))
        rows = self._run(query.order_by(_jobs.c.created.desc(), _jobs.c.id).limit(limit))
        return [_job(row) for row in rows]

    def of_others(self) -> set[str]:
        """Ids of the jobs of other services, which may share the directory of results as well."""
        return {row[0] for row in self._run(sa.select(_jobs.c.id).where(~self._own()))}

    def due(self, now: float) -> list[str]:
        """Ids of jobs whose destruction time has come."""
        rows = self._run(sa.select(_jobs.c.id).where(self._own(), _jobs.c.destruction <= now))
        return [row[0] for row in rows]

    def change(self, job: Job, from_phases: Iterable[str], **values: Any) -> Job | None:
        """Writes new values into ``job`` and returns it; None if it has left ``from_phases`` meanwhile or is
        destroyed. Of what has ended, and so is never run again, the request is not kept."""
        written = {**values, "request": b""} if values.get("ended") is not None else values
        statement = _changing(frozenset(written), frozenset(from_phases))
        written = {"of_id": job.id, "of_service": self.service, **written}
        if self._is_sqlite:
            with self._sqlite() as connection:
                changed = _executed(connection, statement, written).rowcount
        else:
            with self._begin() as other:
                changed = other.execute(statement, written).rowcount
        return replace(job, **values) if changed else None

    def remove(self, id: str) -> None:
        with self._begin() as connection:
            connection.execute(_jobs.delete().where(_jobs.c.id == id, self._own()))

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
        rows = self._run(sa.select(_jobs.c.outputs).where(self._own(), _owned(owner), _jobs.c.phase == "COMPLETED"))
        return sum(each["bytes"] + each.get("forms", 0) for (outputs,) in rows for each in outputs)

    def sent(self, day: str, more: Mapping[str, int]) -> dict[str, int]:
        """Adds ``more`` bytes by caller to those of the day, and gives all of the day. Former days are forgotten."""
        own = _sent.c.service == self.service
        with self._begin() as connection:
            for caller, size in sorted(more.items()):
                row = sa.and_(own, _sent.c.caller == caller, _sent.c.day == day)
                values = {"service": self.service, "caller": caller, "day": day, "bytes": size}
                if not connection.execute(_sent.update().where(row).values(bytes=_sent.c.bytes + size)).rowcount:
                    try:
                        with connection.begin_nested():
                            connection.execute(_sent.insert().values(**values))
                    except IntegrityError:  # another process was faster
                        connection.execute(_sent.update().where(row).values(bytes=_sent.c.bytes + size))
            if more:
                connection.execute(_sent.delete().where(own, _sent.c.day < day))
            rows = connection.execute(sa.select(_sent.c.caller, _sent.c.bytes).where(own, _sent.c.day == day))
            return {caller: int(size) for caller, size in rows}

    def close(self) -> None:
        """Releases the name, if this process has claimed it."""
        if self._claimed:
            with suppress(DatabaseUnavailableError), self._opened() as connection:
                connection.execute(_services.delete().where(_services.c.token == self._token))
        self._engine.dispose()
        if self._file is not None:
            self._file.close()

    def add_tables(self, tables: sa.MetaData) -> None:
        """Makes those that are not there, for what else is kept in the state database."""
        with _translating():
            self._create(tables)

    def read(self, statement: Any) -> list[Any]:
        """The rows of a query over tables that were added."""
        return self._run(statement)

    @contextmanager
    def durable(self) -> Iterator[sa.Connection]:
        """A transaction that is on the disk when it has ended; the others on SQLite may be lost with the power."""
        self._check_lease()
        if self._file is not None:
            self._file.check()
        with _translating(), self._engine.connect() as connection:
            sqlite = connection.dialect.name == "sqlite"
            if sqlite:  # not within a transaction
                connection.exec_driver_sql("PRAGMA synchronous=FULL")
                connection.commit()
            try:
                with connection.begin():
                    yield connection
            finally:
                if sqlite:
                    connection.exec_driver_sql("PRAGMA synchronous=NORMAL")
                    connection.commit()

    def _own(self) -> sa.ColumnElement[bool]:
        return _jobs.c.service == self.service

    def _run(self, statement: Any, values: Mapping[str, Any] | None = None) -> list[Any]:
        with self._begin() as connection:
            result = connection.execute(statement, values)
            return list(result) if result.returns_rows else []

    def _begin(self) -> AbstractContextManager[sa.Connection]:
        self._check_lease()
        return self._opened()

    def _check_lease(self) -> None:
        if self._token is not None and time.monotonic() - self._renewed > LEASE_SECONDS:
            self.check()

    def _opened(self) -> AbstractContextManager[sa.Connection]:
        if self._file is not None:
            self._file.check()
        return _transaction(self._engine)

    @contextmanager
    def _sqlite(self) -> Iterator[sqlite3.Connection]:
        """A transaction without SQLAlchemy, whose part of a short one is twice that of SQLite."""
        self._check_lease()
        if self._file is not None:
            self._file.check()
        with _translating(), closing(self._engine.raw_connection()) as pooled:  # which rolls back what is not committed
            connection: Any = pooled.driver_connection
            yield connection
            connection.commit()


def _owned(owner: str | sa.ColumnElement[Any]) -> sa.ColumnElement[bool]:
    return sa.func.coalesce(_jobs.c.owner, "") == owner


def _phase_in(*phases: str) -> sa.ColumnElement[bool]:
    return sa.or_(*(_jobs.c.phase == each for each in phases))


# The statements for each job are made once: making one takes SQLAlchemy four times as long as SQLite takes to run it.
# An IN would be written again each time, for as many values as it has.
_of_service = _jobs.c.service == sa.bindparam("of_service")
_of_id = _jobs.c.id == sa.bindparam("of_id")
_ADD = _jobs.insert()
_GET = sa.select(_jobs).where(_of_id, _of_service)
_UNENDED = sa.select(sa.func.count()).where(
    _of_service, _owned(sa.bindparam("of_owner")), _phase_in("PENDING", "QUEUED", "EXECUTING")
)
_ACTIVE = sa.select(sa.func.count()).where(
    _of_service, _jobs.c.resource == sa.bindparam("of_resource"), _phase_in("QUEUED", "EXECUTING")
)


_SQLITE = pysqlite.dialect(paramstyle="named")
_JSON = frozenset(each.name for each in _jobs.c if isinstance(each.type, sa.JSON))


@cache
def _changing(columns: frozenset[str], phases: frozenset[str]) -> sa.Update:
    """Writes these columns of a job that is in one of these phases."""
    which = _of_id, _of_service, _phase_in(*phases)
    return _jobs.update().where(*which).values({each: sa.bindparam(each) for each in columns})


@cache
def _in_sqlite(statement: Any) -> tuple[str, dict[str, Any]]:
    """The text of a statement, and its values as far as they are known."""
    compiled = statement.compile(dialect=_SQLITE)
    return str(compiled), dict(compiled.params)


def _executed(connection: sqlite3.Connection, statement: Any, values: Mapping[str, Any]) -> sqlite3.Cursor:
    text, known = _in_sqlite(statement)
    given = {name: json.dumps(each) if name in _JSON else each for name, each in values.items()}
    return connection.execute(text, known | given)


def _add_columns(engine: sa.Engine) -> None:
    """Those that the table of an earlier version does not have."""
    there = {each["name"] for each in sa.inspect(engine).get_columns(_jobs.name)}
    for column in (each for each in _jobs.columns if each.nullable and each.name not in there):
        kind = column.type.compile(engine.dialect)
        with engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {_jobs.name} ADD COLUMN {column.name} {kind}")


def _process(number: int) -> tuple[str, str]:
    """The machine (with the container) of a process and the process's start time; empty if they cannot be known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        machine = f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return "", ""
    try:
        # proc(5): field 22, counted behind the name in brackets, which may hold anything
        return machine, Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return machine, ""


def _living(lease: sa.Row[Any]) -> bool | None:
    """Whether the process with the lease lives; None if it is on another machine."""
    machine, began = _process(lease.process)
    return lease.began == began if machine and machine == lease.machine else None


@contextmanager
def _transaction(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A transaction that translates the database's errors."""
    with _translating(), engine.begin() as connection:
        yield connection


@contextmanager
def _translating() -> Iterator[None]:
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


def _token(row: Any) -> StoredToken:
    values = dict(row._mapping)
    del values["service"]
    return StoredToken(**values | {each: tuple(values[each]) for each in ("resources", "groups")})


def _job(row: Any) -> Job:
    values = dict(row._mapping)
    values["request"] = bytes(values.get("request", b""))
    return Job(**values)
