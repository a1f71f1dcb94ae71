"""Stopping a blocked statement from another thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dai.streams.cancellation import Cancellation

AGAIN_SECONDS = 0.05


@contextmanager
def interruptible(cancellation: Cancellation, interrupt: Callable[[], object]) -> Iterator[None]:
    """Inside the block, cancelling calls ``interrupt`` again and again until the block is left.

    Once is not enough: every database forgets an interrupt that comes just before its statement begins. No call of
    ``interrupt`` outlives the block, so none hits a later statement of the same connection. An exception that leaves
    the block of cancelled work becomes the cause of the cancellation.
    """
    repeating: list[tuple[threading.Thread, threading.Event]] = []

    def repeat(done: threading.Event) -> None:
        while not done.is_set():
            with contextlib.suppress(Exception):
                interrupt()
            done.wait(AGAIN_SECONDS)

    def begin() -> None:
        done = threading.Event()
        thread = threading.Thread(target=repeat, args=(done,), name="interrupt", daemon=True)
        repeating.append((thread, done))
        thread.start()

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
    cancellation.check()
