"""One trace of a federated query: client, federation, evaluator, services, statements."""

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import dai
import dqp
from dai.api.server.serve import Background, background
from tests.api.conftest import configured
from tests.servers.collector import Collector

pytestmark = pytest.mark.server
SQL = "select count(*) as n, sum(w) as s from l.left_side join r.right_side using (k)"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.fixture
def databases(tmp_path: Path) -> dict[str, str]:
    urls = {}
    for name, column in (("left_side", "v"), ("right_side", "w")):
        with sqlite3.connect(tmp_path / f"{name}.db") as connection:
            connection.execute(f"create table {name} (k integer primary key, {column} integer)")
            connection.executemany(f"insert into {name} values (?, ?)", ((k, 2 * k) for k in range(100)))
        connection.close()
        urls[name] = f"sqlite:///{tmp_path / name}.db"
    return urls


class Services:
    """Services in this process, each with a directory of its own."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._directory, self._stack = directory, stack

    def start(self, name: str, collector: Collector | None, resources: dict[str, Any], **sections: Any) -> Background:
        if collector is not None:
            sections["telemetry"] = {"endpoint": collector.url, "service_name": name}
        directory = self._directory / name
        directory.mkdir()
        return self._stack.enter_context(background(configured(directory, resources, **sections)))

    def sources(self, collector: Collector, databases: dict[str, str]) -> list[dict[str, str]]:
        left = self.start("left", collector, {"data": {"url": databases["left_side"]}})
        right = self.start("right", collector, {"data": {"url": databases["right_side"]}})
        return [
            {"alias": "l", "url": f"{left.url}/resources/data"},
            {"alias": "r", "url": f"{right.url}/resources/data"},
        ]


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    with ExitStack() as stack:
        yield Services(tmp_path, stack)


def test_one_trace_from_the_client_to_the_statements(tmp_path: Path, databases: dict[str, str]) -> None:
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("a program")
    with Collector() as collector:
        with ExitStack() as stack:
            services = Services(tmp_path, stack)
            sources = services.sources(collector, databases)
            evaluator = services.start("evaluator", collector, {}, roles={"evaluator": {}})
            federation = services.start(
                "federation", collector, {}, federations={"all": {"sources": sources, "evaluators": [evaluator.url]}}
            )
            with (
                closing(dai.connect(f"{federation.url}/resources/all")) as resource,
                tracer.start_as_current_span("its work") as span,
            ):
                assert resource.query(SQL).stream().table().to_pylist() == [{"n": 100, "s": 9900}]
        trace_id, client = f"{span.get_span_context().trace_id:032x}", f"{span.get_span_context().span_id:016x}"
        of_trace = [each for each in collector.spans if each.trace == trace_id]
        query, perform = "POST /resources/{resource}/query", "POST /resources/{resource}/perform"
        (first,) = [each for each in of_trace if each.parent == client]
        assert (first.service, first.name) == ("federation", query)
        (planning,) = collector.named("planning")
        federated = ["federation: SELECT", f"federation: {query}"]
        assert collector.above(planning) == federated
        (told,) = collector.named("fragments")
        assert collector.above(told) == federated
        on_evaluator = ["evaluator: runFragments", f"evaluator: {perform}", "federation: fragments", *federated]
        fragments = collector.named("fragment", "evaluator")
        assert fragments
        assert all(collector.above(each) == on_evaluator for each in fragments)
        above = {
            each.service: collector.above(each)
            for each in of_trace
            if each.attributes.get("db.system.name") == "sqlite"
        }
        assert set(above) == {"left", "right"}
        for service, names in above.items():
            assert names[0] == f"{service}: {query}"
            # a small side is read by the federation, before the fragments are told what to do
            assert names[1:] in (
                ["evaluator: fetch", "evaluator: fragment", *on_evaluator],
                ["federation: fetch", *federated],
            )
        assert {each.attributes["db.system.name"] for each in collector.named("SELECT", "federation")} == {"dqp"}
        assert not any(each.failed for each in of_trace)
        assert b"left_side" not in b"".join(collector.raw)


def test_in_this_process(tmp_path: Path, databases: dict[str, str]) -> None:
    """Without evaluators the federation runs the fragment itself."""
    with Collector() as collector:
        with ExitStack() as stack:
            services = Services(tmp_path, stack)
            sources = services.sources(collector, databases)
            federation = services.start("federation", collector, {}, federations={"all": {"sources": sources}})
            answer = httpx.post(f"{federation.url}/resources/all/query", json={"sql": SQL}, timeout=60)
            assert answer.status_code == 200
            failed = httpx.post(
                f"{federation.url}/resources/all/query", json={"sql": "select nothing from l.left_side"}
            )
            assert failed.status_code == 400
        federated = ["federation: SELECT", "federation: POST /resources/{resource}/query"]
        (fragment,) = collector.named("fragment")
        assert collector.above(fragment) == federated
        fetches = collector.named("fetch")
        assert {each.attributes["dqp.source"] for each in fetches} == {"l", "r"}
        assert all(collector.above(each) == federated for each in fetches)
        assert [each.failed for each in collector.named("planning")] == [False, True]


def test_a_lab_goes_on_with_the_span_of_its_program(databases: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own steps are spans of the program."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    sources = {"l": databases["left_side"], "r": databases["right_side"]}
    with dqp.connect({"sources": sources}) as lab:
        with provider.get_tracer("a program").start_as_current_span("its work") as span:
            assert lab.sql(SQL).arrow().to_pylist() == [{"n": 100, "s": 9900}]
        spans = exporter.get_finished_spans()
        assert {each.name for each in spans} == {"its work", "planning", "fragment", "SELECT"}
        assert {each.context.trace_id for each in spans} == {span.get_span_context().trace_id}
        lab.sql(SQL).arrow()
        assert exporter.get_finished_spans() == spans


def test_a_federation_without_telemetry_hands_the_trace_on(tmp_path: Path, databases: dict[str, str]) -> None:
    given = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=some"}
    with Collector() as collector:
        with ExitStack() as stack:
            services = Services(tmp_path, stack)
            sources = services.sources(collector, databases)
            evaluator = services.start("evaluator", None, {}, roles={"evaluator": {}})
            settings = {"near": [], "far": [evaluator.url]}
            federations = {
                name: {"sources": sources, **({"evaluators": each} if each else {})} for name, each in settings.items()
            }
            federation = services.start("federation", None, {}, federations=federations)
            for name in settings:
                for headers in (given, {"traceparent": "nonsense"}):
                    url = f"{federation.url}/resources/{name}/query"
                    assert httpx.post(url, json={"sql": SQL}, headers=headers, timeout=60).status_code == 200
        requests = collector.named("POST /resources/{resource}/query")
        assert {each.parent for each in requests} == {PARENT, ""}
        for service in ("left", "right"):
            parents = [each.parent for each in requests if each.service == service]
            assert parents.count(PARENT) == 2
            # each federation asks once for the ends of a key, and for rows
            assert parents.count("") == 2 + 2 * len(settings)
