"""A statement without a row is overtaken by the same computed here: right answers, and nothing left running."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import reduce
from typing import Any

import pyarrow as pa
import pytest
from sqlglot import exp

import dqp
from dai.drivers import Driver, DriverOptions, driver_for
from dai.errors import DatabaseUnavailableError, DataError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.keys import KeyTable, in_table
from dqp.algebra.operators import Aggregate, Filter, Join, Names, Operator, Remote, Scan, SetOperation, column
from dqp.algebra.trees import walk
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from dqp.coordinator import Coordinator
from dqp.execution.execution import Execution
from dqp.execution.overtaking import raced
from dqp.planning.alternatives import MOST_TABLES, Alternative, Chance, alternative, has_alternative
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.runtimes.local import Local
from dqp.settings import FederationSettings
from tests.dqp.doubles import Double, batch, catalog_of, execution, numbers, remote
from tests.processes import SECONDS

TRAPS = {
    "mariadb": "b.g = a.g AND b.v > a.v AND b.w < a.w",
    "postgresql": "b.v > a.v AND b.w < a.w",
}
"""For each row the source reads all others, whatever it knows of the table."""
RUNNING = {
    "mariadb": "SELECT COUNT(*) AS n FROM information_schema.processlist WHERE info LIKE '%EXISTS (SELECT 1%' "
    "AND info NOT LIKE '%processlist%'",
    "postgresql": "SELECT COUNT(*) AS n FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%EXISTS (SELECT%' "
    "AND query NOT LIKE '%pg_stat_activity%'",
}
MORE = {
    "mariadb": "INSERT INTO sales SELECT seq, seq % 100, seq, seq FROM seq_{}_to_{}",
    "postgresql": "INSERT INTO sales SELECT seq, seq % 100, seq, seq FROM generate_series({}, {}) AS seq",
}
ANALYSE = {"mariadb": "ANALYZE TABLE sales", "postgresql": "ANALYZE sales"}
ROWS = {"mariadb": 80_000, "postgresql": 15_000}
"""PostgreSQL compares them in pairs, and so does DuckDB. What is computed here has to take long enough to be learned
from, on a fast machine too."""
EAGER: dict[str, Any] = {"second_chance": 1e-9, "second_chance_after": 0.0}


@pytest.fixture(params=list(TRAPS))
def trap(request: pytest.FixtureRequest) -> Iterator[tuple[str, str, Driver]]:
    """The product, the URL and a driver of a database with a small table ``sales``."""
    url = request.getfixturevalue({"mariadb": "mariadb_url", "postgresql": "postgres_url"}[request.param])
    with closing(driver_for(url)) as driver:
        create = "CREATE TABLE sales (id INT PRIMARY KEY, g INT NOT NULL, v INT NOT NULL, w INT NOT NULL)"
        driver.update(create, cancellation=Cancellation())
        driver.update(MORE[request.param].format(1, 100), cancellation=Cancellation())
        driver.update(ANALYSE[request.param], cancellation=Cancellation())
        yield request.param, url, driver


def query(product: str) -> str:
    inner = f"SELECT 1 FROM m.sales b WHERE {TRAPS[product]}"
    return f"SELECT COUNT(*) AS n FROM m.sales a WHERE NOT EXISTS ({inner})"


def running(product: str, driver: Driver) -> int:
    return int(driver.query(RUNNING[product], cancellation=Cancellation()).table().column(0)[0].as_py())


def test_a_statement_that_takes_far_longer_than_estimated(trap: tuple[str, str, Driver]) -> None:
    product, url, driver = trap
    with dqp.connect({"sources": {"m": url}, "second_chance_after": 0.1}) as lab:
        assert "EXISTS (SELECT 1" in lab.explain(query(product)).text
        driver.update(MORE[product].format(101, ROWS[product]), cancellation=Cancellation())
        explained = lab.explain(query(product), analyze=True).text
        assert "was overtaken: computed here" in explained
        assert "Computed here instead" in explained
        assert not running(product, driver)
        again = lab.explain(query(product)).text
        assert "a statement like this took" in again
        assert "EXISTS (SELECT 1" not in again
        assert lab.sql(query(product)).arrow().to_pylist() == [{"n": ROWS[product]}]
        assert not running(product, driver)


@pytest.mark.parametrize("connections", [1, 2])
def test_connections_are_limited(trap: tuple[str, str, Driver], connections: int) -> None:
    """The alternative has two statements. Where no connection is free it gives up, and the statement goes on."""
    product, url, driver = trap
    with closing(driver_for(url, DriverOptions(pool_size=connections, pool_wait=0.2))) as few:
        catalog = Catalog(FederationSettings(), sources=[DriverSource("m", few, own=False)])
        coordinator = Coordinator(settings := FederationSettings(**EAGER))
        coordinator.runtime.close()
        coordinator.use(catalog, Local(catalog, settings))
        driver.update(MORE[product].format(101, 4_000), cancellation=Cancellation())
        running = coordinator.runner.run(coordinator.plan(query(product)), cancellation=Cancellation())
        assert running.stream.table().to_pylist() == [{"n": 4_000}]
        assert few.pool_state()["open"] <= connections
        assert few.pool_state()["open"] == few.pool_state()["idle"]
        coordinator.close()


# --- the rules of the race, with sources that answer as a test says ---


def tree(keys: KeyTable | None = None) -> Remote:
    """A join of a table with itself: one statement. Computed here, one of the table."""
    table = numbers("pg")
    one, other = (Scan(table, ((f"{each}id", "id"), (f"{each}v", "v"))) for each in "ab")
    equal = exp.EQ(this=column("aid"), expression=column("bid"))
    joined: Operator = Join(one, other, "inner", equal)
    if keys is not None:
        joined = Filter(joined, in_table(["aid", "bv"], keys, 0.1))
    counted = (("n", exp.Count(this=exp.Star(), big_int=True)), ("most", exp.Max(this=column("bv"))))
    return Remote("pg", Aggregate(joined, (), counted))


def answered(catalog: Catalog, **settings: Any) -> tuple[list[dict[str, Any]], str]:
    """The rows, and what is said of the race."""
    remote = tree()
    local = Local(catalog, FederationSettings(**{**EAGER, **settings}))
    context = Context(catalog, Estimator(), Names())
    with execution() as run:
        stream = local.run(remote, ["n", "most"], ["BIGINT", "BIGINT"], context, run)
        rows = stream.table().to_pylist()
        said = "\n".join(map(str, run.overtakings.values()))
    local.close()
    return rows, said


def never(cancellation: Cancellation) -> Stream:
    """No row until it is cancelled."""
    stopped = threading.Event()
    with cancellation.on_cancel(stopped.set):
        stopped.wait()
    cancellation.check()
    raise AssertionError


WHOLE = pa.record_batch({"n": pa.array([1_000], pa.int64()), "most": pa.array([70], pa.int32())})


class Raced:
    """What a source does with the statement (of the join) and with the alternative's (of the table)."""

    def __init__(self, statement: str, alternative: str) -> None:
        self.does = {True: statement, False: alternative}
        self.asked = threading.Event()
        self.waiting = self.cancelled = 0

    def __call__(self, sql: str, cancellation: Cancellation) -> Stream:
        if "LIMIT 0" in sql:  # asks for the types
            return Stream.of(batch(1, 0))
        joined = "JOIN" in sql or "COUNT" in sql
        if not joined:
            self.asked.set()
        does = self.does[joined]
        if does == "waits":
            self.waiting += 1
            try:
                return never(cancellation)
            finally:
                self.cancelled += 1
        if does == "fails later":
            self.asked.wait()
            raise DatabaseUnavailableError("gone.") if joined else DataError("a value")
        if does == "fails":
            raise DataError("a value")
        if does == "rows later":
            self.asked.wait()
        data = WHOLE if joined else batch(1, 5)
        if not joined and '"v"' not in sql:
            data = data.select(["id"])
        if does == "accepted":

            def rows() -> Iterator[pa.RecordBatch]:
                yield data.slice(0, 0)
                never(cancellation)

            return Stream(data.schema, rows())
        return Stream.of(data)


STATEMENT = [{"n": 1_000, "most": 70}]
HERE = [{"n": 5, "most": 50}]


@pytest.mark.parametrize(
    ("statement", "alternative", "rows", "said"),
    [
        ("waits", "rows", HERE, "was overtaken"),
        ("accepted", "rows", HERE, "was overtaken"),
        ("rows later", "waits", STATEMENT, "gave its first row itself"),
        ("fails later", "rows", HERE, "was overtaken"),
        ("rows later", "fails", STATEMENT, ""),
    ],
)
def test_who_wins(statement: str, alternative: str, rows: list[dict[str, Any]], said: str) -> None:
    raced = Raced(statement, alternative)
    actual, words = answered(catalog_of(Double("pg", raced)))
    assert actual == rows
    assert said in words
    assert raced.cancelled == raced.waiting
    assert bool(raced.cancelled) == ("waits" in (statement, alternative))


def test_keys_beside_a_statement_that_is_overtaken() -> None:
    """They only leave out rows that nothing needs, and no table here has them."""
    keys = KeyTable("k1", pa.table({"one": pa.array([1], pa.int64()), "other": pa.array([10], pa.int32())}))
    context = Context(catalog_of(Double("pg", Raced("rows", "rows"))), Estimator(), Names())
    found = alternative(tree(keys), context)
    assert found is not None
    assert [type(node) for node in walk(found.tree)] == [Aggregate, Join, Remote, Remote]


@pytest.mark.parametrize(
    ("statement", "here", "multiple", "after"),
    [
        (0.01, 0.1, 5.0, 0.05),
        (0.01, 8.0, 5.0, 2.0),
        (1.0, 10.0, 5.0, 5.0),
        (3.0, 3.0, 5.0, 6.0),
        (3.0, 1.5, 5.0, 1.5),
        (3.0, 1.5, 0.0, 0.0),
    ],
)
def test_how_long_a_statement_may_be_without_a_row(
    statement: float, here: float, multiple: float, after: float
) -> None:
    """Some times its estimate; no longer than the alternative would take, where that is expected to be faster."""
    other = Alternative(remote(numbers("pg")), Context(catalog_of(), Estimator(), Names()), statement, here)
    assert other.after(multiple) == pytest.approx(after)


def test_a_statement_of_hundreds_of_tables_has_no_alternative() -> None:
    """It would send a statement for each, and take ten times the time where the machine is busy."""
    table = numbers("pg")
    scans = [Scan(table, ((f"v{each}", "v"),)) for each in range(MOST_TABLES + 1)]
    names = ("v",)
    few = reduce(lambda one, other: SetOperation(one, other, "union", True, names), scans[:-1])
    assert has_alternative(Remote("pg", few))
    assert not has_alternative(Remote("pg", SetOperation(few, scans[-1], "union", True, names)))


def test_a_race_that_is_over_when_the_alternative_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread ends, and the query goes on."""
    started: list[Callable[[], None]] = []
    late = threading.Event()

    def start(_: Execution, work: Callable[[], None], name: str) -> None:
        started.append(work)
        late.set()

    def sent(_: Cancellation) -> Stream:
        assert late.wait(SECONDS)
        return Stream.of(WHOLE)

    monkeypatch.setattr(Execution, "start", start)
    context = Context(catalog_of(Double("pg", Raced("rows", "rows"))), Estimator(), Names())
    chance = Chance(0.0, 1e-9, context, lambda *_: Stream.of(WHOLE))
    with execution() as run:
        with raced(sent, tree(), (("n", "BIGINT"), ("most", "BIGINT")), run, chance) as stream:
            assert stream.table().to_pylist() == STATEMENT
        started[0]()
        assert run.failure is None
        assert not run.overtakings


@pytest.mark.parametrize("second_chance", [0.0, 5.0])
def test_the_setting(second_chance: float) -> None:
    local = Local(catalog_of(Double("pg", Raced("rows", "fails"))), FederationSettings(second_chance=second_chance))
    with execution() as run:
        local.run(tree(), ["n", "most"], ["BIGINT", "BIGINT"], Context(None, Estimator(), Names()), run).table()
        assert (run.chance is not None) == bool(second_chance)
    local.close()


def test_both_fail() -> None:
    with pytest.raises(DatabaseUnavailableError, match=r"gone\. Computed here instead, it failed too: pg: a value"):
        answered(catalog_of(Double("pg", Raced("fails later", "fails"))))
