"""Samples of columns of which a source keeps no statistics: near the truth, bounded, said in EXPLAIN."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dqp
from dai.drivers import Driver, driver_for
from dai.drivers.tables import Column, ColumnStatistics, Statistics, TableInfo
from dai.errors import DatabaseUnavailableError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from dqp.catalog.statistics import counting, kept, sampling
from dqp.catalog.statistics.kept import KeptStatistics
from dqp.catalog.statistics.sampling import Sampled, with_sample
from dqp.settings import FederationSettings
from tests.dqp.doubles import Double
from tests.processes import SECONDS

ROWS = 40_000
WORDS = (*["often"] * 12, *["now and then"] * 3, *(f"seldom {each}" for each in range(5)))
KINDS = {"mariadb": "mariadb_module_url", "sqlite": "", "postgresql": "postgres_module_url"}
QUERIES = {
    "SELECT g, COUNT(*) AS n FROM m.sales GROUP BY g": 13,
    "SELECT parent, COUNT(*) AS n FROM m.sales GROUP BY parent": ROWS // 4,
    "SELECT word, COUNT(*) AS n FROM m.sales GROUP BY word": 7,
    "SELECT id FROM m.sales WHERE word = 'often'": ROWS * 12 // 20,
    "SELECT id FROM m.sales WHERE word = 'seldom 3'": ROWS // 20,
    "SELECT id FROM m.sales WHERE word IN ('often', 'seldom 1')": ROWS * 13 // 20,
    "SELECT id FROM m.sales WHERE rare IS NULL": ROWS * 9 // 10,
    "SELECT id FROM m.sales WHERE parent < 1000": 4_000,
}
"""Queries of one table, and how many rows they have."""


def rows() -> Iterator[tuple[int, int, int, str, int | None]]:
    """A key with gaps; groups; neighbours alike; words of which one is often; mostly NULL."""
    for each in range(ROWS):
        word = WORDS[each * 7919 % 1009 % len(WORDS)]
        yield each * 3, each * 7919 % 13, each // 4, word, None if each % 10 else each


@pytest.fixture(scope="module", params=list(KINDS))
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a database with ``sales``, of whose columns it knows nothing."""
    create = "CREATE TABLE sales (id INTEGER PRIMARY KEY, g INTEGER, parent INTEGER, word VARCHAR(20), rare INTEGER)"
    if request.param == "sqlite":
        path: Path = tmp_path_factory.mktemp("sampling") / "sales.db"
        with closing(sqlite3.connect(path)) as connection:
            connection.execute(create)
            connection.executemany("INSERT INTO sales VALUES (?, ?, ?, ?, ?)", rows())
            connection.commit()
        return f"sqlite:///{path}"
    address: str = request.getfixturevalue(KINDS[request.param])
    names = ("id", "g", "parent", "word", "rare")
    table = pa.table(dict(zip(names, zip(*rows(), strict=True), strict=True)))
    with closing(driver_for(address)) as driver:
        driver.update(create, cancellation=Cancellation())
        driver.load("sales", Stream.of(table), cancellation=Cancellation())
        if request.param == "mariadb":
            driver.update("ANALYZE TABLE sales", cancellation=Cancellation())
    return address


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is."""
    monkeypatch.setattr(sampling, "SECONDS", 30.0)
    monkeypatch.setattr(kept, "SAMPLE_SECONDS", 30.0)


@pytest.fixture
def driver(url: str) -> Iterator[Driver]:
    with closing(driver_for(url)) as opened:
        yield opened


def ratios(url: str) -> dict[str, float]:
    """Estimated over actual rows, or the other way round, whichever is more."""
    with dqp.connect({"sources": {"m": url}}) as lab:
        coordinator = lab._coordinator
        assert coordinator is not None
        estimated = {}
        for sql, actual in QUERIES.items():
            planned = coordinator.plan(sql)
            rows = planned.context.estimator.again().rows(planned.tree)
            assert lab.sql(sql).arrow().num_rows == pytest.approx(actual, rel=0.1)
            estimated[sql] = max(rows / actual, actual / rows)
    return estimated


def test_estimates_of_skewed_data(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with_samples = ratios(url)
    assert max(with_samples.values()) < 2.0, with_samples
    monkeypatch.setattr(sampling, "NAMES", {})
    assert max(ratios(url).values()) > 10.0


def test_explained(url: str) -> None:
    with dqp.connect({"sources": {"m": url}}) as lab:
        text = lab.explain("SELECT word, COUNT(*) AS n FROM m.sales GROUP BY word").text
    assert "m.sales: statistics of g, parent, word" in text
    assert "from a sample of 1,0" in text


def test_the_same_rows_each_time(driver: Driver) -> None:
    source = DriverSource("m", driver, own=False)
    info = next(each for each in source.tables() if each.name == "sales")
    known = source.statistics("sales")
    samples = [with_sample(source, info, known, Cancellation()) for _ in range(2)]
    assert isinstance(samples[0], Sampled)
    assert samples[0] == samples[1]
    assert samples[0].sample <= sampling.BLOCKS * sampling.BLOCK_ROWS


def test_without_statistics_rows_are_counted_by_the_density_of_the_key(url: str, driver: Driver) -> None:
    source = DriverSource("m", driver, own=False)
    info = next(each for each in source.tables() if each.name == "sales")
    counted = with_sample(
        source, TableInfo("sales", info.columns, primary_key=("id",)), Statistics(None), Cancellation()
    )
    assert counted.rows == pytest.approx(ROWS, rel=0.1)


def test_many_rows_of_a_value_of_the_key(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "days.db")) as connection:
        connection.execute("CREATE TABLE days (day INTEGER, item INTEGER, n INTEGER, PRIMARY KEY (day, item))")
        rows = ((7 * day, item, day * item % 50) for day in range(20) for item in range(1_000))
        connection.executemany("INSERT INTO days VALUES (?, ?, ?)", rows)
        connection.commit()
    with closing(driver_for(f"sqlite:///{tmp_path / 'days.db'}")) as driver:
        source = DriverSource("m", driver, own=False)
        sampled = with_sample(source, source.tables()[0], Statistics(None), Cancellation())
    assert sampled.rows == pytest.approx(20_000, rel=0.2)
    assert 20 <= (sampled.columns["day"].distinct or 0) <= 134  # so many whole numbers lie between its ends
    assert "item" not in sampled.columns  # each block has the first items of a day
    assert sampled.columns["n"].distinct is not None


def test_rows_in_the_order_of_a_column(tmp_path: Path) -> None:
    """Each block has another day: as many days as there are blocks, if there were not fewer between the ends."""
    with closing(sqlite3.connect(tmp_path / "days.db")) as connection:
        connection.execute("CREATE TABLE days (item INTEGER, n INTEGER, day INTEGER, PRIMARY KEY (item, n))")
        rows = ((each * 7919 % 100_000, each, 2_450_000 + each // 200) for each in range(100_000))
        connection.executemany("INSERT INTO days VALUES (?, ?, ?)", rows)
        connection.commit()
    with closing(driver_for(f"sqlite:///{tmp_path / 'days.db'}")) as driver:
        source = DriverSource("m", driver, own=False)
        sampled = with_sample(source, source.tables()[0], source.statistics("days"), Cancellation())
    assert sampled.rows == pytest.approx(100_000, rel=0.2)
    assert 400 <= (sampled.columns["day"].distinct or 0) <= 500
    assert sampled.columns["n"].distinct == pytest.approx(100_000, rel=0.2)  # the key's second column


def test_rows_in_two_clusters_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """How dense they are at some places tells little: before, 2,000 of 60,000 rows were expected."""
    with closing(sqlite3.connect(tmp_path / "clusters.db")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, n INTEGER)")
        ids = (*range(30_000), *range(10**9, 10**9 + 30_000))
        connection.executemany("INSERT INTO t VALUES (?, 1)", ((each,) for each in ids))
        connection.commit()
    with closing(driver_for(f"sqlite:///{tmp_path / 'clusters.db'}")) as driver:
        source = DriverSource("m", driver, own=False)

        def rows() -> int | None:
            return with_sample(source, source.tables()[0], source.statistics("t"), Cancellation()).rows

        assert rows() == 60_000
        monkeypatch.setattr(counting, "MOST_COUNTED", 50_000)
        assert rows() == 50_000


def test_a_table_that_has_grown_behind_the_ends_that_are_known(driver: Driver) -> None:
    source = DriverSource("m", driver, own=False)
    info = next(each for each in source.tables() if each.name == "sales")
    old = Statistics(ROWS // 20, columns={"id": ColumnStatistics(ROWS / 20, low="0", high=str(3 * ROWS // 20))})
    sampled = with_sample(source, info, old, Cancellation())
    assert sampled.rows == pytest.approx(ROWS, rel=0.1)
    assert isinstance(sampled, Sampled)
    assert sampled.said == ROWS // 20


@pytest.mark.parametrize("factor", [100.0, 0.01])
def test_statistics_that_the_rows_contradict_are_not_used(
    url: str, factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(known: Statistics) -> Statistics:
        columns = {
            name: replace(each, distinct=each.distinct and max(1.0, each.distinct * factor))
            for name, each in known.columns.items()
        }
        return replace(known, rows=int(ROWS * factor), columns=columns)

    right = DriverSource.statistics
    monkeypatch.setattr(DriverSource, "statistics", lambda self, table: wrong(right(self, table)))
    assert max(ratios(url).values()) < 2.0
    with dqp.connect({"sources": {"m": url}}) as lab:
        text = lab.explain("SELECT word, COUNT(*) AS n FROM m.sales GROUP BY word").text
    assert f"the source says {int(ROWS * factor):,}: its statistics are not used" in text


# --- bounds, with a source that answers as a test says ---

COLUMNS = (Column("id", "int", "int32", False), Column("v", "int", "int32", True))
KNOWN = Statistics(50_000, None, {"id": ColumnStatistics(50_000.0, low="1", high="50000")})


def test_a_source_has_so_long_for_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "SECONDS", 0.01)

    def never(sql: str, cancellation: Cancellation) -> Stream:
        def batches() -> Iterator[pa.RecordBatch]:
            stopped = threading.Event()
            with cancellation.on_cancel(stopped.set):
                stopped.wait()
            cancellation.check()
            yield from ()

        return Stream(pa.schema({"k": pa.int64(), "c0": pa.int64(), "b": pa.int64()}), batches())

    source = Double("m", never, "mariadb")
    assert with_sample(source, TableInfo("t", COLUMNS, primary_key=("id",)), KNOWN, Cancellation()) is KNOWN
    assert len(source.asked) == 1


def test_no_query_waits_long_and_the_next_one_has_the_sample(
    url: str, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept, "SAMPLE_SECONDS", 0.0)
    allowed, over = threading.Event(), threading.Event()
    right = DriverSource.query

    def held(self: DriverSource, sql: str, *given: Any, **named: Any) -> Stream:
        allowed.wait(SECONDS)
        return right(self, sql, *given, **named)

    def late(*given: Any) -> None:
        replaced(*given)
        over.set()

    replaced = KeptStatistics._late
    monkeypatch.setattr(DriverSource, "query", held)
    monkeypatch.setattr(KeptStatistics, "_late", late)
    monkeypatch.setattr(DriverSource, "statistics", lambda self, table: Statistics(100 * ROWS))
    catalog = Catalog(FederationSettings(), sources=[DriverSource("m", driver, own=False)])
    try:
        before, version = catalog.table("m", "sales"), catalog.version
        assert before.rows == 100 * ROWS
        allowed.set()
        assert over.wait(SECONDS)
        assert catalog.version > version
        assert catalog.table("m", "sales").rows == pytest.approx(ROWS, rel=0.1)
    finally:
        catalog.close()


def test_a_federation_that_is_closed_waits_for_no_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, stopped = threading.Event(), threading.Event()

    def never(sql: str, cancellation: Cancellation) -> Stream:
        with cancellation.on_cancel(stopped.set):
            asked.set()
            assert stopped.wait(SECONDS)
        cancellation.check()
        raise AssertionError

    ending = Cancellation()
    source = Double("m", never, "mariadb")
    info = TableInfo("t", COLUMNS, primary_key=("id",))
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(with_sample, source, info, KNOWN, ending)
        assert asked.wait(SECONDS)
        ending.cancel()
        assert future.result(SECONDS) is KNOWN


def fails(sql: str, cancellation: Cancellation) -> Stream:
    raise DatabaseUnavailableError("gone")


@pytest.mark.parametrize(
    ("info", "known", "dialect", "asked"),
    [
        (TableInfo("t", COLUMNS, primary_key=("id",)), KNOWN, "mariadb", 1),
        (TableInfo("t", COLUMNS, primary_key=("id",)), KNOWN, "postgresql", 1),
        (TableInfo("t", COLUMNS, primary_key=("id",), kind="view"), KNOWN, "mariadb", 0),
        (TableInfo("t", COLUMNS), Statistics(999), "mariadb", 0),
        (TableInfo("t", COLUMNS[:1], primary_key=("id",)), KNOWN, "duckdb", 0),
        (TableInfo("t", COLUMNS), Statistics(50_000), "mariadb", 1),
    ],
)
def test_what_is_sampled(info: TableInfo, known: Statistics, dialect: str, asked: int) -> None:
    source = Double("m", fails, dialect)
    assert with_sample(source, info, known, Cancellation()) is known
    assert len(source.asked) == asked


def test_it_is_kept_as_long_as_the_statistics(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(kept, "with_sample", lambda *each: asked.append(each) or with_sample(*each))
    catalog = Catalog(FederationSettings(), sources=[DriverSource("m", driver, own=False)])
    assert catalog.table("m", "sales") is catalog.table("m", "sales")
    assert len(asked) == 1
    catalog.close()
