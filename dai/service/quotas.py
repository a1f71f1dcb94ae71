"""Quotas of each caller: jobs that have not ended, bytes of kept results, bytes of answers a day (UTC),
requests that run or wait, sessions and feeds.

Jobs and results are counted in the state database, so by all processes of the service and through restarts. The bytes
of a day are counted in each process and added up there every REAP_JOBS seconds by ``dai.api``: a caller may have as
much more as leaves in that time, and an answer that has begun is not broken off. Requests, sessions and feeds are
counted in each process alone.
"""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from dai.config import QuotaConfig, QuotasConfig
from dai.errors import QuotaError
from dai.service.state.store import Store

RETRY_SECONDS = 30


class Quotas:
    """Of one process; thread-safe."""

    def __init__(self, config: QuotasConfig, store: Store) -> None:
        self._config, self._store = config, store
        self._lock = threading.Lock()
        self._day, self._total, self._new = _today(), dict[str, int](), dict[str, int]()
        """The bytes by caller that all processes have told, and those that this one has not yet."""
        self._running = dict[str, int]()
        self._writing, self._ended = dict[str, dict[object, int]](), dict[str, int]()
        """By caller: bytes of the results that each job writes, and how many jobs have written theirs."""
        self.counts_bytes = any(each.day_bytes for each in (config.every, *config.callers.values()))
        if self.counts_bytes:
            self.share()

    def of(self, caller: str) -> QuotaConfig:
        return self._config.callers.get(caller, self._config.every)

    def check_day(self, caller: str) -> None:
        """QuotaError where the caller has had the bytes of the day."""
        if not self.counts_bytes or not (most := self.of(caller).day_bytes):
            return
        with self._lock:
            self._begin_day()
            sent = self._total.get(caller, 0) + self._new.get(caller, 0)
        if sent >= most:
            raise QuotaError(
                f"You have used up your {most:,} bytes a day.",
                hint="A new day begins at 00:00 UTC. Ask the operator of the service for a larger quota (day_bytes).",
                retry_after=86_400 - int(time.time()) % 86_400,
                quota="day_bytes",
            )

    def sent(self, caller: str, size: int) -> None:
        if self.counts_bytes and size:
            with self._lock:
                self._begin_day()
                self._new[caller] = self._new.get(caller, 0) + size

    def share(self) -> None:
        """Adds the bytes that this process has sent to the shared count, and reads those of the other processes."""
        if not self.counts_bytes:
            return
        with self._lock:
            self._begin_day()
            day, unshared, self._new = self._day, self._new, {}
        try:
            total = self._store.sent(day, unshared)
        except BaseException:
            with self._lock:
                for name, size in unshared.items():
                    self._new[name] = self._new.get(name, 0) + size
            raise
        with self._lock:
            if self._day == day:
                self._total = total

    def _begin_day(self) -> None:
        """Call it with the lock."""
        if (today := _today()) != self._day:
            self._day, self._total, self._new = today, {}, {}

    def check_job(self, caller: str, unended: int) -> None:
        """QuotaError where the jobs of the caller that have not ended, counting the one that was just added, are more
        than may be, or less than a hundredth of the room for results is left."""
        quota = self.of(caller)
        if quota.jobs and unended > quota.jobs:
            raise QuotaError(
                f"You have {quota.jobs} unfinished jobs, the most that you may have at once.",
                hint="Wait for one to end, or abort one: GET /jobs lists them.",
                retry_after=RETRY_SECONDS,
                quota="jobs",
            )
        if (most := quota.result_bytes) and self._store.result_bytes(caller) > most - most // 100:
            raise self._full(most)

    @contextmanager
    def running(self, caller: str) -> Iterator[None]:
        """A context for a request that runs or waits for its turn. QuotaError where that is one too many."""
        most = self.of(caller).concurrent
        with self._lock:
            count = self._running.get(caller, 0)
            if most and count >= most:
                raise QuotaError(
                    f"You have {most} unfinished requests, the most that you may have at once.",
                    hint="Read their answers to the end, or run long requests as jobs (Prefer: respond-async).",
                    retry_after=RETRY_SECONDS,
                    quota="concurrent",
                )
            self._running[caller] = count + 1
        try:
            yield
        finally:
            with self._lock:
                self._running[caller] -= 1
                if not self._running[caller]:
                    del self._running[caller]

    def check_count(self, kind: Literal["sessions", "feeds"], caller: str, count: int) -> None:
        """QuotaError where the caller has so many of a kind that one more is too many."""
        most: int = getattr(self.of(caller), kind)
        if most and count >= most:
            raise QuotaError(
                f"You have {most} {kind}, the most that you may have at once.",
                hint=f"End those that you no longer need: DELETE /{kind}/ID.",
                retry_after=RETRY_SECONDS,
                quota=kind,
            )

    def check_contexts(self, caller: str, size: int) -> None:
        """QuotaError where the contexts and documents of the caller would have so many bytes."""
        most = self.of(caller).context_bytes
        if most and size > most:
            raise QuotaError(
                f"Your contexts use up the {most:,} bytes that they may have.",
                hint="End those that you no longer need: GET /contexts lists them.",
                retry_after=RETRY_SECONDS,
                quota="context_bytes",
            )

    @contextmanager
    def storing(self, caller: str) -> Iterator[Callable[[int], None]]:
        """A context for a job of the caller, while it writes its results. It gives a function that raises QuotaError
        where so many bytes are too many beside what is kept and what other jobs of this process write."""
        most, job = self.of(caller).result_bytes, object()
        kept, counted = 0, -1

        def check(size: int) -> None:
            nonlocal kept, counted
            with self._lock:
                writing = self._writing.setdefault(caller, {})
                writing[job] = size
                total, ended = sum(writing.values()), self._ended.get(caller, 0)
            if counted != ended:
                kept, counted = self._store.result_bytes(caller), ended
            if kept + total > most:
                raise self._full(most)

        try:
            yield check if most else lambda _: None
        finally:
            with self._lock:
                if self._writing.get(caller, {}).pop(job, None) is not None:
                    self._ended[caller] = self._ended.get(caller, 0) + 1
                if not self._writing.get(caller, job):
                    del self._writing[caller]

    def _full(self, most: int) -> QuotaError:
        return QuotaError(
            f"Your results use up the {most:,} bytes that they may have.",
            hint="Delete jobs whose results you no longer need (GET /jobs lists them), or request less.",
            retry_after=RETRY_SECONDS,
            quota="result_bytes",
        )


def _today() -> str:
    return datetime.datetime.now(datetime.UTC).date().isoformat()
