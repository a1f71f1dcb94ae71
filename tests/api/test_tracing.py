"""Traces of a service: which spans, of whom, and what must not be in them."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import use_span

import dai
from dai.api.monitoring import otlp
from dai.api.server.serve import Background, background
from dai.config import origins, parse
from dai.errors import ConfigurationError, MissingDependencyError
from dai.streams.tracing import arrived
from tests.api.conftest import DOCUMENT, XML, configured, statement
from tests.processes import ServiceProcess, until
from tests.servers.collector import Collector

pytestmark = pytest.mark.server
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=some,other@x=1"}
QUERY = {"sql": "select 'a secret value' as a, i from numbers where i = 7"}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def traced(directory: Path, book: str, collector: Collector, **sections: Any) -> Any:
    telemetry = {"endpoint": collector.url, "service_name": "lab", **sections.pop("telemetry", {})}
    return background(configured(directory, {"book": {"url": book}}, telemetry=telemetry, **sections))


def client_of(service: Background, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=service.url, timeout=60, headers=headers)


def test_a_query_goes_on_with_the_trace_of_its_caller(tmp_path: Path, book: str, collector: Collector) -> None:
    with traced(tmp_path, book, collector) as service, client_of(service, **GIVEN) as client:
        answer = client.post("/resources/book/query?blocksize=5", json=QUERY)
        assert answer.status_code == 200
        assert "traceparent" not in answer.headers
        for quiet in ("/health/live", "/metrics", "/resources/book/alive"):
            assert client.get(quiet).status_code == 200
    (request,), (query,) = collector.named("POST /resources/{resource}/query"), collector.named("SELECT")
    assert len(collector.spans) == 2
    assert (request.service, request.trace, request.parent) == ("lab", TRACE, PARENT)
    assert (query.trace, query.parent) == (TRACE, request.id)
    assert request.attributes == {
        "http.request.method": "POST",
        "http.response.status_code": 200,
        "http.route": "/resources/{resource}/query",
        "url.path": "/resources/book/query",
        "url.scheme": "http",
    }
    assert query.attributes == {
        "db.system.name": "sqlite",
        "db.operation.name": "SELECT",
        "db.response.returned_rows": 1,
    }
    assert not request.failed
    assert not query.failed


def test_activities_stand_between_the_request_and_their_statements(
    tmp_path: Path, book: str, collector: Collector
) -> None:
    bag = (
        '<sqlBag name="bag"><statement returns="rows"><expression>select 1 as one</expression></statement>'
        '<resultStream name="results"/></sqlBag>'
    )
    with traced(tmp_path, book, collector) as service, client_of(service) as client:
        good = DOCUMENT.format(statement("select i from numbers where i &lt; 3".replace("&lt;", "<")) + bag)
        assert client.post("/resources/book/perform", content=good, headers=XML).status_code == 200
        bad = DOCUMENT.format(statement("select nothing from numbers", "bad"))
        assert client.post("/resources/book/perform", content=bad, headers=XML).status_code == 400
    request = "lab: POST /resources/{resource}/perform"
    above = {(tuple(collector.above(each)), each.failed) for each in collector.named("SELECT")}
    assert above == {
        (("lab: sqlQueryStatement", request), False),
        (("lab: sqlBag", request), False),
        (("lab: sqlQueryStatement", request), True),
    }
    rows = {
        each.attributes["dai.activity"]: each.attributes["dai.rows"] for each in collector.named("sqlQueryStatement")
    }
    assert rows == {"q": 3, "bad": 0}
    (failed,) = [each for each in collector.named("sqlQueryStatement") if each.failed]
    assert failed.attributes["error.type"] == "sql-error"
    # what the caller did wrong is no failure of the service
    assert not any(each.failed for each in collector.named("POST /resources/{resource}/perform"))


def test_what_writes_has_a_span_too(tmp_path: Path, postgres_url: str, collector: Collector) -> None:
    """Statements that are no queries, those of a transaction, loading, procedures."""
    update = '<sqlUpdateStatement name="u"><expression>{}</expression><resultStream name="n"/></sqlUpdateStatement>'
    make = (
        '<relationalResourceManagement name="m"><createTable tableName="made"><column name="i" type="integer"/>'
        '</createTable><resultStream name="n"/></relationalResourceManagement>'
    )
    load = (
        '<sqlBulkLoadRowSet name="b"><webRowSetStream from="rows"/><loadIntoTable tableName="made"/>'
        '<resultStream name="n"/></sqlBulkLoadRowSet>'
    )
    call = '<sqlStoredProcedure name="s"><storedProcedure name="proc"/><resultStream name="n"/></sqlStoredProcedure>'
    bodies = [
        update.format("create procedure proc() language sql as 'select 1'"),
        make,
        statement("select 7 as i") + load,
        call,
        update.format("delete from made"),
    ]
    config = configured(tmp_path, {"pg": {"url": postgres_url}}, telemetry={"endpoint": collector.url})
    with background(config) as service, client_of(service) as client:
        for body in bodies:
            answer = client.post("/resources/pg/perform", content=DOCUMENT.format(body), headers=XML)
            assert answer.status_code == 200, answer.text
    statements = [each for each in collector.spans if each.attributes.get("db.system.name") == "postgresql"]
    request = "dai: POST /resources/{resource}/perform"
    assert sorted((each.name, *collector.above(each)) for each in statements) == [
        ("CALL", "dai: sqlStoredProcedure", request),
        ("CREATE", "dai: relationalResourceManagement", request),
        ("CREATE", "dai: sqlUpdateStatement", request),
        ("DELETE", "dai: sqlUpdateStatement", request),
        ("LOAD", "dai: sqlBulkLoadRowSet", request),
        ("SELECT", "dai: sqlQueryStatement", request),
    ]


def test_a_delivery_has_a_span_and_hands_the_trace_on(
    tmp_path: Path, book: str, collector: Collector, shared: Background, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "dai.access")
    delivery = {"urls": [f"{shared.url}/sessions"], "private": True}
    with (
        traced(tmp_path, book, collector, delivery=delivery) as service,
        client_of(service) as client,
        client_of(shared) as other,
    ):
        session = shared.url + other.post("/sessions").headers["location"]
        deliver = (
            '<deliverToGDT name="d"><fromLocal from="rows"/>'
            f'<toGDT streamId="in" mode="full">{session}</toGDT></deliverToGDT>'
        )
        document = DOCUMENT.format(statement("select 1 as one") + deliver)
        job = client.post("/resources/book/perform", content=document, headers=XML).headers["location"]
        take = DOCUMENT.format('<inputStream name="in"><toLocal name="came"/></inputStream>')
        reader = f"/resources/book/perform?session={session.rpartition('/')[2]}"
        assert other.post(reader, content=take, headers=XML).status_code == 200
        until(lambda: client.get(job).json()["phase"] == "COMPLETED")
    (span,) = collector.named("deliverToGDT")
    assert collector.above(span) == ["lab: job"]
    blocks = [vars(each) for each in caplog.records if "/blocks/" in str(vars(each).get("route"))]
    assert blocks
    assert {each["trace_id"] for each in blocks} == {span.trace}


@pytest.mark.parametrize("statements", [False, True])
def test_sql_only_where_it_is_configured(tmp_path: Path, book: str, collector: Collector, statements: bool) -> None:
    with (
        traced(tmp_path, book, collector, telemetry={"statements": statements}) as service,
        client_of(service) as client,
    ):
        client.post("/resources/book/query?session=not-there&secret=value", json=QUERY)
        client.post("/resources/book/query", json=QUERY)
        client.post(
            "/resources/book/query", json={"sql": "select i from numbers where s = ?", "parameters": ["planted"]}
        )
        client.post("/resources/book/query", json={"sql": "secret value"})
        client.post("/resources/book/query", json={"sql": f"select '{'x' * 10_000}' as x"})
    texts = [each.attributes["db.query.text"] for each in collector.spans if "db.query.text" in each.attributes]
    assert [len(each) for each in texts][-1:] == ([otlp.TEXT] if statements else [])
    sent = b"".join(collector.raw)
    assert (b"secret value" in sent) is statements
    assert b"planted" not in sent
    assert b"not-there" not in sent


def test_no_secret_is_sent(tmp_path: Path, book: str, collector: Collector, caplog: pytest.LogCaptureFixture) -> None:
    """The header of the collector is sent to it, and is in nothing else; nor is a token of a caller."""
    caplog.set_level("DEBUG")
    environment = {"COLLECTOR": "Bearer planted-header"}
    document = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": str(tmp_path / "results")},
        "resources": {
            "book": {"url": book},
            "away": {"url": "postgresql://reader:planted-password@127.0.0.1:9/planted-database"},
        },
        "telemetry": {"endpoint": collector.url, "headers": {"authorization": "env:COLLECTOR"}},
        "audit": {"file": "audit.jsonl", "opentelemetry": True},
    }
    with origins() as known:
        config = parse(document, tmp_path, environment)
    assert known["telemetry.headers.authorization"] == "the environment variable COLLECTOR"
    headers = {"authorization": "Bearer planted-token", "cookie": "planted-cookie"}
    with background(config) as service, client_of(service, **headers) as client:
        client.post("/resources/book/query", json=QUERY)
        assert client.post("/resources/away/query", json=QUERY).status_code == 503
        delivery = (
            '<deliverToURL name="to"><fromLocal from="rows"/><toURL>http://planted:planted@b/</toURL></deliverToURL>'
        )
        document = DOCUMENT.format(statement("select 'planted-value' as v") + delivery)
        job = client.post("/resources/book/perform", content=document, headers=XML).headers["location"]
        until(lambda: client.get(job).json()["phase"] == "ERROR")
        metrics = client.get("/metrics").text
    assert {each["authorization"] for each in collector.headers} == {"Bearer planted-header"}
    audit = (tmp_path / "audit.jsonl").read_bytes()
    assert collector.spans
    assert collector.logs
    for said in (*collector.raw, audit, metrics.encode(), caplog.text.encode(), repr(config).encode()):
        assert b"planted" not in said


def test_the_audit_as_log_records(
    tmp_path: Path, book: str, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dai.access")
    audit = {"file": "audit.jsonl", "opentelemetry": True}
    with traced(tmp_path, book, collector, audit=audit) as service, client_of(service, **GIVEN) as client:
        client.post("/resources/book/query", json=QUERY)
    (line,) = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    (record,) = collector.logs
    assert line["trace_id"] == TRACE
    assert record == {name: value for name, value in line.items() if name != "time"}
    (access,) = [each for each in caplog.records if each.name == "dai.access" and each.message == "request"]
    assert vars(access)["trace_id"] == TRACE


def test_a_job_has_a_trace_with_a_link_to_its_request(tmp_path: Path, book: str, collector: Collector) -> None:
    with traced(tmp_path, book, collector, audit={"file": "audit.jsonl"}) as service, client_of(service) as client:
        for phase in ("RUN", "PENDING"):
            job = client.post(f"/resources/book/query?phase={phase}", json=QUERY).headers["location"]
            if phase == "PENDING":
                client.post(f"{job}/phase", data={"PHASE": "RUN"})
            until(lambda job=job: client.get(job).json()["phase"] == "COMPLETED")
    made = {each.id: each.trace for each in collector.named("POST /resources/{resource}/query")}
    jobs = collector.named("job")
    assert {link for each in jobs for link in each.links} == set(made)
    assert all(not each.parent and each.trace not in made.values() for each in jobs)
    assert sorted(each.parent for each in collector.named("SELECT")) == sorted(each.id for each in jobs)
    records = map(json.loads, (tmp_path / "audit.jsonl").read_text().splitlines())
    assert {each["trace_id"] for each in records if each["event"] == "job"} == {each.trace for each in jobs}


def test_a_job_is_recorded_where_its_request_is(tmp_path: Path, book: str, collector: Collector) -> None:
    """Its own share does not count twice."""
    with traced(tmp_path, book, collector, telemetry={"sample": 0.0}) as service, client_of(service) as client:
        for headers in (GIVEN, {}):
            job = client.post("/resources/book/query?phase=RUN", json=QUERY, headers=headers).headers["location"]
            until(lambda job=job: client.get(job).json()["phase"] == "COMPLETED")
    (request,) = collector.named("POST /resources/{resource}/query")
    assert [each.links for each in collector.named("job")] == [(request.id,)]


def test_a_job_of_several_processes_keeps_its_link(tmp_path: Path, book: str, collector: Collector) -> None:
    """Whichever process is asked to run it."""
    more = f'[telemetry]\nendpoint = "{collector.url}"\n'
    service = ServiceProcess(tmp_path, {"book": book}, workers=2, more=more)
    service.start()
    try:
        for _ in range(4):  # a connection each
            job = httpx.post(f"{service.url}/resources/book/query?phase=PENDING", json=QUERY).headers["location"]
            httpx.post(f"{service.url}{job}/phase", data={"PHASE": "RUN"})
            until(lambda job=job: httpx.get(f"{service.url}{job}").json()["phase"] == "COMPLETED")
    finally:
        service.stop()
    made = {each.id for each in collector.named("POST /resources/{resource}/query")}
    assert {link for each in collector.named("job") for link in each.links} == made
    assert len(made) == 4


def test_nothing_of_what_is_not_sampled(tmp_path: Path, book: str, collector: Collector) -> None:
    with traced(tmp_path, book, collector, telemetry={"sample": 0.0}) as service, client_of(service) as client:
        assert client.post("/resources/book/query", json=QUERY).status_code == 200
        assert not collector.spans
        # whoever calls has decided already
        client.post("/resources/book/query", json=QUERY, headers=GIVEN)
        client.post("/resources/book/query", json=QUERY, headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
    assert {each.trace for each in collector.spans} == {TRACE}
    assert len(collector.spans) == 2


def dropped(client: httpx.Client) -> float:
    lines = client.get("/metrics").text.splitlines()
    return sum(float(each.rpartition(" ")[2]) for each in lines if each.startswith("dai_telemetry_dropped_total"))


def test_what_the_environment_says(
    tmp_path: Path, book: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=some")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "of the environment")
    config = configured(tmp_path, {"book": {"url": book}}, telemetry={})
    with background(config) as service, client_of(service) as client:
        client.post("/resources/book/query", json=QUERY)
    assert {each.service for each in collector.spans} == {"of the environment"}
    assert {each["x-key"] for each in collector.headers} == {"some"}


def test_the_library_can_be_switched_off(
    tmp_path: Path, book: str, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    with traced(tmp_path, book, collector) as service, client_of(service) as client:
        assert client.post("/resources/book/query", json=QUERY).status_code == 200
        assert client.post("/resources/book/query", json=QUERY, headers=GIVEN).status_code == 200
        job = client.post("/resources/book/query?phase=RUN", json=QUERY).headers["location"]
        until(lambda: client.get(job).json()["phase"] == "COMPLETED")
    assert not collector.spans


def test_without_configuration_nothing_is_imported(tmp_path: Path, book: str) -> None:
    """But the API of OpenTelemetry, which FastAPI imports."""
    code = f"""
import sys, httpx
from dai.api.server.serve import background
from dai.config import parse
service = {{"port": 0, "state": "sqlite:///:memory:"}}
config = parse({{"service": service, "resources": {{"book": {{"url": {book!r}}}}}}}, {str(tmp_path)!r}, {{}})
with background(config) as running:
    for headers in ({{}}, {GIVEN!r}):
        answer = httpx.post(running.url + "/resources/book/query", json={QUERY!r}, headers=headers)
        assert answer.status_code == 200, answer.text
ours = ("dai.streams.recorded", "dai.api.monitoring.otlp", "opentelemetry.sdk", "opentelemetry.exporter")
print([name for name in sys.modules if name.startswith(ours)])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout == "[]\n"


def test_without_the_extra(tmp_path: Path, book: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "dai.api.monitoring.otlp")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    config = configured(tmp_path, {"book": {"url": book}}, telemetry={})
    with pytest.raises(MissingDependencyError, match="OpenTelemetry") as missing, background(config):
        pass
    assert missing.value.hint == "pip install -e '.[telemetry]'"


def test_what_the_library_refuses(tmp_path: Path, book: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", str(otlp.WAITING + 1))
    config = configured(tmp_path, {"book": {"url": book}}, telemetry={})
    with pytest.raises(ConfigurationError, match="refuses its configuration"), background(config):
        pass


@pytest.mark.parametrize("answer", [400, None], ids=["refuses", "is away"])
def test_a_collector_that_takes_nothing(
    tmp_path: Path, book: str, answer: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.1")
    with Collector(answer or 200) as collector:
        gone = {} if answer is not None else {"endpoint": "http://127.0.0.1:9"}
        with traced(tmp_path, book, collector, telemetry=gone) as service, client_of(service) as client:
            assert client.post("/resources/book/query", json=QUERY).status_code == 200
            until(lambda: dropped(client) >= 2)


def test_a_slow_collector_holds_no_request_and_no_stop(
    tmp_path: Path, book: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its queue is full after three spans; all requests are answered meanwhile."""
    monkeypatch.setattr(otlp, "WAITING", 3)
    monkeypatch.setattr(otlp, "CLOSE_SECONDS", 0.1)
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    held = threading.Event()
    with Collector(held=held) as collector:
        with traced(tmp_path, book, collector) as service, client_of(service) as client:
            for _ in range(10):
                assert client.post("/resources/book/query", json=QUERY).status_code == 200
            assert dropped(client) > 0
        assert not collector.spans
        held.set()


def test_each_worker_sends_its_spans(tmp_path: Path, book: str, collector: Collector) -> None:
    more = f'[telemetry]\nendpoint = "{collector.url}"\n'
    service = ServiceProcess(tmp_path, {"book": book}, workers=2, more=more)
    service.start()
    try:
        for _ in range(6):  # a connection each
            assert httpx.post(f"{service.url}/resources/book/query", json=QUERY, headers=GIVEN).status_code == 200
    finally:
        service.stop()
    until(lambda: len(collector.named("SELECT")) == 6)
    assert {each.trace for each in collector.named("SELECT")} == {TRACE}
    assert {each.service for each in collector.spans} == {"dai"}


def test_a_request_that_moves_to_another_worker_has_one_span(tmp_path: Path, book: str, collector: Collector) -> None:
    more = f'[telemetry]\nendpoint = "{collector.url}"\n'
    service = ServiceProcess(tmp_path, {"book": book}, workers=2, more=more)
    service.start()
    try:
        session = httpx.post(f"{service.url}/sessions").headers["location"].rpartition("/")[2]
        for _ in range(6):  # a connection each
            url = f"{service.url}/resources/book/query?session={session}"
            assert httpx.post(url, json=QUERY, headers=GIVEN).status_code == 200
    finally:
        service.stop()
    requests = collector.named("POST /resources/{resource}/query")
    assert [each.parent for each in requests] == [PARENT] * 6
    assert {each.parent for each in collector.named("SELECT")} == {each.id for each in requests}


def test_a_client_goes_on_with_the_span_of_its_program(tmp_path: Path, book: str, collector: Collector) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("a program")
    with (
        traced(tmp_path, book, collector) as service,
        closing(dai.connect(f"{service.url}/resources/book")) as resource,
    ):
        with tracer.start_as_current_span("its work") as span:
            resource.query("select 1 as one").stream().table()
        resource.query("select 2 as two").stream().table()
        with use_span(trace.INVALID_SPAN):
            resource.query("select 3 as three").stream().table()
    requests = collector.named("POST /resources/{resource}/query")
    assert len(collector.named("GET /resources/{resource}")) == 1  # connecting
    context = span.get_span_context()
    assert [each.trace == f"{context.trace_id:032x}" for each in requests] == [True, False, False]
    assert [each.parent for each in requests] == [f"{context.span_id:016x}", "", ""]


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "nonsense",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-01-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT}-01\r\nx: y",
        f"00-{TRACE}-{PARENT}-0x",
        f"00-{TRACE}-{PARENT}-01" * 1000,
    ],
)
def test_a_bad_parent_is_ignored(parent: str) -> None:
    assert arrived([(b"traceparent", parent.encode())]) is None


def test_what_arrives() -> None:
    parent = GIVEN["traceparent"].encode()
    span = arrived([(b"tracestate", b"vendor=some"), (b"traceparent", parent), (b"tracestate", b" other@x=1 ")])
    assert span is not None
    assert (span.trace_id, span.headers) == (TRACE, GIVEN)
    assert arrived([(b"traceparent", parent), (b"traceparent", parent)]) is None
    assert arrived([]) is None
    later = arrived([(b"traceparent", b"01" + parent[2:] + b"-more")])
    assert later is not None
    assert later.headers == {"traceparent": GIVEN["traceparent"]}


@pytest.mark.parametrize(
    "state", ["no member", "a=b\x01", "a=\xe9", f"a={'b' * 600}", "A=b", ",".join(f"a{n}=1" for n in range(33))]
)
def test_a_bad_state_is_dropped(state: str) -> None:
    span = arrived([(b"traceparent", GIVEN["traceparent"].encode()), (b"tracestate", state.encode("latin-1"))])
    assert span is not None
    assert "tracestate" not in span.headers


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"endpoint": "collector:4318"}, "not the address"),
        ({"endpoint": "http://user:password@collector:4318"}, "not the address"),
        ({"sample": 2.0}, "at most 1"),
        ({"sampel": 1.0}, "no key 'sampel'"),
        ({"headers": {"a b": "c"}}, "not an HTTP header"),
        ({"headers": {"a": "b\nc: d"}}, "not an HTTP header"),
        ({"headers": "a=b"}, "section of texts"),
        ({"headers": {"a": "env:NOT_THERE"}}, "NOT_THERE"),
    ],
)
def test_what_the_configuration_refuses(section: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as refused:
        parse({"telemetry": section}, environment={})
    assert "password@" not in str(refused.value)


def test_the_audit_needs_somewhere_to_go() -> None:
    with pytest.raises(ConfigurationError, match="needs a section"):
        parse({"audit": {"opentelemetry": True}}, environment={})
