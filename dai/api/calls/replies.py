"""Answers that are known in full before they are sent."""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import orjson

from dai.api.calls.call import Call
from dai.api.problems import PROBLEM, headers_of
from dai.api.requests.negotiation import accepts_xml
from dai.errors import DaiError, RangeError
from dai.perform.graph import Dialect
from dai.perform.response import MEDIA_TYPE, failure

JSON = "application/json"
FILE_PIECE = 1 << 20
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


class Reply:
    """Status, headers and a body in memory."""

    __slots__ = ("body", "headers", "status")

    def __init__(
        self, body: bytes = b"", media_type: str | None = None, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        self.status, self.body = status, body
        self.headers: list[tuple[bytes, bytes]] = []
        if media_type is not None:
            self.headers.append((b"content-type", media_type.encode()))
        if headers:
            self.headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]

    async def send(self, call: Call) -> None:
        headers = [*self.headers]
        if self.status not in (204, 304):
            headers.append((b"content-length", str(len(self.body)).encode()))
        await call.send({"type": "http.response.start", "status": self.status, "headers": headers})
        await call.send({"type": "http.response.body", "body": self.body})


def json_reply(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Reply:
    """``value`` as orjson writes it."""
    return Reply(orjson.dumps(value), JSON, status, headers)


def problem_reply(call: Call, error: DaiError, dialect: Dialect | None = None) -> Reply:
    """A problem document; or a response document for a perform request (``dialect``) that asked for XML."""
    call.access.error = error
    headers = headers_of(error)
    if dialect is not None and accepts_xml(call.header(b"accept")):
        return Reply(failure(error, dialect, call.id), MEDIA_TYPE, error.status, headers)
    body = orjson.dumps(error.problem(call.id), default=str)
    return Reply(body, PROBLEM, error.status, headers)


class FileReply:
    """A whole, immutable file, or the part of it that ``Range`` asks for (RFC 9110 section 14; several ranges at once
    are answered with the whole). ``etag`` without its quotes. RangeError for a range outside of it."""

    def __init__(self, call: Call, path: Path, media_type: str, etag: str) -> None:
        self._file = path.open("rb")
        self._length = os.fstat(self._file.fileno()).st_size
        quoted = f'"{etag}"'
        self._headers = {
            "content-type": media_type,
            "etag": quoted,
            "accept-ranges": "bytes",
            "vary": "Accept",
        }
        self.status, self._first, self._last = 200, 0, self._length - 1
        try:
            known = call.header(b"if-none-match")
            if known is not None and (known.strip() == "*" or quoted in (each.strip() for each in known.split(","))):
                self.status = 304
            elif (asked := call.header(b"range")) is not None and call.header(b"if-range") in (None, quoted):
                self._narrow(asked)
        except BaseException:
            self._file.close()
            raise

    def _narrow(self, asked: str) -> None:
        found = _RANGE.fullmatch(asked.strip())
        if found is None or found.groups() == ("", ""):
            return
        first, last = found.groups()
        if first:
            start, end = int(first), min(int(last), self._length - 1) if last else self._length - 1
            if last and int(last) < start:
                return
        else:
            start, end = max(0, self._length - int(last)), self._length - 1
        if start >= self._length or end < start:
            raise RangeError(
                f"The result has {self._length:,} bytes; there are none at {asked!r}.", length=self._length
            )
        self.status, self._first, self._last = 206, start, end
        self._headers["content-range"] = f"bytes {start}-{end}/{self._length}"

    async def send(self, call: Call) -> None:
        with self._file as file:
            left = self._last - self._first + 1
            if self.status != 304:
                self._headers["content-length"] = str(left)
            headers = [(name.encode(), value.encode("latin-1")) for name, value in self._headers.items()]
            await call.send({"type": "http.response.start", "status": self.status, "headers": headers})
            if self.status == 304 or call.scope["method"] == "HEAD":
                await call.send({"type": "http.response.body", "body": b""})
                return
            file.seek(self._first)
            loop = asyncio.get_running_loop()
            while True:
                piece = await loop.run_in_executor(call.service.files, file.read, min(left, FILE_PIECE))
                left -= len(piece)
                await call.send({"type": "http.response.body", "body": piece, "more_body": left > 0})
                if left <= 0 or not piece:
                    return
