"""SQLAlchemy over a federation in this process: ``create_engine("dqp:///federation.toml")``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy.engine import URL

from dai.client.sqlalchemy.databases import DuckDB
from dqp.interfaces import dbapi


class Federated(DuckDB):
    """Read-only. Every connection of an engine is one to the same federation, which begins with the first."""

    driver = "dqp"
    supports_statement_cache = True

    def create_connect_args(self, url: URL) -> tuple[Sequence[str], dict[str, Any]]:
        return (url.database or "",), dict(url.query)

    def connect(self, *arguments: Any, **options: Any) -> Any:
        return dbapi.connect(*arguments, **options)
