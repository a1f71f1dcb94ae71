"""Speaks to sources: resources of data services over HTTP, and databases through drivers in this process.

Any number of threads may use a source at the same time. Its streams have types that DuckDB reads (``types.readable``).
"""

from __future__ import annotations

import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from dai.client import Options, Service, parted
from dai.client.http.transport import Tokens
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
from dai.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    DeniedError,
    NotFoundError,
    UnauthenticatedError,
    UnreachableError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dai.streams.tracing import streamed
from dqp.algebra.dialects import dialect_of
from dqp.algebra.types import readable
from dqp.catalog.exchanged import ExchangedTokens
from dqp.catalog.heartbeat import PATIENCE, Heartbeat
from dqp.errors import NoTokenError
from dqp.settings import FederationSettings, SourceSettings, TlsSettings

SMALL_SECONDS = 30.0
"""Seconds that a service may take to describe a resource."""
SMALL_AFTER, SMALL_PATIENCE = 2.0, 3.0
"""Meanwhile: seconds until the first question for a sign of life, and seconds that the service may be silent."""
STATEMENT_SECONDS = 3600.0
"""Seconds in which a statement must give rows: the default limit of a data service. Until then the heartbeat asks the
service for signs of life."""
ALIVE_SECONDS = 5.0
"""Seconds that one sign of life may take."""


class Source(ABC):
    """A source. ``alias`` is its name in SQL; ``address`` is for messages and evaluators and has no secret. A replica
    has an alias that SQL cannot write; ``replica_of`` is the alias of the source whose tables it has.

    Every call raises the driver's errors, and UnreachableError if the service does not answer.
    """

    alias: str
    address: str
    replica_of: str | None = None

    @property
    @abstractmethod
    def dialect(self) -> str:
        """``postgresql``, ``mariadb``, ``mysql``, ``sqlite``, ``duckdb`` or another of SQLAlchemy's names. Asks the
        source once."""

    @abstractmethod
    def tables(self) -> tuple[TableInfo, ...]:
        """The source's tables at this moment."""

    @abstractmethod
    def statistics(self, table: str) -> Statistics:
        """The database's own statistics of ``table`` or ``schema.table``."""

    @abstractmethod
    def fingerprint(self, *, fresh: bool = False) -> str:
        """A text that changes when the tables change; cheap. ``fresh``: the source must not answer from its cache."""

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
        """The tuples of a query in the source's dialect, as ``dai.drivers.Driver.query``. The source has accepted the
        query when this returns; closing the stream or cancelling stops the statement in the database."""

    def takes_tables(self) -> bool:
        """Whether a query may have query-scoped tables. Asks the source once."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Frees idle connections."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.alias} at {self.address}>"


class DriverSource(Source):
    """A database that this process speaks to through a driver. ``own``: closing the source closes the driver."""

    def __init__(self, alias: str, driver: Driver, *, own: bool = True, replica_of: str | None = None) -> None:
        self.alias, self.address, self.replica_of = alias, f"local:{alias}", replica_of
        self._driver, self._own = driver, own
        self._dialect: str | None = None

    @property
    def driver(self) -> Driver:
        return self._driver

    @property
    def dialect(self) -> str:
        if self._dialect is None:
            self._dialect = dialect_of(self.driver.dialect, self.driver.product)
        return self._dialect

    def tables(self) -> tuple[TableInfo, ...]:
        return self.driver.described()

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
        options: dict[str, Any] = {"tables": tables} if tables else {}
        return readable(self.driver.query(sql, parameters, cancellation=cancellation, batch_rows=batch_rows, **options))

    def takes_tables(self) -> bool:
        return self.driver.takes_tables()

    def close(self) -> None:
        if self._own:
            self.driver.close()


class CallersSource(DriverSource):
    """A resource of this service, as a caller sees it: ``resolve`` says at each use what it is, and whether the caller
    may do that with it (``read``, ``query``, ``statistics``, ``load``)."""

    def __init__(self, alias: str, resolve: Callable[[str], Driver]) -> None:
        self.alias, self.address, self.replica_of = alias, f"local:{alias}", None
        self._resolve, self._own = resolve, False
        self._dialect = None

    @property
    def driver(self) -> Driver:
        return self._driver_to("read")

    def _driver_to(self, work: str) -> Driver:
        with refusing(self.alias):
            return self._resolve(work)

    def statistics(self, table: str) -> Statistics:
        return self._driver_to("statistics").statistics(table)

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        self._driver_to("query")
        return super().query(sql, parameters, cancellation=cancellation, batch_rows=batch_rows, tables=tables)

    def takes_tables(self) -> bool:
        try:
            return self._driver_to("load").takes_tables()
        except DeniedError:
            return False


@contextmanager
def refusing(alias: str) -> Iterator[None]:
    """What a source does not allow the caller is the caller's matter, and says which source that is."""
    try:
        yield
    except NoTokenError:
        raise
    except (UnauthenticatedError, DeniedError) as error:
        raise DeniedError(
            f"The source {alias!r} refuses what you ask of it: {error.detail}",
            hint="The federation asks this source with your credentials; ask who runs the source to grant it.",
            source=alias,
        ) from error


class ServiceSource(Source):
    """A resource of a data service, over HTTP. Connects at its first use. ``liveness_timeout``: seconds without a
    sign of life, while a statement waits, until the service counts as lost. ``alone``: it has no replica;
    otherwise a statement that it does not accept is not sent again, but to another source (``dqp.execution.fetch``).
    ``private``: only this process can ask it, no evaluator. ``for_callers``: it is asked by the right of a caller."""

    def __init__(
        self,
        alias: str,
        url: str,
        *,
        replica_of: str | None = None,
        options: Options | None = None,
        liveness_timeout: float = PATIENCE,
        alone: bool = True,
        private: bool = False,
        for_callers: bool = False,
    ) -> None:
        base, name = parted(url)
        if name is None:
            raise ConfigurationError(
                f"The source {alias!r}: {url!r} names no resource.", hint=f"It looks like {base}/resources/NAME."
            )
        self.alias, self.replica_of, self.private = alias, replica_of, private
        self._refusing = partial(refusing, replica_of or alias) if for_callers else nullcontext
        self._path = f"/resources/{quote(name, safe='')}"
        self.address = base + self._path
        options = replace(options or Options(read=STATEMENT_SECONDS), busy_only=not alone)
        self._service = Service(base, options)
        # Small requests must not wait as long as a statement may.
        self._described = Service(base, replace(options, read=min(options.read, SMALL_SECONDS), retries=1))
        self._alive = Service(base, replace(options, read=min(options.read, ALIVE_SECONDS), retries=0))
        self._heartbeat = Heartbeat(self._lives, f"The source at {self.address}", patience=liveness_timeout)
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
                properties = json.loads(self._get(self._path)[2])
                self._resource = Resource(self._service, self._name, properties)
            return self._resource

    @property
    def dialect(self) -> str:
        known = self.resource.properties
        return dialect_of(str(known["dialect"]), lambda: str(known.get("product")))

    def takes_tables(self) -> bool:
        return bool(self.resource.properties.get("tables"))

    def tables(self) -> tuple[TableInfo, ...]:
        return self._schema(fresh=False)[1]

    def fingerprint(self, *, fresh: bool = False) -> str:
        return self._schema(fresh)[0]

    def _schema(self, fresh: bool) -> tuple[str, tuple[TableInfo, ...]]:
        """Entity tag and tables; transferred only if they differ from the known ones."""
        known = self._known
        headers = {"Accept": "application/json"}
        if known is not None:
            headers["If-None-Match"] = known[0]
        if fresh:
            headers["Cache-Control"] = "no-cache"
        self._lives()
        status, tag, content = self._get(f"{self._path}/schema", headers)
        if status != 304 or known is None:
            tables = tuple(map(_table, json.loads(content)["tables"]))
            known = self._known = (tag, tables)
        return known

    def _get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str, bytes]:
        """Status, entity tag and content of the service's answer to a small request."""
        own = Cancellation()
        with self._refusing(), self._small.waiting(own):
            reply = self._described.transport.send("GET", path, headers=headers, cancellation=own)
            with reply.body:
                return reply.status, str(reply.headers.get("etag")), bytes(reply.body.read_all())

    def statistics(self, table: str) -> Statistics:
        content = json.loads(self._get(f"{self._path}/statistics?table={quote(table, safe='')}")[2])
        columns = {name: _known(ColumnStatistics, each) for name, each in content["columns"].items()}
        return Statistics(rows=content["rows"], size_bytes=content["size_bytes"], columns=columns)

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        above = cancellation.span
        span = None if above is None else above.child("fetch", {"dqp.source": self.alias}, "client")
        return streamed(span, lambda: self._asked(sql, parameters, cancellation.under(span), batch_rows, tables))

    def _asked(
        self,
        sql: str,
        parameters: Sequence[Any],
        cancellation: Cancellation,
        batch_rows: int | None,
        tables: Mapping[str, pa.Table],
    ) -> Stream:
        own = Cancellation(cancellation.span)  # cancels this statement only
        with ExitStack() as stack:
            stack.enter_context(cancellation.on_cancel(lambda: own.cancel(cancellation.cause)))
            with self._refusing(), self._heartbeat.waiting(own):
                result = self.resource.query(sql, *parameters, blocksize=batch_rows, cancellation=own, tables=tables)
                stack.callback(result.close)
                # Otherwise bytes of another kind could pass for a table without rows.
                if result.form != "arrow":
                    raise UnreachableError(
                        "The address answers, but not as a data service.", hint="Check the address of the source."
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
        """Returns if the service lives. Raises UnreachableError if it does not answer, DatabaseUnavailableError if its
        database does not."""
        # An older service answers 404, because it cannot ask its database; that is a sign of life too.
        with (
            self._refusing(),
            self._alive.transport.send("GET", f"{self._path}/alive", accepted=frozenset({404})).body,
        ):
            pass

    def close(self) -> None:
        self._service.close()
        self._described.close()
        self._alive.close()


class DescribedSource(Source):
    """Tables that are only described: queries over them can be planned but not run."""

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
        raise DatabaseUnavailableError(f"The source {self.alias!r} is only described: it has no database.")

    def close(self) -> None:
        """Does nothing: there are no connections."""


class Credentials:
    """What services are shown of a caller whose token is ``bearer`` (None: there is none), or of the federation."""

    def __init__(self, settings: FederationSettings, bearer: str | None = None) -> None:
        self._tls, self._bearer = settings.tls, bearer
        self._exchanged: dict[str, ExchangedTokens] = {}

    def options(self, source: SourceSettings) -> Options:
        """Of calls to the source and its replicas."""
        token: str | Tokens | None = source.token
        if source.forward:
            token = self._bearer
        elif source.exchange is not None:
            token = self._exchanged.setdefault(
                source.alias,
                ExchangedTokens(source.alias, source.exchange, self._bearer, options_of(self._tls)),
            )
        return replace(options_of(self._tls, source), token=token)


def sources_of(
    settings: FederationSettings, credentials: Credentials, resolve: Callable[..., Driver] | None = None
) -> list[Source]:
    """The sources of a federation and their replicas, not connected yet. ``resolve`` gives the driver of a resource of
    this service, for a caller who is passed on to do what its second argument says."""
    sources: list[Source] = []
    for each in settings.sources:
        if each.url is not None:
            sources.append(service_source(settings, each, each.alias, each.url, credentials, alone=not each.replicas))
        elif each.database is not None:
            sources.append(DriverSource(each.alias, driver_for(each.database)))
        elif resolve is None:
            raise ConfigurationError(
                f"The source {each.alias!r} names the resource {each.resource!r}, but this process is not a service.",
                hint="Give the resource's url.",
            )
        elif settings.passes_callers_on:
            sources.append(CallersSource(each.alias, partial(resolve, str(each.resource))))
        else:
            sources.append(DriverSource(each.alias, _resolved(resolve, each), own=False))
        sources += [
            service_source(settings, each, f"{each.alias}@{number}", url, credentials, replica_of=each.alias)
            for number, url in enumerate(each.replicas, 1)
        ]
    return sources


def service_source(
    settings: FederationSettings,
    source: SourceSettings,
    alias: str,
    url: str,
    credentials: Credentials,
    *,
    replica_of: str | None = None,
    alone: bool = False,
) -> ServiceSource:
    """A resource at the URL, asked as the settings of the source say."""
    return ServiceSource(
        *(alias, url),
        replica_of=replica_of,
        options=credentials.options(source),
        liveness_timeout=settings.liveness_timeout,
        alone=alone,
        private=source.private,
        for_callers=source.for_callers,
    )


def options_of(tls: TlsSettings, source: SourceSettings | None = None) -> Options:
    """Of calls to a source, which may have files of its own in the place of those of ``tls``, by the right of the
    federation."""
    ca, certificate, key = tls.ca, tls.certificate, tls.key
    token = None
    if source is not None:
        ca, token = source.ca or ca, source.token
        if source.certificate is not None:
            certificate, key = source.certificate, source.key
    return Options(read=STATEMENT_SECONDS, token=token, ca=ca, certificate=certificate, key=key)


def _resolved(resolve: Callable[[str], Driver], source: SourceSettings) -> Driver:
    """ConfigurationError where the service has no such resource."""
    try:
        return resolve(str(source.resource))
    except NotFoundError as error:
        raise ConfigurationError(f"The source {source.alias!r}: {error.detail}", hint=error.hint) from error


def fingerprint_of(tables: Sequence[TableInfo]) -> str:
    """A text that changes when the tables change, but not with their row estimates. Comparable within this process."""
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
    """A dataclass from JSON. Ignores members that a later version has added."""
    return kind(**{name: document[name] for name in kind.__slots__ if name in document})
