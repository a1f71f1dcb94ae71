"""A data service with scripted answers, for tests of programs that use the client.

::

    with ScriptedServer(Scripted(body=b"a,b\\n1,2\\n", headers={"Content-Type": "text/csv"})) as server:
        dai.client.Service(server.url)…
        assert server.requests[0].target == "/resources/data/query"
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it arrived; names of headers in lower case."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Scripted:
    """A reply. ``body``: bytes go with their length, an iterable in chunks. ``broken``: the connection is closed before
    the end of the body (or before the status line, without a ``status``); ``held``: nothing more is sent until the
    client has gone, which sets ``ScriptedServer.abandoned``."""

    status: int = 200
    body: bytes | Iterable[bytes] = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    broken: bool = False
    held: bool = False


Answer = Scripted | Callable[[Request], Scripted]


class ScriptedServer:
    """Answers requests with ``answers`` in their order, the last one for ever; on a free port of loopback."""

    def __init__(self, *answers: Answer) -> None:
        self._answers = list(answers)
        self._lock = threading.Lock()
        self.requests: list[Request] = []
        self.connections = 0
        self.abandoned = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                server.connections += 1
                super().setup()

            def parse_request(self) -> bool:
                # Every method comes here, whatever it is called.
                if super().parse_request():
                    server._serve(self)
                return False

            def log_message(self, format: str, *args: Any) -> None:
                """Says nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Request(handler.command, handler.path, headers, body)
        with self._lock:
            self.requests.append(request)
            answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        reply = answer if isinstance(answer, Scripted) else answer(request)
        try:
            self._answer(handler, reply)
        except ConnectionError:
            self.abandoned.set()
            handler.close_connection = True

    def _answer(self, handler: BaseHTTPRequestHandler, reply: Scripted) -> None:
        if reply.broken:
            handler.close_connection = True
        if not reply.status:
            return
        handler.send_response(reply.status)
        for name, value in reply.headers.items():
            handler.send_header(name, value)
        if isinstance(reply.body, bytes):
            handler.send_header("Content-Length", str(len(reply.body) + reply.broken))
            handler.end_headers()
            handler.wfile.write(reply.body)
        else:
            handler.send_header("Transfer-Encoding", "chunked")
            handler.end_headers()
            for piece in reply.body:
                handler.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            if reply.held:
                handler.rfile.read(1)
                self.abandoned.set()
                handler.close_connection = True
            elif not reply.broken:
                handler.wfile.write(b"0\r\n\r\n")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
