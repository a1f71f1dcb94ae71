"""A slow link in this process: a TCP relay that lets through so many bits a second each way, after a delay.

All connections share the link, as they do that of a telephone. What TCP and IP add is not counted.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

PIECE, QUEUE = 512, 1 << 15
"""Bytes that leave together, and that wait for the link at most."""


@dataclass
class Direction:
    """``free``: when the link has sent what was given to it; ``bytes``: all of that."""

    rate: float
    delay: float
    free: float = 0.0
    bytes: int = 0


@dataclass
class Link:
    """``port``: where to connect in place of the service."""

    up: Direction
    down: Direction
    port: int = 0

    @property
    def bytes(self) -> int:
        return self.up.bytes + self.down.bytes


@contextmanager
def link(target: int, bits: float, delay: float) -> Iterator[Link]:
    """To the port ``target`` of this machine; ``bits`` a second each way, ``delay`` seconds one way."""
    made = Link(Direction(bits / 8, delay), Direction(bits / 8, delay))
    ready, loops, over = threading.Event(), list[asyncio.AbstractEventLoop](), asyncio.Event()

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", target)
        ways = (reader, far_writer, made.up), (far_reader, writer, made.down)
        with suppress(asyncio.CancelledError):  # the link has gone
            await asyncio.gather(*(_carried(*each) for each in ways))

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        server = await asyncio.start_server(accepted, "127.0.0.1", 0)
        made.port = server.sockets[0].getsockname()[1]
        ready.set()
        await over.wait()
        server.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    ready.wait()
    try:
        yield made
    finally:
        loops[0].call_soon_threadsafe(over.set)
        thread.join(10)


async def _carried(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Direction) -> None:
    loop, waiting = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]](QUEUE // PIECE)

    async def arrive() -> None:
        while True:
            due, piece = await waiting.get()
            await asyncio.sleep(max(0.0, due - loop.time()))
            if not piece:
                writer.close()
                return
            writer.write(piece)

    arriving = loop.create_task(arrive())
    try:
        with suppress(ConnectionError):
            while piece := await reader.read(PIECE):
                way.bytes += len(piece)
                way.free = max(way.free, loop.time()) + len(piece) / way.rate
                await waiting.put((way.free + way.delay, piece))
        await waiting.put((way.free + way.delay, b""))
        with suppress(ConnectionError):
            await arriving
    finally:
        arriving.cancel()
