"""One way to stop work from another thread.

Each request has a ``Cancellation``, which it passes to everything that may block: drivers, mailboxes, deliveries. Each
registers how to interrupt itself (``on_cancel``); a thread that wants the work to stop calls ``cancel``. The blocked
call then fails in its own thread, the generators unwind, and every ``with`` block closes what it holds: cancelling
never closes anything itself.

Since it reaches whatever works for a request, it also says where in a trace that work belongs (``tracing``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from dai.errors import CancelledError, DaiError

if TYPE_CHECKING:
    from dai.streams.tracing import Span

log = logging.getLogger("dai.streams.cancellation")

SETTLE_SECONDS = 2.0
"""Seconds in which cancelled work ends if its database answers. A service that stops waits no longer, and abandons the
work."""


class Cancellation:
    """Thread-safe; the first cause wins and stays. ``span``: that of the work; None where it is not traced."""

    def __init__(self, span: Span | None = None) -> None:
        self.span = span
        self._changed = threading.Condition()
        self._callbacks: dict[object, Callable[[], None]] = {}
        self._calling: dict[object, int] = {}
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
        """Stops the work, once. Callbacks run in the caller's thread; an exception of one does not keep the others from
        being called."""
        with self._changed:
            if self._cause is not None:
                return
            self._cause = cause or CancelledError("The work was cancelled.")
            keys = list(self._callbacks)
        for key in keys:
            with self._changed:
                callback = self._callbacks.get(key)
                if callback is None:
                    continue
                self._calling[key] = threading.get_ident()
            try:
                callback()
            except Exception:
                log.warning("an interrupt failed", exc_info=True)
            finally:
                with self._changed:
                    del self._calling[key]
                    self._changed.notify_all()

    def on_cancel(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        """Inside the block, ``cancel`` calls ``callback``. If it was cancelled already, raises the cause at once.

        After the block the callback neither runs nor will run: an interrupt never strikes what is done on the same
        connection afterwards. So the callback must not wait for anything that is held while the block is left.
        """
        return _OnCancel(self, callback)

    def under(self, span: Span | None) -> Cancellation:
        """The same cancellation, for work that belongs to that span."""
        return self if span is self.span else _Under(self, span)


class _Under(Cancellation):
    def __init__(self, of: Cancellation, span: Span | None) -> None:
        self._of, self.span = of, span

    @property
    def cause(self) -> DaiError | None:
        return self._of.cause

    @property
    def cancelled(self) -> bool:
        return self._of.cancelled

    def check(self) -> None:
        self._of.check()

    def cancel(self, cause: DaiError | None = None) -> None:
        self._of.cancel(cause)

    def on_cancel(self, callback: Callable[[], None]) -> AbstractContextManager[None]:
        return self._of.on_cancel(callback)


class _OnCancel:
    """A class, because every request enters several: a generator would take twice as long."""

    __slots__ = ("_callback", "_cancellation")

    def __init__(self, cancellation: Cancellation, callback: Callable[[], None]) -> None:
        self._cancellation, self._callback = cancellation, callback

    def __enter__(self) -> None:
        with self._cancellation._changed:
            self._cancellation.check()
            self._cancellation._callbacks[self] = self._callback

    def __exit__(self, *_: object) -> None:
        cancellation = self._cancellation
        with cancellation._changed:
            del cancellation._callbacks[self]
            while cancellation._calling.get(self, threading.get_ident()) != threading.get_ident():
                cancellation._changed.wait()
