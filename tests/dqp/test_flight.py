"""The Flight port: tickets and tokens, errors as they were, and no end that is not the end."""

import gc
import json
import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from dai.cancellation import Cancellation
from dai.errors import (
    BusyError,
    CancelledError,
    ConfigurationError,
    ConflictError,
    DataError,
    DeniedError,
    InternalError,
    NotFoundError,
    StatementError,
)
from dai.stream import Stream
from dqp.errors import EvaluatorLostError
from dqp.exchange import BlockSize, Outbox, distribute
from dqp.flight import FlightPort, Ticket, fetch, health, new_token
from tests.processes import until
from tests.servers import free_port

SCHEMA = pa.schema([pa.field("id", pa.int64(), metadata={"dai.type": "bigint"}), ("text", pa.string())])
SPAWN = multiprocessing.get_context("spawn")


def batch(first: int, rows: int = 100) -> pa.RecordBatch:
    ids = range(first, first + rows)
    return pa.record_batch([pa.array(ids), pa.array([f"row {each}" for each in ids])], schema=SCHEMA)


def ticket(fragment: str = "f1", partition: int = 0, token: str = "") -> Ticket:
    return Ticket("q1", 1, fragment, partition, token or TOKEN)


TOKEN = new_token()


def get(address: str, which: Ticket, cancellation: Cancellation | None = None, timeout: float = 20) -> Stream:
    return fetch(address, which, cancellation=cancellation or Cancellation(), timeout=timeout)


def of(*batches: pa.RecordBatch):
    return lambda cancellation: Stream(SCHEMA, list(batches))


@pytest.fixture
def port():
    with FlightPort() as port:
        yield port
    assert not port._gets


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as executor:
        yield executor


# --- tuples


def test_partitions_arrive_whole_and_in_order(port, pool, tmp_path):
    rows = 20_000
    whole = batch(0, rows).append_column("bucket", pa.array([each % 3 for each in range(rows)]))
    outbox = Outbox(SCHEMA, 3, memory_bytes=100_000, directory=tmp_path)
    for partition in range(3):
        port.publish(ticket(partition=partition), partial(outbox.stream, partition))
    readers = [pool.submit(lambda p: get(port.address, ticket(partition=p)).table(), each) for each in range(3)]
    stream = Stream.of(pa.Table.from_batches([whole])).rebatch(700)
    distribute(stream, outbox, Cancellation(), buckets="bucket", block=BlockSize(bytes=10_000))
    for partition, reader in enumerate(readers):
        assert reader.result()["id"].to_pylist() == list(range(partition, rows, 3))
        assert reader.result().schema.equals(SCHEMA, check_metadata=True)
    until(lambda: outbox.drained)


@pytest.mark.parametrize("batches", [[], [batch(0, 0)], [batch(0), batch(100, 0), batch(100)]])
def test_empty_streams_and_batches(port, batches):
    port.publish(ticket(), of(*batches))
    assert get(port.address, ticket()).table().equals(pa.Table.from_batches(batches, SCHEMA))


def test_types_that_are_hard_to_send(port):
    table = pa.table(
        {
            "d": pa.array(["x", None, "y"]).dictionary_encode(),
            "l": pa.array([[1], None, []]),
            "s": pa.array([{"a": 1}, None, {"a": None}]),
            "n": pa.nulls(3),
            "h": pa.array([1, None, 3], pa.decimal128(38, 0)),
        }
    )
    other = pa.table(
        {**{name: table[name] for name in table.column_names}, "d": pa.array(["z", "y", "x"]).dictionary_encode()}
    )
    port.publish(ticket(), lambda _: Stream(table.schema, [*table.to_batches(), *other.to_batches()]))
    assert get(port.address, ticket()).table().to_pylist() == pa.concat_tables([table, other]).to_pylist()
    port.publish(ticket("none"), lambda _: Stream(table.schema, []))
    assert get(port.address, ticket("none")).table().equals(table.slice(0, 0))


# --- tickets


def test_a_consumer_may_come_before_the_producer(port, pool):
    reader = pool.submit(lambda: get(port.address, ticket()).table())
    until(lambda: port.health()["readers"] == 1)
    assert not reader.done()
    port.publish(ticket("another"), of())
    port.publish(ticket(), of(batch(0)))
    assert reader.result().num_rows == 100


def test_who_waited_for_a_producer_that_never_starts_is_forgotten(port):
    cancellation = Cancellation()
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(fetch, port.address, ticket(), cancellation=cancellation, timeout=600.0)
        until(lambda: port.health()["readers"] == 1)
        cancellation.cancel()
        with pytest.raises(CancelledError):
            reader.result()
    until(lambda: port.health()["readers"] == 0, 30)


def test_a_consumer_does_not_wait_for_ever(port):
    with pytest.raises(NotFoundError, match=r"did not start within 0\.05 s"):
        get(port.address, ticket(), timeout=0.05)


def test_a_wrong_token_opens_nothing_and_spoils_nothing(port):
    port.publish(ticket(), of(batch(0)))
    for wrong in (new_token(), TOKEN[:-1], "ä"):
        with pytest.raises(DeniedError):
            get(port.address, ticket(token=wrong))
    assert get(port.address, ticket()).table().num_rows == 100


def test_tokens_are_unguessable_and_not_shown():
    assert len({new_token() for _ in range(100)}) == 100
    assert len(TOKEN) >= 43
    assert TOKEN not in repr(ticket())


def test_each_ticket_is_read_once(port):
    port.publish(ticket(), of(batch(0)))
    assert get(port.address, ticket()).table().num_rows == 100
    with pytest.raises(ConflictError):
        get(port.address, ticket())
    with pytest.raises(ConflictError):
        port.publish(ticket(), of())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        json.dumps({**json.loads(ticket().encode()), "partition": "0"}).encode(),
        json.dumps({**json.loads(ticket().encode()), "wait": 1e9}).encode(),
        json.dumps({**json.loads(ticket().encode()), "wait": float("nan")}).encode(),
        json.dumps({**json.loads(ticket().encode()), "more": 1}).encode(),
    ],
)
def test_what_is_no_ticket_is_refused(port, data):
    with pytest.raises(DataError):
        Ticket.decode(data)
    with flight.connect(f"grpc://{port.address}") as client, pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(data))
    assert json.loads(caught.value.extra_info)["type"] == "bad-data"


def test_a_ticket_survives_its_wire_form():
    assert Ticket.decode(ticket().encode(3.5)) == (ticket(), 3.5)


# --- failures of the producer


def failing(error: BaseException, after: int):
    def batches():
        for number in range(after):
            yield batch(100 * number)
        raise error

    return lambda cancellation: Stream(SCHEMA, batches())


@pytest.mark.parametrize("after", [0, 3])
def test_an_error_arrives_as_it_was_raised(port, after):
    sent = StatementError("no such column", sql="select x", position=8, sqlstate="42703", hint="Did you mean y?")
    port.publish(ticket(), failing(sent, after))
    stream = get(port.address, ticket())
    for _ in range(after):
        next(stream)
    with pytest.raises(StatementError) as caught:
        next(stream)
    assert (caught.value.detail, caught.value.hint, caught.value.position) == ("no such column", "Did you mean y?", 8)
    assert str(caught.value) == str(sent)


def test_an_error_of_the_opener_arrives_too(port):
    def opener(cancellation):
        raise BusyError("later", retry_after=7)

    port.publish(ticket(), opener)
    with pytest.raises(BusyError) as caught:
        get(port.address, ticket())
    assert caught.value.retry_after == 7


@pytest.mark.parametrize("after", [0, 3])
def test_a_foreign_error_stays_on_the_evaluator(port, after, caplog):
    port.publish(ticket(), failing(ValueError("/secret/path"), after))
    with flight.connect(f"grpc://{port.address}") as client, pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(ticket().encode())).read_all()
    seen = f"{caught.value} {caught.value.extra_info}"
    assert "secret" not in seen
    assert "Traceback" not in seen
    correlation = json.loads(caught.value.extra_info)["instance"]
    assert correlation in caplog.text
    assert "/secret/path" in caplog.text
    port.publish(ticket("again"), failing(ValueError("/secret/path"), after))
    with pytest.raises(InternalError, match="Correlation id"):
        get(port.address, ticket("again")).table()


def test_a_long_error_is_cut_and_keeps_its_class(port):
    port.publish(ticket(), failing(StatementError("€" * 100_000, sql="x" * 9000, position=3), 1))
    with pytest.raises(StatementError, match="€€€"):
        get(port.address, ticket()).table()


def put(client):
    writer, reader = client.do_put(flight.FlightDescriptor.for_path("x"), SCHEMA)
    with writer:
        writer.done_writing()
        reader.read()


@pytest.mark.parametrize(
    "call",
    [
        put,
        lambda client: list(client.list_flights()),
        lambda client: list(client.do_action(flight.Action("shutdown", b""))),
        lambda client: client.get_flight_info(flight.FlightDescriptor.for_path("x")),
    ],
)
def test_other_calls_are_refused_without_a_stack(port, call):
    with flight.connect(f"grpc://{port.address}") as client, pytest.raises(flight.FlightServerError) as caught:
        call(client)
    assert json.loads(caught.value.extra_info)["type"] == "method-not-allowed"
    assert "Traceback" not in str(caught.value)


def test_asking_for_a_schema_shows_nothing(port):
    with flight.connect(f"grpc://{port.address}") as client:
        assert client.get_schema(flight.FlightDescriptor.for_path("x")).schema == pa.schema([])
        assert [action.type for action in client.list_actions()] == ["health"]


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
    assert producer.closed.wait(20)
    until(lambda: port.health()["readers"] == 0)


def test_dropping_the_stream_ends_the_producers_side(port):
    producer = Endless()
    port.publish(ticket(), producer)
    stream = get(port.address, ticket())
    next(stream)
    del stream
    gc.collect()
    assert producer.closed.wait(20)


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
    assert left.wait(20)


def test_cancelling_a_consumer_that_waits_for_the_producer(port, pool):
    cancellation = Cancellation()
    reader = pool.submit(get, port.address, ticket(), cancellation)
    until(lambda: port.health()["readers"] == 1)
    cancellation.cancel()
    with pytest.raises(CancelledError):
        reader.result()
    producer = Endless()
    port.publish(ticket(), producer)  # the call that nobody waits for may still claim it, and leaves
    assert producer.closed.wait(20)
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
    port.withdraw("q1", attempt=2)
    assert port.health()["tickets"] == 3
    port.withdraw("q1", cause=BusyError("the query ended"))
    with pytest.raises(BusyError, match="the query ended"):
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
    assert producer.closed.wait(20)


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


@pytest.mark.parametrize("fragment", ["endless", "blocked", "spilled"])
def test_a_producer_that_is_killed_is_lost_and_nothing_stays(fragment, tmp_path, pool):
    with process(_evaluator, str(tmp_path)) as (running, pipe):
        address = pipe.recv()
        assert health(address)["status"] == "ok"
        stream = get(address, ticket(fragment, token="t"))
        next(stream)
        reader = pool.submit(list, stream) if fragment == "blocked" else None
        os.kill(running.pid, 9)
        running.join()
        with pytest.raises(EvaluatorLostError):
            reader.result() if reader else list(stream)
        with pytest.raises(EvaluatorLostError):
            get(address, ticket("endless", token="t"))
        with pytest.raises(EvaluatorLostError):
            health(address)
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("fragment", ["endless", "blocked"])
def test_a_consumer_that_is_killed_frees_its_producer(fragment, tmp_path):
    with process(_evaluator, str(tmp_path)) as (running, events):
        address = events.recv()
        with process(_consumer, address, fragment) as (consumer, pipe):
            assert pipe.recv() == "reads"
            os.kill(consumer.pid, 9)
            assert events.poll(20)
            assert events.recv() == f"closed {fragment}"
        until(lambda: health(address)["readers"] == 0)
        events.send("end")
        running.join(20)
        assert running.exitcode == 0


def test_nobody_there():
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(EvaluatorLostError):
        get(address, ticket())
    with pytest.raises(EvaluatorLostError):
        health(address)


# --- listening


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_only_loopback(host):
    with pytest.raises(ConfigurationError, match="loopback"):
        FlightPort(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_every_name_of_loopback(host):
    with FlightPort(host) as port:
        assert health(port.address) == {"status": "ok", "tickets": 0, "readers": 0}


def test_tls_has_its_place():
    with pytest.raises(ConfigurationError, match="TLS"):
        FlightPort(tls=("certificate", "key"))


def test_a_port_that_is_taken(port):
    with pytest.raises(ConfigurationError, match="cannot listen"):
        FlightPort(port=int(port.address.rsplit(":")[-1]))


def test_rows_that_are_none_arrive_although_the_ticket_is_withdrawn_once_they_were_read() -> None:
    schema = pa.schema([("a", pa.int64())])
    port = FlightPort()
    try:
        ticket = Ticket("q", 1, "f", 0, new_token())

        def opened(_: Cancellation) -> Stream:
            def none() -> Iterator[pa.RecordBatch]:
                yield from ()
                port.withdraw("q", 1)

            return Stream(schema, none())

        port.publish(ticket, opened)
        with fetch(port.address, ticket, cancellation=Cancellation()) as stream:
            assert stream.table().num_rows == 0
    finally:
        port.close()
