"""The state database: what outlives the process. SQLite unless configured otherwise; SQLAlchemy Core, no ORM.

Only jobs so far. A row holds what a job is asked to do and how far it came; results are files (``dai.results``). Each
write is one transaction. Several services may share one database: each sees only the rows of its own name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import make_url
from sqlalchemy.exc import SQLAlchemyError

from dai.errors import ConfigurationError, DatabaseUnavailableError

log = logging.getLogger("dai.store")

_metadata = sa.MetaData()
_jobs = sa.Table(
    "dai_jobs",
    _metadata,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("service", sa.String(200), nullable=False, index=True),
    sa.Column("resource", sa.String(200), nullable=False),
    sa.Column("session", sa.String(64)),
    sa.Column("owner", sa.String(400)),
    sa.Column("phase", sa.String(16), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("request", sa.LargeBinary, nullable=False),
    sa.Column("blocksize", sa.Integer),
    sa.Column("created", sa.Float, nullable=False),
    sa.Column("started", sa.Float),
    sa.Column("ended", sa.Float),
    sa.Column("destruction", sa.Float, nullable=False, index=True),
    sa.Column("outputs", sa.JSON, nullable=False),
    sa.Column("activities", sa.JSON, nullable=False),
    sa.Column("error", sa.JSON),
)


@dataclass(frozen=True, slots=True)
class Job:
    """One job as it is stored. Times are seconds since 1970 UTC; ``kind`` says how ``request`` is read; ``outputs``
    and ``activities`` are what ``dai.jobs`` writes into them; ``error`` is a problem document."""

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
    blocksize: int | None = None
    started: float | None = None
    ended: float | None = None
    outputs: list[dict[str, Any]] = field(default_factory=list)
    activities: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None


class Store:
    """Thread-safe. DatabaseUnavailableError when the state database cannot be reached or written."""

    def __init__(self, url: str, service: str) -> None:
        self.service = service
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
                Path(str(parsed.database)).parent.mkdir(parents=True, exist_ok=True)
            self._engine = sa.create_engine(parsed, pool_pre_ping=not sqlite, **options)
            if sqlite:
                sa.event.listen(self._engine, "connect", _prepare_sqlite)
            _metadata.create_all(self._engine)
        except (SQLAlchemyError, OSError, ImportError) as error:
            log.error("the state database cannot be opened", exc_info=error)
            raise ConfigurationError(
                "The state database (service.state) cannot be opened.", hint="The log says why."
            ) from error

    def check(self) -> None:
        """A trivial query."""
        self._run(sa.select(sa.literal(1)))

    def add(self, job: Job) -> None:
        self._run(_jobs.insert().values(**asdict(job)))

    def get(self, id: str) -> Job | None:
        rows = self._run(sa.select(_jobs).where(_jobs.c.id == id, self._own()))
        return _job(rows[0]) if rows else None

    def listed(self, phases: Iterable[str] = (), limit: int | None = None) -> list[Job]:
        """The newest first; without their requests, which may be large."""
        columns = [each for each in _jobs.c if each.name != "request"]
        query = sa.select(*columns, sa.literal(b"").label("request")).where(self._own())
        if chosen := list(phases):
            query = query.where(_jobs.c.phase.in_(chosen))
        rows = self._run(query.order_by(_jobs.c.created.desc(), _jobs.c.id).limit(limit))
        return [_job(row) for row in rows]

    def due(self, now: float) -> list[str]:
        """Ids of jobs whose destruction time has come."""
        rows = self._run(sa.select(_jobs.c.id).where(self._own(), _jobs.c.destruction <= now))
        return [row[0] for row in rows]

    def change(self, job: Job, from_phases: Iterable[str], **values: Any) -> Job | None:
        """``job`` with the new values, unless it has left ``from_phases`` meanwhile or is gone: None then."""
        condition = sa.and_(_jobs.c.id == job.id, self._own(), _jobs.c.phase.in_(list(from_phases)))
        with self._begin() as connection:
            changed = connection.execute(_jobs.update().where(condition).values(**values)).rowcount
        return replace(job, **values) if changed else None

    def remove(self, id: str) -> None:
        with self._begin() as connection:
            connection.execute(_jobs.delete().where(_jobs.c.id == id, self._own()))

    def close(self) -> None:
        self._engine.dispose()

    def _own(self) -> sa.ColumnElement[bool]:
        return _jobs.c.service == self.service

    def _run(self, statement: Any) -> list[Any]:
        with self._begin() as connection:
            result = connection.execute(statement)
            return list(result) if result.returns_rows else []

    def _begin(self) -> _Begin:
        return _Begin(self._engine)


class _Begin:
    """A transaction whose database errors are translated."""

    def __init__(self, engine: sa.Engine) -> None:
        self._context = engine.begin()

    def __enter__(self) -> sa.Connection:
        try:
            return self._context.__enter__()
        except SQLAlchemyError as error:
            raise _translated(error) from error

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self._context.__exit__(kind, error, trace)
        except SQLAlchemyError as late:
            raise _translated(late) from late
        if isinstance(error, SQLAlchemyError):
            raise _translated(error) from error


def _translated(error: SQLAlchemyError) -> DatabaseUnavailableError:
    log.error("the state database failed", exc_info=error)
    return DatabaseUnavailableError("The service cannot reach or write its own state.", hint="Try again later.")


def _prepare_sqlite(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _job(row: Any) -> Job:
    values = dict(row._mapping)
    values["request"] = bytes(values["request"])
    return Job(**values)
