"""The sections ``[identity]``, ``[quotas]`` and ``[audit]``: who may send requests, how much, and what is recorded."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dai.config.service import LimitsConfig
from dai.config.values import POSITIVE, is_web, named, secret, section
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
CERTIFICATE_NAMES = ("dn", "cn", "email", "dns", "uri")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
_LEAST_SECRET = 16


@dataclass(frozen=True, kw_only=True)
class JwtConfig:
    """JSON Web Tokens of one ``issuer`` for one of the ``audience``. ``jwks``: the issuer's keys, a URL or a file;
    without it the issuer says where they are (OpenID Connect Discovery). ``algorithms``: the accepted ones. Clocks
    may differ by ``leeway`` seconds. ``name``, ``groups``, ``resources`` and ``administrator`` name the claims with
    these values; a claim inside another is written with dots; empty: no claim. ``authorities``: certificates (PEM)
    trusted besides those of the system."""

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
    """Whether answers from the URL are encrypted, or come from this machine."""
    return is_web(url) and (urlsplit(url).scheme == "https" or urlsplit(url).hostname in _LOOPBACK)


@dataclass(frozen=True, kw_only=True)
class KeyConfig:
    """A public key. ``key``: its file (PEM). ``name``: the caller who signs with it, with ``groups``.
    ``resources``: those that the key is valid for; empty: all. An ``administrator`` sees what belongs to others."""

    id: str
    name: str
    key: Path
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    administrator: bool = False


@dataclass(frozen=True, kw_only=True)
class SignaturesConfig:
    """Signed requests and documents. A signature may be ``seconds`` old; ``keys`` are named by their ids.
    ``documents_without_nonce``: signed documents need no time, nonce and target, so that anybody who has one can
    send it again and again."""

    seconds: float = field(default=60.0, metadata={"most": 3600, **POSITIVE})
    documents_without_nonce: bool = False
    keys: Mapping[str, KeyConfig] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class SubjectConfig:
    """A caller by the ``subject`` of their certificate: ``name``, ``groups``, the ``resources`` that the
    certificate is valid for (empty: all), and whether an ``administrator``."""

    subject: str
    name: str
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    administrator: bool = False


@dataclass(frozen=True, kw_only=True)
class CertificateConfig:
    """Callers by client certificates. ``name``: the part of the certificate that is the caller's name: ``dn``, its
    subject as RFC 4514 writes it; ``cn``, the common name in it; ``email``, ``dns`` or ``uri``, the alternative
    name of that kind. ``subjects``: callers by these names; if there is one, all others are refused. ``proxies``:
    addresses or networks of proxies that check certificates for this service. They send the ``secret`` in
    ``secret_header``, and in ``header`` the certificate (Client-Cert, RFC 9440) or, in a header of another name,
    its subject."""

    name: str = "dn"
    subjects: Mapping[str, SubjectConfig] = field(default_factory=dict)
    proxies: tuple[str, ...] = ()
    secret: str | None = field(default=None, repr=False)
    header: str = "Client-Cert"
    secret_header: str = "X-Proxy-Secret"

    @property
    def shows_all(self) -> bool:
        """Whether the header has the certificate, not its subject alone."""
        return self.header.lower() == "client-cert"


@dataclass(frozen=True, kw_only=True)
class IdentityConfig:
    """How callers are identified. ``methods`` are tried in this order; without any, callers are not identified, and
    the service listens on loopback only. ``anonymous``: callers without credentials are served, too, on every
    address. A token is remembered for ``kept_seconds``, so a revoked one works for so long. The answer to wrong
    credentials waits at most ``wrong_seconds``, longer after each wrong one from the same address. ``metrics``: who
    sees the metrics besides administrators, as in policies; ``anonymous``: everybody."""

    methods: tuple[str, ...] = ()
    anonymous: bool = False
    kept_seconds: float = field(default=5.0, metadata={"most": 3600})
    wrong_seconds: float = field(default=5.0, metadata={"most": 60})
    metrics: tuple[str, ...] = ()
    jwt: JwtConfig | None = None
    signatures: SignaturesConfig | None = None
    certificate: CertificateConfig = CertificateConfig()


def read(
    values: dict[str, Any], base: Path, environment: Mapping[str, str], asks_for_certificates: bool
) -> IdentityConfig:
    """``[identity]`` with the sections of its methods. ``asks_for_certificates``: connections have them."""
    sections = {
        "jwt": _jwt(values.pop("jwt"), base) if "jwt" in values else None,
        "signatures": _signatures(values.pop("signatures"), base) if "signatures" in values else None,
        "certificate": _certificate(values.pop("certificate", {}), base, environment),
    }
    identity: IdentityConfig = section(IdentityConfig, "identity", values, base, **sections)
    if "certificate" in identity.methods and not asks_for_certificates and not identity.certificate.proxies:
        raise ConfigurationError(
            'identity.methods has "certificate", but clients are not asked for certificates.',
            hint="Set client_ca in [service.tls]; or, where a proxy asks for it, proxies and secret in "
            "[identity.certificate].",
        )
    return identity


def _certificate(values: Any, base: Path, environment: Mapping[str, str]) -> CertificateConfig:
    where = "identity.certificate"
    subjects = values.get("subjects", {}) if isinstance(values, dict) else None
    if not isinstance(subjects, dict) or not all(
        isinstance(each, dict) and each.get("name") for each in subjects.values()
    ):
        hint = f'It looks like [{where}.subjects."CN=alice,O=Lab"] with name = "alice".'
        raise ConfigurationError(
            f"[{where}] must be a section, and each of its subjects a section with name.", hint=hint
        )
    rest = {name: value for name, value in values.items() if name != "subjects"}
    known = {
        subject: section(SubjectConfig, f"{where}.subjects.{subject!r}", each, base, subject=subject)
        for subject, each in subjects.items()
    }
    config: CertificateConfig = section(CertificateConfig, where, rest, base, subjects=known)
    if config.name not in CERTIFICATE_NAMES:
        raise ConfigurationError(f"{where}.name must be one of {', '.join(CERTIFICATE_NAMES)}, not {config.name!r}.")
    for each in (config.header, config.secret_header):
        if not _HEADER.fullmatch(each):
            raise ConfigurationError(f"{where}: {each!r} is not the name of a header.")
    for each in config.proxies:
        try:
            ipaddress.ip_network(each)
        except ValueError as error:
            hint = 'It looks like proxies = ["10.0.0.7", "10.1.0.0/24"].'
            raise ConfigurationError(
                f"{where}.proxies: {each!r} is neither an address nor a network.", hint=hint
            ) from error
    if not config.proxies:
        return config
    if config.name not in ("dn", "cn") and not config.shows_all:
        raise ConfigurationError(
            f"{where}: the header {config.header!r} has only the subject of a certificate, not its {config.name} name.",
            hint='Set header = "Client-Cert", if the proxy can send that; or name = "dn" or "cn".',
        )
    value = None if config.secret is None else secret(config.secret, f"{where}.secret", environment, base)
    if value is None or len(value) < _LEAST_SECRET or not (value.isascii() and value.isprintable()):
        raise ConfigurationError(
            f"{where}.secret must have {_LEAST_SECRET} characters or more: it proves that a request comes from the "
            "proxy.",
            hint='It looks like secret = "env:PROXY_SECRET". openssl rand -hex 32 makes one.',
        )
    return dataclasses.replace(config, secret=value)


def _signatures(values: Any, base: Path) -> SignaturesConfig:
    where = "identity.signatures"
    if not isinstance(values, dict) or not isinstance(values.get("keys", {}), dict):
        raise ConfigurationError(f"[{where}] must be a section, and each key a section [{where}.keys.ID].")
    keys = {}
    for id, each in named(values, "keys"):
        if not {"name", "key"} <= each.keys() or not each["name"]:
            raise ConfigurationError(
                f"[{where}.keys.{id}] needs name, the caller who signs, and key, the file of the public key."
            )
        keys[id] = section(KeyConfig, f"{where}.keys.{id}", each, base, id=id)
    rest = {name: value for name, value in values.items() if name != "keys"}
    config: SignaturesConfig = section(SignaturesConfig, where, rest, base, keys=keys)
    return config


def _jwt(values: Any, base: Path) -> JwtConfig:
    where = "identity.jwt"
    if not isinstance(values, dict) or not {"issuer", "audience"} <= values.keys():
        hint = 'It looks like issuer = "https://login.example.org", audience = ["dai"].'
        raise ConfigurationError(f"[{where}] must be a section with issuer and audience.", hint=hint)
    jwks = values.get("jwks")
    if not isinstance(jwks, str | None):
        raise ConfigurationError(f"{where}.jwks must be the URL or the file of a key set, not {jwks!r}.")
    rest = {name: value for name, value in values.items() if name != "jwks"}
    config: JwtConfig = section(JwtConfig, where, rest, base, jwks=None)
    for each in (config.issuer,) if jwks is None else (jwks,) if "://" in jwks else ():
        if not is_safe(each):
            raise ConfigurationError(f"{where}: {each!r} is not an address with https://.")
    known = [name for names in ASYMMETRIC.values() for name in names]
    for each in config.algorithms:
        if each not in known:
            hint = (
                f"Known: {', '.join(known)}. HS256 is not among them, because whoever can check such a token "
                "can also make one."
            )
            raise ConfigurationError(f"{where}.algorithms: this service does not take {each!r}.", hint=hint)
    if not config.audience or "" in config.audience or any(not isinstance(each, str) for each in config.audience):
        raise ConfigurationError(f"{where}.audience must be a list of names of this service.")
    key_set = jwks if jwks is None or "://" in jwks else (base / str(jwks)).resolve()
    return dataclasses.replace(config, jwks=key_set)


@dataclass(frozen=True, kw_only=True)
class QuotaConfig:
    """Limits for one caller; 0 means no limit. ``jobs`` that have not ended, ``result_bytes`` of stored results,
    ``day_bytes`` of answers in a day (UTC), ``concurrent`` requests that run or wait for their turn, ``sessions``,
    ``context_bytes`` of contexts and documents, ``feeds``."""

    jobs: int = 250
    result_bytes: int = 0
    day_bytes: int = 0
    concurrent: int = 0
    sessions: int = 0
    context_bytes: int = 0
    feeds: int = 0


@dataclass(frozen=True, kw_only=True)
class QuotasConfig:
    """Limits for callers. ``every``: for each caller, and for all callers without a name together; ``callers``:
    other limits for some callers."""

    every: QuotaConfig = QuotaConfig()
    callers: Mapping[str, QuotaConfig] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class AuditConfig:
    """``file``: the file that gets a record of each request; ``opentelemetry``: records are also sent to the
    endpoint of ``[telemetry]``."""

    file: Path | None = None
    opentelemetry: bool = False


def quotas(values: dict[str, Any], base: Path, limits: LimitsConfig, identified: bool) -> QuotasConfig:
    """Where callers are ``identified``, what is stored for one of them has a quarter of the room of all at most, unless
    the operator says otherwise."""
    if identified:
        values = {"result_bytes": limits.result_bytes // 4, "context_bytes": limits.contexts_bytes // 4, **values}
    callers = values.pop("callers", {})
    if not isinstance(callers, dict) or not all(isinstance(each, dict) for each in callers.values()):
        raise ConfigurationError("[quotas.callers]: each caller must be a section [quotas.callers.NAME].")
    every: QuotaConfig = section(QuotaConfig, "quotas", values, base)
    return QuotasConfig(
        every=every,
        callers={
            name: section(QuotaConfig, f"quotas.callers.{name}", dataclasses.asdict(every) | each, base)
            for name, each in callers.items()
        },
    )
