"""A query from its text to its tuples, over an SQLite file and a DuckDB file; the same query on one DuckDB is right."""

from __future__ import annotations

import json
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dai.drivers import driver_for
from dai.errors import CancelledError, DataError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import Operator
from dqp.binding.parameters import spelled
from dqp.catalog.sources.local import DriverSource
from dqp.coordinator import Coordinator
from dqp.coordinator.plans import CHARACTERS, Planned, Plans
from dqp.explain.explanation import Explanation
from dqp.planning import top_n
from dqp.settings import load
from dqp.sql.dialects.dialect import Dialect
from tests.processes import until

ROWS = 3_000


def _tables() -> dict[str, pa.Table]:
    numbers = list(range(1, ROWS + 1))
    sales = {
        "id": pa.array(numbers, pa.int64()),
        "item": pa.array([each % 700 for each in numbers], pa.int64()),
        "label": pa.array([None if each % 50 == 0 else f"L{each * 7 % 600:04}" for each in numbers]),
        "amount": pa.array([each * 1.5 for each in numbers]),
    }
    items = {
        "id": pa.array(range(0, 700, 2), pa.int64()),
        "name": pa.array([f"item {each}" for each in range(0, 700, 2)]),
    }
    return {"sales": pa.table(sales), "items": pa.table(items)}


@pytest.fixture(scope="module")
def right() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    for alias, name in (("duck", "sales"), ("lite", "items")):
        table = _tables()[name]
        connection.register("made", table)
        connection.execute(f"CREATE SCHEMA {alias}; CREATE TABLE {alias}.{name} AS FROM made")
    return connection


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    place = tmp_path_factory.mktemp("federation")
    urls = {"duck": f"duckdb:///{place}/duck.db", "lite": f"sqlite:///{place}/lite.db"}
    for alias, name in (("duck", "sales"), ("lite", "items")):
        driver = driver_for(urls[alias])
        driver.load(name, Stream.of(_tables()[name]), cancellation=Cancellation(), create=True)
        driver.close()
    coordinator = Coordinator(
        load(
            {
                "sources": urls,
                "views": {"named": "select s.id, i.name from duck.sales s join lite.items i on s.item = i.id"},
            }
        )
    )
    yield coordinator
    coordinator.close()


@pytest.fixture(autouse=True)
def _teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is: what is learned changes plans."""
    monkeypatch.setattr("dqp.coordinator.running.LEAST_SECONDS", float("inf"))


def test_a_statement_is_rendered_once_and_kept_with_the_plan(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[Operator] = []
    render = Dialect.statement

    def counted(self: Dialect, tree: Operator) -> Any:
        rendered.append(tree)
        return render(self, tree)

    monkeypatch.setattr(Dialect, "statement", counted)
    sql = " union all ".join(["select label from duck.sales where id < 77", "select name from lite.items"] * 2)
    rows = answer(coordinator, sql)
    assert len(rendered) == len(set(rendered)) > 2
    rendered.clear()
    assert answer(coordinator, sql) == rows
    coordinator.explain(sql, analyze=True)
    assert not rendered


def answer(coordinator: Coordinator, sql: str, *values: object) -> list[tuple[object, ...]]:
    with coordinator.query(sql, values, cancellation=Cancellation()) as stream:
        table = stream.table()
    return list(zip(*(each.to_pylist() for each in table.columns), strict=True))


JOINED = "from duck.sales s join lite.items i on s.item = i.id"
FIRST_N = [
    f"select s.label, count(*), max(i.name) {JOINED} group by 1 order by 1 limit 5",
    f"select s.label, count(*) {JOINED} group by 1 order by 1 desc limit 5",
    f"select s.label, sum(s.amount) {JOINED} group by 1 having sum(s.amount) > 9000 order by 1 limit 4 offset 2",
    f"select s.label, s.id, i.name {JOINED} order by 1, 2 limit 7",
    f"select s.label, count(*) {JOINED} where s.id > 2900 or i.name = 'item 3' group by 1 order by 1 limit 5",
    # Of these values there are no literals.
    f"select ('00:00:00.' || substr(s.label, 2))::time, s.id {JOINED} order by 1, 2 limit 7",
    f"select s.label::blob, s.id {JOINED} order by 1 desc, 2 limit 7",
]


@pytest.mark.parametrize("sql", FIRST_N)
def test_a_bound_changes_no_answer(
    sql: str, coordinator: Coordinator, right: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_n, "ROWS", 10.0)
    monkeypatch.setattr(top_n, "GAIN", 2.0)
    coordinator.plans._kept.clear()
    assert coordinator.plan(sql).probe is not None, "the test is about top-N probes"
    assert answer(coordinator, sql) == right.execute(sql).fetchall()
    coordinator.plans._kept.clear()


@pytest.mark.parametrize(
    "sql",
    [
        f"select s.label, count(*) {JOINED} group by 1 order by 1 nulls first limit 5",
        f"select s.label, count(*) {JOINED} group by 1 order by 1 desc nulls first limit 5",
        f"select s.label, count(*) {JOINED.replace('join', 'full join')} group by 1 order by 1 desc limit 5",
        f"select s.label, i.name {JOINED} group by grouping sets ((s.label, i.name), (i.name)) order by 1, 2 limit 5",
    ],
)
def test_there_is_no_bound_where_it_would_change_the_answer(
    sql: str, coordinator: Coordinator, right: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_n, "ROWS", 10.0)
    monkeypatch.setattr(top_n, "GAIN", 2.0)
    coordinator.plans._kept.clear()
    assert coordinator.plan(sql).probe is None
    assert answer(coordinator, sql) == right.execute(sql).fetchall()
    coordinator.plans._kept.clear()


def test_a_bound_that_leaves_too_few_rows_is_not_the_end(
    coordinator: Coordinator, right: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(top_n, "ROWS", 10.0)
    monkeypatch.setattr(top_n, "GAIN", 2.0)
    coordinator.plans._kept.clear()
    sql = (
        "select s.label, count(*) from duck.sales s join lite.items i on s.item = i.id + 699 "
        "group by 1 order by 1 limit 3"
    )
    assert coordinator.plan(sql).probe is not None, "the test is about top-N probes"
    explained = coordinator.explain(sql, analyze=True)
    assert answer(coordinator, sql) == right.execute(sql).fetchall()
    assert not any("asked first" in each for each in explained.remarks)
    coordinator.plans._kept.clear()


@pytest.mark.parametrize("made", [list, np.array, pd.Series])
def test_a_plan_is_for_all_values_of_a_long_list(coordinator: Coordinator, made: Callable[[Any], Any]) -> None:
    """NumPy and pandas show the same of these two."""
    sql = "select count(*) from duck.sales where id in $1"
    one, other = list(range(1, 2001)), [*range(1, 501), *range(90_501, 91_501), *range(1501, 2001)]
    assert answer(coordinator, sql, made(one)) == [(2000,)]
    assert answer(coordinator, sql, made(other)) == [(1000,)]
    assert spelled([[1, made(one)]]) != spelled([[1, made(other)]])


def test_plans_are_kept_until_something_changes(coordinator: Coordinator) -> None:
    sql = "select count(*) from duck.sales where id < ?"
    first = coordinator.plan(sql, (10,))
    assert coordinator.plan(sql, (10,)) is first
    assert coordinator.plan(sql, (np.int64(10),)) is first
    assert coordinator.plan(sql, (11,)) is not first
    coordinator.catalog.upload("mine", pa.table({"a": [1]}))
    assert coordinator.plan(sql, (10,)) is not first


def test_the_moment_is_that_of_each_run(coordinator: Coordinator) -> None:
    sql = "select now() as moment"
    assert coordinator.plan(sql) is not coordinator.plan(sql)


def test_long_plans_do_not_fill_the_memory(coordinator: Coordinator) -> None:
    before = coordinator.plan("select 1")
    assert coordinator.plan("select 1") is before
    for number in range(6):
        plan = coordinator.plan(f"select {number} -- {'x' * (CHARACTERS // 5)}")
        assert coordinator.plan(plan.sql) is plan
    assert coordinator.plan("select 1") is not before, "Those asked last are kept."
    longest = f"select 1 -- {'x' * CHARACTERS}"
    assert coordinator.plan(longest) is not coordinator.plan(longest)


@pytest.mark.parametrize(
    "word", ["explain", "EXPLAIN ANALYZE", "explain (format json)", "explain analyze (format SVG)"]
)
def test_plans_are_queries_too(word: str, coordinator: Coordinator) -> None:
    sql = "select i.name, count(*) from duck.sales s join lite.items i on s.item = i.id group by 1 order by 1 limit 3"
    text = "\n".join(row[0] for row in answer(coordinator, f"{word} {sql}"))  # type: ignore[misc]
    if "json" in word:
        content = json.loads(text)
        assert content["plan"]["estimated"]["rows"] == 3
        assert Explanation.of(text).json == text
    elif "SVG" in word:
        root = ET.fromstring(text)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "Inner join" in "".join(root.itertext())
    else:
        assert "Inner join" in text
        assert "SELECT" in text
        assert ("actual" in text) == ("ANALYZE" in word)


def test_an_unknown_format_names_the_known(coordinator: Coordinator) -> None:
    with pytest.raises(StatementError, match="There is no plan format 'jsn'") as caught:
        answer(coordinator, "explain (format jsn) select 1")
    assert "json" in str(caught.value)


@pytest.mark.parametrize("head", ["explain (format json)  ", "-- why\n EXPLAIN\tanalyze( FORMAT  JSON )"])
def test_a_plan_shows_the_query_as_it_was_written(head: str, coordinator: Coordinator) -> None:
    sql = f"{head} select ? as v from lite.items"
    stream = coordinator.query(sql, (7,), cancellation=Cancellation())
    assert json.loads("\n".join(stream.table().column(0).to_pylist()))["sql"] == sql
    wrong = f"{head} select ?, nope from lite.items"
    with pytest.raises(StatementError) as caught:
        coordinator.query(wrong, (7,), cancellation=Cancellation())
    assert caught.value.position == wrong.index("nope") + 1
    line, caret = caught.value.extra["excerpt"].split("\n")
    assert wrong.split("\n")[-1].replace("\t", " ") in line
    assert caret.index("^") == line.index("nope")


def test_what_was_measured_is_what_came(coordinator: Coordinator) -> None:
    explanation = coordinator.explain(
        "select count(*) from duck.sales s join lite.items i on s.item = i.id", analyze=True
    )
    leaves = [each for each in _nodes(json.loads(explanation.json)["plan"]) if each["operator"].startswith("Remote")]
    leaves += [each for each in _nodes(json.loads(explanation.json)["plan"]) if each["operator"].startswith("Tuples")]
    assert len(leaves) == 2
    assert any(each.get("actual", {}).get("rows") for each in leaves)
    assert explanation.seconds["running"] > 0


def _nodes(node: dict[str, object]) -> Iterator[dict[str, object]]:
    yield node
    for each in node.get("inputs", ()):  # type: ignore[attr-defined]
        yield from _nodes(each)


def test_views_are_queries_over_the_federation(coordinator: Coordinator, right: duckdb.DuckDBPyConnection) -> None:
    inside = coordinator.catalog.views["named"]
    assert (
        answer(coordinator, "select count(*), max(name) from named")
        == right.execute(f"select count(*), max(name) from ({inside})").fetchall()
    )


def test_sixteen_queries_at_once(coordinator: Coordinator, right: duckdb.DuckDBPyConnection) -> None:
    sql = "select i.name, sum(s.amount) from duck.sales s join lite.items i on s.item = i.id group by 1 order by 1"
    wanted = right.execute(sql).fetchall()
    answers: list[object] = []

    def run() -> None:
        answers.append(answer(coordinator, sql))

    threads = [threading.Thread(target=run) for _ in range(16)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert answers == [wanted] * 16


def test_a_query_that_was_cancelled_gives_no_rows(coordinator: Coordinator) -> None:
    cancellation = Cancellation()
    stream = coordinator.query("select a.id from duck.sales a, duck.sales b, lite.items", cancellation=cancellation)
    cancellation.cancel()
    with pytest.raises(CancelledError), stream:
        for _ in stream:
            pass


def test_nothing_is_left_when_a_stream_is_closed_early(coordinator: Coordinator) -> None:
    before = set(threading.enumerate())
    with coordinator.query(
        "select a.id from duck.sales a, lite.items b, duck.sales c", cancellation=Cancellation()
    ) as stream:
        next(stream)
    left = {each.name for each in set(threading.enumerate()) - before}
    assert not {each for each in left if not each.startswith("dqp-catalog")}


@pytest.mark.parametrize(
    ("sql", "place"),
    [
        ("select cast('x' as int)", "'x'"),
        ("select 'x', item, 'x'::date from duck.sales", "'x'::"),
        ("select time 'x'", "'x'"),
        ("select id, cast(i.name as int) from lite.items i", "name"),
        ('explain analyze select "name"::date from lite.items', '"name"'),
        ("select i.id from lite.items i\nwhere i.name = 3", "name"),
        ("select x::int from (select name as x from lite.items)", "name"),
        ("select cast(i.name as date) from lite.items i join duck.sales s on s.item = i.id", "name"),
        # Where it may be any of several, none is pointed at.
        ("select name, name::int from lite.items", None),
        ("select ('item ' || id)::int from lite.items where name <> 'item 0'", None),
        ("select (id * 1000)::decimal(3, 1) from lite.items", None),
    ],
)
def test_a_value_that_does_not_fit_is_pointed_at(sql: str, place: str | None, coordinator: Coordinator) -> None:
    with pytest.raises(DataError) as caught:
        answer(coordinator, sql)
    assert caught.value.hint == "TRY_CAST(… AS …) gives NULL for such a value."
    assert ("excerpt" in caught.value.extra) == (place is not None)
    if place is not None:
        shown, below = caught.value.extra["excerpt"].split("\n")
        assert shown[below.index("^") :].startswith(place)
        assert shown in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "select * from duck.sales",
        "select name from lite.items",
        "select s.id, i.name from duck.sales s join lite.items i on s.item = i.id",
    ],
)
def test_a_stream_that_nobody_read_keeps_no_connection(coordinator: Coordinator, sql: str) -> None:
    coordinator.query(sql, cancellation=Cancellation()).close()
    for source in coordinator.catalog.sources.values():
        assert isinstance(source, DriverSource)
        pool = source.driver.pool_state
        until(lambda pool=pool: pool()["open"] == pool()["idle"])  # the catalog may be looking at it


@pytest.mark.parametrize(
    "sql",
    [
        "select cast(v as int) from (values (9223372036854775807)) t(v)",
        'select cast("odd name" as int) from (values (9223372036854775807)) t("odd name")',
        "select cast(v as date) from (values ('x')) t(v)",
    ],
)
def test_an_error_names_no_column_that_nobody_wrote(sql: str, coordinator: Coordinator) -> None:
    with pytest.raises(DataError) as caught:
        answer(coordinator, sql)
    assert "column" not in str(caught.value)
    assert "9223372036854775807" in str(caught.value) or '"x"' in str(caught.value)


def test_a_query_whose_plan_is_not_kept_is_planned_once(
    coordinator: Coordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    planned = Plans._planned
    times: list[str] = []

    def counted(plans: Plans, sql: str, *rest: Any) -> Planned:
        times.append(sql)
        return planned(plans, sql, *rest)

    monkeypatch.setattr(Plans, "_planned", counted)
    sql = "select count(*) as n from duck.sales where now() > timestamptz '2020-01-01'"
    for _ in range(2):
        with coordinator.query(sql, cancellation=Cancellation()) as stream:
            assert stream.table().to_pylist() == [{"n": ROWS}]
    assert len(times) == 2
