"""A connection with TLS whose request belongs to another worker: the state of TLS stays in the process that has it.

That process goes on decrypting and encrypting; the plain bytes travel through a pair of local sockets, whose other end
moves as any connection does.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast


class _Side(asyncio.Protocol):
    """Sends what it receives to the other side, no faster than that accepts it. If one side ends, both do."""

    transport: asyncio.Transport
    other: _Side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.other.transport.write(data)

    def pause_writing(self) -> None:
        self.other.transport.pause_reading()

    def resume_writing(self) -> None:
        self.other.transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is None:
            self.other.transport.close()
        else:
            self.other.transport.abort()


class _Client(_Side):
    def __init__(self, transport: asyncio.Transport, ended: Callable[[], None]) -> None:
        self.transport, self._ended = transport, ended

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._ended()


async def relay(client: asyncio.Transport, near: socket.socket, ended: Callable[[], None]) -> None:
    """Connects a client, whose reading is paused, with one end of a pair of sockets. ``ended``: the client has gone."""
    near.setblocking(False)
    to_client, to_owner = _Client(client, ended), _Side()
    to_client.other, to_owner.other = to_owner, to_client
    await asyncio.get_running_loop().create_unix_connection(lambda: to_owner, sock=near)
    client.set_protocol(to_client)
    if client.is_closing():
        to_owner.transport.close()
    else:
        client.resume_reading()
