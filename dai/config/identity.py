"""The sections ``[identity]``, ``[quotas]`` and ``[audit]``: who may ask, how much, and what is recorded of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dai.config.values import section
from dai.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class IdentityConfig:
    """Who may ask. ``methods`` say who asks, in this order; without any nobody is asked, and the service listens on
    loopback only. ``anonymous``: whoever sends no credentials is served all the same, also beyond loopback. A token
    that was looked up is good for ``kept_seconds`` without looking again. The answer to wrong credentials waits at most
    ``wrong_seconds``: the longer, the more of them came from an address."""

    methods: tuple[str, ...] = ()
    anonymous: bool = False
    kept_seconds: float = field(default=5.0, metadata={"most": 3600})
    wrong_seconds: float = field(default=5.0, metadata={"most": 60})


@dataclass(frozen=True, kw_only=True)
class QuotaConfig:
    """What one caller may have; 0 means no limit. ``jobs`` that have not ended, ``result_bytes`` of kept results,
    ``day_bytes`` of answers a day (UTC)."""

    jobs: int = 0
    result_bytes: int = 0
    day_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class QuotasConfig:
    """``every``: what each caller may have, and each who has no name together; ``callers``: those who may have other
    shares."""

    every: QuotaConfig = QuotaConfig()
    callers: Mapping[str, QuotaConfig] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """``file``: where each request is recorded; without it none is."""

    file: Path | None = None


def quotas(values: dict[str, Any], base: Path) -> QuotasConfig:
    callers = values.pop("callers", {})
    if not isinstance(callers, dict) or not all(isinstance(each, dict) for each in callers.values()):
        raise ConfigurationError("[quotas.callers]: each caller is a section [quotas.callers.NAME].")
    every: QuotaConfig = section(QuotaConfig, "quotas", values, base)
    return QuotasConfig(
        every=every,
        callers={
            name: section(QuotaConfig, f"quotas.callers.{name}", dataclasses.asdict(every) | each, base)
            for name, each in callers.items()
        },
    )
