"""A federated query that nobody wants any more ends in both databases."""

import http.client
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack

import pytest

import dai
from tests.faults.federation import Side, large
from tests.processes import ServiceProcess, until

ENDLESS = "select a.id, b.id as other, a.s from pg.big a join maria.big b on a.k <= b.k"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
LOCKS = {"pg": "lock table big in access exclusive mode", "maria": "lock tables big write"}


@pytest.fixture(scope="module")
def service(both: Mapping[str, Side], tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """A third service, whose resource is the federation of the two."""
    federations = {"lab": {alias: {"url": each.url} for alias, each in both.items()}}
    started = ServiceProcess(tmp_path_factory.mktemp("federated"), {}, federations=federations).start()
    try:
        yield started
    finally:
        started.stop()


def answers(service: ServiceProcess, alias: str) -> bool:
    with service.client() as client:
        answer = client.post("/resources/lab/query", json={"sql": f"select id from {alias}.big limit 0"})
    return answer.status_code == 200


@pytest.fixture
def federated(sides: Mapping[str, Side], service: ServiceProcess) -> Iterator[ServiceProcess]:
    """The service, of which a test must leave nothing. It may have looked for its sources before they were there."""
    until(lambda: all(answers(service, alias) for alias in LOCKS))
    yield service
    until(service.at_rest)
    until(lambda: all(each.idle for each in sides.values()))
    assert not [each for each in service.leftovers() if not each.name.startswith("dqp-spill")]


@pytest.fixture
def stuck(federated: ServiceProcess, sides: Mapping[str, Side]) -> Iterator[str]:
    """A query whose statements wait in both databases."""
    sql = large("pg", "maria").sql
    with dai.connect(f"{federated.url}/lab").query("explain " + sql) as plan:
        assert plan.arrow().num_rows
    with ExitStack() as stack:
        for alias, lock in LOCKS.items():
            stack.enter_context(sides[alias].database.holding(lock))
        yield sql


def at_work(sides: Mapping[str, Side]) -> list[int]:
    return [each.database.at_work for each in sides.values()]


def asked(service: ServiceProcess, sql: str, form: str) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    headers = {"Content-Type": "application/json", "Accept": form}
    connection.request("POST", "/resources/lab/query", json.dumps({"sql": sql}), headers)
    return connection


@pytest.mark.parametrize("form", ["text/csv", "application/vnd.apache.arrow.stream"])
def test_a_client_that_vanishes_in_mid_stream(
    federated: ServiceProcess, sides: Mapping[str, Side], form: str, record_property: Callable[[str, object], None]
) -> None:
    connection = asked(federated, ENDLESS, form)
    answer = connection.getresponse()
    assert answer.read(100_000)
    assert not federated.at_rest()
    answer.close()
    connection.close()
    seconds = until(lambda: federated.at_rest() and not any(at_work(sides)))
    record_property("seconds until all had ended", round(seconds, 3))
    print(f"{form}: all had ended after {seconds:.3f} s")


def test_a_client_that_vanishes_before_the_first_row(
    federated: ServiceProcess,
    sides: Mapping[str, Side],
    stuck: str,
    record_property: Callable[[str, object], None],
) -> None:
    connection = asked(federated, stuck, "text/csv")
    until(lambda: at_work(sides) == [1, 1])
    connection.close()
    seconds = until(lambda: not any(at_work(sides)))
    record_property("seconds until the statements ended", round(seconds, 3))
    print(f"the statements had ended after {seconds:.3f} s")


def test_a_job_that_is_aborted(
    federated: ServiceProcess,
    sides: Mapping[str, Side],
    stuck: str,
    record_property: Callable[[str, object], None],
) -> None:
    job = dai.connect(f"{federated.url}/lab", retries=0).submit(stuck)
    until(lambda: at_work(sides) == [1, 1])
    with federated.client() as client:
        assert client.post(f"/jobs/{job.id}/phase", content="PHASE=ABORT", headers=FORM).status_code == 200
    seconds = until(lambda: not any(at_work(sides)))
    record_property("seconds until the statements ended", round(seconds, 3))
    print(f"the statements had ended after {seconds:.3f} s")
    assert job.wait(60).phase == "ABORTED"
