"""Jobs when something comes between: quotas, other processes, requests at the same moment, faults of the service."""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from dai.config import LimitsConfig, QuotaConfig, QuotasConfig
from dai.drivers import Driver, driver_for
from dai.errors import BusyError, ConflictError, DatabaseUnavailableError, NotFoundError, ParameterError, QuotaError
from dai.perform.graph import SessionRequest
from dai.perform.parser import parse, query
from dai.service.identities import Identities
from dai.service.jobs import jobs as module
from dai.service.jobs.jobs import Jobs
from dai.service.jobs.phases import ABORTED, COMPLETED, ERROR, EXECUTING, PENDING, QUEUED
from dai.service.quotas import Quotas
from dai.service.results import Results
from dai.service.sessions import Sessions
from dai.service.state.store import Job, Store
from dai.streams.tally import Tally
from tests.processes import until

ENDLESS = "with recursive c(i) as (select 1 union all select i + 1 from c) select i from c"
DOCUMENT = (
    '<gridDataServicePerform xmlns="http://ogsadai.org.uk/namespaces/2003/07/gds/types">{}</gridDataServicePerform>'
)


@dataclass
class Service:
    """Makes jobs over one SQLite database; ``asked`` is called when a job asks for its driver."""

    directory: Path
    driver: Driver
    asked: Callable[[], None] = lambda: None
    made: list[Jobs] = field(default_factory=list)

    def jobs(self, quotas: QuotasConfig = QuotasConfig(), **options: Any) -> Jobs:  # noqa: B008 - frozen
        store = Store(f"sqlite:///{self.directory / 'state.db'}", "test")
        limits = LimitsConfig(**options.pop("limits", {}))

        def driver_of(_: str) -> Driver:
            self.asked()
            return self.driver

        results, sessions = Results(self.directory / "results"), Sessions(10, 60, 1 << 20)
        jobs = Jobs(store, results, sessions, limits, driver_of, quotas=Quotas(quotas, store), **options)
        self.made.append(jobs)
        return jobs

    def files(self) -> list[Path]:
        return list((self.directory / "results").glob("*/*"))


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    (tmp_path / "data.db").touch()
    driver = driver_for(f"sqlite:///{tmp_path / 'data.db'}")
    service = Service(tmp_path, driver)
    yield service
    for each in service.made:
        each.stop(0)
        each.store.close()
    driver.close()


def submit(jobs: Jobs, sql: str = "select 1 as one", **options: Any) -> Job:
    return jobs.submit("data", "query", b'{"sql": "' + sql.encode() + b'"}', query(sql), **options)


def reached(jobs: Jobs, id: str, *phases: str) -> Job:
    until(lambda: jobs.get(id).phase in phases)
    return jobs.get(id)


def ended(jobs: Jobs, id: str) -> Job:
    return reached(jobs, id, COMPLETED, ERROR, ABORTED)


def test_a_job_beyond_the_quota_of_its_owner_is_not_kept(service: Service) -> None:
    jobs = service.jobs(QuotasConfig(every=QuotaConfig(jobs=1)))
    first = submit(jobs, pending=True, owner="a")
    for pending in (False, True):
        with pytest.raises(QuotaError):
            submit(jobs, pending=pending, owner="a")
    other = submit(jobs, pending=True, owner="b")
    assert {each.id for each in jobs.listed()} == {first.id, other.id}
    assert [each.id for each in jobs.listed(owner="b")] == [other.id]
    assert jobs.counts() == (0, 0)


def test_results_beyond_the_quota_of_the_owner_are_not_kept(service: Service) -> None:
    jobs = service.jobs(QuotasConfig(every=QuotaConfig(result_bytes=2000)))
    kept = ended(jobs, submit(jobs, owner="a").id)
    assert kept.phase == COMPLETED
    large = ended(jobs, submit(jobs, "select hex(randomblob(4000)) as x", owner="a").id)
    assert (large.phase, (large.error or {}).get("type")) == (ERROR, "quota-exceeded")
    assert len(service.files()) == 1
    assert jobs.results.used == kept.outputs[0]["bytes"]


def test_a_pending_document_runs_when_its_check_holds(service: Service) -> None:
    jobs = service.jobs()
    statement = "<expression>select 1 as one</expression>"
    document = DOCUMENT.format(
        f'<sqlQueryStatement name="q">{statement}<webRowSetStream name="x"/></sqlQueryStatement>'
    ).encode()
    job = jobs.submit("data", "perform", document, parse(document), pending=True)

    def refusing(_: Job, perform: Any) -> None:
        raise ParameterError(f"not {perform.activities[0].name}")

    with pytest.raises(ParameterError, match="not q"):
        jobs.run(job.id, refusing)
    assert jobs.get(job.id).phase == PENDING
    jobs.run(job.id, lambda *_: None)
    assert [each["name"] for each in ended(jobs, job.id).outputs] == ["x"]


def test_a_job_that_is_aborted_while_it_is_told_to_run_stays_aborted(service: Service) -> None:
    jobs = service.jobs()
    job = submit(jobs, pending=True)

    def aborted_behind(*_: object) -> None:
        jobs.abort(job.id)

    with pytest.raises(ConflictError, match="left the phase PENDING meanwhile"):
        jobs.run(job.id, aborted_behind)
    assert jobs.get(job.id).phase == ABORTED
    assert jobs.counts() == (0, 0)


def test_a_job_that_is_deleted_while_its_destruction_is_set(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = service.jobs()
    job = submit(jobs, pending=True)
    get = jobs.get

    def deleted_behind(id: str) -> Job:
        job = get(id)
        jobs.store.remove(id)
        return job

    monkeypatch.setattr(jobs, "get", deleted_behind)
    with pytest.raises(NotFoundError, match="no longer"):
        jobs.set_destruction(job.id, 1.0)


def test_a_job_that_is_deleted_at_its_end_leaves_no_results(service: Service) -> None:
    jobs = service.jobs()
    service.asked = lambda: jobs.store.remove(job.id)
    job = submit(jobs, pending=True)
    jobs.run(job.id)
    until(lambda: jobs.counts() == (0, 0))
    assert service.files() == []
    assert jobs.results.used == 0


def test_the_reaper_goes_on_when_a_job_is_deleted_meanwhile(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = service.jobs()
    job = ended(jobs, submit(jobs).id)
    monkeypatch.setattr(jobs.store, "due", lambda now: ["gone", job.id])
    jobs.reap()
    assert jobs.listed() == []
    assert service.files() == []


def test_a_queue_that_other_processes_fill_takes_no_job(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first look at it, too."""
    taken = Tally()
    jobs = service.jobs(limits={"jobs": 1, "job_queue": 1}, taken=taken)
    waiting = submit(jobs, pending=True)
    taken.add(2)
    for look in (True, False):
        if not look:
            monkeypatch.setattr(jobs, "_check_queue", lambda: None)
        for submitted in (lambda: submit(jobs), lambda: jobs.run(waiting.id)):
            with pytest.raises(BusyError, match="already has 1 jobs in its queue"):
                submitted()
        assert [(each.id, each.phase) for each in jobs.listed()] == [(waiting.id, PENDING)]
    taken.add(-2)
    jobs.run(waiting.id)
    assert ended(jobs, waiting.id).phase == COMPLETED


def test_a_job_waits_for_a_place_that_another_process_has(service: Service) -> None:
    running, at_once = Tally(), []
    jobs = service.jobs(limits={"jobs": 1}, running=running)
    service.asked = lambda: at_once.append(running.total)
    running.add(1)
    stopped, job = submit(jobs), submit(jobs)
    jobs.abort(stopped.id)
    until(lambda: jobs.counts() == (0, 1))
    assert jobs.get(job.id).phase == QUEUED
    running.add(-1)
    assert ended(jobs, job.id).phase == COMPLETED
    assert at_once == [1]
    until(lambda: running.total == 0)


def test_a_job_with_a_worker_and_a_place_executes_from_the_beginning(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, held, written = Tally(), threading.Event(), []
    jobs = service.jobs(limits={"jobs": 2}, running=running)
    change = jobs.store.change

    def noted(job: Job, *arguments: Any, **values: Any) -> Job | None:
        written.append(values.get("phase"))
        return change(job, *arguments, **values)

    monkeypatch.setattr(jobs.store, "change", noted)
    service.asked = lambda: held.wait(30)
    first, waiting = submit(jobs), submit(jobs, pending=True)
    second, third = jobs.run(waiting.id), submit(jobs)
    assert [each.phase for each in (first, second, third)] == [EXECUTING, EXECUTING, QUEUED]
    assert running.total == 2
    assert jobs.get(first.id).started == first.started
    assert first.started
    held.set()
    assert {ended(jobs, each.id).phase for each in (first, second, third)} == {COMPLETED}
    assert sorted(written) == [*[COMPLETED] * 3, EXECUTING, EXECUTING]
    until(lambda: running.total == 0)


def test_a_place_is_not_for_a_job_that_waits_behind_others_for_a_worker(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dai.service.jobs.jobs.PLACE_SECONDS", 1)
    running = Tally()
    jobs = service.jobs(limits={"jobs": 1}, running=running)
    running.add(1)
    first = submit(jobs)
    until(lambda: jobs.counts() == (0, 1))
    running.add(-1)
    second = submit(jobs)
    assert first.phase == QUEUED  # on a busy machine it may have ended before the second one comes
    assert {ended(jobs, each.id).phase for each in (first, second)} == {COMPLETED}


def test_a_session_that_cannot_be_ended_keeps_no_place(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    running = Tally()
    jobs = service.jobs(limits={"jobs": 1}, running=running)

    def fails(*_: Any) -> None:
        raise OSError("what the session kept cannot be closed")

    monkeypatch.setattr(jobs.sessions, "end", fails)
    perform = replace(query("select 1 as one"), session=SessionRequest(end=True))
    job = jobs.submit("data", "query", b'{"sql": "select 1 as one"}', perform)
    assert ended(jobs, job.id).phase == COMPLETED
    until(lambda: running.total == 0, 10)


def test_a_fault_of_the_service_is_an_error_of_the_job_that_says_nothing_of_it(service: Service) -> None:
    def fails() -> None:
        raise ZeroDivisionError("a secret")

    service.asked = fails
    jobs = service.jobs()
    job = ended(jobs, submit(jobs).id)
    assert job.phase == ERROR
    assert (job.error or {})["type"] == "internal"
    assert "secret" not in str(job.error)


def test_a_job_whose_state_cannot_be_written_has_failed_and_keeps_no_place(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, running = Tally(), Tally()
    jobs = service.jobs(limits={"jobs": 1, "job_queue": 0}, taken=taken, running=running)
    change = jobs.store.change

    def locked(job: Job, *arguments: Any, **values: Any) -> Job | None:
        if values.get("phase") == COMPLETED:
            raise DatabaseUnavailableError("The database is locked.")
        return change(job, *arguments, **values)

    with monkeypatch.context() as patched:
        patched.setattr(jobs.store, "change", locked)
        failed = ended(jobs, submit(jobs).id)
        assert (failed.phase, (failed.error or {})["type"]) == (ERROR, "internal")
        until(lambda: (taken.total, running.total) == (0, 0))
    assert ended(jobs, submit(jobs).id).phase == COMPLETED


def test_what_is_no_table_is_kept_as_it_is(service: Service) -> None:
    jobs = service.jobs()
    statement = "<expression>create table t (a)</expression>"
    document = DOCUMENT.format(
        f'<sqlUpdateStatement name="u">{statement}<resultStream name="n"/></sqlUpdateStatement>'
    ).encode()
    (output,) = ended(jobs, jobs.submit("data", "perform", document, parse(document)).id).outputs
    assert output["tabular"] is False
    assert [each.read_bytes() for each in service.files()] == [b'<resultStream updateCount="0"/>']


def test_progress_of_the_jobs_at_work(service: Service) -> None:
    jobs = service.jobs()
    job = submit(jobs, ENDLESS)
    reached(jobs, job.id, EXECUTING)
    until(lambda: job.id in jobs.progress())
    assert [each["status"] for each in jobs.progress()[job.id]] == [
        each["status"] for each in jobs.get(job.id).activities
    ]
    jobs.abort(job.id)
    ended(jobs, job.id)
    until(lambda: jobs.progress() == {})


def test_the_end_of_the_service_waits_for_no_database_that_does_not_answer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_SECONDS", 0.0)
    asked, answers = threading.Event(), threading.Event()
    service.asked = lambda: asked.set() or (answers.wait(60) and None)
    jobs = service.jobs()
    job = submit(jobs)
    assert asked.wait(60)
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(jobs.stop, 0)
        abandoned = ended(jobs, job.id)
        assert not stopping.done()
        answers.set()
        stopping.result(60)
    assert abandoned.phase == ERROR
    assert "The service stopped while this job was running" in (abandoned.error or {})["detail"]
    assert jobs.get(job.id) == abandoned
    assert service.files() == []


def test_who_counts_looks_only_into_what_it_owns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may remove a directory between two looks."""
    identities = [Identities(number, 2) for number in range(2)]
    own, other = (tmp_path / each.new() for each in identities)
    for directory in (own, other):
        directory.mkdir()
        (directory / "0").write_bytes(b"12345")

    def without_other(list_: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def listed(path: Any) -> Any:
            if Path(path) == other:
                raise FileNotFoundError(path)
            return list_(path)

        return listed

    for name in ("scandir", "listdir"):
        monkeypatch.setattr(os, name, without_other(getattr(os, name)))
    assert Results(tmp_path, identities=identities[0]).used == 5
