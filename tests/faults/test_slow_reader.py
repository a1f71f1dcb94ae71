"""A client that stops reading: how much the service takes from the database meanwhile, counted on the wire."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import dai
from dai.drivers import DriverOptions
from tests.faults.conftest import Database, Start
from tests.faults.test_database_restart import stream_document
from tests.processes import until

ROWS = 20_000
WIDTH = 200


class Wire:
    """Stands between the service and its database and counts what the service has read of the answers."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._passed = 0
        self._open: list[socket.socket] = []
        self._forwarding: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()

    def _accept(self) -> None:
        while True:
            try:
                service, _ = self._listening.accept()
            except OSError:
                return
            database = socket.create_connection(("127.0.0.1", self._target))
            self._open += [service, database]
            for ends in ((service, database, False), (database, service, True)):
                self._forwarding.append(threading.Thread(target=self._forward, args=ends, daemon=True))
                self._forwarding[-1].start()

    def _forward(self, source: socket.socket, target: socket.socket, counted: bool) -> None:
        try:
            while data := source.recv(1 << 16):
                view = memoryview(data)
                while view:
                    sent = target.send(view)
                    self._passed += sent if counted else 0
                    view = view[sent:]
        except OSError:
            pass
        finally:
            # the end of one side is the end of the other, whatever is on its way
            for each in (source, target):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    @property
    def read(self) -> int:
        """Bytes that have left the kernel's buffers into the service."""
        return self._passed - in_kernel(self.port, towards=False)

    def close(self) -> None:
        """Ends every connection: the database keeps none to the tests that follow."""
        # a thread in accept() or recv() does not notice that its socket is closed, and keeps it open
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._accepting.join()
        for each in self._open:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for each in self._forwarding:
            each.join()
        for each in (self._listening, *self._open):
            each.close()


def in_kernel(port: int, *, towards: bool) -> int:
    """Bytes on their way to (``towards``) or from whoever owns the port: not sent yet, or not read yet."""
    total = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        unsent, unread = (int(each, 16) for each in queues.split(":"))
        if int(local.split(":")[1], 16) == port:
            total += unread if towards else unsent
        elif int(remote.split(":")[1], 16) == port:
            total += unsent if towards else unread
    return total


@pytest.fixture
def wire(database: Database) -> Iterator[Wire]:
    made = Wire(database.server.port)
    yield made
    made.close()


def settled(wire: Wire) -> int:
    """What was read in the end: it no longer grows, for two seconds."""
    before, since = -1, time.monotonic()

    def still() -> bool:
        nonlocal before, since
        now = wire.read
        if now != before:
            before, since = now, time.monotonic()
        return time.monotonic() - since > 2

    until(still)
    return before


@pytest.mark.parametrize(
    ("database", "form"),
    [
        ("postgresql", "text/csv"),
        ("postgresql", "application/vnd.apache.arrow.stream"),
        ("mariadb", "application/vnd.webrowset+xml"),
    ],
    indirect=["database"],
)
def test_at_most_two_blocks_are_held(start: Start, database: Database, wire: Wire, form: str) -> None:
    url = database.server.url.replace(str(database.server.port), str(wire.port))
    service = start(resources={"lab": url})
    with service.client() as client:
        assert client.post("/resources/lab/query", json={"sql": "select 1 as a"}).status_code == 200
        base = wire.read
        connection = http.client.HTTPConnection("127.0.0.1", service.port)
        body = json.dumps({"sql": database.endless, "blocksize": ROWS})
        connection.request("POST", "/resources/lab/query", body, {"Content-Type": "application/json", "Accept": form})
        assert connection.sock is not None
        mine = connection.sock.getsockname()[1]
        until(lambda: wire.read - base > ROWS * WIDTH)
        taken = settled(wire) - base
        unread = in_kernel(mine, towards=True)
        held = taken - unread
        block = ROWS * WIDTH
        print(f"{form}: read {taken:,}, in the kernel {unread:,}, so held at most {held:,}; a block is {block:,}")
        assert taken > block
        # two blocks, and the two batches of the driver that they are cut from
        assert held <= 2 * 1.2 * block + 2 * DriverOptions().batch_bytes
        connection.close()
        until(lambda: database.at_work == 0)
        until(service.at_rest)


def test_at_most_two_blocks_of_a_pulled_stream_are_held(start: Start, database: Database, wire: Wire) -> None:
    url = database.server.url.replace(str(database.server.port), str(wire.port))
    service = start(resources={"lab": url})
    lab = dai.connect(f"{service.url}/lab", retries=0)
    response = lab.perform(stream_document(database.endless), blocksize=ROWS)
    with service.client() as client:

        def held() -> int:
            (stream,) = client.get(f"/sessions/{response.session}").json()["streams"]
            return int(stream["blocks"])

        until(lambda: held() == 2)
        taken = settled(wire)
        assert held() == 2
        # two that wait, and the one that the producer is held with
        assert taken <= 3 * 1.2 * ROWS * WIDTH + 2 * DriverOptions().batch_bytes
        assert client.delete(f"/sessions/{response.session}").status_code == 204
    until(lambda: database.at_work == 0)
    until(service.at_rest)
    lab.close()
