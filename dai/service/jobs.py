"""Runs jobs: documents that outlive their request, with the phases of IVOA UWS 1.1
(https://www.ivoa.net/documents/UWS/).

::

    PENDING ──run──> QUEUED ──a worker is free──> EXECUTING ──> COMPLETED
       │                │                             ├───────> ERROR     failed, or the service was stopped or killed
       └────abort───────┴──────────abort──────────────┴───────> ABORTED

The state database has the jobs and their progress; the results are files (``dai.service.results``). Both are destroyed
at the job's destruction time. If a service dies, its queued and running jobs become ERROR when it starts again.
"""

from __future__ import annotations

import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
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
    LimitError,
    NotFoundError,
    RequestError,
)
from dai.formats import format_named
from dai.formats.inline import tables_of
from dai.perform.activity import Source
from dai.perform.graph import EndPoint
from dai.perform.parser import DocumentLimits, Perform, parse, query
from dai.perform.pipeline import Environment, Running
from dai.perform.progress import Report
from dai.security.audit import Audit, digest
from dai.security.identity import Caller
from dai.service.quotas import Quotas
from dai.service.results import Results, Writer
from dai.service.sessions import Request, Session, Sessions
from dai.service.store import Job, Store
from dai.streams.cancellation import SETTLE_SECONDS, Cancellation
from dai.streams.stream import Encoded, Stream
from dai.streams.tally import Tally
from dai.streams.tracing import Span

log = logging.getLogger("dai.service.jobs")

PENDING, QUEUED, EXECUTING = "PENDING", "QUEUED", "EXECUTING"
COMPLETED, ERROR, ABORTED = "COMPLETED", "ERROR", "ABORTED"
MOVES = {
    PENDING: {QUEUED, ABORTED},
    QUEUED: {EXECUTING, ABORTED, ERROR},
    EXECUTING: {COMPLETED, ABORTED, ERROR},
}
"""For each phase the phases that may follow. A phase without an entry is final."""
ACTIVE = frozenset({QUEUED, EXECUTING})
BEGINNING = 160
"""Characters of a job's first statement that are kept."""
PLACE_SECONDS = 0.05
"""How often a job looks for a place that a job of another process has left."""
STORED_FORM = "arrow"
"""The format of stored tabular results, which the service converts to any other format."""


@dataclass(slots=True)
class _Live:
    """A queued or running job of this process."""

    cancellation: Cancellation
    session: Session
    perform: Perform
    request: Request
    holding: ExitStack
    """Ends the request of the job."""
    running: Running | None = None
    aborted: bool = False


def document_limits(limits: LimitsConfig) -> DocumentLimits:
    """The limits of a perform document, from the configuration."""
    return DocumentLimits(bytes=limits.document_bytes, depth=limits.document_depth, activities=limits.activities)


def exceeded(limits: LimitsConfig, rows: int, size: int) -> LimitError | None:
    """The error for a result of so many rows and bytes; None if it is within the limits."""
    for most, actual, what in ((limits.rows, rows, "rows"), (limits.bytes, size, "bytes")):
        if most and actual > most:
            return LimitError(
                f"The result has more than the {most:,} {what} allowed (limits.{what} of this service).",
                hint="Request less (LIMIT, fewer columns) or in parts, or pull it through an outputStream, which has "
                f"no such limit, or ask for a higher limits.{what} in the configuration.",
                limit=f"limits.{what}",
            )
    return None


Traced = Callable[[str, str, Span | None], Span | None]
"""The span of a job of that id, of a resource, which was made by a request with that span."""


def _handed_on(job: str, resource: str, request: Span | None) -> Span | None:
    return request


def _failed(running: Running) -> bool:
    return running.cause is not None


def report_values(report: Report) -> dict[str, Any]:
    """The progress of one activity as values for JSON."""
    values = {each.name: getattr(report, each.name) for each in dataclasses.fields(report)}
    values["seconds"] = round(report.seconds, 6)
    values["error"] = report.error.problem() if report.error is not None else None
    values["parts"] = [dataclasses.asdict(each) for each in report.parts]
    return values


def beginning_of(perform: Perform) -> str:
    """Of the first statement on one line; without any, the activities."""
    texts = (getattr(each, "expression", None) for each in perform.activities)
    first = next((each for each in texts if isinstance(each, str)), None)
    text = " ".join((first or ", ".join(each.element for each in perform.activities)).split())
    return text if len(text) <= BEGINNING else text[: BEGINNING - 1] + "…"


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
        self._driver_of, self._scratch = driver_of, scratch
        self._config_of = config_of or (lambda resource: Config(limits=limits))
        self._lock = threading.Lock()
        self._live: dict[str, _Live] = {}
        self._listeners: dict[str, set[Callable[[], None]]] = {}
        self._taken, self._running = taken or Tally(), running or Tally()
        self._quotas, self._audit = quotas or Quotas(QuotasConfig(), store), audit or Audit(None)
        self._traced = traced or _handed_on
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
        """Creates a job; ``kind`` is ``perform`` or ``query`` and says what ``request`` is. Queues it unless
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
        queued = dataclasses.replace(job, phase=QUEUED)
        with self._admitted(perform, session) as live, self._lock:
            self._check_stopping()
            self._add(queued)
            if span is not None:
                self._spans[job.id] = span
            try:
                self._enqueue(queued, live)
            except BusyError:
                self.store.remove(job.id)
                self._spans.pop(job.id, None)
                raise
        return queued

    def _add(self, job: Job) -> None:
        """QuotaError where that is one too many of its owner's. It counts itself: of two that come at once in two
        processes both may be refused, but never both taken."""
        self.store.add(job)
        try:
            self._quotas.check_job(job.owner or "")
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
            queued = self.store.change(job, {PENDING}, phase=QUEUED)
            if queued is None:
                raise ConflictError(f"Job {id} has left the phase PENDING meanwhile.")
            try:
                self._enqueue(queued, live)
            except BusyError:
                self.store.change(queued, {QUEUED}, phase=PENDING)
                raise
        self._call(id)
        return queued

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
                f"A job is kept for {most:,.0f} seconds from its creation at most (limits.job_seconds_most).",
                hint="Set an earlier time, and fetch its results before.",
            )
        changed = self.store.change(job, {PENDING, QUEUED, EXECUTING, COMPLETED, ERROR, ABORTED}, destruction=when)
        if changed is None:
            raise NotFoundError(f"There is no job {id!r} any more.")
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
        at_work = sum(1 for each in live if each.running is not None)
        return at_work, len(live) - at_work

    # --- running ----------------------------------------------------------------------------------------------------

    def _check_stopping(self) -> None:
        if self._stopping:
            raise BusyError("The service stops.", retry_after=10)

    def _check_queue(self) -> None:
        self._check_stopping()
        if self._taken.total >= self._most():
            raise self._full()

    def _most(self) -> int:
        return self.limits.jobs + self.limits.job_queue

    def _full(self) -> BusyError:
        return BusyError(f"{self.limits.job_queue} jobs wait already; no more are taken.", retry_after=30)

    def _parsed(self, job: Job) -> Perform:
        if job.kind == "query":
            content = orjson.loads(job.request)
            return query(
                content["sql"],
                content.get("parameters") or (),
                tables_of(content, self.limits.table_bytes),
                limit=content.get("limit"),
                truncate=content.get("truncate") or False,
            )
        return parse(job.request, document_limits(self.limits))

    @contextmanager
    def _admitted(self, perform: Perform, session: Session | None) -> Iterator[_Live]:
        """Takes a place in the queue and creates the request's streams, which clients may open before the job starts.
        Both are released when the block raises, else when the job has ended."""
        self._check_queue()
        session = session or self.sessions.implicit()
        cancellation = Cancellation()
        with ExitStack() as stack:
            request = stack.enter_context(session.request(cancellation, perform.activities))
            holding = stack.pop_all()
        try:
            yield _Live(cancellation, session, perform, request, holding)
        except BaseException:
            holding.close()
            raise

    def _enqueue(self, job: Job, live: _Live) -> None:
        """Gives the job to a worker. Call it with the lock that was taken before the store got QUEUED, so that whoever
        stops the job finds it. Raises BusyError if no worker takes it; then the caller must restore the phase in the
        store."""

        def work() -> None:
            with self._lock:
                refused = self._live.get(job.id) is not live
            if refused:  # The executor may still queue a job for which it could not start a thread.
                return
            try:
                with self._place(live):
                    self._work(job, live)
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
                f"The resource {job.resource!r} has the {most:,} jobs already that may be queued or run "
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

    @contextmanager
    def _place(self, live: _Live) -> Iterator[None]:
        """A context with a place among the jobs that run. Other processes may have them all: waits until one is free or
        the job is stopped."""
        taken = False
        while not (taken or live.cancellation.cancelled):
            if not (taken := self._running.take(1, self.limits.jobs)):
                time.sleep(PLACE_SECONDS)
        try:
            yield
        finally:
            if taken:
                self._running.add(-1)

    def _release(self, live: _Live) -> None:
        """Ends the request, so that readers of its streams get an error. A second call does nothing."""
        with self._lock:
            holding = live.holding.pop_all()
        if live.perform.session is not None and live.perform.session.end:
            self.sessions.end(live.session)
        holding.close()

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

    def _work(self, job: Job, live: _Live) -> None:
        started = self.store.change(job, {QUEUED}, phase=EXECUTING, started=time.time())
        if started is None:
            live.request.error = live.cancellation.cause or CancelledError("The job was aborted.")
            return
        error: DaiError | None = None
        outputs: list[dict[str, Any]] = []
        span = live.cancellation.span = self._traced(job.id, job.resource, self._spans.pop(job.id, None))
        try:
            live.cancellation.check()
            seconds = self._config_of(job.resource).limits.execution_seconds
            with self._in_time(live, seconds), Running(live.perform, self._environment(job, live)) as running:
                live.running = running
                self._call(job.id)
                running.open()
                outputs = self._collect(job, running, live.cancellation)
                running.raise_cause()
        except DaiError as caught:
            error = live.cancellation.cause or caught
        except Exception as caught:
            log.error("job failed", exc_info=caught, extra={"job": job.id})
            error = InternalError("The service failed at this job; its log says more under the job's id.")
        if error is not None and live.running is not None:
            error.with_commits(live.running.committed)
        live.request.error = error
        reports = live.running.reports() if live.running is not None else ()
        phase = COMPLETED if error is None else ABORTED if live.aborted else ERROR
        if phase != COMPLETED:
            self.results.remove(job.id)
            outputs = []
        traced = {}
        if span is not None:
            span.end(error)
            traced["trace_id"] = span.trace_id
        ended = self.store.change(
            started,
            {EXECUTING},
            phase=phase,
            ended=time.time(),
            outputs=outputs,
            activities=[report_values(each) for each in reports] or started.activities,
            error=error.problem(job.id) if error is not None else None,
        )
        if ended is None:
            self.results.remove(job.id)
        code = error.code if error is not None else None
        log.info("job ended", extra={"job": job.id, "phase": phase, "error": code, **traced})
        self._audit.record(
            "job",
            job=job.id,
            caller=job.owner,
            resource=job.resource,
            database_user=job.database_user,
            document=digest(job.request),
            phase=phase,
            outcome=code or "ok",
            **traced,
            rows=sum(each["rows"] for each in outputs),
            bytes=sum(each["bytes"] for each in outputs),
            seconds=round(time.time() - (started.started or job.created), 6),
        )

    @contextmanager
    def _in_time(self, live: _Live, seconds: float) -> Iterator[None]:
        """A context that cancels its work, in the database too, when it takes longer than a job may."""
        error = LimitError(
            f"The job ran longer than the {seconds:g} seconds allowed (limits.execution_seconds).",
            hint="Request less or in parts, or ask for a higher limits.execution_seconds in the configuration.",
            limit="limits.execution_seconds",
        )
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), live.cancellation.cancel, [error])
        timer.daemon = True
        if seconds:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _environment(self, job: Job, live: _Live) -> Environment:
        driver = self._driver_of(job)
        return Environment(
            driver, live.session, live.cancellation, job.blocksize, self._scratch, self._config_of(job.resource)
        )

    def _collect(self, job: Job, running: Running, cancellation: Cancellation) -> list[dict[str, Any]]:
        """Writes every end point into its own file."""
        outputs: list[dict[str, Any]] = []
        limits, quota = self._config_of(job.resource).limits, self._quotas.fits(job.owner or "")

        def check(rows: int, size: int) -> None:
            if (error := exceeded(limits, rows, size)) is not None:
                raise error
            quota(size)

        for end, source in running.end_points():
            if _failed(running):
                # the job ends as ERROR and keeps nothing
                source.close()
                continue
            with source, self.results.writer(job.id, len(outputs)) as writer:
                try:
                    outputs.append(self._kept(end, source, writer, outputs, check))
                except DaiError:
                    # what failed in the pipeline is known to it; what failed here stops the job
                    if not _failed(running):
                        raise
        return outputs

    def _kept(
        self,
        end: EndPoint,
        source: Source,
        writer: Writer,
        before: Sequence[Mapping[str, Any]],
        check: Callable[[int, int], None],
    ) -> dict[str, Any]:
        tabular = isinstance(source, Stream) or (isinstance(source, Encoded) and end.tabular)
        if isinstance(source, Stream):
            source = Encoded(source, format_named(STORED_FORM))
        if tabular and isinstance(source, Encoded):
            source = source.recoded(format_named(STORED_FORM), {"compression": "zstd"}).in_pieces()
        rows = 0
        rows_before, bytes_before = (sum(each[counted] for each in before) for counted in ("rows", "bytes"))
        for block in source:
            rows += block.rows
            check(rows_before + rows, bytes_before + writer.written + len(block))
            writer.write(block.data)
        writer.finish()
        return {
            "name": end.name,
            "tabular": tabular,
            "media_type": source.media_type,
            "file": writer.index,
            "rows": rows,
            "bytes": writer.written,
        }

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
