"""One connection to a service: small requests in one piece, replies that nobody waits for."""

from __future__ import annotations

import contextlib
import http.client
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

SMALL_BODY = 1 << 16
OWED_SECONDS, MOST_OWED_SECONDS = 0.05, 1.0
"""To wait for a reply that nobody wants to know: as long as this connection took to open, but so long at least, and at
most. Then another connection is opened."""
HERE_SECONDS = 0.001
"""For a reply that is there already."""


class Connection(http.client.HTTPConnection):
    """Sends head and body of a small request together: one system call, and the service wakes up once."""

    opening = 0.0
    """Seconds that it took to open."""
    owed = False
    """Whether its last request has a reply that nobody waited for."""
    _held: list[Any] | None = None
    _open: socket.socket | None = None

    def connect(self) -> None:
        began = time.monotonic()
        super().connect()
        self.opening = time.monotonic() - began
        self._open = self.sock

    def interrupt(self) -> None:
        """From another thread: whoever waits for bytes sees their end at once (closing would not wake it)."""
        if self._open is not None:
            with contextlib.suppress(OSError):
                self._open.shutdown(socket.SHUT_RDWR)

    def request_at_once(self, method: str, target: str, body: Any, headers: Mapping[str, str]) -> None:
        if body is not None and len(body) > SMALL_BODY:
            self.request(method, target, body, headers)
            return
        self._held = []
        try:
            self.request(method, target, body, headers)
            data = b"".join(self._held)
        finally:
            self._held = None
        self.send(data)

    def usable(self, *, waits: bool) -> bool:
        """Whether a request can be sent on a connection that was idle. An owed reply is read first, if it comes soon
        (is there, unless it ``waits``); else the connection cannot be used again."""
        try:
            if self.owed and self.sock is not None:
                self.owed, seconds = False, self.sock.gettimeout()
                soon = min(max(self.opening, OWED_SECONDS), MOST_OWED_SECONDS)
                self.sock.settimeout(soon if waits else HERE_SECONDS)
                response = self.getresponse()
                response.read(SMALL_BODY)
                if response.isclosed() and self.sock is not None:
                    self.sock.settimeout(seconds)
                else:
                    self.close()
        except (OSError, http.client.HTTPException):
            return False
        # bytes, or an end: the service has closed it meanwhile
        return self.sock is not None and not _readable(self.sock)

    def send(self, data: Any) -> None:
        if self._held is None:
            super().send(data)
        else:
            self._held.append(data)


class SecureConnection(Connection, http.client.HTTPSConnection):
    """The same over TLS."""


def _readable(sock: socket.socket) -> bool:
    if hasattr(select, "poll"):
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        return bool(poll.poll(0))
    return bool(select.select([sock], [], [], 0)[0])
