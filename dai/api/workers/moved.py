"""Moves a request whose body shows that it belongs to another worker there, with the part of the body that was read."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_OF_BODY = frozenset({b"content-length", b"transfer-encoding", b"expect"})


class Moved(Response):
    """Hands the connection over, in place of an answer."""

    def __init__(self, request: Request, worker: int, body: bytes) -> None:
        self.background = None
        received = request.state.access.received
        self._request, self._worker, self._body = request, worker, body if received is None else received

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        query = b"?" + scope["query_string"] if scope["query_string"] else b""
        lines = [
            b"%s %s%s HTTP/%s" % (scope["method"].encode(), scope["raw_path"], query, scope["http_version"].encode())
        ]
        lines += [b"%s: %s" % each for each in scope["headers"] if each[0] not in _OF_BODY]
        lines += [b"content-length: %d" % len(self._body), b"", self._body]
        access = self._request.state.access
        if access.forget is not None:
            access.forget()
        self._request.state.move(self._worker, b"\r\n".join(lines))
        access.moved = True
