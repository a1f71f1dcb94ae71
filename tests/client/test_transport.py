import gzip
import socket
import ssl
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import pytest
import zstandard

from dai.client.http.connection import Connection
from dai.client.http.transport import Options, Transport
from dai.client.testing import Request, Scripted, ScriptedServer
from dai.errors import (
    BusyError,
    CancelledError,
    DatabaseUnavailableError,
    RequestError,
    TruncatedError,
    UnreachableError,
)
from dai.streams.cancellation import Cancellation
from tests.client.replies import problem, said

QUICK = Options(backoff=0.001, patience=0.01)
QUERY = b'{"sql": "select 1"}'


def read(transport: Transport, path: str = "/x") -> bytes:
    with transport.send("GET", path).body as body:
        return body.read_all()


@pytest.mark.parametrize("body", [b"", b"abc", [b"abc", b"def" * 50_000], []])
def test_a_body_is_read_whole_and_its_connection_used_again(body: bytes | list[bytes]) -> None:
    with ScriptedServer(Scripted(body=body)) as server:
        transport = Transport(server.url)
        for _ in range(3):
            assert read(transport) == (body if isinstance(body, bytes) else b"".join(body))
        assert server.connections == 1
        transport.close()


def test_readinto_fills_the_buffer_across_chunks() -> None:
    with ScriptedServer(Scripted(body=[b"abc", b"defg", b"h"])) as server:
        buffer = bytearray(6)
        with Transport(server.url).send("GET", "/").body as body:
            assert body.readinto(memoryview(buffer)) == 6
            assert buffer == b"abcdef"
            assert body.readinto(memoryview(buffer)) == 2
            assert buffer[:2] == b"gh"
            assert body.readinto(memoryview(buffer)) == 0
            assert body.ended
            assert body.received == 8


@pytest.mark.parametrize("body", [b"abc", [b"abc"], [b"abc" * 200_000], []])
def test_a_transfer_that_breaks_off_is_noticed(body: bytes | list[bytes]) -> None:
    with ScriptedServer(Scripted(body=body, broken=True)) as server:
        transport = Transport(server.url)
        with pytest.raises(TruncatedError, match="not the whole"):
            read(transport)
        with transport.send("GET", "/").body as reading, pytest.raises(TruncatedError):
            reading.readinto(memoryview(bytearray(1_000_000)))


def test_a_body_without_an_end_mark_is_not_taken_for_whole() -> None:
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listening.accept()
        connection.recv(10_000)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/csv\r\n\r\na,b\r\n")
        connection.close()

    thread = threading.Thread(target=answer)
    thread.start()
    with listening, pytest.raises(TruncatedError):
        read(Transport(f"http://127.0.0.1:{listening.getsockname()[1]}"))
    thread.join()


@pytest.mark.parametrize(
    ("reply", "connections"),
    [
        (Scripted(204), 1),
        (said({"title": "There is no such session."}, 404), 1),
        (Scripted(body=b"x" * 100_000), 2),
        (Scripted(204, headers={"Connection": "close"}), 2),
        (Scripted(0, broken=True), 2),
        (Scripted(body=[b"abc"], held=True), 2),
    ],
)
def test_a_reply_that_nobody_waits_for_is_read_before_the_connection_is_used_again(
    monkeypatch: pytest.MonkeyPatch, reply: Scripted, connections: int
) -> None:
    monkeypatch.setattr("dai.client.http.connection.OWED_SECONDS", 0.5)
    with ScriptedServer(reply, Scripted(body=b"abc")) as server:
        transport = Transport(server.url)
        transport.tell("DELETE", "/x")
        with transport.send("POST", "/y", b"").body as body:
            assert body.read_all() == b"abc"
        assert [each.method for each in server.requests] == ["DELETE", "POST"]
        assert server.connections == connections
        transport.close()


def test_a_reply_that_does_not_come_keeps_no_request_waiting() -> None:
    """The connection is given up, another one opened."""
    go_on = threading.Event()

    def late(_: Request) -> Scripted:
        go_on.wait(60)
        return Scripted(204)

    with ScriptedServer(late, Scripted(body=b"abc")) as server:
        transport = Transport(server.url)
        transport.tell("DELETE", "/x")
        began = time.monotonic()
        assert read(transport) == b"abc"
        assert time.monotonic() - began < 2.5
        go_on.set()
        assert (server.connections, [each.method for each in server.requests]) == (2, ["DELETE", "GET"])
        transport.close()


def test_a_reply_over_a_slow_network_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as opening another connection takes."""
    monkeypatch.setattr(Connection, "opening", 0.8, raising=False)
    monkeypatch.setattr(Connection, "connect", HTTPConnection.connect)

    def late(_: Request) -> Scripted:
        time.sleep(0.2)
        return Scripted(204)

    with ScriptedServer(late, Scripted(body=b"abc")) as server:
        transport = Transport(server.url)
        transport.tell("DELETE", "/x")
        assert read(transport) == b"abc"
        assert server.connections == 1
        transport.close()


def test_what_is_told_to_a_service_that_is_away_is_lost() -> None:
    with ScriptedServer(Scripted()) as server:
        transport = Transport(server.url)
    transport.tell("DELETE", "/x")
    with pytest.raises(UnreachableError):
        read(transport)


def test_closing_a_body_before_its_end_closes_the_connection() -> None:
    with ScriptedServer(Scripted(body=[b"abc"], held=True)) as server:
        body = Transport(server.url).send("GET", "/").body
        assert body.read1() == b"abc"
        body.close()
        assert server.abandoned.wait(60)
        with pytest.raises(TruncatedError, match="closed before"):
            body.read1()


def test_an_interrupt_while_reading_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(Scripted(body=[b"abc"], held=True)) as server:
        body = Transport(server.url).send("GET", "/").body
        response = body._plain._response

        def interrupted(size: int) -> bytes:
            raise KeyboardInterrupt

        monkeypatch.setattr(response, "read1", interrupted)
        with pytest.raises(KeyboardInterrupt):
            body.read1()
        assert server.abandoned.wait(60)


@pytest.mark.parametrize("compression", ["identity", "zstd", "gzip"])
def test_cancelling_wakes_who_reads_and_closes_the_connection(compression: str) -> None:
    start = {"identity": b"abc", "zstd": zstandard.compress(b"abc" * 100)[:10], "gzip": gzip.compress(b"abc")[:5]}
    held = Scripted(body=[start[compression]], headers={"Content-Encoding": compression}, held=True)
    with ScriptedServer(held) as server, ThreadPoolExecutor(1) as pool:
        cancellation = Cancellation()
        body = Transport(server.url).send("GET", "/", cancellation=cancellation).body
        reading = pool.submit(body.readinto, memoryview(bytearray(1000)))
        cancellation.cancel(CancelledError("enough"))
        with pytest.raises(CancelledError, match="enough"):
            reading.result(timeout=30)
        body.close()
        assert server.abandoned.wait(60)
        with pytest.raises(CancelledError):
            Transport(server.url).send("GET", "/", cancellation=cancellation)


def test_cancelling_what_nobody_reads_closes_the_connection() -> None:
    with ScriptedServer(Scripted(body=[b"abc"] * 10)) as server:
        cancellation = Cancellation()
        body = Transport(server.url).send("GET", "/", cancellation=cancellation).body
        assert body.read1(1)
        cancellation.cancel(CancelledError("enough"))
        assert body._plain._connection.sock is None
        with pytest.raises(CancelledError, match="enough"):
            body.read1()


def test_cancelling_at_the_end_of_a_read_closes_the_connection() -> None:
    """Who cancels finds somebody reading, who has all he wanted already."""

    class Late:
        """Where the reader says that it has read, it is cancelled before."""

        def __init__(self) -> None:
            self.inner, self.reader, self.entered = threading.Lock(), threading.get_ident(), 0

        def __enter__(self) -> None:
            if threading.get_ident() == self.reader:
                self.entered += 1
                if self.entered == 2:
                    late = threading.Thread(target=cancellation.cancel)
                    late.start()
                    late.join()
            self.inner.acquire()

        def __exit__(self, *_: object) -> None:
            self.inner.release()

    with ScriptedServer(Scripted(body=[b"abc"] * 10)) as server:
        cancellation = Cancellation()
        body = Transport(server.url).send("GET", "/", cancellation=cancellation).body
        body._plain._lock = Late()  # type: ignore[assignment]
        with pytest.raises(CancelledError):
            body.read1(1)
        assert body._plain._connection.sock is None


def test_a_connection_is_used_again_after_a_cancellation_that_came_too_late() -> None:
    with ScriptedServer(Scripted(body=b"abc")) as server:
        transport, cancellation = Transport(server.url), Cancellation()
        with transport.send("GET", "/", cancellation=cancellation).body as body:
            assert body.read_all() == b"abc"
        cancellation.cancel()
        assert read(transport) == b"abc"
        assert server.connections == 1
        transport.close()


@pytest.mark.parametrize(
    ("compression", "compress"), [("zstd", zstandard.ZstdCompressor().compress), ("gzip", gzip.compress)]
)
def test_compressed_bodies(compression, compress) -> None:
    data = b"0123456789" * 100_000
    packed = compress(data)
    half = len(packed) // 2
    whole = Scripted(body=[packed[:half], packed[half:]], headers={"Content-Encoding": compression})
    cut = Scripted(body=[packed[:half]], headers={"Content-Encoding": compression}, broken=True)
    with ScriptedServer(whole, whole, cut) as server:
        transport = Transport(server.url, Options(compression=compression))
        assert read(transport) == data
        with transport.send("GET", "/").body as body:
            buffer = bytearray(len(data) + 1)
            assert body.readinto(memoryview(buffer)) == len(data)
        assert server.connections == 1
        assert server.requests[0].headers["accept-encoding"] == compression
        with pytest.raises(TruncatedError):
            read(transport)


def test_compression_is_not_asked_for_on_loopback() -> None:
    with ScriptedServer(Scripted()) as server:
        read(Transport(server.url))
        assert server.requests[0].headers["accept-encoding"] == "identity"
    assert Transport("http://example.org")._headers["Accept-Encoding"] == "zstd"
    with pytest.raises(RequestError, match="no compression"):
        Transport("http://example.org", Options(compression="rar"))


def test_busy_is_tried_again_and_then_told() -> None:
    busy = problem(503, type="busy", detail="All 16 places are taken.", retry_after=7)
    with ScriptedServer(busy, busy, said("well")) as server:
        reply = Transport(server.url, QUICK).send("POST", "/resources/data/query", QUERY)
        assert reply.json() == "well"
        assert [each.body for each in server.requests] == [QUERY] * 3
        assert server.connections == 1
    with ScriptedServer(busy) as server:
        with pytest.raises(BusyError, match="All 16 places") as caught:
            Transport(server.url, QUICK).send("POST", "/resources/data/query", QUERY)
        assert caught.value.retry_after == 7
        assert len(server.requests) == 1 + QUICK.retries


def test_who_has_another_place_to_ask_repeats_only_what_a_busy_service_refused() -> None:
    options = replace(QUICK, busy_only=True)
    busy = problem(503, type="busy", detail="All 16 places are taken.", retry_after=7)
    with ScriptedServer(busy, said("well")) as server:
        assert Transport(server.url, options).send("POST", "/resources/data/query", QUERY).json() == "well"
    away = problem(503, type="database-unavailable", detail="It is away.", retry_after=7)
    for answer, error in ((away, DatabaseUnavailableError), (Scripted(status=0, broken=True), UnreachableError)):
        for method in ("GET", "POST"):
            with ScriptedServer(answer, said("well")) as server:
                with pytest.raises(error):
                    Transport(server.url, options).send(method, "/resources/data/query", QUERY)
                assert len(server.requests) == 1


def test_a_request_that_may_have_been_run_is_not_repeated() -> None:
    lost = Scripted(status=0, broken=True)
    with ScriptedServer(lost, said("well")) as server:
        with pytest.raises(UnreachableError, match="closed the connection"):
            Transport(server.url, QUICK).send("POST", "/jobs", b"{}")
        assert len(server.requests) == 1
    with ScriptedServer(lost, lost, said("well")) as server:
        assert Transport(server.url, QUICK).send("GET", "/jobs").json() == "well"
        assert len(server.requests) == 3


def test_a_connection_closed_while_idle_is_replaced() -> None:
    with ScriptedServer(Scripted(body=b"one")) as server:
        transport = Transport(server.url, Options(retries=0))
        read(transport)
        # What a service does that closes idle connections: an end arrives.
        transport._idle[0].sock.shutdown(socket.SHUT_RD)
        with transport.send("POST", "/", b"x").body as body:
            assert body.read_all() == b"one"
        assert server.connections == 2


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A key and its certificate for 127.0.0.1, made now, in one file."""
    made = tmp_path / "service.pem"
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(made)]
    names = ["-subj", "/CN=service", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2"]
    done = subprocess.run(["openssl", "req", "-x509", *key, *names], capture_output=True, check=True)
    with made.open("ab") as file:
        file.write(done.stdout)
    return made


def test_tls_with_a_known_certificate_and_none_with_an_unknown_one(certificate: Path) -> None:
    server = ScriptedServer(Scripted(body=[b"secret"]), Scripted(body=b"x" * 1000))
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(certificate)
    server._server.socket = own.wrap_socket(server._server.socket, server_side=True)
    with server:
        url = server.url.replace("http:", "https:")
        transport = Transport(url, Options(tls=ssl.create_default_context(cafile=certificate)))
        assert read(transport) == b"secret"
        with transport.send("POST", "/", b"y" * 100_000).body as body:
            assert body.read_all() == b"x" * 1000
        assert server.requests[-1].body == b"y" * 100_000
        transport.close()
        with pytest.raises(UnreachableError, match="No secure connection"):
            read(Transport(url, Options(retries=0)))
        with pytest.raises(UnreachableError):
            read(Transport(server.url, Options(retries=0)))
