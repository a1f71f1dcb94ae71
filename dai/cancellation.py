"""One way to stop work from another thread.

A ``Cancellation`` is made for each request and handed down to whoever may block: drivers, mailboxes, deliveries. Each
registers how to interrupt itself (``on_cancel``); whoever wants the work to stop calls ``cancel``. The blocked
call then fails in its own thread, the generators unwind, and every ``with`` block closes what it holds: cancelling
never closes anything itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dai.errors import CancelledError, DaiError


class Cancellation:
    """Thread-safe; the first cause wins and stays."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._cause: DaiError | None = None

    @property
    def cause(self) -> DaiError | None:
        return self._cause

    @property
    def cancelled(self) -> bool:
        return self._cause is not None

    def check(self) -> None:
        """Raises the cause if there is one."""
        if self._cause is not None:
            raise self._cause

    def cancel(self, cause: DaiError | None = None) -> None:
        """Stop the work, once. Callbacks run in the caller's thread; what one of them raises does not keep the others
        from being called."""
        with self._lock:
            if self._cause is not None:
                return
            self._cause = cause or CancelledError("The work was cancelled.")
            callbacks = list(self._callbacks.values())
        for callback in callbacks:
            try:
                callback()
            except Exception:  # noqa: BLE001 - an interrupt that comes too late is not an error
                continue

    @contextmanager
    def on_cancel(self, callback: Callable[[], None]) -> Iterator[None]:
        """Inside the block, ``cancel`` calls ``callback``. If it was cancelled already, raises the cause at once."""
        key = object()
        with self._lock:
            if self._cause is None:
                self._callbacks[key] = callback
        self.check()
        try:
            yield
        finally:
            with self._lock:
                self._callbacks.pop(key, None)
