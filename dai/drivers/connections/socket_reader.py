"""Reads what a database sends from the socket of a connection, in pieces and past the connection's library.

libpq and PyMySQL hand over row by row, which costs several times what reading does. Here NumPy finds all messages of a
piece at once, and decodes the values of a column together.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

FIRST_PIECE, PIECE = 1 << 17, 1 << 20
"""Bytes that are looked at together, at first and in the end: few enough for the processor's cache, enough to forget
what a look costs. The first pieces are smaller, since the rest comes while they are on their way."""
PAUSE_MILLISECONDS = 10
"""Seconds of silence after which the bytes that are there are decoded without waiting for more."""
MANY, MOMENT_MILLISECONDS = 1 << 22, 1
"""Behind so many bytes the reader sleeps until a piece is whole; the last piece, which is shorter, waits a moment."""
SLACK = 64
"""Bytes behind the last one that may be looked at: values are taken as if all were as long as the longest."""
_FIRST = 1 << 14

Bytes: TypeAlias = NDArray[np.uint8]
Positions: TypeAlias = NDArray[np.int64]


class SocketReader:
    """Reads a socket, and keeps the bytes that were not taken yet. ``lost`` is raised when the connection breaks."""

    def __init__(self, descriptor: int, lost: Callable[[], Exception]) -> None:
        self._socket, self._lost = descriptor, lost
        self._buffer = bytearray(_FIRST)
        self._begin = self._end = self._taken = 0
        self._piece = FIRST_PIECE
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLIN)

    def __len__(self) -> int:
        return self._end - self._begin

    def data(self) -> Bytes:
        """What is there, to be looked at until more is read, and SLACK bytes of anything."""
        return np.frombuffer(self._buffer, np.uint8, len(self) + SLACK, self._begin)

    def copy(self, begin: int, end: int) -> bytes:
        """A copy of some of what is next; waits for it."""
        self.wait(end)
        return bytes(self._buffer[self._begin + begin : self._begin + end])

    def number(self, begin: int, end: int, order: str) -> int:
        return int.from_bytes(self.copy(begin, end), order)  # type: ignore[arg-type]

    def cut(self) -> None:
        """Ends the connection: a thread that waits for more finds it lost."""
        with suppress(OSError), self._connection() as connection:
            connection.shutdown(socket.SHUT_RDWR)

    def drop(self) -> None:
        """Lets go of the room for pieces, once nothing more is to come: who keeps a stream does not keep that."""
        self._buffer = bytearray(SLACK)
        self._begin = self._end = 0

    def skip(self, size: int) -> None:
        """Takes so much of what is next; the next piece is up to twice as large."""
        self._begin += size
        self._taken += size
        self._piece = min(max(self._piece, 2 * size), PIECE)

    def replace(self, at: int, data: bytes) -> None:
        self._buffer[self._begin + at : self._begin + at + len(data)] = data

    def wait(self, size: int) -> None:
        """Until so many bytes are there."""
        while self._end - self._begin < size:
            self._read(size)

    def fill(self, head: int, size: Callable[[], int], is_end: Callable[[bytes], bool]) -> None:
        """Until there is a piece, or nothing more has come for a moment, or ``is_end`` of the last bytes; at least one
        message, whose ``size`` is known from its first ``head`` bytes."""
        self.wait(head)
        while len(self) < self._piece and not is_end(self._last()):
            if self._taken > MANY:
                self._await(self._piece - len(self))
            if not self._poll.poll(PAUSE_MILLISECONDS):
                break
            self._read(self._piece)
        self.wait(size())

    def _await(self, size: int) -> None:
        """Sleeps until so many bytes have come, or for a moment. To be woken for each packet costs both sides more than
        the packet. The option is not left set: whoever reads next may wait for less."""
        try:
            with self._connection() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
                self._poll.poll(MOMENT_MILLISECONDS)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        except OSError as error:
            raise self._lost() from error

    @contextmanager
    def _connection(self) -> Iterator[socket.socket]:
        connection = socket.socket(fileno=self._socket)
        try:
            yield connection
        finally:
            connection.detach()

    def _last(self) -> bytes:
        return bytes(self._buffer[max(self._begin, self._end - SLACK) : self._end])

    def _read(self, size: int) -> None:
        """What has come, at least one byte, into a buffer that has room for ``size`` bytes that were not taken."""
        if self._begin and (self._begin == self._end or self._begin + size + SLACK > len(self._buffer)):
            rest = self._buffer[self._begin : self._end]
            self._buffer[: len(rest)] = rest
            self._begin, self._end = 0, len(rest)
        if size + SLACK > len(self._buffer):
            grown = bytearray(size + (size >> 2) + SLACK)
            grown[: self._end] = memoryview(self._buffer)[: self._end]
            self._buffer = grown
        while True:
            try:
                count = os.readv(self._socket, [memoryview(self._buffer)[self._end : -SLACK]])
                break
            except BlockingIOError:
                self._poll.poll()
            except OSError as error:
                raise self._lost() from error
        if not count:
            raise self._lost()
        self._end += count


def chained(starts: Positions, ends: Positions, size: int, head: int) -> tuple[Positions, Positions] | None:
    """The whole messages in ``size`` bytes that begin with one. ``starts``: wherever one may begin, in order, which are
    all places where one does of those that are meant; ``ends``: where each would end. Up to the first message that is
    none of those. None where it cannot be told without going from one to the next.

    A place in the middle of a message that looks like a beginning is one that no other leads to.
    """
    for _ in range(4):
        if not len(starts) or starts[0] != 0:
            return None
        wrong = np.flatnonzero(ends[:-1] != starts[1:])
        last = int(wrong[0]) if len(wrong) else len(starts) - 1
        at = int(ends[last])
        index = int(np.searchsorted(starts, at))
        if at > size - head or index == len(starts) or starts[index] != at:
            count = last + 1 if at <= size else last
            return starts[:count], ends[:count]
        reached = np.zeros(size + 1, np.bool_)
        reached[np.minimum(ends, size)] = True
        reached[0] = True
        if reached[starts].all():
            return None
        starts, ends = starts[reached[starts]], ends[reached[starts]]
    return None


def slices(data: Bytes, begins: Positions, ends: Positions, nulls: NDArray[np.bool_] | None) -> pa.Array:
    """An array of bytes from where they stand in the data, in order and without overlap."""
    offsets = np.empty(2 * len(begins), np.int32)
    offsets[0::2], offsets[1::2] = begins, ends
    # Every second "value" is what stands between one value and the next one.
    both = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return both.take(pa.array(np.arange(0, len(offsets), 2, dtype=np.int32), mask=nulls))
