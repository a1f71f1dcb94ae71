"""Stopping a blocked statement from another thread."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dai.streams.cancellation import Cancellation

AGAIN_SECONDS = 0.05
_going_on: dict[threading.Event, float] = {}
"""Statements that this process computes and that were interrupted, and when."""


def stuck(seconds: float) -> int:
    """How many statements this process computes that go on so many seconds after they were interrupted."""
    before = time.monotonic() - seconds
    return sum(since <= before for since in list(_going_on.values()))


@contextmanager
def interruptible(
    cancellation: Cancellation,
    interrupt: Callable[[], object],
    *,
    here: bool = False,
    waits: Callable[[], bool] = lambda: False,
) -> Iterator[None]:
    """Inside the block, cancelling calls ``interrupt`` again and again until the block is left.

    Once is not enough: every database forgets an interrupt that comes just before its statement begins. No call of
    ``interrupt`` outlives the block, so none hits a later statement of the same connection. An exception that leaves
    the block of cancelled work becomes the cause of the cancellation. ``here``: the database computes in this process,
    except while it ``waits`` for rows of others.
    """
    repeating: list[tuple[threading.Thread, threading.Event]] = []

    def repeat(done: threading.Event) -> None:
        while not done.is_set():
            with contextlib.suppress(Exception):
                interrupt()
            if here and waits():
                _going_on[done] = time.monotonic()
            done.wait(AGAIN_SECONDS)

    def begin() -> None:
        done = threading.Event()
        thread = threading.Thread(target=repeat, args=(done,), name="interrupt", daemon=True)
        thread.start()
        repeating.append((thread, done))
        if here:
            _going_on[done] = time.monotonic()

    try:
        with cancellation.on_cancel(begin):
            try:
                yield
            except Exception as error:
                if cancellation.cause is not None and error is not cancellation.cause:
                    raise cancellation.cause from error
                raise
    finally:
        # Here, because leaving on_cancel waits for ``begin``: a thread that it makes has begun by now.
        for thread, done in repeating:
            done.set()
            thread.join()
            _going_on.pop(done, None)
    cancellation.check()
