"""Blocks of streams as frames, over HTTP: who asks for payloads gets them, everybody else a document."""

import base64
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
from starlette.types import Receive, Scope, Send

import dai
from dai.api.blocks.flowing import Flowing
from dai.api.server.serve import Background
from dai.errors import DatabaseUnavailableError
from dai.formats import format_named, recognised
from dai.formats.frames import MEDIA_TYPE, Arriving, Asked, Frame, KnownContexts, context_of, format_of, read
from dai.service.contexts.contexts import Contexts
from tests.api.conftest import DOCUMENT, FAILS_LATE, XML, streamed
from tests.api.framed import ARROW, CSV, PAYLOAD, SQL, Paused
from tests.processes import until

WEBROWSET = "application/vnd.webrowset+xml"
PUSHED = DOCUMENT.format(
    '<inputStream name="in"><toLocal name="rows"/></inputStream>'
    '<outputStream name="out"><fromLocal from="rows"/></outputStream>'
)


class Stream:
    """The blocks of 100 rows of a document in a session of its own."""

    def __init__(self, client: httpx.Client, document: str) -> None:
        self.client = client
        self.session = client.post("/sessions", json={}).json()["id"]
        path = f"/resources/book/perform?session={self.session}&blocksize=100"
        assert client.post(path, content=document, headers={**XML, "Prefer": "respond-async"}).status_code == 202

    def described(self) -> dict[str, Any]:
        streams = self.client.get(f"/sessions/{self.session}").json()["streams"]
        return next(iter(streams), {})

    def pull(
        self,
        number: int,
        accept: str | None = None,
        count: int = 1,
        linger: int = 60_000,
        encoding: str | None = None,
        dictionary: str | None = None,
    ) -> httpx.Response:
        asked = {"Accept": accept, "Accept-Encoding": encoding, "Available-Dictionary": dictionary}
        headers = {name: value for name, value in asked.items() if value is not None}
        if accept is None:
            self.client.headers.pop("accept", None)
        path = f"/sessions/{self.session}/streams/out/blocks/{number}?wait=30&count={count}&linger={linger}"
        return self.client.get(path, headers=headers)


def frames(answer: httpx.Response) -> list[Frame]:
    assert answer.headers["content-type"] == MEDIA_TYPE
    return list(read(answer.content))


@pytest.mark.parametrize(("document", "form"), [(streamed(SQL), "webrowset"), (ARROW, "arrow")])
@pytest.mark.parametrize("compressed", [False, True])
def test_payloads_for_whoever_names_the_context(
    anybody: httpx.Client, document: str, form: str, compressed: bool
) -> None:
    plain, stream, contexts = Stream(anybody, document), Stream(anybody, document), KnownContexts()
    whole = b"".join(plain.pull(number).content for number in range(3))
    (first,) = frames(stream.pull(0, str(Asked(None, compressed))))
    assert (first.static > 0, first.number, first.rows, first.session) == (True, 0, 100, stream.session)
    assert format_named(form).decode([bytes(first.payload)]).table().num_rows == 100, "a document by itself"
    payloads = [bytes(contexts.tuples(first))]
    static = contexts.static(first)
    rest = frames(stream.pull(1, str(Asked(first.context, compressed)), count=2))
    assert [(each.static, each.compressed, each.number, each.rows) for each in rest] == [
        (0, compressed, 1, 100),
        (0, compressed, 2, 50),
    ]
    payloads += [bytes(contexts.tuples(each)) for each in rest]
    assert static + b"".join(payloads) + (format_named(form).tail or b"") == whole
    assert not compressed or len(rest[0].payload) < 0.3 * len(first.payload)


def test_an_unknown_context_gets_whole_documents(anybody: httpx.Client) -> None:
    stream = Stream(anybody, streamed(SQL))
    for number in range(3):
        for context in ("0" * 64, "x", None):
            (frame,) = frames(stream.pull(number, str(Asked(context, True))))
            assert frame.static
            table = format_named("webrowset").decode([bytes(frame.payload)]).table()
            assert table.column("i").to_pylist() == list(range(number * 100, min(250, (number + 1) * 100)))


@pytest.mark.parametrize("document", [streamed(SQL), ARROW, PAYLOAD])
@pytest.mark.parametrize("compressed", [False, True])
def test_the_first_frame_of_an_answer_brings_the_context(
    anybody: httpx.Client, document: str, compressed: bool
) -> None:
    stream, contexts = Stream(anybody, document), KnownContexts()
    for number in range(2):
        first, *others = frames(stream.pull(number, str(Asked("0" * 64, compressed)), count=3 - number))
        assert (first.static > 0, first.compressed) == (True, False)
        assert [(each.static, each.compressed) for each in others] == [(0, compressed)] * (2 - number)
        tables = [contexts.document(each) for each in (first, *others)]
        form = format_of(contexts.static(first))
        rows = [value for each in tables for value in form.decode([each]).table().column("i").to_pylist()]
        assert rows == list(range(number * 100, 250))


@pytest.mark.parametrize(
    "accept", [None, "*/*", WEBROWSET, f"{MEDIA_TYPE};q=0.5, */*", f"{MEDIA_TYPE};q=0", f"{WEBROWSET}, {MEDIA_TYPE}"]
)
def test_whoever_does_not_ask_gets_the_document(anybody: httpx.Client, accept: str | None) -> None:
    answers = [Stream(anybody, streamed(SQL)).pull(0, accept, count=3)]
    assert answers[0].headers["content-type"] == WEBROWSET
    assert format_named("webrowset").decode([answers[0].content]).table().num_rows == 250


def test_a_format_without_a_context_travels_as_it_is(anybody: httpx.Client) -> None:
    stream = Stream(anybody, CSV)
    assert stream.pull(0, f"{MEDIA_TYPE}, */*;q=0.5", count=3).headers["content-type"] == "text/csv"
    (described,) = anybody.get(f"/sessions/{stream.session}").json()["streams"]
    assert "context" not in described


def test_the_document_may_ask_for_payloads(anybody: httpx.Client) -> None:
    """Its first block is a document, a late joiner finds the context of the others in the store."""
    stream, contexts = Stream(anybody, PAYLOAD), KnownContexts()
    first, second = frames(stream.pull(0, "*/*", count=2))
    assert (first.static > 0, second.static) == (True, 0)
    static = anybody.get(f"/contexts/{second.context}")
    assert (static.headers["content-type"], context_of(static.content)) == (WEBROWSET, second.context)
    contexts.learn(second.context, static.content)
    assert format_named("webrowset").decode([contexts.document(second)]).table().num_rows == 100
    (described,) = anybody.get(f"/sessions/{stream.session}").json()["streams"]
    assert described["context"] == second.context
    # who asks for the document gets it, who names another context a document of its own
    assert stream.pull(2, WEBROWSET).headers["content-type"] == WEBROWSET
    assert frames(stream.pull(2, str(Asked("0" * 64))))[0].static


@pytest.mark.parametrize(("count", "depth"), [(None, 2), (1, 3), (4, 5), (100, 2)])
def test_several_requests_on_their_way(
    anybody: httpx.Client, shared: Background, count: int | None, depth: int
) -> None:
    resource = dai.connect(f"{shared.url}/book", compression="zstd")
    whole = resource.query(SQL, format="webrowset").bytes()
    document = streamed(SQL)
    with resource.session() as session:
        session.perform(document, blocksize=10)
        assert b"".join(session.pull("out", count, depth=depth)) == whole
    with resource.session() as session:
        session.perform(document, blocksize=10)
        assert session.pull("out", count, depth=depth).result().arrow().column("i").to_pylist() == list(range(250))


def test_what_was_on_its_way_can_be_asked_for_again(anybody: httpx.Client) -> None:
    stream = Stream(anybody, streamed(SQL))
    path = f"/sessions/{stream.session}/streams/out/blocks"
    first = anybody.get(f"{path}/0?wait=30")
    assert anybody.get(f"{path}/1?wait=30&behind=1").status_code == 200
    assert anybody.get(f"{path}/0").content == first.content
    assert anybody.get(f"{path}/1?wait=30").status_code == 200
    assert anybody.get(f"{path}/0").status_code == 410


def test_a_store_that_refuses_keeps_nobody_from_the_rows(
    anybody: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> Future[Any]:
        raise DatabaseUnavailableError

    def failing(*_: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_exception(DatabaseUnavailableError())
        return future

    for refusing in (refused, failing):
        monkeypatch.setattr(Contexts, "publish", refusing)
        whole = frames(Stream(anybody, PAYLOAD).pull(0, None, count=3))
        assert all(each.static for each in whole)
        stream = Stream(anybody, streamed(SQL))
        (first,) = frames(stream.pull(0, MEDIA_TYPE))
        assert "context" not in stream.described(), "it would not be found"
        assert not frames(stream.pull(1, str(Asked(first.context))))[0].static


@pytest.mark.parametrize("document", [streamed(SQL), ARROW])
def test_a_reader_with_the_context_as_a_dictionary(anybody: httpx.Client, document: str, tmp_path: Path) -> None:
    """RFC 9842, as a browser does it: the context is a dictionary for the blocks of streams."""
    stream, plain = Stream(anybody, document), Stream(anybody, document)
    until(lambda: stream.described().get("context"))
    context = stream.described()["context"]
    dictionary = anybody.get(f"/contexts/{context}")
    assert dictionary.headers["use-as-dictionary"] == 'match="/sessions/*/streams/*/blocks/*"'
    digest = base64.b64encode(bytes.fromhex(context)).decode()
    for each in (stream, plain):
        each.pull(0)
    coded = stream.pull(1, None, encoding="gzip, dcz", dictionary=f":{digest}:")
    assert coded.headers["content-encoding"] == "dcz"
    assert coded.headers["vary"] == "Accept-Encoding, Available-Dictionary"
    assert coded.content.startswith(b"\x5e\x2a\x4d\x18\x20\x00\x00\x00" + bytes.fromhex(context))
    (tmp_path / "context").write_bytes(dictionary.content)
    (tmp_path / "block.zst").write_bytes(coded.content)
    command = ["zstd", "-q", "-d", "-D", tmp_path / "context", tmp_path / "block.zst", "-o", tmp_path / "block"]
    subprocess.run(command, check=True, timeout=60)
    block = plain.pull(1)
    assert (tmp_path / "block").read_bytes() == block.content
    assert len(coded.content) < 0.5 * len(block.content)
    for encoding, other in (("zstd", digest), ("dcz;q=0", digest), ("dcz", "A" * 43 + "="), ("br", "x")):
        answer = stream.pull(1, None, encoding=encoding, dictionary=f":{other}:")
        assert "content-encoding" not in answer.headers
        assert answer.content == block.content
        assert answer.headers["vary"] == "Accept-Encoding, Available-Dictionary"


def test_a_block_waits_for_others_no_longer_than_it_is_to(anybody: httpx.Client) -> None:
    """Without ``linger`` the answer would be held for the second block, longer than this client waits."""
    stream = Stream(anybody, PUSHED)
    for number in range(2):
        path = f"/sessions/{stream.session}/streams/in/blocks/{number}"
        anybody.put(path, content=f"block {number}", headers={"Content-Type": "text/plain"})
        anybody.timeout = httpx.Timeout(20)
        answer = stream.pull(number, None, count=2, linger=10)
        assert (answer.headers["x-dai-blocks"], answer.text) == ("1", f"block {number}")


FLOW = Asked(flow=True)


def flowing(
    client: httpx.Client,
    stream: Stream,
    number: int = 0,
    query: str = "wait=30&count=100",
    asked: Asked = FLOW,
) -> Iterator[Frame]:
    """The frames of an answer, each as it comes."""
    path = f"/sessions/{stream.session}/streams/out/blocks/{number}?{query}"
    arriving = Arriving()
    with client.stream("GET", path, headers={"Accept": f"{asked}, */*;q=0.5"}) as answer:
        if answer.status_code == 204:
            return
        assert (answer.status_code, answer.headers["content-type"]) == (200, f"{MEDIA_TYPE};flow=true")
        for piece in answer.iter_raw():
            yield from arriving.add(piece)
    arriving.finish()


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("document", [streamed(SQL), ARROW, PAYLOAD])
def test_frames_flow_while_blocks_are_made(
    anybody: httpx.Client, document: str, compressed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    paused = Paused(monkeypatch, 2)
    stream, contexts = Stream(anybody, document), KnownContexts()
    coming = flowing(anybody, stream, asked=Asked("0" * 64, compressed, flow=True))
    received = [next(coming), next(coming)]
    paused.go.set()
    *rest, end = coming
    received += rest
    expected = [(0, True, False), (1, False, compressed), (2, False, compressed)]
    assert [(each.number, each.static > 0, each.compressed) for each in received] == expected
    assert (end.end, end.number, end.rows, end.session) == (True, 3, 1, stream.session)
    documents = [contexts.document(each) for each in received]
    tables = [format_named(recognised(each)).decode([each]).table() for each in documents]
    assert pa.concat_tables(tables).column("i").to_pylist() == list(range(250))
    # none of them is acknowledged before the next request
    assert [each.number for each in flowing(anybody, stream, 1)] == [1, 2, 3]
    assert stream.pull(0).status_code == 410
    assert stream.pull(3).status_code == 204


@pytest.mark.parametrize(("query", "most"), [("size=1", 1), ("size=25000&count=9", 2), ("count=3", 3)])
def test_an_answer_that_flows_has_its_bounds(anybody: httpx.Client, query: str, most: int) -> None:
    stream = Stream(anybody, streamed("select i, s from numbers where i < 950"))
    numbers: list[int] = []
    while received := list(flowing(anybody, stream, len(numbers), f"wait=30&{query}")):
        *blocks, end = received
        numbers += [each.number for each in blocks]
        assert (1 <= len(blocks) <= most, end.end, end.number) == (True, True, len(numbers))
        if end.rows:
            break
    assert numbers == list(range(10))


def test_large_answers_leave_in_pieces_the_last_with_the_end(
    anybody: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: list[list[Frame]] = []

    async def watched(response: Flowing, scope: Scope, receive: Receive, send: Send) -> None:
        async def seen(message: Any) -> None:
            if message["type"] == "http.response.body":
                pieces.append(list(read(message["body"])))
            await send(message)

        await call(response, scope, receive, seen)

    stream, call = Stream(anybody, streamed("select i, s from numbers where i < 950")), Flowing.__call__
    monkeypatch.setattr(Flowing, "__call__", watched)
    monkeypatch.setattr("dai.api.blocks.flowing.SENT_BYTES", 25_000)
    numbers: list[int] = []
    while len(numbers) < 10:
        numbers += [each.number for each in flowing(anybody, stream, len(numbers)) if not each.end]
    assert numbers == list(range(10))
    assert max(sum(len(each.payload) for each in piece) for piece in pieces) < 30_000
    *blocks, end = pieces[-1]
    assert (blocks[-1].number, end.end, end.rows, end.number) == (9, True, 1, 10)


def test_what_failed_is_told_behind_an_answer_that_flows(anybody: httpx.Client) -> None:
    stream, number = Stream(anybody, streamed(FAILS_LATE)), 0
    path = f"/sessions/{stream.session}/streams/out/blocks"
    while (answer := anybody.get(f"{path}/{number}?wait=30")).status_code == 200:
        *received, end = flowing(anybody, stream, number)
        assert [each.number for each in received] == list(range(number, number + len(received)))
        number += len(received)
        assert (end.end, end.rows, end.number) == (True, 0, number)
    assert (answer.status_code, "overflow" in answer.json()["detail"], number > 100) == (400, True, True)


@pytest.mark.parametrize(("wait", "flowed"), [(0, 60.0), (30, 0.2)])
def test_an_answer_ends_where_no_block_comes_in_time(
    anybody: httpx.Client, wait: int, flowed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dai.api.blocks.flowing.FLOWED_SECONDS", flowed)
    paused = Paused(monkeypatch, 1)
    stream = Stream(anybody, streamed(SQL))
    until(lambda: stream.described().get("next") == 1)
    first, end = flowing(anybody, stream, query=f"wait={wait}&count=2")
    assert (first.number, end.end, end.number, end.rows) == (0, True, 1, 0)
    monkeypatch.setattr("dai.api.blocks.flowing.FLOWED_SECONDS", 60.0)
    paused.go.set()
    assert [each.number for each in flowing(anybody, stream, 1)] == [1, 2, 3]


def test_what_has_no_frames_does_not_flow(anybody: httpx.Client) -> None:
    answer = Stream(anybody, CSV).pull(0, f"{Asked(flow=True)}, */*;q=0.5", count=3)
    assert (answer.headers["content-type"], answer.headers["x-dai-blocks"]) == ("text/csv", "3")
