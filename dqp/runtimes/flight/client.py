"""Fetching tuples from an evaluator's Arrow Flight port (``dqp.runtimes.flight.server``)."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import flight

from dai.client.http.problems import from_problem
from dai.errors import ConfigurationError, DaiError, InternalError, NotFoundError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dai.streams.waiting import Condition
from dqp.errors import EvaluatorLostError
from dqp.runtimes.flight.server import WAIT, Ticket
from dqp.runtimes.flight.tls import connected, why
from dqp.settings import TlsSettings

T = TypeVar("T")
REOPENS = 0.5
"""Seconds in which a port with TLS that is closed may open again."""
_AGAIN = 0.01
TURN = 2.0
"""Seconds after which it asks again: Flight cannot take back a call that has not been answered, and the port of a
producer that never starts would keep the readers of a query that is over."""
PAUSE = 0.1
"""Seconds after which it asks a port again that refused to let it wait, because too many do."""
SLOW = 10.0
"""Seconds that a port may take to answer beyond the time that it was asked to wait."""


def fetch(
    address: str,
    ticket: Ticket,
    *,
    cancellation: Cancellation,
    timeout: float = WAIT,
    tls: TlsSettings | None = None,
) -> Stream:
    """The tuples behind a ticket at the port with ``address`` (``host:port``), by ``tls`` if given. Returns when the
    producer has opened them, which has to be within ``timeout`` seconds, or at any time while the port expects it.

    Closing the stream and cancelling both end the producer's side too. Here and while pulling, raises what the
    producer failed with, the cancellation's cause, or EvaluatorLostError when the evaluator is gone.
    """
    deadline = time.monotonic() + timeout
    while True:
        asked = time.monotonic()
        wait = max(0.0, min(TURN, deadline - asked))
        try:
            client, reader = _listening(partial(_opened, address, tls, ticket.encode(wait), cancellation, wait), tls)
            break
        except NotFoundError as error:
            if error.extra.get("started") is not False:
                raise
            if error.extra.get("expected"):
                deadline = max(deadline, time.monotonic() + TURN)
            if time.monotonic() >= deadline:
                text = f"Fragment {ticket.fragment}, partition {ticket.partition} did not start within {timeout:g} s."
                raise NotFoundError(text) from error
            if time.monotonic() < asked + wait:
                pause = Condition()
                with pause:
                    pause.wait_for(lambda: False, cancellation, PAUSE)

    def close() -> None:
        reader.cancel()
        client.close()

    try:
        schema = reader.schema
    except BaseException:
        close()
        raise
    return Stream(schema, _received(reader, address, cancellation), close)


def health(address: str, *, timeout: float = 1.0, tls: TlsSettings | None = None) -> dict[str, Any]:
    """What the port says of itself. Raises EvaluatorLostError when it does not answer within ``timeout`` seconds."""

    def asked() -> dict[str, Any]:
        client = connected(address, tls)
        try:
            results = list(client.do_action(flight.Action("health", b""), flight.FlightCallOptions(timeout=timeout)))
            answer: dict[str, Any] = json.loads(results[0].body.to_pybytes())
        except (pa.ArrowException, OSError) as error:
            raise _received_error(error, address) from error
        finally:
            client.close()
        return answer

    return _listening(asked, tls)


def reached(
    name: str, locate: Callable[[], tuple[str, str | None]], *, timeout: float, tls: TlsSettings | None = None
) -> str:
    """The address of the port of the evaluator called ``name``. ``locate`` asks the evaluator itself for it, and for
    the port's instance. On another machine loopback is another: there may be nothing at that address from here, or the
    port of somebody else. That is a ConfigurationError; EvaluatorLostError when the evaluator went away meanwhile, or
    its port does not answer within ``timeout`` seconds."""
    address, instance = locate()
    reason = ""
    try:
        if health(address, timeout=timeout, tls=tls).get("instance") == instance:
            return address
    except DaiError as error:
        if isinstance(error.__cause__, flight.FlightTimedOutError):
            raise
        reason = why(error.__cause__ or error)
    if locate() != (address, instance):
        raise EvaluatorLostError(f"The evaluator {name} was started again.", address=address)
    if reason:
        raise ConfigurationError(
            f"The evaluator {name} answers, but its exchanges do not: {reason}.",
            hint="Check certificate, client_ca and ca in the [service.tls] of both.",
        )
    if tls is None:
        raise ConfigurationError(
            f"The evaluator {name} answers, but its exchanges cannot be reached: it is on another machine or in a "
            "container.",
            hint="Without TLS exchanges are on loopback only: run the federation and all of its evaluators on one "
            "machine, or give each of them [service.tls], and the evaluators flight_host.",
        )
    raise ConfigurationError(
        f"The evaluator {name} answers, but its exchanges cannot be reached at {address}.",
        hint="Set flight_host in its [roles.evaluator] to a name by which the others reach it, and open "
        "its flight_port to them.",
    )


_NOT_BEGUN = (flight.FlightUnavailableError, flight.FlightCancelledError)


def _listening(call: Callable[[], T], tls: TlsSettings | None) -> T:
    """Calls again while nobody answers, for as long as a port needs to take a new certificate: it ends no call that it
    has begun, and cancels those that it was about to begin; so what failed was not begun."""
    deadline = time.monotonic() + REOPENS
    while True:
        try:
            return call()
        except EvaluatorLostError as error:
            away = isinstance(error.__cause__, _NOT_BEGUN) and not why(error.__cause__)
            if tls is None or not away or time.monotonic() >= deadline:
                raise
            time.sleep(_AGAIN)


def _opened(
    address: str, tls: TlsSettings | None, request: bytes, cancellation: Cancellation, timeout: float
) -> tuple[flight.FlightClient, flight.FlightStreamReader]:
    """Opening blocks until the producer has begun and cannot be interrupted: so it has a thread, which cancels what
    nobody waits for any more. The client is closed there, too: Arrow crashes where it is closed while it opens."""
    cancellation.check()
    client = connected(address, tls)
    opening: Future[flight.FlightStreamReader] = Future()

    def open_it() -> None:
        try:
            reader = client.do_get(flight.Ticket(request))
        except BaseException as error:  # noqa: BLE001 - for the thread that waits
            client.close()
            with suppress(InvalidStateError):
                opening.set_exception(error)
            return
        try:
            opening.set_result(reader)
        except InvalidStateError:
            reader.cancel()
            client.close()

    def abandon() -> None:
        opening.cancel()

    threading.Thread(target=open_it, name="flight-open", daemon=True).start()
    try:
        with cancellation.on_cancel(abandon):
            return client, opening.result(timeout + SLOW)
    except BaseException as error:
        if not opening.cancel() and opening.exception() is None:  # the stream came when its reader had stopped waiting
            opening.result().cancel()
            client.close()
        cancellation.check()
        if isinstance(error, TimeoutError):
            raise EvaluatorLostError(
                f"The evaluator with the port {address} did not answer within {timeout + SLOW:g} s.", address=address
            ) from None
        if isinstance(error, pa.ArrowException | OSError):
            raise _received_error(error, address) from error
        raise


def _received(reader: flight.FlightStreamReader, address: str, cancellation: Cancellation) -> Iterator[pa.RecordBatch]:
    batches = rows = 0
    with cancellation.on_cancel(reader.cancel):
        while True:
            try:
                chunk = reader.read_chunk()
                if chunk.data is not None:
                    chunk.data.validate(full=True)  # its offsets are addresses, and another process has written them
            except StopIteration:
                raise EvaluatorLostError("An exchange broke off before its end.", address=address) from None
            except (pa.ArrowException, OSError) as error:
                cancellation.check()
                raise _received_error(error, address) from error
            if chunk.app_metadata is not None:
                break
            batches += 1
            rows += chunk.data.num_rows
            yield chunk.data
    if json.loads(chunk.app_metadata.to_pybytes()) != {"batches": batches, "rows": rows}:
        raise EvaluatorLostError(f"Only {rows:,} rows in {batches:,} batches of an exchange arrived.", address=address)


def _received_error(error: Exception, address: str) -> DaiError:
    problem = getattr(error, "extra_info", None)
    if problem:
        cause = from_problem(json.loads(problem))
        if isinstance(cause, EvaluatorLostError):
            cause.extra.setdefault("address", address)
        return cause
    lost = flight.FlightUnavailableError | flight.FlightCancelledError | flight.FlightTimedOutError
    if isinstance(error, lost):
        if reason := why(error):
            return EvaluatorLostError(f"Cannot connect to the evaluator's port {address}: {reason}.", address=address)
        return EvaluatorLostError(
            f"The evaluator with the port {address} went away while its rows were being read.", address=address
        )
    return InternalError(f"An exchange between evaluators failed ({type(error).__name__}).")
