"""Two hundred users at once, each with a connection of its own."""

import http.client
import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tests.faults.conftest import Database, Start
from tests.faults.test_database_restart import stream_document
from tests.processes import ServiceProcess, until

USERS = 200
LEAVES = 10
"""Every tenth: what those have begun takes its place until its session ends by time."""
ROWS = 2000
FORMS = ("text/csv", "application/vnd.apache.arrow.stream", "application/vnd.webrowset+xml")
ROUNDS = 6
GROWTH = 50 << 20
"""Bytes a round, 256 KiB a user: a leak would show in each round, memory that the allocators keep in the first ones."""
PATIENCE = 1000
"""Seconds that a user, and what he asked for in a queue, waits for his turn, however busy the machine is."""


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: str, **headers: str) -> tuple[int, bytes]:
    """Status and body of an answer that is whole (http.client raises for a short one) or a clear refusal."""
    connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status == 503:
        assert int(answer.headers["Retry-After"]) > 0
        assert json.loads(content)["type"] == "busy"
    return answer.status, content


def the_same(form: str, content: bytes, expected: bytes) -> bool:
    """Where batches of Arrow end depends on how fast rows come, where nobody asked for blocks."""
    if form == "application/vnd.apache.arrow.stream":
        return bool(pa.ipc.open_stream(content).read_all().equals(pa.ipc.open_stream(expected).read_all()))
    return content == expected


def everybody(service: ServiceProcess, sql: str, expected: dict[str, bytes]) -> Counter[int]:
    def user(number: int) -> int:
        form = FORMS[number % len(FORMS)]
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE)
        try:
            status, content = ask(
                connection, "POST", "/resources/lab/query", json.dumps({"sql": sql}), Accept=form,
                Content_Type="application/json",
            )  # fmt: skip
            assert the_same(form, content, expected[form]) if status == 200 else status == 503
            return status
        finally:
            connection.close()

    with ThreadPoolExecutor(USERS) as users:
        return Counter(users.map(user, range(USERS)))


@pytest.mark.parametrize(
    ("database", "limits", "least"),
    [
        pytest.param("postgresql", {}, 116, id="default"),
        pytest.param("mariadb", {"concurrent": 3, "queue": 20}, 23, id="small"),
        pytest.param("mariadb", {"queue": 200}, 200, id="all may wait"),
    ],
    indirect=["database"],
)
def test_answers_are_whole_or_clearly_refused(
    start: Start, database: Database, limits: dict[str, float], least: int
) -> None:
    service = start(resources={"lab": database.server.url}, limits={"queue_seconds": PATIENCE, **limits})
    sql = f"{database.endless} limit {ROWS}"
    expected: dict[str, bytes] = {}
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    for form in FORMS:
        status, expected[form] = ask(
            connection, "POST", "/resources/lab/query", json.dumps({"sql": sql}), Accept=form,
            Content_Type="application/json",
        )  # fmt: skip
        assert status == 200
    connection.close()
    everybody(service, sql, expected)
    until(service.at_rest)
    threads, memory = service.threads(), [service.memory()]
    while len(memory) < 2 or memory[-1] - memory[-2] > GROWTH:
        assert len(memory) <= ROUNDS, memory
        statuses = everybody(service, sql, expected)
        assert statuses[200] >= least
        until(service.at_rest)
        memory.append(service.memory())
    # pools of threads fill up to their size and no further
    assert service.threads() <= max(threads, 2 * int(limits.get("concurrent", 16)) + 40)
    open_, idle = service.connections("lab")
    assert open_ == idle <= 16
    # the database learns a moment later
    until(lambda: database.connections <= open_)
    until(lambda: database.at_work == 0)
    assert service.metrics()["dai_sessions"] == 0


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_sessions_of_many_users_end(start: Start, database: Database) -> None:
    """Each runs a document as a job and pulls its stream to the end; more than run at once leave half-way."""
    service = start(resources={"lab": database.server.url}, limits={"session_seconds": 10.0})
    document = stream_document(f"{database.endless} limit {ROWS}")

    def user(number: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=PATIENCE)
        try:
            status, content = ask(
                connection, "POST", "/resources/lab/perform?blocksize=500", document, Content_Type="application/xml"
            )
            assert status == 202
            (session,) = re.findall(rb'session id="([^"]+)"', content)
            stream = f"/sessions/{session.decode()}/streams/out/blocks"
            block = 0
            while block < 2 or number % LEAVES:
                status, content = ask(connection, "GET", f"{stream}/{block}?wait=60", "")
                if status == 204:
                    break
                if status == 200:
                    block += 1
                else:
                    # before it began, a job may wait longer than a request is held
                    assert status == 202
            return block
        finally:
            connection.close()

    with ThreadPoolExecutor(USERS) as users:
        blocks = Counter(users.map(user, range(USERS)))
    assert blocks == {4: USERS - USERS // LEAVES, 2: USERS // LEAVES}
    until(service.at_rest)
    until(lambda: service.metrics()["dai_sessions"] == 0)
    assert service.metrics()["dai_streams"] == 0
    until(lambda: database.at_work == 0)
