"""What all requests of one service share, from its start to its end."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa

from dai.api.admission import Admission
from dai.api.metrics import Metrics
from dai.api.negotiation import media_types
from dai.api.work import Work
from dai.config import Config
from dai.errors import CancelledError, DaiError
from dai.jobs import Jobs
from dai.perform import query
from dai.resources import Resource, Resources
from dai.results import Results
from dai.sessions import Sessions
from dai.store import Store

log = logging.getLogger("dai.api")

REAP_SESSIONS = 1.0
REAP_JOBS = 5.0


ALIVE_SECONDS = 3.0
"""In which a database has to answer when somebody waits for it."""


class Service:
    """Made when the server starts; ConfigurationError for what cannot be. ``close`` undoes it.

    ``workers`` run the pipelines of synchronous requests, ``interrupts`` cancel them, ``control`` does whatever else
    may block: the state database, files, reflection.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        limits = config.limits
        self.resources = Resources(config)
        try:
            self.store = Store(config.service.state, config.service.name)
            self.results = Results(config.service.results_directory, limits.result_bytes)
        except BaseException:
            self.resources.close()
            raise
        self.sessions = Sessions(
            limits.sessions,
            limits.session_seconds,
            limits.block_bytes,
            limits.session_pushed_bytes,
            limits.pushed_bytes,
        )
        # its temporary files have no names: none is left behind, however the service ends
        self.scratch = self.results.directory
        self.jobs = Jobs(
            self.store,
            self.results,
            self.sessions,
            limits,
            lambda name: self.resources.named(name).driver,
            self.scratch,
        )
        self.admission = Admission(limits.concurrent, limits.queue, limits.queue_seconds)
        # What is asked of a role may in turn ask this service for statements: it must not wait for itself.
        self.role_admission = Admission(limits.concurrent, limits.queue, limits.queue_seconds)
        # a request that is being closed may hold a second thread
        self.workers = ThreadPoolExecutor(4 * limits.concurrent, thread_name_prefix="request")
        self.interrupts = ThreadPoolExecutor(8, thread_name_prefix="interrupt")
        # of its own, as each may wait for a database that has stopped: one thread a resource
        self._alive = ThreadPoolExecutor(len(self.resources.values()) or 1, thread_name_prefix="alive")
        self._asked: dict[str, asyncio.Future[bool]] = {}
        self.control = ThreadPoolExecutor(8, thread_name_prefix="control")
        self.metrics = Metrics(self)
        self.working: set[Work] = set()
        interrupted = self.jobs.recover()
        if interrupted:
            log.warning("jobs were interrupted by the last stop", extra={"jobs": interrupted})
        # what the first request would wait for: formats, activities, and pandas, which the first conversion of a
        # Python list imports where it is installed
        media_types()
        query("select 1")
        pa.array([None, 1])
        self._stop = threading.Event()
        self._reaper = threading.Thread(target=self._reap, name="reaper", daemon=True)
        self._reaper.start()

    def _reap(self) -> None:
        jobs_due = 0.0
        while not self._stop.wait(REAP_SESSIONS):
            try:
                self.sessions.reap()
                if time.monotonic() >= jobs_due:
                    self.jobs.reap()
                    jobs_due = time.monotonic() + REAP_JOBS
            except DaiError as error:
                log.warning("reaping failed", extra={"error": error.code})
            except Exception as error:
                log.error("reaping failed", exc_info=error)

    async def alive(self, resource: Resource) -> bool:
        """As ``Driver.alive``; who asks while it is being asked waits for the same answer."""
        asked = self._asked.get(resource.name)
        if asked is None:
            asked = asyncio.get_running_loop().run_in_executor(self._alive, resource.driver.alive, ALIVE_SECONDS)
            self._asked[resource.name] = asked
            asked.add_done_callback(lambda _: self._asked.pop(resource.name))
        return await asyncio.shield(asked)

    def close(self) -> None:
        """Stops what still runs: jobs get their time of grace, requests had theirs from the server."""
        self._stop.set()
        self._reaper.join()
        for work in list(self.working):
            work.cancellation.cancel(CancelledError("The service stops."))
        self.jobs.stop(self.config.service.grace)
        self.sessions.close()
        self.workers.shutdown(wait=True)
        self.interrupts.shutdown(wait=True)
        self.control.shutdown(wait=True)
        self._alive.shutdown(wait=False, cancel_futures=True)
        self.resources.close()
        self.store.close()
