"""A service with a replica catalog and an index, and a client of the original protocol."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dai.api.server.serve import Background, background
from tests.api.conftest import configured


class RpcClient:
    """Written from the description of the protocol; nothing of it is shared with the server."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=100)
        self._read = b""
        assert self.text() == "0"

    def text(self) -> str:
        while b"\0" not in self._read:
            data = self._socket.recv(1 << 16)
            if not data:
                raise EOFError
            self._read += data
        text, self._read = self._read.split(b"\0", 1)
        return text.decode()

    def send(self, *texts: str) -> None:
        self.send_bytes("".join(each + "\0" for each in texts).encode())

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def call(self, *texts: str) -> int:
        """The code of a method without results."""
        self.send(*texts)
        code = int(self.text())
        self.said = self.text() if code else ""
        return code

    def lists(self, width: int, *texts: str) -> list[tuple[str, ...]]:
        """The results of a method, so many texts each; ``code`` and ``said`` where it failed, ``more`` where its limit
        cut them."""
        self.send(*texts)
        self.code, self.said, self.more = int(self.text()), "", False
        if self.code:
            self.said = self.text()
            return []
        listed: list[tuple[str, ...]] = []
        while (text := self.text()) not in ("", "\x01"):
            listed.append((text, *(self.text() for _ in range(width - 1))))
        self.more = text == "\x01"
        return listed

    def read_nothing(self) -> None:
        """From now on little of what comes fits in here."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)

    def ended(self) -> bool:
        """Whether the server has closed the connection."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(scope="module")
def located(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Background]:
    """A service whose catalog tells its own index."""
    directory: Path = tmp_path_factory.mktemp("replicas")
    replicas = {"catalog": "sqlite:///replicas.db", "url": "rlsn://here", "rpc_port": 0, "change_seconds": 0.05}
    with background(configured(directory, {}, replicas=replicas)) as running:
        yield running


@pytest.fixture
def rpc(located: Background) -> Iterator[RpcClient]:
    assert located.rpc_port is not None
    client = RpcClient(located.rpc_port)
    assert client.call("lrc_clear") == 0
    yield client
    client.close()
