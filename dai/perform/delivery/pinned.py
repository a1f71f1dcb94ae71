"""A proxy for a library that resolves names and follows redirects by itself: whatever host it asks for, its connections
lead to the one address that was checked."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

from dai.perform.delivery.calls import BLOCK_BYTES


class Proxy:
    """Listens on loopback inside its context, for HTTP, or for TLS that its client tunnels (CONNECT, RFC 9110)."""

    def __init__(self, number: str, port: int, tls: bool, silence: float) -> None:
        self._target, self._tls, self._silence = (number, port), tls, silence
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: set[socket.socket] | None = {self._listener}
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            sockets, self._sockets = self._sockets or (), None
            for each in sockets:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self._listener.accept()[0]
                threading.Thread(target=self._carry, args=(near,), name="proxy", daemon=True).start()

    def _carry(self, near: socket.socket) -> None:
        with suppress(OSError), near, socket.create_connection(self._target, self._silence) as far:
            far.settimeout(None)
            with self._lock:
                if self._sockets is None:
                    return
                self._sockets |= {near, far}
            try:
                if self._tls:
                    with near.makefile("rb", buffering=0) as head:
                        while len(head.readline(BLOCK_BYTES)) > 2:
                            continue
                    near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=_copy, args=(far, near), name="proxy", daemon=True)
                back.start()
                _copy(near, far)
                back.join()
            finally:
                with self._lock:
                    if self._sockets is not None:
                        self._sockets -= {near, far}


def _copy(source: socket.socket, target: socket.socket) -> None:
    buffer = memoryview(bytearray(BLOCK_BYTES))
    with suppress(OSError):
        while size := source.recv_into(buffer):
            target.sendall(buffer[:size])
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)
