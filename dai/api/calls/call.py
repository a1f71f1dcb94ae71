"""One HTTP request, checked against the operation it asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import parse_qsl

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from dai.api.calls.operations import Operation
from dai.api.monitoring.access import Access
from dai.api.service import Service
from dai.errors import (
    DataError,
    ParameterError,
    RequestError,
    SlowRequestError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from dai.plugins import nearest

BODY_STEP = 1 << 20
"""For each such part of a body a client has the time that the limit ``receive_seconds`` says."""
SMALL_BODY = 1 << 20
"""Bytes of a JSON or form body at most."""
FORM = "application/x-www-form-urlencoded"
LISTS = frozenset({b"accept", b"accept-encoding", b"if-none-match", b"prefer"})
"""Headers whose values are lists."""


class Call:
    """``path`` and ``query`` hold the declared parameters, converted and checked; what was not given is missing.

    ``rows``, ``stages`` and ``error`` are what the log and the metrics say.
    """

    def __init__(self, service: Service, scope: Scope, receive: Receive, send: Send) -> None:
        self.service, self.scope, self.receive, self.send = service, scope, receive, send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.operation: Operation | None = None
        self.path: dict[str, Any] = {}
        self.query: dict[str, Any] = {}
        self.access: Access = scope["state"]["access"]
        self.id = self.access.id

    @property
    def status(self) -> int:
        return self.access.status

    def header(self, name: bytes) -> str | None:
        """Several lines of one of ``LISTS`` are one list (RFC 9110 section 5.3); else the last line counts."""
        value = b", ".join(self.values(name)) or None if name in LISTS else self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def values(self, name: bytes) -> list[bytes]:
        """Of every header of that name; ``headers`` has the last."""
        return [value for each, value in self.scope["headers"] if each == name]

    @property
    def preferences(self) -> dict[str, str]:
        """What the client prefers (RFC 7240): values by their names in lower case, empty where there is none."""
        found: dict[str, str] = {}
        for each in filter(None, (self.header(b"prefer") or "").split(",")):
            name, _, value = each.partition(";")[0].partition("=")
            found.setdefault(name.strip().lower(), value.strip().strip('"'))
        return found

    def check(self, operation: Operation, path: Mapping[str, str]) -> None:
        """Converts the parameters. ParameterError for one that is unknown, missing, given twice, or does not fit;
        UnsupportedMediaTypeError for a body that is not said to be what the operation takes."""
        self.operation = operation
        if operation.body and self._has_body and not operation.takes(self.content_type):
            kind = f"is {self.content_type[:100]}" if self.content_type else "has no Content-Type"
            raise UnsupportedMediaTypeError(f"The body {kind}.", hint=f"Send {' or '.join(operation.body)}.")
        for name, text in path.items():
            self.path[name] = operation.parameter(name).value(text)
        known = operation.query_names
        for name, text in self._pairs():
            if name not in known:
                hint = nearest(name, list(known)) if known else "It takes none."
                raise ParameterError(f"This address takes no parameter {name!r}.", hint=hint)
            if name in self.query:
                raise ParameterError(f"The parameter {name!r} is given twice.")
            self.query[name] = known[name].value(text)
        for name, each in known.items():
            if each.required and name not in self.query:
                raise ParameterError(f"The parameter {name!r} is missing.", hint=f"It is {each.about}.")

    def _pairs(self) -> list[tuple[str, str]]:
        raw = self.scope["query_string"]
        if not raw:
            return []
        try:
            return parse_qsl(raw.decode("latin-1"), keep_blank_values=True, strict_parsing=True, errors="strict")
        except ValueError as error:
            raise ParameterError("The query part of the address cannot be read.") from error

    @property
    def _has_body(self) -> bool:
        return b"transfer-encoding" in self.headers or self.headers.get(b"content-length", b"0") != b"0"

    @property
    def content_type(self) -> str:
        """Media type of the body without parameters, in lower case; empty where it is not said."""
        return (self.header(b"content-type") or "").partition(";")[0].strip().lower()

    def body_size(self, limit: int) -> int:
        """Bytes that the body has as its head says, or ``limit`` where it does not say. TooLargeError beyond that."""
        length = self.headers.get(b"content-length")
        if length is None or not length.isdigit():
            return limit
        if int(length) > limit:
            raise TooLargeError(f"The body has {int(length):,} bytes; {limit:,} are allowed.")
        return int(length)

    async def body(self, limit: int) -> bytes:
        """The whole body. TooLargeError beyond ``limit`` bytes, SlowRequestError."""
        self.body_size(limit)
        began = asyncio.get_running_loop().time()
        message = await self._part(began, 0)
        if message["type"] == "http.request" and not message.get("more_body"):
            first: bytes = message.get("body", b"")
            if len(first) > limit:
                raise TooLargeError(f"The body has more than the {limit:,} bytes allowed.")
            return first
        parts, size = [], 0
        while True:
            if message["type"] != "http.request":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise TooLargeError(f"The body has more than the {limit:,} bytes allowed.")
            if not message.get("more_body"):
                return b"".join(parts)
            message = await self._part(began, size)

    async def _part(self, began: float, size: int) -> Message:
        """More of the body, of which ``size`` bytes are there."""
        seconds = self.service.config.limits.receive_seconds * (1 + size // BODY_STEP)
        try:
            async with asyncio.timeout_at(began + seconds):
                return await self.receive()
        except TimeoutError as error:
            raise SlowRequestError(
                f"Of the body {size:,} bytes came in {seconds:g} seconds.", hint="Send it in smaller parts."
            ) from error

    async def json(self, limit: int = SMALL_BODY, *, empty: Any = None) -> Any:
        """The body as JSON; ``empty`` stands for a missing one."""
        return self.parsed(await self.body(limit), empty)

    def parsed(self, body: bytes, empty: Any = None) -> Any:
        if not body and empty is not None:
            return empty
        try:
            return orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise DataError(f"The body is not JSON: {error}.") from error

    async def fields(self) -> dict[str, str]:
        """The body of a small form, or of a flat JSON object with text values; names in lower case."""
        body = await self.body(SMALL_BODY)
        if self.content_type in ("", FORM):
            try:
                text = body.decode()
                pairs = parse_qsl(text, keep_blank_values=True, strict_parsing=True, errors="strict") if text else []
            except ValueError as error:
                raise DataError("The form cannot be read.") from error
            return {name.lower(): value for name, value in pairs}
        values = self.parsed(body)
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            raise RequestError("The body must be a JSON object with text values.")
        return {name.lower(): value for name, value in values.items()}


class Sendable(Protocol):
    """An answer; ``send`` writes its head and body and notes both in the call."""

    async def send(self, call: Call) -> None: ...
