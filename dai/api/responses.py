"""Answers of ours: JSON as orjson writes it, and kept files."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from dai.api.requests.head import listed
from dai.errors import PreconditionError, RangeError

FILE_PIECE = 1 << 20
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class JSONAnswer(JSONResponse):
    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


def answer(body: bytes, media_type: str, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Bytes of exactly that media type: Starlette's own parameter would add a charset to those of text."""
    return Response(body, status, {"content-type": media_type, **(headers or {})})


def _names(tags: str | None, tag: str) -> bool:
    """Whether a list of them, or ``*``, names the tag."""
    return tags is not None and (tags.strip() == "*" or tag in (each.strip() for each in tags.split(",")))


class KeptFile(Response):
    """A whole, immutable file, or the part of it that ``Range`` asks for (RFC 9110 section 14; several ranges at once
    are answered with the whole). ``etag`` without its quotes. RangeError for a range outside of it, PreconditionError
    where ``If-Match`` names other ones.

    Starlette's FileResponse opens the file only when the head has left; ours may have been removed by then."""

    def __init__(self, request: Request, path: Path, media_type: str, etag: str) -> None:
        quoted = f'"{etag}"'
        super().__init__(
            headers={"content-type": media_type, "etag": quoted, "accept-ranges": "bytes", "vary": "Accept"}
        )
        self._threads: Executor = request.app.state.service.files
        self._file = path.open("rb")
        self._length = os.fstat(self._file.fileno()).st_size
        self._first, self._last = 0, self._length - 1
        try:
            if not _names(listed(request, "if-match") or "*", quoted):
                raise PreconditionError(f"The result has the ETag {quoted}; If-Match names others.")
            if _names(listed(request, "if-none-match"), quoted):
                self.status_code = 304
            elif (range_header := request.headers.get("range")) and request.headers.get("if-range") in (None, quoted):
                self._narrow(range_header)
        except BaseException:
            self._file.close()
            raise

    def _narrow(self, range_header: str) -> None:
        part = _RANGE.fullmatch(range_header.strip())
        if part is None or part.groups() == ("", ""):
            return
        first, last = part.groups()
        if first:
            start, end = int(first), min(int(last), self._length - 1) if last else self._length - 1
            if last and int(last) < start:
                return
        else:
            start, end = max(0, self._length - int(last)), self._length - 1
        if start >= self._length or end < start:
            raise RangeError(
                f"The result has {self._length:,} bytes; the range {range_header!r} is outside.", length=self._length
            )
        self.status_code, self._first, self._last = 206, start, end
        self.headers["content-range"] = f"bytes {start}-{end}/{self._length}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file as file:
            left = self._last - self._first + 1
            if self.status_code == 304:
                del self.headers["content-length"]
                left = 0
            else:
                self.headers["content-length"] = str(left)
            if scope["method"] == "HEAD":
                left = 0
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            file.seek(self._first)
            read = partial(asyncio.get_running_loop().run_in_executor, self._threads, file.read)
            while left > 0 and (piece := await read(min(left, FILE_PIECE))):
                left -= len(piece)
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            if left <= 0:
                await send({"type": "http.response.body", "body": b""})
