"""Plans as text and JSON: what was estimated, what was sent, what happened."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from dai.cancellation import Cancellation
from dai.drivers import driver_for
from dai.stream import Stream
from dqp.coordinator import Coordinator
from dqp.cost import Estimator
from dqp.execution import Execution, ExecutionOptions
from dqp.explain import fragments_of, node_of
from dqp.explanation import Explanation, Figures, Node, duration, shortened, size
from dqp.operators import Exchange, Names, column
from dqp.rules import Context
from dqp.settings import load
from tests.dqp.doubles import batch, numbers, remote

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
    made = Coordinator(load({"sources": urls, "functions": {"plus": function}}))
    yield made
    made.close()


def plus(value: int) -> int:
    return value + 1


JOINED = "select l.name, sum(d.v) as s from duck.t d join lite.t l on d.id = l.id group by 1 order by 2 desc limit 5"


def nodes(*roots: Node) -> Iterator[Node]:
    for each in roots:
        yield each
        yield from nodes(*each.inputs)


def test_before_it_runs(coordinator: Coordinator) -> None:
    found = coordinator.explain(JOINED)
    remotes = [each for each in nodes(found.root) if each.title.startswith("Remote")]
    assert {(each.title, each.where) for each in remotes} == {("Remote duck", "duckdb"), ("Remote lite", "sqlite")}
    assert all(each.statements and each.estimated.rows and each.actual is None for each in remotes)
    assert not found.fragments
    assert "expected 5 rows" in found.text.split("\n")[0]
    assert "actual" not in found.text
    assert set(found.seconds) == {"binding", "optimising"}


def test_after_it_ran(coordinator: Coordinator) -> None:
    found = coordinator.explain(JOINED, analyze=True)
    assert found.root.actual is not None
    assert found.root.actual.rows == 5
    for each in nodes(found.root):
        if each.title.startswith("Remote"):
            assert each.actual is not None
            assert each.actual.rows in (ROWS, ROWS / 4)
            assert each.actual.bytes
            assert each.actual.seconds is not None
            assert each.actual.waiting is not None
    (fragment,) = found.fragments
    assert (fragment.title, fragment.where) == ("Fragment", "local")
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
    assert "running" in found.seconds


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
    found = {each.title: each.actual.rows for each in nodes(root) if each.actual is not None}
    assert {title: found.get(title) for title in rows} == rows


def test_where_the_engine_changed_the_tree_nobody_guesses(coordinator: Coordinator) -> None:
    sql = "select count(distinct d.v), count(distinct l.name) from duck.t d join lite.t l on d.id = l.id"
    found = coordinator.explain(sql, analyze=True)
    inner = [each for each in nodes(*found.root.inputs) if not each.title.startswith("Remote")]
    assert inner
    assert all(each.actual is None for each in inner)
    assert any("join" in each.title for each in nodes(*found.fragments))


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
    found = coordinator.explain(sql, analyze=True)
    (call,) = [each for each in nodes(found.root) if each.title == "Call plus"]
    assert call.actual is not None
    assert call.actual.rows == ROWS / 4
    # What ran below the calls is a fragment of its own.
    assert len(found.fragments) == 2


def test_a_correlated_subquery_is_shown(coordinator: Coordinator) -> None:
    sql = "select l.id, (select sum(d.v) from duck.t d where d.id < l.id and d.v <> length(l.name)) from lite.t l"
    found = coordinator.explain(sql)
    assert {each.title for each in nodes(found.root)} >= {"Remote duck", "Remote lite"}


def test_json_holds_everything(coordinator: Coordinator) -> None:
    for analyze in (False, True):
        found = coordinator.explain(JOINED, analyze=analyze)
        again = Explanation.of(found.json)
        assert again.json == found.json
        assert again.text.split("\n")[0] == found.text.split("\n")[0]
        assert ("fragments" in json.loads(found.json)) == analyze


def test_parts_of_a_scan_and_what_was_asked_beside_the_plan() -> None:
    table = numbers("pg", rows=9_000.0)
    leaf = remote(table)
    other = remote(numbers("maria"))
    context = Context(None, Estimator(), Names())
    execution = Execution(Cancellation(), ExecutionOptions())
    try:
        measure = execution.measure(leaf, "pg")
        measure.sent("pg", "SELECT 1 WHERE id < 5")
        measure.sent("copy", "SELECT 1 WHERE id >= 5")
        measure.passed(pa.record_batch({"id": [1, 2]}))
        measure.spooled(2_000_000)
        measure.ended()
        execution.measure(other, "maria").sent("maria", "SELECT max(id)")
        node = node_of(leaf, context, execution)
        (beside,) = fragments_of(leaf, execution)
    finally:
        execution.close()
    text = Explanation(node, "").text
    assert "part 1 of 2: SELECT 1 WHERE id < 5" in text
    assert "part 2 of 2: SELECT 1 WHERE id >= 5" in text
    assert "answered by copy" in text
    assert "2.0 MB to disk" in text
    assert beside.title == "Asked first"
    assert beside.statements == ("SELECT max(id)",)


def test_rows_that_move_between_evaluators() -> None:
    moved = Exchange(remote(numbers("pg")), "hash", (column("id"),))
    execution = Execution(Cancellation())
    try:
        measure = execution.measure(moved, "evaluator 1, evaluator 2")
        measure.passed(batch(1, 7))
        measure.ended()
        node = node_of(moved, Context(None, Estimator(), Names()), execution)
    finally:
        execution.close()
    assert (node.title, node.details, node.where) == ("Exchange hash", ("id",), "evaluator 1, evaluator 2")
    assert node.actual is not None
    assert node.actual.rows == 7


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
    found = Explanation(Node("Remote pg", statements=(sql,)), "select")
    assert "… 100 values" in found.text
    assert sql in json.loads(found.json)["plan"]["statements"]


def test_units() -> None:
    assert [size(each) for each in (0, 999, 1_000, 2_500_000, 3e12)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "2.5 MB",
        "3,000.0 GB",
    ]
    assert [duration(each) for each in (0.0004, 0.25, 12.3)] == ["0.4 ms", "250.0 ms", "12.30 s"]
    assert Figures() == Figures(None, None, None, None, None)


def test_explained_over_a_file(coordinator: Coordinator, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(coordinator.explain(JOINED).json)
    assert Explanation.of((tmp_path / "plan.json").read_text()).sql == JOINED
