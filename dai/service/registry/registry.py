"""One registry, as the interfaces read and change it.

A change is acknowledged when it is on the disk; every later request sees it, in whichever process.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

from dai.config import RegistryConfig
from dai.drivers.connections.group_commit import GroupCommit
from dai.service.registry import operations
from dai.service.registry.database import Change, Database
from dai.service.registry.draft import Draft
from dai.service.registry.mirror import Mirror

T = TypeVar("T")
FORGOTTEN = 1000
"""Old changes are forgotten when there are so many new ones."""
_BEGAN = time.time() - time.monotonic()


def steady() -> float:
    """Seconds since 1970 that go on evenly when the system's clock is set, so that no lease ends because of that."""
    return _BEGAN + time.monotonic()


class Registry:
    """Thread-safe. Raises DatabaseUnavailableError."""

    def __init__(self, settings: RegistryConfig, clock: Callable[[], float] = steady) -> None:
        assert settings.store is not None
        self.settings = settings
        self.database = Database(settings.store)
        # a clock that was set back while nobody served does not give leases more time than they have left
        ahead = self.database.latest() - clock()
        self._behind = ahead if 0.0 < ahead <= settings.longest_seconds else 0.0
        self._time = clock
        self._lock = threading.RLock()
        number = self.database.last()
        self._mirror = Mirror(self.database.entries(), number)
        self._forgotten = 0
        self.listeners: list[Callable[[], None]] = []
        """Called when something has changed, by whatever thread."""
        self._writer = GroupCommit("registry", self._transaction)

    def submit(self, operation: Callable[[Draft], T]) -> Future[T]:
        """The result of the operation, once it is on the disk."""

        def whole(draft: Draft) -> T:
            mark = draft.mark()
            try:
                return operation(draft)
            except BaseException:
                draft.back(mark)
                raise

        return self._writer.submit(whole)

    def change(self, operation: Callable[[Draft], T]) -> T:
        return self.submit(operation).result()

    @contextmanager
    def _transaction(self) -> Iterator[Draft]:
        with self.database.transaction() as connection:
            with self._lock:
                self._mirror.catch_up(self.database, connection)
                draft = Draft(self._mirror, self._clock())
                # whoever waits for this group finds nothing whose lease has ended
                operations.end_leases(draft)
                yield draft
            rows, gone = draft.rows()
            self.database.write(connection, rows, gone, draft.changes)
        if draft.changes:
            with self._lock:
                if self._mirror.number < draft.changes[-1].number:
                    for key, entry in draft.staged.items():
                        if entry is None:
                            self._mirror.drop(key)
                        else:
                            self._mirror.put(entry)
                    self._mirror.number = draft.changes[-1].number
            self._tell()

    @contextmanager
    def reading(self) -> Iterator[Mirror]:
        """All entries as they are now. The registry stands still meanwhile: be brief."""
        self.settle()
        with self._lock:
            changed = self._mirror.catch_up(self.database)
            yield self._mirror
        if changed != []:
            self._tell()

    def settle(self) -> None:
        """Ends the leases that are over."""
        with self._lock:
            end = self._mirror.next_end()
        if end is not None and end <= self._clock():
            self.change(_nothing)

    def changes(self, after: int, most: int) -> list[Change] | None:
        """Those behind a number; None where some of them are not kept any more."""
        self.settle()
        return self.database.changes(after, most)

    def now(self) -> float:
        """By its clock, by which leases end."""
        return self._clock()

    def number(self) -> int:
        """Of the last change."""
        return self.database.last()

    def reap(self) -> None:
        """To be called regularly: ends leases, forgets old changes, and tells of what others have changed."""
        with self.reading() as mirror:
            number = mirror.number
        if number - self._forgotten >= FORGOTTEN:
            self.database.forget()
            self._forgotten = number

    def _clock(self) -> float:
        return self._time() + self._behind

    def _tell(self) -> None:
        for each in list(self.listeners):
            each()

    def close(self) -> None:
        """Stops after all changes that were submitted before are written."""
        self._writer.close()
        self.database.close()


def _nothing(_: Draft) -> Any:
    return None
