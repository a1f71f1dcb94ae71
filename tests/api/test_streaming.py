"""What happens between the first byte and the last, when something goes wrong."""

import gc
import http.client
import json
import socket
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psycopg
import pyarrow as pa
import pytest

import dai
from dai.api.monitoring.problems import DETAIL, KEPT, Problems
from dai.api.server.serve import Background, background
from dai.api.work import Work
from dai.errors import LimitError, StatementError
from dai.perform.graph import Perform
from tests.api.conftest import DOCUMENT, ENDLESS, FAILS_LATE, XML, Serve, configured, statement
from tests.processes import until

CSV = {"Accept": "text/csv", "Content-Type": "application/json"}


def opened(running: Background, sql: str, resource: str = "book", **body: int) -> socket.socket:
    """A request whose answer nobody reads."""
    address = urlsplit(running.url)
    content = json.dumps({"sql": sql, **body}).encode()
    connection = socket.create_connection((address.hostname, address.port))
    connection.sendall(
        b"POST /resources/%b/query HTTP/1.1\r\nHost: localhost\r\nAccept: text/csv\r\n"
        b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (resource.encode(), len(content), content)
    )
    return connection


def idle(running: Background, resource: str = "book") -> bool:
    state = running.service.resources[resource].driver.pool_state()
    return not running.service.working and running.service.admission.running == 0 and state["open"] == state["idle"]


@pytest.mark.parametrize("parser", [None, "h11"])
@pytest.mark.parametrize("form", ["text/csv", "application/vnd.webrowset+xml", "application/x-ndjson"])
def test_a_failure_half_way_breaks_the_transfer_off(serve: Serve, parser: str | None, form: str) -> None:
    running = serve(parser)
    with (
        httpx.Client(base_url=running.url, timeout=60) as client,
        client.stream("POST", "/resources/book/query", json={"sql": FAILS_LATE}, headers={"Accept": form}) as answer,
    ):
        assert answer.status_code == 200
        with pytest.raises(httpx.RemoteProtocolError):
            deque(answer.iter_raw(), maxlen=0)
    until(lambda: idle(running))


def test_a_limit_half_way_breaks_the_transfer_off(serve: Serve) -> None:
    running = serve(limits={"bytes": 3_000_000})
    address = urlsplit(running.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port)
    connection.request("POST", "/resources/book/query", json.dumps({"sql": ENDLESS}), CSV)
    answer = connection.getresponse()
    assert answer.status == 200
    with pytest.raises(http.client.IncompleteRead):
        answer.read()
    until(lambda: idle(running))


def test_a_response_document_ends_with_its_error(serve: Serve) -> None:
    running = serve()
    with httpx.Client(base_url=running.url, timeout=60) as client:
        answer = client.post("/resources/book/perform", content=DOCUMENT.format(statement(FAILS_LATE)), headers=XML)
    assert answer.status_code == 200
    assert 'error id="sql-error"' in answer.text
    assert answer.text.rstrip().endswith("</gridDataServiceResponse>")
    assert "<request id=" in answer.text
    assert 'status="ERROR"' in answer.text


def test_an_early_failure_of_a_document_has_its_status(serve: Serve) -> None:
    running = serve()
    early = "select abs(-9223372036854775808) as i"
    with httpx.Client(base_url=running.url, timeout=60) as client:
        for accept in ("*/*", "application/xml"):
            answer = client.post(
                "/resources/book/perform", content=DOCUMENT.format(statement(early)), headers={**XML, "Accept": accept}
            )
            assert answer.status_code == 400


def test_seconds_are_limited_even_when_nobody_reads(serve: Serve) -> None:
    running = serve(limits={"seconds": 1.0})
    with opened(running, ENDLESS) as held:
        assert held.recv(1)  # it has begun; the rest is not read
        until(lambda: idle(running))


def test_seconds_are_limited_before_the_first_block(serve: Serve, postgres_url: str) -> None:
    running = serve(limits={"seconds": 0.5}, resources={"pg": {"url": postgres_url}})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        answer = client.post("/resources/pg/query", json={"sql": "select 1 as i, pg_sleep(600)::text as s"})
    assert (answer.status_code, answer.json()["type"]) == (422, "limit-exceeded")
    until(lambda: idle(running, "pg"))


@pytest.mark.parametrize(
    "sql",
    [
        "select pg_sleep(600)::text as s",
        # in the select list the series streams; in FROM the server would gather it first
        "select generate_series(1, 1000000000) as i, repeat('x', 1000) as s",
    ],
    ids=["before the first block", "half-way"],
)
def test_a_client_that_vanishes_frees_statement_and_connection(serve: Serve, postgres_url: str, sql: str) -> None:
    running = serve(resources={"pg": {"url": postgres_url}})
    with psycopg.connect(postgres_url, autocommit=True) as watching:

        def at_work() -> int:
            query = (
                "select count(*) from pg_stat_activity where state = 'active' and pid <> pg_backend_pid() "
                "and datname = current_database()"
            )
            row = watching.execute(query).fetchone()
            assert row is not None
            return int(row[0])

        vanishing = opened(running, sql, "pg")
        until(lambda: at_work() > 0)
        vanishing.close()
        until(lambda: at_work() == 0)
    until(lambda: idle(running, "pg"))


def test_a_client_that_stops_reading_makes_the_server_hold_at_most_two_blocks(serve: Serve) -> None:
    running = serve()
    rows = 20_000
    sql = ENDLESS.replace("select i from c", f"select i, '{'x' * 150}' as s from c")
    with opened(running, sql, blocksize=rows) as stopped:
        until(lambda: any(each.size for each in running.service.working))
        (work,) = running.service.working
        before = (-1, -1)
        while before != (work.size, work.rows):
            before = (work.size, work.rows)
            time.sleep(1)
        pulled, taken = before
        in_kernel = sum(_queues(stopped.getsockname()[1]))
        block = pulled / (taken / rows)
        assert block > 3_000_000
        assert pulled - in_kernel <= 2 * block
    until(lambda: idle(running))


def _queues(port: int) -> tuple[int, int]:
    """Bytes that the kernel holds for the connection of that client port: unread by it, unsent to it."""
    unread = unsent = 0
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        sending, receiving = (int(each, 16) for each in queues.split(":"))
        if int(local.split(":")[1], 16) == port:
            unread += receiving
        elif int(remote.split(":")[1], 16) == port:
            unsent += sending
    return unread, unsent


def test_two_hundred_users_get_whole_answers_or_clear_refusals(serve: Serve) -> None:
    running = serve(limits={"concurrent": 3, "queue": 20}, resources={})
    address = urlsplit(running.url)
    body = json.dumps({"sql": "select i, s from numbers where i < 5000 order by i"})
    before = threading.active_count()

    def user(_: int) -> int:
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=100)
        try:
            connection.request("POST", "/resources/book/query", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            content = answer.read()
            if answer.status == 200:
                assert pa.ipc.open_stream(content).read_all()["i"].to_pylist() == list(range(5000))
            else:
                assert answer.status == 503
                assert answer.headers["Retry-After"]
                assert json.loads(content)["type"] == "busy"
            return answer.status
        finally:
            connection.close()

    with ThreadPoolExecutor(200) as users:
        statuses = list(users.map(user, range(200)))
    assert statuses.count(200) >= 23
    until(lambda: idle(running))
    state = running.service.resources["book"].driver.pool_state()
    assert state["open"] <= 3
    limits = running.service.config.limits
    assert threading.active_count() - before <= 2 * limits.concurrent + 8 + 8


def test_a_full_queue_refuses_and_waiting_ends(serve: Serve) -> None:
    running = serve(limits={"concurrent": 1, "queue": 1, "queue_seconds": 0.3})
    with httpx.Client(base_url=running.url, timeout=60) as client, opened(running, ENDLESS):
        until(lambda: running.service.admission.running == 1)
        answer = client.post("/resources/book/query", json={"sql": "select 1"})
        assert (answer.status_code, answer.json()["type"]) == (503, "busy")
        assert int(answer.headers["retry-after"]) > 0
    until(lambda: idle(running))
    with httpx.Client(base_url=running.url, timeout=60) as client:
        assert client.post("/resources/book/query", json={"sql": "select 1"}).status_code == 200


@pytest.mark.parametrize("wait", ["wait=0", 'Wait="0"; x=y', "handling=lenient,wait=0"])
def test_who_does_not_wait_is_refused_at_once(serve: Serve, wait: str) -> None:
    running = serve(limits={"concurrent": 1, "queue": 10, "queue_seconds": 3600})
    with httpx.Client(base_url=running.url, timeout=60, headers={"Prefer": wait}) as client:
        assert client.post("/resources/book/query", json={"sql": "select 1"}).status_code == 200
        until(lambda: idle(running))
        with opened(running, ENDLESS):
            until(lambda: running.service.admission.running == 1)
            answer = client.post("/resources/book/query", json={"sql": "select 1"})
            assert (answer.status_code, answer.json()["type"]) == (503, "busy")
    until(lambda: idle(running))


def test_a_preference_that_says_nothing_is_none(serve: Serve) -> None:
    running = serve(limits={"concurrent": 1, "queue": 10, "queue_seconds": 60})
    body = {"sql": "select 1"}
    for prefer in ("wait=soon", "wait", "wait=-1", "wait=\xb2", ", ;=", "respond-async-or-not"):
        headers = {b"prefer": prefer.encode("latin-1")}
        assert (
            httpx.post(f"{running.url}/resources/book/query", json=body, headers=headers, timeout=60).status_code == 200
        ), prefer


def test_stopping_the_service_ends_what_runs(serve: Serve, tmp_path: Path, book: str) -> None:
    with background(configured(tmp_path, {"book": {"url": book}})) as running:
        connection = opened(running, ENDLESS)
        until(lambda: bool(running.service.working))
        service = running.service
    assert not service.working
    connection.close()


@pytest.mark.parametrize(
    ("limit", "form"),
    # how what was broken off is read depends on the format; why it was, the service says apart from it
    [*(("rows", form) for form in ("arrow", "csv", "webrowset", "json")), ("bytes", "csv"), ("seconds", "arrow")],
)
def test_the_client_says_which_limit_broke_a_transfer_off(serve: Serve, limit: str, form: str) -> None:
    running = serve(limits={limit: {"rows": 250_000, "bytes": 3_000_000, "seconds": 2.0}[limit]})
    resource = dai.connect(f"{running.url}/book")
    with closing(resource), pytest.raises(LimitError, match=f"limits\\.{limit} of this service") as raised:
        deque(resource.query(ENDLESS, format=form).chunks(), maxlen=0)
    error = raised.value
    assert error.extra["limit"] == f"limits.{limit}"
    assert error.extra["rows"] > 0
    assert f"{error.extra['rows']:,} rows came before. What arrived is not the whole result." in str(error)
    assert f"ask the operator of the service for a higher limits.{limit}" in str(error)
    until(lambda: idle(running))


def test_the_rows_that_came_before_a_limit_are_those_it_says(serve: Serve) -> None:
    running = serve(limits={"rows": 250_000})
    lines: list[str] = []
    with httpx.Client(base_url=running.url, timeout=60) as client:
        with (
            client.stream("POST", "/resources/book/query", json={"sql": ENDLESS}, headers=CSV) as answer,
            pytest.raises(httpx.RemoteProtocolError),
        ):
            lines.extend(answer.iter_lines())
        problem = client.get(f"/problems/{answer.headers['x-request-id']}")
        assert problem.headers["content-type"] == "application/problem+json"
        assert (problem.json()["type"], problem.json()["rows"]) == ("limit-exceeded", len(lines) - 1)
        missing = client.get("/problems/none")
        assert (missing.status_code, missing.json()["type"]) == (404, "not-found")


def test_the_client_says_what_failed_half_way(serve: Serve) -> None:
    resource = dai.connect(f"{serve().url}/book")
    with closing(resource), pytest.raises(StatementError, match=r"(?s)overflow.*not the whole result"):
        resource.query(FAILS_LATE).arrow()


def test_problems_are_bounded() -> None:
    problems = Problems()
    for number in range(KEPT + 5):
        problems.keep(str(number), LimitError("x" * 10 * DETAIL), 1)
    assert problems.of("4") == []
    ((problem, _),) = problems.of("5")
    assert len(problem) < DETAIL + 1000


def test_a_response_document_says_which_limit_it_reached(serve: Serve) -> None:
    with httpx.Client(base_url=serve(limits={"rows": 300_000}).url, timeout=60) as client:
        answer = client.post("/resources/book/perform", content=DOCUMENT.format(statement(ENDLESS)), headers=XML)
    assert answer.status_code == 200
    assert 'error id="limit-exceeded"' in answer.text
    assert "300,000 rows allowed (limits.rows of this service)" in answer.text
    assert f"{answer.text.count('<currentRow>'):,} rows came before." in answer.text


def test_what_a_request_had_is_freed_when_it_ends(serve: Serve) -> None:
    """Before, its error, or who watched its client, kept all of it until the garbage of hundreds was collected."""
    running = serve()

    slow = "with recursive r(i) as (select 1 union all select i + 1 from r where i < 1000000) select count(*) from r"

    def left() -> list[object]:
        return [each for each in gc.get_objects() if isinstance(each, Work | Perform)]

    with httpx.Client(base_url=running.url, timeout=60) as client:
        client.post("/resources/book/query", json={"sql": "select 1 as a"})
        gc.collect()
        gc.disable()
        try:
            before = len(left())
            for sql in ("select nothing", slow):
                assert client.post("/resources/book/query", json={"sql": sql}).status_code in (200, 400)
                until(lambda: len(left()) <= before)
        finally:
            gc.enable()
