"""A place on the way to a service at which its answers can be held: so a test is at one point of a query, for sure."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from tests.servers import free_port

CHUNK = 1 << 16


@dataclass(eq=False)
class _Hold:
    """Answers to requests with all of ``words`` are held when together they have ``after`` bytes; not those to a
    question for the types of columns alone."""

    words: tuple[bytes, ...]
    after: int
    reached: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    passed: int = 0

    def holds(self, request: bytes) -> bool:
        return all(each in request for each in self.words) and b"LIMIT 0" not in request


class Gate:
    """Passes on what it gets, on a port of its own. Closing it ends its connections."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._listening = socket.create_server(("127.0.0.1", free_port()))
        self.port: int = self._listening.getsockname()[1]
        self._lock = threading.Lock()
        self._hold: _Hold | None = None
        self._sockets: set[socket.socket] = set()
        self._accepting = threading.Thread(target=self._accept, name="gate", daemon=True)
        self._accepting.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.open()
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        with self._lock:
            sockets = list(self._sockets)
        for each in sockets:
            _end(each)
        self._accepting.join()

    def shut(self, *words: str, after: int = 0) -> threading.Event:
        """From now on; the event is set when answers are held."""
        self._hold = _Hold(tuple(each.encode() for each in words), after)
        return self._hold.reached

    def open(self) -> None:
        """What was held goes on."""
        hold, self._hold = self._hold, None
        if hold is not None:
            hold.over.set()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self._target), timeout=5)
            except OSError:
                _end(client)
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._sockets |= {client, server}
            asked: list[_Hold | None] = [None]
            for work in (self._up, self._down):
                threading.Thread(target=work, args=(client, server, asked), name="gate", daemon=True).start()

    def _up(self, client: socket.socket, server: socket.socket, asked: list[_Hold | None]) -> None:
        with suppress(OSError):
            while data := client.recv(CHUNK):
                hold = self._hold
                asked[0] = hold if hold is not None and hold.holds(data) else None
                server.sendall(data)
        _end(client)
        _end(server)

    def _down(self, client: socket.socket, server: socket.socket, asked: list[_Hold | None]) -> None:
        with suppress(OSError):
            while data := server.recv(CHUNK):
                hold = asked[0]
                if hold is not None:
                    with self._lock:
                        hold.passed += len(data)
                        held = hold.passed > hold.after
                    if held:
                        hold.reached.set()
                        hold.over.wait()
                client.sendall(data)
        _end(client)
        _end(server)
        with self._lock:
            self._sockets -= {client, server}
        client.close()
        server.close()


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
