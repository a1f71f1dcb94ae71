"""Exchanges that are left, cancelled or killed: no end that is not the end."""

import gc
import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyarrow import flight

from dai.errors import (
    BusyError,
    CancelledError,
    NotFoundError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.errors import EvaluatorLostError
from dqp.execution.exchange.exchange import BlockSize, distribute
from dqp.execution.exchange.outbox import Outbox
from dqp.runtimes.flight import client as flight_client
from dqp.runtimes.flight.client import health
from dqp.runtimes.flight.server import FlightPort
from tests.dqp.tickets import SCHEMA, batch, get, of, ticket
from tests.processes import SECONDS, until
from tests.servers import free_port

SPAWN = multiprocessing.get_context("spawn")


# --- leaving and cancelling


class Endless:
    """An opener of a stream without end, which says when it was closed."""

    def __init__(self, blocks: bool = False) -> None:
        self.closed, self.blocks = threading.Event(), blocks

    def __call__(self, cancellation: Cancellation) -> Stream:
        def batches():
            yield batch(0)
            if self.blocks:
                wake = threading.Event()
                with cancellation.on_cancel(wake.set):
                    wake.wait()
                cancellation.check()
            while True:
                yield batch(0)

        return Stream(SCHEMA, batches(), self.closed.set)


@pytest.mark.parametrize("blocks", [False, True])
@pytest.mark.parametrize("read", [0, 1])
def test_closing_the_stream_ends_the_producers_side(port, blocks, read):
    producer = Endless(blocks)
    port.publish(ticket(), producer)
    stream = get(port.address, ticket())
    for _ in range(read):
        next(stream)
    stream.close()
    assert producer.closed.wait(SECONDS)
    until(lambda: port.health()["readers"] == 0)


def test_dropping_the_stream_ends_the_producers_side(port):
    producer = Endless()
    port.publish(ticket(), producer)
    stream = get(port.address, ticket())
    next(stream)
    del stream
    gc.collect()
    assert producer.closed.wait(SECONDS)


def test_cancelling_a_consumer_that_waits_for_tuples(port, pool):
    outbox, cancellation = Outbox(SCHEMA, 1), Cancellation()
    left = threading.Event()
    outbox._abandoned = left.set
    port.publish(ticket(), partial(outbox.stream, 0))
    reader = pool.submit(get(port.address, ticket(), cancellation).table)
    outbox.put(0, batch(0), Cancellation())
    until(lambda: outbox.held == (0, 0))
    cancellation.cancel(BusyError("because"))
    with pytest.raises(BusyError, match="because"):
        reader.result()
    assert left.wait(SECONDS)


def test_cancelling_a_consumer_that_waits_for_the_producer(port, pool):
    cancellation = Cancellation()
    reader = pool.submit(get, port.address, ticket(), cancellation)
    until(lambda: port.health()["readers"] == 1)
    cancellation.cancel()
    with pytest.raises(CancelledError):
        reader.result()
    producer = Endless()
    port.publish(ticket(), producer)  # the call that nobody waits for may still claim it, and leaves
    assert producer.closed.wait(SECONDS)
    until(lambda: port.health()["readers"] == 0)


def test_a_cancelled_query_fetches_nothing(port):
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(CancelledError):
        get(port.address, ticket(), cancellation)
    assert port.health()["readers"] == 0


def test_a_producer_that_is_cancelled(port, pool):
    outbox, cancellation = Outbox(SCHEMA, 1, memory_bytes=1), Cancellation()
    port.publish(ticket(), partial(outbox.stream, 0))
    endless = Stream(SCHEMA, iter(lambda: batch(0), None))
    producer = pool.submit(distribute, endless, outbox, cancellation, block=BlockSize(seconds=0))
    stream = get(port.address, ticket())
    next(stream)
    cancellation.cancel()
    with pytest.raises(CancelledError):
        producer.result()
    with pytest.raises(CancelledError):
        list(stream)


def test_withdrawing_ends_readers_of_that_query_only(port, pool):
    port.publish(ticket("blocked"), Endless(blocks=True))
    port.publish(ticket("unread"), of(batch(0)))
    other = replace(ticket(), query="q2")
    port.publish(other, of(batch(0)))
    stream = get(port.address, ticket("blocked"))
    next(stream)
    reader = pool.submit(list, stream)
    port.withdraw("q1", 2)
    assert port.health()["tickets"] == 3
    port.withdraw("q1", 1)
    with pytest.raises(NotFoundError, match="withdrawn"):
        reader.result()
    with pytest.raises(NotFoundError):
        get(port.address, ticket("unread"), timeout=0)
    assert get(port.address, other).table().num_rows == 100


def test_closing_the_port_is_a_failure_for_its_readers(pool):
    with FlightPort() as port:
        port.publish(ticket(), Endless(blocks=True))
        stream = get(port.address, ticket())
        next(stream)
        blocked = pool.submit(list, stream)
        waiting = pool.submit(get, port.address, ticket("never"))
        until(lambda: port.health()["readers"] == 2)
    for reader in (blocked, waiting):
        with pytest.raises(EvaluatorLostError):
            reader.result()
    with pytest.raises(EvaluatorLostError):
        health(port.address)
    with pytest.raises(EvaluatorLostError):
        port.publish(ticket("later"), of())


def test_closing_the_port_does_not_wait_for_a_consumer_that_does_not_read(caplog):
    port = FlightPort()
    producer = Endless()
    port.publish(ticket(), producer)
    stream = get(port.address, ticket())
    next(stream)
    until(lambda: not any(each.pulling for each in port._gets))
    port.close(timeout=0.1)
    stream.close()
    assert producer.closed.wait(SECONDS)


# --- what never looks like the end


class Short(flight.FlightServerBase):
    """Ends well in Flight's eyes, with ``end`` as the last message or without one."""

    def __init__(self, end: bytes | None) -> None:
        self.end = end
        super().__init__("grpc://127.0.0.1:0")

    def do_get(self, context, ticket):
        items = [batch(0), batch(100)]
        if self.end is not None:
            items.append((batch(0, 0), self.end))
        return flight.GeneratorStream(SCHEMA, iter(items))


@pytest.mark.parametrize("end", [None, b'{"batches": 3, "rows": 300}', b'{"batches": 2, "rows": 201}'])
def test_an_end_that_was_not_announced_is_a_failure(end):
    with Short(end) as server:
        stream = get(f"127.0.0.1:{server.port}", ticket())
        assert [next(stream).num_rows for _ in range(2)] == [100, 100]
        with pytest.raises(EvaluatorLostError):
            next(stream)
        stream.close()


def _evaluator(pipe, directory: str) -> None:
    """A process of its own: says its address, then what was closed."""
    port = FlightPort()
    outbox = Outbox(SCHEMA, 2, memory_bytes=1, directory=Path(directory), grace=0)
    for number in range(20):
        outbox.put(0, batch(100 * number), Cancellation())
    port.publish(ticket("spilled", token="t"), partial(outbox.stream, 0))
    for fragment, blocks in (("endless", False), ("blocked", True)):
        endless = Endless(blocks)
        endless.closed.set = lambda fragment=fragment: pipe.send(f"closed {fragment}")
        port.publish(ticket(fragment, token="t"), endless)
    pipe.send(port.address)
    pipe.recv()
    port.close()


def _consumer(pipe, address: str, fragment: str) -> None:
    stream = get(address, ticket(fragment, token="t"))
    next(stream)
    pipe.send("reads")
    list(stream)


@contextmanager
def process(target, *arguments):
    ours, theirs = SPAWN.Pipe()
    running = SPAWN.Process(target=target, args=(theirs, *arguments))
    running.start()
    theirs.close()
    try:
        yield running, ours
    finally:
        running.kill()
        running.join()
        ours.close()


@pytest.mark.server
def test_a_producer_that_is_killed_is_lost_and_nothing_stays(tmp_path, pool):
    with process(_evaluator, str(tmp_path)) as (running, pipe):
        address = pipe.recv()
        assert health(address, timeout=60)["status"] == "ok"
        streams = {each: get(address, ticket(each, token="t")) for each in ("endless", "blocked", "spilled")}
        for each in streams.values():
            next(each)
        reader = pool.submit(list, streams.pop("blocked"))
        os.kill(running.pid, 9)
        running.join()
        with pytest.raises(EvaluatorLostError):
            reader.result()
        for each in streams.values():
            with pytest.raises(EvaluatorLostError):
                list(each)
        with pytest.raises(EvaluatorLostError):
            get(address, ticket("endless", token="t"))
        with pytest.raises(EvaluatorLostError):
            health(address)
        assert not list(tmp_path.iterdir())


@pytest.mark.server
def test_a_consumer_that_is_killed_frees_its_producer(tmp_path):
    with process(_evaluator, str(tmp_path)) as (running, events):
        address = events.recv()
        for fragment in ("endless", "blocked"):
            with process(_consumer, address, fragment) as (consumer, pipe):
                assert pipe.recv() == "reads"
                os.kill(consumer.pid, 9)
                assert events.poll(SECONDS)
                assert events.recv() == f"closed {fragment}"
        until(lambda: health(address, timeout=60)["readers"] == 0)
        events.send("end")
        running.join(SECONDS)
        assert running.exitcode == 0


def test_nobody_there():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(EvaluatorLostError):
        get(address, ticket())
    with pytest.raises(EvaluatorLostError):
        health(address)


def test_a_client_is_not_closed_while_it_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow crashes where it is."""

    class Client:
        def __init__(self) -> None:
            self.entered, self.goes_on, self.closed = threading.Event(), threading.Event(), threading.Event()

        def do_get(self, _: flight.Ticket) -> Any:
            self.entered.set()
            assert self.goes_on.wait(SECONDS)
            assert not self.closed.is_set()
            raise flight.FlightCancelledError("given up")

        def close(self) -> None:
            self.closed.set()

    client, cancellation = Client(), Cancellation()
    monkeypatch.setattr(flight_client, "connected", lambda address, tls: client)
    with ThreadPoolExecutor(1) as pool:
        fetched = pool.submit(flight_client.fetch, "127.0.0.1:1", ticket(), cancellation=cancellation)
        assert client.entered.wait(SECONDS)
        cancellation.cancel()
        with pytest.raises(CancelledError):
            fetched.result(SECONDS)
    assert not client.closed.is_set()
    client.goes_on.set()
    assert client.closed.wait(SECONDS)
