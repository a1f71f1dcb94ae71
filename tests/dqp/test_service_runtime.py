"""Queries on evaluators that are processes of their own, over databases behind a data service."""

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import duckdb
import httpx
import MySQLdb
import psycopg
import pyarrow as pa
import pytest

from dai.errors import CancelledError, ConfigurationError, DataError
from dai.streams.cancellation import Cancellation
from dqp.algebra.operators import Remote, Sort
from dqp.coordinator import Coordinator
from dqp.errors import EvaluatorLostError
from dqp.planning.distribution.spreading import Thresholds
from dqp.planning.semijoins import forms
from dqp.runtimes.service import Service
from dqp.settings import load
from tests.dqp.generated.differential import compared, order
from tests.faults.gates import Gate
from tests.processes import SECONDS, ServiceProcess, until
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer
from tests.tpch import PLACEMENTS, QUERIES, gather, qualified, smallest
from tests.tpch import load as loaded

pytestmark = pytest.mark.usefixtures("patient")
PLACEMENT = PLACEMENTS["facts_apart"]
HELD_WHOLE = """SELECT count(*) AS n, sum(l_partkey % 97 + o_custkey % 13) AS s FROM lineitem l
                JOIN orders o ON l.l_orderkey = o.o_orderkey"""
HELD = qualified(HELD_WHOLE, PLACEMENT)
HOLDS = "l_partkey"
"""Stands in a statement of ``HELD`` that evaluators send, and in no other: as long as that is held, it does not end."""
ALWAYS = Thresholds(split_rows=0.0, broadcast_bytes=1 << 10, spread_seconds=0.0)


@pytest.fixture(scope="module")
def content() -> Mapping[str, pa.Table]:
    return smallest()


@pytest.fixture(scope="module")
def whole(content: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        gather(connection, content, PLACEMENT)
        yield connection


@pytest.fixture(scope="module")
def data(
    postgres_module_url: str,
    mariadb_module_url: str,
    content: Mapping[str, pa.Table],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ServiceProcess]:
    """The service in front of the databases."""
    urls = {"pg": postgres_module_url, "maria": mariadb_module_url}
    loaded(PLACEMENT, urls, content)
    service = ServiceProcess(tmp_path_factory.mktemp("data"), urls, {"concurrent": 64}, pool_size=24)
    service.start()
    yield service
    service.stop()


@pytest.fixture(scope="module")
def evaluators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[ServiceProcess]]:
    started = []
    for number in range(2):
        directory = tmp_path_factory.mktemp(f"evaluator{number}")
        role = {"evaluator": f'directory = "{directory / "tmp"}"\nmemory_bytes = 500_000_000'}
        started.append(ServiceProcess(directory, {}, roles=role))
    with ExitStack() as stack:
        for each in started:
            stack.callback(each.stop)
            each.start()
        yield started


def coordinator_of(data: ServiceProcess, evaluators: list[ServiceProcess], gate: Gate | None = None) -> Coordinator:
    """With several fragments for every query, however small."""
    port = data.port if gate is None else gate.port
    sources = {alias: f"http://127.0.0.1:{port}/resources/{alias}" for alias in ("pg", "maria")}
    settings = load({"sources": sources, "evaluators": [each.url for each in evaluators]})
    coordinator = Coordinator(settings)
    coordinator.runtime.close()
    coordinator.use(
        coordinator.catalog,
        Service(coordinator.catalog, settings, operations=coordinator.operations, thresholds=ALWAYS),
    )
    return coordinator


@pytest.fixture(scope="module")
def lab(data: ServiceProcess, evaluators: list[ServiceProcess]) -> Iterator[Coordinator]:
    coordinator = coordinator_of(data, evaluators)
    yield coordinator
    coordinator.close()


@pytest.fixture
def gate(data: ServiceProcess) -> Iterator[Gate]:
    """Before the service of the databases."""
    with Gate(data.port) as gate:
        yield gate


@pytest.fixture(scope="module")
def busy(postgres: PostgresServer, mariadb: MariaServer) -> Iterator[Callable[[], int]]:
    """How many statements run in the databases."""
    with (
        psycopg.connect(postgres.dsn, autocommit=True) as one,
        closing(MySQLdb.connect(**mariadb.dsn)) as other,
        closing(other.cursor()) as cursor,
    ):

        def count() -> int:
            ((in_postgres,),) = one.execute(
                "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND state <> 'idle' "
                "AND pid <> pg_backend_pid()"
            ).fetchall()
            cursor.execute(
                "SELECT count(*) FROM information_schema.processlist WHERE command = 'Query' AND id <> connection_id()"
            )
            ((in_maria,),) = cursor.fetchall()
            return int(in_postgres) + int(in_maria)

        yield count


def at_rest(evaluators: list[ServiceProcess]) -> bool:
    """No fragment, no outbox, no temporary file is left."""
    for each in evaluators:
        state = httpx.get(f"{each.url}/resources/evaluator", timeout=SECONDS).json()
        if state["works"] or state["tickets"] or state["readers"] or list((each.directory / "tmp").rglob("*")):
            return False
    return True


def ask(lab: Coordinator, sql: str) -> pa.Table:
    return lab.query(sql, cancellation=Cancellation()).table()


@pytest.mark.parametrize("query", QUERIES)
def test_tpch(query: str, lab: Coordinator, whole: duckdb.DuckDBPyConnection) -> None:
    right = whole.sql(QUERIES[query]).to_arrow_table()
    difference = compared(
        right, ask(lab, qualified(QUERIES[query], PLACEMENT)), order(QUERIES[query], right.schema.names)
    )
    assert difference is None, f"{difference.kind}\n{difference.detail}"


@pytest.mark.parametrize("query", ["q05", "q09", "q18"])
def test_keys_travel_as_tables(
    query: str, lab: Coordinator, whole: duckdb.DuckDBPyConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "ROUND_TRIP", -1e9)
    right = whole.sql(QUERIES[query]).to_arrow_table()
    running = lab.runner.run(lab.plan(qualified(QUERIES[query], PLACEMENT)), cancellation=Cancellation())
    with running.stream as stream:
        table = stream.table()
    assert compared(right, table, order(QUERIES[query], right.schema.names)) is None
    assert any("as a temporary table" in each for each in running.remarks)


SKEWED = """SELECT count(*), sum(o.o_totalprice), sum(l.l_quantity) FROM pg.lineitem l JOIN maria.orders o
            ON l.l_orderkey = o.o_orderkey WHERE l.l_shipmode <> 'AIR'"""


def test_fragments_run_on_every_evaluator(lab: Coordinator, evaluators: list[ServiceProcess]) -> None:
    text = lab.explain(qualified(QUERIES["q05"], PLACEMENT), analyze=True).text
    for each in evaluators:
        assert each.url in text
    assert "Exchange hash" in text
    assert "part 2 of 2" in text


def test_an_early_close_leaves_nothing(
    lab: Coordinator, evaluators: list[ServiceProcess], busy: Callable[[], int]
) -> None:
    sql = "SELECT l_comment, o_comment FROM pg.lineitem l JOIN maria.orders o ON l.l_orderkey = o.o_orderkey"
    with lab.query(sql, cancellation=Cancellation()) as stream:
        assert next(stream).num_rows
    until(lambda: at_rest(evaluators) and not busy())


def test_a_cancellation_leaves_nothing(
    data: ServiceProcess, evaluators: list[ServiceProcess], gate: Gate, busy: Callable[[], int]
) -> None:
    lab = coordinator_of(data, evaluators, gate)
    cancellation = Cancellation()
    reached = gate.shut(HOLDS)

    def cancel() -> None:
        try:
            assert reached.wait(SECONDS)
            until(lambda: not at_rest(evaluators))
        finally:
            cancellation.cancel()

    with ThreadPoolExecutor(1) as pool:
        cancelling = pool.submit(cancel)
        with pytest.raises(CancelledError):
            lab.query(HELD, cancellation=cancellation).table()
        cancelling.result()
    gate.open()
    until(lambda: at_rest(evaluators) and not busy())
    lab.close()


def test_a_wrong_value_is_the_error_of_the_fragment(lab: Coordinator, evaluators: list[ServiceProcess]) -> None:
    sql = "SELECT sum(CAST(o.o_clerk AS INTEGER)) FROM pg.lineitem l JOIN maria.orders o ON l.l_orderkey = o.o_orderkey"
    with pytest.raises(DataError, match="Could not convert string"):
        ask(lab, sql)
    until(lambda: at_rest(evaluators))


def test_sixteen_queries_at_once(lab: Coordinator, whole: duckdb.DuckDBPyConnection) -> None:
    names = [each for each in QUERIES if each not in ("q15", "q21")][:8] * 2
    right = {each: whole.sql(QUERIES[each]).to_arrow_table() for each in set(names)}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda name: ask(lab, qualified(QUERIES[name], PLACEMENT)), names))
    for name, actual in zip(names, answers, strict=True):
        difference = compared(right[name], actual, order(QUERIES[name], right[name].schema.names))
        assert difference is None, f"{name}: {difference}"


def test_heavy_keys_are_found_and_dealt_out(lab: Coordinator, whole: duckdb.DuckDBPyConnection) -> None:
    """l_linestatus has two values: by hash one evaluator would do half of the work or all of it."""
    sql = """SELECT count(*) AS n, sum(l_orderkey % 7 * o_custkey) AS q FROM lineitem l
             JOIN orders o ON l.l_linestatus = o.o_orderstatus AND o.o_custkey < 30"""
    text = lab.explain(qualified(sql, PLACEMENT), analyze=True).text
    assert "heavy" in text, text
    assert ask(lab, qualified(sql, PLACEMENT)).to_pydict() == whole.sql(sql).to_arrow_table().to_pydict()


def test_what_stands_twice_is_sent_to_both_of_its_readers(
    lab: Coordinator, whole: duckdb.DuckDBPyConnection, evaluators: list[ServiceProcess]
) -> None:
    sql = """WITH r AS (SELECT l_suppkey AS k, sum(o_totalprice) AS s FROM lineitem
             JOIN orders ON l_orderkey = o_orderkey GROUP BY l_suppkey)
             SELECT k, s FROM r WHERE s >= (SELECT max(s) * 0.9 FROM r)"""
    right = whole.sql(sql).to_arrow_table()
    running = lab.runner.run(lab.plan(qualified(sql, PLACEMENT)), cancellation=Cancellation())
    with running.stream as stream:
        table = stream.table()
    assert compared(right, table, order(sql, right.schema.names)) is None
    read = [each.key for each in running.execution.measurements() if isinstance(each.key, Remote) and each.statements]
    counted = [each for each in read if isinstance(each.tree, Sort)]  # in search of heavy keys
    assert [each.source for each in counted] == ["pg"]
    assert sorted(each.source for each in read if each not in counted) == ["maria", "pg"]
    until(lambda: at_rest(evaluators))


def test_a_service_without_the_role_is_named(data: ServiceProcess) -> None:
    lab = coordinator_of(data, [data])
    with pytest.raises(ConfigurationError, match="is not an evaluator"):
        ask(lab, SKEWED)
    lab.close()


def test_a_killed_evaluator(
    data: ServiceProcess,
    evaluators: list[ServiceProcess],
    gate: Gate,
    busy: Callable[[], int],
    whole: duckdb.DuckDBPyConnection,
) -> None:
    """When it has something to do: a right answer from the one that is left. Other points of a query are in
    tests/faults."""
    lab = coordinator_of(data, evaluators, gate)
    other, victim = evaluators
    reached = gate.shut(HOLDS)

    def kill() -> None:
        try:
            assert reached.wait(SECONDS)
            until(lambda: not at_rest([victim]))
            victim.kill()
        finally:
            gate.open()

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        try:
            stream, running = lab.start(HELD, cancellation=Cancellation())
            table = stream.table()
        finally:
            killing.result()
            victim.start()
    assert [tuple(each.values()) for each in table.to_pylist()] == whole.sql(HELD_WHOLE).fetchall()
    assert running is not None
    assert running.execution.attempt >= 2
    until(lambda: at_rest([other]) and not busy())
    lab.close()


def test_all_evaluators_away_is_said(data: ServiceProcess, tmp_path: Path) -> None:
    lab = coordinator_of(data, [ServiceProcess(tmp_path, {})])
    with pytest.raises(EvaluatorLostError, match="No evaluator answers"):
        ask(lab, SKEWED)
    lab.close()


def test_an_evaluator_lost_after_rows_were_handed_out_is_an_error(
    data: ServiceProcess, evaluators: list[ServiceProcess], busy: Callable[[], int]
) -> None:
    lab = coordinator_of(data, evaluators)
    sql = """SELECT l_comment, o_comment, c_comment FROM pg.lineitem l JOIN maria.orders o
             ON l.l_orderkey = o.o_orderkey CROSS JOIN (SELECT c_comment FROM pg.customer LIMIT 300) c"""
    with lab.query(sql, cancellation=Cancellation()) as stream:
        rows = next(stream).num_rows
        for each in evaluators:
            each.kill()
        with pytest.raises(EvaluatorLostError):
            rows += sum(each.num_rows for each in stream)
    for each in evaluators:
        each.start()
    until(lambda: not busy())
    lab.close()
