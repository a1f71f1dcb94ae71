"""The database is stopped, or killed, while results stream."""

from collections import deque
from collections.abc import Iterable

import pyarrow as pa
import pytest

import dai
from dai.client import Pull, Resource
from dai.errors import DaiError, DatabaseUnavailableError, TruncatedError
from tests.faults.conftest import Database, Start
from tests.processes import ServiceProcess, until

FORMS = ("arrow", "webrowset", "csv")


def stream_document(sql: str) -> str:
    return (
        '<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">'
        f'<sqlQueryStatement name="q"><expression>{sql}</expression><webRowSetStream name="rows"/></sqlQueryStatement>'
        '<outputStream name="out"><fromLocal from="rows"/></outputStream></gridDataServicePerform>'
    )


def pulled(resource: Resource, sql: str) -> Pull:
    response = resource.perform(stream_document(sql), blocksize=1000)
    return resource.session(id=response.session).pull("out")


def rest(blocks: Iterable[object]) -> None:
    deque(blocks, maxlen=0)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_what_streams_fails_clearly_and_the_pools_recover(start: Start, database: Database, how: str) -> None:
    service: ServiceProcess = start(resources={"lab": database.server.url})
    lab = dai.connect(f"{service.url}/lab", retries=0)
    # connections that will lie idle in the pool while the database goes
    warm = [lab.query("select 1 as one", format=form) for form in FORMS]
    assert [str(result.arrow()["one"][0]) for result in warm] == ["1"] * 3
    threads = service.threads()

    streaming = [iter(lab.query(database.endless, format=form, blocksize=1000)) for form in FORMS]
    pull = pulled(lab, database.endless)
    job = lab.submit(database.endless)
    for each in streaming:
        assert isinstance(next(each), pa.RecordBatch)
    assert pull.block()
    until(lambda: any(each["rows"] for each in job.progress))

    database.server.stop() if how == "stopped" else database.server.kill()
    try:
        for each in streaming:
            with pytest.raises((TruncatedError, DatabaseUnavailableError)):
                rest(each)
        with pytest.raises(DatabaseUnavailableError):
            rest(pull)
        assert job.wait(60).phase == "ERROR"
        assert isinstance(job.error, DatabaseUnavailableError)
        with pytest.raises(DatabaseUnavailableError) as refused:
            lab.query("select 1 as one")
        assert str(database.server.port) not in str(refused.value)
        assert "127.0.0.1" not in str(refused.value)
        until(service.at_rest)
        assert service.metrics()["dai_result_bytes"] == 0
        assert not service.leftovers()
    finally:
        database.server.start()

    for form in FORMS:
        assert lab.query("select 2 as two", format=form).arrow()["two"].cast("int64").to_pylist() == [2]
    assert lab.submit("select 3 as three").result().arrow()["three"].to_pylist() == [3]
    until(service.at_rest)
    open_, idle = service.connections("lab")
    assert open_ == idle
    # the database learns a moment later
    until(lambda: database.connections <= open_)
    until(lambda: database.at_work == 0)
    # a worker of each kind may have been born
    assert service.threads() <= threads + 12
    lab.close()


def test_idle_connections_are_replaced_unseen(start: Start, database: Database) -> None:
    service = start(resources={"lab": database.server.url})
    with service.client() as client:
        answers = [client.post("/resources/lab/query?format=csv", json={"sql": "select 1 as a"}) for _ in range(3)]
        assert {answer.text for answer in answers} == {"a\r\n1\r\n"}
        assert service.connections("lab")[0] > 0
        database.server.restart()
        for form in ("csv", "arrow"):
            answer = client.post(f"/resources/lab/query?format={form}", json={"sql": "select 1 as a"})
            assert answer.status_code == 200, answer.text
        assert client.get("/resources/lab").json()["available"]
        assert client.get("/resources/lab/schema").status_code == 200


def test_a_service_starts_while_its_database_is_away(start: Start, database: Database) -> None:
    database.server.stop()
    try:
        service = start(resources={"lab": database.server.url})
        lab = dai.connect(f"{service.url}/lab", retries=0)
        with pytest.raises(DaiError) as refused:
            lab.query("select 1 as one")
        assert refused.value.status == 503
    finally:
        database.server.start()
    assert lab.query("select 1 as one").arrow().num_rows == 1
    lab.close()
