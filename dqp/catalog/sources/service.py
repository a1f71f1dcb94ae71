"""A resource of a data service as a source, over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any
from urllib.parse import quote

import pyarrow as pa

from dai.client import Options, Service, parted
from dai.client.http.problems import read_json
from dai.client.service import Resource
from dai.drivers import NO_TABLES
from dai.drivers.tables import Column, ColumnStatistics, ForeignKey, Index, Statistics, TableInfo
from dai.errors import ConfigurationError, DataError, UnreachableError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dai.streams.tracing import streamed
from dqp.algebra.dialects import dialect_of
from dqp.algebra.types import readable
from dqp.catalog.heartbeat import PATIENCE, Heartbeat
from dqp.catalog.sources.source import Source, refusing

SMALL_SECONDS = 30.0
"""Seconds that a service may take to describe a resource."""
SMALL_AFTER, SMALL_PATIENCE = 2.0, 3.0
"""Meanwhile: seconds until the first question for a sign of life, and seconds that the service may be silent."""


STATEMENT_SECONDS = 3600.0
"""Seconds in which a statement must give rows: the default limit of a data service. Until then the heartbeat asks the
service for signs of life."""


ALIVE_SECONDS = 5.0
"""Seconds that one sign of life may take."""


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
                properties = read_json(self._get(self._path)[2])
                self._resource = Resource(self._service, self._name, properties)
            return self._resource

    @property
    def dialect(self) -> str:
        known = self.resource.properties
        with _understood():
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
            with _understood():
                tables = tuple(map(_table, read_json(content)["tables"]))
            known = self._known = (tag, tables)
        return known

    def _get(self, path: str, headers: Mapping[str, str] | None = None) -> tuple[int, str, bytes]:
        """Status, entity tag and content of the service's answer to a small request."""
        own = Cancellation()
        with self._refusing(), self._small.waiting(own):
            reply = self._described.transport.send("GET", path, headers=headers, cancellation=own)
            with reply.body:
                return reply.status, str(reply.headers.get("etag")), reply.body.read_small()

    def statistics(self, table: str) -> Statistics:
        content = read_json(self._get(f"{self._path}/statistics?table={quote(table, safe='')}")[2])
        with _understood():
            columns = {name: _from_json(ColumnStatistics, each) for name, each in content["columns"].items()}
            return Statistics(rows=content["rows"], size_bytes=content["size_bytes"], columns=columns)

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        tables: Mapping[str, pa.Table] = NO_TABLES,
    ) -> Stream:
        if (above := cancellation.span) is None:
            return self._request(sql, parameters, cancellation, tables)
        span = above.child("fetch", {"dqp.source": self.alias}, "client")
        return streamed(span, lambda: self._request(sql, parameters, cancellation.under(span), tables))

    def _request(
        self,
        sql: str,
        parameters: Sequence[Any],
        cancellation: Cancellation,
        tables: Mapping[str, pa.Table],
    ) -> Stream:
        own = Cancellation(cancellation.span)  # cancels this statement only
        with ExitStack() as stack:
            stack.enter_context(cancellation.on_cancel(lambda: own.cancel(cancellation.cause)))
            with self._refusing(), self._heartbeat.waiting(own):
                result = self.resource.query(sql, *parameters, cancellation=own, tables=tables)
                stack.callback(result.close)
                # Otherwise bytes of another kind could pass for a table without rows.
                if result.form != "arrow":
                    raise UnreachableError(
                        "The address answers, but it is not a data service.", hint="Check the address of the source."
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


@contextmanager
def _understood() -> Iterator[None]:
    """DataError for an answer with other members than a data service's has."""
    try:
        yield
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError("The address answers, but it is not a data service.") from error


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
        columns=tuple(_from_json(Column, each) for each in document["columns"]),
        schema=document.get("schema"),
        kind=document["kind"],
        primary_key=tuple(document["primary_key"]),
        foreign_keys=tuple(keys),
        indexes=tuple(Index(each["name"], tuple(each["columns"]), each["unique"]) for each in document["indexes"]),
        rows=document.get("rows"),
        comment=document.get("comment"),
    )


def _from_json(kind: Any, document: Mapping[str, Any]) -> Any:
    """A dataclass from JSON. Ignores members that a later version has added."""
    members = {name: document[name] for name in kind.__slots__ if name in document}
    if "common" in members:
        members["common"] = tuple((value, part) for value, part in members["common"])
    return kind(**members)
