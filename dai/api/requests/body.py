"""Bodies of requests: read as they come, within the limits on their size and on the time they take."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from dai.api.requests.parameters import M, fields, pairs
from dai.errors import DataError, RequestError, SlowRequestError, TooLargeError

BODY_STEP = 1 << 20
"""A client has ``receive_seconds`` of the limits for each such part of a body."""
SMALL_BODY = 1 << 20
"""Bytes of a JSON or form body at most."""
FORM = "application/x-www-form-urlencoded"
JSON = "application/json"


def takes(content: Mapping[str, Mapping[str, Any] | None], *, required: bool = True) -> dict[str, Any]:
    """For ``openapi_extra=`` of a route: the media types of its body, with their JSON schemas. Others are refused."""
    media = {media_type: {} if schema is None else {"schema": schema} for media_type, schema in content.items()}
    return {"requestBody": {"required": required, "content": media}}


def content_type(request: Request) -> str:
    """Media type of the body without parameters, in lower case; empty if the request does not have it."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def block_rows(request: Request) -> int:
    """How many rows the block in the body has, as its header says; 0 if the request does not have it."""
    rows = request.headers.get("x-block-rows", "")
    return int(rows) if rows.isascii() and rows.isdigit() and len(rows) < 10 else 0


class Body:
    """Of a request to the service that ``request.app.state`` has."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._seconds: float = request.app.state.service.config.limits.receive_seconds

    def size(self, limit: int) -> int:
        """Bytes of the body by the request's head, or ``limit`` if the head does not say. TooLargeError beyond that."""
        length = self._request.headers.get("content-length", "")
        if not length.isdigit():
            return limit
        if int(length) > limit:
            raise TooLargeError(f"The body has {int(length):,} bytes; {limit:,} are allowed.")
        return int(length)

    async def read(self, limit: int = SMALL_BODY) -> bytes:
        """The whole body. TooLargeError beyond ``limit`` bytes, SlowRequestError, ClientDisconnect."""
        self.size(limit)
        began = asyncio.get_running_loop().time()
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._part(began, size)
            if message["type"] != "http.request":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise TooLargeError(f"The body has more than the {limit:,} bytes allowed.")
            if not message.get("more_body"):
                return b"".join(parts)

    async def _part(self, began: float, size: int) -> Message:
        """More of the body, of which ``size`` bytes are there."""
        seconds = self._seconds * (1 + size // BODY_STEP)
        try:
            async with asyncio.timeout_at(began + seconds):
                return await self._request.receive()
        except TimeoutError as error:
            raise SlowRequestError(
                f"Only {size:,} bytes of the body arrived in {seconds:g} seconds.", hint="Send it in smaller parts."
            ) from error

    async def fields(self, model: type[M]) -> M:
        """The body of a small form, or of a flat JSON object with text values; its names in any case."""
        body = await self.read()
        if content_type(self._request) in ("", FORM):
            try:
                values = dict(pairs(body)) if body else {}
            except ValueError as error:
                raise DataError("The form cannot be read.") from error
        else:
            try:
                values = orjson.loads(body)
            except orjson.JSONDecodeError as error:
                raise DataError(f"The body is not JSON: {error}.") from error
            if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
                raise RequestError("The body must be a JSON object with text values.")
        return fields(model, {name.upper(): value for name, value in values.items()})
