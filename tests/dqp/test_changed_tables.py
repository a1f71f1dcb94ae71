"""A table is changed under an open federation: what arrives is compared with what was planned, and the query is planned
again. Answers are those of a DuckDB that holds the changed table."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing

import duckdb
import pytest

from dai.drivers import Driver, driver_for
from dai.streams.cancellation import Cancellation
from dqp.algebra import arrival
from dqp.coordinator import Coordinator
from dqp.planning.distribution.spreading import Thresholds
from dqp.runtimes.service import Service
from dqp.settings import load
from tests.dqp.generated import differential
from tests.thoroughness import combined

ALWAYS = Thresholds(split_rows=0.0, broadcast_bytes=1 << 10, spread_seconds=0.0)
BEFORE_AND_AFTER = {
    "int to double": ("integer", "1, 2, 3", "double precision", "1.5, 2.5, 3.5"),
    "int to text": ("integer", "1, 2, 3", "varchar(9)", "'9', '10', '100'"),
    "text to int": ("varchar(9)", "'9', '10', '100'", "integer", "9, 10, 100"),
    "int to bigint": ("integer", "1, 2, 3", "bigint", "1, 2, 9000000000000000000"),
    "more digits": ("decimal(10,2)", "1.25, 2, 3", "decimal(12,4)", "1.1234, 2.0001, 3"),
    "date to timestamp": (
        "date",
        *["'2024-01-01', '2024-01-02', NULL"],
        "timestamp",
        "'2024-01-01 12:30:00', NULL, NULL",
    ),
}
QUERIES = (
    "SELECT id, v, typeof(v) AS t FROM {}.t",
    "SELECT max(v) AS m, min(v) AS n, count(*) AS c FROM {}.t",
    "SELECT t.id, t.v FROM {}.t JOIN (VALUES (1), (3)) o(id) ON t.id = o.id WHERE v IS NOT NULL",
    "SELECT id % 2 AS g, max(v) AS m, list(v ORDER BY id)::text AS l FROM {}.t GROUP BY 1",
)
SUM = "SELECT sum(v) AS s FROM {}.t"


class World:
    """The databases, and a coordinator that sees them: directly, behind a service, or with evaluators beside it."""

    def __init__(self, drivers: Mapping[str, Driver], coordinator: Coordinator) -> None:
        self.drivers, self.coordinator = drivers, coordinator

    def make(self, alias: str, type: str, values: str) -> None:
        listed = ", ".join(f"({at}, {each})" for at, each in enumerate(values.split(", "), 1))
        for each in (
            "DROP TABLE IF EXISTS t",
            f"CREATE TABLE t (id integer PRIMARY KEY, v {type})",
            f"INSERT INTO t VALUES {listed}",
        ):
            self.drivers[alias].update(each, cancellation=Cancellation())

    def answer(self, sql: str) -> list[str]:
        with self.coordinator.query(sql, cancellation=Cancellation()) as stream:
            return sorted(repr(tuple(each.values())) for each in stream.table().to_pylist())


@pytest.fixture(scope="module")
def urls(
    postgres_module_url: str, mariadb_module_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, str]:
    made = differential.files(tmp_path_factory.mktemp("changed"))
    return {"pg": postgres_module_url, "maria": mariadb_module_url, **made}


@pytest.fixture(scope="module")
def world(
    request: pytest.FixtureRequest, urls: Mapping[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    with ExitStack() as stack:
        if request.param == "local":
            coordinator = Coordinator(load({"sources": dict(urls)}))
            drivers = {alias: source.driver for alias, source in coordinator.catalog.sources.items()}
        else:
            # A DuckDB file has one process.
            kept = {alias: url for alias, url in urls.items() if alias != "duck"}
            drivers = {alias: stack.enter_context(closing(driver_for(url))) for alias, url in kept.items()}
            for alias in kept:
                drivers[alias].update("CREATE TABLE IF NOT EXISTS t (id integer)", cancellation=Cancellation())
            places, evaluators = stack.enter_context(differential.served(tmp_path_factory.mktemp("services"), kept))
            evaluated = request.param == "evaluated"
            settings = load({"sources": places, "evaluators": evaluators if evaluated else ["local"]})
            coordinator = Coordinator(settings)
            if evaluated:
                coordinator.runtime.close()
                catalog, calls = coordinator.catalog, coordinator.operations
                coordinator.use(catalog, Service(catalog, settings, operations=calls, thresholds=ALWAYS))
        stack.callback(coordinator.close)
        yield World(drivers, coordinator)


def oracle(alias: str, type: str, values: str, queries: list[str]) -> list[list[str]]:
    with closing(duckdb.connect()) as connection:
        kept = {"integer": "bigint"}.get(type, type) if alias == "lite" else type
        connection.execute(f"ATTACH ':memory:' AS {alias}")
        connection.execute(f"CREATE TABLE {alias}.t (id {'bigint' if alias == 'lite' else 'integer'}, v {kept})")
        for at, each in enumerate(values.split(", "), 1):
            connection.execute(f"INSERT INTO {alias}.t VALUES ({at}, {each})")
        return [
            sorted(repr(tuple(each.values())) for each in connection.sql(sql).to_arrow_table().to_pylist())
            for sql in queries
        ]


CASES = [
    *(("local", alias, change) for change, alias in combined(BEFORE_AND_AFTER, ("pg", "maria", "lite", "duck"))),
    *((mode, alias, "int to double") for mode in ("served", "evaluated") for alias in ("pg", "maria", "lite")),
]


@pytest.mark.parametrize(("world", "alias", "change"), CASES, indirect=["world"], scope="module")
def test_a_changed_column_is_planned_again(
    world: World, alias: str, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival, "PROBED_SECONDS", 0.0)
    before, old, after, new = BEFORE_AND_AFTER[change]
    after = "datetime" if alias == "maria" and after == "timestamp" else after
    templates = [*QUERIES, SUM] if change == "int to double" else QUERIES[:2]
    queries = [each.format(alias) for each in templates]
    for sql, answer in zip(queries, oracle(alias, after, new, queries), strict=True):
        world.make(alias, before, old)
        world.answer(sql)
        world.make(alias, after, new)
        assert world.answer(sql) == answer, sql
