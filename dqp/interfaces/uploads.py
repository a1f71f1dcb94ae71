"""A lab's uploads to a federation in a service: they are in a session of the service, which belongs to the lab.

Queries of the lab run in that session, so they read the tables by their names, and nobody else can. The service ends a
session that was not used for ``SECONDS``. The lab still has the tables and then sends them again, into a new session.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pyarrow as pa

from dai.client.documents import activity, document, element
from dai.errors import DaiError, GoneError, NotFoundError
from dqp.catalog.uploads import Uploads

SECONDS = 3600.0
"""The time-out of a lab's session."""
_STREAMS = 500
"""Tables that are sent into one session: it has a stream for each, and a limit of streams."""
_PATIENCE = 5.0
"""Seconds in which a load whose rows cannot be sent says why."""


class RemoteUploads:
    """Those of one lab. ``remote`` is the resource that the federation is. Thread-safe."""

    def __init__(self, remote: Any) -> None:
        self._remote = remote
        self._kept = Uploads()
        self._session: Any = None
        self._sent = 0
        self._lock = threading.Lock()

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        return self._kept.tables

    def upload(self, name: str, table: pa.Table) -> None:
        """Adds the table for this lab's queries. Raises the errors of the service."""
        with self._lock:
            session = self._session
            if session is None or self._sent >= _STREAMS:
                session = self._renewed()
            try:
                self._send(session, name, table)
            except (NotFoundError, GoneError):
                self._send(self._renewed(), name, table)
            self._kept.add(name, table)

    def with_session(self, ask: Callable[[str | None], Any]) -> Any:
        """What ``ask`` gives for the id of the session that has the tables; None as long as there are none."""
        session = self._session
        try:
            return ask(None if session is None else session.id)
        except (NotFoundError, GoneError):
            if session is None:
                raise
            with self._lock:
                session = self._renewed() if session is self._session else self._session
            return ask(session.id)

    def close(self) -> None:
        """Ends the session, if the service can be reached; the service then drops the tables."""
        self._end()
        self._kept.close()

    def _end(self) -> None:
        if self._session is not None:
            with suppress(DaiError):
                self._session.close()

    def _renewed(self) -> Any:
        """A new session with the tables."""
        self._end()
        self._session, self._sent = self._remote.session(SECONDS), 0
        for name, table in self._kept.tables.items():
            self._send(self._session, name, table)
        return self._session

    def _send(self, session: Any, name: str, table: pa.Table) -> None:
        self._sent += 1
        stream = f"upload-{self._sent}"
        load = document(
            activity("inputStream", element("toLocal", name="tuples"), name=stream),
            activity(
                "sqlBulkLoadRowSet",
                element("webRowSetStream", from_="tuples"),
                element("loadIntoTable", tableName=name, transactionally=True),
                element("resultStream", name="count"),
                name="load",
            ),
        )
        with ThreadPoolExecutor(1, "dqp-upload") as pool:
            loading = pool.submit(lambda: session.perform(load).check())
            try:
                session.push(stream, table, format="arrow")
            except DaiError as error:
                # Perhaps nobody reads on: the answer says why.
                with suppress(TimeoutError):
                    if (cause := loading.exception(_PATIENCE)) is not None:
                        raise cause from error
                raise
            else:
                loading.result()
            finally:
                if not loading.done():
                    self._end()
