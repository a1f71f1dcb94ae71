"""HTTP on a connection: heads and bodies that are too long or too slow, HTTP/1.0, transfers that break off."""

import http.client
import logging
import re
import socket
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any
from urllib.parse import urlsplit

import orjson
import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from dai.api.requests.head import HEAD_BYTES
from dai.api.server.protocol import LARGE_BYTES, MOST_WAITING
from dai.api.server.serve import Background, background
from tests.api.conftest import ENDLESS, FAILS_LATE, configured, streamed

SOON = 60.0
SHORT = 0.3
A = b"a" * (1 << 20)
QUERY = (
    b"POST /resources/book/query HTTP/1.%d\r\nHost: localhost\r\nContent-Type: application/json\r\nAccept: text/csv\r\n"
)


def connected(running: Background) -> socket.socket:
    parts = urlsplit(running.url)
    return socket.create_connection((parts.hostname, parts.port), timeout=SOON)


def head_of(wire: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Status and headers of the next answer, and what follows them already."""
    received = b""
    while b"\r\n\r\n" not in received:
        piece = wire.recv(1 << 16)
        assert piece, f"the connection ended after {received!r}"
        received += piece
    head, _, rest = received.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), {name.lower(): value for name, value in (each.split(": ", 1) for each in lines)}, rest


def rest_of(wire: socket.socket) -> bytes:
    received = b""
    while piece := wire.recv(1 << 20):
        received += piece
    return received


def asked(wire: socket.socket, sql: str, version: int = 1) -> None:
    body = orjson.dumps({"sql": sql})
    wire.sendall(QUERY % version + b"Content-Length: %d\r\n\r\n" % len(body) + body)


def refused(wire: socket.socket) -> None:
    """431, and then the end, whatever is still sent."""
    status, headers, rest = head_of(wire)
    assert (status, headers["content-type"]) == (431, "application/problem+json")
    with suppress(OSError):
        rest += rest_of(wire)
    assert orjson.loads(rest)["type"] == "head-too-large"


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 4\r\nTransfer-Encoding: chunked",
        b"Transfer-Encoding: chunked\r\nContent-Length: 4",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        b"Content-Length: 2\r\nContent-Length: 3",
        b"Content-Length : 2",
        b"Content-Length: +2",
        b"Content-Length: 2\r\nX-A: 1\r\n Authorization: folded",
        b"Content-Length: 2\r\nX-A: 1\0",
        b"Content-Length: 2\r\nX-A: 1\rX-B: 2",
        b"Content-Length: 2\nX-A: 1",
        b"Content-Length: 2\r\ntracestate: \x7f",
    ],
)
def test_what_another_reader_might_read_otherwise_is_no_request(shared: Background, lines: bytes) -> None:
    """A proxy in front may see another end of the body, or other headers: such bytes begin no second request."""
    before = len(shared.service.sessions.all())
    with connected(shared) as wire:
        wire.sendall(b"POST /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + lines)
        wire.sendall(b"\r\n\r\n2\r\n{}\r\n0\r\n\r\nPOST /sessions HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with suppress(ConnectionError):
            text = rest_of(wire)
            assert text.startswith(b"HTTP/1.1 400 ")
            assert text.count(b"HTTP/1.1 ") == 1
    assert len(shared.service.sessions.all()) == before


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
@pytest.mark.parametrize(
    "body", [b"Content-Length: 39\r\n\r\n%b", b"Transfer-Encoding: chunked\r\n\r\n27\r\n%b\r\n0\r\n\r\n"]
)
def test_the_body_of_a_request_for_another_protocol_is_no_request(
    shared: Background, protocol: bytes, body: bytes
) -> None:
    """A proxy in front takes it for a body, and the answer to it for the next caller's."""
    asks = QUERY % 1 + b"Connection: Upgrade\r\nUpgrade: " + protocol + b"\r\n"
    last = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n\r\n"
    for content, status in [
        (b'{"sql": "select 1 as a"}'.ljust(39), 200),
        (b"GET /jobs HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
    ]:
        assert len(content) == 39
        request = asks + body % content
        for pieces in ([request + last], [request[: len(asks)], request[len(asks) :] + last], [request, last]):
            with connected(shared) as wire:
                for piece in pieces:
                    wire.sendall(piece)
                answers = re.findall(rb"HTTP/1.1 (\d+)", rest_of(wire))
            assert answers == [b"%d" % status, b"200"], pieces


@pytest.mark.parametrize("target", [b"/health/live", b"localhost:80"])
def test_nobody_here_is_a_tunnel(shared: Background, target: bytes) -> None:
    asks = b"CONNECT " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    with connected(shared) as wire:
        wire.sendall(asks + b"GET / HTTP/1.1\r\n\r\n")
        statuses = re.findall(rb"HTTP/1.1 (\d+)", rest_of(wire))
    assert statuses in ([b"400"], [b"405"])


def test_a_body_that_nobody_asked_for_ends_the_connection(shared: Background) -> None:
    """It may come all the same, or the next request in its place."""
    expects = b"Expect: 100-continue\r\nContent-Length: 24\r\n\r\n"
    later = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connected(shared) as wire:
        wire.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\n" + expects)
        status, headers, _ = head_of(wire)
        assert (status, headers["connection"]) == (404, "close")
        with suppress(ConnectionError):
            wire.sendall(later)
            assert b"HTTP/1.1" not in rest_of(wire)
    with connected(shared) as wire:
        wire.sendall(QUERY % 1 + expects)
        assert wire.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        wire.sendall(b'{"sql": "select 1 as a"}' + later.replace(b"localhost", b"localhost\r\nConnection: close"))
        assert re.findall(rb"HTTP/1.1 (\d+)", rest_of(wire)) == [b"200", b"200"]


def test_few_requests_wait_on_a_connection(shared: Background) -> None:
    """One of 20 bytes takes two kilobytes while it waits."""
    with connected(shared) as wire:
        wire.sendall(100 * b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert re.findall(rb"HTTP/1.1 (\d+)", rest_of(wire)) == (1 + MOST_WAITING) * [b"200"]


@pytest.mark.parametrize("id", [b"a%0d%0aSet-Cookie: x", b"a b", b"x" * 65, b"\xe2\x80\xa8", b"a\tb", b""])
def test_a_request_id_brings_no_header(shared: Background, id: bytes) -> None:
    with connected(shared) as wire:
        wire.sendall(b"GET /jobs HTTP/1.1\r\nHost: localhost\r\nX-Request-ID: " + id + b"\r\n\r\n")
        status, headers, _ = head_of(wire)
    assert status == 200
    assert re.fullmatch(r"[0-9a-f]{16}", headers["x-request-id"])
    assert "set-cookie" not in headers


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Long: ", A),
        (b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n", b"X-Many: 1\r\n" * 100_000),
        (b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n", (b"a" * 100_000 + b": 1\r\n") * 10),
        (b"GET /health/live?", A),
        (b"GET /", A),
    ],
    ids=["value", "many", "name", "query", "path"],
)
def test_a_head_that_does_not_end_is_refused_before_it_ends(shared: Background, start: bytes, piece: bytes) -> None:
    with closing(connected(shared)) as wire:
        wire.sendall(start)
        for _ in range(8):
            wire.sendall(piece)
        refused(wire)


@pytest.mark.parametrize(("size", "status"), [(HEAD_BYTES - 300, 200), (HEAD_BYTES, 431), (2 * HEAD_BYTES, 431)])
def test_a_head_that_is_there_is_bounded_by_its_size(shared: Background, size: int, status: int) -> None:
    with closing(connected(shared)) as wire:
        wire.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX-Long: " + b"a" * size + b"\r\n\r\n")
        assert head_of(wire)[0] == status


def test_trailers_are_bounded(shared: Background) -> None:
    with closing(connected(shared)) as wire:
        wire.sendall(QUERY % 1 + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Long: ")
        with suppress(ConnectionError):
            for _ in range(8):
                wire.sendall(A)
            rest_of(wire)


def test_a_body_is_not_bounded_by_that(shared: Background) -> None:
    body = orjson.dumps({"sql": "select 1 as a -- " + "x" * (1 << 20)})
    with closing(connected(shared)) as wire:
        wire.sendall(QUERY % 1 + b"Content-Length: %d\r\n\r\n" % len(body))
        for start in range(0, len(body), 1 << 18):
            wire.sendall(body[start : start + (1 << 18)])
        assert head_of(wire)[0] == 200


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, book: str) -> Iterator[Background]:
    """A service with little patience for what it receives."""
    directory = tmp_path_factory.mktemp("hasty")
    with background(configured(directory, {"book": {"url": book}}, limits={"receive_seconds": SHORT})) as running:
        yield running


def trickled(wire: socket.socket, piece: bytes) -> float:
    """Seconds until the connection ends while pieces are sent again and again."""
    began = time.monotonic()
    wire.settimeout(0.05)
    while time.monotonic() < began + SOON:
        try:
            wire.sendall(piece)
            if not wire.recv(1 << 16):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    else:
        raise AssertionError("the connection was not closed")
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"", b""),
        (b"", b"\r\n"),
        (b"GET /health/live HTTP/1.1\r\n", b"X-A: 1\r\n"),
        (b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n", b"\r\n"),
        (b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\nGET /", b"a"),
        (b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n", b"a"),
    ],
    ids=["silent", "lines", "headers", "lines after an answer", "next head", "a body that nobody reads"],
)
def test_a_slow_head_is_waited_for_a_set_time(hasty: Background, start: bytes, piece: bytes) -> None:
    with closing(connected(hasty)) as wire:
        wire.sendall(start)
        if b"\r\n\r\n" in start:
            assert head_of(wire)[0] == 200
        trickled(wire, piece)


@pytest.mark.parametrize(
    "head",
    [
        QUERY % 1 + b"Content-Length: 1000000\r\n\r\n",
        QUERY % 1 + b"Transfer-Encoding: chunked\r\n\r\n",
        b"POST /sessions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n",
        b"POST /resources/book/perform HTTP/1.1\r\nHost: [::1]\r\nContent-Type: text/xml\r\nContent-Length: 9\r\n\r\n",
    ],
)
def test_a_slow_body_is_answered_after_a_set_time(hasty: Background, head: bytes) -> None:
    with closing(connected(hasty)) as wire:
        wire.sendall(head)
        status, headers, rest = head_of(wire)
        assert (status, headers["connection"]) == (408, "close")
        assert orjson.loads(rest + rest_of(wire))["type"] == "request-timeout"


def test_what_is_no_slow_request_is_left_alone(hasty: Background) -> None:
    with closing(connected(hasty)) as wire:
        for _ in range(2):
            wire.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert head_of(wire)[0] == 200
            # idle between two requests
            time.sleep(2 * SHORT)
        asked(wire, f"select count(*) as n from ({ENDLESS} limit 4000000)")
        assert head_of(wire)[0] == 200


@pytest.mark.parametrize("pause", [0, SHORT])
def test_large_chunks_are_not_copied(shared: Background, monkeypatch: pytest.MonkeyPatch, pause: float) -> None:
    copied: list[int] = []
    send = RequestResponseCycle.send

    async def noted(cycle: RequestResponseCycle, message: Any) -> None:
        copied.append(len(message.get("body", b"")))
        await send(cycle, message)

    monkeypatch.setattr(RequestResponseCycle, "send", noted)
    body = orjson.dumps({"sql": f"select i, '{'x' * 1000}' as s from ({ENDLESS} limit 30000)"})
    parts = urlsplit(shared.url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SOON)) as connection:
        for _ in range(2):  # the connection serves on
            headers = {"Content-Type": "application/json", "Accept": "text/csv"}
            connection.request("POST", "/resources/book/query", body, headers)
            answer = connection.getresponse()
            assert answer.headers["Transfer-Encoding"] == "chunked"
            time.sleep(pause)  # more is made than the system takes
            lines = answer.read().split(b"\r\n")
            assert lines == [b"i,s", *(b"%d,%s" % (each, b"x" * 1000) for each in range(1, 30_001)), b""]
    assert max(copied) < LARGE_BYTES


@pytest.mark.parametrize("size", [10, 30_000])
def test_http_1_0_gets_no_chunks(shared: Background, size: int) -> None:
    with closing(connected(shared)) as wire:
        asked(wire, f"select i from numbers where i < {size} order by i", 0)
        status, headers, rest = head_of(wire)
        text = rest + rest_of(wire)
    assert (status, headers["connection"]) == (200, "close")
    assert "transfer-encoding" not in headers
    assert text == b"i\r\n" + b"".join(b"%d\r\n" % each for each in range(size))


def test_http_1_0_gets_no_chunks_of_a_stream(shared: Background) -> None:
    document = streamed("select i from numbers").encode()
    with closing(connected(shared)) as wire:
        wire.sendall(b"POST /sessions HTTP/1.0\r\n\r\n")
        session = head_of(wire)[1]["location"]
    with closing(connected(shared)) as wire:
        wire.sendall(
            f"POST /resources/book/perform?session={session.rpartition('/')[2]} HTTP/1.1\r\nHost: localhost\r\n"
            f"Prefer: respond-async\r\nContent-Type: text/xml\r\nContent-Length: {len(document)}\r\n\r\n".encode()
            + document
        )
        assert head_of(wire)[0] == 202
    with closing(connected(shared)) as wire:
        wire.sendall(f"GET {session}/streams/out HTTP/1.0\r\n\r\n".encode())
        status, headers, rest = head_of(wire)
        text = rest + rest_of(wire)
    assert status == 200
    assert "transfer-encoding" not in headers
    assert text.startswith(b"<?xml")
    assert text.rstrip().endswith(b"</webRowSet>")


def test_a_transfer_that_breaks_off_is_a_reset_in_http_1_0(shared: Background) -> None:
    with closing(connected(shared)) as wire:
        asked(wire, FAILS_LATE, 0)
        assert head_of(wire)[0] == 200
        with pytest.raises(ConnectionResetError):
            rest_of(wire)


def test_a_transfer_that_breaks_off_is_one_line_in_the_log(
    shared: Background, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        for version in (0, 1):
            with closing(connected(shared)) as wire:
                asked(wire, FAILS_LATE, version)
                assert head_of(wire)[0] == 200
                with suppress(ConnectionResetError):
                    assert not re.search(rb"0\r\n\r\n$", rest_of(wire)) or version == 0
        deadline = time.monotonic() + SOON
        while len(broken := [each for each in caplog.records if getattr(each, "broken", False)]) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(0.1)
    assert len(broken) == 2
    assert [each.getMessage() for each in caplog.records if each.name == "uvicorn.error"] == []
