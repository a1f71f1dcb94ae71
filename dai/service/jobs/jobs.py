"""The jobs of one service: what clients ask for, the queue, and the keeping."""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from dai.config import Config, LimitsConfig, QuotasConfig
from dai.drivers import Driver
from dai.errors import (
    BusyError,
    CancelledError,
    ConflictError,
    DaiError,
    DatabaseUnavailableError,
    GoneError,
    InternalError,
    NotFoundError,
    RequestError,
)
from dai.formats.inline import tables_of
from dai.perform.parser import Perform, parse, query
from dai.perform.pipeline.progress import Report
from dai.security.audit import Audit
from dai.security.identity import Caller
from dai.service.jobs.execution import Execution, Live, Traced, handed_on
from dai.service.jobs.phases import ABORTED, ACTIVE, COMPLETED, ERROR, EXECUTING, MOVES, PENDING, QUEUED
from dai.service.jobs.progress import beginning_of, report_values
from dai.service.limits import document_limits
from dai.service.quotas import Quotas
from dai.service.results import Results
from dai.service.sessions import Session, Sessions
from dai.service.state.store import Job, Store
from dai.streams.cancellation import SETTLE_SECONDS, Cancellation
from dai.streams.tally import Tally
from dai.streams.tracing import Span

log = logging.getLogger("dai.service.jobs")

PLACE_SECONDS = 0.05
"""How often a job looks for a place that a job of another process has left."""


class Jobs:
    """The jobs of one service; thread-safe. ``taken`` counts those that are queued or run, ``running`` those that run,
    in other processes of the service too. A process runs the jobs that it owns."""

    def __init__(
        self,
        store: Store,
        results: Results,
        sessions: Sessions,
        limits: LimitsConfig,
        driver_of: Callable[[Job], Driver],
        scratch: Path | None = None,
        config_of: Callable[[str], Config] | None = None,
        *,
        taken: Tally | None = None,
        running: Tally | None = None,
        quotas: Quotas | None = None,
        audit: Audit | None = None,
        traced: Traced | None = None,
    ) -> None:
        self.store, self.results, self.sessions, self.limits = store, results, sessions, limits
        self._config_of = config_of or (lambda resource: Config(limits=limits))
        self._lock, self._counting = threading.Lock(), threading.Lock()
        self._live: dict[str, Live] = {}
        self._listeners: dict[str, set[Callable[[], None]]] = {}
        self._taken, self._running = taken or Tally(), running or Tally()
        self._quotas = quotas or Quotas(QuotasConfig(), store)
        self._execution = Execution(
            *(store, results, driver_of, scratch, self._config_of, self._quotas),
            audit or Audit(None),
            traced or handed_on,
            begun=self._call,
        )
        self._spans: dict[str, Span] = {}
        """Of the requests that made the jobs which have not begun."""
        self._workers = ThreadPoolExecutor(limits.jobs, thread_name_prefix="job")
        self._stopping = False

    # --- requests of clients ----------------------------------------------------------------------------------------

    def submit(
        self,
        resource: str,
        kind: str,
        request: bytes,
        perform: Perform,
        session: Session | None = None,
        *,
        blocksize: int | None = None,
        owner: str | None = None,
        database_user: str | None = None,
        pending: bool = False,
        span: Span | None = None,
        label: str | None = None,
    ) -> Job:
        """Creates a job; ``kind`` is ``perform`` or ``query`` and says what ``request`` is. Starts or queues it unless
        ``pending``. ``span``: that of the request. Raises BusyError if the queue is full, or the resource has as many
        jobs as it may have."""
        now = time.time()
        job = Job(
            id=self.sessions.identities.new(),
            service=self.store.service,
            resource=resource,
            phase=PENDING,
            kind=kind,
            request=request,
            created=now,
            destruction=now + self.limits.job_seconds,
            session=session.id if session is not None and (session.explicit or not pending) else None,
            owner=owner,
            database_user=database_user,
            blocksize=blocksize,
            activities=[report_values(Report(each.name, each.element)) for each in perform.activities],
            label=label,
            beginning=beginning_of(perform),
        )
        if pending:
            self._add(job)
            if span is not None:
                self._spans[job.id] = span
            return job
        with self._admitted(perform, session) as live, self._lock:
            self._check_stopping()
            job = dataclasses.replace(job, **self._start(live))
            self._add(job)
            if span is not None:
                self._spans[job.id] = span
            try:
                self._enqueue(job, live)
            except BusyError:
                self.store.remove(job.id)
                self._spans.pop(job.id, None)
                raise
        return job

    def _add(self, job: Job) -> None:
        """QuotaError where that is one too many of its owner's. It counts itself: of two that come at once in two
        processes both may be refused, but never both taken."""
        unended = self.store.add(job)
        try:
            self._quotas.check_job(job.owner or "", unended)
        except DaiError:
            self.store.remove(job.id)
            raise

    def run(self, id: str, check: Callable[[Job, Perform], None] | None = None) -> Job:
        """Starts a pending job, unless ``check`` raises. Raises ConflictError in any other phase."""
        job = self.get(id)
        if job.phase != PENDING:
            raise ConflictError(f"Job {id} is {job.phase}; only a PENDING job can be run.")
        session = self.sessions.get(job.session) if job.session else None
        perform = self._parsed(job)
        if check is not None:
            check(job, perform)
        with self._admitted(perform, session) as live, self._lock:
            self._check_stopping()
            taken = self.store.change(job, {PENDING}, **self._start(live))
            if taken is None:
                raise ConflictError(f"Job {id} left the phase PENDING meanwhile.")
            try:
                self._enqueue(taken, live)
            except BusyError:
                self.store.change(taken, {taken.phase}, phase=PENDING, started=None)
                raise
        self._call(id)
        return taken

    def abort(self, id: str) -> Job:
        """Stops a job; returns when it is ABORTED, or when its work has been cancelled. Raises ConflictError for a job
        that has ended otherwise."""
        job = self.get(id)
        if job.phase == ABORTED:
            return job
        if job.phase not in MOVES:
            raise ConflictError(f"Job {id} is {job.phase} and cannot be aborted.")
        return self._stopped(job, "The job was aborted.") or self.get(id)

    def delete(self, id: str) -> None:
        """Stops a job and deletes it with its results."""
        self._stopped(self.get(id), "The job was deleted.")
        self.store.remove(id)
        self.results.remove(id)
        self._spans.pop(id, None)

    def get(self, id: str, caller: Caller | None = None) -> Job:
        """The job with its present progress. Raises NotFoundError if there is none, or none that the ``caller``
        sees."""
        job = self.store.get(id)
        if job is None or not (caller is None or caller.sees(job.owner, job.resource)):
            raise NotFoundError(f"There is no job {id!r}; it may have been destroyed.", hint="GET /jobs lists them.")
        return self._with_progress(job)

    def listed(
        self, phases: frozenset[str] = frozenset(), limit: int | None = None, owner: str | None = None
    ) -> list[Job]:
        """The jobs, newest first, without their requests; those of an ``owner``, who may be nobody, or all."""
        return [self._with_progress(job) for job in self.store.listed(phases, limit, owner)]

    def set_destruction(self, id: str, when: float) -> Job:
        """Sets the time when the job and its results are destroyed. RequestError for one that is too late."""
        job = self.get(id)
        most = max(self.limits.job_seconds_most, self.limits.job_seconds)
        if when > job.created + most:
            raise RequestError(
                f"A job can be kept for at most {most:,.0f} seconds after its creation (limits.job_seconds_most).",
                hint="Set an earlier time, and fetch its results before.",
            )
        changed = self.store.change(job, {PENDING, QUEUED, EXECUTING, COMPLETED, ERROR, ABORTED}, destruction=when)
        if changed is None:
            raise NotFoundError(f"There is no longer a job {id!r}.")
        return changed

    def output(self, job: Job, name: str) -> dict[str, Any]:
        """One result: ``name``, ``tabular``, ``media_type``, ``file``, ``rows``, ``bytes``.

        Raises ConflictError before the job has ended, GoneError if it failed, NotFoundError for an unknown name.
        """
        if job.phase in MOVES:
            raise ConflictError(
                f"Job {job.id} is {job.phase}; it has no results yet.", hint=f"GET /jobs/{job.id}?wait=30 waits for it."
            )
        if job.phase != COMPLETED:
            why = (job.error or {}).get("detail") or "it was aborted"
            raise GoneError(f"Job {job.id} ended as {job.phase} and kept no result: {why}")
        for each in job.outputs:
            if each["name"] == name:
                return each
        names = ", ".join(each["name"] for each in job.outputs) or "none"
        raise NotFoundError(f"Job {job.id} has no result {name!r}.", hint=f"Its results: {names}.")

    def count_forms(self, id: str) -> None:
        """Counts what the results of a job take in other forms as its owner's, too."""
        with self._counting:
            job = self.get(id)
            outputs = [{**each, "forms": self.results.forms(id, each["file"])} for each in job.outputs]
            self.store.change(job, {COMPLETED}, outputs=outputs)

    @contextmanager
    def listening(self, id: str, listener: Callable[[], None]) -> Iterator[None]:
        """A context in which ``listener`` is called, from any thread, when the phase of the job changes. Contexts begin
        and end in one thread."""
        self._listeners.setdefault(id, set()).add(listener)
        try:
            yield
        finally:
            self._listeners[id].discard(listener)
            if not self._listeners[id]:
                del self._listeners[id]

    def counts(self) -> tuple[int, int]:
        """The numbers of running and of queued jobs."""
        live = list(self._live.values())
        at_work = sum(1 for each in live if each.placed)
        return at_work, len(live) - at_work

    # --- running ----------------------------------------------------------------------------------------------------

    def _check_stopping(self) -> None:
        if self._stopping:
            raise BusyError("The service is stopping.", retry_after=10)

    def _check_queue(self) -> None:
        self._check_stopping()
        if self._taken.total >= self._most():
            raise self._full()

    def _most(self) -> int:
        return self.limits.jobs + self.limits.job_queue

    def _full(self) -> BusyError:
        return BusyError(
            f"The service already has {self.limits.job_queue} jobs in its queue; it takes no more.", retry_after=30
        )

    def _parsed(self, job: Job) -> Perform:
        if job.kind == "query":
            content = orjson.loads(job.request)
            return query(
                content["sql"],
                content.get("parameters") or (),
                tables_of(content, self.limits.table_bytes),
                limit=content.get("limit"),
                truncate=content.get("truncate") or False,
                numeric=content.get("numeric"),
            )
        return parse(job.request, document_limits(self.limits))

    @contextmanager
    def _admitted(self, perform: Perform, session: Session | None) -> Iterator[Live]:
        """Takes a place in the queue and creates the request's streams, which clients may open before the job starts.
        Both are released when the block raises, else when the job has ended."""
        self._check_queue()
        session = session or self.sessions.implicit()
        cancellation = Cancellation()
        with ExitStack() as stack:
            request = stack.enter_context(session.request(cancellation, perform.activities))
            holding = stack.pop_all()
        try:
            yield Live(cancellation, session, perform, request, holding)
        except BaseException:
            holding.close()
            raise

    def _enqueue(self, job: Job, live: Live) -> None:
        """Gives the job to a worker. Call it with the lock that was taken before the store got its phase, so that
        whoever stops the job finds it. Raises BusyError if no worker takes it; then the caller must restore the phase
        in the store."""

        def work() -> None:
            with self._lock:
                refused = self._live.get(job.id) is not live
            if refused:  # The executor may still queue a job for which it could not start a thread.
                return
            try:
                if job.phase == QUEUED:
                    self._await_place(live)
                self._execution.run(job, live, self._spans.pop(job.id, None))
            except Exception as error:
                log.error("job failed outside its work", exc_info=error, extra={"job": job.id})
                live.request.error = InternalError("The service could not keep the state of this job.")
                with suppress(DaiError):  # its state may be away for longer
                    self._interrupted(job, live.request.error)
            finally:
                with self._lock:
                    self._live.pop(job.id, None)
                self._taken.add(-1)
                self._release(live)
                self._call(job.id)

        most = self._config_of(job.resource).limits.resource_jobs
        # it counts itself: of two that come at once in two processes both may be refused, but never both taken
        if most and self.store.active(job.resource) > most:
            raise BusyError(
                f"The resource {job.resource!r} already has the {most:,} jobs that may be queued or run "
                "(limits.resource_jobs, policy.jobs).",
                hint="Try again when one has ended.",
                retry_after=30,
            )
        if not self._taken.take(1, self._most()):
            raise self._full()
        try:
            self._workers.submit(work)
        except RuntimeError as error:
            self._taken.add(-1)
            log.error("no worker takes a job", exc_info=error, extra={"job": job.id})
            raise BusyError("The service cannot start another job now.", retry_after=10) from error
        self._live[job.id] = live

    def _start(self, live: Live) -> dict[str, Any]:
        """What becomes of a job that is taken: it executes where one of our workers and a place are free, else it is
        queued. Call it with the lock."""
        if len(self._live) < self.limits.jobs and self._take_place(live):
            return {"phase": EXECUTING, "started": time.time()}
        return {"phase": QUEUED}

    def _take_place(self, live: Live) -> bool:
        """Takes a place among the jobs that run, which the end of the request leaves; False where none is free. Call it
        with the lock."""
        if not self._running.take(1, self.limits.jobs):
            return False
        live.placed = True
        live.holding.callback(self._running.add, -1)
        return True

    def _await_place(self, live: Live) -> None:
        """Other processes may have them all: waits until one is free or the job is stopped."""
        while not live.cancellation.cancelled:
            with self._lock:
                if self._take_place(live):
                    return
            time.sleep(PLACE_SECONDS)

    def _release(self, live: Live) -> None:
        """Ends the request, so that readers of its streams get an error. A second call does nothing."""
        with self._lock:
            holding = live.holding.pop_all()
        with holding:
            if live.perform.session is not None and live.perform.session.end:
                self.sessions.end(live.session)

    def _stopped(self, job: Job, why: str) -> Job | None:
        """Cancels a job. One that has not started ends at once, but keeps its place in the queue until a worker takes
        it out. Returns the job after that."""
        changed = self.store.change(job, {PENDING, QUEUED}, phase=ABORTED, ended=time.time())
        with self._lock:
            live = self._live.get(job.id)
        if live is not None:
            live.aborted = True
            live.cancellation.cancel(CancelledError(why))
            if changed is not None:
                live.request.error = live.cancellation.cause
                self._release(live)
        self._call(job.id)
        return changed

    # --- keeping ----------------------------------------------------------------------------------------------------

    def recover(self) -> int:
        """Sets the jobs that the last process left unfinished to ERROR; returns their number. Call it once at start."""
        interrupted = [job for job in self.store.listed(ACTIVE) if self.sessions.identities.owns(job.id)]
        error = InternalError("The service stopped while this job was queued or running.", hint="Submit it again.")
        for job in interrupted:
            self._interrupted(job, error)
        stored = self.results.jobs_with_files()
        self.results.sweep(stored - self.store.of_others(), {job.id for job in self.store.listed({COMPLETED})})
        return len(interrupted)

    def _interrupted(self, job: Job, error: DaiError) -> None:
        values = {"phase": ERROR, "ended": time.time(), "error": error.problem(job.id), "outputs": []}
        self.store.change(job, ACTIVE, **values)
        self.results.remove(job.id)

    def reap(self, now: float | None = None) -> int:
        """Destroys the jobs of this process whose destruction time has come; returns their number."""
        due = [id for id in self.store.due(time.time() if now is None else now) if self.sessions.identities.owns(id)]
        for id in due:
            try:
                self.delete(id)
            except NotFoundError:
                continue
        return len(due)

    def stop(self, grace: float) -> None:
        """Accepts no more jobs, waits ``grace`` seconds for the running ones, then stops them and sets them to ERROR,
        even if their database does not answer. Returns when all have ended."""
        with self._lock:
            self._stopping = True
        self._await_all(grace)
        cause = DatabaseUnavailableError("The service stopped while this job was running.", hint="Submit it again.")
        for live in list(self._live.values()):
            live.cancellation.cancel(cause)
        self._await_all(SETTLE_SECONDS)
        for id, live in list(self._live.items()):
            log.warning("job abandoned: its database does not answer", extra={"job": id})
            if (job := self.store.get(id)) is not None:
                self._interrupted(job, cause)
            live.request.error = cause
            self._release(live)
            self._call(id)
        self._workers.shutdown(wait=True)

    def _await_all(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._live and time.monotonic() < deadline:
            time.sleep(0.02)

    def progress(self) -> dict[str, list[dict[str, Any]]]:
        """That of the activities of each running job of this process."""
        live = list(self._live.items())
        return {
            id: [report_values(each) for each in job.running.reports()] for id, job in live if job.running is not None
        }

    def _with_progress(self, job: Job) -> Job:
        live = self._live.get(job.id)
        if live is None or live.running is None or job.phase != EXECUTING:
            return job
        return dataclasses.replace(job, activities=[report_values(each) for each in live.running.reports()])

    def _call(self, id: str) -> None:
        for listener in list(self._listeners.get(id, ())):
            listener()
