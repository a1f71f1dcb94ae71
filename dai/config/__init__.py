"""Configuration: one TOML file, each value overridable by the environment, read once into frozen values.

``DAI_SERVICE__PORT=8081`` overrides ``port`` in ``[service]``, ``DAI_RESOURCES__BOOK__URL`` the ``url`` of
``[resources.book]``: two underscores between levels, any case, ``_`` also for ``-``. Relative paths count from the
directory of the file. A value ``env:NAME`` or ``file:PATH`` of a secret is replaced by what the variable or the file
holds. Nothing else in the package reads the environment.

A section's dataclass and what reads it stand in the module of its subject; ``values`` reads any section.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dai.config.columns import ColumnConfig, columns
from dai.config.database_files import PRODUCTS, kind_of, near
from dai.config.delivery import DELIVERY_SCHEMES, AccountConfig, DeliveryConfig, MailConfig
from dai.config.delivery import read as _delivery
from dai.config.identity import AuditConfig, IdentityConfig, JwtConfig, QuotaConfig, QuotasConfig
from dai.config.identity import quotas as _quotas
from dai.config.identity import read as _identity
from dai.config.registry import RegistryConfig
from dai.config.registry import registry as _registry
from dai.config.replicas import PublishedTable, ReplicasConfig
from dai.config.replicas import replicas as _replicas
from dai.config.resources import FederationConfig, PolicyConfig, ResourceConfig, RoleConfig, policy_of
from dai.config.resources import federation as _federation
from dai.config.resources import resource as _resource
from dai.config.resources import role as _role
from dai.config.service import LimitsConfig, ServiceConfig, TlsConfig
from dai.config.service import service as _service
from dai.config.telemetry import TelemetryConfig
from dai.config.telemetry import read as _telemetry
from dai.config.values import MOST, POSITIVE, database_url, is_web, keys, named, origins, overridden, secret, section
from dai.errors import ConfigurationError
from dai.plugins import nearest

__all__ = [
    "DELIVERY_SCHEMES", "MOST", "POSITIVE", "AccountConfig", "AuditConfig", "ColumnConfig", "Config",
    "DeliveryConfig", "FederationConfig", "IdentityConfig", "JwtConfig", "LimitsConfig", "MailConfig",
    "PolicyConfig", "PublishedTable", "QuotaConfig", "QuotasConfig", "RegistryConfig", "ReplicasConfig",
    "ResourceConfig", "RoleConfig", "ServiceConfig", "TelemetryConfig", "TlsConfig", "columns", "database_url",
    "is_web", "keys", "load", "origins", "parse", "secret", "section",
]  # fmt: skip

LEAST_MEMORY = 100_000_000
"""Of a share of a federation or an evaluator: with less, queries would fail instead of spilling."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole file; the sections by their names."""

    service: ServiceConfig = field(default_factory=ServiceConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    identity: IdentityConfig = field(default_factory=IdentityConfig)
    quotas: QuotasConfig = field(default_factory=QuotasConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    telemetry: TelemetryConfig | None = None
    delivery: DeliveryConfig = field(default_factory=DeliveryConfig)
    replicas: ReplicasConfig = field(default_factory=ReplicasConfig)
    registry: RegistryConfig = field(default_factory=RegistryConfig)
    policy: PolicyConfig | None = None
    """Of resources and federations that have none of their own."""
    resources: Mapping[str, ResourceConfig] = field(default_factory=dict)
    federations: Mapping[str, FederationConfig] = field(default_factory=dict)
    roles: Mapping[str, RoleConfig] = field(default_factory=dict)


def load(path: Path | str, environment: Mapping[str, str] | None = None) -> Config:
    """The configuration in the file ``path``, overridden by ``environment`` (the process's own unless given)."""
    path = Path(path)
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be read: {error.strerror}.",
            hint=near(path) or "Name a TOML file, or serve a database: dai serve sqlite:///file.db",
        ) from error
    except ValueError as error:  # also a number of thousands of digits
        if kind := kind_of(path):
            raise ConfigurationError(
                f"{path} is a {PRODUCTS[kind]} database, not a configuration.", hint=f"Serve it: dai serve {path}"
            ) from error
        raise ConfigurationError(f"The configuration {path} is not TOML: {error}.") from error
    return parse(document, path.parent, environment)


def parse(document: Mapping[str, Any], base: Path | str = ".", environment: Mapping[str, str] | None = None) -> Config:
    """The configuration of a TOML document as Python values; relative paths count from ``base``."""
    if environment is None:
        import os

        environment = dict(os.environ)
    base = Path(base)
    merged = overridden(document, environment)
    known = [each.name for each in dataclasses.fields(Config)]
    for name, value in merged.items():
        if name not in known:
            raise ConfigurationError(f"There is no section [{name}].", hint=nearest(name, known))
        if not isinstance(value, dict):
            raise ConfigurationError(f"[{name}] must be a section, not {value!r}.")
    service = _service(merged.get("service", {}), base)
    service = dataclasses.replace(
        service, state=database_url(secret(service.state, "service.state", environment, base), "service.state", base)
    )
    hosts: tuple[object, ...] = service.hosts  # entries of a list have not been looked at
    for each in hosts:
        if not isinstance(each, str) or not each or "/" in each:
            hint = 'It looks like hosts = ["data.example.org"].'
            raise ConfigurationError(f"service.hosts: {each!r} is not a host name.", hint=hint)
    limits = section(LimitsConfig, "limits", merged.get("limits", {}), base)
    asks = service.tls is not None and service.tls.client_ca is not None
    identity = _identity(dict(merged.get("identity", {})), base, environment, asks)
    policy = policy_of(merged, "", base)
    audit = section(AuditConfig, "audit", merged.get("audit", {}), base)
    telemetry = _telemetry(dict(merged["telemetry"]), base, environment) if "telemetry" in merged else None
    if audit.opentelemetry and telemetry is None:
        raise ConfigurationError(
            "audit.opentelemetry needs a section [telemetry], which says where to send the records."
        )
    quotas = _quotas(dict(merged.get("quotas", {})), base, limits, bool(identity.methods))
    delivery = _delivery(dict(merged.get("delivery", {})), base, environment)
    replicas = _replicas(dict(merged.get("replicas", {})), base, environment)
    registry = _registry(dict(merged.get("registry", {})), base, environment)
    if replicas.index_publishers and registry.url is None:
        raise ConfigurationError(
            "replicas.index_publishers needs url and address in [registry]: the registry that names the indexes."
        )
    # what an engine takes by itself is a share of the machine, which its process may not have
    most = limits.memory_bytes
    share = most // 4
    larger = max(most // 2, LEAST_MEMORY) if most else 0
    resources = {}
    for name, value in named(merged, "resources"):
        resources[name] = _resource(name, _with_memory(value, share), base, environment)
    federations = {}
    for name, value in named(merged, "federations"):
        if name in resources:
            raise ConfigurationError(f"[federations.{name}]: there is already a resource of this name.")
        federations[name] = _federation(name, _with_memory(value, larger), base, environment, service.tls)
    roles = {}
    for name, value in named(merged, "roles"):
        if name in resources or name in federations:
            raise ConfigurationError(f"[roles.{name}]: there is already a resource of this name.")
        value = _with_memory(value, larger if name == "evaluator" else 0)
        roles[name] = _role(name, value, base, service, bool(identity.methods) and not identity.anonymous)
    for logical, published in replicas.publish.items():
        if published.resource not in (known := [*resources, *federations]):
            hint = nearest(published.resource, known) if known else "The service has none."
            raise ConfigurationError(
                f"replicas.publish.{logical}: there is no resource {published.resource!r}.", hint=hint
            )
    for each in registry.publish:
        if each not in (known := [*resources, *federations, *roles]):
            hint = nearest(each, known) if known else "The service has none."
            raise ConfigurationError(f"registry.publish: there is no resource {each!r}.", hint=hint)
    return Config(
        service=service,
        limits=limits,
        identity=identity,
        quotas=quotas,
        audit=audit,
        telemetry=telemetry,
        delivery=delivery,
        replicas=replicas,
        registry=registry,
        policy=policy,
        resources=resources,
        federations=federations,
        roles=roles,
    )


def _with_memory(value: dict[str, Any], share: int) -> dict[str, Any]:
    """The section with that share in place of no ``memory_bytes`` of its own."""
    return {**value, "memory_bytes": share} if share and value.get("memory_bytes", 0) == 0 else value
