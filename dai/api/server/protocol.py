"""HTTP on a connection: uvicorn's protocol on llhttp, with bounds on what a client may send before it has a request.

- A head (request line and headers) has at most ``HEAD_BYTES``, and so have the trailers of a body in chunks. The parser
  sees no more of a longer one: it would join the pieces again and again.
- The next head must be there within ``receive_seconds`` from when the connection was opened or its first bytes came.
  Between requests a connection may be idle as long as uvicorn lets it. ``dai.api.requests.body`` limits how long a body
  takes.
- HTTP/1.0 knows no chunks: a body of unknown length ends with the connection. Where it breaks off the connection is
  reset, so that no client takes it for whole.
- Of requests that were sent before the answers to those before them (pipelining) MOST_WAITING wait. The connection ends
  after their answers; a client sends the others again (RFC 9112 section 9.3.2).
- What follows a head that asks for another protocol (``Upgrade``) is read as HTTP/1.1: the service speaks no other one.
- Trailers do not count as headers (RFC 9110 section 6.5.1): the caller is identified by the head alone.
- A connection whose next request belongs to another worker of the service moves there (``dai.api.workers``), with what
  was read of it; of one with TLS the plain side moves (``dai.api.server.relay``). Behind a request that is
  still being answered it cannot move: it is closed after that answer, as RFC 9112 section 9.3.2 allows, and the client
  sends its other requests again.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import struct
from functools import partial
from typing import Any, cast

import httptools
import orjson
from starlette.types import Receive, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.protocols.utils import is_ssl

from dai.api.problems import PROBLEM
from dai.api.requests.head import HEAD_BYTES, head_too_large
from dai.api.server.relay import relay
from dai.api.server.tls import extensions
from dai.api.workers.member import Member
from dai.errors import BusyError, DaiError, RequestError

log = logging.getLogger("dai.access")
HOLD_LITTLE = "dai.hold_little"
"""The extension of a scope by which an answer asks for small buffers."""

MOST_WAITING = 32
"""Requests of a connection that wait behind the one that is answered; each takes a hundred times its bytes."""
LARGE_BYTES = 1 << 16
"""A chunk of fewer bytes is copied sooner than it is sent in parts."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: closing resets the connection."""


def protocol(receive_seconds: float, member: Member | None = None) -> type[asyncio.Protocol]:
    """The class for a service whose limit that is, or for a worker of one."""
    if member is None:
        return type("Protocol", (_Protocol,), {"receive_seconds": receive_seconds})
    return type("WorkerProtocol", (_WorkerProtocol,), {"receive_seconds": receive_seconds, "member": member})


class _Protocol(HttpToolsProtocol):
    receive_seconds: float
    _unparsed = 0
    """Bytes since the parser last came to another part of a message."""
    _refused = False
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._extensions = extensions(transport)
        self.app = self._answer
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        self._unparsed += len(data)
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            if not self._refused:
                self.send_400_response("Invalid HTTP request received.")
        if self.transport.is_closing():
            return
        if self._unparsed > HEAD_BYTES:
            self._refuse(head_too_large())
        if not self._answering:
            self._await_head()

    def _parse(self, data: bytes) -> None:
        unread = memoryview(data)
        while True:
            try:
                self.parser.feed_data(unread)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":  # it is answered already: nobody here is a tunnel
                    return
                # the parser takes what follows, be it a body, for the other protocol: it gets the head without that
                lines = [b"%s: %s\r\n" % each for each in self.headers if each[0] != b"upgrade"]
                first = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self.parser.feed_data(b"%s %s HTTP/%s\r\n%s\r\n" % (*first, b"".join(lines)))
                unread = unread[upgrade.args[0] :]

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def on_message_begin(self) -> None:
        self._unparsed = 0
        super().on_message_begin()
        cast(Any, self.scope)["extensions"] = {**self._extensions, HOLD_LITTLE: self._hold_little}

    def on_headers_complete(self) -> None:
        self._unparsed = 0
        self._stop_waiting()
        if self._is_upgrade:
            return
        if len(self.pipeline) >= MOST_WAITING:
            self._refused, self.cycle.keep_alive = True, False
            raise BusyError("Too many requests are waiting on this connection.")  # the parser stops
        super().on_headers_complete()
        self.headers = []

    def on_body(self, body: bytes) -> None:
        self._unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._unparsed = 0
        if not self._is_upgrade:
            super().on_message_complete()

    @property
    def _is_upgrade(self) -> bool:
        """Whether the head is one that the parser will get again, see ``_parse``."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _hold_little(self, size: int) -> None:
        """From now on about so many bytes of answers wait here, and as many in the system, for a slow client."""
        self.transport.set_write_buffer_limits(high=size)
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, size)

    def _await_head(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(self.receive_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, error: DaiError) -> None:
        """Answers at once. What still comes is dropped for a while: the client may read the answer after it has sent
        all."""
        self._refused = True
        if self._answering:
            # trailers that are too long, or what follows a request that is being answered
            self.transport.close()
            return
        id = secrets.token_hex(8)
        body = orjson.dumps(error.problem(id))
        head = (
            f"content-type: {PROBLEM}\r\ncontent-length: {len(body)}\r\nx-request-id: {id}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[error.status] + head.encode() + body)
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:  # TLS
            self.transport.close()
        log.info("request refused", extra={"id": id, "status": error.status, "error": error.code})

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        """The application's answer; one that breaks off ends the connection. The application has logged that: uvicorn
        is not to log an error of its own each time."""
        cycle: RequestResponseCycle = cast(Any, send).__self__
        in_chunks = scope["http_version"] != "1.0"
        try:
            answer = _uncopied(cycle) if in_chunks else _without_chunks(cycle)
            await self.config.loaded_app(
                scope, receive, _ending(cycle, answer) if cycle.waiting_for_100_continue else answer
            )
        finally:
            if cycle.response_started and not cycle.response_complete and not cycle.disconnected:
                cycle.disconnected = True
                if in_chunks:
                    self.transport.close()
                else:
                    self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                    self.transport.abort()


class _WorkerProtocol(_Protocol):
    member: Member
    handed = b""
    """What another worker has read of this connection."""
    origin = b""
    """Of a connection whose TLS another worker has, JSON: addresses of ``client`` and ``server``, ``extensions``."""
    _relaying: asyncio.Future[None] | None = None
    _read = b""
    """What came since the head of the next request began."""
    _in_head = _at_start = True
    _behind = False
    """The head began behind another request, in the middle of what came."""
    _target: int | None = None
    _closing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self.origin:
            origin = orjson.loads(self.origin)
            self.client, self.server = (tuple(origin[each] or ()) or None for each in ("client", "server"))
            self.scheme, self._extensions = "https", origin["extensions"]
        self.member.table.set("connections", len(self.connections))
        if self.handed:  # before anything else is read
            self.data_received(self.handed)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.member.table.set("connections", len(self.connections))

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._at_start = self._in_head
        if self._in_head:
            self._read += data
        super().data_received(data)
        if self._target is not None and not self._closing:
            self._leave(self._target)

    def on_message_begin(self) -> None:
        self._behind = not self._at_start
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._is_upgrade:  # it comes again, from the same place
            super().on_headers_complete()
            return
        self._at_start = False
        if self._target is None:
            self._target = self.member.elsewhere(self.url)
        if self._target is None:
            self._in_head, self._read, self._behind = False, b"", False
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._at_start = False
        if self._target is None:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._target is None:
            super().on_message_complete()
            self._in_head = True

    def _leave(self, worker: int) -> None:
        if self._answering:
            self._closing, self.cycle.keep_alive = True, False
        elif self._behind or self._unsent:
            self._closing = True
            self.transport.close()
        else:
            try:
                self._move(worker, self._read)
            except DaiError as error:
                self._refuse(error)

    @property
    def _unsent(self) -> bool:
        """Not of TLS, whose transport stays: bytes of the handshake may wait there and leave before what is relayed."""
        return not is_ssl(self.transport) and self.transport.get_write_buffer_size() > 0

    def shutdown(self) -> None:
        if self._relaying is None:  # otherwise the worker that answers ends the connection
            super().shutdown()

    def _move_with(self, worker: int, request: bytes) -> None:
        """Hands over a request that was read, and what has come of the next head; not where the beginning of that came
        with the end of the request."""
        if self._behind:
            raise _busy()
        self._move(worker, request + self._read)

    def _move(self, worker: int, read: bytes) -> None:
        """Hands the connection over. BusyError where that is not possible now."""
        self.flow.pause_reading()  # what still comes is for the other worker
        if self.pipeline:
            raise _busy()
        if is_ssl(self.transport):
            self._move_plain_side(worker, read)
        else:
            connection = self.transport.get_extra_info("socket")
            if not self.member.peers.move(worker, connection.fileno(), read, self.origin):
                raise _busy()
            self.transport.abort()
        self._closing = True
        self._stop_waiting()
        if self.cycle is not None:
            self.cycle.disconnected = True

    def _move_plain_side(self, worker: int, read: bytes) -> None:
        if self.parser.get_http_version() == "1.0":
            # the end of a connection is the end of its answers; a relay does not see which ends are broken ones
            raise RequestError(
                "Another process of the service must answer this request, and cannot take one of HTTP/1.0 with TLS.",
                hint="Use HTTP/1.1.",
            )
        near, far = socket.socketpair()
        origin = orjson.dumps({"client": self.client, "server": self.server, "extensions": self._extensions})
        with far:
            if not self.member.peers.move(worker, far.fileno(), read, origin):
                near.close()
                raise _busy()
        self._relaying = asyncio.ensure_future(relay(self.transport, near, partial(self.connection_lost, None)))

    async def _answer(self, scope: Any, receive: Receive, send: Send) -> None:
        scope["state"]["move"] = self._move_with
        await super()._answer(scope, receive, send)


def _busy() -> BusyError:
    return BusyError(
        "The process of the service that must answer this request takes none at the moment.", retry_after=1
    )


def _ending(cycle: RequestResponseCycle, answer: Send) -> Send:
    """For a body that the client holds back until it is asked for (``Expect``): answered without that, the connection
    ends, since nobody knows whether what comes then is the body or the next request (RFC 9110 section 10.1.1)."""

    async def send(message: Any) -> None:
        if cycle.waiting_for_100_continue:
            cycle.keep_alive = False
        await answer(message)

    return send


def _uncopied(cycle: RequestResponseCycle) -> Send:
    """``cycle.send``, which would copy a large chunk to put its size in front of it."""

    async def send(message: Any) -> None:
        body = message.get("body", b"")
        if cycle.chunked_encoding and len(body) >= LARGE_BYTES:
            nothing: Any = {**message, "body": b"", "more_body": True}
            await cycle.send(nothing)  # waits for room
            if not cycle.disconnected:
                cycle.transport.writelines([b"%x\r\n" % len(body), body, b"\r\n"])
            if message.get("more_body"):
                return
            message = {**message, "body": b""}
        await cycle.send(message)

    return send


def _without_chunks(cycle: RequestResponseCycle) -> Send:
    """``cycle.send`` for a client of HTTP/1.0."""

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            if not any(name == b"content-length" for name, _ in message["headers"]):
                cycle.chunked_encoding = False
        else:
            cycle.expected_content_length = max(cycle.expected_content_length, len(message.get("body", b"")))
        await cycle.send(message)

    return send
