"""What the sections of a federation's settings have in common."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dai import config
from dai.client.credentials import goes_up
from dai.errors import ConfigurationError

LOOPBACK = tuple(f"{scheme}://{host}" for scheme in ("http", "https") for host in ("127.0.0.1", "localhost", "[::1]"))
_NAME = re.compile(r"[^\W\d]\w*")
_RESERVED = frozenset({"main", "temp", "system", "memory", "pg_catalog", "information_schema"})
"""Names that DuckDB gives a meaning of its own."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads sections: relative paths count from ``base``, variables of secrets stand in the ``environment``."""

    base: Path
    environment: Mapping[str, str]

    def section(self, kind: Any, where: str, values: Mapping[str, Any], /, **fixed: Any) -> Any:
        return config.section(kind, where, values, self.base, **fixed)

    def secret(self, value: str | None, where: str) -> str | None:
        return None if value is None else config.secret(value, where, self.environment, self.base)


def mapping(document: Any, where: str, kind: Any, wanted: str) -> dict[str, Any]:
    """A section whose values are all of a kind."""
    if not isinstance(document, Mapping):
        raise ConfigurationError(f"[{where}] must be a section, not {document!r}.")
    for name, value in document.items():
        if not isinstance(value, kind):
            raise ConfigurationError(f"{where}.{name} must be {wanted}, not {value!r}.")
    return dict(document)


def check_alias(alias: str, where: str) -> None:
    if not _NAME.fullmatch(alias) or alias.casefold() in _RESERVED:
        raise ConfigurationError(
            f"{where}: {alias!r} cannot be an alias.",
            hint=f"An alias is a letter and then letters, digits or '_', and none of {', '.join(sorted(_RESERVED))}.",
        )


def check_services(where: str, urls: Mapping[str, tuple[object, ...]]) -> None:
    """``urls``: the addresses of services, by the key that lists them."""
    for key, listed in urls.items():
        for each in listed:
            if not config.is_web(each):
                raise ConfigurationError(f"{where}.{key}: {each!r} is not the address of a service.")


def within(address: str, prefix: str) -> bool:
    """Whether an address lies below a prefix; without a port in the prefix, at any."""
    try:
        wanted, allowed = urlsplit(address), urlsplit(prefix)
        port, own = wanted.port, allowed.port
    except ValueError:  # an address with a broken host or port
        return False
    path = allowed.path.rstrip("/")
    return (
        own in (None, port)
        and "@" not in wanted.netloc
        and (wanted.scheme, wanted.hostname) == (allowed.scheme, allowed.hostname)
        and (wanted.path == path or wanted.path.startswith(path + "/"))
        and not goes_up(wanted.path)
    )
