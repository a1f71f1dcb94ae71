"""A condition variable whose waits end with a cancellation: what everything that waits for another thread waits on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import partial
from types import TracebackType

from dai.streams.cancellation import Cancellation


class Condition:
    """As ``threading.Condition``: its methods are called inside its block. Several may share one ``lock``.

    A wait registers with the cancellation while the lock is free, so whoever cancels needs no lock to end it, and
    whoever waits needs no callback of its own.
    """

    def __init__(self, lock: threading.Lock | None = None) -> None:
        self._lock = lock or threading.Lock()
        self._waiters: set[threading.Lock] = set()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._lock.release()

    def notify_all(self) -> None:
        for waiter in self._waiters:
            _wake(waiter)

    def wait(self, cancellation: Cancellation | None = None, seconds: float | None = None) -> None:
        """Until somebody notifies, the cancellation fires or the time is over: what is wanted may be there or not. The
        lock is free meanwhile. Raises the cause where it was cancelled before."""
        # The cheapest thing that any thread can wake another one by. A SimpleQueue may wait for ever for a time that
        # passes while its get begins (Python 3.11: what is left is below 0 then, which means no limit to a lock).
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.add(waiter)
        self._lock.release()
        try:
            cancelled = nullcontext() if cancellation is None else cancellation.on_cancel(partial(_wake, waiter))
            with cancelled:
                waiter.acquire(timeout=-1 if seconds is None else max(0.0, seconds))
        finally:
            self._lock.acquire()
            self._waiters.discard(waiter)

    def wait_for(
        self, ready: Callable[[], object], cancellation: Cancellation | None = None, seconds: float | None = None
    ) -> bool:
        """Until ``ready()``; False where ``seconds`` passed first. Raises what ``ready`` raises, and the cancellation's
        cause where that comes before."""
        deadline = None if seconds is None else time.monotonic() + seconds
        while not ready():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                if cancellation is not None:
                    cancellation.check()
                return False
            self.wait(cancellation, left)
        return True


def _wake(waiter: threading.Lock) -> None:
    with suppress(RuntimeError):  # somebody else was faster
        waiter.release()
