"""Evaluators that run few requests at once, and more coordinators than that."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from dai.drivers import driver_for
from dai.errors import BusyError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.coordinator import Coordinator
from dqp.planning.distribution.spreading import Thresholds
from dqp.runtimes.service import Service
from dqp.settings import load
from tests.processes import SECONDS, ServiceProcess, until

ROWS = 3_000
COORDINATORS = 8
ALWAYS = Thresholds(split_rows=0.0, broadcast_bytes=0.0, spread_seconds=0.0)
SQL = "SELECT count(*) AS n, sum(a.v + b.v) AS s FROM lite.t a JOIN duck.t b ON a.id = b.v"
ANSWER = {"n": [ROWS], "s": [sum(range(1, ROWS + 1)) * 2]}


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    directory = tmp_path_factory.mktemp("files")
    urls = {"lite": f"sqlite:///{directory / 'lite.db'}", "duck": f"duckdb:///{directory / 'duck.duckdb'}"}
    numbers = range(1, ROWS + 1)
    for url in urls.values():
        driver = driver_for(url)
        driver.update("CREATE TABLE t (id integer PRIMARY KEY, v bigint)", cancellation=Cancellation())
        content = pa.table({"id": pa.array(numbers, pa.int32()), "v": pa.array(numbers, pa.int64())})
        driver.load("t", Stream.of(content), cancellation=Cancellation())
        driver.close()
    return urls


@contextmanager
def services(directory: Path, urls: dict[str, str], **limits: float) -> Iterator[list[ServiceProcess]]:
    """Two evaluators; the first one has the data, too, so that its fragments ask it for statements."""
    with ExitStack() as stack:
        started = []
        for number, resources in enumerate((urls, {})):
            place = directory / str(number)
            place.mkdir()
            service = ServiceProcess(place, resources, limits, roles={"evaluator": f'directory = "{place / "spill"}"'})
            stack.callback(service.stop)
            started.append(service.start())
        yield started


@contextmanager
def own_data(directory: Path, urls: dict[str, str]) -> Iterator[ServiceProcess]:
    """A service of the data alone: its statements may wait for each other as long as it takes."""
    directory.mkdir()
    service = ServiceProcess(directory, urls)
    try:
        yield service.start()
    finally:
        service.stop()


@contextmanager
def coordinator(started: list[ServiceProcess], data: ServiceProcess) -> Iterator[Coordinator]:
    sources = {alias: f"{data.url}/resources/{alias}" for alias in ("lite", "duck")}
    evaluators = [each.url for each in started]
    settings = load({"sources": sources, "evaluators": evaluators})
    coordinator = Coordinator(settings)
    coordinator.runtime.close()
    coordinator.use(
        coordinator.catalog,
        Service(coordinator.catalog, settings, operations=coordinator.operations, thresholds=ALWAYS),
    )
    try:
        yield coordinator
    finally:
        coordinator.close()


def at_rest(started: list[ServiceProcess]) -> bool:
    states = [httpx.get(f"{each.url}/resources/evaluator", timeout=SECONDS).json() for each in started]
    works = any(state[each] for state in states for each in ("works", "tickets", "readers"))
    return not works and all(each.at_rest() for each in started)


def ask(made: Coordinator) -> pa.Table:
    return made.query(SQL, cancellation=Cancellation()).table()


@pytest.mark.parametrize("concurrent", [1, 3])
def test_coordinators_wait_for_each_other_and_none_for_ever(
    urls: dict[str, str], tmp_path: Path, concurrent: int
) -> None:
    """They name the evaluators in different order, and a fragment needs statements of a service that is full."""
    with services(tmp_path, urls, concurrent=concurrent, queue_seconds=1000) as started, ExitStack() as stack:
        orders = (started, started[::-1])
        labs = [stack.enter_context(coordinator(orders[each % 2], started[0])) for each in range(COORDINATORS)]
        assert "Exchange" in labs[0].explain(SQL, analyze=True).text
        with ThreadPoolExecutor(2 * COORDINATORS) as pool:
            actual = [each.to_pydict() for each in pool.map(ask, [*labs, *labs])]
        assert actual == [ANSWER] * 2 * COORDINATORS
        until(lambda: at_rest(started))


def test_who_waits_too_long_is_told_for_whom(urls: dict[str, str], tmp_path: Path) -> None:
    with (
        own_data(tmp_path / "data", urls) as data,
        services(tmp_path, {}, concurrent=1, queue_seconds=0.2) as started,
        coordinator(started, data) as one,
        coordinator(started, data) as other,
    ):
        assert ask(other).to_pydict() == ANSWER
        until(lambda: at_rest(started))
        endless = "SELECT a.id FROM lite.t a JOIN duck.t b ON a.id > b.v JOIN lite.t c ON c.id > b.id"
        with one.query(endless, cancellation=Cancellation()) as stream:
            assert next(stream).num_rows
            with pytest.raises(BusyError, match=r"The evaluator http://\S+ is busy") as caught:
                ask(other)
            assert caught.value.hint
        until(lambda: at_rest(started))
        assert ask(other).to_pydict() == ANSWER
