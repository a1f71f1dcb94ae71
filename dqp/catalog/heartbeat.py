"""Notices a lost service while a statement waits for its bytes.

A database may work for minutes before the first row, so a statement without bytes is no sign of a lost service.
Therefore a thread asks the service for a sign of life, first when a statement has waited AFTER seconds and then again
and again. Without a sign of life for ``patience`` seconds, the waiting statement fails with UnreachableError. There is
one thread for each service, and only while a statement waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dai.errors import DaiError, DatabaseUnavailableError, UnreachableError
from dai.streams.cancellation import Cancellation
from dqp.catalog.threads import begin, leaving

AFTER = 5.0
"""Seconds that a statement waits for bytes before the first question, and between two questions."""
AGAIN = 1.0
"""Seconds until the next question after one that had no answer."""
PATIENCE = 10.0


class Heartbeat:
    """Watches one service. Thread-safe. ``ask`` returns if the service lives; it raises UnreachableError if the service
    does not answer, DatabaseUnavailableError if its database does not, within a few seconds. ``what`` names the service
    in messages."""

    def __init__(
        self, ask: Callable[[], object], what: str, *, patience: float = PATIENCE, after: float = AFTER
    ) -> None:
        self._ask, self._what, self._patience, self._after = ask, what, patience, after
        self._waits: dict[object, tuple[float, Cancellation]] = {}
        self._lock = threading.Lock()
        self._watching = False

    @contextmanager
    def waiting(self, cancellation: Cancellation) -> Iterator[None]:
        """A context around a wait for bytes. Cancels ``cancellation`` when the service is lost."""
        key = object()
        with self._lock:
            if not self._watching:
                begin(self._watch, "heartbeat")
                self._watching = True
            self._waits[key] = (time.monotonic(), cancellation)
        try:
            yield
        finally:
            with self._lock:
                del self._waits[key]

    def _watch(self) -> None:
        silent: float | None = None
        while not leaving.wait(self._after if silent is None else min(AGAIN, self._after)):
            now = time.monotonic()
            with self._lock:
                if not self._waits:
                    self._watching = False
                    return
                waiting = any(now - since >= self._after for since, _ in self._waits.values())
            failure = self._failure() if waiting else None
            if failure is None:
                silent = None
                continue
            silent = now if silent is None else silent
            enough = time.monotonic() - self._patience
            with self._lock:
                gone = [each for since, each in self._waits.values() if max(since, silent) <= enough]
            for each in gone:
                each.cancel(failure)

    def _failure(self) -> DaiError | None:
        try:
            self._ask()
        except DatabaseUnavailableError:
            return DatabaseUnavailableError(
                f"{self._what} accepted the request, but its database no longer answers.",
                hint="Check that the database is running and can be reached.",
            )
        except UnreachableError:
            return UnreachableError(
                f"{self._what} accepted the request and no longer answers.",
                hint="Check that the service is running and can be reached.",
            )
        except Exception:  # noqa: BLE001 - whatever it is, the next look is to come
            return None  # Any answer is a sign of life.
        return None
