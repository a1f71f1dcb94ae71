"""Publishes a data service in a registry, with its resources, tables and columns, as long as the service lives.

Soft state: the lease is renewed three times in its time. What the service holds is looked at from time to time, and
told where it has changed, or where the registry does not know it any more. A service that stops says so; one that was
killed is deprecated when its lease ends: nobody finds it then, and what others said about its tables is there when it
comes back.

What the registry says about columns (``MEANING``), by whom the configuration believes, the service says too.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import dai
from dai.client.http.transport import Options
from dai.client.registry import RegistryClient
from dai.config import Config
from dai.drivers.sql.meanings import meaning
from dai.drivers.tables import TableInfo
from dai.errors import CancelledError, DaiError, NotFoundError
from dai.perform.activity import ACTIVITIES
from dai.service.registry.entries import EVALUATOR, MEANING
from dai.service.resources import Resource
from dai.streams.cancellation import Cancellation
from dai.streams.meaning import MEANINGS, Meaning

log = logging.getLogger("dai.registry")
RENEWALS = 3
"""How often a lease is renewed in its time."""
AGAIN_SECONDS, RETRY_SECONDS = 0.5, 30.0
"""Seconds until a failed request is tried again: the first pause, and the longest; each is twice the one before."""
PUBLISH_SECONDS = 600.0
"""Seconds after which unchanged entries are published again, too."""
PAGE = 1000
CLOSING_SECONDS = 3.0


class Publisher:
    """Works in a thread of its own. ``tells``: it publishes; else it only reads what is said about columns, as each
    process of a service does."""

    def __init__(self, config: Config, resources: Mapping[str, Resource], *, tells: bool = True) -> None:
        settings = config.registry
        assert settings.url is not None
        self._config, self._settings, self._resources, self._tells = config, settings, resources, tells
        self._address = str(settings.address).rstrip("/")
        self._calls = Cancellation()
        options = Options(connect=3.0, read=30.0, retries=0, token=settings.token, ca=settings.ca)
        self._client = RegistryClient(settings.url, options, self._calls)
        self._stop = threading.Event()
        self._said: set[str] = set()
        self._entries: list[dict[str, Any]] = []
        """As they were told last."""
        self._columns: dict[str, tuple[Resource, str]] = {}
        """Resources and names of columns, by the keys of their entries."""
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        published, looked = -PUBLISH_SECONDS, -self._settings.look_seconds
        pause = AGAIN_SECONDS
        seconds = self._settings.lease_seconds / RENEWALS
        if self._settings.look_seconds < seconds or not self._tells:
            seconds = self._settings.look_seconds
        while not self._stop.is_set():
            well = False
            now = time.monotonic()
            try:
                if now - looked < self._settings.look_seconds:
                    self._client.renew([self._address], self._settings.lease_seconds)
                    well = True
                else:
                    well = self._look(again=now - published >= PUBLISH_SECONDS)
                    if well:
                        looked, published = now, now if now - published >= PUBLISH_SECONDS else published
                        self._said.clear()
            except NotFoundError as error:
                if self._entries:
                    # the registry has lost the entries: they are published again at once
                    published, looked, self._entries = -PUBLISH_SECONDS, -self._settings.look_seconds, []
                    continue
                if self._tells:
                    self._say(f"There is no registry: {error}")
            except DaiError as error:
                self._say(f"The registry was not told: {error}")
            except Exception as error:
                log.error("publishing failed", exc_info=error)
            pause = AGAIN_SECONDS if well else min(2 * pause, RETRY_SECONDS)
            self._stop.wait(seconds if well else pause)
        try:
            if self._tells:
                self._client.deprecate(self._address)
        except DaiError as error:
            log.info("the registry was not told of the end", extra={"error": error.code})

    def _look(self, again: bool) -> bool:
        """Whether all could be told. What has not changed is told ``again`` only."""
        entries, whole = self._held()
        if self._tells:
            if again or entries != self._entries:
                self._client.publish(entries, whole=whole)
            else:
                self._client.renew([self._address], self._settings.lease_seconds)
            self._entries = entries
        if self._annotate() and self._tells:
            entries, whole = self._held()
            self._client.publish(entries, whole=whole)
            self._entries = entries
        return whole

    def _annotate(self) -> bool:
        """Whether what the registry says about columns is another than before."""
        owner = self._client.entry(self._address).get("owner", "") if self._columns else ""
        believed = {owner, *self._settings.annotators}
        said: dict[tuple[str, str], tuple[float, str]] = {}
        for word in MEANINGS if self._columns else ():
            for each in self._client.metadata(MEANING + word):
                if each["parent"] in self._columns and each["owner"] in believed:
                    stated = float(each["modified"]), str(each["metadata"]["value"])
                    said[each["parent"], word] = max(stated, said.get((each["parent"], word), stated))
        meanings_of: dict[str, dict[str, Meaning]] = {name: {} for name in self._resources}
        for (key, word), (_, value) in said.items():
            resource, column = self._columns[key]
            before = meanings_of[resource.name].get(column, Meaning())
            meanings_of[resource.name][column] = replace(before, **{word: value})
        changed = False
        for name, meanings in meanings_of.items():
            known = self._resources[name].driver.meanings
            changed = changed or known.annotated != meanings
            known.annotated = meanings
        return changed

    def _held(self) -> tuple[list[dict[str, Any]], bool]:
        """The entries of the service, and whether they are complete."""
        entries: list[dict[str, Any]] = [self._service()]
        whole = True
        self._columns.clear()
        for name, resource in self._resources.items():
            if self._settings.publish and name not in self._settings.publish:
                continue
            try:
                tables = () if resource.users or resource.callers else resource.driver.described()
            except DaiError as error:
                self._say(f"The tables of {name} are not published: {error}")
                whole, tables = False, ()
            entries += self._below(resource, tables)
        return entries, whole

    def _service(self) -> dict[str, Any]:
        replicas = self._config.replicas.catalog is not None
        return {
            "key": self._address,
            "kind": "service",
            "name": self._config.service.name,
            "properties": {
                "address": {"uri": self._address},
                "version": dai.__version__,
                "activities": sorted(ACTIVITIES),
                **({"replicaIndex": {"uri": self._address}} if replicas else {}),
            },
            "seconds": self._settings.lease_seconds,
            "then": "deprecate",
        }

    def _below(self, resource: Resource, tables: tuple[TableInfo, ...]) -> Iterator[dict[str, Any]]:
        """A resource, or an evaluator, and what it holds. Who may not read it does not see it."""
        at = f"{self._address}/resources/{quote(resource.name, safe='')}"
        properties: dict[str, Any] = {
            "address": {"uri": at},
            "kind": resource.kind,
            "activities": resource.activities(),
        }
        kind = EVALUATOR if resource.driver.role == EVALUATOR else "resource"
        entry = {"key": at, "kind": kind, "parent": self._address, "name": resource.name}
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
                column_key = f"{key}/{quote(column.name, safe='')}"
                self._columns[column_key] = resource, f"{name}.{column.name}"
                meant = {name: value for name, value in meaning(column).said.items() if name != "description"}
                yield {
                    "key": column_key,
                    "kind": "column",
                    "parent": key,
                    "name": column.name or f"column {position + 1}",
                    "description": column.comment or "",
                    "properties": {"type": column.type, "arrow": column.arrow, "position": position, **meant},
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
        """Tells the registry that the service stops, without waiting for that."""
        self._stop.set()

    def close(self) -> None:
        self.stop()
        self._thread.join(CLOSING_SECONDS)
        self._calls.cancel(CancelledError("The service is stopping."))
        self._client.close()
