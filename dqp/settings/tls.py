"""TLS between nodes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dai.config import TlsConfig
from dai.errors import ConfigurationError
from dqp.settings.sections import Reader, mapping


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """PEM files for TLS between nodes. ``certificate``: that of this process, at its port and as a client; ``key``:
    its private key (default: in ``certificate``). ``client_ca``: the authorities whose certificates every client of
    its port must have. ``ca``: authorities trusted besides those of the system."""

    certificate: Path | None = None
    key: Path | None = None
    client_ca: Path | None = None
    ca: Path | None = None

    @classmethod
    def of(cls, config: TlsConfig | None) -> TlsSettings:
        """That of a service."""
        if config is None:
            return cls()
        return cls(certificate=config.certificate, key=config.key, client_ca=config.client_ca, ca=config.ca)


def tls(document: Any, where: str, reader: Reader, served: TlsSettings | None) -> TlsSettings:
    if document is None:
        return served or TlsSettings()
    if served is not None:
        raise ConfigurationError(
            f"[{where}]: a service's federation has the TLS of the service.", hint="Set its keys in [service.tls]."
        )
    settings: TlsSettings = reader.section(TlsSettings, where, mapping(document, where, str, "a file"))
    return settings
