"""Queries on evaluators that Ray has placed: a local cluster, two actors, SQLite and DuckDB files as sources.

Ray listens on all interfaces, whatever address it is told. ``test_ray_runtime`` runs this in a network namespace that
has none but loopback.
"""

import socket
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress

import duckdb
import pyarrow as pa
import pytest
import ray

from dai.drivers import driver_for
from dai.errors import DataError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.coordinator import Coordinator
from dqp.errors import EvaluatorLostError
from dqp.explain.plan import MISSING
from tests.clusters import loopback_up, ray_cluster
from tests.dqp.generated.differential import Connected, compared, difference, filed, order
from tests.dqp.generated.grammar import query
from tests.dqp.generated.oracle import Oracle
from tests.dqp.test_explain import nodes
from tests.processes import until
from tests.thoroughness import part
from tests.tpch import PLACEMENTS, QUERIES, gather, qualified, smallest
from tests.tpch import load as load_tpch

pytestmark = pytest.mark.usefixtures("patient")
PLACEMENT = PLACEMENTS["files"]
ROWS = 20_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """The address of a Ray cluster that nobody else sees."""
    loopback_up()
    with ray_cluster() as address:
        yield address


@pytest.fixture(scope="module")
def federation(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connected]:
    """One for all tests, since each starts processes of its own: over files with the table t, TPC-H and the tables of
    the generated queries."""
    urls = filed(tmp_path_factory.mktemp("files"))
    for alias in ("lite", "duck"):
        with closing(driver_for(urls[alias])) as driver:
            driver.update(
                "CREATE TABLE t (id integer PRIMARY KEY, v bigint, s varchar(20))", cancellation=Cancellation()
            )
            driver.load("t", Stream.of(rows()), cancellation=Cancellation())
            driver.update("ANALYZE t", cancellation=Cancellation())
    load_tpch(PLACEMENT, {alias: urls[alias] for alias in ("lite", "duck")}, smallest())
    with Connected(urls, [f"ray:{cluster}?evaluators=2"]) as connected:
        yield connected


@pytest.fixture(scope="module")
def lab(federation: Connected) -> Coordinator:
    return federation.lab.coordinator


@pytest.fixture(scope="module")
def right() -> Mapping[str, pa.Table]:
    """The answers of TPC-H."""
    with duckdb.connect() as whole:
        gather(whole, smallest(), PLACEMENT)
        return {name: whole.sql(sql).to_arrow_table() for name, sql in QUERIES.items()}


def rows() -> pa.Table:
    numbers = range(1, ROWS + 1)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int32()),
            "v": pa.array([each * 7 % 1000 for each in numbers], pa.int64()),
            "s": pa.array([f"s{each % 37}" for each in numbers]),
        }
    )


SQL = """SELECT a.s, count(*) AS n, sum(a.v) AS total, avg(b.v) AS mean FROM {lite} a JOIN {duck} b ON a.id = b.v
         GROUP BY a.s ORDER BY a.s"""


def whole() -> pa.Table:
    with duckdb.connect() as connection:
        connection.register("t", rows())
        return connection.sql(SQL.format(lite="t", duck="t")).to_arrow_table()


def ask(lab: Coordinator, sql: str) -> pa.Table:
    return lab.query(sql, cancellation=Cancellation()).table()


def states(lab: Coordinator) -> list[dict[str, object]]:
    return [ray.get(each.actor.state.remote(), timeout=60) for each in lab.runtime.evaluators]  # type: ignore[attr-defined]


def at_rest(lab: Coordinator) -> bool:
    return not any(state[name] for state in states(lab) for name in ("works", "tickets", "readers"))


def test_the_answer_of_one_database(lab: Coordinator) -> None:
    table = ask(lab, SQL.format(lite="lite.t", duck="duck.t"))
    assert table.to_pydict() == whole().to_pydict()
    text = lab.explain(SQL.format(lite="lite.t", duck="duck.t"), analyze=True).text
    assert "ray evaluator 1" in text
    assert "ray evaluator 2" in text
    until(lambda: at_rest(lab))


@pytest.mark.parametrize("name", QUERIES)
def test_tpch(name: str, lab: Coordinator, right: Mapping[str, pa.Table]) -> None:
    difference = compared(
        right[name],
        ask(lab, qualified(QUERIES[name], PLACEMENT)),
        order(QUERIES[name], right[name].schema.names),
    )
    assert difference is None, f"{difference.kind}\n{difference.detail}"


GENERATED = part(range(80_000_000, 80_000_050))


def test_generated_queries(federation: Connected) -> None:
    actual = []
    with Oracle() as oracle:
        for seed in GENERATED:
            made = difference(query(seed), oracle, federation)
            if made is not None:
                actual.append(f"== seed {seed}: {made.kind}\n{query(seed)}\n{made.detail}")
    assert not actual, "\n".join(actual)


def test_plans(lab: Coordinator) -> None:
    """The sources are files that only the federation reads: what it sends them is known all the same."""
    sql = SQL.format(lite="lite.t", duck="duck.t")
    before = lab.explain(sql)
    assert "Exchange hash" in before.text
    assert "Fragment 3 (ray evaluator 1, ray evaluator 2)" in before.text
    after = lab.explain(sql, analyze=True)
    assert not [each for each in after.remarks if MISSING in each]
    fragments = [each for each in after.fragments if each.title.startswith("Fragment")]
    assert {each.where for each in fragments} == {"ray evaluator 1", "ray evaluator 2"}
    for each in (*nodes(after.root), *nodes(before.root)):
        assert each.statements or not each.title.startswith("Remote")
    until(lambda: at_rest(lab))


def test_an_error_of_a_fragment_arrives(lab: Coordinator) -> None:
    with pytest.raises(DataError, match="Could not convert"):
        ask(lab, "SELECT sum(CAST(a.s AS INTEGER)) FROM lite.t a JOIN duck.t b ON a.id = b.v")
    until(lambda: at_rest(lab))


def test_nothing_but_loopback_can_be_reached(cluster: str) -> None:
    assert [name for _, name in socket.if_nameindex()] == ["lo"]


def test_a_killed_actor_is_replaced(lab: Coordinator) -> None:
    evaluator = lab.runtime.evaluators[0]  # type: ignore[attr-defined]
    before = evaluator.address
    ray.kill(evaluator.actor, no_restart=False)
    assert ask(lab, SQL.format(lite="lite.t", duck="duck.t")).to_pydict() == whole().to_pydict()

    def back() -> bool:
        evaluator.forget()
        with suppress(EvaluatorLostError):
            return bool(evaluator.address != before)
        return False

    until(back)
    assert ask(lab, SQL.format(lite="lite.t", duck="duck.t")).to_pydict() == whole().to_pydict()
