"""Keeps the statistics of tables: asks for them when they are first needed, with a sample, and again when they are
old."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future
from functools import partial
from typing import TypeVar

from dai.drivers.tables import Statistics, TableInfo
from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dqp.catalog.sources.source import Source
from dqp.catalog.statistics.sampling import contradicts, with_sample
from dqp.catalog.threads import Threads

SAMPLE_SECONDS = 1.0
"""So long a query waits for the sample of a table that nobody has asked about before."""
THREADS = 16
T = TypeVar("T")
Key = tuple[str, str | None, str]
"""Alias, schema, name of a table."""


class KeptStatistics:
    """Thread-safe. ``sources``: those that may be asked for the tables of an alias, the best first; ``known``: the
    tables of an alias; ``lifetime`` in seconds."""

    def __init__(
        self,
        sources: Callable[[str], Sequence[Source]],
        known: Callable[[str], Sequence[TableInfo]],
        lifetime: float,
    ) -> None:
        self.version = 0
        """Changes when plans may change."""
        self._sources, self._known, self._lifetime = sources, known, lifetime
        self._lock = threading.Lock()
        self._pool = Threads(THREADS, "dqp-catalog-statistics")
        self._samples = Threads(THREADS, "dqp-catalog-samples")
        self._ending = Cancellation()
        self._statistics: dict[Key, Future[Statistics | None]] = {}
        self._under_way: dict[Key, Future[bool]] = {}
        """Samples that no query waits for any more: whether they contradict the statistics."""
        self._contradicted: dict[Key, float] = {}
        """When one last did."""
        self._read: dict[Key, float] = {}
        self._used: set[Key] = set()

    def of(self, key: Key, *, wait: bool = True) -> Statistics | None:
        """None if the source has none, or (without ``wait``) has not sent them yet."""
        self._used.add(key)
        if wait:
            return self.asked(key).result()
        future = self._statistics.get(key)
        return future.result() if future is not None and future.done() else None

    def asked(self, key: Key) -> Future[Statistics | None]:
        """Those that are kept, or are under way."""
        with self._lock:
            future = self._statistics.get(key)
            if future is None:
                future = self._statistics[key] = self._pool.submit(self._fetched, key, SAMPLE_SECONDS)
                self._read[key] = time.monotonic()
            return future

    def late(self, keys: Iterable[Key], since: float) -> Sequence[Future[bool]]:
        """Of samples for which no query waits, and that are under way or have contradicted after ``since`` (a moment of
        ``time.monotonic``): whether they contradict the statistics, which are replaced by then."""
        if not self._under_way and not self._contradicted:
            return ()
        with self._lock:
            asked = dict.fromkeys(keys)
            late = [self._under_way[each] for each in asked if each in self._under_way]
            if any(self._contradicted.get(each, since) > since for each in asked):
                late.append(_done(True))
        return late

    def forget(self, alias: str) -> None:
        """Those of all tables of the alias: they have changed, or are gone."""
        with self._lock:
            for key in [key for key in self._statistics if key[0] == alias]:
                self._forget(key)

    def refresh(self, alias: str) -> None:
        """Reads those again that are older than their lifetime and were used in it; drops the unused ones."""
        now = time.monotonic()
        with self._lock:
            old = [key for key, read in self._read.items() if key[0] == alias and now - read > self._lifetime]
            for key in old:
                if key not in self._used:
                    self._forget(key)
        for key in old:
            before = self._statistics.get(key)
            if before is None or not before.done():
                continue
            fresh = self._fetched(key, None)
            with self._lock:
                if self._statistics.get(key) is not before:  # the table has changed meanwhile
                    continue
                self._used.discard(key)
                self._read[key] = now
                if fresh is not None and fresh != before.result():
                    self._replace(key, fresh)

    def _fetched(self, key: Key, patience: float | None) -> Statistics | None:
        alias, schema, name = key
        for source in self._sources(alias):
            try:
                statistics = source.statistics(f"{schema}.{name}" if schema else name)
                info = next((each for each in self._known(alias) if (each.schema, each.name) == (schema, name)), None)
                return statistics if info is None else self._sampled(key, source, info, statistics, patience)
            except DaiError:
                continue
        return None

    def _sampled(
        self, key: Key, source: Source, info: TableInfo, known: Statistics, patience: float | None
    ) -> Statistics:
        """The statistics with a sample; one that comes too late for this query is for the next."""
        with self._lock:
            before = self._statistics.get(key)
        try:
            future = self._samples.submit(with_sample, source, info, known, self._ending)
        except RuntimeError:  # the federation is closed
            return known
        try:
            return future.result(patience)
        except CancelledError:
            return known
        except TimeoutError:
            answer: Future[bool] = Future()
            with self._lock:
                self._under_way[key] = answer
            future.add_done_callback(partial(self._late, key, before, known, answer))
            return known

    def _late(
        self,
        key: Key,
        before: Future[Statistics | None] | None,
        known: Statistics,
        answer: Future[bool],
        sampled: Future[Statistics],
    ) -> None:
        outdated = False
        with self._lock:
            if self._under_way.get(key) is answer:
                del self._under_way[key]
            same = not sampled.cancelled() and self._statistics.get(key) is before  # else the table has changed
            if same and (after := sampled.result()) is not known:
                self._replace(key, after)
                outdated = contradicts(after, known)
            if outdated:
                self._contradicted[key] = time.monotonic()
        answer.set_result(outdated)

    def _replace(self, key: Key, statistics: Statistics) -> None:
        """Call it with the lock."""
        self._statistics[key] = _done(statistics)
        self.version += 1

    def _forget(self, key: Key) -> None:
        """Call it with the lock."""
        self._statistics.pop(key, None)
        self._read.pop(key, None)
        self._used.discard(key)
        self._contradicted.pop(key, None)

    def close(self) -> None:
        """Nothing is asked any more; what is under way is cancelled in its database."""
        self._ending.cancel()
        for each in (self._pool, self._samples):
            each.close()


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future
