"""A query that began with wrong statistics is planned again when a late sample says so, until it has a row."""

import itertools
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dai.drivers import driver_for
from dai.drivers.tables import Statistics
from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import Scan
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from dqp.catalog.statistics import kept
from dqp.coordinator import Coordinator
from dqp.coordinator.plans import Planned
from dqp.execution.execution import Execution
from dqp.execution.fetch import scans_of
from dqp.runtimes.local import Local
from dqp.settings import FederationSettings
from tests.processes import SECONDS

ROWS = 20_000
QUERY = "SELECT a.v + b.v AS v FROM m.sales a JOIN n.sales b ON a.id = b.id WHERE b.id < 3 ORDER BY 1"
ANSWER = [0, 2, 4]


class World:
    """Two tables of ROWS rows, of which the first is said to have ``rows``. Samples wait for ``sampled``; the first
    statement that reads the first table waits until it is cancelled, or for ``read``."""

    def __init__(self, directory: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sampled, self.reading, self.read = threading.Event(), threading.Event(), threading.Event()
        self.cancelled: list[str] = []
        self.executions: list[Execution] = []
        sources = []
        for alias in ("m", "n"):
            path = directory / f"{alias}.db"
            with closing(sqlite3.connect(path)) as connection:
                connection.execute("CREATE TABLE sales (id INTEGER PRIMARY KEY, v INTEGER)")
                connection.executemany("INSERT INTO sales VALUES (?, ?)", [(each, each) for each in range(ROWS)])
                connection.commit()
            sources.append(DriverSource(alias, driver_for(f"sqlite:///{path}"), own=True))
        right = DriverSource.query

        def query(source: DriverSource, sql: str, *given: Any, cancellation: Cancellation, **named: Any) -> Stream:
            if threading.current_thread().name.startswith("dqp-catalog-samples"):
                if source.alias == "m":
                    assert self.sampled.wait(SECONDS)
            elif source.alias == "m" and "LIMIT 0" not in sql.upper() and not self.reading.is_set():
                self.reading.set()
                with cancellation.on_cancel(self.read.set):
                    assert self.read.wait(SECONDS)
                if cancellation.cancelled:
                    self.cancelled.append(sql)
                cancellation.check()
            return right(source, sql, *given, cancellation=cancellation, **named)

        def said(source: DriverSource, table: str) -> Statistics:
            return Statistics(rows if source.alias == "m" else ROWS)

        monkeypatch.setattr(DriverSource, "query", query)
        monkeypatch.setattr(DriverSource, "statistics", said)
        monkeypatch.setattr(kept, "SAMPLE_SECONDS", 0.0)
        settings = FederationSettings()
        self.coordinator = Coordinator(settings)
        self.coordinator.runtime.close()
        catalog = Catalog(settings, sources=sources)
        self.coordinator.use(catalog, Local(catalog, settings))

    def start(self) -> Stream:
        return self.coordinator.start(QUERY, cancellation=Cancellation(), begun=self.executions.append)[0]

    def late(self) -> Future[bool]:
        scans = scans_of(self.coordinator.plan(QUERY).bound.tree)
        return self.late_of(scans)

    def late_of(self, scans: Iterable[Scan]) -> Future[bool]:
        mine = (each for each in scans if each.table.source == "m")
        (late,) = self.coordinator.catalog.late(mine, time.monotonic())
        return late

    def ask(self) -> list[int]:
        stream, running = self.coordinator.start(QUERY, cancellation=Cancellation(), begun=self.executions.append)
        assert running is not None
        self.remarks = " ".join(running.remarks)
        return stream.table()["v"].to_pylist()


@pytest.fixture(params=[ROWS * 100, ROWS // 100])
def world(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    actual = World(tmp_path, request.param, monkeypatch)
    yield actual
    actual.sampled.set()
    actual.coordinator.close()


def test_a_sample_that_contradicts_begins_the_query_anew(world: World) -> None:
    threading.Thread(target=lambda: world.reading.wait(SECONDS) and world.sampled.set()).start()
    assert world.ask() == ANSWER
    assert "planned again" in world.remarks
    assert len(world.cancelled) == 1
    assert len(world.executions) == 2
    table = world.coordinator.catalog.table("m", "sales")
    assert table.rows == pytest.approx(ROWS, rel=0.1)
    assert world.ask() == ANSWER
    assert "planned again" not in world.remarks
    assert len(world.executions) == 3


def test_a_sample_that_comes_while_the_query_is_planned_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan, calls = world.coordinator.plans.plan, itertools.count()

    def slow(*given: Any, **named: Any) -> Planned:
        planned = plan(*given, **named)
        if next(calls) == 0:
            late = world.late_of(scans_of(planned.bound.tree))
            world.sampled.set()
            assert late.result(SECONDS)
        return planned

    monkeypatch.setattr(world.coordinator.plans, "plan", slow)
    world.read.set()
    assert world.ask() == ANSWER
    assert "planned again" in world.remarks
    assert len(world.executions) == 2


def test_once_there_are_rows_it_goes_on(world: World) -> None:
    world.read.set()
    stream = world.start()
    late = world.late()
    world.sampled.set()
    assert late.result(SECONDS)
    assert stream.table()["v"].to_pylist() == ANSWER
    assert world.cancelled == []
    assert len(world.executions) == 1


@pytest.mark.parametrize("world", [ROWS], indirect=True)
def test_a_sample_that_agrees_changes_nothing(world: World) -> None:
    def agree() -> None:
        assert world.reading.wait(SECONDS)
        late = world.late()
        world.sampled.set()
        assert late.result(SECONDS) is False
        world.read.set()

    threading.Thread(target=agree).start()
    assert world.ask() == ANSWER
    assert world.cancelled == []
    assert len(world.executions) == 1


def test_cancelling_ends_the_waiting(world: World) -> None:
    cancellation = Cancellation()
    threading.Thread(target=lambda: world.reading.wait(SECONDS) and cancellation.cancel()).start()
    with pytest.raises(DaiError) as raised:
        world.coordinator.start(QUERY, cancellation=cancellation)
    assert raised.value is cancellation.cause
    assert len(world.cancelled) == 1
