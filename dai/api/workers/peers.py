"""Messages between the processes of a service: connections with the bytes that were read from them, and short messages.

Each worker has an inbox, a pair of sockets that every process inherits. It outlives the worker: the worker that takes
its place gets the messages that wait in it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import orjson

log = logging.getLogger("dai.api.workers")

ACCEPTED, MOVED, WAKE, QUESTION, ANSWER = b"a", b"m", b"w", b"q", b"r"
"""The first byte of a message: a connection that the supervisor has accepted, one that another worker moves, places may
be free, and JSON: ``[asker, number, question]``, ``[number, answer]``."""
_MESSAGE_BYTES = 1 << 16
_INLINE_BYTES = 1 << 15
"""More than this of a connection travels in a file."""
ANSWER_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Inbox:
    """The two ends of a worker's inbox."""

    receiving: socket.socket
    sending: socket.socket

    @classmethod
    def create(cls) -> Inbox:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in ends:
            each.setblocking(False)
        return cls(*ends)

    @property
    def descriptors(self) -> tuple[int, int]:
        return self.receiving.fileno(), self.sending.fileno()

    def send(self, kind: bytes, content: bytes = b"", connection: int | None = None) -> bool:
        """False where the inbox is full."""
        descriptors = [] if connection is None else [connection]
        with tempfile.TemporaryFile() if len(content) > _INLINE_BYTES else nullcontext() as file:
            if file is not None:
                file.write(content)
                file.flush()
                descriptors.append(file.fileno())
                content = b""
            try:
                socket.send_fds(self.sending, [kind + content], descriptors)
            except BlockingIOError:
                return False
        return True

    def receive(self) -> tuple[bytes, bytes, list[int]] | None:
        """Kind, content, descriptors; None where there is nothing."""
        try:
            message, descriptors, _, _ = socket.recv_fds(self.receiving, _MESSAGE_BYTES, 2)
        except BlockingIOError:
            return None
        content = message[1:]
        wanted = 1 if message[:1] in (ACCEPTED, MOVED) else 0
        if len(descriptors) > wanted:
            with os.fdopen(descriptors.pop(), "rb") as file:
                file.seek(0)
                content = file.read()
        return message[:1], content, descriptors


class Peers:
    """The other workers, for the worker ``number``; on its event loop, ``wake`` from any thread."""

    def __init__(self, number: int, inboxes: Sequence[Inbox]) -> None:
        self.number, self._inboxes = number, inboxes
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[object]] = {}
        self._tasks: set[asyncio.Future[None]] = set()

    def start(
        self,
        take: Callable[[socket.socket | None, bytes, bytes, bool], Awaitable[None]],
        wake: Callable[[], None],
        answer: Callable[[str], object],
    ) -> None:
        """``take``: a connection (None: it was lost, since the process has as many files open as it may), where it
        comes from if its TLS is elsewhere, what was read from it, and whether the supervisor has accepted it;
        ``answer``: what a question gives."""
        self._take, self._wake, self._answer = take, wake, answer
        asyncio.get_running_loop().add_reader(self._inboxes[self.number].receiving.fileno(), self._receive)

    def stop(self) -> None:
        asyncio.get_running_loop().remove_reader(self._inboxes[self.number].receiving.fileno())

    def move(self, worker: int, connection: int, read: bytes, origin: bytes = b"") -> bool:
        """Hands a connection over, with what was read from it; False where the worker takes no more now. ``origin``:
        one line."""
        return self._inboxes[worker].send(MOVED, origin + b"\n" + read, connection)

    def wake(self, worker: int | None = None) -> None:
        """Wakes that worker, or all others."""
        for number, inbox in enumerate(self._inboxes):
            if number == worker or (worker is None and number != self.number):
                inbox.send(WAKE)

    async def ask(self, question: str) -> list[object]:
        """The answers of the other workers, without those that do not answer in time."""
        futures = []
        for worker, inbox in enumerate(self._inboxes):
            if worker == self.number:
                continue
            number = next(self._numbers)
            if inbox.send(QUESTION, orjson.dumps([self.number, number, question])):
                self._asked[number] = asyncio.get_running_loop().create_future()
                futures.append(number)
        waiting = [self._asked[number] for number in futures]
        if waiting:
            await asyncio.wait(waiting, timeout=ANSWER_SECONDS)
        for number in futures:
            self._asked.pop(number)
        return [each.result() for each in waiting if each.done()]

    def _receive(self) -> None:
        for _ in range(64):
            message = self._inboxes[self.number].receive()
            if message is None:
                return
            kind, content, descriptors = message
            if kind in (ACCEPTED, MOVED):
                connection = socket.socket(fileno=descriptors[0]) if descriptors else None
                if connection is not None:
                    connection.setblocking(False)
                    if kind == MOVED and not content:  # the file with what was read of it was lost
                        connection.close()
                        connection = None
                origin, _, read = content.partition(b"\n")
                task = asyncio.ensure_future(self._take(connection, origin, read, kind == ACCEPTED))
                self._tasks.add(task)
                task.add_done_callback(self._forget)
            elif kind == WAKE:
                self._wake()
            elif kind == QUESTION:
                asker, number, question = orjson.loads(content)
                self._inboxes[asker].send(ANSWER, orjson.dumps([number, self._answer(question)]))
            else:
                number, answer = orjson.loads(content)
                if (future := self._asked.get(number)) is not None and not future.done():
                    future.set_result(answer)

    def _forget(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("a connection was lost as it was handed over", exc_info=error)
