"""The answer to a query, read from the connection's socket: its rows become columns together, not value by value.

mysqlclient makes an object of every value, which costs several times what reading it does. So the library only sends
the statement (``send_query``), and what the server answers is read here to its end. The library never sees it: to it
the connection is idle, before and after. That needs a connection without TLS and compression (``readable``).

Packets and rows: https://mariadb.com/kb/en/clientserver-protocol/ (text protocol; the older one with a packet behind
the columns, and the newer one without).
"""

from __future__ import annotations

import os
import select
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import MySQLdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dai.drivers.mariadb_types import Kind, kind

PIECE = 1 << 19
"""Bytes that are looked at together: few enough for the processor's cache, enough to forget what a look costs."""
FEW_ROWS, FEW_BYTES = 32, 1 << 10
"""Up to which the work for a row or packet is less than that for all of them together."""
PAUSE_MILLISECONDS = 10
"""Silence after which rows that are there are not kept waiting for others."""
_NOT_PLAIN = 0x20 | 0x800 | 1 << 26
"""Capabilities of a connection: compressed, TLS, compressed by zstd."""
_SPLIT = 0xFFFFFF
"""Length of a packet that the next one continues."""
_NULL, _TWO, _THREE, _EIGHT = 251, 252, 253, 254
_MORE_RESULTS = 0x0008
_PROGRESS = 0xFFFF
_BINARY = 63

Bytes: TypeAlias = NDArray[np.uint8]
Positions: TypeAlias = NDArray[np.int64]


class ServerError(MySQLdb.DatabaseError):  # type: ignore[misc]
    """What the server says instead of (more) rows."""

    def __init__(self, code: int, message: str, sqlstate: str | None) -> None:
        super().__init__(code, message)
        self.sqlstate = sqlstate


def readable(raw: Any) -> bool:
    """Whether what comes from the connection's socket is the protocol itself."""
    return not raw.client_flag & _NOT_PLAIN


class Answer:
    """The answer to ``statement``, which is sent; ``kinds``: its columns, None for a statement without rows. It is to
    be read to its end (``ended``), or the connection is of no further use; nor is it when there are ``more`` results.

    Raises ServerError, and OperationalError when the connection breaks.
    """

    def __init__(self, raw: Any, statement: bytes) -> None:
        self.ended = self.more = False
        self._buffer = bytearray(1 << 14)
        self._begin = self._end = 0
        raw.send_query(statement)
        self._socket: int = raw.fileno()
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        if self._peek(4)[3] != 1:
            raise _broken()
        head = self._packet()
        self.kinds: list[Kind] | None = None
        if head[0] == 0:
            self._over(head)
        elif head[0] == _NULL:  # the server asks for a file, which it was told not to
            raise _broken()
        else:
            count, _ = _number(head, 0)
            self.kinds = [_kind(self._packet()) for _ in range(count)]
            if self._peek(4)[0] == 5 and self._peek(5)[4] == 0xFE:
                self._packet()

    def rows(self, most: int) -> list[pa.Array] | None:
        """The next rows, ``most`` of them at most, as an array of bytes a column; None at the end. Waits for more than
        one row only as long as they keep coming."""
        assert self.kinds is not None
        while not self.ended:
            self._fill()
            data = np.frombuffer(self._buffer, np.uint8, self._end - self._begin, self._begin)
            starts, ends = packets(data)
            if not len(starts):
                if (found := self._long()) is not None:
                    return found
                continue
            special = np.flatnonzero(data[starts + 4] >= 0xFE)
            take = min(len(starts), most, *(int(each) for each in special[:1]))
            if take:
                self._begin += int(ends[take - 1])
                if take < len(starts) and data[starts[take] + 4] == 0xFE:
                    self._over(self._packet())
                return columns(data, starts[:take], ends[:take], len(self.kinds))
            self._over(self._packet())
        return None

    def discard(self) -> None:
        """Reads what is left."""
        while not self.ended:
            self._fill()
            data = np.frombuffer(self._buffer, np.uint8, self._end - self._begin, self._begin)
            starts, ends = packets(data)
            special = np.flatnonzero(data[starts + 4] >= 0xFE)
            if len(special):
                self._begin += int(starts[special[0]])
                try:
                    self._over(self._packet())
                except ServerError:
                    return
            elif len(starts):
                self._begin += int(ends[-1])
            else:
                self._long()

    # --- what is read ---

    def _over(self, packet: bytes) -> None:
        """OK or the end of the rows; an error is raised."""
        if packet[0] == 0xFF:
            code = int.from_bytes(packet[1:3], "little")
            if code == _PROGRESS:
                return
            self.ended = True
            state, message = (packet[4:9].decode(), packet[9:]) if packet[3:4] == b"#" else (None, packet[3:])
            raise ServerError(code, message.decode(errors="replace"), state)
        if packet[0] not in (0, 0xFE):
            raise _broken()
        if len(packet) < 7:
            status = packet[3:5]
        else:
            _, at = _number(packet, 1)
            _, at = _number(packet, at)
            status = packet[at : at + 2]
        self.more = bool(int.from_bytes(status, "little") & _MORE_RESULTS)
        self.ended = True

    def _long(self) -> list[pa.Array] | None:
        """A row of several packets; None for a packet that had only not come as a whole, and has now."""
        parts = []
        at, length = 0, _SPLIT
        while length == _SPLIT:
            length = int.from_bytes(self._peek(at + 4)[at : at + 3], "little")
            packet = self._peek(at + 4 + length)[at + 4 : at + 4 + length]
            if at == 0 and length != _SPLIT:
                return None
            parts.append(bytes(packet))
            at += 4 + length
        self._begin += at
        whole = np.frombuffer(b"\0\0\0\0" + b"".join(parts), np.uint8)
        return columns(whole, np.zeros(1, np.int64), np.array([len(whole)]), len(self.kinds or ()))

    def _packet(self) -> bytes:
        """The next packet, which is a short one."""
        if self._end - self._begin < 4:
            self._peek(4)
        size = 4 + int.from_bytes(self._buffer[self._begin : self._begin + 3], "little")
        if self._end - self._begin < size:
            self._peek(size)
        packet = bytes(self._buffer[self._begin + 4 : self._begin + size])
        self._begin += size
        if not packet:
            raise _broken()
        if packet[0] == 0xFF:
            self._over(packet)
        return packet

    def _peek(self, size: int) -> memoryview:
        """What is next, ``size`` bytes of it at least."""
        while self._end - self._begin < size:
            self._read(size)
        return memoryview(self._buffer)[self._begin : self._end]

    def _fill(self) -> None:
        """Reads until there is a piece, or nothing more has come for a moment. There is a packet then."""
        self._peek(4)
        while self._end - self._begin < PIECE and not self._at_end():
            if not self._poll.poll(PAUSE_MILLISECONDS):
                self._peek(4 + int.from_bytes(self._peek(4)[:3], "little"))
                return
            self._read(PIECE)

    def _at_end(self) -> bool:
        """Whether the last bytes look like the end of the rows. Where they are something else nothing is lost."""
        last = self._buffer[max(self._begin, self._end - 11) : self._end]
        if last[-9:-6] == b"\5\0\0":
            return last[-5] == 0xFE
        return len(last) == 11 and last[:3] == b"\7\0\0" and last[4] == 0xFE

    def _read(self, size: int) -> None:
        """What has come, at least one byte, into a buffer that has room for ``size`` from ``_begin`` on."""
        if self._begin and (self._begin == self._end or self._begin + size > len(self._buffer)):
            rest = self._buffer[self._begin : self._end]
            self._buffer[: len(rest)] = rest
            self._begin, self._end = 0, len(rest)
        if size > len(self._buffer):
            grown = bytearray(size + (size >> 2))
            grown[: self._end] = memoryview(self._buffer)[: self._end]
            self._buffer = grown
        while True:
            try:
                count = os.readv(self._socket, [memoryview(self._buffer)[self._end :]])
                break
            except BlockingIOError:
                self._poll.poll()
            except OSError as error:
                raise MySQLdb.OperationalError(2013, "") from error
        if not count:
            raise MySQLdb.OperationalError(2013, "")
        self._end += count


def packets(data: Bytes) -> tuple[Positions, Positions]:
    """Where the whole packets begin and end in data that begin with one. A packet that others continue, and what
    follows it, is left out.

    The length in front of each packet says where the next one begins. To follow that from one to the next would be
    work for a row; where packets have less than 256 bytes, two zeros after the first byte tell the few places where one
    may begin, and those from whose predecessors the lengths lead to the next are the beginnings.
    """
    if len(data) < FEW_BYTES:
        return _walked(data)
    zero = data == 0
    starts = np.flatnonzero(zero[1:-2] & zero[2:-1])
    for _ in range(4):
        if not len(starts) or starts[0] != 0:
            break
        ends = starts + 4 + data[starts]
        wrong = np.flatnonzero(ends[:-1] != starts[1:])
        last = int(wrong[0]) if len(wrong) else len(starts) - 1
        if ends[last] > len(data) - 4:  # what looks like a beginning behind it is in a packet that has not ended
            count = last + 1 if ends[last] <= len(data) else last
            return starts[:count], ends[:count]
        reached = np.zeros(len(data) + 260, np.bool_)
        reached[ends] = True
        reached[0] = True
        if reached[starts].all():
            break
        starts = starts[reached[starts]]
    return _walked(data)


def _walked(data: Bytes) -> tuple[Positions, Positions]:
    """The same one by one: for long packets, which cost more than this step, and for what ``packets`` cannot tell."""
    view = memoryview(data)  # type: ignore[arg-type]
    bounds = [0]
    at, size = 0, len(data)
    while at + 4 <= size:
        length = view[at] | view[at + 1] << 8 | view[at + 2] << 16
        at += 4 + length
        if length == _SPLIT or at > size:
            break
        bounds.append(at)
    found = np.array(bounds, np.int64)
    return found[:-1], found[1:]


def columns(data: Bytes, starts: Positions, ends: Positions, count: int) -> list[pa.Array]:
    """The values of the rows in these packets, as an array of bytes (or nulls) a column."""
    if len(starts) <= FEW_ROWS:
        rows = [
            _row(data[start:end].tobytes(), count) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        return [pa.array(values, pa.binary()) for values in zip(*rows, strict=True)]
    at = starts + 4
    buffer = pa.py_buffer(data)
    evens = np.arange(0, 2 * len(starts), 2, dtype=np.int32)
    found = []
    for _ in range(count):
        if int(at[-1]) >= len(data):
            raise _broken()
        length = data[at]
        nulls: NDArray[np.bool_] | None = None
        if int(length.max()) < _NULL:
            begin = at + 1
            at = begin + length
        else:
            begin, size, nulls = _lengths(data, at, length)
            at = begin + size
        offsets = np.empty(2 * len(starts), np.int32)
        offsets[0::2], offsets[1::2] = begin, at
        if (at > ends).any():
            raise _broken()
        # Every second "value" is what stands between one row's value and the next one's.
        both = pa.Array.from_buffers(pa.binary(), len(offsets) - 1, [None, pa.py_buffer(offsets), buffer])
        found.append(both.take(pa.array(evens, mask=nulls)))
    if not np.array_equal(at, ends):
        raise _broken()
    return found


def _lengths(data: Bytes, at: Positions, first: Bytes) -> tuple[Positions, Positions, NDArray[np.bool_] | None]:
    """Of values some of which are long or NULL: where they begin, their lengths, and which are NULL."""
    begin, size = at + 1, first.astype(np.int64)
    nulls = first == _NULL
    size[nulls] = 0
    for mark, width in ((_TWO, 2), (_THREE, 3), (_EIGHT, 8)):
        rows = np.flatnonzero(first == mark)
        if not len(rows):
            continue
        places = at[rows]
        if int(places.max()) + width >= len(data):
            raise _broken()
        size[rows] = sum(data[places + 1 + byte].astype(np.int64) << 8 * byte for byte in range(width))
        begin[rows] += width
    return begin, size, nulls if nulls.any() else None


def _row(packet: bytes, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    at = 4
    for _ in range(count):
        if at >= len(packet):
            raise _broken()
        size = packet[at]
        at += 1
        if size == _NULL:
            found.append(None)
            continue
        if size > _NULL:
            size, at = _number(packet, at - 1)
        found.append(packet[at : at + size])
        at += size
    if at != len(packet):
        raise _broken()
    return found


def _number(packet: Sequence[int] | bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and what is behind it."""
    width = {_TWO: 2, _THREE: 3, _EIGHT: 8}.get(packet[at], 0)
    if not width:
        return packet[at], at + 1
    return int.from_bytes(bytes(packet[at + 1 : at + 1 + width]), "little"), at + 1 + width


@lru_cache(4096)
def _kind(packet: bytes) -> Kind:
    """Of a column: six texts, of which the fifth is its name, and at the end thirteen bytes."""
    at = 0
    text = b""
    for _ in range(5):
        size, at = _number(packet, at)
        text, at = packet[at : at + size], at + size
    tail = packet[-13:]
    if tail[0] != 12:
        raise _broken()
    charset, length = int.from_bytes(tail[1:3], "little"), int.from_bytes(tail[3:7], "little")
    wire, flags, digits = tail[7], int.from_bytes(tail[8:10], "little"), tail[10]
    return kind(text.decode(errors="replace"), wire, length, digits, flags, charset == _BINARY)


def _broken() -> MySQLdb.OperationalError:
    """What came is not the protocol: the connection is of no use."""
    return MySQLdb.OperationalError(2013, "")
