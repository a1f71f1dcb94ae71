"""The client of a data service: queries and perform documents over HTTP, results as they stream.

::

    import dai
    book = dai.connect("http://127.0.0.1:8080/book")
    table = book.query("select name, phone from littleblackbook where id < ?", 100).arrow()
    for batch in book.query("select * from littleblackbook", blocksize=1000):
        ...

A request's life: ``service`` (Resource) → ``transport`` (connection, retries, errors) → ``body`` (bytes, never short)
→ ``result`` or ``response`` (what the bytes mean). Nothing of the server is imported, and pyarrow only when tuples are
read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any
from urllib.parse import quote, unquote

from dai.client.credentials import options_for, server_of
from dai.client.documents import activity, document, element
from dai.client.http.transport import Options, parts_of
from dai.client.jobs import Job, Jobs
from dai.client.progress import Progress
from dai.client.registry import Match, RegistryClient
from dai.client.results.response import Response, ResponseResult
from dai.client.results.result import Result
from dai.client.service import Resource, Schema, Service
from dai.client.streams.feed import Event, Feed
from dai.client.streams.pull import Pull
from dai.client.streams.session import Session
from dai.errors import NotFoundError, ParameterError, RequestError
from dai.plugins import nearest

__all__ = [
    "Event",
    "Feed",
    "Job",
    "Jobs",
    "Options",
    "Progress",
    "Pull",
    "Resource",
    "Response",
    "ResponseResult",
    "Result",
    "Schema",
    "Service",
    "Session",
    "activity",
    "connect",
    "document",
    "element",
]
_FILES = (".db", ".sqlite", ".sqlite3", ".duckdb", ".csv", ".parquet", ".toml")
_MEANT = {
    "timeout": "Write read= or connect=, in seconds.",
    "verify": "Write ca=, a file (PEM) of authorities.",
    **dict.fromkeys(
        ("user", "username", "password", "auth", "api_key"), "Write token=: services identify callers by a token."
    ),
}
"""Names that other libraries have for options."""
_NAME = re.compile(r"[^\s/:.]+")
"""Of a resource: nothing that stands in addresses and files."""


def connect(url: str | os.PathLike[str] | None = None, *, profile: str | None = None, **options: Any) -> Resource:
    """The data resource at ``http://host:port/name`` or ``http://host:port/resources/name``; the only one of the
    service at ``http://host:port``. The environment variable DAI_SERVER may say the service: then ``url`` is the name
    alone, or left out; so may a ``profile``, which has credentials too (``dai.client.credentials``: arguments, then the
    environment, then the profile file). ``options`` are those of ``Options``: token, ca, connect, read, retries, ….

    Raises UnreachableError where no service answers, NotFoundError with the nearest name, RequestError for what is no
    address.
    """
    base, name = parted(_address(url, profile))
    service = Service(base, _options("connect", base, options, profile))
    if name is not None:
        return service.resource(name)
    names = [str(each["name"]) for each in service.resources()]
    if len(names) != 1:
        listed = "\n".join(f"  {service.url}/{each}" for each in names)
        raise NotFoundError(
            f"{service.url} has {len(names)} resources; name one of them.",
            hint=listed or "It has none: see its configuration.",
        )
    return service.resource(names[0])


def find(
    text: str | None,
    url: str | None = None,
    *,
    kind: str | None = None,
    limit: int = 20,
    meanings: Mapping[str, str] | None = None,
    **options: Any,
) -> list[Match]:
    """What fits the text best in the registry at ``url`` (or DAI_SERVER); see ``dai.find``."""
    address = _address(url)
    client = RegistryClient(address, _options("find", address, options))
    try:
        return client.find(text, kind, limit, **(meanings or {}))
    finally:
        client.close()


def _options(function: str, address: str, options: dict[str, Any], profile: str | None = None) -> Options:
    known = [*(each.name for each in fields(Options)), "profile"]
    if unknown := next((each for each in options if each not in known), None):
        hint = _MEANT.get(unknown) or nearest(unknown, known)
        raise ParameterError(f"dai.{function} has no option {unknown!r}.", hint=hint)
    return Options(**options_for(address, options, profile))


def _address(url: str | os.PathLike[str] | None, profile: str | None = None) -> str:
    url = os.fspath(url) if url else None
    server = (profile and server_of(profile)) or os.environ.get("DAI_SERVER", "").rstrip("/") or server_of() or ""
    if url is None and not server:
        raise RequestError(
            "There is no address.", hint="Give it: dai.connect('http://host:8080/name'), or set DAI_SERVER."
        )
    if url is None:
        return server
    return f"{server}/resources/{quote(url, safe='')}" if server and _NAME.fullmatch(url) else url


def parted(url: str) -> tuple[str, str | None]:
    """Address of the service and name of the resource: what follows the last ``/resources/``, else the last step of the
    path."""
    if "://" not in url and os.path.exists(url):
        raise RequestError(
            f"{url!r} is a file, not the address of a data service.",
            hint=f"Serve it: dai serve {url}. Or without a service: dqp.connect({url!r}).",
        )
    if "://" not in url and url.lower().endswith(_FILES):
        raise RequestError(f"There is no file {url!r} here.", hint=f"Serve one that is there: dai serve {url}.")
    if "://" not in url:
        meant = f"127.0.0.1:8080{url}" if url.startswith("/") else url
        raise RequestError(f"{url!r} is not an address.", hint=f"Did you mean 'http://{meant}'?")
    parts = parts_of(url)
    head, found, rest = parts.path.rpartition("/resources/")
    if found and "/" in rest.strip("/") and parts.scheme in ("http", "https") and "@" not in parts.netloc:
        name = rest.strip("/").partition("/")[0]
        raise RequestError(
            "The address must end with the name of the resource.",
            hint=f"Did you mean '{parts.scheme}://{parts.netloc}{head}/{name}'?",
        )
    if "@" in parts.netloc and parts.scheme in ("http", "https"):
        raise RequestError(
            "The address has a user or a password, which would be printed with it.",
            hint="Give a token beside it: dai.connect(…, token=…), DAI_TOKEN, or ~/.config/dai/profiles.toml.",
        )
    path = parts.path.rstrip("/")
    before, separator, name = path.rpartition("/resources/")
    if not separator:
        before, _, name = path.rpartition("/")
        if name == "resources":
            name = ""
    return f"{parts.scheme}://{parts.netloc}{before}", unquote(name) or None
