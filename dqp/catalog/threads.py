"""Threads that ask sources. Each caller who is passed on has a catalog: threads without work would add up."""

from __future__ import annotations

import atexit
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

P = ParamSpec("P")
T = TypeVar("T")
LEAVE = 1.0
"""Seconds that the interpreter waits for threads at its end: those that it stops keep DuckDB's modules, which then
complain."""
leaving = threading.Event()
"""The interpreter ends: whoever waits for something else gives it up."""
_begun: WeakSet[threading.Thread] = WeakSet()


@atexit.register
def _leave() -> None:
    leaving.set()
    until = time.monotonic() + LEAVE
    for thread in tuple(_begun):
        thread.join(max(0.0, until - time.monotonic()))


def begin(call: Callable[[], object], name: str) -> threading.Thread:
    """A thread that the interpreter waits for at its end, but not for long."""
    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()
    _begun.add(thread)
    return thread


class Threads:
    """As a ThreadPoolExecutor of ``most``, but a thread ends when nothing waits for it. Thread-safe."""

    def __init__(self, most: int, name: str) -> None:
        self._most, self._name = most, name
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._running = 0
        self._closed = False

    def submit(self, call: Callable[P, T], *arguments: P.args, **named: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("the threads are closed")
            if self._running < self._most:
                begin(self._work, self._name)
                self._running += 1
            self._waiting.append((future, partial(call, *arguments, **named)))
        return future

    def close(self) -> None:
        """What waits is cancelled; what is under way goes on, and nobody waits for it."""
        with self._lock:
            self._closed = True
            waiting = [future for future, _ in self._waiting]
            self._waiting.clear()
        for each in waiting:
            each.cancel()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._running -= 1
                    return
                future, call = self._waiting.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:  # noqa: BLE001 - for whoever waits
                    future.set_exception(error)
            del future, call
