"""The state that all requests of one service share, from its start to its end."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from dai.api.monitoring.metrics import Gauge, Metrics
from dai.api.monitoring.problems import Problems
from dai.api.monitoring.tracing import Tracing
from dai.api.scheduling.admission import Admission
from dai.api.scheduling.turns import Small, Turns
from dai.api.work import Work
from dai.api.workers.admission import SharedAdmission
from dai.api.workers.member import HOME, Member
from dai.api.workers.table import SharedTally
from dai.config import Config, PolicyConfig
from dai.drivers.connections.interrupts import stuck
from dai.drivers.tables import TableInfo
from dai.errors import CancelledError, DaiError, DatabaseUnavailableError
from dai.formats import FORMATS
from dai.perform.parser import query
from dai.replicas.registration import Registration
from dai.replicas.replicas import Replicas
from dai.security.audit import Audit
from dai.security.identity import Caller, Identification, StoredToken
from dai.security.policies import ANYBODY, policy_for
from dai.security.standing import now
from dai.service.contexts.contexts import Contexts
from dai.service.feeds import Feeds
from dai.service.identities import ALONE
from dai.service.jobs.jobs import Jobs
from dai.service.quotas import Quotas
from dai.service.registry.publisher import Publisher
from dai.service.registry.registry import Registry
from dai.service.registry.sparql.process import Queries
from dai.service.registry.webhooks.sender import Sender
from dai.service.registry.webhooks.store import Webhooks
from dai.service.resources import Resource, Resources
from dai.service.results import Results
from dai.service.sessions import Sessions
from dai.service.state.store import Store
from dai.streams.cancellation import SETTLE_SECONDS
from dai.streams.machine import cores
from dai.streams.tally import Tally

log = logging.getLogger("dai.api")
T = TypeVar("T")

REAP_SESSIONS = 1.0
REAP_JOBS = 5.0


ALIVE_SECONDS = 3.0
"""Seconds in which a database must answer a question that a caller waits for."""
GAUGES, PROGRESS, PROBLEM = "gauges", "progress", "problem "
"""Questions that workers ask each other; the last one has the id of a request."""
ASKED_AT_ONCE = 4
"""Questions about one resource that are asked of its database at once; more wait."""


class Service:
    """Created when the server starts; ConfigurationError for a configuration that cannot work. ``close`` ends
    everything.

    Work that may block has threads of its own, so that no work waits for another kind: ``workers`` run the pipelines of
    synchronous requests, ``interrupts`` cancel them, ``control`` asks the state database, ``files`` reads files and
    large bodies, ``rendering`` writes kept results in other formats. What is asked of the database of a resource
    besides its data (``ask``, ``alive``, ``check``) has threads for each resource.
    """

    def __init__(self, config: Config, member: Member | None = None) -> None:
        self.config, self.member = config, member
        limits = config.limits
        identities = member.identities if member is not None else ALONE
        self.resources = Resources(config)
        with ExitStack() as opened:
            opened.callback(self.resources.close)
            self.store = Store(config.service.state, config.service.name)
            opened.callback(self.store.close)
            if member is None:
                self.store.lease.claim()
            else:
                self.store.lease.join(member.token)
            self.results = Results(
                config.service.results_directory,
                limits.result_bytes,
                identities=identities,
                used=self._tally("result_bytes"),
            )
            opened.pop_all()
        self.metrics = Metrics(member.counters if member is not None else None)
        self.tracing = Tracing(config.telemetry, self.metrics.dropped) if config.telemetry is not None else None
        also = self.tracing.audit() if self.tracing is not None and config.audit.opentelemetry else None
        self.audit = Audit(config.audit.file, also)
        self.quotas = Quotas(config.quotas, self.store)
        self.contexts = Contexts(self.store, limits, self.quotas.check_contexts)
        self.sessions = Sessions(
            limits.sessions,
            limits.session_seconds,
            limits.block_bytes,
            limits.session_bytes,
            limits.sessions_bytes,
            identities=identities,
            count=self._tally("sessions"),
            held=self._tally("stream_bytes"),
            check=partial(self.quotas.check_count, "sessions"),
        )
        self.feeds = Feeds(
            limits,
            identities=identities,
            count=self._tally("feeds"),
            held=self._tally("feed_bytes"),
            check=partial(self.quotas.check_count, "feeds"),
        )
        # its temporary files have no names: none is left behind, however the service ends
        self.scratch = self.results.directory
        self.jobs = Jobs(
            self.store,
            self.results,
            self.sessions,
            limits,
            lambda job: self.resources.named(job.resource).by(job.database_user).driver,
            self.scratch,
            lambda name: self.resources.named(name).config,
            taken=self._tally("jobs"),
            running=self._tally("jobs_running"),
            quotas=self.quotas,
            audit=self.audit,
            traced=self.tracing.job if self.tracing is not None else None,
        )
        places = limits.concurrent, limits.queue, limits.queue_seconds
        self.admission = SharedAdmission(*places, member.table, member.peers) if member else Admission(*places)
        # What is asked of a role may in turn ask this service for statements: it must not wait for itself.
        self.role_admission = Admission(*places)
        self.turns, self.small = Turns(max(2, cores())), Small()
        # a request that is being closed may hold a second thread
        self.workers = ThreadPoolExecutor(4 * limits.concurrent, thread_name_prefix="request")
        self.interrupts = ThreadPoolExecutor(8, thread_name_prefix="interrupt")
        # each may wait for a database that has stopped: for each resource one thread that asks whether its database is
        # alive, one that checks it, and those of ``asked``; one for the state database
        self._questions = ThreadPoolExecutor(1 + (2 + ASKED_AT_ONCE) * len(self.resources), "question")
        self._shared: dict[Callable[..., object], asyncio.Future[object]] = {}
        self._asking = {name: Admission(ASKED_AT_ONCE, limits.queue, limits.queue_seconds) for name in self.resources}
        self.control = ThreadPoolExecutor(8, thread_name_prefix="control")
        self.files = ThreadPoolExecutor(8, thread_name_prefix="file")
        self.rendering = ThreadPoolExecutor(4, thread_name_prefix="render")
        self.problems = Problems()
        seen = member.table.seen if member is not None else None
        self.identification = Identification(config.identity, self._token, seen)
        self.replicas: Replicas | None = None
        # where callers are not identified, services register with their catalogs as they always did
        catalog = None if config.identity.methods else PolicyConfig(write=ANYBODY)
        policy = policy_for("replicas", config.replicas.policy or catalog)
        if config.replicas.policy is None or config.replicas.policy.load is None:
            # an index that anybody could tell names would lead others astray
            policy = dataclasses.replace(policy, load=policy.write)
        self.replicas_policy = policy
        if config.replicas.catalog is not None:
            self.replicas = Replicas(config.replicas, self.scratch, config.registry)
        self.registry: Registry | None = None
        self.registry_policy = policy_for("registry", config.registry.policy or catalog)
        self.registry_queries = Queries(config.registry)
        self.registry_followers: Counter[str] = Counter()
        """By caller."""
        self.webhooks: Webhooks | None = None
        self._sender: Sender | None = None
        if config.registry.store is not None:
            self.registry = Registry(config.registry)
            self.webhooks = Webhooks(self.registry.database)
            if member is None or identities.number == HOME:
                self._sender = Sender(self.registry, self.webhooks, config.delivery, self._follower)
        self.publisher: Publisher | None = None
        if config.registry.url is not None:
            self.publisher = Publisher(config, self.resources, tells=member is None or identities.number == HOME)
        self.registration: Registration | None = None
        if config.replicas.publish and (member is None or identities.number == HOME):
            self.registration = Registration(config.replicas, self._tables, self._rows)
        self.locating = ThreadPoolExecutor(8, thread_name_prefix="replicas")
        self.working: set[Work] = set()
        interrupted = self.jobs.recover()
        if interrupted:
            log.warning("jobs were interrupted by the last stop", extra={"jobs": interrupted})
        # what the first request would wait for: formats, activities, and pandas, which the first conversion of a
        # Python list imports where it is installed
        for each in FORMATS.values():
            each.codec  # noqa: B018
        query("select 1")
        pa.array([None, 1])
        self._stop_until: float | None = None
        self._stop = threading.Event()
        self._reaper = threading.Thread(target=self._reap, name="reaper", daemon=True)
        self._reaper.start()

    @property
    def stuck(self) -> int:
        """Statements that go on though they were stopped long ago."""
        seconds = self.config.limits.stuck_seconds
        return stuck(seconds) if seconds else 0

    def _look_for_stuck(self, before: int) -> int:
        now = self.stuck
        if now > before:
            log.error("statements cannot be stopped", extra={"statements": now})
        if self.member is not None:
            self.member.table.set("stuck", now)
        return now

    def _tables(self, resource: str) -> Sequence[TableInfo]:
        return self.resources.named(resource).driver.tables()

    def _rows(self, resource: str, table: TableInfo) -> int | None:
        name = f"{table.schema}.{table.name}" if table.schema else table.name
        rows = self.resources.named(resource).driver.statistics(name).rows
        return table.rows if rows is None else rows

    def _follower(self, caller: Caller) -> Caller:
        caller = now(caller, self.registry_policy.name, self.config.identity, self.store.tokens(caller.name))
        self.registry_policy.check("read", caller, "look into")
        return caller

    async def _token(self, id: str) -> StoredToken | None:
        return await self.in_control(self.store.token_of, id)

    async def in_control(self, work: Callable[..., T], *arguments: object) -> T:
        """What the work gives, in a thread of ``control``."""
        return await asyncio.get_running_loop().run_in_executor(self.control, work, *arguments)

    def _tally(self, name: str) -> Tally | None:
        """What all workers count together; None where there is one."""
        if self.member is None:
            return None
        return SharedTally(self.member.table, name, self._room if name == "stream_bytes" else None)

    def _room(self, before: int) -> None:
        """Wakes who waits in other workers with a block for which there was no room."""
        limits = self.config.limits
        if self.member is not None and before + limits.block_bytes > limits.sessions_bytes * 3 // 4:
            self.member.peers.wake()

    def _reap(self) -> None:
        jobs_due, stuck = 0.0, 0
        while not self._stop.wait(REAP_SESSIONS):
            try:
                stuck = self._look_for_stuck(stuck)
                self.sessions.reap()
                self.feeds.reap()
                self.resources.tidy()
                if self.replicas is not None:
                    self.replicas.reap()
                if self.registry is not None:
                    self.registry.reap()
                if time.monotonic() >= jobs_due:
                    self.store.lease.check()
                    self.jobs.reap()
                    self.contexts.reap()
                    self.quotas.share()
                    jobs_due = time.monotonic() + REAP_JOBS
            except DaiError as error:
                log.warning("reaping failed", extra={"error": error.code})
            except Exception as error:
                log.error("reaping failed", exc_info=error)

    async def alive(self, resource: Resource) -> bool:
        """As ``Driver.alive``; who asks while it is being asked waits for the same answer. The service asks by its own
        right: one thread for each resource, however many database users."""
        return await asyncio.shield(self._once(self.resources[resource.name].driver.alive, ALIVE_SECONDS))

    async def check(self, resource: Resource) -> None:
        """As ``Driver.check``, and DatabaseUnavailableError after ALIVE_SECONDS; shared as the answer of ``alive``."""
        await self._checked(f"The database of {resource.name}", resource.driver.check)

    async def unreadable(self, resource: Resource) -> Mapping[str, str]:
        """As ``Driver.unreadable``."""
        return await self._once(resource.driver.unreadable)

    async def check_state(self) -> None:
        """The same of the state database."""
        await self._checked("The state database", self.store.lease.check)

    async def _checked(self, name: str, check: Callable[[], object]) -> None:
        try:
            async with asyncio.timeout(ALIVE_SECONDS):
                await asyncio.shield(self._once(check))
        except TimeoutError as error:
            raise DatabaseUnavailableError(f"{name} did not answer within {ALIVE_SECONDS:g} seconds.") from error

    def _once(self, question: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
        """The answer to the question that is being asked already, or to one that is asked now."""
        answer: asyncio.Future[T] | None = self._shared.get(question)  # type: ignore[assignment]
        if answer is None:
            answer = asyncio.get_running_loop().run_in_executor(self._questions, question, *arguments)
            self._shared[question] = answer  # type: ignore[assignment]
            answer.add_done_callback(lambda _: self._shared.pop(question))
            answer.add_done_callback(_heard)
        return answer

    async def ask(self, resource: Resource, question: Callable[..., T], *arguments: object) -> T:
        """What the question gives; it may ask the database of the resource. Waits its turn among the questions about
        this resource: BusyError where it does not come."""
        turns = self._asking[resource.name]
        await turns.acquire()
        answer = asyncio.get_running_loop().run_in_executor(self._questions, question, *arguments)
        # not before the database has answered, though nobody may wait for that any more
        answer.add_done_callback(lambda _: turns.release())
        answer.add_done_callback(_heard)
        return await asyncio.shield(answer)

    def stopping(self) -> None:
        """The time of grace begins, for requests and jobs alike."""
        self._stop_until = time.monotonic() + self.config.service.grace
        self.feeds.close()
        for each in (self.registration, self.publisher):
            if each is not None:
                each.stop()

    @property
    def ending(self) -> bool:
        """Whether requests that wait for new blocks or changes must stop waiting."""
        return self._stop_until is not None or self._stop.is_set()

    def close(self) -> None:
        """Stops what still runs: jobs get what is left of their time of grace, requests had theirs from the server.
        Returns soon after that also where a database does not answer: what waits for it is abandoned."""
        grace = self.config.service.grace
        if self._stop_until is not None:
            grace = max(0.0, self._stop_until - time.monotonic())
        ending = threading.Thread(target=self._end, args=(grace,), name="end", daemon=True)
        ending.start()
        ending.join(grace + 2 * SETTLE_SECONDS)

    def _end(self, grace: float) -> None:
        self._stop.set()
        for work in list(self.working):
            work.cancellation.cancel(CancelledError("The service is stopping."))
        self.jobs.stop(grace)
        self.sessions.close()
        self.feeds.close()
        self._reaper.join()
        for each in (self.workers, self.interrupts, self.control, self.files, self.rendering, self.locating):
            each.shutdown(wait=True)
        for registered in (self.registration, self.publisher):
            if registered is not None:
                registered.close()
        if self.replicas is not None:
            self.replicas.close()
        self.registry_queries.close()
        if self._sender is not None:
            self._sender.close()
        if self.registry is not None:
            self.registry.close()
        self._questions.shutdown(wait=False, cancel_futures=True)
        self.resources.close()
        with suppress(DaiError):
            self.quotas.share()
        self.contexts.close()
        self.store.close()
        self.audit.close()
        if self.tracing is not None:
            self.tracing.close()

    def home_of(self, session: str, resource: str) -> int | None:
        """The other worker to which a document belongs that names the session; None where there is none."""
        if self.member is None or resource not in self.member.shared or self.sessions.identities.owns(session):
            return None
        return self.sessions.identities.owner(session)

    async def gauges(self) -> list[Gauge]:
        """Those of all workers."""
        others = (
            Gauge(name, help, value, tuple((label, text) for label, text in labels))
            for name, help, value, labels in await self._of_others(GAUGES)
        )
        return [*self._gauges(), *others]

    async def progress(self) -> dict[str, list[dict[str, Any]]]:
        """That of the activities of the jobs which other workers run, by job."""
        return {each["job"]: each["activities"] for each in await self._of_others(PROGRESS)}

    async def problem(self, id: str, caller: Caller) -> bytes | None:
        """Why the answer with that id broke off, whichever worker gave it; None where the caller does not see it."""
        kept = self.problems.of(id)
        if not any(caller.sees(owner) for _, owner in kept):
            kept = [(str(problem).encode(), str(owner)) for problem, owner in await self._of_others(PROBLEM + id)]
        return next((problem for problem, owner in kept if caller.sees(owner)), None)

    async def _of_others(self, question: str) -> list[Any]:
        answers: list[Any] = await self.member.peers.ask(question) if self.member is not None else []
        return [each for answer in answers for each in answer]

    def answer(self, question: str) -> list[Any]:
        """What another worker asks for; values for JSON."""
        if question == GAUGES:
            return [[each.name, each.help, each.value, each.labels] for each in self._gauges()]
        if question == PROGRESS:
            return [{"job": id, "activities": activities} for id, activities in self.jobs.progress().items()]
        return [[problem.decode(), owner] for problem, owner in self.problems.of(question.removeprefix(PROBLEM))]

    def woken(self) -> None:
        """Another worker has left places, or room for blocks."""
        if isinstance(self.admission, SharedAdmission):
            self.admission.wake()
        self.sessions.budget.notify()

    def _gauges(self) -> Iterator[Gauge]:
        running, queued = self.jobs.counts()
        both = self.admission, self.role_admission
        yield Gauge("dai_requests_running", "synchronous requests at work", sum(each.running for each in both))
        yield Gauge("dai_requests_queued", "synchronous requests that wait", sum(each.waiting for each in both))
        yield Gauge("dai_jobs_running", "jobs at work", running)
        yield Gauge("dai_jobs_queued", "jobs that wait", queued)
        yield Gauge("dai_sessions", "sessions", len(self.sessions.all()))
        yield Gauge("dai_streams", "streams of sessions", self.sessions.open_streams())
        contents = [mailbox.held for each in self.sessions.all() for _, _, mailbox in each.streams()]
        yield Gauge("dai_stream_blocks", "blocks that wait in streams", sum(blocks for blocks, _ in contents))
        yield Gauge("dai_stream_bytes", "bytes of them", sum(size for _, size in contents))
        yield Gauge("dai_feeds", "feeds", len(feeds := self.feeds.all()))
        yield Gauge("dai_feed_bytes", "bytes that they keep", sum(each.held for each in feeds))
        yield Gauge("dai_followers", "readers who wait for their blocks", self.feeds.followers)
        yield Gauge("dai_result_bytes", "bytes of kept results", self.results.used)
        for name, resource in self.resources.items():
            for state, count in resource.driver.pool_state().items():
                labels = (("resource", name), ("state", state))
                yield Gauge("dai_pool_connections", "database connections", count, labels)


def _heard(answer: asyncio.Future[T]) -> None:
    """Nobody may be left who waits for what it raised."""
    if not answer.cancelled():
        answer.exception()
