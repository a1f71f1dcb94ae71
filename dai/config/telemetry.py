"""The section ``[telemetry]``: where traces go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dai.config.values import is_web, secret, section
from dai.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class TelemetryConfig:
    """An OpenTelemetry collector that gets traces by OTLP over HTTP. ``endpoint``: its address, without ``/v1/…``;
    ``headers`` of each request to it. ``sample``: the share of traces to record, of those that begin here.
    ``service_name``: the name of this service in them. ``statements``: spans have the SQL. A key that is not set is
    read from the environment (``OTEL_…``), as OpenTelemetry's library does."""

    endpoint: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    sample: float | None = field(default=None, metadata={"most": 1})
    service_name: str | None = None
    statements: bool = False


def read(values: dict[str, Any], base: Path, environment: Mapping[str, str]) -> TelemetryConfig:
    headers = values.pop("headers", {})
    if not isinstance(headers, dict) or not all(isinstance(each, str) for each in headers.values()):
        hint = 'It looks like headers = { authorization = "env:COLLECTOR_TOKEN" }.'
        raise ConfigurationError("telemetry.headers must be a section of texts.", hint=hint)
    sent = {name: secret(each, f"telemetry.headers.{name}", environment, base) for name, each in headers.items()}
    for name, each in sent.items():
        if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()) or not each.isprintable():
            raise ConfigurationError(f"telemetry.headers.{name} is not an HTTP header.")
    config: TelemetryConfig = section(TelemetryConfig, "telemetry", values, base, headers=sent)
    if config.endpoint is not None:
        parts = urlsplit(config.endpoint) if is_web(config.endpoint) else None
        if parts is None or "@" in parts.netloc or parts.query:
            raise ConfigurationError(
                "telemetry.endpoint is not the address of a collector.",
                hint='It looks like "https://collector.example.org:4318"; put a password into telemetry.headers.',
            )
    return config
