"""Updates of a catalog to its indexes: all its names at intervals, and changes in between. An index that gets no update
for a while forgets the catalog (``LASTING`` times the period of updates).

A partition is sent the names that fit its pattern: a regular expression (RE2) that must match the whole name, or a
Unix pattern behind ``glob:``.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

import re2

from dai.config import ReplicasConfig
from dai.errors import DaiError
from dai.replicas.catalog.catalog import Catalog
from dai.replicas.catalog.operations import Changes, Index
from dai.replicas.codes import Code, Refused
from dai.replicas.filters import Filter, arrow
from dai.replicas.members import Members
from dai.replicas.names import like

log = logging.getLogger("dai.replicas")

LASTING = 2.5
FILTERED = 1
"""The flag of an index that is sent a filter."""
MOST_CHANGES = 100_000
"""Names that changed and are remembered; beyond that all are sent."""
AT_ONCE = 8


class Receiver(Protocol):
    """How an index is receiver. Each raises DaiError where it was not."""

    def names(self, url: str, expected: int, portions: Iterable[Sequence[str]], seconds: float) -> None: ...

    def filter(self, url: str, names: Filter, seconds: float) -> None: ...

    def changes(self, url: str, added: Sequence[str], removed: Sequence[str], seconds: float) -> bool:
        """False where the index has to be sent all names."""
        ...

    def withdraw(self, url: str) -> None: ...


def fitting(pattern: str) -> Callable[[str], object]:
    """Whether a name fits the pattern of a partition. Refused for a pattern that cannot be read."""
    if not pattern:
        return lambda name: True
    if pattern.startswith("glob:"):
        written = like(pattern.removeprefix("glob:"))
        pattern = "".join(_expression(written))
    try:
        options = re2.Options()
        options.log_errors = False
        return re2.compile(pattern, options=options).fullmatch  # type: ignore[no-any-return]
    except re2.error:
        raise Refused(Code.BADARG, f"the pattern {pattern[:60]!r} is no regular expression") from None


def _expression(pattern: str) -> Iterator[str]:
    characters = iter(pattern)
    for each in characters:
        if each == "\\":
            yield re2.escape(next(characters))
        else:
            yield {"%": "(?s:.*)", "_": "(?s:.)"}.get(each, re2.escape(each))


class Updates:
    """Sends, in a thread of its own, what ``catalog`` has to its indexes. ``told`` makes, of the URL
    of an index, what tells it of changes."""

    def __init__(
        self,
        catalog: Catalog,
        settings: ReplicasConfig,
        url: str,
        receiver: Callable[[str], Receiver],
        members: Members | None = None,
    ) -> None:
        self._catalog, self._settings, self._url, self._receiver = catalog, settings, url, receiver
        self._members = members
        self._changes = Changes()
        self._count = 0
        self._first = 0.0
        self._due: dict[Index, float] = {}
        self._sent: dict[str, float] = {}
        self._now = True
        self._closed = False
        self._condition = threading.Condition()
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="replica update")
        catalog.listeners.append(self._changed)
        self._thread = threading.Thread(target=self._run, name="replica updates", daemon=True)
        self._thread.start()

    def _changed(self, changes: Changes) -> None:
        with self._condition:
            if changes.all or self._count > MOST_CHANGES:
                self._due.clear()
                self._changes, self._count = Changes(), 0
            self._changes.then(changes)
            if not self._count:
                self._first = time.monotonic()
            self._count += len(changes.added) + len(changes.removed)
            if changes.all or self._count >= self._settings.changes:
                self._condition.notify()

    def now(self) -> None:
        """All names are sent to all indexes as soon as can be."""
        with self._condition:
            self._now = True
            self._due.clear()
            self._condition.notify()

    def configure(self, settings: ReplicasConfig) -> None:
        """Other periods."""
        with self._condition:
            self._settings = settings
            self._condition.notify()

    def targets(self) -> list[Index]:
        flags = FILTERED if self._settings.filters else 0
        urls = dict.fromkeys((*self._settings.indexes, *(self._members.urls if self._members is not None else ())))
        own = [Index(url, flags) for url in urls]
        return own + [each for each in self._catalog.indexes() if each.url not in urls]

    def sent(self, url: str) -> float:
        """When the index was last told, in seconds since 1970; 0: never."""
        return self._sent.get(url, 0.0)

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._now, self._pause())
                if self._closed:
                    return
                self._now = False
                changes, self._changes, count, self._count = self._changes, Changes(), self._count, 0
            if self._members is not None:
                self._members.look()
            try:
                targets = self.targets()
            except DaiError as error:
                log.warning("the indexes to tell are not known", extra={"error": error.code})
                continue
            list(self._pool.map(partial(self._tell, changes if count else None), targets))

    def _pause(self) -> float:
        """Seconds until something is due."""
        if self._count >= self._settings.changes:
            return 0.0
        pause = min(self._settings.update_seconds, self._settings.change_seconds) / 4
        if self._count:
            pause = min(pause, max(0.0, self._first + self._settings.change_seconds - time.monotonic()))
        return pause

    def _tell(self, changes: Changes | None, index: Index) -> None:
        lasting = LASTING * self._settings.update_seconds
        try:
            receiver = self._receiver(index.url)
            fits = fitting(index.pattern)
            if self._due.get(index, 0.0) <= time.monotonic():
                self._all(receiver, index, fits, lasting)
            elif changes is not None:
                added = [each for each in changes.added if fits(each)]
                removed = [each for each in changes.removed if fits(each)]
                # a name cannot be taken out of a filter: the index is wrong of it until it is sent the next
                if (added or removed) and not receiver.changes(self._url, added, removed, lasting):
                    self._all(receiver, index, fits, lasting)
            else:
                return
            self._sent[index.url] = time.time()
        except (DaiError, Refused) as error:
            # what has changed meanwhile is in the next, which has everything
            self._due.pop(index, None)
            log.warning("an index was not told", extra={"index": index.url, "detail": str(error)})

    def _all(self, receiver: Receiver, index: Index, fits: Callable[[str], object], lasting: float) -> None:
        expected = self._catalog.counts()["logical"]
        portions: Iterable[Sequence[str]] = self._catalog.logical_names()
        if index.pattern:
            portions = ([each for each in names if fits(each)] for names in portions)
        if index.flags & FILTERED:
            receiver.filter(self._url, Filter.of((arrow(each) for each in portions), expected), lasting)
        else:
            receiver.names(self._url, expected, portions, lasting)
        self._due[index] = time.monotonic() + self._settings.update_seconds

    def close(self) -> None:
        """The indexes forget the catalog, as far as they can be receiver."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()
        for url in list(self._sent):
            try:
                self._receiver(url).withdraw(self._url)
            except DaiError as error:
                log.info("an index was not told of the end", extra={"index": url, "error": error.code})
        self._pool.shutdown()
        if self._members is not None:
            self._members.close()
