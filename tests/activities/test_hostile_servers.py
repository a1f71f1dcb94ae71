"""Servers of others that answer for ever, or what no server should: the delivery ends with an error that says who it
was, soon and in bounded memory."""

import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain, repeat

import pytest

from dai.config import AccountConfig, Config, DeliveryConfig, LimitsConfig, MailConfig
from dai.drivers.memory import Memory, Script
from dai.errors import BackPressureError, DaiError, DataError, DeniedError, LimitError, TruncatedError, UnreachableError
from dai.perform.parser import parse
from dai.perform.pipeline import Environment, Running
from dai.perform.response import document
from dai.streams.cancellation import Cancellation
from tests.activities.test_delivery import from_url, to_url
from tests.activities.test_mail import mail
from tests.documents import Ends, query, results, table, to_csv, written

Speak = Callable[[bytes], bytes | Iterator[bytes]]
"""What a server says to a line (the first: an empty one, at the connection)."""


@contextmanager
def speaking(speak: Speak) -> Iterator[int]:
    """A server on loopback that answers each line; its port."""
    ended = threading.Event()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError), connection.makefile("rb") as lines:
            for line in chain([b""], lines):
                said = speak(line.rstrip())
                for each in (said,) if isinstance(said, bytes) else said:
                    if ended.is_set():
                        return
                    connection.sendall(each)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=answer, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            ended.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(60)


def cause(body: str, delivery: DeliveryConfig, driver: Memory | None = None) -> DaiError | None:
    """Why a delivery ended. The response is whole, whatever a server said."""
    driver = driver or Memory({"q": Script(table(10))})
    if 'from="csv"' in body:
        body = query("q", "q", "t") + to_csv("c", "t", "csv") + body
    config = Config(delivery=delivery, limits=LimitsConfig(block_bytes=1 << 20))
    with Running(parse(written(body)), Environment(driver, Ends(), Cancellation(), config=config)) as work:
        assert results(b"".join(document(work, "s", "r")))["request"].get("status") == "ERROR"
    assert driver.open_streams == 0
    return work.cause


def allowing(url: str, **more: object) -> DeliveryConfig:
    account = AccountConfig(name="there", url=url, user="loader", password="the password")
    settings = {"silence": 60.0, "accounts": {"there": account}, **more}
    return DeliveryConfig(urls=(url,), private=True, **settings)  # type: ignore[arg-type]


# --- HTTP -----------------------------------------------------------------------------------------------------------


def http(*said: bytes, ever: bytes = b"") -> Speak:
    return lambda line: b"" if line else chain(said, repeat(ever * 1000) if ever else ())


OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
ANSWERS = {
    "no answer but promises": (
        http(b"HTTP/1.1 100 Continue\r\n\r\n", ever=b"HTTP/1.1 100 Continue\r\n\r\n"),
        LimitError,
    ),
    "headers": (http(OK, ever=b"X-Header: x\r\n"), TruncatedError),
    "a header without end": (http(OK + b"X-Header: ", ever=b"xxxxxxxxxx"), TruncatedError),
    "a status line without end": (http(ever=b"HTTP/1.1 "), TruncatedError),
    "no HTTP": (http(b"SSH-2.0-OpenSSH_9.2\r\n"), TruncatedError),
    "a chunk of no size": (http(CHUNKED + b"zz\r\nabc\r\n"), TruncatedError),
    "a chunk of a negative size": (http(CHUNKED + b"-5\r\nabc\r\n"), LimitError),
    "extensions of a chunk": (http(CHUNKED + b"1;", ever=b"xxxxxxxxxx"), TruncatedError),
    "trailers": (http(CHUNKED + b"0\r\n", ever=b"X-Trailer: x\r\n"), LimitError),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_http(answer: str) -> None:
    speak, error = ANSWERS[answer]
    with speaking(speak) as port:
        url = f"http://127.0.0.1:{port}/in/"
        raised = cause(from_url(url + "x"), allowing(url, seconds=1.0 if error is LimitError else 60.0))
    assert type(raised) is error, raised


def read(said: bytes) -> tuple[str, bytes]:
    """The media type and the data of an answer."""
    with speaking(http(said)) as port:
        url = f"http://127.0.0.1:{port}/in/"
        config = Config(delivery=allowing(url))
        with Running(
            parse(written(from_url(url + "x"))), Environment(None, Ends(), Cancellation(), config=config)
        ) as work:
            ((_, source),) = work.open().end_points()
            return source.media_type, source.read()


BINARY = "application/octet-stream"


@pytest.mark.parametrize(
    ("said", "media_type"),
    [
        (b"text/csv", "text/csv"),
        (b'application/soap+xml; charset=UTF-8;action="a b"', 'application/soap+xml; charset=UTF-8;action="a b"'),
        (b"", BINARY),
        (b"text/csv\r\n X-Header: x", BINARY),
        (b"text/csv\x00", BINARY),
        (b"text/csv\x0bx", BINARY),
        (b'text/csv; a="\xe9"', BINARY),
        (b"nothing", BINARY),
    ],
)
def test_media_types_of_others_bring_no_headers(said: bytes, media_type: str) -> None:
    assert read(OK + b"Content-Length: 1\r\nContent-Type: " + said + b"\r\n\r\nx") == (media_type, b"x")


def test_what_was_compressed_elsewhere_stays_so() -> None:
    """So that nothing small becomes large."""
    data = gzip.compress(bytes(1 << 20))
    said = OK + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(data)
    assert read(said + data) == (BINARY, data)


# --- FTP ------------------------------------------------------------------------------------------------------------

LOGIN = {b"": b"220 hello\r\n", b"USER": b"331 who\r\n", b"PASS": b"230 in\r\n", b"TYPE": b"200 binary\r\n"}


def ftp(**replies: bytes | Iterator[bytes]) -> Speak:
    known = {**LOGIN, **{command.encode(): reply for command, reply in replies.items()}}
    return lambda line: known.get(line.partition(b" ")[0], b"502 no such command\r\n")


FTP_ANSWERS = {
    "a greeting without end": (ftp(**{"": repeat(b"220-hello\r\n" * 1000)}), DataError),
    "a reply without end": (ftp(TYPE=repeat(b"200-binary\r\n" * 1000)), DataError),
    "no UTF-8": (ftp(**{"": b"421 \xe9t\xe9\r\n"}), DataError),
    "a line without end": (ftp(**{"": repeat(b"220" * 1000)}), TruncatedError),
    "no FTP": (ftp(**{"": b"HTTP/1.1 400 Bad Request\r\n"}), TruncatedError),
    "a port that is none": (ftp(PASV=b"227 entering (127,0,0,1,999,999)\r\n"), DataError),
    "no port": (ftp(PASV=b"227 entering\r\n"), TruncatedError),
    "another host": (ftp(PASV=b"227 entering (127,0,0,9,0,0)\r\n"), DataError),
}


@pytest.mark.parametrize("body", [to_url, from_url])
@pytest.mark.parametrize("answer", FTP_ANSWERS)
def test_ftp(answer: str, body: Callable[[str], str]) -> None:
    speak, error = FTP_ANSWERS[answer]
    with speaking(speak) as port:
        url = f"ftp://127.0.0.1:{port}/in/"
        raised = cause(body(url + "x"), allowing(url))
    assert type(raised) is error, raised


def test_the_query_has_stopped_before_anything_is_undone() -> None:
    """However long the server takes for that."""
    driver, running = Memory({"q": Script(table(10_000), batch_rows=10)}), []

    def greet(line: bytes) -> bytes:
        if not line:
            running.append(driver.open_streams)
        if line == b"PASV":
            return b"227 entering (127,0,0,1,%d,%d)\r\n" % divmod(port, 256)
        return refusing(line)

    refusing = ftp(STOR=b"552 no room\r\n")
    with speaking(greet) as port:
        raised = cause(to_url(f"ftp://127.0.0.1:{port}/in/x"), allowing(f"ftp://127.0.0.1:{port}/in/"), driver)
    assert type(raised) is DataError, raised
    # the delivery, its data (which the server may notice after it refused them), what removes the part
    assert (running[0], running[-1], len(running)) == (1, 0, 3)


# --- mail -----------------------------------------------------------------------------------------------------------


def smtp(**replies: bytes | Iterator[bytes]) -> Speak:
    known = {b"": b"220 hello\r\n", **{command.encode(): reply for command, reply in replies.items()}}
    return lambda line: known.get(line.partition(b" ")[0], b"250 fine\r\n")


MAIL_ANSWERS = {
    "a greeting without end": (smtp(**{"": repeat(b"220-hello\r\n" * 1000)}), DataError),
    "a reply without end": (smtp(ehlo=repeat(b"250-more\r\n" * 1000)), DataError),
    "a line without end": (smtp(**{"": repeat(b"220" * 1000)}), UnreachableError),
    "no ASCII": (smtp(**{"": b"421 \xe9t\xe9\r\n"}), DataError),
    "no SMTP": (smtp(**{"": b"SSH-2.0-OpenSSH_9.2\r\n"}), DataError),
}


@pytest.mark.parametrize("answer", MAIL_ANSWERS)
def test_mail(answer: str) -> None:
    speak, error = MAIL_ANSWERS[answer]
    with speaking(speak) as port:
        settings = MailConfig(
            host="127.0.0.1", port=port, tls="none", senders=("@example.org",), recipients=("@example.org",)
        )
        raised = cause(mail(), DeliveryConfig(private=True, mail=settings))
    assert type(raised) is error, raised


# --- services ---------------------------------------------------------------------------------------------------


def problem(status: bytes, body: bytes, more: bytes = b"") -> Speak:
    head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\n%b\r\n" % (status, len(body), more)
    return lambda line: head + body if line.startswith(b"Host:") else b""


def block(more: bytes) -> Speak:
    return problem(b"200 OK", b"xyz", more)


NESTED = b"[" * 100_000
ODD = json.dumps({"type": "bad-data", "detail": "a\0b\ud800c\uffffd]]>\r\n\x1b[2J"}).encode()
SERVICES = {
    "a date in Retry-After": (
        problem(b"503 Busy", b"", b"Retry-After: Mon, 23 Nov 2026 00:00:00 GMT\r\n"),
        BackPressureError,
    ),
    "time that runs back": (problem(b"503 Busy", b"", b"Retry-After: -5\r\n"), BackPressureError),
    "nested JSON": (problem(b"400 Bad", NESTED), DataError),
    "characters that no XML has": (problem(b"400 Bad", ODD), DataError),
    "another place": (problem(b"307 There", b"", b"Location: http://127.0.0.1:1/\r\n"), DeniedError),
    "no number of rows": (block(b"X-Block-Rows: \xb2\r\n"), LimitError),
    "a number of rows without end": (block(b"X-Block-Rows: " + b"9" * 6000 + b"\r\n"), LimitError),
    "the same block for ever": (block(b"X-Dai-Blocks: 0\r\n"), LimitError),
}


def pushed(url: str) -> str:
    return (
        f'<deliverToGDT name="d"><fromLocal from="csv"/><toGDT streamId="s" mode="block">{url}</toGDT></deliverToGDT>'
    )


def pulled(url: str) -> str:
    return f'<deliverFromGDT name="d"><fromGDT streamId="s">{url}</fromGDT><toLocal name="e"/></deliverFromGDT>'


@pytest.mark.parametrize("answer", SERVICES)
def test_services(answer: str) -> None:
    speak, error = SERVICES[answer]
    with speaking(speak) as port:
        url = f"http://127.0.0.1:{port}/sessions/x"
        body, bounds = pulled(url), {}
        if error is BackPressureError:
            body, bounds = pushed(url), {"silence": 0.5}
        elif error is LimitError:
            bounds = {"seconds": 0.5}
        raised = cause(body, allowing(url, **bounds))
    assert type(raised) is error, raised
