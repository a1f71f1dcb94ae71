"""Commits changes in groups: a change that arrives while the disk is being written waits for the next transaction."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any, Generic, TypeVar

from sqlalchemy.exc import DBAPIError, IntegrityError

from dai.errors import ClosedError, DaiError

T = TypeVar("T")
C = TypeVar("C")
GROUP = 200
"""Changes in one transaction."""
ATTEMPTS = 3
_DEADLOCKS = {"40001", "40P01", 1213, 1205}
"""Of PostgreSQL, of MariaDB."""


class GroupCommit(Generic[C]):
    """Thread-safe. ``transaction`` gives one that is on the disk when it has ended; what a change does with it raises a
    DaiError before it writes anything, or none. ``name``: of the thread."""

    def __init__(self, name: str, transaction: Callable[[], AbstractContextManager[C]]) -> None:
        self._transaction = transaction
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Callable[[C], Any], Future[Any]]] = deque()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, change: Callable[[C], T]) -> Future[T]:
        """The result of the change, once it is on the disk."""
        answer: Future[T] = Future()
        with self._changed:
            if self._closed:
                raise ClosedError("The service is stopping.")
            self._waiting.append((change, answer))
            self._changed.notify()
        return answer

    def close(self) -> None:
        """Stops after all changes that were submitted before are written."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    def _work(self) -> None:
        while group := self._group():
            # the caller may have left; from here on the change cannot be withdrawn
            self._commit([each for each in group if each[1].set_running_or_notify_cancel()])

    def _group(self) -> list[tuple[Callable[[C], Any], Future[Any]]]:
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            count = min(GROUP, len(self._waiting))
            return [self._waiting.popleft() for _ in range(count)]

    def _commit(self, group: list[tuple[Callable[[C], Any], Future[Any]]], attempts: int = ATTEMPTS) -> None:
        done: list[tuple[Future[Any], Any, DaiError | None]] = []
        begun = False
        try:
            with self._transaction() as connection:
                begun = True
                for change, answer in group:
                    try:
                        done.append((answer, change(connection), None))
                    except DaiError as error:
                        done.append((answer, None, error))
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            if begun and len(group) > 1:  # one of them fails: the others are not to fail with it
                for each in group:
                    self._commit([each])
            elif begun and attempts > 1 and _raced(error):
                self._commit(group, attempts - 1)
            else:
                for _, answer in group:
                    answer.set_exception(error)
            return
        for answer, result, refused in done:
            if refused is not None:
                answer.set_exception(refused)
            else:
                answer.set_result(result)


def _raced(error: BaseException) -> bool:
    """Another process wrote the same: tried again, the change sees what that has written."""
    cause = error.__cause__
    if isinstance(cause, IntegrityError):
        return True
    original = cause.orig if isinstance(cause, DBAPIError) else None
    number = original.args[0] if original is not None and original.args else None
    return getattr(original, "sqlstate", None) in _DEADLOCKS or number in _DEADLOCKS
