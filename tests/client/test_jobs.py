import json
import re
from pathlib import Path

import pytest

from dai.client import Job, Options, Service
from dai.client.service import Resource
from dai.client.testing import Request, Scripted, ScriptedServer
from dai.errors import (
    CancelledError,
    DeniedError,
    LimitError,
    NotFoundError,
    RequestError,
    StatementError,
    TruncatedError,
)
from dai.formats import media_type
from dai.streams.cancellation import Cancellation
from tests.client.replies import TABLE, arrow, arrow_bytes, problem, said

RUNNING = said({"id": "17", "phase": "EXECUTING", "activities": [{"activity": "q", "rows": 5}]})
DONE = said({"id": "17", "phase": "COMPLETED", "outputs": [{"name": "rows"}]})
ACCEPTED = Scripted(202, b"{}", {"Location": "http://other:1/jobs/17", "Content-Type": "application/json"})


def job_of(server: ScriptedServer) -> Job:
    return Job(Service(server.url).transport, "17")


def test_a_query_as_a_job() -> None:
    with ScriptedServer(ACCEPTED, RUNNING, DONE, DONE, arrow()) as server:
        resource = Resource(Service(server.url), "data", {})
        job = resource.submit("select ?", 7, blocksize=3)
        assert job.id == "17"
        assert server.requests[0].headers["prefer"] == "respond-async"
        assert json.loads(server.requests[0].body) == {"sql": "select ?", "parameters": [7], "blocksize": 3}
        assert job.wait() is job
        assert job.phase == "COMPLETED"
        assert [each.target for each in server.requests[1:]] == ["/jobs/17?wait=20"] * 2
        assert job.result().arrow().equals(TABLE)
        assert server.requests[-1].target == "/jobs/17/outputs/rows"


def test_a_document_as_a_job() -> None:
    with ScriptedServer(ACCEPTED) as server:
        Resource(Service(server.url), "data", {}).submit(" <perform/>")
        assert server.requests[0].target == "/resources/data/perform"
        assert server.requests[0].headers["prefer"] == "respond-async"


PERFORMED = Scripted(
    202,
    b'<gridDataServiceResponse><result name="deliver" status="UNSTARTED"/><request id="17" status="PROCESSING"/>'
    b"</gridDataServiceResponse>",
    {"Location": "/jobs/17", "Content-Type": "application/xml"},
)
FAILED = {"id": "17", "phase": "ERROR", "error": {"type": "denied", "detail": "It may not deliver there."}}
ABORTED = said({"id": "17", "phase": "ABORTED"})


def test_a_document_that_only_delivers_is_waited_for() -> None:
    with ScriptedServer(PERFORMED, RUNNING, DONE) as server:
        response = Resource(Service(server.url), "data", {}).perform("<perform/>")
        assert response.job.finished
        assert response.status == response.results["deliver"].status == "COMPLETED"
    with ScriptedServer(PERFORMED, RUNNING, said(FAILED)) as server, pytest.raises(DeniedError, match="not deliver"):
        Resource(Service(server.url), "data", {}).perform("<perform/>")


@pytest.mark.parametrize("stream", ["inputStream", "outputStream"])
def test_a_document_with_streams_goes_on(stream: str) -> None:
    with ScriptedServer(PERFORMED) as server:
        response = Resource(Service(server.url), "data", {}).perform(f"<perform><{stream}/></perform>")
        assert response.job.id == "17"
        assert response.status == "PROCESSING"
        assert len(server.requests) == 1


def test_a_cancellation_aborts_what_is_waited_for() -> None:
    cancellation = Cancellation()

    def running(request: Request) -> Scripted:
        cancellation.cancel()
        return RUNNING

    with ScriptedServer(PERFORMED, running, ABORTED) as server, pytest.raises(CancelledError, match="was cancelled"):
        Resource(Service(server.url), "data", {}).perform("<perform/>", cancellation=cancellation)
    assert server.requests[2].target == "/jobs/17/phase"


def test_an_interrupt_aborts_what_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> Job:
        raise KeyboardInterrupt

    monkeypatch.setattr(Job, "refresh", interrupted)
    with ScriptedServer(PERFORMED, ABORTED) as server, pytest.raises(KeyboardInterrupt):
        Resource(Service(server.url), "data", {}).perform("<perform/>")
    assert server.requests[-1].target == "/jobs/17/phase"


def test_progress() -> None:
    with ScriptedServer(RUNNING) as server:
        job = job_of(server)
        assert job.progress == [{"activity": "q", "rows": 5}]
        assert not job.finished
        assert job.error is None
        assert repr(job) == "<Job 17: EXECUTING>"


def test_a_failed_job_raises_its_error() -> None:
    failed = {"id": "17", "phase": "ERROR", "error": {"type": "sql-error", "detail": "division by zero"}}
    with ScriptedServer(said(failed)) as server, pytest.raises(StatementError, match="division by zero"):
        job_of(server).result()
    with ScriptedServer(said({"id": "17", "phase": "ABORTED"})) as server, pytest.raises(CancelledError):
        job_of(server).result()


def test_waiting_is_bounded_where_that_is_wanted() -> None:
    with ScriptedServer(RUNNING) as server:
        with pytest.raises(LimitError, match="EXECUTING after 0 seconds"):
            job_of(server).wait(0)
        assert server.requests[0].target == "/jobs/17"


def test_an_interrupt_ends_the_waiting_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    with ScriptedServer(RUNNING) as server:
        job = job_of(server)
        refresh = job.refresh

        def interrupted(wait: int = 0) -> Job:
            refresh(wait)
            raise KeyboardInterrupt

        monkeypatch.setattr(job, "refresh", interrupted)
        with pytest.raises(KeyboardInterrupt, match=r"goes on. Stop it: job\.abort\(\), or dai jobs 17 --abort"):
            job.wait()
        assert [each.method for each in server.requests] == ["GET"]


def test_aborting_what_has_ended_is_no_error() -> None:
    with ScriptedServer(problem(409, type="conflict", detail="It has ended."), DONE) as server:
        job_of(server).abort()


def test_results_by_name() -> None:
    two = said({"id": "17", "phase": "COMPLETED", "outputs": [{"name": "rows"}, {"name": "count"}]})
    with ScriptedServer(two) as server:
        with pytest.raises(RequestError, match=r"(?s)2 results.*rows, count"):
            job_of(server).result()
        with pytest.raises(NotFoundError, match="Did you mean 'rows'"):
            job_of(server).result("row")


def test_a_result_that_is_no_table_comes_as_it_is() -> None:
    count = Scripted(body=b'<resultStream updateCount="7"/>', headers={"Content-Type": "application/xml"})
    with ScriptedServer(DONE, count, DONE, count) as server:
        assert job_of(server).result().text() == '<resultStream updateCount="7"/>'
        assert server.requests[-1].headers["accept"] == f"{media_type('arrow')}, */*;q=0.1"
        job_of(server).result(format="csv")
        assert server.requests[-1].headers["accept"] == "text/csv"


def test_listing_and_deleting() -> None:
    two = [
        {"id": "1", "phase": "QUEUED", "resource": "a"},
        {"id": "2", "phase": "COMPLETED", "resource": "b"},
    ]
    listed = said({"jobs": two})
    with ScriptedServer(listed, listed, listed, listed, Scripted(204)) as server:
        service = Service(server.url)
        assert [job.id for job in service.jobs()] == ["1", "2"]
        assert repr(service.jobs()) == "<Job 1: QUEUED>\n<Job 2: COMPLETED>"
        assert [job.id for job in Resource(service, "b", {}).jobs()] == ["2"]
        job = next(iter(service.jobs()))
        job.delete()
        assert (server.requests[-1].method, server.requests[-1].target) == ("DELETE", "/jobs/1")


class Losing:
    """A service that keeps a result and loses the connection after ``step`` bytes, whatever it is asked for."""

    def __init__(self, data: bytes, step: int, changes: bool = False) -> None:
        self.data, self.step, self.changes, self.asked = data, step, changes, 0

    def __call__(self, request: Request) -> Scripted:
        if "/outputs/" not in request.target:
            return DONE
        self.asked += 1
        start = 0
        headers = {"Content-Type": media_type("arrow"), "ETag": '"1"', "Accept-Ranges": "bytes"}
        if wanted := request.headers.get("range"):
            assert request.headers["if-range"] == '"1"'
            if self.changes:
                return Scripted(200, self.data, headers)
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1])
            headers["Content-Range"] = f"bytes {start}-{len(self.data) - 1}/{len(self.data)}"
        piece = self.data[start : start + self.step]
        return Scripted(206 if start else 200, piece, headers, broken=start + self.step < len(self.data))


def service_of(server: ScriptedServer) -> Service:
    return Service(server.url, Options(backoff=0.001))


def test_a_result_whose_transfer_breaks_off_is_read_on(tmp_path: Path) -> None:
    losing = Losing(arrow_bytes(), 100)
    with ScriptedServer(losing) as server:
        job = Job(service_of(server).transport, "17")
        assert job.result().bytes() == arrow_bytes()
        assert losing.asked == -(-len(arrow_bytes()) // 100)
        job.result().save(tmp_path / "result")
        assert (tmp_path / "result").read_bytes() == arrow_bytes()


def test_a_result_of_tuples_is_read_on() -> None:
    with ScriptedServer(Losing(arrow_bytes(), 300)) as server:
        assert Job(service_of(server).transport, "17").result().arrow().equals(TABLE)


def test_a_result_that_changed_or_never_comes_is_not_put_together() -> None:
    for losing in (Losing(arrow_bytes(), 300, changes=True), Losing(arrow_bytes(), 0)):
        with ScriptedServer(losing) as server, pytest.raises(TruncatedError):
            Job(service_of(server).transport, "17").result().bytes()
