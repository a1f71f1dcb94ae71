"""Plans as text and JSON: what was estimated, what was sent, what happened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from sqlglot import exp

from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import Exchange, Join, Names, Project, Receive, column
from dqp.coordinator import Coordinator
from dqp.execution.execution import Execution, ExecutionOptions, Measurement, figures_of
from dqp.explain.explanation import Explanation
from dqp.explain.nodes import Figures, Node, wrong
from dqp.explain.plan import AGAIN, MISSING, OTHERWISE, fragments_of, node_of, remarks_of
from dqp.explain.text import duration, lines, measured, shortened, size
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.planning.distribution.partition import Fragment, Output, Plan, cut
from dqp.planning.distribution.placement import Placement, named_places
from dqp.planning.distribution.spreading import Thresholds
from dqp.settings import load
from tests.dqp.doubles import numbers, remote

ROWS = 1_000


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    place = tmp_path_factory.mktemp("explained")
    urls = {"duck": f"duckdb:///{place}/duck.db", "lite": f"sqlite:///{place}/lite.db"}
    tables = {
        "duck": pa.table({"id": list(range(ROWS)), "v": [each % 9 for each in range(ROWS)]}),
        "lite": pa.table({"id": list(range(0, ROWS, 4)), "name": [f"n{each}" for each in range(0, ROWS, 4)]}),
    }
    for alias, url in urls.items():
        driver = driver_for(url)
        driver.load("t", Stream.of(tables[alias]), cancellation=Cancellation(), create=True)
        driver.close()
    function = {"python": f"{__name__}:plus", "arguments": ["BIGINT"], "returns": "BIGINT"}
    coordinator = Coordinator(load({"sources": urls, "functions": {"plus": function}}))
    yield coordinator
    coordinator.close()


def plus(value: int) -> int:
    return value + 1


JOINED = "select l.name, sum(d.v) as s from duck.t d join lite.t l on d.id = l.id group by 1 order by 2 desc limit 5"


def nodes(*roots: Node) -> Iterator[Node]:
    for each in roots:
        yield each
        yield from nodes(*each.inputs)


def test_before_it_runs(coordinator: Coordinator) -> None:
    explanation = coordinator.explain(JOINED)
    remotes = [each for each in nodes(explanation.root) if each.title.startswith("Remote")]
    assert {(each.title, each.where) for each in remotes} == {("Remote duck", "duckdb"), ("Remote lite", "sqlite")}
    assert all(each.statements and each.estimated.rows and each.actual is None for each in remotes)
    assert not explanation.fragments
    assert "estimated 5 rows" in explanation.text.split("\n")[0]
    assert "actual" not in explanation.text
    assert set(explanation.seconds) == {"binding", "optimising"}


def test_after_it_ran(coordinator: Coordinator) -> None:
    explanation = coordinator.explain(JOINED, analyze=True)
    assert explanation.root.actual is not None
    assert explanation.root.actual.rows == 5
    for each in nodes(explanation.root):
        if each.title.startswith("Remote"):
            assert each.actual is not None
            assert each.actual.rows in (ROWS, ROWS / 4)
            assert each.actual.bytes
            assert each.actual.seconds is not None
            assert each.actual.waiting is not None
    (fragment,) = explanation.fragments
    assert (fragment.title, fragment.where) == ("Fragment 1", "here")
    assert fragment.actual is not None
    assert fragment.actual.rows == 5
    engine = list(nodes(*fragment.inputs))
    (join,) = [each for each in engine if "join" in each.title]
    assert join.actual is not None
    assert join.actual.rows == ROWS / 4
    assert all(each.actual is not None and each.actual.seconds is not None for each in engine)
    union = coordinator.explain("select id from duck.t union all select id from lite.t", analyze=True)
    assert [each.actual.rows for each in nodes(*union.fragments) if each.title == "Union" and each.actual] == [None]
    assert {each.actual.rows for each in engine if each.title == "Input" and each.actual} <= {ROWS, ROWS / 4}
    assert "running" in explanation.seconds


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        (JOINED, {"Top": 5, "Aggregate": ROWS / 4, "Inner join": ROWS / 4}),
        ("select d.id from duck.t d semi join lite.t l on d.id = l.id + 4", {"Semi join": ROWS / 4 - 1}),
        ("select distinct d.v from duck.t d join lite.t l on d.id = l.id", {"Distinct": 9, "Inner join": ROWS / 4}),
        (
            "select d.v, count(*) from duck.t d left join lite.t l on d.id = l.id where l.name is null group by 1",
            {"Aggregate": 9},
        ),
        ("select max(id) from (select id from duck.t union all select id from lite.t)", {"Aggregate": 1}),
    ],
)
def test_what_each_operator_did(coordinator: Coordinator, sql: str, rows: dict[str, float]) -> None:
    root = coordinator.explain(sql, analyze=True).root
    actual = {each.title: each.actual.rows for each in nodes(root) if each.actual is not None}
    assert {title: actual.get(title) for title in rows} == rows


def test_where_the_engine_changed_the_tree_nobody_guesses(coordinator: Coordinator) -> None:
    sql = "select count(distinct d.v), count(distinct l.name) from duck.t d join lite.t l on d.id = l.id"
    explanation = coordinator.explain(sql, analyze=True)
    inner = [each for each in nodes(*explanation.root.inputs) if not each.title.startswith("Remote")]
    assert inner
    assert all(each.actual is None for each in inner)
    assert any("join" in each.title for each in nodes(*explanation.fragments))
    assert f"Fragment 1: {OTHERWISE}" in explanation.remarks
    assert not [each for each in coordinator.explain(JOINED, analyze=True).remarks if OTHERWISE in each]


def test_engines_that_measure_are_used_again(coordinator: Coordinator) -> None:
    """There are a few of them; each query that is measured gives its own back."""
    for _ in range(12):
        assert coordinator.explain(JOINED, analyze=True).fragments[0].inputs
    with pytest.raises(Exception, match=r"Conversion|cast"):
        coordinator.explain("select cast(l.name as int) from duck.t d join lite.t l on d.id = l.id", analyze=True)
    for _ in range(6):
        assert coordinator.explain(JOINED, analyze=True).fragments[0].inputs


def test_operation_calls_are_nodes(coordinator: Coordinator) -> None:
    sql = "select d.id, plus(d.v) as p from duck.t d join lite.t l on d.id = l.id"
    explanation = coordinator.explain(sql, analyze=True)
    (call,) = [each for each in nodes(explanation.root) if each.title == "Call plus"]
    assert call.actual is not None
    assert call.actual.rows == ROWS / 4
    # What ran below the calls is a fragment of its own.
    assert len(explanation.fragments) == 2


def test_a_correlated_subquery_is_shown(coordinator: Coordinator) -> None:
    sql = "select l.id, (select sum(d.v) from duck.t d where d.id < l.id and d.v <> length(l.name)) from lite.t l"
    explanation = coordinator.explain(sql)
    assert {each.title for each in nodes(explanation.root)} >= {"Remote duck", "Remote lite"}


def test_json_holds_everything(coordinator: Coordinator) -> None:
    for analyze in (False, True):
        explanation = coordinator.explain(JOINED, analyze=analyze)
        again = Explanation.of(explanation.json)
        assert again.json == explanation.json
        assert again.text.split("\n")[0] == explanation.text.split("\n")[0]
        assert ("fragments" in json.loads(explanation.json)) == analyze


def test_parts_of_a_scan_and_what_was_asked_beside_the_plan() -> None:
    table = numbers("pg", rows=9_000.0)
    leaf = remote(table)
    other = remote(numbers("maria"))
    execution = Execution(Cancellation(), ExecutionOptions())
    try:
        measure = execution.measure(leaf, "pg")
        measure.sent("pg", "SELECT 1 WHERE id < 5")
        measure.sent("copy", "SELECT 1 WHERE id >= 5")
        measure.passed(pa.record_batch({"id": [1, 2]}))
        measure.spooled(2_000_000)
        measure.ended()
        execution.measure(other, "maria").sent("maria", "SELECT max(id)")
        placement = Placement.here(leaf)
        node = node_of(placement, context(), {}, execution)
        (beside,) = fragments_of(placement, execution)
    finally:
        execution.close()
    text = Explanation(node, "").text
    assert "part 1 of 2: SELECT 1 WHERE id < 5" in text
    assert "part 2 of 2: SELECT 1 WHERE id >= 5" in text
    assert "answered by copy" in text
    assert "2.0 MB to disk" in text
    assert beside.title == "Asked first"
    assert beside.statements == ("SELECT max(id)",)


def test_of_many_parts_the_first_and_the_last_are_shown() -> None:
    statements = tuple(f"SELECT {each}" for each in range(8))
    text = "\n".join(lines(Node("Remote", statements=statements)))
    assert "part 1 of 8: SELECT 0" in text
    assert "parts 2 to 7: the same" in text
    assert "part 8 of 8: SELECT 7" in text
    assert "SELECT 3" not in text


def test_rows_that_move_between_evaluators() -> None:
    """Two evaluators join; one of them says all, the other one dies before it has said what its engine did."""
    placement = spread()
    execution = Execution(Cancellation(), profiled=True)
    first, _, joined, _ = placement.plan.fragments
    figures = figures_of(Measurement(""))
    profile = {"operator": [{"type": "ARROW_SCAN", "timing": 0.5, "intermediate_rows": 3}]}
    try:
        for number, where in enumerate(("one", "two")):
            task = joined.task(number)
            own = {**figures, "rows": 4 + number, "seconds": 2.0, "state": "done"}
            execution.measure("fragment 3").add((where, task, ""), {**own, "profile": None if number else profile})
            moved = {**figures, "rows": 7, "bytes": 70, "waiting": 0.25}
            execution.measure(first.exchange).add((where, task, "x1"), moved)
        execution.measure("fragment 1").add(("one", first.task(0), ""), {**figures, "rows": 14, "profile": profile})
        node = node_of(placement, context(), {}, execution)
        beside = fragments_of(placement, execution)
        remarks = list(remarks_of(placement, execution, beside))
        parts = {each.name: each.rows for each in execution.parts()}
    finally:
        execution.close()
    assert (node.title, node.where, node.actual) == ("Fragment 4", "one", None)
    (gather,) = node.inputs
    assert (gather.title, gather.details) == ("Exchange gather", ("all rows to one", "to fragment 4 at one"))
    (both,) = gather.inputs
    assert both.actual is not None
    assert (both.title, both.where, both.actual.rows, both.actual.seconds) == ("Fragment 3", "one, two", 9, 2.0)
    exchange = next(each for each in nodes(node) if each.title == "Exchange hash")
    assert exchange.details == ("by id", "to fragment 3 at one, two")
    assert exchange.actual is not None
    assert (exchange.actual.rows, exchange.actual.bytes, exchange.actual.waiting) == (14, 140, 0.25)
    actual = {(each.title, each.where): each for each in beside}
    whole = actual["Fragment 3", "one"]
    assert [each.title for each in whole.inputs] == ["Received from fragment 1", "Arrow scan"]
    assert not whole.details
    assert actual["Fragment 3", "two"].details == (MISSING,)
    assert actual["Fragment 2", "two"].actual is None
    silent = ["Fragment 4 at one", "Fragment 3 at two", "Fragment 2 at one", "Fragment 2 at two", "Fragment 1 at two"]
    assert [each.partition(":")[0] for each in remarks] == silent
    assert parts == {"fragment 3 at one": 4, "fragment 3 at two": 5, "fragment 1 at one": 14}


def test_a_fragment_that_is_read_twice_is_shown_once() -> None:
    first, again = (Exchange(remote(numbers("pg"), prefix), "gather") for prefix in ("", "r"))
    pairs = zip(again.columns, first.columns, strict=True)
    received = Receive(0, first.columns)
    renamed = Project(received, tuple((name, column(one)) for name, one in pairs))
    on = exp.EQ(this=column("id"), expression=column("rid"))
    fragments = (
        Fragment(0, first.input, 1, first, Output("gather")),
        Fragment(1, Join(received, renamed, "inner", on), 1, None, None),
    )
    plan = Plan(Join(first, again, "inner", on), fragments)
    root = node_of(Placement(plan, {0: ("one",), 1: ("two",)}), context(), {})
    shown = [each for each in nodes(root) if each.title == "Fragment 1"]
    assert [(len(each.inputs), each.details) for each in shown] == [(1, ()), (0, (AGAIN,))]


def spread() -> Placement:
    """Two tables joined by hash on two evaluators; both read both tables."""
    left, right = numbers("pg"), numbers("maria")
    join = Join(remote(left), remote(right, "r"), "inner", exp.EQ(this=column("id"), expression=column("rid")))
    plan = cut(join, context(), 2, thresholds=Thresholds(split_rows=1.0, broadcast_bytes=0.0))
    return Placement(plan, named_places(plan, ["one", "two"]))


def context() -> Context:
    return Context(None, Estimator(), Names())


@pytest.mark.parametrize(
    ("sql", "short"),
    [
        ("a IN (1, 2, 3)", "a IN (1, 2, 3)"),
        (f"a IN ({', '.join(map(str, range(1_500)))})", "a IN (0, 1, 2, … 1,500 values)"),
        (
            f"a IN ({', '.join(repr(f'x, {n}') for n in range(20))}) AND b",
            "a IN ('x, 0', 'x, 1', 'x, 2', … 20 values) AND b",
        ),
        (f"a IN ({', '.join(chr(39) + 'it' + chr(39) * 2 + 's' + chr(39) for _ in range(9))})", None),
        ("f(a, b, c, d, e, f, g, h, i, j, k, l)", "f(a, b, c, d, e, f, g, h, i, j, k, l)"),
    ],
)
def test_long_lists_are_shortened(sql: str, short: str | None) -> None:
    assert shortened(sql) == (short or "a IN ('it''s', 'it''s', 'it''s', … 9 values)")


def test_statements_are_whole_in_json_and_short_in_text() -> None:
    sql = f"SELECT a FROM t WHERE a IN ({', '.join(map(str, range(100)))})"
    explanation = Explanation(Node("Remote pg", statements=(sql,)), "select")
    assert "… 100 values" in explanation.text
    assert sql in json.loads(explanation.json)["plan"]["statements"]


@pytest.mark.parametrize(
    ("estimated", "actual", "said"),
    [
        (10.0, 4_000.0, "4,000 rows (400 times the estimate)"),
        (4_000.0, 10.0, "10 rows (1/400 of the estimate)"),
        (10.0, 80.0, "80 rows"),
        (0.0, 0.0, "0 rows"),
    ],
)
def test_estimates_that_were_wrong_are_said(estimated: float, actual: float, said: str) -> None:
    node = Node("Remote pg", estimated=Figures(estimated, None, 0.5), actual=Figures(actual, None, 0.25))
    line = Explanation(node, "").text
    assert line == f"Remote pg  [estimated {estimated:,.0f} rows, 500.0 ms; actual {said}, 250.0 ms]"
    assert (wrong(node) is None) == ("estimate)" not in said)


def test_units() -> None:
    assert [size(each) for each in (0, 999, 1_000, 2_500_000, 3e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "2.5 MB",
        "3,000.0 GB",
    ]
    assert [duration(each) for each in (0.0004, 0.25, 12.3)] == ["0.4 ms", "250.0 ms", "12.30 s"]
    assert measured(Figures(1, 2, 3, 4, 5, 6)) == [
        "1 row",
        "2 B",
        "3.00 s",
        "waited 4.00 s",
        "held 6.00 s",
        "5 B to disk",
    ]


def test_explained_over_a_file(coordinator: Coordinator, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(coordinator.explain(JOINED).json)
    assert Explanation.of((tmp_path / "plan.json").read_text()).sql == JOINED


@pytest.mark.parametrize("seconds", [0.011_549_6, 0.000_099_6, 0.999_999_6, 1.004_999_6, 0.000_000_4])
def test_seconds_are_the_same_in_text_and_json(seconds: float) -> None:
    assert duration(seconds) == duration(round(seconds, 6))
