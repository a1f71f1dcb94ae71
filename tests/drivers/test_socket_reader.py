"""Bytes from a socket, in pieces."""

import select
import socket
import threading
import time

import pytest

from dai.drivers.connections.socket_reader import MANY, PIECE, SocketReader


def connected(tcp: bool) -> tuple[socket.socket, socket.socket]:
    if not tcp:
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


class Polls:
    """Counts how often the reader looked."""

    def __init__(self) -> None:
        self.count = 0
        self._poll = select.poll()

    def register(self, *what: int) -> None:
        self._poll.register(*what)

    def poll(self, *milliseconds: int) -> list[tuple[int, int]]:
        self.count += 1
        return self._poll.poll(*milliseconds)


@pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "unix"])
@pytest.mark.parametrize("blocking", [True, False])
def test_many_bytes_and_an_end_that_does_not_come(tcp: bool, blocking: bool) -> None:
    near, far = connected(tcp)
    sent = MANY + 3 * PIECE + 12_345
    with near, far:
        near.setblocking(blocking)
        thread = threading.Thread(target=far.sendall, args=(bytes(sent),))
        thread.start()
        reader = SocketReader(near.fileno(), AssertionError)
        taken = 0
        while taken < sent:
            reader.fill(1, lambda: 1, lambda last: False)
            taken += len(reader)
            reader.skip(len(reader))
            assert near.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        thread.join()
        assert taken == sent
        assert near.fileno() >= 0


def test_a_reader_of_many_bytes_is_not_woken_for_each_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    polls = Polls()
    monkeypatch.setattr("dai.drivers.connections.socket_reader.select.poll", lambda: polls)
    near, far = connected(True)
    with near, far:
        near.setblocking(False)
        reader = SocketReader(near.fileno(), AssertionError)
        reader._taken, reader._piece = MANY + 1, PIECE

        def send() -> None:
            for _ in range(0, PIECE, 4096):
                far.sendall(bytes(4096))
                time.sleep(0.000_01)

        thread = threading.Thread(target=send)
        thread.start()
        reader.fill(1, lambda: 1, lambda last: False)
        thread.join()
        assert polls.count < PIECE // 4096 / 2
