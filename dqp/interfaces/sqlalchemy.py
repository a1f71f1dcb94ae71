"""SQLAlchemy over a federation in this process: ``create_engine("dqp:///federation.toml")``."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import URL

from dai.client.dbapi.connection import Connection
from dai.client.sqlalchemy.databases import DuckDB
from dqp.interfaces.dbapi import FederationSource, opened_federation
from dqp.interfaces.driver import Federation


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
        return (url.database or "",), dict(url.query)

    def connect(self, path: str, *, numeric: str | None = None) -> Connection:
        with self._lock:
            if self._federation is None:
                self._federation = opened_federation(path)
            connection = Connection(FederationSource(self._federation, self._left), numeric=numeric)
            self._connections += 1
            return connection

    def _left(self) -> None:
        """A connection was closed."""
        with self._lock:
            self._connections -= 1
            if self._connections == 0 and self._federation is not None:
                self._federation.close()
                self._federation = None
