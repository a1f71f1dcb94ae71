"""TLS of Arrow Flight, for ports and for their clients.

A process whose ``TlsSettings`` have a certificate speaks TLS at its port and to all ports; one without speaks it to
none. So nobody between two processes can make them speak without TLS.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyarrow import flight

from dai.errors import ConfigurationError
from dai.security.tls import context_of
from dqp.settings import TlsSettings

REASONS = {
    "certificate has expired": "its certificate has expired",
    "is not in peer certificate": "its certificate is for another name",
    "certificate verify failed": "its certificate is not from a trusted authority",
    "wrong version number": "it does not speak TLS",
    "handshake failed": "one of the two does not accept the other's certificate",
}
"""The reason to show, by words of gRPC's error."""


def location(address: str, tls: TlsSettings | None) -> str:
    return f"{'grpc' if tls is None else 'grpc+tls'}://{address}"


def of_port(tls: TlsSettings | None) -> dict[str, Any]:
    """The arguments of a Flight server."""
    if tls is None:
        return {}
    arguments: dict[str, Any] = {"tls_certificates": [_pair(tls)]}
    if tls.client_ca is not None:
        arguments |= {"verify_client": True, "root_certificates": _read(tls.client_ca)}
    return arguments


def usable(tls: TlsSettings) -> dict[str, Any]:
    """The arguments of a Flight server. ConfigurationError or OSError for files that no client could connect with:
    Flight would take them."""
    arguments = of_port(tls)
    assert tls.certificate is not None
    context_of(tls.certificate, tls.key, tls.client_ca)
    return arguments


def connected(address: str, tls: TlsSettings | None) -> flight.FlightClient:
    """A client of the port at ``host:port``; it connects with its first call."""
    arguments: dict[str, Any] = {}
    if tls is not None:
        arguments["cert_chain"], arguments["private_key"] = _pair(tls)
        if tls.ca is not None:
            arguments["tls_root_certs"] = _read(tls.ca)
    # a proxy that the environment names is not meant for evaluators
    return flight.FlightClient(location(address, tls), generic_options=[("grpc.enable_http_proxy", 0)], **arguments)


def why(error: BaseException) -> str:
    """What is wrong with TLS on a connection, by the error of a call; empty if the error is not about TLS."""
    said = str(error)
    return next((reason for text, reason in REASONS.items() if text in said), "")


def _pair(tls: TlsSettings) -> tuple[bytes, bytes]:
    assert tls.certificate is not None
    return _read(tls.certificate), _read(tls.key or tls.certificate)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigurationError(f"The file {path} cannot be read: {error.strerror}.") from error
