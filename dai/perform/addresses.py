"""HTTP to addresses that the deployer allows, for deliveries.

An address is allowed if it begins like one of ``[delivery] urls``: the same scheme, host and port, and below its path.
The host must not lead to a private address unless ``private`` says so; the address that was looked at is the one that
is called. Redirects are not followed. What is slow, or has no end, ends by ``seconds``, ``silence`` and ``bytes``.
"""

from __future__ import annotations

import http.client
import ipaddress
import socket
import ssl
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self

from dai.config import DeliveryConfig
from dai.errors import (
    DaiError,
    DataError,
    DeniedError,
    LimitError,
    ParameterError,
    TruncatedError,
    UnreachableError,
)
from dai.streams.cancellation import Cancellation

BLOCK_BYTES = 1 << 18
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    scheme: str
    host: str
    port: int
    path: str
    query: str = ""

    @property
    def target(self) -> str:
        return self.path + (f"?{self.query}" if self.query else "")


def allowed(url: str, config: DeliveryConfig) -> Address:
    """DeniedError where no configured address is the beginning of it."""
    address = _parsed(url)
    for each in config.urls:
        base = _parsed(each)
        same = (base.scheme, base.host, base.port) == (address.scheme, address.host, address.port)
        below = address.path == base.path or address.path.startswith(base.path.rstrip("/") + "/")
        if same and below:
            return address
    raise DeniedError(
        f"Nothing is delivered to or from {address.scheme}://{address.host}:{address.port} at this path.",
        hint="The deployer of the service allows addresses with urls in [delivery].",
    )


def _parsed(url: str) -> Address:
    try:
        parts = urllib.parse.urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ParameterError("This is not a URL.") from error
    if parts.scheme not in _PORTS:
        raise DeniedError(f"Nothing is delivered by {parts.scheme or 'no scheme'!r}.", hint="Use http or https.")
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise ParameterError("A URL for a delivery has a host, and no user or password.")
    path = parts.path or "/"
    segments = urllib.parse.unquote(path, errors="strict" if path.isascii() else "replace").split("/")
    if not url.isascii() or not url.strip().isprintable() or " " in url.strip() or "\\" in path:
        raise ParameterError("A URL consists of printable ASCII characters; others are percent-encoded.")
    if ".." in segments or "." in segments or "%2f" in path.lower() or "%5c" in path.lower():
        raise DeniedError("The path of a URL for a delivery names no parent directory ('..').")
    host = parts.hostname.rstrip(".").lower()
    return Address(parts.scheme, host, port or _PORTS[parts.scheme], path, parts.query)


def _resolved(address: Address, config: DeliveryConfig) -> str:
    try:
        answers = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise UnreachableError(f"The host {address.host!r} is not known.") from error
    numbers = [str(each[4][0]) for each in answers]
    for number in numbers:
        if not config.private and not _is_public(number):
            raise DeniedError(
                f"The host {address.host!r} leads to a private address.",
                hint="The deployer of the service allows that with private = true in [delivery].",
            )
    return numbers[0]


def _is_public(number: str) -> bool:
    known = ipaddress.ip_address(number.partition("%")[0])
    inner = getattr(known, "ipv4_mapped", None) or getattr(known, "sixtofour", None) or known
    return bool(known.is_global and inner.is_global and not known.is_multicast)


class _Plain(http.client.HTTPConnection):
    """Calls the number that was looked at, not the name again."""

    def __init__(self, address: Address, number: str, silence: float) -> None:
        super().__init__(address.host, address.port, timeout=silence)
        self._number = number

    def connect(self) -> None:
        self.sock = socket.create_connection((self._number, self.port), self.timeout)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


class _Secure(_Plain):
    def connect(self) -> None:
        super().connect()
        self.sock = ssl.create_default_context().wrap_socket(self.sock, server_hostname=self.host)


class Call:
    """One connection, cut when it is cancelled or its time is over."""

    def __init__(self, address: Address, config: DeliveryConfig, cancellation: Cancellation) -> None:
        kind = _Secure if address.scheme == "https" else _Plain
        self.connection = kind(address, _resolved(address, config), config.silence)
        self._address, self._config, self._cancellation = address, config, cancellation
        self._late = False
        self._socket: socket.socket | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._stack.callback(self.connection.close)
            self._stack.enter_context(self._cancellation.on_cancel(self._cut))
            timer = threading.Timer(self._config.seconds, self._end)
            timer.daemon = True
            timer.start()
            self._stack.callback(timer.cancel)
            with self.translated():
                self.connection.connect()
                # of its own: the connection forgets it where the answer ends with it
                self._socket = self.connection.sock
                self._cancellation.check()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _cut(self) -> None:
        with suppress(OSError, AttributeError):
            (self._socket or self.connection.sock).shutdown(socket.SHUT_RDWR)

    def _end(self) -> None:
        self._late = True
        self._cut()

    @contextmanager
    def translated(self) -> Iterator[None]:
        """What the other side does as an error of ours."""
        host, config = self._address.host, self._config
        too_late = LimitError(
            f"The delivery took longer than {config.seconds:g} seconds, or nothing came for {config.silence:g}.",
            limit="delivery.seconds",
        )
        try:
            yield
        except (OSError, http.client.HTTPException) as error:
            self._cancellation.check()
            if self._late or isinstance(error, TimeoutError):
                raise too_late from error
            if isinstance(error, http.client.HTTPException):
                raise TruncatedError(f"{host!r} broke off its answer.") from error
            raise UnreachableError(f"{host!r} cannot be reached, or closed the connection.") from error
        except DaiError:
            self._cancellation.check()
            if self._late:
                raise too_late from None
            raise
        self._cancellation.check()  # what was cut looks like an end
        if self._late:
            raise too_late


def check_status(response: Any, address: Address) -> None:
    if 300 <= response.status < 400:
        raise DeniedError(f"{address.host!r} redirects; redirects are not followed.", hint="Name the last address.")
    if not 200 <= response.status < 300:
        raise DataError(f"{address.host!r} answered with the status {response.status}.")


def put(
    address: Address, blocks: Iterator[bytes], media_type: str, config: DeliveryConfig, cancellation: Cancellation
) -> None:
    """Sends the blocks as they come (HTTP PUT, chunked)."""
    with Call(address, config, cancellation) as call, call.translated():
        headers = {"Content-Type": media_type, "Transfer-Encoding": "chunked"}
        call.connection.request("PUT", address.target, body=blocks, headers=headers, encode_chunked=True)
        check_status(call.connection.getresponse(), address)


@contextmanager
def got(address: Address, config: DeliveryConfig, cancellation: Cancellation) -> Iterator[tuple[str, Iterator[bytes]]]:
    """The media type and the bytes of the answer, as they come (HTTP GET)."""
    with Call(address, config, cancellation) as call:
        with call.translated():
            call.connection.request("GET", address.target, headers={"Accept-Encoding": "identity"})
            response = call.connection.getresponse()
            check_status(response, address)

        def blocks() -> Iterator[bytes]:
            size = 0
            while data := _next(call, response, address):
                size += len(data)
                if config.bytes and size > config.bytes:
                    raise LimitError(f"The answer has more than {config.bytes:,} bytes.", limit="delivery.bytes")
                yield data

        yield response.headers.get("Content-Type") or "application/octet-stream", blocks()


def _next(call: Call, response: http.client.HTTPResponse, address: Address) -> bytes:
    with call.translated():
        data = response.read1(BLOCK_BYTES)
        if not data and response.length:
            raise TruncatedError(f"{address.host!r} broke off its answer.")
        return data
