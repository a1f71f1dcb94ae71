"""The runtime in this process: one statement handed through, several joined, failures, replicas, endings."""

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from sqlglot import exp

from dai.drivers import Driver, DriverOptions, driver_for
from dai.errors import CancelledError, DatabaseUnavailableError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import (
    Aggregate,
    Call,
    Filter,
    Inline,
    Join,
    Nested,
    Operator,
    Project,
    Remote,
    Scan,
    Sort,
    column,
)
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from dqp.execution.engine import Engine
from dqp.execution.execution import Execution
from dqp.execution.service_calls import Operation
from dqp.runtimes import local as local_runtime
from dqp.runtimes.local import ROOT, Local
from dqp.settings import FederationSettings
from tests.dqp.doubles import Answer, Double, batch, catalog_of, execution, numbers, remote
from tests.processes import until


def rows(*batches: pa.RecordBatch) -> Answer:
    return lambda sql, cancellation: Stream(batch(1, 0).schema, iter(batches))


def equal(one: str, other: str) -> exp.Expression:
    return exp.EQ(this=column(one), expression=column(other))


def run(catalog: Catalog, tree: Operator, types: list[str], running: Execution | None = None, **more: Any) -> pa.Table:
    local = Local(catalog, **more)
    with running or execution() as running:
        table = local.run(tree, [f"n{at}" for at in range(len(types))], types, None, running).table()
    local.close()
    return table


def test_one_statement_is_handed_through() -> None:
    tree = Project(remote(numbers("pg")), (("v", column("v")), ("id", column("id"))))
    with execution() as running:
        table = run(catalog_of(Double("pg", rows(batch(1, 2)))), tree, ["BIGINT", "BIGINT"], running)
        assert [each.where for each in running.measurements()] == ["pg"]
    assert table.to_pydict() == {"n0": [10, 20], "n1": [1, 2]}
    assert table.schema.types == [pa.int64(), pa.int64()]


def test_a_type_that_only_duckdb_casts_to() -> None:
    table = run(catalog_of(Double("pg", rows(batch(1, 2)))), remote(numbers("pg")), ["VARCHAR", "DOUBLE"])
    assert table.to_pydict() == {"n0": ["1", "2"], "n1": [10.0, 20.0]}


def test_a_join_of_two_sources_and_tuples_at_hand() -> None:
    a, b = remote(numbers("a"), "a_"), remote(numbers("b"), "b_")
    data = pa.table({"key": pa.array([3, 4], pa.int32())})
    tree = Join(
        Join(a, b, "inner", equal("a_id", "b_id")), Inline("mine", (("k", "key"),), data), "semi", equal("b_id", "k")
    )
    top = Sort(tree, (exp.Ordered(this=column("a_id"), desc=True, nulls_first=False),))
    catalog = catalog_of(Double("a", rows(batch(1, 5))), Double("b", rows(batch(2, 5))))
    table = run(catalog, top, ["INTEGER", "BIGINT", "INTEGER", "BIGINT"])
    assert table.to_pydict() == {"n0": [4, 3], "n1": [40, 30], "n2": [4, 3], "n3": [40, 30]}


def test_equal_statements_are_sent_once() -> None:
    source = Double("a", rows(batch(1, 5)))
    one, other = remote(numbers("a"), "x_"), remote(numbers("a"), "y_")
    tree = Join(one, other, "left", equal("x_v", "y_v"))
    table = run(catalog_of(source), tree, ["INTEGER", "BIGINT", "INTEGER", "BIGINT"])
    assert sorted(table["n2"].to_pylist()) == [1, 2, 3, 4, 5]
    assert len(source.asked) == 1


def test_sources_are_asked_before_the_fragment_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Double("a", rows(batch(1, 5))), Double("b", rows(batch(1, 5)))
    body_of = local_runtime.body_of

    def written(*arguments: Any) -> Any:
        until(lambda: one.asked and other.asked)
        return body_of(*arguments)

    monkeypatch.setattr(local_runtime, "body_of", written)
    tree = Join(remote(numbers("a"), "a_"), remote(numbers("b"), "b_"), "inner", equal("a_id", "b_id"))
    table = run(catalog_of(one, other), tree, ["INTEGER", "BIGINT", "INTEGER", "BIGINT"])
    assert table.num_rows == 5
    assert (len(one.asked), len(other.asked)) == (1, 1)


def test_what_arrives_as_promised_is_read_as_it_is() -> None:
    catalog = catalog_of(Double("a", rows(batch(1, 5))), Double("b", rows(batch(1, 5))))
    tree = Join(remote(numbers("a"), "a_"), remote(numbers("b"), "b_"), "inner", equal("a_id", "b_id"))
    with execution() as running:
        assert run(catalog, tree, ["INTEGER", "BIGINT", "INTEGER", "BIGINT"], running).num_rows == 5
        (statement,) = next(each.statements for each in running.measurements() if each.key == ROOT)
    assert statement.startswith("SELECT")


def test_a_correlated_subquery_over_another_source() -> None:
    a, b = remote(numbers("a"), "a_"), remote(numbers("b"), "b_")
    inner = Aggregate(
        Filter(b, exp.LTE(this=column("b_id"), expression=column("a_id"))), (), (("n", exp.Count(this=exp.Star())),)
    )
    tree = Project(a, (("id", column("a_id")), ("count", Nested(kind="scalar", plan=inner))))
    table = run(catalog_of(Double("a", rows(batch(1, 4))), Double("b", rows(batch(2, 2)))), tree, ["INTEGER", "BIGINT"])
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == [(1, 0), (2, 1), (3, 2), (4, 2)]


def test_an_operation_call_has_its_column() -> None:
    operation = Operation(
        name="root", types=(pa.int64(),), result=pa.float64(), python="math:sqrt", batch=1, concurrent=2
    )
    a, b = remote(numbers("a"), "a_"), remote(numbers("b"), "b_")
    tree = Call(
        Join(a, b, "inner", equal("a_id", "b_id")),
        "made",
        "root",
        (exp.Mul(this=column("a_v"), expression=column("b_v")),),
    )
    top = Project(tree, (("id", column("a_id")), ("made", column("made"))))
    catalog = catalog_of(Double("a", rows(batch(1, 9))), Double("b", rows(batch(1, 9))))
    table = run(catalog, top, ["INTEGER", "DOUBLE"], operations={"root": operation})
    assert sorted(zip(*table.to_pydict().values(), strict=True)) == [(each, each * 10.0) for each in range(1, 10)]


def test_the_rows_of_a_call_are_given_up_where_another_source_refuses() -> None:
    engine = Engine()
    engine.run("SELECT 1", {}, execution()).close()
    measuring = len(engine._profiling)

    def refused(sql: str, cancellation: Cancellation) -> Stream:
        until(lambda: len(engine._running) > 0)
        raise StatementError("no such column")

    operation = Operation(name="root", types=(pa.int64(),), result=pa.float64(), python="math:sqrt")
    a, b = remote(numbers("a"), "a_"), remote(numbers("b"), "b_")
    tree = Join(Call(a, "made", "root", (column("a_v"),)), b, "inner", equal("a_id", "b_id"))
    catalog = catalog_of(Double("a", rows(batch(1, 9))), Double("b", refused))
    local = Local(catalog, engine=engine, operations={"root": operation})
    types = ["INTEGER", "BIGINT", "DOUBLE", "INTEGER", "BIGINT"]
    with Execution(Cancellation(), profiled=True) as running, pytest.raises(StatementError, match="no such column"):
        local.run(tree, list("abcde"), types, None, running)
    assert len(engine._profiling) == measuring
    local.close()
    engine.close()


def test_the_first_failure_is_the_answer_and_ends_the_rest() -> None:
    waits = threading.Event()

    def blocked(sql: str, cancellation: Cancellation) -> Stream:
        woken = threading.Event()
        with cancellation.on_cancel(woken.set):
            waits.set()
            woken.wait(60)
        cancellation.check()
        raise AssertionError

    def refused(sql: str, cancellation: Cancellation) -> Stream:
        assert waits.wait(60)
        raise StatementError("no such column")

    catalog = catalog_of(Double("a", blocked), Double("b", refused))
    tree = Join(remote(numbers("a"), "a_"), remote(numbers("b"), "b_"), "inner", equal("a_id", "b_id"))
    before = set(threading.enumerate())
    with pytest.raises(StatementError, match=r"^b: no such column"):
        run(catalog, tree, ["INTEGER", "BIGINT", "INTEGER", "BIGINT"])
    assert set(threading.enumerate()) <= before


def _breaking(first: pa.RecordBatch) -> Answer:
    def each() -> Iterator[pa.RecordBatch]:
        yield first
        raise DatabaseUnavailableError("gone")

    return lambda sql, cancellation: Stream(first.schema, each())


def test_a_source_lost_half_way_is_replaced_while_no_row_has_left() -> None:
    table = numbers("a", replicas=(("a@1", None, "t"),))
    tree = Aggregate(
        Join(remote(table, "a_"), remote(numbers("b"), "b_"), "inner", equal("a_id", "b_id")),
        (),
        (("n", exp.Count(this=exp.Star())),),
    )
    lost, other = Double("a", _breaking(batch(1, 3))), Double("a@1", rows(batch(1, 6)))
    catalog = catalog_of(lost, other, Double("b", lambda sql, cancellation: Stream.of(batch(1, 5))))
    with execution() as running:
        assert run(catalog, tree, ["BIGINT"], running).to_pydict() == {"n0": [5]}
        assert running.attempt == 2
        assert {each.where for each in running.measurements() if each.attempt == 2} == {"a@1", "b", "here"}


def test_a_source_lost_after_a_row_has_left_is_an_error() -> None:
    table = numbers("a", replicas=(("a@1", None, "t"),))
    other = Double("a@1", rows(batch(1, 6)))
    local = Local(catalog_of(Double("a", _breaking(batch(1, 3))), other))
    with (
        execution() as running,
        local.run(remote(table), ["a", "b"], ["INTEGER", "BIGINT"], None, running) as actual,
    ):
        assert next(actual).num_rows == 3
        with pytest.raises(DatabaseUnavailableError, match=r"^a: gone"):
            next(actual)
    assert other.asked == []
    local.close()


@pytest.fixture(scope="module")
def slow(postgres_module_url: str) -> Iterator[tuple[Driver, str]]:
    driver = driver_for(postgres_module_url, DriverOptions(pool_size=6))
    driver.update("CREATE TABLE t (id int PRIMARY KEY, v bigint)", cancellation=Cancellation())
    driver.load("t", Stream.of(batch(1, 200_000)), cancellation=Cancellation())
    driver.update(
        "CREATE VIEW crawling AS SELECT t.id, t.v, pg_sleep(0.01) IS NULL AS s FROM t", cancellation=Cancellation()
    )
    driver.update("ANALYZE t", cancellation=Cancellation())
    yield driver, postgres_module_url
    driver.close()


def _active(url: str) -> int:
    query = """SELECT count(*) FROM pg_stat_activity
               WHERE state <> 'idle' AND pid <> pg_backend_pid() AND datname = current_database()
               AND backend_type = 'client backend'"""
    with psycopg.connect(url) as connection:
        return int(connection.execute(query).fetchall()[0][0])


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_nothing_stays_in_the_database(slow: tuple[Driver, str], how: str) -> None:
    driver, url = slow
    catalog = Catalog(FederationSettings(), sources=[DriverSource("pg", driver, own=False)])
    view, table = catalog.table("pg", "crawling"), catalog.table("pg", "t")
    crawling = Remote("pg", Scan(view, (("a_id", "id"), ("s", "s"))))
    tree = Join(crawling, remote(table, "b_"), "left", equal("a_id", "b_id"))
    if how == "closed":
        tree = Join(
            remote(table, "b_"), remote(table, "c_"), "inner", exp.LTE(this=column("b_id"), expression=column("c_id"))
        )
    cancellation = Cancellation()
    running = execution(cancellation, split_rows=1, buffer_bytes=1 << 16)
    local = Local(catalog)
    before = set(threading.enumerate())
    if how == "cancelled":
        cancelling = threading.Thread(
            target=lambda: (until(lambda: _active(url) > 0), cancellation.cancel(CancelledError("enough")))
        )
        cancelling.start()
        with pytest.raises(CancelledError, match="enough"):
            local.run(tree, list(tree.columns), ["INTEGER", "BOOLEAN", "INTEGER", "BIGINT"], None, running).table()
        cancelling.join()
    else:
        with local.run(tree, list("abcd"), ["INTEGER", "BIGINT"] * 2, None, running) as actual:
            next(actual)
    running.close()
    until(lambda: _active(url) == 0)
    assert driver.pool_state()["open"] == driver.pool_state()["idle"]
    assert {each.name for each in set(threading.enumerate()) - before if each.name.startswith("dqp")} == set()
    local.close()
    catalog.close()
