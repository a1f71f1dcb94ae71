"""The sections ``[resources.NAME]``, ``[federations.NAME]`` and ``[roles.NAME]``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dai.config import data_files
from dai.config.columns import ColumnConfig, columns
from dai.config.service import ServiceConfig, TlsConfig
from dai.config.values import POSITIVE, database_url, parsed, secret, section
from dai.errors import ConfigurationError

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_WITH_USERS = frozenset({"postgresql", "mariadb", "mysql"})
"""Kinds of databases in which a role map finds users."""
_USER_OPTIONS = frozenset({"user", "password"})
"""Of libpq, which takes them before those that stand in front of the host."""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """Who may do what with a resource: lists of names of callers, ``group:NAME``, ``*`` (every identified caller)
    and ``anonymous``. The default of ``load``, ``statistics`` and ``deliver`` is ``read``. ``activities``: the only
    activities that documents may have; empty: all. If ``sqlQueryStatement`` is not among them, the default of
    ``statistics`` is nobody.

    ``rows``, ``bytes``, ``seconds`` (also of a job) and ``jobs`` (``resource_jobs``) replace those of ``[limits]``,
    and ``urls`` and ``directory`` those of ``[delivery]``.
    """

    read: tuple[str, ...] = ("*", "anonymous")
    write: tuple[str, ...] = ()
    load: tuple[str, ...] | None = None
    statistics: tuple[str, ...] | None = None
    deliver: tuple[str, ...] | None = None
    activities: tuple[str, ...] = ()
    rows: int | None = None
    bytes: int | None = None
    seconds: float | None = None
    jobs: int | None = None
    urls: tuple[str, ...] | None = None
    directory: Path | None = None


@dataclass(frozen=True, kw_only=True)
class ResourceConfig:
    """A data resource: ``url`` (an SQL database), ``files`` (files as tables), ``collections`` (XML documents) or
    ``directory`` (files).

    ``password``: that of ``url`` and of ``replicas``. ``replicas``: URLs of databases with the same data, for
    sqlResilient. ``collections``: the database of the documents, a file of SQLite or a URL of SQLite or PostgreSQL.
    ``roles``: a file with a role map, whose passwords may be in the ``environment``. ``columns``: what columns
    mean, by ``table.column``. The ``url`` may have a password and is never printed.
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
    memory_bytes: int = field(default=0, metadata={"most": 1 << 50})
    policy: PolicyConfig | None = None
    columns: Mapping[str, ColumnConfig] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)

    @property
    def kind(self) -> str:
        if self.url is not None:
            return "database"
        return "collections" if self.collections is not None else "directory"


@dataclass(frozen=True, kw_only=True)
class FederationConfig:
    """A federation. The package that runs it reads its keys (see below) with ``section``, ``secret`` and
    ``database_url``; relative paths start at ``base``."""

    name: str
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)
    base: Path = Path()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    policy: PolicyConfig | None = None
    tls: TlsConfig | None = None


@dataclass(frozen=True, kw_only=True)
class RoleConfig:
    """A role: what a service does besides serving its resources, such as that of an evaluator. The package that has
    the role reads its keys from ``content``. ``host``, ``tls`` and ``identifies`` (whether callers are identified)
    are those of the service."""

    name: str
    content: Mapping[str, Any] = field(default_factory=dict, repr=False)
    base: Path = Path()
    policy: PolicyConfig | None = None
    host: str = "127.0.0.1"
    tls: TlsConfig | None = None
    identifies: bool = False


def federation(
    name: str, value: dict[str, Any], base: Path, environment: Mapping[str, str], tls: TlsConfig | None
) -> FederationConfig:
    policy = policy_of(value, f"federations.{name}", base)
    content = {key: each for key, each in value.items() if key != "policy"}
    return FederationConfig(name=name, content=content, base=base, environment=environment, policy=policy, tls=tls)


def role(name: str, value: dict[str, Any], base: Path, service: ServiceConfig, identifies: bool) -> RoleConfig:
    policy = policy_of(value, f"roles.{name}", base)
    content = {key: each for key, each in value.items() if key != "policy"}
    rest = {"policy": policy, "host": service.host, "tls": service.tls, "identifies": identifies}
    return RoleConfig(name=name, content=content, base=base, **rest)  # type: ignore[arg-type]


def policy_of(value: Mapping[str, Any], where: str, base: Path) -> PolicyConfig | None:
    """The section ``policy`` in another, or in none (``where`` is empty); None where there is none."""
    if "policy" not in value:
        return None
    where = f"{where}.policy" if where else "policy"
    if not isinstance(value["policy"], dict):
        raise ConfigurationError(f"[{where}] must be a section.")
    policy: PolicyConfig = section(PolicyConfig, where, value["policy"], base)
    for each in dataclasses.fields(policy):
        listed = getattr(policy, each.name)
        if isinstance(listed, tuple) and not all(isinstance(who, str) and who.strip() for who in listed):
            raise ConfigurationError(f"{where}.{each.name}: each entry must be a text that is not empty.")
    return policy


def resource(name: str, value: dict[str, Any], base: Path, environment: Mapping[str, str]) -> ResourceConfig:
    where = f"resources.{name}"
    value, policy = dict(value), policy_of(value, where, base)
    value.pop("policy", None)
    said = columns(value.pop("columns", {}), f"{where}.columns", base)
    if (files := value.pop("files", None)) is not None:
        if "url" in value:
            raise ConfigurationError(f"[{where}] has both url and files.", hint="Make two resources of them.")
        value["url"] = data_files.url(files, f"{where}.files", base, name)
    fixed = {"name": name, "policy": policy, "columns": said, "environment": environment}
    resource: ResourceConfig = section(ResourceConfig, where, value, base, **fixed)
    kinds = [kind for kind in ("url", "collections", "directory") if getattr(resource, kind) is not None]
    if len(kinds) != 1:
        what = " and ".join(kinds) or "none of them"
        raise ConfigurationError(f"[{where}] needs one of url, files, collections and directory, but has {what}.")
    if resource.roles is not None and resource.url is None:
        raise ConfigurationError(f"{where}.roles is for a database (url).", hint="Remove it.")
    if said and resource.url is None:
        raise ConfigurationError(f"{where}.columns is for a database (url).", hint="Remove it.")
    password = None
    if resource.password is not None:
        password = secret(resource.password, f"{where}.password", environment, base)
    if resource.collections is not None:
        store = secret(resource.collections, f"{where}.collections", environment, base)
        if "://" not in store:
            return dataclasses.replace(resource, collections=f"sqlite:///{(base / store).resolve()}", password=None)
        store = database_url(store, f"{where}.collections", base, password)
        url = parsed(store)
        in_memory = url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:")
        if in_memory or url.get_backend_name() not in ("sqlite", "postgresql"):
            hint = 'It looks like "notes.db" or "postgresql://user@host/database".'
            raise ConfigurationError(
                f"{where}.collections must be a file, or a URL of SQLite or PostgreSQL.", hint=hint
            )
        return dataclasses.replace(resource, collections=store, password=None)
    if resource.url is None:
        return resource
    database = secret(resource.url, f"{where}.url", environment, base)
    replicas = []
    for each in resource.replicas:
        if not isinstance(each, str):
            raise ConfigurationError(f"{where}.replicas: {each!r} is not a database URL.")
        replica = secret(each, f"{where}.replicas", environment, base)
        replicas.append(database_url(replica, f"{where}.replicas", base, password))
    database = database_url(database, f"{where}.url", base, password)
    if resource.roles is not None:
        for each in (database, *replicas):
            _check_users(parsed(each), f"{where}.roles")
    return dataclasses.replace(resource, url=database, replicas=tuple(replicas), password=None)


def _check_users(url: URL, where: str) -> None:
    """ConfigurationError where the user of a connection is not the one in the URL."""
    if url.get_backend_name() not in _WITH_USERS:
        hint = f"These have them: {', '.join(sorted(_WITH_USERS))}."
        raise ConfigurationError(f"{where}: {url.get_backend_name()!r} has no users to map callers to.", hint=hint)
    for option in sorted(_USER_OPTIONS & url.query.keys()):
        raise ConfigurationError(
            f"{where}: the option {option!r} of the URL would replace every user of the map.",
            hint="Remove it, and write the user of the URL before the host.",
        )
