"""Registers the tables that a data service holds with a replica service, as long as the service lives.

Soft state: each entry has a time at which it ends, which is set anew long before. What the service cannot take back,
because it was killed or the replica service is away, ends by itself. A table that is not there, or whose database does
not answer, is not registered, and keeps no other from it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from dai.client.http.transport import Options
from dai.config import PublishedTable, ReplicasConfig
from dai.drivers.tables import TableInfo
from dai.errors import CancelledError, DaiError
from dai.plugins import nearest
from dai.replicas.client import Attributes, ReplicaClient, TableTarget, schema_digest
from dai.streams.cancellation import Cancellation

log = logging.getLogger("dai.replicas")

RENEWALS = 3
"""How often an entry is renewed in its lifetime."""
AGAIN_SECONDS, RETRY_SECONDS = 0.5, 30.0
"""Seconds until a failed request is tried again: the first pause, and the longest; each is twice the one before."""
PATIENCE = Options(connect=3.0, read=10.0, retries=0)
CLOSING_SECONDS = 3.0
"""Seconds for removing the entries when the service stops; entries that are left end by themselves."""


class Registration:
    """Works in a thread of its own. ``tables`` gives the tables of a resource, ``rows`` how many one has."""

    def __init__(
        self,
        settings: ReplicasConfig,
        tables: Callable[[str], Sequence[TableInfo]],
        rows: Callable[[str, TableInfo], int | None],
    ) -> None:
        assert settings.service is not None
        self._settings, self._tables, self._rows = settings, tables, rows
        self._calls = Cancellation()
        options = Options(connect=PATIENCE.connect, read=PATIENCE.read, retries=0, token=settings.token, ca=settings.ca)
        self._client = ReplicaClient(settings.service, options, self._calls)
        self._stop = threading.Event()
        self._said: dict[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="replica registration", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        registered: set[tuple[str, TableTarget]] = set()
        pause = AGAIN_SECONDS
        while not self._stop.is_set():
            whole = False
            try:
                whole = self._register(registered)
            except DaiError as error:
                self._say("", f"The replica service was not told: {error}")
            except Exception as error:
                log.error("the registration failed", exc_info=error)
            pause = AGAIN_SECONDS if whole else min(2 * pause, RETRY_SECONDS)
            self._stop.wait(self._settings.lease_seconds / RENEWALS if whole else pause)
        if registered:
            try:
                self._client.withdraw(registered)
            except DaiError as error:
                log.info("the replica service was not told of the end", extra={"error": error.code})

    def _register(self, registered: set[tuple[str, TableTarget]]) -> bool:
        """Whether all is registered. ``registered``: what the replica service may have of this service."""
        known: dict[tuple[str, TableTarget], Attributes] = {}
        for logical, published in self._settings.publish.items():
            try:
                attributes = self._attributes(published)
            except DaiError as error:
                self._say(logical, f"{published.resource}#{published.table} is not registered: {error}")
                continue
            if attributes is not None:
                address = f"{str(self._settings.url).rstrip('/')}/resources/{published.resource}"
                target = TableTarget.of(f"{address}#{published.table}")
                assert target is not None
                known[logical, target] = attributes
        registered.update(known)
        for reason in self._client.register(known):
            self._say("", f"The replica service refused an entry: {reason}")
            return False
        if len(known) == len(self._settings.publish):
            self._said.clear()
        return len(known) == len(self._settings.publish)

    def _attributes(self, published: PublishedTable) -> Attributes | None:
        tables = self._tables(published.resource)
        table = named(tables, published.table)
        if table is None:
            names = [each.name for each in tables]
            hint = nearest(published.table, names) if names else "The resource has no tables."
            self._say(f"{published}", f"There is no table {published.resource}#{published.table}. {hint}")
            return None
        rows = self._rows(published.resource, table)
        fixed = {name: value for name in ("cost", "distance") if (value := getattr(published, name)) is not None}
        expires = time.time() + self._settings.lease_seconds
        counted = {} if rows is None else {"rows": rows}
        return {"schema": schema_digest(table), "expires": expires, **counted, **fixed}

    def _say(self, about: str, what: str) -> None:
        """Once, until it changes."""
        if self._said.get(about) != what:
            self._said[about] = what
            log.warning("%s", what)

    def stop(self) -> None:
        """The service stops: the entries are taken back, which this call does not wait for. What is on its way is not
        interrupted: it would arrive after that."""
        self._stop.set()

    def close(self) -> None:
        self.stop()
        self._thread.join(CLOSING_SECONDS)
        self._calls.cancel(CancelledError("The service is stopping."))
        self._client.close()


def named(tables: Sequence[TableInfo], name: str) -> TableInfo | None:
    """The table ``name`` or ``schema.name``, as its database writes it; None where there is none, or several."""
    matches = [each for each in tables if name in (each.name, f"{each.schema}.{each.name}")]
    exact = [each for each in matches if each.schema in (None, "", "public", "main")] or matches
    return exact[0] if len(exact) == 1 else None
