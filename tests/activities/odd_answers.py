"""A server on the web whose answers are odd, by their path."""

import itertools
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Quiet(ThreadingHTTPServer):
    """A client that goes away is no error here."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


class Handler(BaseHTTPRequestHandler):
    """What the tests are told of: files in memory, and every way to misbehave."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    files: dict[str, bytes]

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        data = bytearray()
        while size := int(self.rfile.readline() or b"-1", 16):
            data += self.rfile.read(max(0, size))
            self.rfile.readline()
            if size < 0 or self.path == "/in/full":
                self.close_connection = True
                return
        self.rfile.readline()
        if self.path != "/in/error":
            self.server.files[self.path] = bytes(data)  # type: ignore[attr-defined]
        self._answer(500 if self.path == "/in/error" else 201, b"")

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if self.path.startswith("/in/redirect"):
            self.send_response(302)
            self.send_header("Location", "/in/file")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif self.path == "/in/short":
            self.send_response(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"x" * 10)
            self.close_connection = True
        elif self.path == "/in/cut":
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.write(b"a\r\n0123456789\r\n64\r\nabc")
            self.close_connection = True
        elif self.path == "/in/endless":
            self.send_response(200)
            self.end_headers()
            for _ in itertools.count():
                try:
                    self.wfile.write(b"x" * 1000)
                except OSError:
                    return
        elif self.path == "/in/silent":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"x")
            self.server.silent.set()  # type: ignore[attr-defined]
            self.rfile.read(1)
        elif (data := self.server.files.get(self.path)) is not None:  # type: ignore[attr-defined]
            self._answer(200, data)
        else:
            self._answer(404, b"the page of an error")

    def _answer(self, status: int, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Content-Type", "text/csv")
        self.end_headers()
        self.wfile.write(data)
