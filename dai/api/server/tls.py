"""TLS of the server: its certificate is read again when the files change, for connections that are opened then."""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from typing import Any

from dai.config import TlsConfig
from dai.errors import ConfigurationError

log = logging.getLogger("dai.api")
LOOK_SECONDS = 2.0
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
_NUMBERS = {"TLSv1.2": 0x0303, "TLSv1.3": 0x0304}


class Certificate:
    """``context`` is that of the server. ConfigurationError for files that cannot be used."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._seen = self._state()
        try:
            self.context = self._context()
        except (OSError, ssl.SSLError) as error:
            raise ConfigurationError(
                f"[service.tls]: the certificate and its key cannot be used: {error.strerror or error}.",
                hint="certificate and key are PEM files, the key is that of the certificate and has no password.",
            ) from error

    def _context(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[self._config.minimum_version]
        context.load_cert_chain(self._config.certificate, self._config.key, password=_no_password)
        if self._config.client_ca is not None:
            context.load_verify_locations(self._config.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _state(self) -> list[tuple[int, int]]:
        files = [each for each in (self._config.certificate, self._config.key) if each is not None]
        try:
            return [(each.st_mtime_ns, each.st_ino) for each in map(os.stat, files)]
        except OSError:
            return []

    def reload(self) -> None:
        """Reads the files; where they cannot be used the former certificate stays, and the log says so."""
        try:
            self._context()  # a pair that does not fit would leave the context without either
            self.context.load_cert_chain(self._config.certificate, self._config.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            log.error("the new certificate cannot be used; the former one stays", exc_info=error)
        else:
            log.info("the certificate was read again")

    async def watch(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            if (state := self._state()) and state != self._seen:
                self._seen = state
                self.reload()


def extensions(transport: asyncio.BaseTransport) -> dict[str, Any]:
    """For the scope of the requests of a connection: the extension ``tls`` of ASGI, with the certificate that the
    client has shown and that was verified; empty without TLS."""
    connection = transport.get_extra_info("ssl_object")
    if connection is None:
        return {}
    certificate = None
    if connection.context.verify_mode != ssl.CERT_NONE:
        certificate = connection.getpeercert(binary_form=True)
    shown = {
        "server_cert": None,
        "client_cert_chain": [] if certificate is None else [ssl.DER_cert_to_PEM_cert(certificate)],
        "client_cert_name": None,
        "client_cert_error": None,
        "tls_version": _NUMBERS.get(connection.version()),
        "cipher_suite": None,
    }
    return {"tls": shown}


def _no_password() -> bytes:
    """A key with a password would ask for it at the terminal."""
    raise ssl.SSLError("the key has a password")
