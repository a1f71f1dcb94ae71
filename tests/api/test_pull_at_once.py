"""A document and the first blocks of its stream by one request."""

import http.client
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import dai
from dai.api.blocks.pulling import Pull
from dai.api.server.serve import Background
from dai.client import Resource
from dai.client.http.transport import Transport
from dai.errors import DaiError, NotFoundError, ParameterError
from dai.formats.frames import MEDIA_TYPE, Asked, read
from tests.api.conftest import DOCUMENT, FAILS_LATE, XML, statement, streamed
from tests.api.framed import ARROW, CSV, PAYLOAD, SQL, Paused
from tests.processes import until

FAILS = "select i from nowhere"
Sent = list[tuple[str, str, int]]


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Sent:
    """Method, kind of address and status of each request; 0 where nobody waits for the reply."""
    requests: Sent = []
    send, tell = Transport.send, Transport.tell

    def noted(self: Transport, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        reply = send(self, method, path, *arguments, **options)
        requests.append((method, path.split("?")[0].rstrip("0123456789").rsplit("/", 2)[-2], reply.status))
        return reply

    def told(self: Transport, method: str, path: str) -> None:
        requests.append((method, path.rsplit("/", 2)[-2], 0))
        tell(self, method, path)

    monkeypatch.setattr(Transport, "send", noted)
    monkeypatch.setattr(Transport, "tell", told)
    return requests


@pytest.mark.parametrize("document", [streamed(SQL), ARROW, CSV, PAYLOAD])
def test_a_small_result_is_one_request_and_the_end_of_its_session(
    book_resource: Resource, shared: Background, document: str, sent: Sent
) -> None:
    table = book_resource.pull(document, "out", blocksize=300).arrow()
    assert [int(each) for each in table.column("i").to_pylist()] == list(range(250))
    first, *_, last = [(method, status) for method, _, status in sent]
    assert (first, last) == (("POST", 200), ("DELETE", 0))
    assert len(sent) == 2 or document == CSV, "whose end may come later than its block"
    until(lambda: not shared.service.sessions.all())


def test_the_answer_names_session_and_job(anybody: httpx.Client) -> None:
    accept = {"Accept": str(Asked(flow=True))}
    path = "/resources/book/perform?pull=out&blocksize=100"
    answer = anybody.post(path, content=streamed(SQL), headers={**XML, **accept})
    *blocks, end = read(answer.content)
    session = answer.headers["x-dai-session"]
    assert answer.headers["content-type"] == f"{MEDIA_TYPE};flow=true"
    assert ([each.number for each in blocks], end.rows, end.session) == ([0, 1, 2], 1, session)
    assert anybody.get(f"{answer.headers['location']}?wait=30").json()["phase"] == "COMPLETED"
    # none is acknowledged yet
    assert anybody.get(f"/sessions/{session}/streams/out/blocks/0").status_code == 200
    assert anybody.get(f"/sessions/{session}/streams/out/blocks/3").status_code == 204
    answers: list[httpx.Response] = []

    def has_all() -> bool:
        """On a busy machine not all blocks may be ready for one answer."""
        answers.append(anybody.post(path, content=streamed(SQL), headers={**XML, "Accept": "*/*"}))
        return "x-block-last" in answers[-1].headers

    until(has_all)
    whole = answers[-1]
    assert (whole.headers["x-dai-blocks"], whole.headers["x-block-last"]) == ("3", "true")


@pytest.mark.parametrize(
    ("query", "document", "status", "said"),
    [
        ("pull=ouf", streamed(SQL), 404, "Did you mean 'out'?"),
        ("pull=out", DOCUMENT.format(statement(SQL)), 404, "It has none."),
        ("pull=out&session=x", streamed(SQL), 409, "'session'"),
        ("pull=out&phase=PENDING", streamed(SQL), 409, "'phase'"),
        ("pull=out", streamed(SQL).replace("<sqlQuery", "<session/><sqlQuery", 1), 409, "session of the document"),
    ],
)
def test_what_does_not_go_together_is_refused(
    anybody: httpx.Client, shared: Background, query: str, document: str, status: int, said: str
) -> None:
    answer = anybody.post(
        f"/resources/book/perform?{query}", content=document, headers={**XML, "Accept": "application/json"}
    )
    assert (answer.status_code, said in answer.text) == (status, True), answer.text
    assert not shared.service.sessions.all()


@pytest.mark.parametrize("fails", [FAILS, FAILS_LATE])
def test_a_failure_is_raised_as_ever(book_resource: Resource, fails: str) -> None:
    with pytest.raises(DaiError) as pulled:
        book_resource.pull(streamed(fails), "out", blocksize=10_000).arrow()
    with pytest.raises(DaiError) as queried:
        book_resource.query(fails).arrow()
    assert (type(pulled.value), pulled.value.detail) == (type(queried.value), queried.value.detail) or fails != FAILS
    assert pulled.value.status == 400


def test_leaving_before_the_end_ends_the_session(book_resource: Resource, shared: Background) -> None:
    with book_resource.pull(streamed("select * from numbers"), "out", blocksize=10) as result:
        assert next(iter(result)).num_rows
    until(lambda: not shared.service.sessions.all())
    book_resource.pull(streamed("select * from numbers"), "out", blocksize=10).close()
    until(lambda: not shared.service.sessions.all())


def test_the_session_ends_though_the_client_closes_its_connections(shared: Background) -> None:
    with dai.connect(f"{shared.url}/book") as resource:
        result = resource.pull(streamed(SQL), "out")
        assert sum(batch.num_rows for batch in result) == 250
    until(lambda: not shared.service.sessions.all())


def test_a_client_that_leaves_before_the_answer_leaves_no_session(
    shared: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Paused(monkeypatch, 0)
    connection = http.client.HTTPConnection(urlsplit(shared.url).netloc)
    connection.request("POST", "/resources/book/perform?pull=out", streamed(SQL), XML)
    until(lambda: shared.service.sessions.open_streams())
    connection.close()
    until(lambda: not shared.service.sessions.all())
    paused.go.set()
    until(lambda: not any(shared.service.jobs.counts()))


def test_an_answer_without_a_block_yet_is_followed_by_pulls(
    book_resource: Resource, monkeypatch: pytest.MonkeyPatch, sent: Sent
) -> None:
    monkeypatch.setattr("dai.api.blocks.pulling.FIRST", Pull())
    paused = Paused(monkeypatch, 0)
    result = book_resource.pull(streamed(SQL), "out")
    paused.go.set()
    assert result.arrow().num_rows == 250
    assert sent[0][::2] == ("POST", 202)


def old(self: Transport, method: str, path: str, *arguments: Any, **options: Any) -> Any:
    """As a service from before answers."""
    return send(self, method, path.replace("?pull=", "?pulls="), *arguments, **options)


send: Callable[..., Any] = Transport.send


def test_a_service_from_before_that_knows_no_such_parameter(
    book_resource: Resource, shared: Background, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Transport, "send", old)
    monkeypatch.setattr("dai.client.streams.at_once._UNKNOWN", "There is no parameter 'pulls' here.")
    assert book_resource.pull(streamed(SQL), "out", blocksize=10).arrow().num_rows == 250
    with pytest.raises(NotFoundError):
        book_resource.pull(streamed(SQL), "ouf").arrow()
    with pytest.raises(ParameterError):
        book_resource.pull(streamed(SQL), "out", blocksize=-1)
    assert not shared.service.sessions.all()
