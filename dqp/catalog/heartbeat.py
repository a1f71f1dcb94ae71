"""Noticing that a service is gone while a statement waits for its bytes.

A database may work for minutes before the first row, so that silence says nothing about a statement. What does is
whether the service says that it lives: it is asked as soon as a statement has waited AFTER seconds, and again all the
time; where it does not say so for as long as ``patience``, what waits fails with UnreachableError. One thread a
service, and only while something waits.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dai.errors import DaiError, DatabaseUnavailableError, UnreachableError
from dai.streams.cancellation import Cancellation

AFTER = 5.0
"""Seconds that a statement waits for bytes before anything is asked, and between answers."""
AGAIN = 1.0
"""Seconds until it is asked again after it did not answer."""
PATIENCE = 10.0


class Heartbeat:
    """Thread-safe. ``ask`` raises UnreachableError where the service does not say that it lives,
    DatabaseUnavailableError where its database does not, and takes a few seconds for that at most; ``what`` names
    it."""

    def __init__(
        self, ask: Callable[[], object], what: str, *, patience: float = PATIENCE, after: float = AFTER
    ) -> None:
        self._ask, self._what, self._patience, self._after = ask, what, patience, after
        self._waits: dict[object, tuple[float, Cancellation]] = {}
        self._lock = threading.Lock()
        self._watching = False

    @contextmanager
    def waiting(self, cancellation: Cancellation) -> Iterator[None]:
        """Around a wait for bytes: ``cancellation`` is cancelled when the service is gone."""
        key = object()
        with self._lock:
            if not self._watching:
                threading.Thread(target=self._watch, name="heartbeat", daemon=True).start()
                self._watching = True
            self._waits[key] = (time.monotonic(), cancellation)
        try:
            yield
        finally:
            with self._lock:
                del self._waits[key]

    def _watch(self) -> None:
        silent: float | None = None
        while True:
            time.sleep(self._after if silent is None else min(AGAIN, self._after))
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
                f"{self._what} took what was asked, and its database no longer answers.",
                hint="Is the database's process stopped, or the network between?",
            )
        except UnreachableError:
            return UnreachableError(
                f"{self._what} took what was asked and no longer answers.",
                hint="Is its process stopped, or its network gone?",
            )
        except Exception:  # noqa: BLE001 - whatever it is, the next look is to come
            return None  # An answer, if no good one.
        return None
