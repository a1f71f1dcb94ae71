"""The section ``[replicas]``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dai.config.resources import PolicyConfig
from dai.config.values import POSITIVE, database_url, secret, section
from dai.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class ReplicasConfig:
    """``catalog``: the database of the local replica catalog; none: the service has no replica location. ``url``: by
    which name indexes know this catalog. ``indexes`` are sent all its names every ``update_seconds`` (a filter of them
    where ``filters``), and what changed after ``change_seconds`` or ``changes``; ``token`` identifies it there.
    ``parents`` are sent what this index is sent. ``rpc_port``: of the original protocol (0: the system chooses; none:
    not served), which ``acl`` opens: lines ``REGEX: right …``; the first whose expression matches the caller's name
    decides."""

    catalog: str | None = field(default=None, repr=False)
    url: str | None = None
    indexes: tuple[str, ...] = ()
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


def replicas(values: Mapping[str, Any], base: Path, environment: Mapping[str, str]) -> ReplicasConfig:
    rest = {name: value for name, value in values.items() if name != "policy"}
    policy = values.get("policy")
    if policy is not None and not isinstance(policy, dict):
        raise ConfigurationError("[replicas.policy] must be a section.")
    fixed = {} if policy is None else {"policy": section(PolicyConfig, "replicas.policy", policy, base)}
    read: ReplicasConfig = section(ReplicasConfig, "replicas", rest, base, **fixed)
    if read.catalog is not None:
        location = secret(read.catalog, "replicas.catalog", environment, base)
        read = dataclasses.replace(read, catalog=database_url(location, "replicas.catalog", base))
    if read.token is not None:
        read = dataclasses.replace(read, token=secret(read.token, "replicas.token", environment, base))
    for name in ("indexes", "parents"):
        for each in getattr(read, name):
            if not isinstance(each, str) or urlsplit(each).scheme not in ("http", "https"):
                raise ConfigurationError(f"replicas.{name}: {each!r} is no URL of a service.")
    if read.indexes and read.url is None:
        raise ConfigurationError(
            "replicas.url is missing: the name by which the indexes know this catalog.",
            hint='It is the address of this service, such as "https://data.example.org".',
        )
    return read
