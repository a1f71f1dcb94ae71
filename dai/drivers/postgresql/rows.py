"""Many rows: COPY in binary, read from the connection's socket; all values of a column are decoded together.

libpq hands over a copy of every row, which is slow. So this module writes the COPY to the socket and reads its answer
to the end. libpq sees nothing of it: its connection is in a transaction, before and after. That needs a connection
without encryption (``readable``) and columns whose binary form this module reads (``shapes_of``); ADBC reads all other
results.

Messages: https://www.postgresql.org/docs/current/protocol-message-formats.html; rows: COPY's binary format, each in a
message of its own; values: the send functions (src/backend/utils/adt).
"""

from __future__ import annotations

import os
import select
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa
from numpy.typing import NDArray

from dai.drivers.connections.ahead import ReadAhead
from dai.drivers.connections.interrupts import interruptible
from dai.drivers.connections.rows import ROW_BYTES, too_long
from dai.drivers.connections.socket_reader import SLACK, Bytes, Positions, SocketReader, chained, slices
from dai.drivers.postgresql.bulk import settings
from dai.drivers.postgresql.errors import from_result, unavailable
from dai.drivers.postgresql.read import (
    CANCEL_SECONDS,
    Description,
    Descriptions,
    Projection,
    Query,
    Stale,
    with_first_batch,
)
from dai.drivers.postgresql.types import DAY, TEXT, Shape, finished, not_carried, out_of_range
from dai.drivers.postgresql.wire import ROLLBACK, UNLOCK, Connection, Parameters, one_round_trip, tidy
from dai.errors import DataError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

_TEXTS = frozenset({"text", "varchar", "bpchar", "name", "json", "jsonb", "bytea"})
_NUMBERS: dict[str, np.dtype[Any]] = {
    "bool": np.dtype("u1"),
    "int2": np.dtype(">i2"),
    "int4": np.dtype(">i4"),
    "int8": np.dtype(">i8"),
    "oid": np.dtype(">u4"),
    "float4": np.dtype(">f4"),
    "float8": np.dtype(">f8"),
    "date": np.dtype(">i4"),
    "time": np.dtype(">i8"),
    "timestamp": np.dtype(">i8"),
    "timestamptz": np.dtype(">i8"),
    "interval": np.dtype([("microseconds", ">i8"), ("days", ">i4"), ("months", ">i4")]),
}
_SINCE_1970 = {"date": 10_957, "timestamp": 10_957 * DAY, "timestamptz": 10_957 * DAY}
"""PostgreSQL counts from 2000."""
_MONTH_DAY_NANO = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])
_DIGITS = 18
"""Of a decimal that is a number of 64 bits."""
_FOUR = np.array([0, *(((1 << 16 * each) - 1) << 64 - 16 * each for each in range(1, 5))], np.uint64)
"""Masks of so many digits of four."""
_POSITIVE, _NEGATIVE = 0x0000, 0x4000
_HEAD, _SIGNATURE = 5, 19
_NONE = np.empty(0, np.int64)

Nulls = NDArray[np.bool_] | None


def readable(connection: psycopg.Connection[Any]) -> bool:
    """Whether what comes from the connection's socket is the protocol itself.

    libpq does not offer its socket for reading. A version that reads ahead into a buffer of its own, sends keep-alive
    messages, or negotiates another protocol version would break this; the tests of both ways would show it, and
    ``read_sockets = false`` leaves the rows to ADBC.
    """
    return not connection.pgconn.ssl_in_use and not connection.pgconn.used_gssapi


def shapes_of(description: Description) -> tuple[Shape, ...] | None:
    """How the columns travel here, in their own binary form where that is read here; None where one of them cannot."""
    readers = []
    for own, cast in zip(description.few.shapes, description.many.shapes, strict=True):
        if cast.array:
            return None
        kind = own.field.type
        numeric = own.wire == "numeric" and pa.types.is_decimal128(kind) and kind.precision <= _DIGITS
        readers.append(own if own.wire in _TEXTS or own.wire in _NUMBERS or numeric else cast)
    return tuple(readers) or None


def copied(
    connection: Connection,
    query: Query,
    descriptions: Descriptions,
    *,
    rows: float,
    release: Callable[[bool], None],
    cancellation: Cancellation,
    batch_rows: int,
) -> Stream:
    """The rows of a query whose ``shapes_of`` are known. ``release(clean)`` is called once, when the stream ends or is
    closed; not where this raises. ``rows`` are about as many as are expected.

    The query is described again in the transaction of the COPY: from then on nobody changes its tables.
    """
    interrupt = partial(connection.cancel_safe, timeout=CANCEL_SECONDS)
    with interruptible(cancellation, interrupt):
        description = descriptions.describe(connection, query, transaction=False, plan=False, begin=True)
        description.rows = rows
        shapes = shapes_of(description)
        if shapes is None:
            raise Stale
        inner = description.inner
        if query.parameters.values:
            calls, values, inner = settings(query, description)
            if values:
                text_parameters = Parameters(tuple(each.encode() for each in values), (TEXT,) * len(values))
                one_round_trip(connection, [(calls.encode(), text_parameters)], transaction=False)
        copy = _Copy(connection, Projection.of(inner, shapes).sql, query.sql)

    def read() -> pa.RecordBatch | None:
        with interruptible(cancellation, interrupt):
            arrays = copy.rows(shapes)
        return None if arrays is None else pa.RecordBatch.from_arrays(arrays, schema=description.schema)

    def batches() -> Iterator[pa.RecordBatch]:
        seen, ahead = 0, ReadAhead(read)
        try:
            while (whole := ahead.next()) is not None:
                seen += whole.num_rows
                for start in range(0, whole.num_rows, batch_rows):
                    yield whole if whole.num_rows <= batch_rows else whole.slice(start, batch_rows)
            description.rows = float(seen)
        finally:
            if unfinished := ahead.busy or not copy.ended:
                with suppress(Exception):
                    interrupt()
                copy.cut()
            ahead.close()
            clean = not unfinished and not cancellation.cancelled
            if clean:
                with suppress(psycopg.Error):
                    tidy(connection, [ROLLBACK, UNLOCK])
            release(clean)

    return with_first_batch(description.schema, batches())


class _Failure:
    """The fields of an error message, as libpq's result has them, except for the position, which counts in the COPY."""

    def __init__(self, message: bytes) -> None:
        parts = message.rstrip(b"\0").split(b"\0")
        self._parts = {part[0]: part[1:] for part in parts if part and part[:1] != b"P"}

    def error_field(self, name: int) -> bytes | None:
        return self._parts.get(int(name))


class _Copy:
    """A COPY under way. ``ended``: its answer has been read, the connection is of use again."""

    def __init__(self, connection: psycopg.Connection[Any], sql: str, caller_sql: str) -> None:
        self.ended = False
        self._sql = caller_sql
        socket = connection.pgconn.socket
        self._reader = SocketReader(socket, unavailable)
        statement = f"COPY ({sql}\n) TO STDOUT (FORMAT binary)".encode() + b"\0"
        _send(socket, b"Q" + struct.pack(">I", len(statement) + 4) + statement)

    def rows(self, shapes: tuple[Shape, ...]) -> list[pa.Array] | None:
        """The next rows; None at the end. Waits for more than one row only as long as they keep coming."""
        reader = self._reader
        while not self.ended:
            reader.fill(_HEAD, self._size, _is_end)
            data = reader.data()
            starts, ends = _messages(data[: len(reader)], len(shapes))
            if len(starts):
                reader.skip(int(ends[-1]))
                return _arrays(data, starts, ends, shapes)
            self._other()
        return None

    def cut(self) -> None:
        """Ends the connection, also for a thread that reads it."""
        self._reader.cut()

    def _size(self) -> int:
        size = 1 + self._reader.number(1, 5, "big")
        if size > ROW_BYTES:
            raise too_long()
        return size

    def _other(self) -> None:
        """A message that is no row."""
        reader = self._reader
        size = self._size()
        kind, body = reader.copy(0, 1), reader.copy(_HEAD, size)
        if kind == b"d" and body.startswith(b"PGCOPY\n\xff\r\n\0"):
            # The first row, or the end of the rows, stands behind the signature.
            rest = size - _HEAD - _SIGNATURE
            reader.replace(_SIGNATURE, b"d" + struct.pack(">I", rest + 4))
            reader.skip(_SIGNATURE if rest else size)
            return
        reader.skip(size)
        if kind == b"E":
            failure = _Failure(body)
            self._to_end()
            raise from_result(failure, self._sql)
        if kind == b"Z":
            self.ended = True
            reader.drop()
        elif kind not in (b"H", b"c", b"C", b"N", b"S", b"A") and not (kind == b"d" and body == b"\xff\xff"):
            raise unavailable()

    def _to_end(self) -> None:
        reader = self._reader
        while not self.ended:
            size = self._size()
            self.ended = reader.copy(0, 1) == b"Z"
            reader.wait(size)
            reader.skip(size)


def _send(socket: int, message: bytes) -> None:
    poll = select.poll()
    poll.register(socket, select.POLLOUT)
    rest = memoryview(message)
    while rest:
        try:
            rest = rest[os.write(socket, rest) :]
        except BlockingIOError:
            poll.poll()
        except OSError as error:
            raise unavailable() from error


def _is_end(last: bytes) -> bool:
    return last[-6:-1] == b"Z\0\0\0\5"


def _messages(data: Bytes, columns: int) -> tuple[Positions, Positions]:
    """Where the messages with rows begin and end that are in the data as a whole, up to the first other one."""
    high, low = divmod(columns, 256)
    if len(data) < 7 or (data[0], data[5], data[6]) != (0x64, high, low):
        return _NONE, _NONE
    # Letter, length below 16 MiB, number of columns: bytes at fixed distances, few of which are like that by chance.
    alike = data[:-6] == 0x64
    alike &= data[6:] == low
    letters = np.flatnonzero(alike)
    starts = letters[(data[letters + 1] == 0) & (data[letters + 5] == high)]
    offsets = chained(starts, starts + 1 + _at(data, ">i4", starts + 1), len(data), 7) if len(starts) else None
    return _walked(data, columns) if offsets is None else offsets


def _walked(data: Bytes, columns: int) -> tuple[Positions, Positions]:
    """The same one by one, where it cannot be told together."""
    view = memoryview(data)  # type: ignore[arg-type]
    bounds = [0]
    at, size = 0, len(data)
    while at + 7 <= size and view[at] == 0x64 and view[at + 5] << 8 | view[at + 6] == columns:
        at += 1 + int.from_bytes(view[at + 1 : at + 5], "big")
        if at > size:
            break
        bounds.append(at)
    offsets = np.array(bounds, np.int64)
    return offsets[:-1], offsets[1:]


def _at(data: Bytes, dtype: Any, places: Positions) -> NDArray[Any]:
    """The values of a type that begin at these places."""
    kind = np.dtype(dtype)
    everywhere: NDArray[Any] = np.ndarray((len(data) - kind.itemsize + 1,), kind, data, strides=(1,))
    return everywhere[places].astype(kind.newbyteorder("="), copy=False)


@lru_cache(maxsize=512)
def _run(wires: tuple[str, ...]) -> np.dtype[Any]:
    """How the next columns stand in a row if none is NULL: those of numbers that SLACK reaches, and the size of one of
    another kind behind them."""
    columns: list[tuple[str, Any]] = []
    for index, wire in enumerate(wires):
        dtype = _NUMBERS.get(wire)
        column = [("size", ">i4"), *([] if dtype is None else [("value", dtype)])]
        if np.dtype([*columns, ("", column)]).itemsize > SLACK:
            break
        columns.append((str(index), column))
        if dtype is None:
            break
    return np.dtype(columns)


def _arrays(data: Bytes, starts: Positions, ends: Positions, shapes: tuple[Shape, ...]) -> list[pa.Array]:
    """The columns of the rows in these messages. There is SLACK behind data.

    Columns of numbers that follow each other are taken together, up to one with a NULL.
    """
    at = starts + 7
    arrays: list[pa.Array] = []
    while left := shapes[len(arrays) :]:
        run = _run(tuple(each.wire for each in left))
        rows, place = _at(data, f"V{run.itemsize}", at).view(run), 0
        for name, shape in zip(run.names or (), left, strict=False):
            dtype, sizes = _NUMBERS.get(shape.wire), rows[name]["size"]
            if dtype is None or (sizes != dtype.itemsize).any():
                array, at = _column(shape, data, at + (place + 4), sizes.astype(np.int64), ends)
                arrays.append(array)
                break
            arrays.append(_numbers(shape, rows[name]["value"].astype(dtype.newbyteorder("=")), None))
            place += 4 + dtype.itemsize
        else:
            at = at + place
            if (at > ends).any():
                raise unavailable()
    if not np.array_equal(at, ends):
        raise unavailable()
    return arrays


def _column(
    shape: Shape, data: Bytes, begins: Positions, sizes: Positions, ends: Positions
) -> tuple[pa.Array, Positions]:
    """A column of values of these sizes, and where they end: in the rows that end there."""
    dtype = _NUMBERS.get(shape.wire)
    nulls: Nulls = None
    if int(sizes.min()) < 0:
        nulls = sizes < 0
        sizes[nulls] = 0
    behind = begins + sizes
    wrong = dtype is not None and ((sizes != dtype.itemsize) & (True if nulls is None else ~nulls)).any()
    if wrong or (behind > ends).any():
        raise unavailable()
    if dtype is not None:
        return _numbers(shape, _at(data, dtype, begins), nulls), behind
    if shape.wire == "numeric":
        return _decimals(shape, data, begins, nulls), behind
    if shape.wire == "jsonb":  # a version number stands before the text
        begins = np.minimum(begins + 1, behind)
    values = slices(data, begins, behind, nulls)
    return finished(shape, values if shape.wire == "bytea" else _text(shape, values)), behind


def _numbers(shape: Shape, numbers: NDArray[Any], nulls: Nulls) -> pa.Array:
    wire = shape.wire
    if wire == "interval":
        return _intervals(shape, numbers, nulls)
    if wire == "bool":
        return pa.array(numbers != 0, mask=nulls)
    if wire in _SINCE_1970:
        numbers += numbers.dtype.type(_SINCE_1970[wire])
    return finished(shape, pa.array(numbers, mask=nulls).view(shape.wire_type))


def _text(shape: Shape, values: pa.Array) -> pa.Array:
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid as error:
        name = shape.field.name
        raise DataError(
            f"Column {name!r} holds text that is not UTF-8.", hint="Select it as bytea: convert_to(…).", column=name
        ) from error


def _decimals(shape: Shape, data: Bytes, begins: Positions, nulls: Nulls) -> pa.Array:
    """Numbers of 16 bits: how many digits of base 10,000, the place of the first one, the sign, decimals; then the
    digits. A place that the type has is computed for all values together."""
    kind = shape.field.type
    head = _at(data, ">u8", begins)
    if nulls is not None:
        head[nulls] = 0
    count, first, sign = head >> 48, (head >> 32).astype(np.int16), head >> 16 & 0xFFFF
    whole, after = -(-(kind.precision - kind.scale) // 4), -(-kind.scale // 4)
    beyond = (head & 0xFFFF > kind.scale) | ((first >= whole) & (count > 0))
    if (beyond | (sign != _POSITIVE) & (sign != _NEGATIVE)).any():
        raise not_carried(shape)
    high = _at(data, ">u8", begins + 8) & _FOUR[np.minimum(count, 4)]
    low = None
    if int(count.max()) > 4:
        low = _at(data, ">u8", begins + 16) & _FOUR[np.maximum(count, 4) - 4]
    skipped = (whole - 1 - first.astype(np.int64)).astype(np.uint64) << 4
    total = np.zeros(len(begins), np.int64)
    for place in range(whole + after):
        # A shift by 64 and more, or by less than nothing, leaves nothing.
        digits = high >> (skipped + np.uint64((48 - 16 * place) % (1 << 64)))
        if low is not None:
            digits |= low >> (skipped + np.uint64(112 - 16 * place))
        value = (digits & 0xFFFF).astype(np.int64)
        used = min(4, kind.scale + 4 * (whole - place)) if place >= whole else 4
        total = total * 10**used + (value if used == 4 else value // 10 ** (4 - used))
    np.negative(total, out=total, where=sign == _NEGATIVE)
    wide = np.empty((len(begins), 2), np.int64)
    wide[:, 0], wide[:, 1] = total, total >> 63
    return pa.Array.from_buffers(kind, len(begins), [_validity(nulls), pa.py_buffer(wide)])


def _intervals(shape: Shape, numbers: NDArray[Any], nulls: Nulls) -> pa.Array:
    if nulls is not None:
        numbers[nulls] = 0
    most = ((1 << 63) - 1) // 1000
    microseconds, months = numbers["microseconds"], numbers["months"].astype(np.int64)
    if (abs(microseconds) > most).any() or (microseconds == -1 << 63).any() or (abs(months) == 0x7FFFFFFF).any():
        raise out_of_range(shape, "a time longer than 292 years, or an infinity")
    intervals = np.empty(len(numbers), _MONTH_DAY_NANO)
    intervals["months"], intervals["days"], intervals["nanoseconds"] = months, numbers["days"], microseconds * 1000
    return pa.Array.from_buffers(shape.field.type, len(numbers), [_validity(nulls), pa.py_buffer(intervals)])


def _validity(nulls: Nulls) -> pa.Buffer | None:
    return None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
