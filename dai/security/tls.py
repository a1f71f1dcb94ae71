"""The TLS context of a port."""

from __future__ import annotations

import ssl
from pathlib import Path

_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def context_of(
    certificate: Path, key: Path | None, client_ca: Path | None, minimum_version: str = "1.2"
) -> ssl.SSLContext:
    """Of these files. OSError or ssl.SSLError where they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[minimum_version]
    context.load_cert_chain(certificate, key, password=_no_password)
    if client_ca is not None:
        context.load_verify_locations(client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _no_password() -> bytes:
    """A key with a password would ask for it at the terminal."""
    raise ssl.SSLError("the key has a password")
