"""Work that is stopped from outside stops in the database."""

import http.client
import json
from collections.abc import Callable, Iterator

import pytest

import dai
from dai.client import Resource
from dai.errors import CancelledError, DaiError, NotFoundError
from tests.faults.conftest import Database, Start
from tests.faults.test_database_restart import stream_document
from tests.processes import ServiceProcess, until

FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def service(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    """One for all: every test leaves it at rest."""
    running = ServiceProcess(tmp_path_factory.mktemp("service"), {"lab": database.server.url})
    try:
        yield running.start()
    finally:
        running.stop()


@pytest.fixture
def lab(service: ServiceProcess) -> Iterator[Resource]:
    actual = dai.connect(f"{service.url}/lab", retries=0)
    yield actual
    actual.close()


@pytest.mark.parametrize("kind", ["endless", "stuck"])
@pytest.mark.parametrize("how", ["abort", "delete"])
def test_a_job(service: ServiceProcess, database: Database, lab: Resource, kind: str, how: str) -> None:
    job = lab.submit(getattr(database, kind))
    until(lambda: database.at_work == 1)
    with service.client() as client:
        if how == "abort":
            answer = client.post(f"/jobs/{job.id}/phase", content="PHASE=ABORT", headers=FORM)
            assert answer.status_code == 200
            assert job.wait(60).phase == "ABORTED"
            assert isinstance(job.error, CancelledError)
        else:
            assert client.delete(f"/jobs/{job.id}").status_code == 204
            with pytest.raises(NotFoundError):
                job.refresh()
    until(lambda: database.at_work == 0)
    until(service.at_rest)
    until(lambda: not list(service.results_directory.glob("*/*")))
    assert service.metrics()["dai_result_bytes"] == 0


@pytest.mark.parametrize("kind", ["endless", "stuck"])
def test_the_session_of_a_stream(service: ServiceProcess, database: Database, lab: Resource, kind: str) -> None:
    response = lab.perform(stream_document(getattr(database, kind)))
    until(lambda: database.at_work == 1)
    with service.client() as client:
        assert client.delete(f"/sessions/{response.session}").status_code == 204
        assert client.get(f"/sessions/{response.session}/streams/out/blocks/0").status_code == 404
    until(lambda: database.at_work == 0)
    until(service.at_rest)
    assert response.job.wait(60).phase == "ERROR"
    assert service.metrics()["dai_sessions"] == 0


@pytest.mark.parametrize("kind", ["endless", "stuck"])
@pytest.mark.parametrize("form", ["text/csv", "application/vnd.apache.arrow.stream"])
def test_a_client_that_vanishes(
    service: ServiceProcess,
    database: Database,
    kind: str,
    form: str,
    record_property: Callable[[str, object], None],
) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    headers = {"Content-Type": "application/json", "Accept": form}
    connection.request("POST", "/resources/lab/query", json.dumps({"sql": getattr(database, kind)}), headers)
    if kind == "endless":
        answer = connection.getresponse()
        assert answer.read(100_000)
        answer.close()
    until(lambda: database.at_work == 1)
    connection.close()
    seconds = until(lambda: database.at_work == 0)
    record_property("seconds until the statement ended", round(seconds, 3))
    print(f"{kind} {form}: the statement had ended after {seconds:.3f} s")
    until(service.at_rest)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_pulled_stream_that_nobody_reads_any_more(start: Start, database: Database) -> None:
    service = start(resources={"lab": database.server.url}, limits={"session_seconds": 10.0})
    lab = dai.connect(f"{service.url}/lab", retries=0)
    response = lab.perform(stream_document(database.endless))
    session = lab.session(id=response.session)
    assert session.pull("out").block()
    until(lambda: database.at_work == 0)
    until(service.at_rest)
    assert service.metrics()["dai_sessions"] == 0
    with pytest.raises(DaiError):
        session.pull("out", start=1).block()
    lab.close()
