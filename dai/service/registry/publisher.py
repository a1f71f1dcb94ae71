"""Publishes a data service in a registry, with its resources, tables and columns, as long as the service lives.

Soft state: the lease is renewed three times in its time, and what the service holds is told again from time to time,
and when the registry does not know it any more. A service that stops says so; one that was killed is deprecated when
its lease ends: nobody finds it then, and what others said about its tables is there when it comes back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote

import dai
from dai.client.http.transport import Options
from dai.client.registry import RegistryClient
from dai.config import Config
from dai.drivers import TableInfo
from dai.errors import CancelledError, DaiError, NotFoundError
from dai.perform.activity import ACTIVITIES
from dai.service.resources import Resource
from dai.streams.cancellation import Cancellation

log = logging.getLogger("dai.registry")
RENEWALS = 3
"""In the time of a lease."""
AGAIN_SECONDS, RETRY_SECONDS = 0.5, 30.0
"""Until what failed is tried again: the first pause, and the longest; each is twice the one before."""
TOLD_SECONDS = 600.0
"""How often the service looks what it holds."""
CLOSING_SECONDS = 3.0


class Publisher:
    """Works in a thread of its own."""

    def __init__(self, config: Config, resources: Mapping[str, Resource], told_seconds: float = TOLD_SECONDS) -> None:
        settings = config.registry
        assert settings.url is not None
        self._config, self._settings, self._resources = config, settings, resources
        self._told_seconds = told_seconds
        self._address = str(settings.address).rstrip("/")
        self._calls = Cancellation()
        options = Options(connect=3.0, read=30.0, retries=0, token=settings.token, ca=settings.ca)
        self._client = RegistryClient(settings.url, options, self._calls)
        self._stop = threading.Event()
        self._said: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        told: float | None = None
        pause = AGAIN_SECONDS
        while not self._stop.is_set():
            well = False
            try:
                if told is not None and time.monotonic() - told < self._told_seconds:
                    self._client.renew([self._address], self._settings.lease_seconds)
                    well = True
                else:
                    well = self._publish()
                    told = time.monotonic() if well else None
                    if well:
                        self._said.clear()
            except NotFoundError as error:
                if told is not None:
                    # the registry has lost it: it is told again at once
                    told = None
                    continue
                self._say(f"There is no registry: {error}")
            except DaiError as error:
                self._say(f"The registry was not told: {error}")
            except Exception as error:
                log.error("publishing failed", exc_info=error)
            pause = AGAIN_SECONDS if well else min(2 * pause, RETRY_SECONDS)
            self._stop.wait(self._settings.lease_seconds / RENEWALS if well else pause)
        try:
            self._client.deprecate(self._address)
        except DaiError as error:
            log.info("the registry was not told of the end", extra={"error": error.code})

    def _publish(self) -> bool:
        """Whether all could be told."""
        entries: list[dict[str, Any]] = [self._service()]
        whole = True
        for name, resource in self._resources.items():
            if self._settings.publish and name not in self._settings.publish:
                continue
            try:
                tables = () if resource.users or resource.callers else resource.driver.described()
            except DaiError as error:
                self._say(f"The tables of {name} are not published: {error}")
                whole, tables = False, ()
            entries += self._entries(resource, tables)
        self._client.publish(entries, whole=whole)
        return whole

    def _service(self) -> dict[str, Any]:
        return {
            "key": self._address,
            "kind": "service",
            "name": self._config.service.name,
            "properties": {
                "address": {"uri": self._address},
                "version": dai.__version__,
                "activities": sorted(ACTIVITIES),
            },
            "seconds": self._settings.lease_seconds,
            "then": "deprecate",
        }

    def _entries(self, resource: Resource, tables: tuple[TableInfo, ...]) -> Iterator[dict[str, Any]]:
        """A resource and what it holds. Who may not read it does not see it."""
        at = f"{self._address}/resources/{quote(resource.name, safe='')}"
        properties: dict[str, Any] = {"address": {"uri": at}, "kind": resource.kind}
        entry = {"key": at, "kind": "resource", "parent": self._address, "name": resource.name}
        yield {
            **entry,
            "properties": properties,
            "description": resource.description or "",
            "readers": list(resource.policy.read),
        }
        for table in tables:
            name = f"{table.schema}.{table.name}" if table.schema else table.name
            key = f"{at}#{quote(name, safe='')}"
            rows = self._rows(resource, table, name)
            about = {"kind": table.kind} if rows is None else {"kind": table.kind, "rows": rows}
            yield {
                "key": key,
                "kind": "table",
                "parent": at,
                "name": table.name,
                "description": table.comment or "",
                "properties": about if table.schema is None else {**about, "schema": table.schema},
            }
            for position, column in enumerate(table.columns):
                yield {
                    "key": f"{key}/{quote(column.name, safe='')}",
                    "kind": "column",
                    "parent": key,
                    "name": column.name or f"column {position + 1}",
                    "description": column.comment or "",
                    "properties": {"type": column.type, "arrow": column.arrow, "position": position},
                }

    def _rows(self, resource: Resource, table: TableInfo, name: str) -> int | None:
        try:
            rows = resource.driver.statistics(name).rows
        except DaiError:
            return table.rows
        return table.rows if rows is None else rows

    def _say(self, what: str) -> None:
        """Once, until all goes well."""
        if what not in self._said:
            self._said.add(what)
            log.warning("%s", what)

    def stop(self) -> None:
        """The service stops: the registry is told, which this call does not wait for."""
        self._stop.set()

    def close(self) -> None:
        self.stop()
        self._thread.join(CLOSING_SECONDS)
        self._calls.cancel(CancelledError("The service stops."))
        self._client.close()
