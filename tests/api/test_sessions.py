import base64
import re
import threading
import time
from typing import Any

import httpx
import pytest

from dai.api.server.serve import Background
from tests.api.conftest import DOCUMENT, ENDLESS, FAILS_LATE, ROWS, XML, Serve, statement, streamed
from tests.processes import until

ALL = "select i, s from numbers order by i"


def started(client: httpx.Client, sql: str, query: str = "?blocksize=1000") -> str:
    """The address of the stream of a document that is at work."""
    answer = client.post(f"/resources/book/perform{query}", content=streamed(sql), headers=XML)
    assert answer.status_code == 202, answer.text
    match = re.search(r'session id="([^"]+)"', answer.text)
    assert match is not None
    return f"/sessions/{match[1]}/streams/out"


def whole(client: httpx.Client, sql: str) -> bytes:
    return client.post("/resources/book/query?format=webrowset", json={"sql": sql}).content


@pytest.mark.parametrize(("blocksize", "count"), [(1000, 1), (700, 3), (7000, 10), (40_000, 1)])
def test_concatenated_blocks_are_the_synchronous_document(client: httpx.Client, blocksize: int, count: int) -> None:
    stream = started(client, ALL, f"?blocksize={blocksize}")
    got, rows, number = b"", 0, 0
    while True:
        answer = client.get(f"{stream}/blocks/{number}?count={count}&wait=30")
        if answer.status_code == 204:
            break
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "application/vnd.webrowset+xml"
        again = client.get(f"{stream}/blocks/{number}?count={count}&wait=30")
        assert again.content == answer.content
        number += int(answer.headers["x-dai-blocks"])
        rows += int(answer.headers["x-block-rows"])
        got += answer.content
    assert number == -(-ROWS // blocksize)
    assert rows == ROWS
    assert got == whole(client, ALL)
    assert client.get(f"{stream}/blocks/{number}").status_code == 204
    assert client.get(f"{stream}/blocks/0").status_code == 410
    assert client.get(f"{stream}/blocks/{number + 7}").status_code == 409


def test_the_producer_waits_for_the_reader(client: httpx.Client, shared: Background) -> None:
    stream = started(client, ENDLESS)
    assert client.get(f"{stream}/blocks/0?wait=30").status_code == 200
    session = stream.split("/")[2]

    def described() -> dict[str, int]:
        return dict(client.get(f"/sessions/{session}").json()["streams"][0])

    until(lambda: described()["blocks"] >= 2)
    time.sleep(0.2)
    description = described()
    assert description["blocks"] == 2
    assert description["next"] == 2
    assert client.delete(f"/sessions/{session}").status_code == 204
    assert client.get(f"{stream}/blocks/1").status_code == 404


def test_a_failure_of_the_producer_comes_after_its_blocks(client: httpx.Client) -> None:
    stream = started(client, FAILS_LATE, "?blocksize=100000")
    number = 0
    while (answer := client.get(f"{stream}/blocks/{number}?wait=30")).status_code == 200:
        number += 1
    assert number > 0
    assert (answer.status_code, answer.json()["type"]) == (400, "sql-error")


def test_the_whole_stream_at_once(client: httpx.Client) -> None:
    stream = started(client, ALL)
    assert client.get(stream).content == whole(client, ALL)
    stream = started(client, FAILS_LATE, "?blocksize=10000")
    with pytest.raises(httpx.RemoteProtocolError):
        client.get(stream)


def test_the_rest_of_a_stream(client: httpx.Client) -> None:
    stream = started(client, ALL)
    first = client.get(f"{stream}/blocks/0?wait=30").content
    client.get(f"{stream}/blocks/1?wait=30")
    assert first + client.get(stream).content == whole(client, ALL)


@pytest.mark.parametrize("whole_first", [True, False])
def test_a_drained_stream_answers_alike_as_a_whole_and_by_block(client: httpx.Client, whole_first: bool) -> None:
    stream = started(client, "select 1 as a")
    if whole_first:
        assert client.get(stream).status_code == 200
    else:
        assert client.get(f"{stream}/blocks/0?wait=30").status_code == 200
        assert client.get(f"{stream}/blocks/1?wait=30").status_code == 204
    for address in (stream, f"{stream}/blocks/1", stream):
        answer = client.get(address)
        assert (answer.status_code, answer.content) == (204, b"")


def test_nothing_yet_is_202_and_long_polling_waits(client: httpx.Client) -> None:
    session = client.post("/sessions", json={"timeout": 60}).json()["id"]
    upload = DOCUMENT.format(
        '<inputStream name="in"><toLocal name="up"/></inputStream>'
        '<outputStream name="out"><fromLocal from="up"/></outputStream>'
    )
    answer = client.post(f"/resources/book/perform?session={session}", content=upload, headers=XML)
    assert answer.status_code == 202, answer.text
    base = f"/sessions/{session}/streams"
    assert client.get(f"{base}/out/blocks/0").status_code == 202
    got: list[httpx.Response] = []
    reader = threading.Thread(target=lambda: got.append(client.get(f"{base}/out/blocks/0?wait=30")), daemon=True)
    reader.start()
    assert client.put(f"{base}/in/blocks/0", content=b"hello").status_code == 204
    reader.join(30)
    assert got[0].content == b"hello"
    client.put(f"{base}/in/blocks/1?last=true", content=b" world")
    assert client.get(f"{base}/out").content == b"hello world"
    assert client.delete(f"/sessions/{session}").status_code == 204
    assert client.delete(f"/sessions/{session}").status_code == 404


def test_pushing_is_idempotent_ordered_and_held_back(client: httpx.Client) -> None:
    session = client.post("/sessions").json()["id"]
    blocks = f"/sessions/{session}/streams/in/blocks"
    assert client.put(f"{blocks}/0", content=b"a").status_code == 204
    assert client.put(f"{blocks}/0", content=b"a").status_code == 204
    answer = client.put(f"{blocks}/2", content=b"c")
    assert (answer.status_code, answer.json()["expected"]) == (409, 1)
    assert client.put(f"{blocks}/1", content=b"b").status_code == 204
    full = client.put(f"{blocks}/2?wait=0", content=b"c")
    assert (full.status_code, full.json()["type"]) == (429, "back-pressure")
    assert int(full.headers["retry-after"]) > 0


READER = b"""<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">
  <inputStream name="in"><toLocal name="pushed"/></inputStream>
  <sqlBulkLoadRowSet name="load"><webRowSetStream from="pushed"/><loadIntoTable tableName="nowhere"/>
    <resultStream name="count"/></sqlBulkLoadRowSet>
</gridDataServicePerform>"""


def test_pushing_to_a_reader_that_has_ended(client: httpx.Client) -> None:
    session = client.post("/sessions").json()["id"]
    blocks = f"/sessions/{session}/streams/in/blocks"
    assert client.put(f"{blocks}/0?last=false", content=b"no WebRowSet").status_code == 204
    ended = client.post(f"/resources/book/perform?session={session}", content=READER, headers=XML)
    assert ended.status_code == 400
    answer = client.put(f"{blocks}/1", content=b"more")
    assert (answer.status_code, answer.json()["type"]) == (410, "gone")


def test_a_pushed_block_may_be_too_large(serve: Serve) -> None:
    running = serve(limits={"block_bytes": 1000})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        session = client.post("/sessions").json()["id"]
        answer = client.put(f"/sessions/{session}/streams/in/blocks/0", content=b"x" * 1001)
        assert answer.status_code == 413


def test_pushed_blocks_are_bounded_in_a_session_and_in_the_service(serve: Serve) -> None:
    running = serve(limits={"block_bytes": 1000, "session_bytes": 2000, "sessions_bytes": 4000})
    pushed = running.service.sessions.budget
    with httpx.Client(base_url=running.url, timeout=60) as client:
        sessions = [client.post("/sessions").json()["id"] for _ in range(3)]

        def push(session: str, stream: str, number: int = 0, content: Any = b"x" * 1000) -> httpx.Response:
            path = f"/sessions/{session}/streams/{stream}/blocks/{number}?wait=0"
            return client.put(path, content=content)

        assert [push(sessions[0], each).status_code for each in "abc"] == [204, 204, 429]
        full = push(sessions[0], "c")
        assert full.json()["type"] == "back-pressure"
        assert int(full.headers["retry-after"]) > 0
        assert [push(sessions[1], each).status_code for each in "ab"] == [204, 503]
        full = push(sessions[2], "a", content=iter([b"x"]))  # its head does not say how much it is
        assert (full.status_code, full.json()["type"]) == (503, "busy")
        assert int(full.headers["retry-after"]) > 0
        assert push(sessions[0], "a").status_code == 429
        assert push(sessions[0], "a", 7).status_code == 409
        assert pushed.held == 3000
        assert client.delete(f"/sessions/{sessions[0]}").status_code == 204
        assert pushed.held == 1000
        assert push(sessions[2], "a", content=iter([b"x"])).status_code == 204
        assert pushed.held == 1001


def test_a_push_is_held_until_there_is_room(serve: Serve) -> None:
    running = serve(limits={"block_bytes": 1000, "session_bytes": 1000})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        session = client.post("/sessions").json()["id"]
        streams = f"/sessions/{session}/streams"
        assert client.put(f"{streams}/a/blocks/0?last=true", content=b"x" * 1000).status_code == 204
        held: list[httpx.Response] = []
        push = threading.Thread(
            target=lambda: held.append(client.put(f"{streams}/b/blocks/0?last=true&wait=50", content=b"y" * 1000)),
            daemon=True,
        )
        push.start()
        passed_on = "".join(
            f'<inputStream name="{each}"><toLocal name="{each}-in"/></inputStream>'
            f'<outputStream name="{each}-out"><fromLocal from="{each}-in"/></outputStream>'
            for each in "ab"
        )
        document = DOCUMENT.format(passed_on)
        answer = client.post(f"/resources/book/perform?session={session}", content=document, headers=XML)
        assert answer.status_code == 202, answer.text
        assert client.get(f"{streams}/b-out").content == b"y" * 1000
        push.join(60)
        assert held[0].status_code == 204
        assert client.get(f"{streams}/a-out").content == b"x" * 1000


def test_a_reader_gets_the_block_it_waits_for_though_its_session_is_full(serve: Serve) -> None:
    running = serve(limits={"block_bytes": 1000, "session_bytes": 2000})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        session = client.post("/sessions").json()["id"]
        streams = f"/sessions/{session}/streams"
        document = DOCUMENT.format(
            '<inputStream name="read"><toLocal name="in"/></inputStream>'
            '<outputStream name="out"><fromLocal from="in"/></outputStream>'
        )
        for each in "ab":
            assert client.put(f"{streams}/unread-{each}/blocks/0", content=b"x" * 1000).status_code == 204
        answer = client.post(f"/resources/book/perform?session={session}", content=document, headers=XML)
        assert answer.status_code == 202, answer.text
        pulled: list[bytes] = []
        pull = threading.Thread(target=lambda: pulled.append(client.get(f"{streams}/out").content), daemon=True)
        pull.start()
        for number, last in enumerate(["false", "false", "false", "true"]):
            path = f"{streams}/read/blocks/{number}?last={last}&wait=50"
            assert client.put(path, content=b"y" * 1000).status_code == 204
        pull.join(60)
        assert pulled == [b"y" * 4000]


def test_blocks_that_are_passed_on_to_streams_that_nobody_reads_count(serve: Serve) -> None:
    running = serve(limits={"block_bytes": 4000, "session_bytes": 2000})
    budget = running.service.sessions.budget
    with httpx.Client(base_url=running.url, timeout=60) as client:
        session = client.post("/sessions").json()["id"]
        streams = f"/sessions/{session}/streams"
        passed_on = "".join(
            f'<inputStream name="in{each}"><toLocal name="on{each}"/></inputStream>'
            f'<outputStream name="out{each}"><fromLocal from="on{each}"/></outputStream>'
            for each in range(4)
        )
        answer = client.post(
            f"/resources/book/perform?session={session}", content=DOCUMENT.format(passed_on), headers=XML
        )
        assert answer.status_code == 202, answer.text

        def push(stream: int, number: int, wait: int, last: bool = False) -> int:
            path = f"{streams}/in{stream}/blocks/{number}?wait={wait}&last={str(last).lower()}"
            return client.put(path, content=b"x" * 1000).status_code

        refused = [[push(stream, number, 0) for number in range(8)].count(429) for stream in range(4)]
        assert all(refused)

        def held(*directions: str) -> int:
            listed = client.get(f"/sessions/{session}").json()["streams"]
            return sum(each["bytes"] for each in listed if each["direction"] in directions)

        until(lambda: budget.held == held("input", "output"))
        # a block in each is let in, whatever the others hold
        assert held("output") <= 5 * 1000
        for stream in range(4):
            blocks = {each["name"]: each["next"] for each in client.get(f"/sessions/{session}").json()["streams"]}
            first = blocks[f"in{stream}"]
            pulled: list[bytes] = []
            pull = threading.Thread(
                target=lambda name=stream, pulled=pulled: pulled.append(client.get(f"{streams}/out{name}").content),
                daemon=True,
            )
            pull.start()
            for number in range(first, first + 5):
                assert push(stream, number, 50, number == first + 4) == 204
            pull.join(60)
            assert pulled == [b"x" * 1000 * (first + 5)]
        assert budget.held == 0


def test_sessions_end_when_nobody_uses_them(serve: Serve) -> None:
    running = serve(limits={"session_seconds": 600, "sessions": 2})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        stream = started(client, ENDLESS)
        assert client.get(f"{stream}/blocks/0?wait=30").status_code == 200
        assert client.post("/sessions").status_code == 201
        assert client.post("/sessions").status_code == 503
        for each in running.service.sessions.all():
            each.timeout = 0.5
        until(lambda: not running.service.sessions.all() and running.service.jobs.counts() == (0, 0))
        (job,) = client.get("/jobs").json()["jobs"]
        assert job["phase"] == "ERROR"


@pytest.mark.parametrize("body", [{"timeout": 0}, {"timeout": "x"}, {"timeout": True}, {"other": 1}, [], 3])
def test_sessions_that_cannot_be_made(client: httpx.Client, body: object) -> None:
    assert client.post("/sessions", json=body).status_code == 400


@pytest.mark.parametrize(
    "path",
    ["blocks/-1", "blocks/x", "blocks/1.0", "blocks/99999999999999999999", "blocks/0?count=0", "blocks/0?wait=-1"],
)
def test_addresses_of_blocks_that_cannot_be(client: httpx.Client, path: str) -> None:
    session = client.post("/sessions").json()["id"]
    assert client.get(f"/sessions/{session}/streams/out/{path}").status_code == 400


def test_streams_that_nobody_makes_are_not_found(client: httpx.Client) -> None:
    session = client.post("/sessions").json()["id"]
    assert client.get(f"/sessions/{session}/streams/out/blocks/0?wait=30").status_code == 404
    assert client.get(f"/sessions/{session}/streams/out").status_code == 404
    assert client.get("/sessions/none/streams/out").status_code == 404


def test_a_misspelt_stream_is_not_found_while_the_job_runs(client: httpx.Client) -> None:
    stream = started(client, ENDLESS)
    session = f"/sessions/{stream.split('/')[2]}"
    for address in ("outt/blocks/0?wait=30", "outt?wait=30"):
        answer = client.get(f"{session}/streams/{address}")
        assert (answer.status_code, answer.json()["hint"]) == (404, "Did you mean 'out'?")
    assert client.put(f"{session}/streams/in/blocks/0", content=b"x").status_code == 404
    assert client.get(f"{stream}/blocks/0?wait=30").status_code == 200
    assert client.delete(session).status_code == 204


def test_a_job_that_fails_before_its_stream_says_why_on_the_stream(client: httpx.Client) -> None:
    answer = client.get(f"{started(client, 'select x from nothing')}/blocks/0?wait=30")
    assert (answer.status_code, answer.json()["type"]) == (400, "sql-error")


PUSHED = '<inputStream name="in"><toLocal name="up"/></inputStream>'
FED = (
    '<sqlQueryStatement name="q"><sqlParameter position="1" from="up"/><expression>select ? as n</expression>'
    '<webRowSetStream name="rows"/></sqlQueryStatement>'
)
LOADED = '<sqlBulkLoadRowSet name="load"><webRowSetStream from="up"/><resultStream name="count"/></sqlBulkLoadRowSet>'
PULLED = statement("select 5 as n", output="five") + (
    '<outputStream name="out"><fromLocal from="five"/></outputStream>'
    '<sqlUpdateStatement name="u"><expression>delete from numbers where i = -1</expression>'
    '<resultStream name="count"/></sqlUpdateStatement>'
)
MANY = PULLED.replace("select 5 as n", "select i from numbers").replace(
    '<outputStream name="out"><fromLocal from="five"/>',
    '<blockAggregator name="b"><input from="five"/><blocksize size="100"/><output name="blocks"/></blockAggregator>'
    '<outputStream name="out"><fromLocal from="blocks"/>',
)


@pytest.mark.parametrize("session", ["", "<session/>"], ids=["of the request", "that the document makes"])
@pytest.mark.parametrize("coding", ["identity", "zstd", "gzip"])
@pytest.mark.parametrize(
    ("body", "ends"),
    [(PUSHED, b"webRowSet"), (PUSHED + FED, b"41"), (PUSHED + LOADED, b'updateCount="1"'), (MANY, b'updateCount="0"')],
    ids=["pushed", "parameters", "bulk load", "pulled"],
)
def test_the_head_with_the_session_leaves_at_once(
    shared: Background, body: str, ends: bytes, coding: str, session: str
) -> None:
    url = f"{shared.url}/resources/book/perform"
    with (
        httpx.Client(base_url=shared.url, timeout=60) as other,
        httpx.stream(
            "POST",
            url,
            content=DOCUMENT.format(session + body),
            headers={**XML, "Accept-Encoding": coding},
            timeout=60,
        ) as answer,
    ):
        assert answer.status_code == 200
        pieces = answer.iter_bytes()
        head = next(pieces)
        match = re.search(rb'<session id="([^"]+)"/>', head)
        assert match is not None
        streams = f"/sessions/{match[1].decode()}/streams"
        if body == MANY:
            assert other.get(f"{streams}/out").text.count("<currentRow>") == 30_000
        else:
            put = other.put(f"{streams}/in/blocks/0?last=true", content=whole(other, "select 41 as n"))
            assert put.status_code == 204, put.text
        rest = b"".join(pieces)
    assert ends in (base64.b64decode(rest.partition(b">")[2].partition(b"<")[0]) if body == PUSHED else rest)
    assert rest.rstrip().endswith(b"</gridDataServiceResponse>")
    assert b'status="COMPLETED"/>\n</grid' in rest


@pytest.mark.parametrize("broken", ["select nothing", "select ?, nothing"])
def test_what_fails_behind_the_head_is_in_the_document(client: httpx.Client, broken: str) -> None:
    body = PUSHED + LOADED + statement(broken)
    answer = client.post("/resources/book/perform", content=DOCUMENT.format(body), headers=XML)
    assert answer.status_code == 200
    assert 'error id="sql-error" activity="q"' in answer.text
    assert '<request id="' in answer.text
    assert answer.text.rstrip().endswith("</gridDataServiceResponse>")


@pytest.mark.parametrize(("query", "accept"), [("?output=rows", "*/*"), ("", "text/csv"), ("?format=csv", "*/*")])
def test_an_end_point_alone_cannot_name_the_session(client: httpx.Client, query: str, accept: str) -> None:
    headers = {**XML, "Accept": accept}
    answer = client.post(f"/resources/book/perform{query}", content=DOCUMENT.format(PUSHED + FED), headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "bad-request")
    assert "?session=ID" in answer.json()["hint"]
    session = client.post("/sessions").json()["id"]
    pushed = client.put(f"/sessions/{session}/streams/in/blocks/0?last=true", content=whole(client, "select 41 as n"))
    assert pushed.status_code == 204
    joined = f"{query}&session={session}" if query else f"?session={session}"
    answer = client.post(f"/resources/book/perform{joined}", content=DOCUMENT.format(PUSHED + FED), headers=headers)
    assert "41" in answer.text


def test_attributes_of_a_session(client: httpx.Client) -> None:
    address = client.post("/sessions", json={"attributes": {"a": 1, "b": {"c": None}}}).headers["location"]
    assert client.patch(address, json={"attributes": {"a": None, "d": "x"}}).status_code == 200
    assert client.get(address).json()["attributes"] == {"b": {"c": None}, "d": "x"}
    assert client.patch(address, json={"attribute": {}}).status_code == 400
    assert client.patch(address, json={"attributes": {"e": 1 << 70}}).status_code == 400
    assert client.patch(address, json={"attributes": {"e": "x" * (1 << 16)}}).status_code == 413
    assert client.get(address).json()["attributes"] == {"b": {"c": None}, "d": "x"}


def test_blocks_of_another_producer_are_refused(client: httpx.Client) -> None:
    stream = client.post("/sessions").headers["location"] + "/streams/in"
    for producer, status in (("a", 204), ("b", 409), ("a", 204), ("", 400)):
        assert client.put(f"{stream}/blocks/0?producer={producer}", content=b"x").status_code == status
    assert client.put(f"{stream}/blocks/0", content=b"x").status_code == 409


def test_a_block_that_nobody_takes(client: httpx.Client) -> None:
    stream = client.post("/sessions").headers["location"] + "/streams/in"
    for _ in range(2):
        assert client.put(f"{stream}/blocks/0?taken=true&wait=0", content=b"x").status_code == 202
    assert client.delete(f"{stream}?direction=input").status_code == 204
    assert client.put(f"{stream}/blocks/0?taken=true&wait=0", content=b"x").status_code == 410


def test_a_stream_that_its_reader_ends_stops_its_producer(client: httpx.Client) -> None:
    stream = started(client, ENDLESS)
    assert client.get(f"{stream}/blocks/0?wait=30").status_code == 200
    assert client.delete(stream).status_code == 204
    assert client.get(f"{stream}/blocks/1?wait=30").status_code == 410
    session = stream.rpartition("/streams")[0]
    until(lambda: client.get(session).status_code == 404 or client.get(session).json()["requests"] == 0)


@pytest.mark.parametrize("sql", ["select 1 as a", "select nothing from nowhere"])
def test_a_document_may_end_the_session_that_it_joins(client: httpx.Client, sql: str) -> None:
    """Whether it fails or not."""
    session = client.post("/sessions").json()["id"]
    document = DOCUMENT.format(f'<session id="{session}" end="true"/>' + statement(sql))
    answer = client.post("/resources/book/perform", content=document, headers=XML)
    assert answer.status_code == (200 if "nowhere" not in sql else 400), answer.text
    assert client.get(f"/sessions/{session}").status_code == 404


def test_a_session_in_the_address_and_another_in_the_document(client: httpx.Client) -> None:
    one, other = (client.post("/sessions").json()["id"] for _ in range(2))
    document = DOCUMENT.format(f'<session id="{one}"/>' + statement("select 1 as a"))
    same, another = (
        client.post(f"/resources/book/perform?session={each}", content=document, headers=XML) for each in (one, other)
    )
    assert (same.status_code, another.status_code) == (200, 409)
    assert f"The address names the session {other!r}, but the document names {one!r}." in another.text
