"""The service is killed, or told to stop, while requests and jobs run."""

import http.client
import re
import signal
import threading
from typing import Any

import httpx
import pytest

import dai
from dai.client import Result
from dai.errors import TruncatedError, UnreachableError
from tests.faults.conftest import Database, Start
from tests.faults.test_database_restart import stream_document
from tests.processes import ServiceProcess, until

FORMS = ("arrow", "webrowset", "csv", "parquet", "json")


def finished_job(service: ServiceProcess, sql: str) -> tuple[str, dict[str, bytes]]:
    """A completed job and its result in every form."""
    lab = dai.connect(f"{service.url}/lab")
    job = lab.submit(sql)
    assert job.wait().phase == "COMPLETED"
    lab.close()
    return job.id, outputs(service, job.id)


def outputs(service: ServiceProcess, job: str) -> dict[str, bytes]:
    with service.client() as client:
        answers = {form: client.get(f"/jobs/{job}/outputs/result?format={form}") for form in FORMS}
    assert {answer.status_code for answer in answers.values()} == {200}
    return {form: answer.content for form, answer in answers.items()}


def working_job(service: ServiceProcess, sql: str) -> str:
    """A job that has written some of its result."""
    lab = dai.connect(f"{service.url}/lab")
    job = lab.submit(sql)
    until(lambda: any(path.stat().st_size for path in service.results_directory.glob(f"{job.id}/*.part")))
    lab.close()
    return job.id


def assert_interrupted(service: ServiceProcess, job: str, reason: str) -> None:
    with service.client() as client:
        description = client.get(f"/jobs/{job}").json()
        assert description["phase"] == "ERROR"
        assert reason in description["error"]["detail"]
        assert description["ended"]
        assert client.get(f"/jobs/{job}/outputs/result").status_code == 410
    assert not list(service.results_directory.glob(f"{job}/*"))


def test_a_killed_service_keeps_what_was_finished_and_says_what_was_not(start: Start, database: Database) -> None:
    service = start(resources={"lab": database.server.url})
    sql = database.endless + " limit 5000"
    job, before = finished_job(service, sql)
    with service.client() as client:
        pending = client.post("/resources/lab/query?phase=PENDING", json={"sql": "select 1 as a"}).headers["location"]
    interrupted = working_job(service, database.endless)
    service.kill()
    assert list(service.results_directory.glob(f"{interrupted}/*.part"))
    service.start()
    assert outputs(service, job) == before
    assert_interrupted(service, interrupted, "stopped while this job was queued or running")
    assert not service.leftovers()
    used = sum(path.stat().st_size for path in service.results_directory.glob("*/*"))
    assert service.metrics()["dai_result_bytes"] == used
    with service.client() as client:
        assert client.post(f"{pending}/phase", json={"PHASE": "RUN"}).status_code == 200
        until(lambda: client.get(pending).json()["phase"] == "COMPLETED")
    # the database ends what the killed service had asked for when it finds nobody to send it to
    until(lambda: database.at_work == 0)


def test_a_statement_without_rows_ends_with_a_killed_service(start: Start, database: Database) -> None:
    """It sends nothing that could tell the database that nobody is there any more."""
    service = start(resources={"lab": database.server.url})
    lab = dai.connect(f"{service.url}/lab", retries=0)
    lab.submit(database.stuck)
    until(lambda: database.at_work == 1)
    service.kill()
    until(lambda: database.connections == 0)
    lab.close()


@pytest.mark.parametrize(
    ("database", "number"), [("postgresql", signal.SIGTERM), ("mariadb", signal.SIGINT)], indirect=["database"]
)
def test_a_stopped_service_ends_what_runs_and_leaves_nothing(
    start: Start, database: Database, number: signal.Signals
) -> None:
    service = start(resources={"lab": database.server.url})
    job, before = finished_job(service, "select 1 as a")
    interrupted = working_job(service, database.endless)
    lab = dai.connect(f"{service.url}/lab", retries=0)
    response = lab.perform(stream_document(database.endless), blocksize=1000)
    assert lab.session(id=response.session).pull("out").block()
    connection = http.client.HTTPConnection("127.0.0.1", service.port)
    headers = {"Content-Type": "application/json", "Accept": "text/csv"}
    connection.request("POST", "/resources/lab/query", f'{{"sql": "{database.endless}"}}', headers)
    answer = connection.getresponse()
    assert answer.status == 200
    refused: list[httpx.Response] = []
    stuck = threading.Thread(target=_ask, args=(service.url, database.stuck, refused), daemon=True)
    stuck.start()
    until(lambda: database.at_work == 4)

    assert service.stop(number) == 0
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        answer.read()
    connection.close()
    stuck.join(60)
    assert [(each.status_code, each.json()["detail"]) for each in refused] == [(503, "The service is stopping.")]
    assert refused[0].headers["Retry-After"]
    until(lambda: database.connections == 0)
    assert not service.leftovers()
    assert not list(service.temporary.iterdir())
    assert not re.findall("Traceback.{2000}", service.log.read_text())

    service.start()
    assert outputs(service, job) == before
    assert_interrupted(service, interrupted, "stopped while this job was running")


def _ask(url: str, sql: str, answers: list[httpx.Response]) -> None:
    answers.append(httpx.post(f"{url}/resources/lab/query?format=csv", json={"sql": sql}, timeout=120))


@pytest.mark.parametrize("database", ["mariadb"], indirect=True)
def test_a_request_that_ends_in_time_is_answered_whole(start: Start, database: Database) -> None:
    service = start(resources={"lab": database.server.url}, grace=30)
    sleeping = database.stuck.replace("600", "2")
    got: list[httpx.Response] = []
    asking = threading.Thread(target=_ask, args=(service.url, sleeping, got), daemon=True)
    asking.start()
    until(lambda: database.at_work == 1)
    assert service.stop() == 0
    asking.join(60)
    assert got[0].status_code == 200
    assert got[0].text.startswith("i,s\r\n1,")
    assert got[0].text.endswith("\r\n")


@pytest.mark.parametrize("at_once", [False, True])
def test_a_stream_that_flows_ends_with_a_killed_service(start: Start, database: Database, at_once: bool) -> None:
    """What has arrived is a beginning of the rows, and that it is not all of them is an error."""
    service = start(resources={"lab": database.server.url})
    lab = dai.connect(f"{service.url}/lab", retries=1)
    document = stream_document(database.endless)
    received: list[Any] = []

    def pulled() -> Result:
        if at_once:
            return lab.pull(document, "out", blocksize=100)
        session = lab.session()
        session.perform(document, blocksize=100)
        return session.pull("out").result()

    def read() -> None:
        for batch in pulled():
            received.extend(batch.column(0).to_pylist())
            if service.process is not None and len(received) > 1000:
                service.kill()

    with pytest.raises((TruncatedError, UnreachableError)):
        read()
    assert len(received) > 1000
    assert received == list(range(received[0], received[0] + len(received)))
    lab.close()
