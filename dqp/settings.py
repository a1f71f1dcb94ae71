"""What a federation is made of: read once, from a service's configuration or a federation.toml, into frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, kw_only=True)
class SourceSettings:
    """Tables are ``alias.table``. One of ``url`` (a resource of a data service), ``resource`` (of this service) and
    ``database`` (an SQLAlchemy URL, in this process; it may hold a password and is never printed). ``replicas``: URLs
    of resources that have the same tables."""

    alias: str
    url: str | None = None
    resource: str | None = None
    database: str | None = field(default=None, repr=False)
    replicas: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """``memory_bytes`` is what one query holds before it spills to disk (0: DuckDB's own limit). ``lifetime``: seconds
    that statistics are taken for the present ones. ``replicas``: ``alias.table`` to other tables with the same rows.
    ``functions``: operation calls by name, as they are configured."""

    name: str = "federation"
    evaluators: tuple[str, ...] = ("local",)
    memory_bytes: int = 0
    lifetime: float = 300.0
    sources: tuple[SourceSettings, ...] = ()
    views: Mapping[str, str] = field(default_factory=dict)
    replicas: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    functions: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
