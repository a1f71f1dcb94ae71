"""The answer to a query, read from the connection's socket: its rows become columns together, not value by value.

mysqlclient makes an object of every value. So the library only sends the statement (``send_query``), and what the
server answers is read here to its end. The library never sees it: to it the connection is idle, before and after. That
needs a connection without TLS and compression (``readable``).

Packets and rows: https://mariadb.com/kb/en/clientserver-protocol/ (text protocol; the older one with a packet behind
the columns, and the newer one without).
"""

from __future__ import annotations

import os
from functools import lru_cache
from typing import Any

import MySQLdb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dai.drivers.connections.rows import ROW_BYTES, too_long
from dai.drivers.connections.socket_reader import SLACK, Bytes, Positions, SocketReader, chained, slices
from dai.drivers.mariadb.types import Kind, kind

FEW_ROWS, FEW_BYTES = 32, 1 << 10
"""Up to which the work for a row or packet is less than that for all of them together."""
_NOT_PLAIN = 0x20 | 0x800 | 1 << 26
"""Capabilities of a connection: compressed, TLS, compressed by zstd."""
_SPLIT = 0xFFFFFF
"""Length of a packet that the next one continues."""
_NULL, _TWO, _THREE, _EIGHT = 251, 252, 253, 254
_OK, _EOF, _ERROR = 0, 254, 255
_MORE_RESULTS = 0x0008
_PROGRESS = 0xFFFF
_BINARY = 63
_MOST_COLUMNS = 65_535
"""Most columns of any answer; a server has at most 4,096."""
_RESET = b"\1\0\0\0\x1f"
"""The packet COM_RESET_CONNECTION."""


class ServerError(MySQLdb.DatabaseError):  # type: ignore[misc]
    """An error that the server sent instead of (more) rows."""

    def __init__(self, code: int, message: str, sqlstate: str | None) -> None:
        super().__init__(code, message)
        self.sqlstate = sqlstate


def readable(raw: Any) -> bool:
    """Whether what comes from the connection's socket is the protocol itself.

    libmariadb does not offer its socket for reading. A version that reads ahead, numbers packets across statements, or
    negotiates a form of its own for the columns would break this; the tests of both ways would show it, and
    ``read_sockets = false`` leaves the rows to mysqlclient.
    """
    return not raw.client_flag & _NOT_PLAIN


class Answer:
    """The answer to ``statement``, which is sent; ``kinds``: its columns, None for a statement without rows. It is to
    be read to its end (``ended``), or the connection is of no further use; nor is it when there are ``more`` results.
    ``unread``: how many statements sent before have not been answered yet, see ``settle``.

    Raises ServerError, and OperationalError when the connection breaks.
    """

    def __init__(self, raw: Any, statement: bytes, unread: int = 0) -> None:
        self.ended = self.more = False
        raw.send_query(statement)
        self._reader = SocketReader(raw.fileno(), _broken)
        _settle(self._reader, unread)
        if self._reader.copy(3, 4) != b"\1":
            raise _broken()
        head = self._packet()
        self.kinds: list[Kind] | None = None
        if head[0] == _OK:
            self._over(head)
        elif head[0] == _NULL:  # the server asks for a file, which it was told not to
            raise _broken()
        else:
            count, _ = _number(head, 0)
            if count > _MOST_COLUMNS:
                raise _broken()
            self.kinds = [_kind(self._packet()) for _ in range(count)]
            if self._reader.copy(0, 5)[::4] == bytes([5, _EOF]):
                self._packet()

    def rows(self, most: int) -> list[pa.Array] | None:
        """The next rows, ``most`` of them at most, as an array of bytes a column; None at the end. Waits for more than
        one row only as long as they keep coming."""
        assert self.kinds is not None
        while not self.ended:
            data, starts, ends, special = self._look()
            take = min(len(starts), most, special)
            if take:
                self._reader.skip(int(ends[take - 1]))
                arrays = columns(data, starts[:take], ends[:take], len(self.kinds))
                if take == special < len(starts) and data[starts[take] + 4] == _EOF:
                    self._over(self._packet())
                return arrays
            if len(starts):
                self._over(self._packet())
            else:
                row = self._long_row()
                return columns(row, np.zeros(1, np.int64), np.array([len(row) - SLACK]), len(self.kinds))
        return None

    def discard(self) -> None:
        """Reads what is left."""
        while not self.ended:
            _, starts, ends, special = self._look()
            if not len(starts):
                self._long_row()
            elif special == len(starts):
                self._reader.skip(int(ends[-1]))
            else:
                self._reader.skip(int(starts[special]))
                try:
                    self._over(self._packet())
                except ServerError:
                    return

    # --- reading ---

    def _look(self) -> tuple[Bytes, Positions, Positions, int]:
        """What is there: its packets, and the number of the first that is no row. No packets: a row of several."""
        reader = self._reader
        reader.fill(4, self._size, _is_end)
        data = reader.data()
        starts, ends = packets(data[: len(reader)])
        special = np.flatnonzero(data[starts + 4] >= _EOF)
        return data, starts, ends, int(special[0]) if len(special) else len(starts)

    def _size(self) -> int:
        return 4 + self._reader.number(0, 3, "little")

    def _packet(self) -> bytes:
        """The next packet, which is a short one."""
        size = self._size()
        packet = self._reader.copy(4, size)
        self._reader.skip(size)
        if not packet:
            raise _broken()
        if packet[0] == _ERROR:
            self._over(packet)
        return packet

    def _over(self, packet: bytes) -> None:
        """OK or the end of the rows; an error is raised."""
        if packet[0] == _ERROR:
            code = int.from_bytes(packet[1:3], "little")
            if code == _PROGRESS:
                return
            self._end()
            state, message = (packet[4:9].decode(), packet[9:]) if packet[3:4] == b"#" else (None, packet[3:])
            raise ServerError(code, message.decode(errors="replace"), state)
        if packet[0] not in (_OK, _EOF):
            raise _broken()
        if len(packet) < 7:
            status = packet[3:5]
        else:
            _, at = _number(packet, 1)
            _, at = _number(packet, at)
            status = packet[at : at + 2]
        self.more = bool(int.from_bytes(status, "little") & _MORE_RESULTS)
        self._end()

    def _end(self) -> None:
        self.ended = True
        self._reader.drop()

    def _long_row(self) -> Bytes:
        """A row of several packets as if it were one, and SLACK."""
        parts = [b"\0\0\0\0"]
        size = _SPLIT
        while size == _SPLIT:
            if len(parts) * _SPLIT > ROW_BYTES:
                raise too_long()
            size = self._size() - 4
            parts.append(self._reader.copy(4, 4 + size))
            self._reader.skip(4 + size)
        return np.frombuffer(b"".join([*parts, b"\0" * SLACK]), np.uint8)


def reset(raw: Any) -> None:
    """Asks for the session of an idle connection to be made new, and does not wait: the transaction is rolled back;
    temporary tables, variables, settings, locks and prepared statements are gone."""
    os.write(raw.fileno(), _RESET)


def settle(raw: Any, unread: int) -> None:
    """Waits for the answers to so many statements without rows that were sent. Raises OperationalError where one of
    them failed or the connection is broken: it is of no further use."""
    if unread:
        _settle(SocketReader(raw.fileno(), _broken), unread)


def _settle(reader: SocketReader, unread: int) -> None:
    for _ in range(unread):
        size = 4 + reader.number(0, 3, "little")
        if reader.copy(4, size)[:1] != b"\0":
            raise _broken()
        reader.skip(size)


def _is_end(last: bytes) -> bool:
    """Whether the last bytes look like the end of the rows. Where they are something else nothing is lost."""
    if last[-9:-6] == b"\5\0\0":
        return last[-5] == _EOF
    return last[-11:-8] == b"\7\0\0" and last[-7] == _EOF


def packets(data: Bytes) -> tuple[Positions, Positions]:
    """Where the whole packets begin and end in data that begin with one. A packet that others continue, and what
    follows it, is left out.

    The length in front of each packet says where the next one begins. To follow that from one to the next would be
    work for a row; where packets have less than 256 bytes, two zeros behind the first byte show where one may begin.
    """
    if len(data) >= FEW_BYTES:
        zero = data == 0
        starts = np.flatnonzero(zero[1:-2] & zero[2:-1])
        positions = chained(starts, starts + 4 + data[starts], len(data), 4)
        if positions is not None and len(positions[1]) and positions[1][-1] > len(data) - 4 - 0x100:
            return positions
    return _walked(data)


def _walked(data: Bytes) -> tuple[Positions, Positions]:
    """The same one by one: for long packets, which cost more than this step, and for what cannot be told together."""
    view = memoryview(data)  # type: ignore[arg-type]
    bounds = [0]
    at, size = 0, len(data)
    while at + 4 <= size:
        length = view[at] | view[at + 1] << 8 | view[at + 2] << 16
        at += 4 + length
        if length == _SPLIT or at > size:
            break
        bounds.append(at)
    edges = np.array(bounds, np.int64)
    return edges[:-1], edges[1:]


def columns(data: Bytes, starts: Positions, ends: Positions, count: int) -> list[pa.Array]:
    """The values of the rows in these packets, as an array of bytes (or nulls) a column. There is SLACK behind data."""
    if len(starts) <= FEW_ROWS:
        rows = [
            _row(data[start:end].tobytes(), count) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
        return [pa.array(values, pa.binary()) for values in zip(*rows, strict=True)]
    at = starts + 4
    arrays = []
    for _ in range(count):
        length = data[at]
        nulls: NDArray[np.bool_] | None = None
        begin = at + 1
        if int(length.max()) < _NULL:
            at = begin + length
        else:
            begin, size, nulls = _lengths(data, begin, length)
            at = begin + size
        if (at > ends).any():
            raise _broken()
        arrays.append(slices(data, begin, at, nulls))
    if not np.array_equal(at, ends):
        raise _broken()
    return arrays


def _lengths(data: Bytes, at: Positions, first: Bytes) -> tuple[Positions, Positions, NDArray[np.bool_] | None]:
    """Of values some of which are long or NULL, behind their first byte: where they begin, their lengths, and which are
    NULL."""
    begin, size = at.copy(), first.astype(np.int64)
    nulls = first == _NULL
    size[nulls] = 0
    for mark, width in ((_TWO, 2), (_THREE, 3), (_EIGHT, 8)):
        rows = np.flatnonzero(first == mark)
        if len(rows):
            size[rows] = sum(data[at[rows] + byte].astype(np.int64) << 8 * byte for byte in range(width))
            begin[rows] += width
    return begin, size, nulls if nulls.any() else None


def _row(packet: bytes, count: int) -> list[bytes | None]:
    values: list[bytes | None] = []
    at = 4
    for _ in range(count):
        if at >= len(packet):
            raise _broken()
        size = packet[at]
        at += 1
        if size == _NULL:
            values.append(None)
            continue
        if size > _NULL:
            size, at = _number(packet, at - 1)
        values.append(packet[at : at + size])
        at += size
    if at != len(packet):
        raise _broken()
    return values


def _number(packet: bytes, at: int) -> tuple[int, int]:
    """A number of one to nine bytes, and what is behind it."""
    width = {_TWO: 2, _THREE: 3, _EIGHT: 8}.get(packet[at], 0)
    if not width:
        return packet[at], at + 1
    return int.from_bytes(packet[at + 1 : at + 1 + width], "little"), at + 1 + width


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
    """The connection is lost, or what came is not the protocol: it is of no use."""
    return MySQLdb.OperationalError(2013, "")
