"""Checks which host a request names and which page sent it. Pure functions on values.

A browser sends any request that a page makes. Without CORS headers a page of another site cannot read our answers, but
its requests would run; and a page can point its own host name at our address (DNS rebinding), which makes it a page of
our origin. So a request has to name us by a name that is ours, and a request that changes something must not come from
another page. An IP address is always ours: nobody else can serve a page under it.
"""

from __future__ import annotations

import ipaddress
import socket
from functools import lru_cache
from urllib.parse import urlsplit

from dai.config import ServiceConfig
from dai.errors import DeniedError, RequestError

ANY = "*"
_OWN_SITES = frozenset({None, b"same-origin", b"none"})


def own_names(config: ServiceConfig) -> frozenset[str]:
    """The names of this service, in lower case: those of the setting ``hosts``, perhaps with a port, and the
    machine's."""
    return frozenset(each.lower() for each in (*config.hosts, config.host, socket.gethostname()))


def check_host(hosts: list[bytes], version: str, names: frozenset[str]) -> None:
    """``hosts``: the Host headers of a request of that HTTP version. DeniedError for a name that is not ours."""
    if not hosts and version == "1.0":
        return
    if len(hosts) != 1:
        raise RequestError(f"The request has {len(hosts)} Host headers; it needs one.")
    _check_authority(hosts[0].decode("latin-1").strip().lower(), names)


@lru_cache(256)
def _check_authority(authority: str, names: frozenset[str]) -> None:
    name = _name(authority)
    if name is None:
        raise RequestError(f"The Host header {authority[:100]!r} is not a host name.")
    if ANY in names or name in names or authority in names or name == "localhost" or name.endswith(".localhost"):
        return
    try:
        ipaddress.ip_address(name)
    except ValueError:
        raise DeniedError(
            f"This service is not known as {name[:100]!r}.",
            hint=f'Its operator can add the name to [service] in its configuration: hosts = ["{name[:100]}"].',
        ) from None


def _name(authority: str) -> str | None:
    """The host of ``host:port``, without the brackets of an IPv6 address and without a full stop at its end."""
    try:
        parts = urlsplit(f"//{authority}")
        parts.port  # noqa: B018 - raises ValueError where it is not a number
    except ValueError:
        return None
    name = (parts.hostname or "").removesuffix(".")
    return name if name and parts.netloc == authority and "@" not in authority else None


def check_page(headers: dict[bytes, bytes], names: frozenset[str], origins: frozenset[str]) -> None:
    """For requests that may change something: DeniedError where a browser says that a page of another origin sent it,
    unless the origin is one of ``origins``.

    A page is ours when its origin is the host that the request names, or in ``names``: a proxy may give us another Host
    header than its own. An opaque origin (``null``) is never ours.
    """
    origin = headers.get(b"origin")
    if origin is not None and origin.decode("latin-1") in origins:
        return
    if headers.get(b"sec-fetch-site") in _OWN_SITES and (origin is None or _own(origin, headers, names)):
        return
    whose = origin.decode("latin-1")[:100] if origin is not None else "another site"
    raise DeniedError(
        f"A page of {whose} may not change anything here.",
        hint="Pages of this service may, and pages of the origins in [service] of its configuration. Behind a proxy, "
        "the proxy's host must be in hosts.",
    )


def check_fetch(headers: dict[bytes, bytes], origins: frozenset[str]) -> None:
    """For requests that only read: DeniedError where a browser says that a page of another origin fetches or embeds the
    answer, unless pages of ``origins`` may. The page could not read it, but learns how long it takes, and a query can
    say what takes long. Links are followed, but not into a frame."""
    mode = headers.get(b"sec-fetch-mode")
    link = mode == b"navigate" and headers.get(b"sec-fetch-dest") in (None, b"document")
    if headers.get(b"sec-fetch-site") in _OWN_SITES or mode is None or link:
        return
    if ANY not in origins and headers.get(b"origin", b"").decode("latin-1") not in origins:
        raise DeniedError(
            "A page of another site may not send requests here.",
            hint="A link to this address works. Pages of the origins in [service] of the configuration may use fetch() "
            "(CORS).",
        )


def _own(origin: bytes, headers: dict[bytes, bytes], names: frozenset[str]) -> bool:
    scheme, _, authority = origin.decode("latin-1").lower().partition("://")
    host = headers.get(b"host", b"").decode("latin-1").strip().lower()
    return scheme in ("http", "https") and (authority == host or authority in names)


_TOLD = b"location, retry-after, server-timing, truncated, x-request-id"
_MAY_SEND = b"accept, authorization, content-digest, content-type, prefer, signature, signature-input, x-request-id"


def shared_with(headers: dict[bytes, bytes], origins: frozenset[str]) -> list[tuple[bytes, bytes]]:
    """The headers of an answer by which a browser lets the page that asked read it (CORS); none for other pages."""
    if not origins:
        return []
    shared: list[tuple[bytes, bytes]] = [(b"vary", b"Origin")]
    origin = headers.get(b"origin")
    if origin is not None and (ANY in origins or origin.decode("latin-1") in origins):
        shared += [(b"access-control-allow-origin", origin), (b"access-control-expose-headers", _TOLD)]
    return shared


def asks_whether(method: str, headers: dict[bytes, bytes], origins: frozenset[str]) -> list[tuple[bytes, bytes]] | None:
    """Further headers of the answer to a browser's question whether a page may send a request; None for any other
    request. A page that only ``*`` lets in may read."""
    if method != "OPTIONS" or not origins or not {b"origin", b"access-control-request-method"} <= headers.keys():
        return None
    named = headers[b"origin"].decode("latin-1") in origins
    return [
        (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, DELETE" if named else b"GET, HEAD"),
        (b"access-control-allow-headers", _MAY_SEND),
        (b"access-control-max-age", b"600"),
    ]
