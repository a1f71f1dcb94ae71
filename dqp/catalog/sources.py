"""Where tables live: resources of data services, and databases in this process.

A source answers from any number of threads at once. Its streams have types that DuckDB reads (``types.readable``).
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from dai.client import Options, Service, parted
from dai.client.service import Resource
from dai.drivers import (
    NO_TABLES,
    Column,
    ColumnStatistics,
    Driver,
    ForeignKey,
    Index,
    Statistics,
    TableInfo,
    driver_for,
)
from dai.errors import ConfigurationError, DatabaseUnavailableError, NotFoundError, UnreachableError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.types import readable
from dqp.catalog.heartbeat import PATIENCE, Heartbeat
from dqp.settings import FederationSettings, SourceSettings

SMALL_SECONDS = 30.0
"""How long a service may take to describe a resource."""
SMALL_AFTER, SMALL_PATIENCE = 2.0, 3.0
"""When it is asked meanwhile whether it lives, and how long it may not say so."""
STATEMENT_SECONDS = 3600.0
"""In which a statement has to give rows: what a data service allows it unless told otherwise. Until then the service is
asked beside it whether it lives."""
ALIVE_SECONDS = 5.0
"""How long it may take to say that it lives: asked before it is waited for longer."""
_DIALECTS = {"postgres": "postgresql"}


class Source(ABC):
    """``alias`` is its name in the SQL; ``address`` is for people and evaluators and holds no secret. A replica has
    an alias of its own, which no SQL can name, and ``replica_of`` says whose tables it has.

    Every call raises the driver's errors, and UnreachableError where the service does not answer.
    """

    alias: str
    address: str
    replica_of: str | None = None

    @property
    @abstractmethod
    def dialect(self) -> str:
        """``postgresql``, ``mariadb``, ``mysql``, ``sqlite``, ``duckdb`` or another name of SQLAlchemy's. Asks the
        source once."""

    @abstractmethod
    def tables(self) -> tuple[TableInfo, ...]:
        """What is there now."""

    @abstractmethod
    def statistics(self, table: str) -> Statistics:
        """Of ``table`` or ``schema.table``, from the database's own statistics."""

    @abstractmethod
    def fingerprint(self, *, fresh: bool = False) -> str:
        """Changes when the tables do; cheap. ``fresh``: the source looks now, and not at what it knew a moment ago."""

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
        """The tuples of a query in the source's dialect, as ``dai.drivers.Driver.query``: accepted when this returns;
        closing the stream or cancelling stops the statement in the database."""

    def takes_tables(self) -> bool:
        """Whether a query may bring tables along. Asks the source once."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Frees idle connections."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias} at {self.address}>"


class DriverSource(Source):
    """A database that this process talks to itself. ``own``: closing the source closes the driver."""

    def __init__(self, alias: str, driver: Driver, *, own: bool = True, replica_of: str | None = None) -> None:
        self.alias, self.address, self.replica_of = alias, f"local:{alias}", replica_of
        self.driver, self._own = driver, own
        self._dialect: str | None = None

    @property
    def dialect(self) -> str:
        if self._dialect is None:
            product = self.driver.product() if self.driver.dialect == "mysql" else ""
            self._dialect = _dialect(self.driver.dialect, product)
        return self._dialect

    def tables(self) -> tuple[TableInfo, ...]:
        return self.driver.tables()

    def statistics(self, table: str) -> Statistics:
        return self.driver.statistics(table)

    def fingerprint(self, *, fresh: bool = False) -> str:
        return fingerprint_of(self.tables())

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        brought: dict[str, Any] = {"tables": tables} if tables else {}
        return readable(self.driver.query(sql, parameters, cancellation=cancellation, batch_rows=batch_rows, **brought))

    def takes_tables(self) -> bool:
        return self.driver.takes_tables()

    def close(self) -> None:
        if self._own:
            self.driver.close()


class ServiceSource(Source):
    """A resource of a data service, over HTTP. Connects when it is first asked. ``silence``: seconds that the service
    may not say that it lives while a statement waits for it."""

    def __init__(
        self,
        alias: str,
        url: str,
        *,
        replica_of: str | None = None,
        options: Options | None = None,
        silence: float = PATIENCE,
    ) -> None:
        base, name = parted(url)
        if name is None:
            raise ConfigurationError(
                f"The source {alias!r}: {url!r} names no resource.", hint=f"It looks like {base}/resources/NAME."
            )
        self.alias, self.replica_of = alias, replica_of
        self._path = f"/resources/{quote(name, safe='')}"
        self.address = base + self._path
        options = options or Options(read=STATEMENT_SECONDS)
        self._service = Service(base, options)
        # What is small must not wait as long as a statement may.
        self._described = Service(base, replace(options, read=min(options.read, SMALL_SECONDS), retries=1))
        self._alive = Service(base, replace(options, read=min(options.read, ALIVE_SECONDS), retries=0))
        self._heartbeat = Heartbeat(self._lives, f"The source at {self.address}", patience=silence)
        self._small = Heartbeat(
            self._lives, f"The source at {self.address}", patience=SMALL_PATIENCE, after=SMALL_AFTER
        )
        self._name = name
        self._resource: Resource | None = None
        self._connecting = threading.Lock()
        self._known: tuple[str, tuple[TableInfo, ...]] | None = None

    @property
    def resource(self) -> Resource:
        with self._connecting:
            if self._resource is None:
                properties = json.loads(self._told(self._path)[2])
                self._resource = Resource(self._service, self._name, properties)
            return self._resource

    @property
    def dialect(self) -> str:
        known = self.resource.properties
        return _dialect(str(known["dialect"]), str(known.get("product")))

    def takes_tables(self) -> bool:
        return bool(self.resource.properties.get("tables"))

    def tables(self) -> tuple[TableInfo, ...]:
        return self._schema(fresh=False)[1]

    def fingerprint(self, *, fresh: bool = False) -> str:
        return self._schema(fresh)[0]

    def _schema(self, fresh: bool) -> tuple[str, tuple[TableInfo, ...]]:
        """Entity tag and tables; read only where the service has others than those that are known."""
        known = self._known
        headers = {"Accept": "application/json"}
        if known is not None:
            headers["If-None-Match"] = known[0]
        if fresh:
            headers["Cache-Control"] = "no-cache"
        self._lives()
        status, tag, content = self._told(f"{self._path}/schema", headers)
        if status != 304 or known is None:
            tables = tuple(map(_table, json.loads(content)["tables"]))
            known = self._known = (tag, tables)
        return known

    def _told(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str, bytes]:
        """What the service says of itself: status, entity tag, content."""
        own = Cancellation()
        with self._small.waiting(own):
            reply = self._described.transport.send("GET", path, headers=headers, cancellation=own)
            with reply.body:
                return reply.status, str(reply.headers.get("etag")), bytes(reply.body.read_all())

    def statistics(self, table: str) -> Statistics:
        found = json.loads(self._told(f"{self._path}/statistics?table={quote(table, safe='')}")[2])
        columns = {name: _known(ColumnStatistics, each) for name, each in found["columns"].items()}
        return Statistics(rows=found["rows"], size_bytes=found["size_bytes"], columns=columns)

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        own = Cancellation()  # What ends this statement alone.
        with ExitStack() as stack:
            stack.enter_context(cancellation.on_cancel(lambda: own.cancel(cancellation.cause)))
            with self._heartbeat.waiting(own):
                result = self.resource.query(sql, *parameters, blocksize=batch_rows, cancellation=own, tables=tables)
                stack.callback(result.close)
                # Bytes of an unknown kind could pass for a table without rows.
                if result.form != "arrow":
                    raise UnreachableError(
                        "What answers there is no data service.", hint="Check the address of the source."
                    )
                stream = readable(result.stream())
            stack.callback(stream.close)
            return Stream(stream.schema, self._watched(stream, own), stack.pop_all().close)

    def _watched(self, stream: Stream, cancellation: Cancellation) -> Iterator[pa.RecordBatch]:
        while True:
            with self._heartbeat.waiting(cancellation):
                batch = next(stream, None)
            if batch is None:
                return
            yield batch

    def _lives(self) -> None:
        """UnreachableError where the service does not answer, DatabaseUnavailableError where its database does not."""
        # A service of a version that cannot ask its database says that there is no such thing: it lives.
        with self._alive.transport.send("GET", f"{self._path}/alive", accepted=frozenset({404})).body:
            pass

    def close(self) -> None:
        self._service.close()
        self._described.close()
        self._alive.close()


class DescribedSource(Source):
    """Tables that are only described: plans can be made with them, nothing can run."""

    def __init__(self, alias: str, dialect: str, tables: tuple[TableInfo, ...]) -> None:
        self.alias, self.address = alias, f"described:{alias}"
        self._dialect, self._tables = dialect, tables

    @property
    def dialect(self) -> str:
        return self._dialect

    def tables(self) -> tuple[TableInfo, ...]:
        return self._tables

    def statistics(self, table: str) -> Statistics:
        return Statistics(rows=None)

    def fingerprint(self, *, fresh: bool = False) -> str:
        return "described"

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        raise DatabaseUnavailableError(f"The source {self.alias!r} is only described: there is no database behind it.")

    def close(self) -> None:
        """There is nothing to free."""


def sources_of(settings: FederationSettings, resolve: Callable[[str], Driver] | None = None) -> list[Source]:
    """The sources of a federation and their replicas, none of them connected yet. ``resolve`` gives the driver of a
    resource of this service."""
    found: list[Source] = []
    for each in settings.sources:
        if each.url is not None:
            found.append(ServiceSource(each.alias, each.url, silence=settings.silence))
        elif each.database is not None:
            found.append(DriverSource(each.alias, driver_for(each.database)))
        elif resolve is None:
            raise ConfigurationError(
                f"The source {each.alias!r} is the resource {each.resource!r} of a service, and this is none.",
                hint="Give its url.",
            )
        else:
            found.append(DriverSource(each.alias, _resolved(resolve, each), own=False))
        found += [
            ServiceSource(f"{each.alias}@{number}", url, replica_of=each.alias, silence=settings.silence)
            for number, url in enumerate(each.replicas, 1)
        ]
    return found


def _resolved(resolve: Callable[[str], Driver], source: SourceSettings) -> Driver:
    try:
        return resolve(str(source.resource))
    except NotFoundError as error:
        raise ConfigurationError(f"The source {source.alias!r}: {error.detail}", hint=error.hint) from error


def _dialect(dialect: str, product: str) -> str:
    """The drivers' name for MariaDB and MySQL is one."""
    if dialect == "mysql" and not product.startswith("MySQL"):
        return "mariadb"
    return _DIALECTS.get(dialect, dialect)


def fingerprint_of(tables: Sequence[TableInfo]) -> str:
    """Of everything but the row estimates, which change with every row. Good for comparisons in this process."""
    return f"{hash(tuple(replace(each, rows=None) for each in tables)):x}"


def _table(document: Mapping[str, Any]) -> TableInfo:
    keys = [
        ForeignKey(
            columns=tuple(each["columns"]),
            table=each["table"],
            referred_columns=tuple(each["referred_columns"]),
            schema=each.get("schema"),
            name=each.get("name"),
        )
        for each in document["foreign_keys"]
    ]
    return TableInfo(
        name=document["name"],
        columns=tuple(_known(Column, each) for each in document["columns"]),
        schema=document.get("schema"),
        kind=document["kind"],
        primary_key=tuple(document["primary_key"]),
        foreign_keys=tuple(keys),
        indexes=tuple(Index(each["name"], tuple(each["columns"]), each["unique"]) for each in document["indexes"]),
        rows=document.get("rows"),
        comment=document.get("comment"),
    )


def _known(kind: Any, document: Mapping[str, Any]) -> Any:
    """A dataclass from JSON; members that a later version added are passed over."""
    return kind(**{name: document[name] for name in kind.__slots__ if name in document})
