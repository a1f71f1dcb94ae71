"""Runs one job: its document runs, its results go into files, and the store records how it ended."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dai.config import Config
from dai.drivers import Driver
from dai.errors import CancelledError, DaiError, InternalError, LimitError, of_memory
from dai.formats import format_named
from dai.perform.activity import Source
from dai.perform.graph import EndPoint
from dai.perform.parser import Perform
from dai.perform.pipeline import Environment, Running
from dai.security.audit import Audit, digest
from dai.service.jobs.phases import ABORTED, COMPLETED, ERROR, EXECUTING, QUEUED
from dai.service.jobs.progress import report_values
from dai.service.limits import exceeded
from dai.service.quotas import Quotas
from dai.service.results import Results, Writer
from dai.service.sessions import Request, Session
from dai.service.state.store import Job, Store
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block, Encoded, Stream
from dai.streams.tracing import Span

log = logging.getLogger("dai.service.jobs")

STORED_FORM = "arrow"
"""The format of stored tabular results, which the service converts to any other format."""


@dataclass(slots=True)
class Live:
    """A queued or running job of this process."""

    cancellation: Cancellation
    session: Session
    perform: Perform
    request: Request
    holding: ExitStack
    """Ends the request of the job."""
    placed: bool = False
    """It has a place among the jobs that run."""
    running: Running | None = None
    aborted: bool = False


Traced = Callable[[str, str, Span | None], Span | None]
"""The span of a job of that id, of a resource, which was made by a request with that span."""


def handed_on(job: str, resource: str, request: Span | None) -> Span | None:
    return request


@dataclass(frozen=True, slots=True)
class Execution:
    """Runs jobs. ``begun`` is called when the document of a job is about to run."""

    store: Store
    results: Results
    driver_of: Callable[[Job], Driver]
    scratch: Path | None
    config_of: Callable[[str], Config]
    quotas: Quotas
    audit: Audit
    traced: Traced
    begun: Callable[[str], None]

    def run(self, job: Job, live: Live, request: Span | None) -> None:
        """``request``: the span of the request that made the job."""
        started: Job | None = job
        if job.phase == QUEUED:
            started = self.store.change(job, {QUEUED}, phase=EXECUTING, started=time.time())
        if started is None:
            live.request.error = live.cancellation.cause or CancelledError("The job was aborted.")
            return
        error: DaiError | None = None
        outputs: list[dict[str, Any]] = []
        span = live.cancellation.span = self.traced(job.id, job.resource, request)
        try:
            live.cancellation.check()
            seconds = self.config_of(job.resource).limits.execution_seconds
            with self._in_time(live, seconds), Running(live.perform, self._environment(job, live)) as running:
                live.running = running
                self.begun(job.id)
                running.open(here=True)
                outputs = self._collect(job, running, live.cancellation)
                running.raise_cause()
        except DaiError as caught:
            error = live.cancellation.cause or caught
        except Exception as caught:
            log.error("job failed", exc_info=caught, extra={"job": job.id})
            error = of_memory(caught) or InternalError(
                "The service failed at this job; its log has the cause under the job's id."
            )
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
        self.audit.record(
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
    def _in_time(self, live: Live, seconds: float) -> Iterator[None]:
        """A context that cancels its work, in the database too, when it takes longer than a job may."""
        error = LimitError(
            f"The job ran longer than the {seconds:g} seconds allowed (limits.execution_seconds).",
            hint="Request less, or in parts; or ask the operator of the service for a higher limits.execution_seconds.",
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

    def _environment(self, job: Job, live: Live) -> Environment:
        driver = self.driver_of(job)
        return Environment(
            driver, live.session, live.cancellation, job.blocksize, self.scratch, self.config_of(job.resource)
        )

    def _collect(self, job: Job, running: Running, cancellation: Cancellation) -> list[dict[str, Any]]:
        """Writes every end point into its own file."""
        outputs: list[dict[str, Any]] = []
        limits = self.config_of(job.resource).limits

        def check(rows: int, size: int) -> None:
            if (error := exceeded(limits, rows, size)) is not None:
                raise error
            quota(size)

        with self.quotas.storing(job.owner or "") as quota:
            for end, source in running.end_points():
                if running.cause is not None:
                    # the job ends as ERROR and keeps nothing
                    source.close()
                    continue
                with source, self.results.writer(job.id, len(outputs)) as writer:
                    try:
                        outputs.append(self._keep(end, source, writer, outputs, check))
                    except DaiError:
                        # what failed in the pipeline is known to it; what failed here stops the job
                        if running.cause is None:
                            raise
        return outputs

    def _keep(
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
        blocks: Iterator[Block] = source
        if tabular and isinstance(source, Encoded):
            source = source.recoded(format_named(STORED_FORM), {"compression": "zstd"})
            blocks = source.pieces()
        rows = 0
        rows_before, bytes_before = (sum(each[counted] for each in before) for counted in ("rows", "bytes"))
        for block in blocks:
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
