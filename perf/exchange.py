"""The exchange between two evaluator processes on loopback, beside a plain socket that copies the same bytes.

The producing process has its tuples in memory, so that only the exchange is measured: outbox, Flight, and for the
hash exchange splitting and joining too. The peer sends the same buffers with ``sendall`` and receives them into one
buffer that is used again: no exchange can be faster over this kernel's loopback.
"""

from __future__ import annotations

import multiprocessing
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pyarrow as pa

from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.execution.exchange.exchange import BlockSize, distribute
from dqp.execution.exchange.outbox import Outbox
from dqp.runtimes.flight.client import fetch, health
from dqp.runtimes.flight.server import FlightPort, Ticket, new_token
from perf.harness import Report, measured, median, ratio, shown
from perf.world import World

ROWS = 122_880
"""Rows of a source batch: what DuckDB gives."""
BATCHES = 64
MESSAGES = 1_000
MIB = 1 << 20


def run(world: World, rounds: int) -> Report:
    del world  # nothing but the two processes is measured
    report = Report("exchange", "Exchange between two evaluators")
    total = sum(each.nbytes for each in tuples())
    with producer() as (ask, address, plain):
        cases: dict[str, Callable[[], object]] = {"socket": lambda: _received_plainly(ask, plain, total)}
        for kib in (64, 256, 1024, 4096):
            cases[f"Flight, blocks of {kib} KiB"] = partial(_gathered, ask, address, kib << 10)
        for partitions in (2, 4, 8):
            cases[f"Flight, hashed to {partitions}"] = partial(_hashed, ask, address, partitions)
        batches = list(tuples())
        cases["in the process, hashed to 4"] = partial(_local, batches, None)
        cases["in the process, hashed to 4, through the disk"] = partial(_local, batches, 8 * MIB)
        seconds = measured(cases, rounds)
        report.text(f"## Throughput\n\n{total / MIB:,.0f} MiB of six columns, medians of {rounds} rounds.")
        report.table(
            ["case", "seconds", "GiB/s", "times the socket's seconds"],
            [
                [
                    case,
                    shown(median(took)),
                    f"{total / 2**30 / median(took):.2f}",
                    f"{ratio(seconds, case, 'socket'):.2f}",
                ]
                for case, took in seconds.items()
            ],
        )
        for case in ("blocks of 1024 KiB", "hashed to 2"):
            speed = total / 2**30 / median(seconds[f"Flight, {case}"])
            report.goal(f"exchange between two evaluators, {case}, GiB/s", speed, 1, at_least=True)
        small = measured(
            {
                "socket, one byte there and back": partial(_echoed, ask, plain),
                "one row, each in a message of its own": partial(_messages, ask, address),
                "one row, each in an exchange of its own": partial(_exchanges, ask, address),
                "the action health": lambda: [health(address) for _ in range(MESSAGES // 10)],
            },
            rounds,
        )
        counts = [MESSAGES, MESSAGES, MESSAGES // 10, MESSAGES // 10]
        report.text(
            f"## Small messages\n\nSeconds of one, medians of {rounds} rounds. An exchange has a connection of its own."
        )
        report.table(
            ["case", "each"],
            [[case, shown(median(took) / n)] for (case, took), n in zip(small.items(), counts, strict=True)],
        )
    return report


def tuples() -> Iterator[pa.RecordBatch]:
    """Two integers, a double, a decimal, a short and a longer text."""
    names = pa.array([f"name {number}" for number in range(50_000)])
    keys = np.arange(ROWS)
    batch = pa.record_batch(
        {
            "id": keys,
            "k": keys * 7919 % 1_000_000,
            "v": keys / 7,
            "amt": pa.array(keys).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
            "s1": names.take(pa.array(keys % 50_000)),
            "s2": pa.array([f"{number * 2654435761:032x}" for number in keys.tolist()]),
        }
    )
    return iter([batch] * BATCHES)


# --- the producing process


def _produce(pipe: Connection) -> None:
    batches = list(tuples())
    ones = [batches[0].slice(0, 1)] * MESSAGES
    listener = socket.create_server(("127.0.0.1", 0))
    with FlightPort() as port:
        pipe.send((port.address, listener.getsockname()[1]))
        query, attempt = "", 0
        while (asked := pipe.recv()) is not None:
            kind, ticket, partitions, block = asked
            if kind == "socket":
                threading.Thread(target=_send_plainly, args=(listener, batches)).start()
            elif kind == "echo":
                threading.Thread(target=_echo, args=(listener,)).start()
            else:
                source = {"all": batches, "ones": ones, "one": ones[:1]}[kind]
                port.withdraw(query, attempt)
                query, attempt = ticket.query, ticket.attempt
                _publish(port, ticket, source, partitions, block)
            pipe.send("ready")


def _publish(
    port: FlightPort, ticket: Ticket, batches: list[pa.RecordBatch], partitions: int, block: BlockSize
) -> None:
    outbox = Outbox(batches[0].schema, partitions)
    for partition in range(partitions):
        ours = Ticket(ticket.query, ticket.attempt, ticket.fragment, partition, ticket.token)
        port.publish(ours, partial(outbox.stream, partition))
    threading.Thread(target=_fill, args=(outbox, batches, partitions, block)).start()


def _fill(outbox: Outbox, batches: list[pa.RecordBatch], partitions: int, block: BlockSize) -> None:
    stream = Stream(outbox.schema, batches)
    if partitions == 1:
        return distribute(stream, outbox, Cancellation(), block=block)
    numbered = stream.map(lambda batch: batch.append_column("bucket", pa.array(batch["id"].to_numpy() % partitions)))
    return distribute(numbered, outbox, Cancellation(), buckets="bucket", block=block)


def _send_plainly(listener: socket.socket, batches: list[pa.RecordBatch]) -> None:
    connection, _ = listener.accept()
    with connection:
        for batch in batches:
            for column in batch.columns:
                for buffer in column.buffers():
                    if buffer is not None:
                        connection.sendall(buffer)


def _echo(listener: socket.socket) -> None:
    connection, _ = listener.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := connection.recv(1):
            connection.sendall(data)


# --- the consuming process

Ask = Callable[..., Ticket]


@contextmanager
def producer() -> Iterator[tuple[Ask, str, int]]:
    """A producing process: how to ask it for something, its Flight address, its plain port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_produce, args=(theirs,))
    process.start()
    address, plain = ours.recv()
    consuming = FlightPort()  # every evaluator has one
    token = new_token()

    def ask(kind: str, partitions: int = 1, block: BlockSize | None = None) -> Ticket:
        ticket = Ticket(uuid.uuid4().hex, 1, kind, 0, token)
        ours.send((kind, ticket, partitions, block or BlockSize()))
        assert ours.recv() == "ready"
        return ticket

    try:
        yield ask, address, plain
    finally:
        consuming.close()
        ours.send(None)
        process.join(20)
        process.kill()


def _drain(stream: Stream) -> int:
    with stream:
        return sum(batch.num_rows for batch in stream)


def _read(address: str, ticket: Ticket, partitions: int) -> int:
    rows = [0] * partitions

    def read(partition: int) -> None:
        mine = Ticket(ticket.query, ticket.attempt, ticket.fragment, partition, ticket.token)
        rows[partition] = _drain(fetch(address, mine, cancellation=Cancellation()))

    readers = [threading.Thread(target=read, args=(partition,)) for partition in range(partitions)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return sum(rows)


def _gathered(ask: Ask, address: str, block: int) -> None:
    assert _read(address, ask("all", 1, BlockSize(bytes=block)), 1) == ROWS * BATCHES


def _hashed(ask: Ask, address: str, partitions: int) -> None:
    assert _read(address, ask("all", partitions), partitions) == ROWS * BATCHES


def _local(batches: list[pa.RecordBatch], memory: int | None) -> None:
    """Without Flight: split, joined, buffered. With ``memory`` nobody reads until all of it is there."""
    with tempfile.TemporaryDirectory() as directory:
        outbox = Outbox(
            batches[0].schema, 4, memory_bytes=memory or 64 * MIB, directory=Path(directory) if memory else None
        )
        rows = [0] * 4

        def read(partition: int) -> None:
            rows[partition] = _drain(outbox.stream(partition))

        filling = threading.Thread(target=_fill, args=(outbox, batches, 4, BlockSize()))
        readers = [threading.Thread(target=read, args=(partition,)) for partition in range(4)]
        for thread in [filling] if memory else [filling, *readers]:
            thread.start()
        if memory:
            filling.join()
            assert outbox.measure.now.spooled > 0
            for thread in readers:
                thread.start()
        for thread in [filling, *readers]:
            thread.join()
        assert sum(rows) == ROWS * BATCHES


def _messages(ask: Ask, address: str) -> None:
    assert _read(address, ask("ones", 1, BlockSize(seconds=0)), 1) == MESSAGES


def _exchanges(ask: Ask, address: str) -> None:
    for _ in range(MESSAGES // 10):
        assert _drain(fetch(address, ask("one"), cancellation=Cancellation())) == 1


def _received_plainly(ask: Ask, port: int, total: int) -> None:
    ask("socket")
    received, buffer = 0, bytearray(MIB)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while count := connection.recv_into(buffer):
            received += count
    assert received >= total


def _echoed(ask: Ask, port: int) -> None:
    ask("echo")
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(MESSAGES):
            connection.sendall(b"x")
            connection.recv(1)
