import base64
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.client import Response, Service
from dai.client.testing import Scripted, ScriptedServer
from dai.errors import ClosedError, DataError, NotFoundError, StatementError, TruncatedError
from tests.client.replies import TABLE, arrow_bytes, pieces

HEAD = (
    '<?xml version="1.0" encoding="UTF-8"?>\n'
    '<gridDataServiceResponse xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">\n<session id="s1"/>\n'
)
TAIL = '<request id="r1" status="{}"/>\n</gridDataServiceResponse>\n'


def document(*results: str, status: str = "COMPLETED") -> bytes:
    return (HEAD + "\n".join(results) + TAIL.format(status)).encode()


def cdata(text: str) -> str:
    return "<![CDATA[" + text.replace("]]>", "]]]]><![CDATA[>") + "]]>"


CSV = "id,name\r\n1,a\n2,b]]>c\n".replace("\r", "")
WHOLE = document(
    f'<result name="text">{cdata(CSV)}</result>',
    f'<result name="arrow" encoding="base64">{base64.b64encode(arrow_bytes()).decode()}</result>',
    '<result name="count"><resultStream updateCount="42"/></result>',
    '<result name="schema"><tables><table name="a&lt;b"><note>1 &lt; 2</note></table></tables></result>',
    '<result name="q" status="COMPLETED"/>',
)


def response_of(server: ScriptedServer) -> Response:
    service = Service(server.url)
    return Response(service.transport.send("POST", "/", b"<x/>").body, progress=False)


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_the_results_of_a_document(size: int) -> None:
    with ScriptedServer(Scripted(body=pieces(WHOLE, size))) as server, response_of(server) as response:
        assert response.results["text"].text() == CSV
        assert response.session == "s1"
        assert response.results["arrow"].arrow().equals(TABLE)
        assert response.results["count"].update_count == 42
        assert response.results["schema"].text() == (
            '<tables><table name="a&lt;b"><note>1 &lt; 2</note></table></tables>'
        )
        assert response.results["q"].status == "COMPLETED"
        assert response.status == "COMPLETED"
        assert response.request == "r1"
        assert list(response.results) == ["text", "arrow", "count", "schema", "q"]
        assert response.check() is response


def test_results_may_be_read_in_any_order() -> None:
    with ScriptedServer(Scripted(body=pieces(WHOLE, 50))) as server, response_of(server) as response:
        assert len(response.results) == 5
        assert response.results["arrow"].arrow().equals(TABLE)
        assert response.results["text"].text() == CSV


def test_what_was_passed_over_waits_on_disk_beyond_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dai.client.results.response.KEPT", 1000)
    with ScriptedServer(Scripted(body=pieces(WHOLE, 50))) as server, response_of(server) as response:
        assert response.results["q"].status == "COMPLETED"
        part = response.results["arrow"]._part
        assert part._kept._rolled
        assert response.results["arrow"].arrow().equals(TABLE)


def test_a_result_streams_before_the_document_ends() -> None:
    start = (HEAD + '<result name="text"><![CDATA[id,name\n' + "1,a\n" * 200_000).encode()
    with ScriptedServer(Scripted(body=[start], held=True)) as server, response_of(server) as response:
        chunks = response.results["text"].chunks()
        assert next(chunks).startswith(b"id,name\n1,a")
        response.close()
        assert server.abandoned.wait(60)


def test_a_result_may_be_left_half_read() -> None:
    with ScriptedServer(Scripted(body=pieces(WHOLE, 20))) as server, response_of(server) as response:
        with response.results["text"] as result:
            next(result.chunks())
        assert response.results["count"].update_count == 42


def test_a_failure_half_way_is_raised_where_it_struck() -> None:
    text = document(
        f'<result name="first">{cdata("a,b" * 10)}</result>',
        f'<result name="out">{cdata("id,name")}<error id="sql-error" activity="q">division by zero</error></result>',
        '<result name="other"><error id="stream-closed" activity="x">A neighbour failed.</error></result>',
        '<result name="q" status="ERROR"><error id="sql-error" activity="q">division by zero</error></result>',
        status="COMPLETED_WITH_ERROR",
    )
    with ScriptedServer(Scripted(body=pieces(text, 30))) as server:
        with response_of(server) as response:
            assert response.results["first"].text() == "a,b" * 10
            with pytest.raises(StatementError, match="division by zero") as caught:
                response.results["out"].text()
            assert caught.value.extra["activity"] == "q"
            with pytest.raises(ClosedError):
                response.results["other"].bytes()
            with pytest.raises(StatementError):
                _ = response.results["out"].update_count
            assert response.results["q"].status == "ERROR"
            assert response.status == "COMPLETED_WITH_ERROR"
        with response_of(server) as response, pytest.raises(StatementError):
            response.check()


def test_a_failure_of_the_whole_request() -> None:
    text = document('<error id="sql-error">no such table</error>', status="ERROR")
    with (
        ScriptedServer(Scripted(body=text)) as server,
        response_of(server) as response,
        pytest.raises(StatementError, match="no such table"),
    ):
        response.check()


@pytest.mark.parametrize("size", range(1, len(WHOLE), 211))
def test_a_response_that_ends_early(size: int) -> None:
    with ScriptedServer(Scripted(body=WHOLE[:size]), Scripted(body=[WHOLE[:size]], broken=True)) as server:
        for _ in range(2):
            with response_of(server) as response, pytest.raises(TruncatedError):
                response.check()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"this is not XML", "not well-formed"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', "document type"),
        (document('<result name="x" encoding="base64">a!b=</result>'), "not base64"),
        (document('<result name="x" encoding="base64">YWJjZ</result>'), "is incomplete"),
    ],
)
def test_what_is_no_response(text: bytes, message: str) -> None:
    with (
        ScriptedServer(Scripted(body=text)) as server,
        response_of(server) as response,
        pytest.raises(DataError, match=message),
    ):
        response.check()


def test_names_that_are_not_there() -> None:
    with ScriptedServer(Scripted(body=WHOLE)) as server, response_of(server) as response:
        assert "arrow" in response.results
        assert "sparrow" not in response.results
        with pytest.raises(NotFoundError, match="Did you mean 'arrow'"):
            _ = response.results["arow"]
        with pytest.raises(DataError, match="not the result of an update"):
            _ = response.results["text"].update_count


@given(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"], include_characters="\t\n]>&<")),
    st.binary(),
    st.integers(1, 50),
)
def test_any_text_and_any_bytes_arrive(text: str, data: bytes, size: int) -> None:
    text = text.replace("\ufffe", "").replace("\uffff", "")
    body = document(
        f'<result name="text">{cdata(text)}</result>',
        f'<result name="data" encoding="base64">{base64.b64encode(data).decode()}</result>',
    )
    response = Response(_Bytes(pieces(body, size)), progress=False)
    assert response.results["text"].text() == text
    assert response.results["data"].bytes() == data


class _Bytes:
    def __init__(self, given: list[bytes]) -> None:
        self._given, self.received = given, 0

    def read1(self, size: int = 0) -> bytes:
        piece = self._given.pop(0) if self._given else b""
        self.received += len(piece)
        return piece

    def readinto(self, buffer: memoryview) -> int:
        raise AssertionError

    def close(self) -> None:
        self._given = []


def test_the_document_itself_can_be_copied(tmp_path: Path) -> None:
    with ScriptedServer(Scripted(body=pieces(WHOLE, 50))) as server, response_of(server) as response:
        with (tmp_path / "copy.xml").open("wb") as file:
            response.copy_to(file)
        assert (tmp_path / "copy.xml").read_bytes() == WHOLE
        assert response.check().status == "COMPLETED"
