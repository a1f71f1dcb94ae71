"""Plans of queries on evaluators that are processes of their own: before they run, and what travels back of them."""

from __future__ import annotations

import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

import dai
from dai.api.server.serve import background
from dai.config import parse
from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.catalog.sources.service import ServiceSource
from dqp.coordinator import Coordinator
from dqp.errors import EvaluatorLostError
from dqp.explain.explanation import Explanation
from dqp.explain.nodes import Node
from dqp.explain.plan import MISSING
from dqp.runtimes.attempt import Attempt
from dqp.runtimes.service import ServiceEvaluator
from dqp.settings import load
from tests.dqp.test_explain import nodes
from tests.processes import SECONDS, ServiceProcess, until
from tests.servers import free_port

pytestmark = pytest.mark.usefixtures("patient")
ROWS = 250_000
JOINED = """SELECT a.v, count(*) AS n, sum(b.w) AS s FROM one.facts a JOIN two.others b ON a.k = b.k
            WHERE b.w < 90 GROUP BY a.v ORDER BY n DESC, a.v LIMIT 3"""
MATCHES = sum(each % 100 < 90 for each in range(ROWS))


@pytest.fixture(scope="module")
def evaluators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServiceProcess]]:
    """Two; the first is the data service too."""
    place = tmp_path_factory.mktemp("data")
    urls = {alias: f"duckdb:///{place / alias}.duckdb" for alias in ("one", "two")}
    numbers = pa.array(range(ROWS), pa.int64())
    tables = {
        "facts": pa.table({"k": numbers, "v": pa.array([each % 7 for each in range(ROWS)], pa.int32())}),
        "others": pa.table({"k": numbers, "w": pa.array([each % 100 for each in range(ROWS)], pa.int32())}),
    }
    for url, (name, table) in zip(urls.values(), tables.items(), strict=True):
        with closing(driver_for(url)) as driver:
            columns = ", ".join(f"{each} bigint{' primary key' if each == 'k' else ''}" for each in table.column_names)
            driver.update(f"CREATE TABLE {name} ({columns})", cancellation=Cancellation())
            driver.load(name, Stream.of(table), cancellation=Cancellation())
    started = [
        ServiceProcess(tmp_path_factory.mktemp("one"), urls, roles={"evaluator": ""}),
        ServiceProcess(tmp_path_factory.mktemp("two"), {}, roles={"evaluator": ""}),
    ]
    with ExitStack() as stack:
        for each in started:
            stack.callback(each.stop)
            each.start()
        yield started


def sources(evaluators: list[ServiceProcess]) -> dict[str, str]:
    return {alias: f"{evaluators[0].url}/resources/{alias}" for alias in ("one", "two")}


@pytest.fixture(scope="module")
def lab(evaluators: list[ServiceProcess]) -> Iterator[Coordinator]:
    settings = load({"sources": sources(evaluators), "evaluators": [each.url for each in evaluators]})
    with closing(Coordinator(settings)) as coordinator:
        coordinator.explain("SELECT count(*) FROM one.facts, two.others")  # so that the catalog is known
        yield coordinator


def refused(*_: Any, **__: Any) -> Any:
    raise AssertionError("nothing is to run")


def named(root: Node, title: str) -> list[Node]:
    return [each for each in nodes(root) if each.title.startswith(title)]


def test_before_it_runs(lab: Coordinator, evaluators: list[ServiceProcess], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ServiceSource, "query", refused)
    monkeypatch.setattr(ServiceEvaluator, "run", refused)
    explanation = lab.explain(JOINED)
    both = ", ".join(each.url for each in evaluators)
    fragments = {each.title: each for each in named(explanation.root, "Fragment")}
    assert set(fragments) == {f"Fragment {number}" for number in range(1, len(fragments) + 1)}
    assert explanation.root.title == f"Fragment {len(fragments)}"
    assert explanation.root.where in {each.url for each in evaluators}
    assert [each.where for each in fragments.values()].count(both) == 3
    hashed = named(explanation.root, "Exchange hash")
    assert [each.details for each in hashed] == [(f"by {key}", f"to fragment 3 at {both}") for key in ("k", "k_2")]
    assert named(explanation.root, "Exchange gather")[0].details == (
        "all rows to one",
        f"to fragment {len(fragments)} at {explanation.root.where}",
    )
    assert sorted(len(each.statements) for each in named(explanation.root, "Remote")) == [2, 2]
    for title in ("Fragment", "Exchange", "Remote", "Inner join", "Aggregate"):
        for each in named(explanation.root, title):
            assert each.estimated.rows
            assert each.estimated.bytes
            assert each.estimated.seconds
            assert each.actual is None
    assert Explanation.of(explanation.json).json == explanation.json
    assert f"to fragment 3 at {both}" in explanation.text
    assert "part 2 of 2: SELECT" in explanation.text
    assert "Fragment 3" in "".join(ET.fromstring(explanation.svg).itertext())
    for service in evaluators:
        state = httpx.get(f"{service.url}/resources/evaluator", timeout=SECONDS).json()
        assert not any(state[each] for each in ("works", "tickets", "readers"))


def test_broadcast_says_to_whom(lab: Coordinator, evaluators: list[ServiceProcess]) -> None:
    sql = "SELECT a.k, b.n FROM one.facts a JOIN (SELECT w, count(*) AS n FROM two.others GROUP BY w) b ON a.v = b.w"
    (actual,) = named(lab.explain(sql).root, "Exchange broadcast")
    assert actual.details[0] == "all rows to each"
    assert all(each.url in actual.details[1] for each in evaluators)


def test_one_statement_needs_no_evaluator(lab: Coordinator) -> None:
    root = lab.explain("SELECT count(*) FROM one.facts").root
    assert (root.title, root.where, [each.title for each in root.inputs]) == ("Fragment 1", "here", ["Remote one"])


def test_an_evaluator_that_does_not_answer_is_said(evaluators: list[ServiceProcess]) -> None:
    away = f"http://127.0.0.1:{free_port()}"
    urls = [evaluators[0].url, away]
    with closing(Coordinator(load({"sources": sources(evaluators), "evaluators": urls}))) as lab:
        explanation = lab.explain(JOINED)
    assert f"{away} does not answer" in explanation.remarks
    assert {each.where for each in named(explanation.root, "Fragment")} == {evaluators[0].url}


def test_where_no_evaluator_answers_the_nodes_say_so(evaluators: list[ServiceProcess]) -> None:
    away = [f"http://127.0.0.1:{free_port()}" for _ in range(2)]
    with closing(Coordinator(load({"sources": sources(evaluators), "evaluators": away}))) as lab:
        explanation = lab.explain(JOINED)
    fragments = named(explanation.root, "Fragment")
    assert fragments
    for each in fragments:
        assert each.where
        assert all(place.endswith(" does not answer") for place in each.where.split(", "))
    assert {f"{each} does not answer" for each in away} <= set(explanation.remarks)


def test_what_evaluators_did_travels_back(lab: Coordinator, evaluators: list[ServiceProcess]) -> None:
    explanation = lab.explain(JOINED, analyze=True)
    assert not [each for each in explanation.remarks if MISSING in each]
    (join,) = named(explanation.root, "Inner join")
    assert join.actual is not None
    assert join.actual.rows == MATCHES
    for each in (*named(explanation.root, "Exchange"), *named(explanation.root, "Fragment")):
        assert each.actual is not None
        assert each.actual.rows
        assert each.actual.bytes
        assert each.actual.seconds
        assert each.actual.waiting is not None
    for each in named(explanation.root, "Exchange"):
        (fragment,) = each.inputs
        assert fragment.actual is not None
        assert each.actual is not None
        assert fragment.actual.rows == each.actual.rows
    assert {each.actual.rows for each in named(explanation.root, "Remote") if each.actual} == {MATCHES, ROWS}
    joined = [each for each in explanation.fragments if each.title == "Fragment 3"]
    assert [each.where for each in joined] == [each.url for each in evaluators]
    done = 0.0
    for each in joined:
        (engine,) = [one for one in nodes(each) if "join" in one.title]
        assert engine.actual is not None
        assert engine.actual.rows
        assert engine.actual.seconds is not None
        assert len(named(each, "Received from fragment")) == 2
        done += engine.actual.rows
    assert done == MATCHES
    assert Explanation.of(explanation.json).json == explanation.json
    assert all(each.url in explanation.text for each in evaluators)


def test_an_evaluator_that_dies_before_it_has_said_what_it_did(
    lab: Coordinator, evaluators: list[ServiceProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer is whole, the explanation says what it lacks."""
    victim = evaluators[1]
    read = threading.Event()
    attempts: list[Any] = []
    run, to_the_end = ServiceEvaluator.run, Attempt._to_the_end

    def dying(self: ServiceEvaluator, *arguments: Any, **more: Any) -> Iterator[Sequence[Any]]:
        reports: Any = run(self, *arguments, **more)
        if self.name == victim.url:
            next(reports)
            yield []
            read.wait(60)
            until(lambda: attempts[0]._over)
            victim.kill()
            # What it said before it died may have arrived: here, nothing has.
            reports.close()
            raise EvaluatorLostError("The evaluator went away.")
        yield from reports

    def reading(self: Any, stream: Stream) -> Iterator[pa.RecordBatch]:
        def rows() -> Iterator[pa.RecordBatch]:
            yield from stream
            read.set()

        attempts.append(self)
        yield from to_the_end(self, Stream(stream.schema, rows(), stream.close))

    monkeypatch.setattr(ServiceEvaluator, "run", dying)
    monkeypatch.setattr(Attempt, "_to_the_end", reading)
    try:
        explanation = lab.explain(JOINED, analyze=True)
    finally:
        victim.start()
    assert len(attempts) == 1
    silent = [each for each in explanation.fragments if each.where == victim.url]
    assert silent
    assert all(MISSING in each.details for each in silent)
    assert all(f"{each.title} at {victim.url}: {MISSING}" in explanation.remarks for each in silent)
    (spoken,) = [
        each for each in explanation.fragments if each.title == "Fragment 3" and each.where == evaluators[0].url
    ]
    assert any("join" in each.title for each in nodes(spoken))
    (join,) = named(explanation.root, "Inner join")
    assert join.actual is None


def test_a_job_says_how_far_each_fragment_is(evaluators: list[ServiceProcess], tmp_path: Path) -> None:
    document: dict[str, Any] = {
        "service": {"port": 0, "state": "sqlite:///state.db", "results_directory": "results", "grace": 0.2},
        "federations": {
            "lab": {
                "sources": [{"alias": alias, "url": url} for alias, url in sources(evaluators).items()],
                "evaluators": [each.url for each in evaluators],
            }
        },
    }
    with background(parse(document, tmp_path, {})) as running:
        job = dai.connect(f"{running.url}/lab").submit(JOINED)

        def parts() -> dict[str, dict[str, Any]]:
            return {each["name"]: each for activity in job.progress for each in activity["parts"]}

        joined = {f"fragment 3 at {each.url}" for each in evaluators}
        until(lambda: joined <= parts().keys())
        assert job.wait().phase == "COMPLETED"
        now = parts()
    assert sum(now[each]["rows"] for each in joined) == 14
    assert {now[each]["state"] for each in joined} == {"done"}
    assert {"one", "two"} <= now.keys()
    assert now["one"]["rows"] + now["two"]["rows"] == ROWS + MATCHES
