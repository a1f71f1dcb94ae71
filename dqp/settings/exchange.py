"""Where tokens of callers are exchanged for tokens of a source."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dai import config
from dai.config.identity import is_safe
from dai.errors import ConfigurationError
from dai.plugins import nearest
from dqp.settings.sections import Reader, mapping

_OF_SOURCES = ("audience", "resource", "scope")


@dataclass(frozen=True, kw_only=True)
class ExchangeSettings:
    """Exchange of callers' tokens for tokens of a source (RFC 8693), at the token endpoint ``url``, which knows
    this federation by ``client_id`` and ``client_secret``. ``ca`` replaces that of the federation's ``tls``.
    ``audience``, ``resource`` and ``scope``: what the token is for. The token types are URIs, or the last part of
    those of RFC 8693."""

    url: str
    client_id: str
    client_secret: str = field(repr=False)
    ca: Path | None = None
    subject_token_type: str = "access_token"
    requested_token_type: str = "access_token"
    audience: str | None = None
    resource: str | None = None
    scope: str | None = None


def exchange(document: Any, where: str, reader: Reader) -> ExchangeSettings | None:
    if document is None:
        return None
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"[{where}] must be a section.")
    for key in ("url", "client_id", "client_secret"):
        if not document.get(key):
            raise ConfigurationError(
                f"{where}.{key} is missing.",
                hint="The token endpoint knows this federation by its client_id and secret.",
            )
    for key in _OF_SOURCES:
        if key in document:
            raise ConfigurationError(f"{where}.{key} belongs to a source.", hint=f'exchange = {{ {key} = "…" }}')
    settings: ExchangeSettings = reader.section(ExchangeSettings, where, document)
    if "@" in settings.url or "#" in settings.url or not is_safe(settings.url):
        raise ConfigurationError(
            f"{where}.url must be an address with https://, or on loopback, without a user and a fragment.",
            hint="Tokens of callers are sent there.",
        )
    return dataclasses.replace(
        settings,
        client_secret=config.secret(settings.client_secret, f"{where}.client_secret", reader.environment, reader.base),
        subject_token_type=_token_type(settings.subject_token_type),
        requested_token_type=_token_type(settings.requested_token_type),
    )


def exchange_for(section: Any, where: str, exchange: ExchangeSettings | None, needed: str) -> ExchangeSettings:
    """``exchange`` with what a source says of its tokens."""
    if exchange is None:
        raise ConfigurationError(
            f"{where} needs a section [{needed}].",
            hint="It says where tokens are exchanged: url, client_id, client_secret.",
        )
    audience: dict[str, Any] = mapping(section, where, str, "a text")
    if unknown := [key for key in audience if key not in _OF_SOURCES]:
        raise ConfigurationError(f"[{where}] has no key {unknown[0]!r}.", hint=nearest(unknown[0], list(_OF_SOURCES)))
    if not any(audience.values()):
        raise ConfigurationError(f"{where} must say what its tokens are for.", hint='exchange = { audience = "…" }')
    return dataclasses.replace(exchange, **audience)


def _token_type(name: str) -> str:
    return name if ":" in name else f"urn:ietf:params:oauth:token-type:{name}"
