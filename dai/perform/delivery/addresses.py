"""Checks the addresses that the operator allows.

An address is allowed if it begins like one of ``[delivery] urls``: the same scheme, host and port, and below its path.
The host must not lead to a private address unless ``private`` says so; the address that was looked at is the one that
is called.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import urllib.parse
from dataclasses import dataclass

from dai.config import AccountConfig, DeliveryConfig
from dai.errors import DeniedError, ParameterError, UnreachableError
from dai.streams.cancellation import Cancellation
from dai.streams.waiting import Condition

PORTS = {"http": 80, "https": 443, "ftp": 21, "sftp": 22, "s3": 0}
"""The schemes and their ports; that of object stores (0) has the name of a bucket in place of a host."""


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

    @property
    def file(self) -> str:
        """The path as the name of a file."""
        try:
            name = urllib.parse.unquote(self.path, errors="strict")
        except UnicodeDecodeError as error:
            raise ParameterError("The path of a URL must be percent-encoded UTF-8.") from error
        if not name.isprintable() or self.query or name.endswith("/"):
            raise ParameterError(
                "The URL of a file must have printable characters only, no query, and no '/' at its end."
            )
        return name

    def is_below(self, base: Address) -> bool:
        same = (base.scheme, base.host, base.port) == (self.scheme, self.host, self.port)
        return same and (self.path == base.path or self.path.startswith(base.path.rstrip("/") + "/"))


def allowed(url: str, config: DeliveryConfig) -> Address:
    """DeniedError where no configured address is the beginning of it."""
    address = _parsed(url)
    if any(address.is_below(_parsed(each)) for each in config.urls):
        return address
    raise DeniedError(
        f"This service does not deliver to or from {address.scheme}://{address.host}:{address.port} at this path.",
        hint="The operator of the service allows addresses with urls in [delivery].",
    )


def account_of(address: Address, config: DeliveryConfig) -> AccountConfig | None:
    """The configured account for an address: of several the one with the longest URL."""
    matching = [each for each in config.accounts.values() if address.is_below(_parsed(each.url))]
    return max(matching, key=lambda each: len(each.url), default=None)


def _parsed(url: str) -> Address:
    try:
        parts = urllib.parse.urlsplit(url.strip())
        port = parts.port
        host = (parts.hostname or "").rstrip(".").lower()
        host.encode("idna")  # no label is empty or too long
        path = parts.path or "/"
        segments = urllib.parse.unquote(path, errors="strict" if path.isascii() else "replace").split("/")
        names = {each.partition(";")[0] for each in segments}  # some servers take "..;x" for ".."
    except ValueError as error:
        raise ParameterError("This is not a URL.") from error
    if parts.scheme not in PORTS:
        raise DeniedError(
            f"Nothing can be delivered by {parts.scheme or 'no scheme'!r}.", hint=f"Use one of {', '.join(PORTS)}."
        )
    if not host or parts.username is not None or parts.password is not None:
        raise ParameterError("A URL for a delivery must have a host, and no user or password.")
    if not url.isascii() or not url.strip().isprintable() or " " in url.strip() or "\\" in path:
        raise ParameterError("A URL must consist of printable ASCII characters; percent-encode all others.")
    if not names.isdisjoint(("..", ".")) or "%2f" in path.lower() or "%5c" in path.lower():
        raise DeniedError("The path of a URL for a delivery cannot have a parent directory ('..').")
    return Address(parts.scheme, host, port or PORTS[parts.scheme], path, parts.query)


def resolved(host: str, port: int, config: DeliveryConfig, cancellation: Cancellation) -> str:
    """The IP address of a host. DeniedError where one of its addresses is private, unless the operator allows that."""
    numbers = _looked_up(host, port, config.silence, cancellation)
    for number in numbers:
        if not config.private and not _is_public(number):
            raise DeniedError(
                f"The host {host!r} leads to a private address.",
                hint="The operator of the service allows that with private = true in [delivery].",
            )
    return numbers[0]


def _looked_up(host: str, port: int, seconds: float, cancellation: Cancellation) -> list[str]:
    """Asks in a thread of its own, because nothing ends the wait for a name server."""
    done = Condition()
    outcomes: list[list[str] | Exception] = []

    def look_up() -> None:
        outcome: list[str] | Exception
        try:
            outcome = [str(each[4][0]) for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        except (OSError, UnicodeError) as error:
            outcome = error
        with done:
            outcomes.append(outcome)
            done.notify_all()

    threading.Thread(target=look_up, name="look-up", daemon=True).start()
    with done:
        if not done.wait_for(lambda: outcomes, cancellation, seconds):
            raise UnreachableError(f"The host {host!r} was not found within {seconds:g} seconds.")
    if isinstance(outcomes[0], Exception):
        raise UnreachableError(f"The host {host!r} is not known.") from outcomes[0]
    return outcomes[0]


def is_loopback(host: str) -> bool:
    """Whether it is this machine by its name or number, without looking it up."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


_UNICAST = ipaddress.ip_network("2000::/3")
_TRANSLATED = ipaddress.ip_network("64:ff9b::/96")
_REFUSED = tuple(map(ipaddress.ip_network, ("192.88.99.0/24", "2001::/32", "2002::/16", "3fff::/20")))
"""6to4 relays, Teredo, 6to4 and documentation: tunnels to an IPv4 address that the number only hides, and no host."""


def _is_public(number: str) -> bool:
    """Of IPv6 only global unicast, and what stands for an IPv4 address that is public (RFC 4291, RFC 6052)."""
    address = ipaddress.ip_address(number.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped or address in _TRANSLATED:
            address = ipaddress.IPv4Address(address.packed[-4:])
        elif address not in _UNICAST:
            return False
    return address.is_global and not address.is_multicast and not any(address in each for each in _REFUSED)
