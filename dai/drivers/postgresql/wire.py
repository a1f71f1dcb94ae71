"""Statements sent on a psycopg connection at the level of libpq: several in one round trip, results in binary.

psycopg's own cursors would take a round trip for BEGIN, one for the statement and one for ROLLBACK. In pipeline mode
all of them leave at once, so that a query in a read-only transaction of its own costs what a bare query costs. What
only tidies up (``tidy``) the server does while the rows go on their way: its answers are read when the connection is
next taken (``settle``).
libpq's PQgetResult holds the interpreter's lock in psycopg, hence ``_ready`` waits on the socket before it is called.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import psycopg
from psycopg import pq
from psycopg.adapt import PyFormat, Transformer

from dai.drivers.connections.rows import ROW_BYTES, too_long
from dai.drivers.postgresql.errors import Position, from_result, unavailable
from dai.drivers.postgresql.types import Wanted
from dai.errors import ParameterError

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

Status = pq.ExecStatus
BEGIN_READ_ONLY = b"BEGIN READ ONLY"
ROLLBACK = b"ROLLBACK"
UNLOCK = (
    b"SELECT pg_catalog.pg_advisory_unlock_all(), "
    b"pg_catalog.setseed(pg_catalog.hashtext(pg_catalog.clock_timestamp()::pg_catalog.text) / 2147483648.0)"
)
"""Locks of the session outlive its transactions, and so does the seed of random(): the next user of the connection
must not have them."""

CHUNK = 64
"""Rows libpq hands over at once: few, because nothing else bounds what they take."""

_TCP_INFO = getattr(socket, "TCP_INFO", None)
"""Linux has it; elsewhere nothing bounds what libpq keeps of CHUNK rows."""
_RECEIVED = struct.Struct("=128xQ")
"""tcpi_bytes_received in Linux's struct tcp_info, since 4.1."""
MOST_PARAMETERS = 65_535
"""The protocol counts those of a statement in 16 bits."""


class Connection(psycopg.Connection[Any]):
    """``unread``: synchronisation points of statements that were sent and whose results nobody has read. ``looks``:
    whether its server can look if the client is still there."""

    unread = 0
    looks = False


class Parameters(NamedTuple):
    """Values in PostgreSQL's text form, and the oids that say what they are (0: the database infers it)."""

    values: tuple[bytes | None, ...] = ()
    oids: tuple[int, ...] = ()


def check_most(parameters: int) -> None:
    """ParameterError for more than a statement can have."""
    if parameters > MOST_PARAMETERS:
        raise ParameterError(
            f"The statement has {parameters:,} parameters; PostgreSQL takes {MOST_PARAMETERS:,} at most.",
            hint="Load the values as a table, or send them with the query as one (tables).",
        )


def dumped(connection: psycopg.Connection[Any], parameters: Sequence[Any]) -> Parameters:
    """Python's values as psycopg sends them. Raises ParameterError for one it has no form for."""
    if not parameters:
        return Parameters()
    transformer = Transformer(connection)
    try:
        values = transformer.dump_sequence(parameters, [PyFormat.TEXT] * len(parameters))
    except (psycopg.Error, ValueError) as error:
        raise ParameterError(f"A parameter cannot be bound: {error}.") from error
    return Parameters(
        tuple(None if value is None else bytes(value) for value in values), tuple(transformer.types or ())
    )


def _ready(connection: PGconn, seconds: float | None) -> None:
    """Waits, other threads running, until PQgetResult will not block. DatabaseUnavailableError where nothing comes for
    so many seconds, LimitError for more than twice ``ROW_BYTES``."""
    try:
        while connection.flush():
            _poll(connection, select.POLLIN | select.POLLOUT, seconds)
            connection.consume_input()
        begin = None
        while connection.is_busy():
            begin = _received(connection) if begin is None else begin
            _poll(connection, select.POLLIN, seconds)
            connection.consume_input()
            if _received(connection) - begin > 2 * ROW_BYTES:  # of CHUNK rows: libpq would keep all, more than once
                raise too_long()
    except psycopg.OperationalError as error:
        raise unavailable() from error


def _received(connection: PGconn) -> int:
    """How many bytes have come since it was opened, which libpq does not say; 0 where the system does not either, and
    for a socket of Unix."""
    if _TCP_INFO is None:
        return 0
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 0, connection.socket)
    try:
        info = own.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, _RECEIVED.size)
        return int(_RECEIVED.unpack(info)[0]) if len(info) == _RECEIVED.size else 0
    except OSError:
        return 0
    finally:
        own.detach()


def _poll(connection: PGconn, events: int, seconds: float | None) -> None:
    poll = select.poll()
    poll.register(connection.socket, events)
    if not poll.poll(None if seconds is None else seconds * 1000):
        raise unavailable()


def next_result(connection: PGconn, seconds: float | None = None) -> PGresult | None:
    """Waits for the next result of what was sent; None at the end of a statement's."""
    _ready(connection, seconds)
    return connection.get_result()


def drained(connection: PGconn, syncs: int, seconds: float | None = None) -> list[PGresult]:
    """All results up to the last of ``syncs`` synchronisation points. DatabaseUnavailableError where nothing comes for
    so many seconds."""
    results: list[PGresult] = []
    empty = 0
    while syncs:
        result = next_result(connection, seconds)
        if result is None:
            empty += 1
            if empty > 1 and connection.status != pq.ConnStatus.OK:
                raise unavailable()
            continue
        empty = 0
        if result.status == Status.PIPELINE_SYNC:
            syncs -= 1
        else:
            results.append(result)
    return results


def one_round_trip(
    connection: psycopg.Connection[Any], statements: Sequence[tuple[bytes, Parameters]], *, transaction: bool = True
) -> list[PGresult]:
    """The results, in text, of several statements in a read-only transaction that is rolled back, or within the one
    under way; the first failure is raised."""
    pg = connection.pgconn
    pg.enter_pipeline_mode()
    if transaction:
        pg.send_query_params(BEGIN_READ_ONLY, None)
    for sql, parameters in statements:
        pg.send_query_params(sql, parameters.values, parameters.oids, None, 0)
    pg.pipeline_sync()
    if transaction:
        pg.send_query_params(ROLLBACK, None)
        pg.pipeline_sync()
    results = drained(pg, 2 if transaction else 1)
    pg.exit_pipeline_mode()
    for result in results:
        if result.status == Status.FATAL_ERROR:
            raise from_result(result)
    start = 1 if transaction else 0
    return results[start : start + len(statements)]


def tidy(connection: Connection, statements: Sequence[bytes]) -> None:
    """Sends statements, each one for itself, and does not wait for them: ``settle`` does."""
    pg = connection.pgconn
    pg.enter_pipeline_mode()
    for sql in statements:
        pg.send_query_params(sql, None)
        pg.pipeline_sync()
        connection.unread += 1


def settle(connection: Connection, seconds: float) -> None:
    """Reads results that were left unread, before the connection is used again. Raises the first failure, and
    DatabaseUnavailableError where nothing comes for so many seconds."""
    if not connection.unread:
        return
    results = drained(connection.pgconn, connection.unread, seconds)
    connection.unread = 0
    connection.pgconn.exit_pipeline_mode()
    for result in results:
        if result.status == Status.FATAL_ERROR:
            raise from_result(result)


class Described(NamedTuple):
    """``plan``: what EXPLAIN (FORMAT JSON) gave, where it was asked."""

    columns: tuple[Wanted, ...]
    parameter_oids: tuple[int, ...]
    plan: bytes | None


def described(
    connection: psycopg.Connection[Any],
    sql: bytes,
    parameters: Parameters,
    caller_sql: str,
    position: Position,
    *,
    plan: bool,
    transaction: bool = True,
    begin: bool = False,
) -> Described:
    """Columns and parameter types of a query that is not run, and with ``plan`` what EXPLAIN (FORMAT JSON) says, in one
    round trip: in a transaction of its own, in the one under way, or (``begin``) in one that goes on. Raises what the
    database has against the query."""
    pg = connection.pgconn
    pg.enter_pipeline_mode()
    if transaction or begin:
        pg.send_query_params(BEGIN_READ_ONLY, None)
    pg.send_prepare(b"", sql, parameters.oids)
    pg.send_describe_prepared(b"")
    if plan:
        pg.send_query_params(b"EXPLAIN (FORMAT JSON) " + sql, parameters.values, parameters.oids, None, 0)
    pg.pipeline_sync()
    if transaction:
        pg.send_query_params(ROLLBACK, None)
        pg.pipeline_sync()
    results = drained(pg, 2 if transaction else 1)
    pg.exit_pipeline_mode()
    if transaction or begin:
        begun, *results = results
        if begun.status == Status.FATAL_ERROR:
            raise from_result(begun)
    columns: tuple[Wanted, ...] = ()
    oids: tuple[int, ...] = ()
    text: bytes | None = None
    for number, result in enumerate(results[: 3 if plan else 2]):
        if result.status == Status.FATAL_ERROR:
            raise from_result(result, caller_sql, None if number == 2 else position)
        if number == 1:
            columns = columns_of(result)
            oids = tuple(result.param_type(index) for index in range(result.nparams))
        elif number == 2:
            text = result.get_value(0, 0)
    return Described(columns, oids, text)


def columns_of(result: PGresult) -> tuple[Wanted, ...]:
    """Name, type and modifier of each column."""
    return tuple(
        Wanted((result.fname(index) or b"").decode(), result.ftype(index), result.fmod(index))
        for index in range(result.nfields)
    )


class Execution:
    """One query under way on a connection: its chunks of binary rows, then a clean connection.

    Within a transaction of its own unless ``transaction`` is false; the end of that is left to ``settle``. ``inner`` is
    described in the same round trip where the statement is a projection around it, because the projection hides what
    the query's columns have become.
    """

    def __init__(
        self,
        connection: Connection,
        sql: bytes,
        parameters: Parameters,
        *,
        inner: bytes | None = None,
        transaction: bool = True,
    ) -> None:
        self._connection, self._pg = connection, connection.pgconn
        self._sql, self._parameters, self._inner = sql, parameters, inner
        self._transaction = transaction
        self.columns: tuple[Wanted, ...] = ()
        """The columns of the result; of ``inner``, if there is one."""
        self._before = (1 if transaction else 0) + (2 if inner is not None else 0)
        self._described = inner is not None
        self.failure: PGresult | None = None

    def _send(self) -> None:
        pg, parameters = self._pg, self._parameters
        pg.enter_pipeline_mode()
        if self._transaction:
            pg.send_query_params(BEGIN_READ_ONLY, None)
        if self._inner is not None:
            pg.send_prepare(b"", self._inner, parameters.oids)
            pg.send_describe_prepared(b"")
        pg.send_query_params(self._sql, parameters.values, parameters.oids, None, 1)
        if self._transaction:
            pg.send_flush_request()  # the rows leave before the rest is done
            pg.send_query_params(ROLLBACK, None)
            pg.send_query_params(UNLOCK, None)
        pg.pipeline_sync()

    def chunks(self) -> Iterator[PGresult]:
        """Sends it; at least one result, so that the columns are told. A refusal ends it and stands in ``failure``.

        When it ends the connection is clean or waits to be settled; when it is left before, the connection has to be
        thrown away.
        """
        self._send()
        pg = self._pg
        skipped = 0
        while skipped < self._before:
            result = next_result(pg)
            if result is None:
                continue
            if result.status == Status.FATAL_ERROR:
                self.failure = result
                break
            skipped += 1
            if self._described and skipped == self._before:
                self.columns = columns_of(result)
            if skipped == self._before:
                next_result(pg)  # the None that ends a statement's results
        if self.failure is None:
            pg.set_chunked_rows_mode(CHUNK)
            while (result := next_result(pg)) is not None:
                if result.status == Status.FATAL_ERROR:
                    self.failure = result
                elif result.status in (Status.TUPLES_CHUNK, Status.TUPLES_OK, Status.SINGLE_TUPLE):
                    if not self._described and not self.columns:
                        self.columns = columns_of(result)
                    yield result
                elif result.status == Status.PIPELINE_SYNC:
                    raise unavailable()
        if self._transaction and self.failure is None:
            self._connection.unread = 1
            return
        for result in drained(pg, 1):
            if result.status == Status.FATAL_ERROR and self.failure is None:
                self.failure = result
        if self._transaction:
            # After a failure the rest of the pipeline was skipped.
            for sql in (ROLLBACK, UNLOCK):
                pg.send_query_params(sql, None)
            pg.pipeline_sync()
            drained(pg, 1)
        pg.exit_pipeline_mode()
