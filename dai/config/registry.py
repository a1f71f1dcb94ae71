"""The section ``[registry]``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dai.config.resources import PolicyConfig
from dai.config.values import POSITIVE, is_web, secret, section, store_url
from dai.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class RegistryConfig:
    """A registry of this service, and the registry in which it publishes itself.

    ``store``: the database of the registry; without it the service has none. It has at most ``entries``, of one
    owner ``owner_entries``, each of at most ``entry_bytes``; a lease lasts at most ``longest_seconds``. A SPARQL
    query may use ``query_seconds`` and ``query_memory`` bytes; its answer has at most ``query_bytes``.

    ``url``: the registry in which this service publishes itself and the resources ``publish`` (empty: all).
    ``address``: its own address. ``lease_seconds``: the lease of its entries. ``token``: its credentials there;
    ``ca``: authorities trusted for the registry. Every ``look_seconds`` it looks for changes in its tables, and for
    metadata of its columns by the owner of its entries and the ``annotators``.
    """

    store: str | None = field(default=None, repr=False)
    entries: int = field(default=2_000_000, metadata=POSITIVE)
    owner_entries: int = field(default=500_000, metadata=POSITIVE)
    entry_bytes: int = field(default=64 << 10, metadata=POSITIVE)
    longest_seconds: float = field(default=30 * 86400.0, metadata=POSITIVE)
    query_seconds: int = field(default=10, metadata={"most": 86_400, **POSITIVE})
    query_bytes: int = field(default=16 << 20, metadata=POSITIVE)
    query_memory: int = field(default=1 << 30, metadata=POSITIVE)
    policy: PolicyConfig | None = None
    url: str | None = None
    address: str | None = None
    token: str | None = field(default=None, repr=False)
    ca: Path | None = None
    lease_seconds: float = field(default=60.0, metadata=POSITIVE)
    look_seconds: float = field(default=60.0, metadata=POSITIVE)
    publish: tuple[str, ...] = ()
    annotators: tuple[str, ...] = ()


def registry(values: Mapping[str, Any], base: Path, environment: Mapping[str, str]) -> RegistryConfig:
    rest = {name: value for name, value in values.items() if name != "policy"}
    policy = values.get("policy")
    if policy is not None and not isinstance(policy, dict):
        raise ConfigurationError("[registry.policy] must be a section.")
    fixed = {} if policy is None else {"policy": section(PolicyConfig, "registry.policy", policy, base)}
    read: RegistryConfig = section(RegistryConfig, "registry", rest, base, **fixed)
    if read.store is not None:
        location = secret(read.store, "registry.store", environment, base)
        read = dataclasses.replace(read, store=store_url(location, "registry.store", base))
    if read.token is not None:
        read = dataclasses.replace(read, token=secret(read.token, "registry.token", environment, base))
    for name in ("url", "address"):
        if (said := getattr(read, name)) is not None and not is_web(said):
            raise ConfigurationError(f"registry.{name}: {said!r} is not the URL of a service.")
    if (read.url is None) != (read.address is None):
        raise ConfigurationError(
            "registry.url and registry.address must both be set: the registry that lists this service, and this "
            "service's address.",
            hint='address looks like "https://data.example.org".',
        )
    return read
