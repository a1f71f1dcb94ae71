"""Reads one item ahead while its consumer works, where that is worth a thread."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")

_TRIED = 4
"""Items after which it is known who takes longer."""


class ReadAhead(Generic[T]):
    """Calls ``read`` for one item after the other. Once the consumer has taken longer with the items than reading did,
    a thread reads the next one meanwhile; a consumer that only hands them on would gain nothing.

    ``read`` is called by one thread at a time; it gives None at the end. A program that ends does not wait for it.
    """

    def __init__(self, read: Callable[[], T | None]) -> None:
        self._read = read
        self._thread: threading.Thread | None = None
        self._asked: SimpleQueue[Future[T | None] | None] = SimpleQueue()
        self._ahead: Future[T | None] | None = None
        self._tried, self._longer, self._left = 0, 0.0, 0.0

    @property
    def busy(self) -> bool:
        """Whether the thread is reading now."""
        return self._ahead is not None and not self._ahead.done()

    def next(self) -> T | None:
        item = self._itself() if self._ahead is None else self._ahead.result()
        if self._thread is not None and item is not None:
            self._ahead = Future()
            self._asked.put(self._ahead)
        return item

    def _reading(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                asked.set_result(self._read())
            except BaseException as error:  # noqa: BLE001 - for the consumer
                asked.set_exception(error)

    def _itself(self) -> T | None:
        began = time.perf_counter()
        item = self._read()
        now = time.perf_counter()
        if self._tried:  # the first item waits for the database, too
            self._longer += (began - self._left) - (now - began)
        self._left, self._tried = now, self._tried + 1
        if self._tried >= _TRIED and self._longer > 0:
            self._thread = threading.Thread(target=self._reading, name="ahead", daemon=True)
            self._thread.start()
        return item

    def close(self) -> None:
        """Waits for what the thread reads."""
        if self._thread is not None:
            self._asked.put(None)
            if not sys.is_finalizing():  # when it would never run again
                self._thread.join()
