import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
import pytest

from dai.config import LimitsConfig
from dai.drivers import Driver, driver_for
from dai.errors import BusyError, CancelledError, ConflictError, DocumentError, GoneError, LimitError, NotFoundError
from dai.perform.parser import parse, query
from dai.service.jobs.execution import Execution
from dai.service.jobs.jobs import Jobs
from dai.service.jobs.phases import ABORTED, COMPLETED, ERROR, EXECUTING, MOVES, PENDING, QUEUED
from dai.service.results import Results
from dai.service.sessions import Sessions
from dai.service.state.store import Job, Store
from dai.streams.cancellation import Cancellation
from tests.processes import until

ENDLESS = "with recursive c(i) as (select 1 union all select i + 1 from c) select i from c"
TWO = """<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">
<sqlQueryStatement name="a"><expression>select 1 as one</expression><webRowSetStream name="x"/></sqlQueryStatement>
<sqlQueryStatement name="b"><expression>select {} as two</expression><webRowSetStream name="y"/></sqlQueryStatement>
</gridDataServicePerform>"""

FED = b"""<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">
<sqlQueryStatement name="q"><expression>select 1 as one</expression><webRowSetStream name="x"/></sqlQueryStatement>
<outputStream name="fed"><fromLocal from="x"/></outputStream>
</gridDataServicePerform>"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    path = tmp_path / "data.db"
    sqlite3.connect(path).close()
    made = driver_for(f"sqlite:///{path}")
    yield made
    made.close()


@pytest.fixture
def jobs(tmp_path: Path, driver: Driver) -> Iterator[Jobs]:
    made = jobs_in(tmp_path, driver)
    yield made
    made.stop(0)
    made.store.close()


def jobs_in(directory: Path, driver: Driver, **limits: float) -> Jobs:
    directory.mkdir(exist_ok=True)
    store = Store(f"sqlite:///{directory / 'state.db'}", "test")
    results = Results(directory / "results")
    return Jobs(store, results, Sessions(10, 60, 1 << 20), LimitsConfig(**limits), lambda _: driver)  # type: ignore[arg-type]


def submit(jobs: Jobs, sql: str, *, pending: bool = False) -> Job:
    request = b'{"sql": "' + sql.encode() + b'"}'
    return jobs.submit("data", "query", request, query(sql), pending=pending)


def reached(jobs: Jobs, id: str, *phases: str) -> Job:
    deadline = time.monotonic() + 90
    while (job := jobs.get(id)).phase not in phases:
        assert time.monotonic() < deadline, job
        time.sleep(0.002)
    return job


def ended(jobs: Jobs, id: str) -> Job:
    return reached(jobs, id, COMPLETED, ERROR, ABORTED)


def test_the_moves_lead_from_every_phase_to_an_end() -> None:
    assert {phase for after in MOVES.values() for phase in after} | {PENDING} == {
        PENDING,
        QUEUED,
        EXECUTING,
        COMPLETED,
        ERROR,
        ABORTED,
    }


def test_outputs_are_files_that_are_whole(jobs: Jobs) -> None:
    document = TWO.format("2").encode()
    job = ended(jobs, jobs.submit("data", "perform", document, parse(document)).id)
    assert job.phase == COMPLETED
    assert [each["name"] for each in job.outputs] == ["x", "y"]
    for each in job.outputs:
        assert jobs.results.path(job.id, each["file"]).stat().st_size == each["bytes"]
        assert jobs.output(job, each["name"]) == each
    with pytest.raises(NotFoundError, match="no result 'z'"):
        jobs.output(job, "z")


def test_one_failure_fails_the_job_and_keeps_nothing(jobs: Jobs) -> None:
    document = TWO.format("abs(-9223372036854775808)").encode()
    job = ended(jobs, jobs.submit("data", "perform", document, parse(document)).id)
    assert job.phase == ERROR
    assert job.error is not None
    assert job.error["type"] == "sql-error"
    assert not list(jobs.results.directory.glob("*/*"))
    with pytest.raises(GoneError):
        jobs.output(job, "x")


def test_what_is_kept_of_a_job_is_small(jobs: Jobs) -> None:
    """A list has a thousand of them: neither names nor messages have megabytes."""
    long = "n" * 1_000_000
    with pytest.raises(DocumentError, match="characters at most"):
        parse(TWO.format("2").replace('name="', f'name="{long}', 1).encode())
    job = ended(jobs, submit(jobs, f"select * from {long}").id)
    assert job.phase == ERROR
    assert "no such table" in str(job.error)
    assert len(orjson.dumps([job.error, job.activities])) < 10_000


def test_a_document_may_end_its_session(jobs: Jobs) -> None:
    session = jobs.sessions.create()
    ends = f'<session id="{session.id}" end="true"/>'
    document = TWO.format("2").replace("<sqlQueryStatement", f"{ends}<sqlQueryStatement", 1).encode()
    job = ended(jobs, jobs.submit("data", "perform", document, parse(document), session).id)
    assert job.phase == COMPLETED
    until(lambda: session.ended)
    assert jobs.sessions.all() == []


def test_what_a_job_that_was_deleted_meanwhile_cannot_do(jobs: Jobs) -> None:
    job = submit(jobs, "select 1 as one", pending=True)
    jobs.delete(job.id)
    for change in (lambda: jobs.run(job.id), lambda: jobs.set_destruction(job.id, 1.0), lambda: jobs.abort(job.id)):
        with pytest.raises(NotFoundError):
            change()  # type: ignore[no-untyped-call]


def test_a_pending_job_runs_when_it_is_told_to(jobs: Jobs) -> None:
    job = submit(jobs, "select 1 as one", pending=True)
    assert job.phase == PENDING
    with pytest.raises(ConflictError, match="no results yet"):
        jobs.output(job, "result")
    jobs.run(job.id)
    assert ended(jobs, job.id).phase == COMPLETED
    with pytest.raises(ConflictError):
        jobs.run(job.id)
    with pytest.raises(ConflictError):
        jobs.abort(job.id)


def test_abort_stops_the_statement(jobs: Jobs, driver: Driver) -> None:
    job = submit(jobs, ENDLESS)
    reached(jobs, job.id, EXECUTING)
    jobs.abort(job.id)
    assert ended(jobs, job.id).phase == ABORTED
    state = driver.pool_state()
    assert state["open"] == state["idle"]
    assert jobs.abort(job.id).phase == ABORTED


def test_deleting_a_job_at_work_stops_it_and_leaves_nothing(jobs: Jobs) -> None:
    job = submit(jobs, ENDLESS)
    reached(jobs, job.id, EXECUTING)
    jobs.delete(job.id)
    with pytest.raises(NotFoundError):
        jobs.get(job.id)
    deadline = time.monotonic() + 90
    while jobs.counts() != (0, 0):
        assert time.monotonic() < deadline
    assert not list(jobs.results.directory.glob("*/*"))
    assert jobs.results.used == 0


def test_listeners_hear_that_a_job_ended(jobs: Jobs) -> None:
    job = submit(jobs, ENDLESS)
    changed = threading.Event()
    with jobs.listening(job.id, changed.set):
        reached(jobs, job.id, EXECUTING)
        changed.clear()
        jobs.abort(job.id)
        assert changed.wait(30)


def test_the_queue_is_bounded(tmp_path: Path, driver: Driver) -> None:
    jobs = jobs_in(tmp_path, driver, jobs=1, job_queue=1)
    first = submit(jobs, ENDLESS)
    reached(jobs, first.id, EXECUTING)
    second = submit(jobs, "select 1 as one")
    with pytest.raises(BusyError):
        submit(jobs, "select 1 as one")
    assert jobs.get(second.id).phase == QUEUED
    jobs.abort(second.id)
    jobs.abort(first.id)
    assert ended(jobs, second.id).phase == ABORTED
    jobs.stop(0)


@pytest.mark.parametrize("how", ["abort", "delete"])
def test_a_queued_job_that_is_stopped_tells_who_reads_its_streams_at_once(
    tmp_path: Path, driver: Driver, how: str
) -> None:
    jobs = jobs_in(tmp_path, driver, jobs=1)
    first = submit(jobs, ENDLESS)
    reached(jobs, first.id, EXECUTING)
    session = jobs.sessions.create()
    second = jobs.submit("data", "perform", FED, parse(FED), session)
    mailbox = session.find_output("fed")
    with ThreadPoolExecutor(1) as thread:
        reading = thread.submit(mailbox.get, 0, Cancellation())
        getattr(jobs, how)(second.id)
        with pytest.raises(CancelledError, match=f"The job was {how}"):
            reading.result(30)
    assert jobs.get(first.id).phase == EXECUTING
    third = jobs.submit("data", "perform", FED, parse(FED), session)
    jobs.abort(first.id)
    assert session.find_output("fed").get(0, Cancellation(), 30)
    jobs.sessions.end(session)
    ended(jobs, third.id)
    jobs.stop(0)


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        ({"rows": 100}, "more than the 100 rows allowed"),
        ({"bytes": 10_000}, "more than the 10,000 bytes allowed"),
        ({"execution_seconds": 0.1}, "longer than the 0.1 seconds allowed"),
    ],
)
def test_a_job_beyond_a_limit_is_stopped_and_keeps_nothing(
    tmp_path: Path, driver: Driver, limits: dict[str, float], says: str
) -> None:
    jobs = jobs_in(tmp_path, driver, **limits)
    job = ended(jobs, submit(jobs, ENDLESS).id)
    assert job.phase == ERROR
    assert job.error is not None
    assert job.error["type"] == "limit-exceeded"
    assert says in job.error["detail"]
    assert not list(jobs.results.directory.glob("*/*"))
    state = driver.pool_state()
    assert state["open"] == state["idle"]
    jobs.stop(0)


def test_the_results_of_a_job_count_together(tmp_path: Path, driver: Driver) -> None:
    document = TWO.format("2").encode()
    for rows, phase in ((1, ERROR), (2, COMPLETED)):
        jobs = jobs_in(tmp_path / str(rows), driver, rows=rows, execution_seconds=600)
        assert ended(jobs, jobs.submit("data", "perform", document, parse(document)).id).phase == phase
        jobs.stop(0)


def test_the_seconds_of_a_request_do_not_end_a_job(tmp_path: Path, driver: Driver) -> None:
    jobs = jobs_in(tmp_path, driver, seconds=1e-9)
    assert ended(jobs, submit(jobs, "select 1 as one").id).phase == COMPLETED
    jobs.stop(0)


def test_a_write_that_fails_is_an_error_and_leaves_nothing(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise LimitError("The disk for job results is full.")

    monkeypatch.setattr("dai.service.results.Writer.finish", full)
    job = ended(jobs, submit(jobs, "select 1 as one").id)
    assert job.phase == ERROR
    assert job.error is not None
    assert "disk for job results is full" in job.error["detail"]
    assert jobs.results.used == 0
    assert not list(jobs.results.directory.glob("*/*"))


def test_stopping_marks_what_is_at_work(tmp_path: Path, driver: Driver) -> None:
    jobs = jobs_in(tmp_path, driver)
    job = submit(jobs, ENDLESS)
    reached(jobs, job.id, EXECUTING)
    jobs.stop(0)
    description = jobs.get(job.id)
    assert description.phase == ERROR
    assert description.error is not None
    assert "service stopped" in description.error["detail"]
    with pytest.raises(BusyError):
        submit(jobs, "select 1 as one")


@pytest.mark.parametrize("pending", [False, True])
def test_a_job_that_comes_when_all_are_stopped_is_refused_and_not_kept_as_queued(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch, pending: bool
) -> None:
    jobs = jobs_in(tmp_path, driver)
    waiting = submit(jobs, ENDLESS, pending=True)
    check = jobs._check_queue

    def stopped_behind() -> None:
        check()
        jobs.stop(0)

    monkeypatch.setattr(jobs, "_check_queue", stopped_behind)
    with pytest.raises(BusyError, match="is stopping"):
        jobs.run(waiting.id) if pending else submit(jobs, ENDLESS)
    assert [(each.id, each.phase) for each in jobs.listed()] == [(waiting.id, PENDING)]


@pytest.mark.parametrize("pending", [False, True])
def test_a_job_that_no_worker_takes_was_never_queued(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch, pending: bool
) -> None:
    jobs = jobs_in(tmp_path, driver, jobs=1)
    first = submit(jobs, ENDLESS)
    reached(jobs, first.id, EXECUTING)
    waiting = submit(jobs, "select 1 as one", pending=True)
    take = jobs._workers.submit

    def kept(work: Callable[[], None]) -> None:
        """As when no thread can be begun: the executor has the work all the same."""
        take(work)
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as refusing:
        refusing.setattr(jobs._workers, "submit", kept)
        with pytest.raises(BusyError, match="cannot start another job now"):
            jobs.run(waiting.id) if pending else submit(jobs, "select 1 as one")
    assert {job.id: job.phase for job in jobs.listed()} == {first.id: EXECUTING, waiting.id: PENDING}
    assert jobs.counts() == (1, 0)
    jobs.run(waiting.id)
    jobs.abort(first.id)
    assert ended(jobs, waiting.id).phase == COMPLETED
    jobs.stop(0)


def test_a_job_that_begins_counts_as_running_at_once(
    tmp_path: Path, driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs, go_on, run = jobs_in(tmp_path, driver, jobs=1), threading.Event(), Execution.run

    def later(execution: Execution, *arguments: Any) -> None:
        assert go_on.wait(60)
        run(execution, *arguments)

    monkeypatch.setattr(Execution, "run", later)
    job = submit(jobs, "select 1 as one")
    assert (job.phase, jobs.counts()) == (EXECUTING, (1, 0))
    go_on.set()
    assert ended(jobs, job.id).phase == COMPLETED
    jobs.stop(0)


def test_recovery_marks_what_a_dead_process_left(tmp_path: Path, driver: Driver) -> None:
    store = Store(f"sqlite:///{tmp_path / 'state.db'}", "test")
    for id, phase in (("a", QUEUED), ("b", EXECUTING), ("c", COMPLETED), ("d", PENDING)):
        store.add(Job(id, "test", "data", phase, "query", b"{}", created=1.0, destruction=1e12))
    store.add(Job("e", "another", "data", EXECUTING, "query", b"{}", created=1.0, destruction=1e12))
    for id in "bcx":
        (tmp_path / "results" / id).mkdir(parents=True)
        (tmp_path / "results" / id / "0").write_bytes(b"whole")
    (tmp_path / "results" / "c" / "1.part").write_bytes(b"half")
    jobs = jobs_in(tmp_path, driver)
    assert jobs.recover() == 2
    assert {job.id: job.phase for job in store.listed()} == {"a": ERROR, "b": ERROR, "c": COMPLETED, "d": PENDING}
    assert [path.relative_to(tmp_path / "results").as_posix() for path in jobs.results.directory.glob("*/*")] == ["c/0"]
    assert jobs.results.used == 5
    assert [job.phase for job in Store(f"sqlite:///{tmp_path / 'state.db'}", "another").listed()] == [EXECUTING]
    jobs.stop(0)


def test_the_reaper_destroys_at_the_destruction_time(jobs: Jobs) -> None:
    job = ended(jobs, submit(jobs, "select 1 as one").id)
    assert jobs.reap(job.destruction - 1) == 0
    jobs.set_destruction(job.id, 5.0)
    assert jobs.reap() == 1
    with pytest.raises(NotFoundError):
        jobs.get(job.id)
    assert not list(jobs.results.directory.glob("*/*"))
