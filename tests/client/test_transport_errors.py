"""What the transport says of errors, of addresses and of answers that are none."""

import gzip
import socket
from functools import cache

import pytest
import zstandard

from dai.client import Service
from dai.client.http.transport import Options, Transport
from dai.client.testing import Scripted, ScriptedServer
from dai.errors import (
    DataError,
    InternalError,
    LimitError,
    RequestError,
    StatementError,
    UnreachableError,
)
from tests.client.replies import problem, said

QUICK = Options(backoff=0.001, patience=0.01)
QUERY = b'{"sql": "select 1"}'


def test_errors_become_their_classes() -> None:
    refused = problem(
        400,
        type="sql-error",
        title="The database refused the statement",
        detail='relation "bok" does not exist',
        position=15,
        sqlstate="42P01",
        excerpt="line 1: select * from bok\n                      ^",
        hint="Did you mean 'book'?",
        instance="4711",
    )
    with ScriptedServer(refused) as server:
        with pytest.raises(StatementError) as caught:
            Transport(server.url).send("POST", "/resources/data/query", QUERY)
        assert str(caught.value).split("\n") == [
            'relation "bok" does not exist',
            "line 1: select * from bok",
            "                      ^",
            "Did you mean 'book'?",
            "Correlation id: 4711",
        ]
        assert (caught.value.position, caught.value.sqlstate) == (15, "42P01")


def test_an_error_as_a_response_document() -> None:
    document = (
        b'<gridDataServiceResponse xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">'
        b'<error id="sql-error" activity="q">relation &lt;bok&gt; does not exist</error>'
        b'<request id="4711" status="ERROR"/></gridDataServiceResponse>'
    )
    with ScriptedServer(Scripted(400, document, {"Content-Type": "application/xml"})) as server:
        with pytest.raises(StatementError, match="relation <bok> does not exist") as caught:
            Transport(server.url).send("POST", "/", QUERY)
        assert caught.value.extra["activity"] == "q"


@pytest.mark.parametrize("content", ["text/html", "application/json", "application/xml"])
def test_what_is_no_data_service_is_said_to_be_none(content: str) -> None:
    with (
        ScriptedServer(Scripted(418, b"<p>I am a teapot", {"Content-Type": content})) as server,
        pytest.raises(InternalError, match=r"status 418: <p>I am a teapot\n.*data service\?"),
    ):
        Transport(server.url).send("GET", "/")


def test_where_nothing_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UnreachableError, match="is `dai serve` running"):
        Transport(f"http://127.0.0.1:{port}", QUICK).send("GET", "/")
    with pytest.raises(UnreachableError, match=r"no host 'nowhere\.invalid'"):
        Transport("http://nowhere.invalid", Options(retries=0)).send("GET", "/")


def test_silence_is_bounded() -> None:
    with ScriptedServer(Scripted(body=[b"abc"], held=True)) as server:
        body = Transport(server.url, Options(read=0.05)).send("GET", "/").body
        with pytest.raises(UnreachableError, match="stopped sending"):
            body.read_all()
        assert server.abandoned.wait(60)
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        transport = Transport(f"http://127.0.0.1:{deaf.getsockname()[1]}", Options(read=0.05, retries=0))
        with pytest.raises(UnreachableError, match="did not answer in time"):
            transport.send("GET", "/")


@pytest.mark.parametrize("url", ["ftp://x", "localhost:8080", "http://", "http://x:port", "http://me:secret@x"])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(RequestError, match="address") as caught:
        Service(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "host",
    ["data.example.org", "localhost.example.org", "127.0.0.1.example.org", "127.example.org", "[::1:2]", "1.2.3.4"],
)
def test_a_token_travels_encrypted_or_not_at_all(host: str) -> None:
    """However much a name looks like that of this machine."""
    with pytest.raises(RequestError, match="without encryption"):
        Transport(f"http://{host}", Options(token="secret"))
    Transport(f"https://{host}", Options(token="secret")).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "[::1]", "localhost", "LOCALHOST"])
def test_this_machine_may_be_asked_without_encryption(host: str) -> None:
    Transport(f"http://{host}", Options(token="secret")).close()


def test_a_redirect_leads_nowhere() -> None:
    """A service that was taken over, or a proxy, gets no token sent elsewhere, nor without encryption."""
    with ScriptedServer(Scripted(body=b"{}")) as other:
        moved = Scripted(status=307, headers={"Location": f"{other.url}/resources", "Content-Type": "text/plain"})
        with ScriptedServer(moved) as server, pytest.raises(RequestError, match="does not follow redirects"):
            Transport(server.url, Options(token="secret")).send("GET", "/resources")
        assert other.requests == []


def test_a_path_before_the_service() -> None:
    with ScriptedServer(said({"resources": [{"name": "a"}]})) as server:
        assert Service(f"{server.url}/lab/").resources() == [{"name": "a"}]
        assert server.requests[0].target == "/lab/resources"


@cache
def spaces(encoding: str) -> bytes | list[bytes]:
    """80 MB or more, once they are decoded."""
    if encoding == "identity":
        return [b"[" + b" " * (1 << 20)] * 80
    whole = b"[" + b" " * (1 << 27) + b"]"
    return gzip.compress(whole, 1) if encoding == "gzip" else zstandard.compress(whole)


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("encoding", ["identity", "gzip", "zstd"])
def test_an_answer_that_is_to_be_small_fills_no_memory(status: int, encoding: str) -> None:
    """3 MB of gzip, or an error without end, took all there was."""
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    with (
        ScriptedServer(Scripted(status, spaces(encoding), headers)) as server,
        pytest.raises(LimitError, match="67,108,864"),
    ):
        Transport(server.url, Options(retries=0, compression=encoding)).json("/x")


@pytest.mark.parametrize("body", [b"<html>", b"[" * 200_000, b"\xff", b""])
def test_an_answer_that_is_no_json_says_so(body: bytes) -> None:
    with (
        ScriptedServer(Scripted(body=body, headers={"Content-Type": "application/json"})) as server,
        pytest.raises(DataError, match="not JSON"),
    ):
        Transport(server.url).json("/x")


def test_a_problem_with_members_of_other_types() -> None:
    refused = problem(400, type="sql-error", detail="No.", sql=5, position="x", sqlstate=[], line={})
    with ScriptedServer(refused) as server, pytest.raises(StatementError, match="No"):
        Transport(server.url).json("/x")
