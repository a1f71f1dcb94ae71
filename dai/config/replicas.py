"""The section ``[replicas]``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dai.config.resources import PolicyConfig
from dai.config.values import POSITIVE, is_web, secret, section, store_url
from dai.errors import ConfigurationError

_MOST_BYTES = 1000
"""Of a logical name in UTF-8."""


@dataclass(frozen=True, kw_only=True)
class PublishedTable:
    """A table of a resource of this service. ``cost``: seconds in which a million of its rows are read; ``distance``:
    seconds from those who ask, there and back. Federations prefer copies where both are small."""

    resource: str
    table: str
    cost: float | None = None
    distance: float | None = None


@dataclass(frozen=True, kw_only=True)
class ReplicasConfig:
    """The replica catalog and index, and tables that this service registers in one.

    ``catalog``: the database of the catalog; without it the service has no replica location. ``url``: the name of
    this catalog at indexes. ``indexes`` get all its names every ``update_seconds`` (with ``filters``, a filter of
    them), and changes after ``change_seconds`` or ``changes``; ``token`` identifies the catalog there. So do the
    indexes that ``index_publishers`` publish in the registry of ``[registry]``; they get the token only at
    ``index_addresses``. An index forwards its updates to ``parents``. ``rpc_port``: the port of the RPC protocol
    (0: a free one; default: not served). ``acl``: who may do what by it, lines ``REGEX: right …``; the first line
    whose expression matches the caller's name decides.

    ``service``: the replica service at which the tables ``publish`` are registered under their logical names, as
    tables of the service at ``url``, for ``lease_seconds`` at a time.
    """

    catalog: str | None = field(default=None, repr=False)
    url: str | None = None
    indexes: tuple[str, ...] = ()
    index_publishers: tuple[str, ...] = ()
    index_addresses: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    filters: bool = False
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    update_seconds: float = field(default=600.0, metadata=POSITIVE)
    change_seconds: float = field(default=30.0, metadata=POSITIVE)
    changes: int = field(default=100, metadata=POSITIVE)
    rpc_port: int | None = field(default=None, metadata={"most": 65_535})
    acl: tuple[str, ...] = ()
    policy: PolicyConfig | None = None
    service: str | None = None
    lease_seconds: float = field(default=120.0, metadata=POSITIVE)
    publish: Mapping[str, PublishedTable] = field(default_factory=dict)


def replicas(values: Mapping[str, Any], base: Path, environment: Mapping[str, str]) -> ReplicasConfig:
    rest = {name: value for name, value in values.items() if name not in ("policy", "publish")}
    policy = values.get("policy")
    if policy is not None and not isinstance(policy, dict):
        raise ConfigurationError("[replicas.policy] must be a section.")
    fixed: dict[str, Any] = {"publish": _published(values.get("publish", {}), base)}
    if policy is not None:
        fixed["policy"] = section(PolicyConfig, "replicas.policy", policy, base)
    read: ReplicasConfig = section(ReplicasConfig, "replicas", rest, base, **fixed)
    if read.catalog is not None:
        location = secret(read.catalog, "replicas.catalog", environment, base)
        read = dataclasses.replace(read, catalog=store_url(location, "replicas.catalog", base))
    if read.token is not None:
        read = dataclasses.replace(read, token=secret(read.token, "replicas.token", environment, base))
    services: tuple[object, ...] = () if read.service is None else (read.service,)
    listed: tuple[tuple[str, tuple[object, ...]], ...] = (
        ("indexes", read.indexes),
        ("index_addresses", read.index_addresses),
        ("parents", read.parents),
        ("service", services),
    )
    for name, urls in listed:
        for each in urls:
            if not is_web(each) and not (name == "indexes" and each == read.url):
                raise ConfigurationError(
                    f"replicas.{name}: {each!r} is not the URL of a service.",
                    hint='It looks like "https://data.example.org".',
                )
    if (read.indexes or read.index_publishers) and read.url is None:
        raise ConfigurationError(
            "replicas.url is missing: the name by which the indexes know this catalog.",
            hint='It is the address of this service, such as "https://data.example.org".',
        )
    if (read.service is None) != (not read.publish):
        raise ConfigurationError(
            "replicas.service and [replicas.publish] must both be set: the replica service, and the tables to "
            "register there.",
            hint='"sky.objects" = "sky#public.objects" in [replicas.publish] registers a table of the resource sky.',
        )
    if read.publish and not is_web(read.url):
        raise ConfigurationError(
            "replicas.url must be the address of this service, at which others read the tables of [replicas.publish].",
            hint='It looks like "https://data.example.org".',
        )
    return read


def _published(values: Any, base: Path) -> dict[str, PublishedTable]:
    if not isinstance(values, dict):
        raise ConfigurationError("[replicas.publish] must be a section.")
    published = {}
    for logical, value in values.items():
        where = f"replicas.publish.{logical}"
        if not logical or len(logical.encode()) > _MOST_BYTES:
            raise ConfigurationError(f"{where}: a logical name must have 1 to {_MOST_BYTES:,} bytes.")
        if isinstance(value, str):
            resource, _, table = value.partition("#")
            value = {"resource": resource, "table": table}
        if not isinstance(value, dict) or not value.get("resource") or not value.get("table"):
            raise ConfigurationError(f"{where} must name a resource and a table.", hint='It looks like "sky#objects".')
        published[logical] = section(PublishedTable, where, value, base)
    return published
