"""Exchanges between processes: an evaluator's Arrow Flight port. ``dqp.runtimes.flight.client`` fetches its tuples.

A consumer presents a ``Ticket``: which partition of which fragment of which attempt of which query, and the query's
token, which nobody can guess. Each ticket is read once. It may be presented before the producer has started: the port
waits for it. The tuples flow as they are pulled; Flight's flow control is the back-pressure.

The last message of a complete stream says how many batches and rows there were. A stream that ends in any other way is
a failure on the reader's side, so that a dead producer never looks like the end of the data. Errors travel as problem
documents (RFC 9457), as over HTTP, and are raised as the same class; nothing else of the evaluator leaves it.

Beyond loopback a port listens with TLS only, and answers those alone who show a certificate of ``client_ca``, where
that is set. Tickets open what they are for, with and without. When the files change, another server takes the place of
the one that listens, which goes on with its calls until they end.
"""

from __future__ import annotations

import ctypes
import hmac
import ipaddress
import json
import logging
import secrets
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
from pyarrow import flight

from dai.errors import (
    ConfigurationError,
    ConflictError,
    DaiError,
    DataError,
    DeniedError,
    InternalError,
    MethodError,
    NotFoundError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.files import state_of
from dai.streams.stream import Stream
from dai.streams.waiting import Condition
from dqp.errors import EvaluatorLostError
from dqp.runtimes.flight.tls import location, of_port, usable
from dqp.settings import TlsSettings

log = logging.getLogger("dqp.runtimes.flight.server")

Opener = Callable[[Cancellation], Stream]
"""Opens what a ticket stands for, when its reader has come; the cancellation is that reader's."""

WAIT = 30.0
"""Seconds that a consumer waits for a producer to start."""
MOST_EARLY = 32
"""Most consumers that may wait for a producer that the port does not expect: each has a thread, and gRPC ends a process
without memory for another."""
LEAVE_SECONDS = 30.0
"""Seconds for which a server that was replaced waits until a reader has all and leaves."""
LOOK_SECONDS = 2.0
"""Seconds between two looks whether the files of TLS have changed."""
_LOOK = 0.05
"""Seconds between two looks whether a waiting consumer is still there."""
_KEPT = ((-3, 32 << 20), (-1, 64 << 20))
"""glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD: freed memory that a process keeps for its next use."""
_SERVED = frozenset({flight.FlightMethod.DO_GET, flight.FlightMethod.DO_ACTION, flight.FlightMethod.LIST_ACTIONS})
_PROBLEM_BYTES = 4000
"""Errors travel in HTTP/2 headers, of which gRPC takes 8 KiB."""


@dataclass(frozen=True, slots=True)
class Ticket:
    """Who has it may read one partition of a fragment's rows in one attempt; ``token`` cannot be guessed."""

    query: str
    attempt: int
    fragment: str
    partition: int
    token: str = field(repr=False)

    @property
    def key(self) -> tuple[str, int, str, int]:
        return self.query, self.attempt, self.fragment, self.partition

    def encode(self, wait: float = WAIT) -> bytes:
        """The wire form: JSON; ``wait`` are the seconds that the port should wait for the producer."""
        query, attempt, fragment, partition = self.key
        members = {"query": query, "attempt": attempt, "fragment": fragment, "partition": partition}
        return json.dumps({**members, "token": self.token, "wait": wait}).encode()

    @classmethod
    def decode(cls, data: bytes) -> tuple[Ticket, float]:
        """The ticket and the seconds to wait. Raises DataError."""
        try:
            members = json.loads(data)
            wait = float(members.pop("wait", WAIT))
            ticket = cls(**members)
            f"{ticket.query}{ticket.fragment}{ticket.token}".encode()  # JSON may have halves of characters
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            raise DataError("This is not a ticket of an exchange.") from error
        types = [str, int, str, int, str]
        if [type(each) for each in (*ticket.key, ticket.token)] != types or not 0 <= wait <= WAIT:
            raise DataError("This is not a ticket of an exchange.")
        return ticket, wait


def new_token() -> str:
    """For one query."""
    return secrets.token_urlsafe(32)


@dataclass(slots=True, eq=False)
class _Get:
    """One consumer that is being served."""

    ticket: Ticket
    server: _Server
    context: flight.ServerCallContext
    cancellation: Cancellation = field(default_factory=Cancellation)
    pulling: bool = False  # the context is only there while its call is, which it is for sure while this is true


class FlightPort:
    """The port of one evaluator, listening from the start; a context manager. Thread-safe."""

    def __init__(
        self, host: str = "127.0.0.1", port: int = 0, *, tls: TlsSettings | None = None, keep_freed_memory: bool = True
    ) -> None:
        """Port 0 takes a free one. Raises ConfigurationError beyond loopback without ``tls``, and for a ``host`` under
        which others could not reach it."""
        if tls is None and not is_loopback(host):
            raise ConfigurationError(
                f"Exchanges cannot be offered on {host}: without TLS they are for loopback only.",
                hint='Set certificate and key in [service.tls], or flight_host = "127.0.0.1".',
            )
        if host in ("", "0.0.0.0", "::"):
            raise ConfigurationError(
                f"flight_host = {host!r} is not an address by which other machines can reach this one.",
                hint="Use the name of this machine that is in its certificate.",
            )
        self._tls = tls
        self._changed = Condition()
        self._published: dict[tuple[str, int, str, int], tuple[str, Opener | None]] = {}
        self._expected: set[tuple[str, int]] = set()
        self._gets: set[_Get] = set()
        self._early = 0
        """Of them, those who wait for a producer that is not expected."""
        self._withdrawn: dict[tuple[str, int], float] = {}
        self._closing = False
        self._instance = uuid.uuid4().hex
        if keep_freed_memory:
            _keep_freed_memory()
        shown = f"[{host}]" if ":" in host else host
        files = tls and state_of(tls.certificate, tls.key, tls.client_ca)
        try:
            self._server = _Server(self, location(f"{shown}:{port}", tls), of_port(tls))
        except (OSError, pa.ArrowException) as error:
            with_tls = ", or its certificate cannot be used" if tls is not None else ""
            raise ConfigurationError(f"An evaluator cannot listen on {shown}:{port}{with_tls}.") from error
        self.address = f"{shown}:{self._server.port}"
        self._watcher = threading.Thread(target=self._watch, name="flight-watcher", daemon=True)
        self._watcher.start()
        self._stopping: list[threading.Thread] = []
        self._closed = threading.Event()
        self._renewer: threading.Thread | None = None
        if tls is not None:
            self._renewer = threading.Thread(target=self._follow, args=(tls, files), name="flight-files", daemon=True)
            self._renewer.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def expect(self, query: str, attempt: int) -> None:
        """Tickets of the attempt will be published, nobody knows when: a database may work for long before it has a
        row. Until they are withdrawn, consumers who come for them are told to go on waiting."""
        with self._changed:
            self._expected.add((query, attempt))

    def publish(self, ticket: Ticket, opener: Opener) -> None:
        """From now on the ticket can be read, once: ``opener``, which must not wait, is called in the consumer's call,
        and the stream it gives is closed with that. Raises ConflictError for a ticket that is published, NotFoundError
        for one that was withdrawn, EvaluatorLostError while the port closes."""
        with self._changed:
            self._check_withdrawn(ticket)
            if ticket.key in self._published:
                raise ConflictError(f"Fragment {ticket.fragment}, partition {ticket.partition} is already published.")
            if self._closing:
                raise EvaluatorLostError("The evaluator is shutting down.")
            self._published[ticket.key] = (ticket.token, opener)
            self._changed.notify_all()

    def withdraw(self, query: str, attempt: int) -> None:
        """Drops every ticket of an attempt of the query; readers in the middle get an error, later ones at once."""
        with self._changed:
            for key in [each for each in self._published if each[:2] == (query, attempt)]:
                del self._published[key]
            self._expected.discard((query, attempt))
            concerned = [get for get in self._gets if get.ticket.key[:2] == (query, attempt)]
            now = time.monotonic()
            self._withdrawn = {key: until for key, until in self._withdrawn.items() if until > now}
            self._withdrawn[query, attempt] = now + 2 * WAIT
        for get in concerned:
            get.cancellation.cancel(_withdrawn())

    def public_health(self) -> dict[str, Any]:
        """``health`` for anybody who reaches the port: beyond loopback not what is under way."""
        health = self.health()
        return health if self._tls is None else {name: health[name] for name in ("status", "instance")}

    def health(self) -> dict[str, Any]:
        """``instance`` is of this port alone: another one with the same address, elsewhere or later, has another."""
        with self._changed:
            return {
                "status": "closing" if self._closing else "ok",
                "instance": self._instance,
                "tickets": len(self._published),
                "readers": len(self._gets),
            }

    def close(self, timeout: float = 5.0) -> None:
        """Ends every call with EvaluatorLostError and stops listening; waits for that up to ``timeout`` seconds."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._published.clear()
            running = list(self._gets)
            self._changed.notify_all()
        self._closed.set()
        for get in running:
            get.cancellation.cancel(EvaluatorLostError("The evaluator is shutting down."))
        if self._renewer is not None:
            self._renewer.join()
        self._stop()
        deadline = time.monotonic() + timeout
        for thread in (*self._stopping, self._watcher):
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(each.is_alive() for each in self._stopping):
            log.warning("a reader of an exchange neither reads nor leaves; its call is left behind")

    def _stop(self) -> None:
        """The server stops listening, and ends when all its calls have ended; nothing waits for a consumer that neither
        reads nor leaves."""
        thread = threading.Thread(target=self._server.shutdown, name="flight-shutdown", daemon=True)
        thread.start()
        self._stopping = [*(each for each in self._stopping if each.is_alive()), thread]

    def _follow(self, tls: TlsSettings, seen: object) -> None:
        """Puts a server with the files' new content in the place of the one that listens, whose readers read on."""
        while not self._closed.wait(LOOK_SECONDS):
            files = state_of(tls.certificate, tls.key, tls.client_ca)
            if files is None or files == seen:
                continue
            seen = files
            try:
                arguments = usable(tls)
            except (DaiError, OSError) as error:
                log.error("the new certificate of exchanges cannot be used; the former one stays", exc_info=error)
                continue
            # Flight cannot share a port, so nobody listens for some milliseconds; a client then tries again
            self._server.replaced = True
            self._stop()
            while not self._closed.is_set():
                try:
                    self._server = _Server(self, location(self.address, tls), arguments)
                except (OSError, pa.ArrowException) as error:
                    log.error("exchanges cannot be offered with the new certificate yet", exc_info=error)
                    self._closed.wait(_LOOK)
                    with suppress(DaiError, OSError):  # the files may have been read between two changes
                        arguments = usable(tls)
                else:
                    log.info("the certificate of exchanges was read again")
                    break

    def _serve(self, server: _Server, context: flight.ServerCallContext, data: bytes) -> flight.GeneratorStream:
        ticket, wait = Ticket.decode(data)
        get = _Get(ticket, server, context)
        with self._changed:
            self._gets.add(get)
            self._changed.notify_all()
        try:
            with self._pulling(get):
                stream = self._claim(get, wait)(get.cancellation)
        except BaseException:
            self._forget(get)
            raise
        sent = self._batches(get, stream)
        next(sent)  # from here on closing it closes the stream, also when the consumer leaves before the first batch
        return flight.GeneratorStream(stream.schema, sent)

    def _claim(self, get: _Get, wait: float) -> Opener:
        ticket = get.ticket

        def published() -> bool:
            if ticket.key in self._published:
                return True
            if self._closing:
                raise EvaluatorLostError("The evaluator is shutting down.")
            self._check_withdrawn(ticket)
            return False

        with self._changed:
            early = (ticket.query, ticket.attempt) not in self._expected
            if early and self._early >= MOST_EARLY:
                wait = 0.0
            self._early += early
            try:
                found = self._changed.wait_for(published, get.cancellation, wait)
            finally:
                self._early -= early
            if not found:
                raise NotFoundError(
                    f"Fragment {ticket.fragment}, partition {ticket.partition} did not start within {wait:g} s.",
                    started=False,
                    expected=(ticket.query, ticket.attempt) in self._expected,
                )
            get.cancellation.check()
            token, opener = self._published[ticket.key]
            if not hmac.compare_digest(token.encode(), ticket.token.encode()):
                raise DeniedError("The ticket does not open this exchange.")
            if opener is None:
                raise ConflictError(f"Fragment {ticket.fragment}, partition {ticket.partition} already has a reader.")
            self._published[ticket.key] = (token, None)
        return opener

    def _check_withdrawn(self, ticket: Ticket) -> None:
        if (ticket.query, ticket.attempt) in self._withdrawn:
            raise _withdrawn()

    def _batches(self, get: _Get, stream: Stream) -> Iterator[Any]:
        batches = rows = 0
        try:
            with stream:
                yield None
                ended = False
                while not ended:
                    with self._pulling(get):
                        get.cancellation.check()
                        batch = next(stream, None)
                    if batch is None:
                        # The producer takes its rows for read and may withdraw the ticket from here on.
                        if batches:
                            break
                        batch, ended = _empty(stream.schema), True
                    batches += 1
                    rows += batch.num_rows
                    last = batch.slice(0, 0)
                    # as a reader: of a batch alone Flight does not send the dictionaries
                    yield pa.RecordBatchReader.from_batches(stream.schema, [batch])
            yield last, json.dumps({"batches": batches, "rows": rows}).encode()
            if get.server.replaced:  # with its last call it closes connections, and what is still on its way is lost
                with self._pulling(get), self._changed:
                    self._changed.wait_for(lambda: False, get.cancellation, LEAVE_SECONDS)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - what a consumer may know of it
            raise _flight_error(error) from None
        finally:
            self._forget(get)

    @contextmanager
    def _pulling(self, get: _Get) -> Iterator[None]:
        get.pulling = True
        try:
            yield
        finally:
            with self._changed:  # the context is no longer used
                get.pulling = False

    def _forget(self, get: _Get) -> None:
        with self._changed:
            self._gets.discard(get)
            self._changed.notify_all()

    def _watch(self) -> None:
        """Polls whether a consumer has left, because gRPC does not report that while its producer works."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._gets or self._closing)
                if self._closing and not self._gets:
                    return
                gone = [get for get in self._gets if get.pulling and get.context.is_cancelled()]
            for get in gone:
                get.cancellation.cancel()
            time.sleep(_LOOK)


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    """Arrow's side of the port: calls in, Flight's own errors out."""

    def __init__(self, port: FlightPort, location: str, tls: dict[str, Any]) -> None:
        self._port = port
        self.replaced = False
        super().__init__(location, middleware={"served": _Served()}, **tls)

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.GeneratorStream:
        try:
            return self._port._serve(self, context, ticket.ticket)
        except BaseException as error:  # noqa: BLE001 - anything but a FlightError would show its traceback
            raise _flight_error(error) from None

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        if action.type != "health":
            raise _flight_error(_nothing_else())
        return [json.dumps(self._port.public_health()).encode()]

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        return [("health", "Says that the evaluator is alive.")]


class _Served(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Refuses all other calls before anything of them is read: each would have a thread until its first message."""

    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str]]) -> None:
        if info.method not in _SERVED:
            raise _flight_error(_nothing_else())


def _keep_freed_memory() -> None:
    """gRPC receives each message into new memory of the C library. glibc gives blocks of that size back to the system
    when they are freed, and a third of a reader's time goes into getting them again. Elsewhere nothing is changed. A
    gRPC with an allocator of its own would make this useless, not wrong; ``keep_freed_memory = false`` leaves it."""
    with suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter, size in _KEPT:
            mallopt(parameter, size)


def _nothing_else() -> MethodError:
    return MethodError("An evaluator's port serves tickets and the action health, nothing else.")


def _withdrawn() -> NotFoundError:
    return NotFoundError("This exchange was withdrawn.")


def is_loopback(host: str) -> bool:
    """Whether the host is a loopback address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, each.type) for each in schema], schema=schema)


def _flight_error(error: BaseException) -> flight.FlightError:
    """The error as it may leave the evaluator: a problem document beside one of Flight's own errors."""
    if not isinstance(error, DaiError):
        correlation = uuid.uuid4().hex
        log.error("an exchange failed, correlation id %s", correlation, exc_info=error)
        problem = InternalError("A fragment failed; the evaluator's log says why.").problem(correlation)
    else:
        problem = error.problem()
    data = json.dumps(problem, default=str, ensure_ascii=False).encode(errors="replace")
    if len(data) > _PROBLEM_BYTES:
        lengths = {"type": 40, "title": 60, "detail": 600, "hint": 200, "instance": 40}
        kept = {name: str(problem[name])[:length] for name, length in lengths.items() if name in problem}
        data = json.dumps(kept, ensure_ascii=False).encode(errors="replace")
    return flight.FlightServerError(problem["title"], extra_info=data)
