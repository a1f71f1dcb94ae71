"""Drivers: one small interface in front of every kind of database.

A driver is made once for each resource and owns its connection pools. Every query runs on a connection of its own until
its stream is closed. All blocking calls take a ``Cancellation``: when it fires, the statement is cancelled in the
database, the blocked call raises the cause, and the connection goes back to its pool (or is thrown away where its
state is unknown). Foreign exceptions are translated to ``dai.errors`` here and nowhere else.

Statement parameters are ``?`` in the SQL (``??`` for a literal question mark operator, as in JDBC; only where
parameters or tables are given) and are always bound by the database, never pasted.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

import pyarrow as pa

from dai.drivers.connections.pool import Limit
from dai.drivers.published import Published
from dai.drivers.sql.meanings import Meanings, Meant
from dai.drivers.sql.parameters import Parameters, Placed, placed
from dai.drivers.sql.syntax import STANDARD, Syntax
from dai.drivers.statements import SYSTEMS, statement
from dai.drivers.tables import Statistics, TableInfo
from dai.plugins import Table
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

DRIVERS = Table(
    "driver",
    "dai.drivers",
    {
        "postgresql": "dai.drivers.postgresql.driver:PostgreSQL",
        "sqlite": "dai.drivers.sqlite.driver:SQLite",
        "duckdb": "dai.drivers.duckdb.driver:DuckDB",
        "files": "dai.drivers.duckdb.files:Files",
        "mariadb": "dai.drivers.mariadb.driver:MariaDB",
        "mysql": "dai.drivers.mariadb.driver:MariaDB",
        "any": "dai.drivers.generic.driver:AnyDatabase",
    },
    extras={"mariadb": "mariadb", "mysql": "mariadb"},
)
"""By the backend part of an SQLAlchemy URL (``postgresql+psycopg://`` is ``postgresql``); ``any`` takes the rest."""


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """``pool_size``: connections at most; ``pool_wait``: seconds to wait for one before BusyError; ``connect_wait``:
    seconds to wait for the database before DatabaseUnavailableError; ``batch_bytes``: about how large a fetched
    batch may be; ``idle``: seconds after which an unused connection is checked again before use. ``read_sockets``: many
    rows are read from the sockets of libpq and libmariadb, past these libraries, which is faster; else by them.
    ``within``: the limit of all users of the same database together. ``memory``: of a DuckDB, all queries together,
    before they write into temporary files ("25%" of the machine's, or "NB"); empty: DuckDB's own limit, 80 %."""

    pool_size: int = 16
    pool_wait: float = 30.0
    connect_wait: float = 10.0
    batch_bytes: int = 8 << 20
    idle: float = 30.0
    read_sockets: bool = True
    within: Limit | None = None
    memory: str = ""


@dataclass(frozen=True, slots=True)
class CallResult:
    """The results of a stored procedure: result sets in order, and the out parameters by their position (from 1)."""

    results: tuple[Stream, ...]
    out: dict[int, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """The progress of one part of a query that runs in several places: ``rows`` and ``bytes`` that it returned in
    ``seconds``. ``state`` is waiting, running, done, failed or stopped; ``expected`` are the rows that it will give,
    about."""

    name: str
    state: str
    rows: int = 0
    bytes: int = 0
    seconds: float = 0.0
    expected: int | None = None


Parts = Callable[[], tuple[Part, ...]]
"""Returns the progress of the parts of a query; from any thread, also after its end."""


def share_of(parts: Sequence[Part]) -> float | None:
    """The part of the expected rows that has come, from 0 to 1; None if nothing is known of them."""
    known = [each for each in parts if each.expected is not None]
    if not known:
        return None
    wanted = [each.rows if each.state == "done" else max(each.rows, each.expected or 0) for each in known]
    return sum(each.rows for each in known) / sum(wanted) if sum(wanted) else None


NO_TABLES: Mapping[str, pa.Table] = {}
Kept = TypeVar("Kept", bound="Closeable")


class Closeable(Protocol):
    def close(self) -> None: ...


class SessionKeeps(Protocol):
    """A driver's view of the session of a request."""

    @property
    def explicit(self) -> bool:
        """Whether it outlives the request."""

    @property
    def kept(self) -> Mapping[Any, Any]:
        """The objects that drivers keep for the session, each by a key of its own."""

    def keep(self, key: object, create: Callable[[], Kept]) -> Kept:
        """The object of that key, created if there is none, and closed when the session ends."""


class Session(ABC):
    """Statements that share one connection and one transaction; see ``Driver.transaction``."""

    @abstractmethod
    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Stream:
        """The tuples of one query; must be read or closed before the next statement of the session."""

    @abstractmethod
    def update(self, sql: str, parameter_rows: Iterable[Sequence[Any]] | None = None) -> int:
        """Runs a statement, once or for each row of parameters; the number of rows changed, summed."""


class Driver(ABC):
    """``dialect`` is the sqlglot/SQLAlchemy name of the SQL spoken, ``syntax`` how it is written; ``product`` its name
    and version for people.

    Every method raises StatementError (with position where the database says one), DatabaseUnavailableError,
    BusyError (no connection came free within ``pool_wait``), ParameterError (a value that cannot be bound) or the
    cancellation's cause.
    """

    dialect: str
    syntax: Syntax = STANDARD
    role: ClassVar[str | None] = None
    """The role of the service that the resource stands for (``dai.service.resources.ROLES``); None for a database."""
    fixed: ClassVar[bool] = False
    """Whether it never changes, whoever asks: it refuses changes and says what to do instead."""
    comments: ClassVar[bool] = True
    """Whether the database has comments of columns."""
    replicas: tuple[Driver, ...] = ()
    """Databases with the same data, in the order in which they are asked."""

    @property
    def system(self) -> str:
        """The name of the database in traces."""
        return SYSTEMS.get(self.dialect, self.dialect)

    @property
    def passes_callers_on(self) -> bool:
        """Whether it is a federation that asks its sources for its callers, and so has ``of``
        (``dai.service.resources.VIRTUAL``)."""
        return False

    @cached_property
    def meanings(self) -> Meanings:
        """The meanings of its tables' columns."""
        return Meanings(self)

    @cached_property
    def published(self) -> Published:
        """The properties of the resource that perform documents have published."""
        return Published()

    @classmethod
    @abstractmethod
    def connect(cls, url: str, options: DriverOptions) -> Driver:
        """A driver for the SQLAlchemy URL. Makes no connection yet. Errors name neither password nor host."""

    @abstractmethod
    def product(self) -> str:
        """Name and version, from the database."""

    def takes_tables(self) -> bool:
        """Whether a query may have query-scoped tables. May ask the database, once."""
        return False

    def placed(self, sql: str, parameters: Parameters) -> Placed:
        """A statement with parameters by name, or with lists, as ``query`` and ``update`` take it."""
        return placed(sql, parameters, self.syntax)

    @abstractmethod
    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        """The tuples of one query, in a read-only transaction where the database has them.

        The statement has been accepted and its schema is known when this returns; batches come as they are fetched,
        about ``batch_bytes`` (or exactly at most ``batch_rows`` rows) each, one read ahead at most. Anything but one
        single query raises NotAQueryError before it runs. Every type arrives losslessly or raises DataError naming the
        column and a cast that helps. Closing the stream stops the statement at once.

        ``tables``: query-scoped, by name. The query sees them under their names, before any table of the database;
        nobody else does, and they are gone when the stream is closed, however it ended. They need no right but to
        read. ParameterError where the driver does not take them (``takes_tables``), LimitError for too large ones.
        """

    def within(self, session: SessionKeeps, begun: Callable[[Parts], None]) -> Driver:
        """The same database for an activity of a request: with what drivers keep for its session, and with ``begun``,
        which is called at the beginning of each query that has parts. Here none has, and nothing is kept."""
        return self

    @abstractmethod
    def transaction(self, *, cancellation: Cancellation, read_only: bool = False) -> AbstractContextManager[Session]:
        """One transaction: committed at the end of the block, rolled back when an exception or a cancellation
        leaves it."""

    def update(
        self, sql: str, parameter_rows: Iterable[Sequence[Any]] | None = None, *, cancellation: Cancellation
    ) -> int:
        """One statement in a transaction of its own, run once or for each row of parameters: rows changed, summed."""
        with statement(cancellation, self, sql) as within, self.transaction(cancellation=within) as session:
            return session.update(sql, parameter_rows)

    @abstractmethod
    def call(
        self, procedure: str, parameters: Sequence[tuple[str, Any]], *, cancellation: Cancellation
    ) -> AbstractContextManager[CallResult]:
        """A stored procedure; parameters are (mode, value) with mode ``in``, ``out`` or ``inout``, by position.
        Committed at the end of the block. ParameterError where the database has no procedures."""

    @abstractmethod
    def load(
        self,
        table: str,
        stream: Stream,
        *,
        cancellation: Cancellation,
        create: bool = False,
        transactional: bool = True,
    ) -> int:
        """Rows loaded by the database's bulk path; columns match by name, in any order. ``create`` makes the table
        from the stream's schema first. Transactional: all rows or none. Otherwise in portions, and an error says
        how many rows stayed. Closes the stream."""

    @abstractmethod
    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        """Tables and views whose name, or ``schema.name``, matches the SQL LIKE pattern; system tables left out."""

    def unreadable(self) -> Mapping[str, str]:
        """Tables and views that cannot be read, with the reason, where ``tables`` leaves them out or a query of them
        would be the first to say so."""
        return {}

    def described(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        """``tables``, with what others say about their columns."""
        return self.meanings.on(self.tables(pattern))

    def meant(self, sql: str, hidden: Collection[str] = ()) -> Meant | None:
        """The meanings of the columns of a query's result; None: nothing is known, or ``query`` adds them itself.
        ``hidden``: the names of its query-scoped tables. May ask the database, once in a while."""
        return self.meanings.of(sql, hidden)

    @abstractmethod
    def statistics(self, table: str) -> Statistics:
        """The statistics that the database has, without reading all of the table. NotFoundError suggests the nearest
        name."""

    @abstractmethod
    def check(self) -> float:
        """Connects and runs a trivial query: seconds it took. Raises DatabaseUnavailableError."""

    def alive(self, seconds: float) -> bool:
        """Whether the database's process answers in time, however much it has to do: asked on a connection of its own.
        A database in this process always does."""
        return True

    @abstractmethod
    def pool_state(self) -> dict[str, int]:
        """``open``, ``idle``, ``limit``: for metrics and leak tests."""

    def properties(self) -> Mapping[str, Any]:
        """Properties of the resource for clients, besides those of every resource."""
        return {}

    @abstractmethod
    def close(self) -> None:
        """Closes all connections; queries under way fail."""


def driver_for(url: str, options: DriverOptions | None = None) -> Driver:
    """The driver of an SQLAlchemy URL."""
    backend = url.split(":", 1)[0].split("+", 1)[0]
    kind: type[Driver] = DRIVERS[backend if backend in DRIVERS else "any"]
    return kind.connect(url, options or DriverOptions())
