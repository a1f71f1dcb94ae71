"""The streams of sessions of other services: blocks by their numbers, as clients push and pull them.

What is sent again after a lost reply is the same block, so none is lost or comes twice.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Self
from urllib.parse import quote

from dai.config import Config
from dai.errors import (
    BackPressureError,
    ClosedError,
    DaiError,
    DataError,
    GoneError,
    InternalError,
    LimitError,
    ParameterError,
    TruncatedError,
    UnreachableError,
    by_code,
)
from dai.formats import FORMATS
from dai.formats.frames import MEDIA_TYPE, pushed
from dai.perform.delivery.addresses import allowed, is_loopback
from dai.perform.delivery.http import Call, authorization, check_status
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block

DOCUMENTS = {"Accept": ", ".join((*(each.media_type for each in FORMATS.values()), "*/*;q=0.5"))}
"""Bytes as they were written, not frames of them."""
HELD = 20
"""Seconds that the other service may hold a request at most."""
PAUSES = (0.0, 0.1, 0.2, 0.4)
"""Seconds before a request that got no reply is sent again."""
ABANDON_SECONDS = 2.0
_SESSION = re.compile(r"/sessions/[^/?]+/?$")


class RemoteStream:
    """A stream of a session of another service; a context manager. Leaving it before its ``done`` ends the stream there
    too: its reader gets an error, its producer stops."""

    def __init__(self, url: str, stream: str, direction: str, config: Config, cancellation: Cancellation) -> None:
        self._config, self._cancellation = config.delivery, cancellation
        address = allowed(url, self._config)
        if not _SESSION.search(address.path) or address.query or address.scheme not in ("http", "https"):
            raise ParameterError(
                "The URL does not name a session of a service.", hint="It looks like http://host:port/sessions/ID."
            )
        self._session = replace(address, path=address.path.rstrip("/"))
        self._name, self._direction = stream, direction
        self._path = f"{self._session.path}/streams/{quote(stream, safe='')}"
        self._most = 2 * config.limits.block_bytes  # a stream holds that of a limit, and one block
        self._stack = ExitStack()
        self._call: Call | None = None
        self._producer = uuid.uuid4().hex
        self._began = self.done = False
        self._said: dict[str, Any] | None = None
        self.wait = max(1, min(HELD, int(self._config.silence / 2)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._disconnect()
        if self._began and not self.done:
            self.done = True
            with suppress(DaiError):  # the first failure counts
                self._config = replace(self._config, seconds=ABANDON_SECONDS, silence=ABANDON_SECONDS)
                self._cancellation = Cancellation(self._cancellation.span)
                producer = f"&producer={self._producer}" if self._direction == "input" else ""
                self._once("DELETE", f"{self._path}?direction={self._direction}{producer}", b"", {})
            self._disconnect()

    def _disconnect(self) -> None:
        self._call = None
        self._stack.close()

    def _connected(self) -> Call:
        if self._call is None:
            self._call = self._stack.enter_context(Call(self._session, self._config, self._cancellation))
        return self._call

    def forms(self) -> list[str]:
        """The media types that the reader takes, whatever the form; none where only the bytes count."""
        with suppress(ValueError, TypeError, KeyError, RecursionError):
            for each in self._described()["streams"]:
                if (each["name"], each["direction"]) == (self._name, self._direction):
                    return [str(form) for form in each["forms"]]
        return []

    def _described(self) -> dict[str, Any]:
        """The other service's description of the session."""
        if self._said is None:
            _, _, content = self._ask("GET", self._session.path)
            self._said = {}
            with suppress(ValueError, TypeError, RecursionError):
                self._said = dict(json.loads(content))
        return self._said

    def push(self, blocks: Iterator[Block], media_type: str) -> None:
        """All blocks; returns when the reader has taken the last one. Over a network tuples travel compressed with the
        static part of their document, where the other service reads such frames (decision 49)."""
        number, static = 0, b""
        frames = not is_loopback(self._session.host) and self._described().get("frames") is True
        for number, block in enumerate(blocks, 1):
            headers = {"Content-Type": media_type, "X-Block-Rows": str(block.rows)}
            path = f"{self._path}/blocks/{number - 1}?producer={self._producer}&wait={self.wait}"
            static = static or block.static
            frame = pushed(block, number - 1, static) if frames else None
            if frame is not None:
                headers["Content-Type"] = MEDIA_TYPE
            self._put(path, memoryview(block.data) if frame is None else frame, headers)
        path = f"{self._path}/blocks/{number}?producer={self._producer}&wait={self.wait}&last=true&taken=true"
        while self._put(path, b"", {}) == 202:
            self._connected().check()
        self.done = True

    def _put(self, path: str, data: bytes | memoryview, headers: dict[str, str]) -> int:
        """Sends the block until there is room for it."""
        patience = time.monotonic() + self._config.silence
        while True:
            status, answered, _ = self._ask("PUT", path, data, headers)
            if status not in (429, 503):
                return status
            if time.monotonic() > patience:
                raise BackPressureError(
                    f"The reader of the stream {self._name!r} at {self._session.host!r} made no room for a block for "
                    f"{self._config.silence:g} seconds.",
                    hint="Is there an inputStream of that name in the session?",
                )
            self._connected().pause(min(max(1, _number(answered.get("Retry-After"), 1)), 5))

    def pull(self, count: int) -> Iterator[Block]:
        """All blocks, ``count`` a request; each request acknowledges those before."""
        number = 0
        while True:
            path = f"{self._path}/blocks/{number}?wait={self.wait}&count={count}"
            status, headers, content = self._ask("GET", path, headers=DOCUMENTS)
            if status == 204:
                self.done = True
                return
            if status == 202:
                self._connected().check()
                continue
            yield Block(content, _number(headers.get("X-Block-Rows"), 0))
            number += _number(headers.get("X-Dai-Blocks"), 1)

    def _ask(
        self, method: str, path: str, body: bytes | memoryview = b"", headers: dict[str, str] | None = None
    ) -> tuple[int, Any, bytes]:
        """The reply: status, headers, body. Sent again where none came: each request may be repeated."""
        self._began = True
        for pause in PAUSES:
            try:
                return self._once(method, path, body, headers or {})
            except (UnreachableError, TruncatedError):
                self._connected().hang_up()
                self._connected().pause(pause)
        return self._once(method, path, body, headers or {})

    def _once(
        self, method: str, path: str, body: bytes | memoryview, headers: dict[str, str]
    ) -> tuple[int, Any, bytes]:
        call = self._connected()
        span = self._cancellation.span
        headers = {
            "Accept-Encoding": "identity",
            **authorization(self._session, self._config),
            **(span.headers if span is not None else {}),
            **headers,
        }
        with call.translated():
            call.connection.request(method, path, body or None, headers)
            response = call.connection.getresponse()
            content = response.read(self._most + 1)
            if len(content) > self._most:
                raise LimitError(
                    f"A block of {self._session.host!r} has more than {self._most:,} bytes.", limit="limits.block_bytes"
                )
            if response.length:
                raise TruncatedError(f"{self._session.host!r} broke off its answer.")
        if response.status in range(300, 400):
            check_status(response, self._session)
        if response.status >= 300 and response.status not in (429, 503):
            self.done = self.done or response.status in (404, 410)
            raise self._refused(response.status, content)
        return response.status, response.headers, content

    def _refused(self, status: int, content: bytes) -> DaiError:
        """The other service's error as an error of the same class."""
        problem: dict[str, Any] = {}
        with suppress(ValueError, TypeError, RecursionError):
            problem = dict(json.loads(content))
        kind = GoneError if status in (404, 410) else by_code(str(problem.get("type", "")))
        if kind in (DaiError, InternalError, ClosedError):
            kind = DataError
        said = str(problem.get("detail") or f"the status {status}")[:500]
        what = f"The stream {self._name!r} at {self._session.host!r} answered: {said}"
        try:
            return kind(what)
        except TypeError:  # a kind that needs to know more
            return DataError(what)


def _number(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else otherwise
