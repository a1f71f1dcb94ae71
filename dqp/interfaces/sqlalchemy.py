"""SQLAlchemy over a federation in this process: ``create_engine("dai+lab:///federation.toml")``, or with its sources in
the URL: ``dai+lab:///?book=http://127.0.0.1:8080/book&field=field.db``. ``dqp://`` is the same."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import URL

from dai.client.dbapi.connection import Connection
from dai.client.sqlalchemy.databases import DuckDB
from dqp.interfaces.dbapi import FederationSource, opened_federation
from dqp.interfaces.driver import Federation

_OPTIONS = ("numeric", "profile")


def federation_of(url: URL) -> Any:
    """A path, or a mapping with the sources that the URL names. ArgumentError for neither, and for a password, which
    SQLAlchemy would print with the rest of the query."""
    sources = {alias: value for alias, value in url.query.items() if alias not in _OPTIONS}
    if url.host or url.username or bool(url.database) == bool(sources):
        raise exc.ArgumentError(
            f"After three slashes, name a file, {url.drivername}:///federation.toml, or sources, "
            f"{url.drivername}:///?ALIAS=ADDRESS&… The URL of a federation that a service offers is "
            "dai://host:8080/NAME."
        )
    for alias, value in sources.items():
        if not isinstance(value, str):
            raise exc.ArgumentError(f"The URL names the source {alias!r} twice.")
        if ":" in value.partition("://")[2].rpartition("@")[0]:
            raise exc.ArgumentError(
                f"The source {alias!r} has a password, and SQLAlchemy prints this URL. "
                'Put it into a federation.toml: database = "…", password = "env:NAME".'
            )
    return {"sources": sources} if sources else url.database


class Federated(DuckDB):
    """Read-only. The connections of an engine share one federation, which ends with the last of them."""

    driver = "dqp"
    supports_statement_cache = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._lock = threading.Lock()
        self._federation: Federation | None = None
        self._connections = 0

    def create_connect_args(self, url: URL) -> tuple[Sequence[str], dict[str, Any]]:
        options = {name: str(url.query[name]) for name in _OPTIONS if name in url.query}
        return (federation_of(url),), options

    def connect(self, federation: Any, *, numeric: str | None = None, profile: str | None = None) -> Connection:
        with self._lock:
            if self._federation is None:
                self._federation = opened_federation(federation, profile=profile)
            connection = Connection(FederationSource(self._federation, self._disconnect), numeric=numeric)
            self._connections += 1
            return connection

    def _disconnect(self) -> None:
        """A connection was closed."""
        with self._lock:
            self._connections -= 1
            if self._connections == 0 and self._federation is not None:
                self._federation.close()
                self._federation = None
