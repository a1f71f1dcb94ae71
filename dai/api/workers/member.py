"""A worker's knowledge of the service that it is part of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import parse_qsl, unquote

import httptools
from sqlalchemy.engine import make_url

from dai.api.workers.peers import Peers
from dai.api.workers.table import Table
from dai.config import Config, ResourceConfig
from dai.service.identities import Identities

HOME = 0
"""The worker of what only one process can have."""
_EMBEDDED = frozenset({"duckdb"})
_FILES = frozenset({"sqlite", "duckdb"})


@dataclass(frozen=True)
class Member:
    """``token`` is that of the lease on the state database, ``counters`` the directory of the files of metrics,
    ``shared`` the resources that every worker has; ``alone``: whether there are no others."""

    identities: Identities
    token: str
    table: Table
    peers: Peers
    counters: Path
    shared: frozenset[str]
    alone: bool

    def elsewhere(self, url: bytes) -> int | None:
        """The worker to which a request for that address belongs; None if it may be answered here."""
        owner = self._owner(url)
        return None if owner is None or owner == self.identities.number else owner

    def _owner(self, url: bytes) -> int | None:
        if not url.startswith(b"/"):
            try:
                parsed = httptools.parse_url(url)
            except httptools.HttpParserInvalidURLError:
                return None
            path, query = parsed.path or b"/", parsed.query or b""
        else:
            path, _, query = url.partition(b"#")[0].partition(b"?")
        _, kind, name, *_ = (unquote(path.decode("latin-1")) + "///").split("/")
        if kind in ("sessions", "jobs", "feeds") and name:
            return self.identities.owner(name)
        if kind == "resources" and name in self.shared:
            session = dict(parse_qsl(query.decode("latin-1"))).get("session") if b"session=" in query else None
            return self.identities.owner(session) if session else None
        if self.alone or kind not in ("resources", "sessions", "health") or (kind, name) == ("health", "live"):
            return None
        return HOME


def one_process(resource: ResourceConfig) -> bool:
    """Whether only one process can have the database: it is in memory, or locks its file for itself."""
    database_url = resource.url or resource.collections
    if database_url is None:
        return True
    url = make_url(database_url)
    backend, database = url.get_backend_name(), url.database or ""
    return backend in _EMBEDDED or (backend in _FILES and (database in ("", ":memory:") or "file:" in database))


def shared_resources(config: Config, workers: int) -> frozenset[str]:
    """The resources that all workers can have, each with its part of the connections."""
    return frozenset(
        name for name, each in config.resources.items() if not one_process(each) and each.pool_size >= workers
    )


def part(config: Config, number: int, workers: int, shared: frozenset[str]) -> Config:
    """The configuration of one of the workers, with its part of the connections to databases."""
    resources = {
        name: replace(each, pool_size=each.pool_size // workers + (number < each.pool_size % workers))
        if name in shared
        else each
        for name, each in config.resources.items()
        if name in shared or number == HOME
    }
    if number == HOME:
        return replace(config, resources=resources)
    return replace(config, resources=resources, federations={}, roles={})
