"""TLS of the server: its files are read again when they change, for connections that are opened then."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Any

from dai.config import TlsConfig
from dai.errors import ConfigurationError
from dai.security.tls import context_of
from dai.streams.files import state_of

log = logging.getLogger("dai.api")
LOOK_SECONDS = 2.0
_NUMBERS = {"TLSv1.2": 0x0303, "TLSv1.3": 0x0304}


class Certificate:
    """``context`` is that of the server, which makes a new one of what the files hold for the handshakes that come.
    ConfigurationError for files that cannot be used."""

    def __init__(self, config: TlsConfig) -> None:
        self._config = config
        self._seen = self._state()
        try:
            for file in (config.certificate, config.key, config.client_ca):
                if file is not None:
                    file.open("rb").close()  # its error names the file
            self.context = _Newest(self._read())
        except (OSError, ssl.SSLError) as error:
            what = f"the file {error.filename}" if error.filename else "the certificate and its key"
            raise ConfigurationError(
                f"[service.tls]: {what} cannot be used: {error.strerror or error}.",
                hint="certificate and key must be PEM files; the key must belong to the certificate and have no "
                "password.",
            ) from error

    def _read(self) -> ssl.SSLContext:
        files = self._config
        return context_of(files.certificate, files.key, files.client_ca, files.minimum_version)

    def _state(self) -> object:
        return state_of(self._config.certificate, self._config.key, self._config.client_ca)

    def reload(self) -> None:
        """Reads the files; where they cannot be used the former ones stay, and the log says so."""
        try:
            self.context.newest = self._read()
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


class _Newest(ssl.SSLContext):
    """Lets the ``newest`` context do each handshake: a context cannot forget an authority, nor the sessions of clients
    that showed a certificate of it."""

    newest: ssl.SSLContext

    def __new__(cls, newest: ssl.SSLContext) -> _Newest:
        context = super().__new__(cls, ssl.PROTOCOL_TLS_SERVER)
        context.newest = newest
        return context

    def wrap_bio(self, *arguments: Any, **more: Any) -> ssl.SSLObject:
        return self.newest.wrap_bio(*arguments, **more)


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
