"""Queries on evaluators that are processes of their own, over databases behind a data service."""

from collections.abc import Iterator, Mapping

import duckdb
import pyarrow as pa
import pytest

from dai.cancellation import Cancellation
from dqp.coordinator import Coordinator
from dqp.partition import Thresholds
from dqp.runtimes.service import Service
from dqp.settings import load
from tests.dqp.generated.differential import compared, order
from tests.processes import ServiceProcess
from tests.tpch import PLACEMENTS, QUERIES, qualified, tables
from tests.tpch import load as loaded

PLACEMENT = PLACEMENTS["facts_apart"]
ALWAYS = Thresholds(split_rows=0.0, broadcast_bytes=1 << 12, spread_seconds=0.0)


@pytest.fixture(scope="module")
def content() -> Mapping[str, pa.Table]:
    return tables(0.01)


@pytest.fixture(scope="module")
def whole(content: Mapping[str, pa.Table]) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for name, table in content.items():
            connection.register("made", table)
            connection.execute(f"CREATE TABLE {name} AS FROM made")
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
    for each in started:
        each.start()
    yield started
    for each in started:
        each.stop()


def coordinator_of(data: ServiceProcess, evaluators: list[ServiceProcess]) -> Coordinator:
    """With several fragments for every query, however small."""
    sources = {alias: f"{data.url}/resources/{alias}" for alias in ("pg", "maria")}
    settings = load({"sources": sources, "evaluators": [each.url for each in evaluators]})
    made = Coordinator(settings)
    made.runtime.close()
    made.runtime = Service(made.catalog, settings, operations=made.operations, thresholds=ALWAYS)
    return made


@pytest.fixture(scope="module")
def lab(data: ServiceProcess, evaluators: list[ServiceProcess]) -> Iterator[Coordinator]:
    made = coordinator_of(data, evaluators)
    yield made
    made.close()


def ask(lab: Coordinator, sql: str) -> pa.Table:
    return lab.query(sql, cancellation=Cancellation()).table()


@pytest.mark.parametrize("query", QUERIES)
def test_tpch(query: str, lab: Coordinator, whole: duckdb.DuckDBPyConnection) -> None:
    right = whole.sql(QUERIES[query]).to_arrow_table()
    found = compared(right, ask(lab, qualified(QUERIES[query], PLACEMENT)), order(QUERIES[query], right.schema.names))
    assert found is None, f"{found.kind}\n{found.detail}"
