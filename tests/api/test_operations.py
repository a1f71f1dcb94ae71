"""Health, metrics, logs, schemas, addresses: what the people who run a service use."""

import asyncio
import json
import logging
import sqlite3
import time
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Query, Request
from starlette.responses import Response

from dai.api.app import create_app
from dai.api.dependencies import TheService
from dai.api.monitoring.logs import JsonFormatter
from dai.api.requests.route import PullRoute
from dai.api.routes.streams import Pull
from dai.api.scheduling.admission import Admission
from dai.api.server.serve import Background, background
from dai.errors import BusyError, ConfigurationError
from tests.api.conftest import Serve, configured


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("PUT", "/resources", 405, "GET, HEAD"),
        ("PATCH", "/jobs/none", 405, "DELETE, GET, HEAD"),
        ("HEAD", "/sessions/none/streams/out", 405, "DELETE, GET"),
        ("HEAD", "/sessions/none/streams/out/blocks/0", 405, "GET, PUT"),
        ("PUT", "/", 405, "GET, HEAD"),
        ("GET", "/resources/", 404, None),
        ("GET", "/resources/book/schema/x/y", 404, None),
    ],
)
def test_methods_and_addresses(client: httpx.Client, method: str, path: str, status: int, allow: str | None) -> None:
    answer = client.request(method, path)
    assert (answer.status_code, answer.headers.get("allow")) == (status, allow)
    assert answer.headers["content-type"] == "application/problem+json"


def test_work_that_is_sent_to_a_resource_is_told_where_it_goes(client: httpx.Client) -> None:
    answer = client.post("/resources/book", content=b"<perform/>")
    assert answer.status_code == 405
    hint = "Possible: GET, HEAD. POST goes to /resources/book/perform or /resources/book/query."
    assert answer.json()["hint"] == hint
    assert client.put("/resources/book").json()["hint"] == "Possible: GET, HEAD."


@pytest.mark.parametrize(
    "path", ["/health/live", "/resources", "/resources/book/schema", "/schemas/perform.xsd", "/docs"]
)
def test_what_reads_answers_head_without_a_body(client: httpx.Client, path: str) -> None:
    head, whole = client.head(path), client.get(path)
    assert head.status_code == 200
    assert head.content == b""
    assert head.headers["content-length"] == str(len(whole.content))


BLOCK = "/sessions/none/streams/out/blocks"


@pytest.mark.parametrize(
    "address",
    [
        *(f"/jobs/none?wait={each}" for each in ("-1", "61", "", "a", "1.0", "%201", "1_0", "%D9%A3", "9" * 50)),
        *(f"/jobs?phase={each}" for each in ("pending", "", "X")),
        *(f"/resources/book/schema?tables={each}" for each in ("", "a%00", "%ff")),
        *(f"/jobs?{each}" for each in ("last=1&last=2", "last=1&last=1", "lasst=1", "last", "last=1&x=")),
        *(f"/health/live?{each}" for each in ("x=1", "x", "&")),
        *(f"{BLOCK}/{each}" for each in ("-1", "a", "1.0", "1_0", str(2**53 + 1))),
        *(f"{BLOCK}/0?{each}" for each in ("count=0", "count=1001", "count=1&count=1", "wait=61", "x=1")),
        "/jobs/a%00",
    ],
)
def test_parameters_are_checked(client: httpx.Client, address: str) -> None:
    answer = client.get(address)
    assert (answer.status_code, answer.json()["type"]) == (400, "bad-parameter"), answer.text
    assert answer.json()["detail"]


@pytest.mark.parametrize("last", ["yes", "", "TRUE", "2", "on"])
def test_a_flag_is_true_or_false(client: httpx.Client, last: str) -> None:
    answer = client.put(f"{BLOCK}/0?last={last}", content=b"")
    assert (answer.status_code, answer.json()["type"]) == (400, "bad-parameter")
    assert "true or false" in answer.json()["hint"]


def test_operations_have_names_of_their_own() -> None:
    operations = [each for path in create_app().openapi()["paths"].values() for each in path.values()]
    names = [each["operationId"] for each in operations]
    assert len(set(names)) == len(names)


def test_a_pull_route_refuses_the_dependencies_that_it_would_not_look_up() -> None:
    async def endpoint(request: Request, service: TheService, asked: Annotated[Pull, Query()]) -> Response:
        return Response()

    with pytest.raises(TypeError, match="/pull has dependencies"):
        PullRoute("/pull", endpoint)


def test_an_application_describes_itself_without_opening_anything() -> None:
    described = create_app().openapi()
    assert described["openapi"].startswith("3.1")
    assert "/resources/{resource}/perform" in described["paths"]


def test_health(client: httpx.Client) -> None:
    assert client.get("/health/live").json() == {"status": "live"}
    ready = client.get("/health/ready")
    assert ready.status_code == 200
    assert ready.json()["checks"] == {"state": "ok", "resource book": "ok"}


def test_not_ready_without_a_database(serve: Serve) -> None:
    away = {"url": "postgresql://x:secret@127.0.0.1:9/none", "connect_wait": 0.5}
    running = serve(resources={"book": away})
    with httpx.Client(base_url=running.url, timeout=60) as client:
        ready = client.get("/health/ready")
        assert ready.status_code == 503
        assert ready.json()["checks"]["resource book"] == "database-unavailable"
        answer = client.post("/resources/book/query", json={"sql": "select 1"})
        assert answer.status_code == 503
        assert "secret" not in answer.text
        assert "127.0.0.1" not in answer.text


def test_schemas_and_documentation(client: httpx.Client) -> None:
    served = {path.rpartition("/")[2]: client.get(path).content for path in client.get("/schemas").json()["schemas"]}
    assert served == {path.name: path.read_bytes() for path in (Path(__file__).parents[2] / "schemas").glob("*.xsd")}
    assert client.get("/schemas/none.xsd").status_code == 404
    assert client.get("/openapi.json").json() == create_app().openapi()
    assert "/openapi.json" in client.get("/docs").text


def test_resources_and_their_schema(client: httpx.Client) -> None:
    (book,) = client.get("/resources").json()["resources"]
    assert book == client.get("/resources/book").json()
    assert book["kind"] == "database"
    schema = client.get(book["links"]["schema"])
    assert [table["name"] for table in schema.json()["tables"]] == ["numbers"]
    again = client.get(book["links"]["schema"], headers={"If-None-Match": schema.headers["etag"]})
    assert again.status_code == 304
    assert client.get("/resources/book/schema?tables=x%25").json()["tables"] == []


def test_the_schema_is_read_again_when_it_is_asked_for(client: httpx.Client, book: str) -> None:
    client.get("/resources/book/schema")
    with sqlite3.connect(book.removeprefix("sqlite:///")) as connection:
        connection.execute("create table later (i integer)")
    try:
        fresh = client.get("/resources/book/schema", headers={"Cache-Control": "no-cache"})
        assert "later" in [table["name"] for table in fresh.json()["tables"]]
    finally:
        with sqlite3.connect(book.removeprefix("sqlite:///")) as connection:
            connection.execute("drop table later")
        client.get("/resources/book/schema", headers={"Cache-Control": "no-cache"})


def test_statistics_of_a_table(client: httpx.Client) -> None:
    actual = client.get("/resources/book/statistics?table=numbers")
    assert actual.json()["table"] == "numbers"
    assert actual.json().keys() == {"resource", "table", "rows", "size_bytes", "columns"}
    missing = client.get("/resources/book/statistics?table=nubers")
    assert missing.status_code == 404
    assert "numbers" in missing.json()["hint"]
    unsaid = client.get("/resources/book/statistics")
    assert unsaid.status_code == 400
    assert "'table' is missing" in unsaid.json()["detail"]


def test_metrics_count(serve: Serve) -> None:
    running = serve()
    with httpx.Client(base_url=running.url, timeout=60) as client:
        client.post("/resources/book/query", json={"sql": "select i from numbers limit 7"})
        client.get("/nowhere")
        deadline = time.monotonic() + 90
        while 'route="none"' not in (text := client.get("/metrics").text):
            assert time.monotonic() < deadline
    assert "dai_rows_total 7.0" in text
    assert 'dai_requests_total{method="POST",route="/resources/{resource}/query",status="200"} 1.0' in text
    assert 'dai_pool_connections{resource="book",state="open"}' in text
    assert 'dai_stage_seconds_total{stage="execute"}' in text


def test_the_log_has_a_line_for_each_request_and_no_sql(shared: Background, client: httpx.Client) -> None:
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Keep()
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger("dai")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        secret = "a-literal-nobody-may-see"
        for sql in (f"select '{secret}' as s", f"select '{secret}' from nothing"):
            answer = client.post(
                "/resources/book/query", json={"sql": sql}, headers={"X-Request-ID": f"id{len(lines)}"}
            )
        deadline = time.monotonic() + 90
        while len(lines) < 2:
            assert time.monotonic() < deadline
    finally:
        root.removeHandler(handler)
        root.setLevel(level)
    assert secret not in "".join(lines)
    first, second = (json.loads(line) for line in lines)
    assert (first["status"], first["rows"], first["id"], first["resource"]) == (200, 1, "id0", "book")
    assert set(first["stages"]) >= {"validate", "execute", "fetch", "encode"}
    assert (second["status"], second["error"]) == (answer.status_code, "sql-error")


def test_a_service_that_cannot_start_says_so(tmp_path: Any) -> None:
    config = configured(tmp_path, {"book": {"url": "postgresql://h/d", "roles": "x"}})
    with pytest.raises(ConfigurationError, match="'x' cannot be read"), background(config):
        raise AssertionError("it started")


def test_admission_runs_queues_and_refuses() -> None:
    async def scenario() -> None:
        admission = Admission(1, 1, 30)
        await admission.acquire()
        waiting = asyncio.create_task(admission.acquire())
        await asyncio.sleep(0)
        assert (admission.running, admission.waiting) == (1, 1)
        with pytest.raises(BusyError):
            await admission.acquire()
        admission.release()
        await waiting
        assert (admission.running, admission.waiting) == (1, 0)
        given_up = asyncio.create_task(admission.acquire())
        await asyncio.sleep(0)
        admission.release()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert admission.running == 0
        impatient = Admission(1, 1, 0.01)
        await impatient.acquire()
        with pytest.raises(BusyError, match="no request ended"):
            await impatient.acquire()
        assert (impatient.running, impatient.waiting) == (1, 0)
        await admission.acquire()
        with pytest.raises(BusyError, match="within 0 seconds"):
            await admission.acquire(0)
        assert (admission.running, admission.waiting) == (1, 0)

    asyncio.run(scenario())


def test_the_root_says_what_this_is(client: httpx.Client, serve: Serve) -> None:
    told = client.get("/", headers={"Accept": "application/json"}).json()
    assert told["service"] == "dai data service"
    for url in told["links"].values():
        assert client.get(url).status_code == 200, url
    page = client.get("/", headers={"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert all(f'href="{url}"' in page.text for url in told["links"].values())
    assert client.get("/").headers["content-type"] == "application/json"
    assert client.get("/health").json() == client.get("/health/ready").json()
    asking = serve(identity={"methods": ["token"]})
    assert [httpx.get(f"{asking.url}{path}").status_code for path in ("/", "/health", "/resources")] == [200, 200, 401]
