"""The sections ``[identity]``, ``[quotas]`` and ``[audit]``: who may ask, how much, and what is recorded of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dai.config.values import POSITIVE, named, section
from dai.errors import ConfigurationError

ASYMMETRIC = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "P-256": ("ES256",),
    "P-384": ("ES384",),
    "P-521": ("ES512",),
    "Ed25519": ("EdDSA",),
}
"""Algorithms of RFC 7518 and 8037 whose verifier holds no secret, by the type or curve of their keys."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True)
class JwtConfig:
    """Tokens of one ``issuer`` for one of the ``audience``. ``jwks``: its keys, a URL or a file; without it the issuer
    says where (OpenID Connect Discovery). Clocks may be ``leeway`` seconds apart. ``name``, ``groups``, ``resources``
    and ``administrator``: the claims that say so, with dots for one inside another; empty: none does. ``authorities``:
    certificates (PEM) trusted besides those of the system."""

    issuer: str
    audience: tuple[str, ...]
    jwks: str | Path | None = None
    algorithms: tuple[str, ...] = ("RS256", "PS256", "ES256", "EdDSA")
    leeway: float = field(default=30.0, metadata={"most": 600})
    name: str = "sub"
    groups: str = "groups"
    resources: str = ""
    administrator: str = ""
    authorities: Path | None = None


def is_safe(url: str) -> bool:
    """Whether what comes from there comes encrypted, or from this machine."""
    parts = urlsplit(url)
    return bool(parts.hostname) and (
        parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
    )


@dataclass(frozen=True, kw_only=True)
class KeyConfig:
    """The file of a public ``key`` (PEM), and who signs with it."""

    id: str
    name: str
    key: Path
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    administrator: bool = False


@dataclass(frozen=True, kw_only=True)
class SignaturesConfig:
    """Signed requests: each may be ``seconds`` old; ``keys`` by the ids that signatures name."""

    seconds: float = field(default=60.0, metadata={"most": 3600, **POSITIVE})
    keys: Mapping[str, KeyConfig] = field(default_factory=dict)


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
    jwt: JwtConfig | None = None
    signatures: SignaturesConfig | None = None


def read(values: dict[str, Any], base: Path) -> IdentityConfig:
    """``[identity]`` with ``[identity.jwt]`` and ``[identity.signatures]``."""
    jwt = _jwt(values.pop("jwt"), base) if "jwt" in values else None
    signatures = _signatures(values.pop("signatures"), base) if "signatures" in values else None
    identity: IdentityConfig = section(IdentityConfig, "identity", values, base, jwt=jwt, signatures=signatures)
    return identity


def _signatures(values: Any, base: Path) -> SignaturesConfig:
    where = "identity.signatures"
    if not isinstance(values, dict) or not isinstance(values.get("keys", {}), dict):
        raise ConfigurationError(f"[{where}] is a section; each key is one, too: [{where}.keys.ID].")
    keys = {}
    for id, each in named(values, "keys"):
        if not {"name", "key"} <= each.keys() or not each["name"]:
            raise ConfigurationError(f"[{where}.keys.{id}] needs name, who signs, and key, the file of the public key.")
        keys[id] = section(KeyConfig, f"{where}.keys.{id}", each, base, id=id)
    rest = {name: value for name, value in values.items() if name != "keys"}
    config: SignaturesConfig = section(SignaturesConfig, where, rest, base, keys=keys)
    return config


def _jwt(values: Any, base: Path) -> JwtConfig:
    where = "identity.jwt"
    if not isinstance(values, dict) or not {"issuer", "audience"} <= values.keys():
        hint = 'It looks like issuer = "https://login.example.org", audience = ["dai"].'
        raise ConfigurationError(f"[{where}] is a section that needs issuer and audience.", hint=hint)
    jwks = values.get("jwks")
    if not isinstance(jwks, str | None):
        raise ConfigurationError(f"{where}.jwks is the URL or the file of a key set, not {jwks!r}.")
    rest = {name: value for name, value in values.items() if name != "jwks"}
    config: JwtConfig = section(JwtConfig, where, rest, base, jwks=None)
    for each in (config.issuer,) if jwks is None else (jwks,) if "://" in jwks else ():
        if not is_safe(each):
            raise ConfigurationError(f"{where}: {each!r} is no address with https://.")
    known = [name for names in ASYMMETRIC.values() for name in names]
    for each in config.algorithms:
        if each not in known:
            hint = f"Known: {', '.join(known)}. Whoever can check a token by HS256 can make one."
            raise ConfigurationError(f"{where}.algorithms: {each!r} is none that this service takes.", hint=hint)
    if not config.audience or "" in config.audience or any(not isinstance(each, str) for each in config.audience):
        raise ConfigurationError(f"{where}.audience is a list of names of this service.")
    key_set = jwks if jwks is None or "://" in jwks else (base / str(jwks)).resolve()
    return dataclasses.replace(config, jwks=key_set)


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
