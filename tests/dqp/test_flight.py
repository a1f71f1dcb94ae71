"""The Flight port: tuples, tickets and tokens, errors as they were, and where it listens."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import flight

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
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.execution.exchange.exchange import BlockSize, distribute
from dqp.execution.exchange.outbox import Outbox
from dqp.runtimes.flight import server
from dqp.runtimes.flight.client import fetch, health
from dqp.runtimes.flight.server import FlightPort, Ticket, new_token
from tests.dqp.tickets import SCHEMA, TOKEN, batch, get, of, ticket
from tests.processes import until

SERVICE = "arrow.flight.protocol.FlightService"

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


def _strings(offsets: list[int]) -> pa.Array:
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1], pa.py_buffer(b"abc")]
    return pa.Array.from_buffers(pa.string(), len(offsets) - 1, buffers)


def _list(offsets: list[int]) -> pa.Array:
    buffers = [None, pa.array(offsets, pa.int32()).buffers()[1]]
    return pa.Array.from_buffers(
        pa.list_(pa.int8()), len(offsets) - 1, buffers, children=[pa.array([1, 2, 3], pa.int8())]
    )


@pytest.mark.parametrize(
    "damaged",
    [
        _strings([0, 1_900_000_000, 1_900_000_100, 3]),
        _list([0, 1_900_000_000, 1_900_000_100, 3]),
        pa.DictionaryArray.from_arrays(pa.array([1_000_000_000, 0, 0], pa.int32()), pa.array(["a"]), safe=False),
    ],
    ids=["text", "list", "dictionary"],
)
def test_damaged_tuples_are_an_error(port, damaged):
    """Whoever computes with them reads memory that is not theirs: the process ends."""
    sent = pa.record_batch([damaged], ["a"])
    port.publish(ticket(), lambda _: Stream(sent.schema, [sent]))
    with pytest.raises(InternalError, match="ArrowInvalid"):
        get(port.address, ticket()).table()


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
    until(lambda: port.health()["readers"] == 0)


def test_a_consumer_does_not_wait_for_ever(port):
    with pytest.raises(NotFoundError, match=r"did not start within 0\.05 s"):
        get(port.address, ticket(), timeout=0.05)


def test_of_many_readers_only_those_wait_whose_producer_is_expected(port, pool, monkeypatch):
    """Anybody can make up a ticket, and each that waits has a thread."""
    monkeypatch.setattr(server, "MOST_EARLY", 1)
    port.expect("q1", 1)
    waiting = pool.submit(lambda: get(port.address, Ticket("unknown", 1, "f", 0, TOKEN)).table())
    until(lambda: port.health()["readers"] == 1)
    expected = pool.submit(lambda: get(port.address, ticket()).table())
    until(lambda: port.health()["readers"] == 2)
    made_up, patience = Ticket("made up", 1, "f", 0, "x").encode(30.0), flight.FlightCallOptions(timeout=20)
    with flight.connect(f"grpc://{port.address}") as client, pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(made_up), patience)
    assert json.loads(caught.value.extra_info)["started"] is False
    assert port.health()["readers"] == 2
    port.publish(ticket(), of(batch(0)))
    assert expected.result().num_rows == 100
    port.publish(Ticket("unknown", 1, "f", 0, TOKEN), of(batch(0)))
    assert waiting.result().num_rows == 100


def test_tickets_that_are_made_up_take_few_threads(port, pool):
    """What they take is missing elsewhere: gRPC ends a process without memory for another thread."""
    refused = []

    def ask(client, partition):
        made_up = flight.Ticket(Ticket("made up", 1, "f", partition, "x").encode(30.0))
        with pytest.raises(flight.FlightServerError):
            client.do_get(made_up, flight.FlightCallOptions(timeout=20))
        refused.append(partition)

    with flight.connect(f"grpc://{port.address}") as client, ThreadPoolExecutor(40) as readers:
        asking = [readers.submit(ask, client, partition) for partition in range(40)]
        until(lambda: len(refused) == 40 - server.MOST_EARLY)
        early = pool.submit(lambda: get(port.address, ticket()).table())  # it is told not to wait, and comes again
        until(lambda: port.health()["readers"] == server.MOST_EARLY)
        port.publish(ticket(), of(batch(0)))
        assert early.result().num_rows == 100
        port.withdraw("made up", 1)
        for each in asking:
            each.result()


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
        json.dumps({**json.loads(ticket().encode()), "wait": 31}).encode(),
        json.dumps({**json.loads(ticket().encode()), "wait": float("nan")}).encode(),
        json.dumps({**json.loads(ticket().encode()), "more": 1}).encode(),
        json.dumps({**json.loads(ticket().encode()), "token": "\ud800"}).encode(),
        json.dumps({**json.loads(ticket().encode()), "fragment": "\ud800"}).encode(),
        json.dumps({**json.loads(ticket().encode()), "wait": 10**400}).encode(),
        b"[" * 100_000,
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


def test_an_error_with_half_a_character_keeps_its_class(port):
    port.publish(ticket(), failing(StatementError("no column \ud800"), 0))
    with pytest.raises(StatementError, match=r"no column \?"):
        get(port.address, ticket()).table()


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
        with pytest.raises(OSError, match="Method not allowed") as caught:
            client.get_schema(flight.FlightDescriptor.for_path("x"))
        assert "Traceback" not in str(caught.value)
        assert [action.type for action in client.list_actions()] == ["health"]


def test_a_call_is_refused_before_its_first_message(port):
    """It would have a thread until that comes."""
    names = {":method": "POST", ":scheme": "http", ":path": f"/{SERVICE}/DoPut", ":authority": "x", "te": "trailers"}
    names["content-type"] = "application/grpc"
    head = b"".join(b"\0%c%b%c%b" % (len(a), a.encode(), len(b), b.encode()) for a, b in names.items())
    host, _, number = port.address.rpartition(":")
    with socket.create_connection((host, int(number)), timeout=60) as connection, connection.makefile("rb") as answer:
        settings, opening = b"\0\0\0\4\0\0\0\0\0", b"%b\1\4\0\0\0\1%b" % (len(head).to_bytes(3), head)
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + opening)
        kind, flags = 0, 0
        while (kind, flags & 1) != (1, 1):  # headers that end the answer
            size, kind, flags = int.from_bytes(answer.read(3)), *answer.read(2)
            answer.read(4 + size)


# --- listening


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_only_loopback(host):
    with pytest.raises(ConfigurationError, match="loopback"):
        FlightPort(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_every_name_of_loopback(host):
    with FlightPort(host) as port:
        assert health(port.address, timeout=60) == port.health()
        assert port.health().items() >= {"status": "ok", "tickets": 0, "readers": 0}.items()


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


def test_the_allocator_of_the_c_library_can_be_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[int, int]] = []
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(mallopt=lambda *each: calls.append(each)))
    for keep in (True, False):
        with FlightPort(keep_freed_memory=keep):
            assert bool(calls) is keep
        calls.clear()
