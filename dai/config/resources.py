"""The sections ``[resources.NAME]``, ``[federations.NAME]`` and ``[roles.NAME]``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from dai.config.values import POSITIVE, database_url, secret, section
from dai.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class ResourceConfig:
    """A data resource: ``url`` (an SQL database), ``collections`` (XML documents) or ``directory`` (files).

    ``collections``: the database that stores them, a file of SQLite or a URL of SQLite or PostgreSQL. ``replicas``:
    URLs of databases with the same data, for sqlResilient; a ``password`` is that of all.
    ``url`` holds the password once ``password`` was resolved: it is never printed.
    """

    name: str
    url: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)
    description: str | None = None
    replicas: tuple[str, ...] = field(default=(), repr=False)
    collections: str | None = field(default=None, repr=False)
    directory: Path | None = None
    roles: Path | None = None
    pool_size: int = field(default=16, metadata={"most": 10_000, **POSITIVE})
    pool_wait: float = field(default=30.0, metadata={"most": 1_000_000})
    connect_wait: float = field(default=10.0, metadata={"most": 1_000_000})
    read_sockets: bool = True

    @property
    def kind(self) -> str:
        if self.url is not None:
            return "database"
        return "collections" if self.collections is not None else "directory"


@dataclass(frozen=True, kw_only=True)
class FederationConfig:
    """A virtual resource over tables in many data services. Its ``content`` belongs to the package that runs it, which
    reads it with ``section``, ``secret`` and ``database_url``; relative paths count from ``base``."""

    name: str
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)
    base: Path = Path()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)


@dataclass(frozen=True, kw_only=True)
class RoleConfig:
    """What a service does besides serving its resources: the section ``[roles.NAME]``, whose ``content`` belongs to the
    package that has the role and is read as that of a federation."""

    name: str
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)
    base: Path = Path()


def resource(name: str, value: dict[str, Any], base: Path, environment: Mapping[str, str]) -> ResourceConfig:
    where = f"resources.{name}"
    resource: ResourceConfig = section(ResourceConfig, where, value, base, name=name)
    kinds = [kind for kind in ("url", "collections", "directory") if getattr(resource, kind) is not None]
    if len(kinds) != 1:
        what = " and ".join(kinds) or "none of them"
        raise ConfigurationError(f"[{where}] needs one of url, collections and directory, but has {what}.")
    password = None
    if resource.password is not None:
        password = secret(resource.password, f"{where}.password", environment, base)
    if resource.collections is not None:
        store = secret(resource.collections, f"{where}.collections", environment, base)
        if "://" not in store:
            return dataclasses.replace(resource, collections=f"sqlite:///{(base / store).resolve()}", password=None)
        store = database_url(store, f"{where}.collections", base, password)
        url = make_url(store)
        in_memory = url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")
        if in_memory or url.get_backend_name() not in ("sqlite", "postgresql"):
            hint = 'It looks like "notes.db" or "postgresql://user@host/database".'
            raise ConfigurationError(f"{where}.collections is no file and no URL of SQLite or PostgreSQL.", hint=hint)
        return dataclasses.replace(resource, collections=store, password=None)
    if resource.url is None:
        return resource
    database = secret(resource.url, f"{where}.url", environment, base)
    replicas = []
    for each in resource.replicas:
        if not isinstance(each, str):
            raise ConfigurationError(f"{where}.replicas: {each!r} is no database URL.")
        replica = secret(each, f"{where}.replicas", environment, base)
        replicas.append(database_url(replica, f"{where}.replicas", base, password))
    database = database_url(database, f"{where}.url", base, password)
    return dataclasses.replace(resource, url=database, replicas=tuple(replicas), password=None)
