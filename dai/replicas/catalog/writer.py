"""Carries out changes, in groups: what is asked for while one is being written waits for the next, which takes all of
it together. So the disk is waited for once a group, not once a change (group commit). A change is durable when it is
answered.

With SQLite a large group is appended to the redo log, and its transaction stays open. It is committed once it has HELD
changes, with the next small group, when somebody wants to read, or when nothing has come for IDLE_SECONDS. After a
crash the redo log has what was not committed.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from itertools import groupby
from typing import Any, NamedTuple

from dai.errors import ClosedError, DatabaseUnavailableError
from dai.replicas.catalog.database import Connection, Database
from dai.replicas.catalog.operations import Changes, Operation
from dai.replicas.catalog.redo import Redo
from dai.replicas.codes import Code

log = logging.getLogger("dai.replicas")

GROUP = 20_000
"""Items in one transaction; a larger request is one by itself."""
LARGE = 200
"""Items of a group from which on its pages cost more than its redo log."""
HELD = 200_000
"""Items that wait for their commit. A quarter of them, in no order, is on nearly every page of a catalog of a million:
a commit of all writes hardly more, and readers wait hardly longer for it."""
IDLE_SECONDS = 0.05
TOGETHER_SECONDS = 0.0005
"""For which those who were just answered are waited for, that they are in one group with those who wait already."""
Listener = Callable[[Changes], None]
Answered = Callable[[list[Code] | Exception], None]
Loop = asyncio.AbstractEventLoop


class Asked(NamedTuple):
    """``answer`` or ``answered``, which is called in the event loop ``loop``."""

    operation: Operation
    items: Sequence[Any]
    answer: Future[list[Code]] | None = None
    loop: Loop | None = None
    answered: Answered | None = None


class Writer:
    """Thread-safe. ``held``: how many durable changes readers do not see before they ``settle``."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.listeners: list[Listener] = []
        self.held = 0
        self._connection: Connection | None = None
        self._begun = False
        beside = database.beside(".redo")
        self._redo = None if beside is None else Redo(beside)
        self._number = self._committed = 0
        """Of the last change in the redo log, and of the last that is committed."""
        self._waiting: deque[Asked] = deque()
        self._readers: list[Future[None]] = []
        self._expected = 1
        """Requests at once: with so many waiting the thread is woken."""
        self._changed = threading.Condition()
        self._closed = False
        if self._redo is not None:
            self._transaction()
            self._commit()
        self._thread = threading.Thread(target=self._run, name="replica catalog", daemon=True)
        self._thread.start()

    def submit(self, operation: Operation, items: Sequence[Any]) -> Future[list[Code]]:
        answer: Future[list[Code]] = Future()
        self._ask(Asked(operation, items, answer))
        return answer

    def tell(self, operation: Operation, items: Sequence[Any], loop: Loop, answered: Answered) -> None:
        self._ask(Asked(operation, items, None, loop, answered))

    def _ask(self, asked: Asked) -> None:
        with self._changed:
            if self._closed:
                raise ClosedError("The replica catalog is closed.")
            self._waiting.append(asked)
            if len(self._waiting) >= self._expected:
                self._changed.notify()

    def settle(self) -> None:
        """Commits what is held, and waits for that. DatabaseUnavailableError where it cannot be."""
        done: Future[None] = Future()
        with self._changed:
            if self._closed:
                raise ClosedError("The replica catalog is closed.")
            self._readers.append(done)
            self._changed.notify()
        done.result()

    def close(self) -> None:
        """What was submitted before is written."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()

    # In the thread

    def _run(self) -> None:
        while (group := self._next()) is not None:
            # whoever asked may have gone; from here on nobody can take it back
            if group := [each for each in group if _begins(each)]:
                self._write(group)
        self._settle()
        self._drop()
        if self._redo is not None:
            self._redo.close()

    def _next(self) -> list[Asked] | None:
        """The next group; None at the end. Between two of them readers are served."""
        while True:
            with self._changed:
                idle = False
                if self._expected > 1 and len(self._waiting) < self._expected and not self._closed:
                    self._changed.wait(TOGETHER_SECONDS)
                self._expected = 1
                while not (self._waiting or self._readers or self._closed or idle):
                    idle = not self._changed.wait(IDLE_SECONDS if self.held else None)
                if not (self._readers or idle):
                    return self._group() if self._waiting else None
            self._settle()

    def _group(self) -> list[Asked]:
        group: list[Asked] = []
        size = 0
        while self._waiting and (not group or size + len(self._waiting[0].items) <= GROUP):
            group.append(self._waiting.popleft())
            size += len(group[-1].items)
        return group

    def _settle(self) -> None:
        with self._changed:
            readers, self._readers = self._readers, []
        error: Exception | None = None
        if self.held:
            try:
                self._transaction()
                self._commit()
            except Exception as failed:  # noqa: BLE001 - whoever waits raises it
                self._drop()
                error = failed
        for each in readers:
            if error is None:
                each.set_result(None)
            else:
                each.set_exception(error)

    def _write(self, group: Sequence[Asked]) -> None:
        changes = Changes()
        try:
            codes = self._carried_out(group, changes)
        except Exception as error:  # noqa: BLE001 - whoever waits raises it
            self._drop()
            if len(group) > 1 and not isinstance(error, DatabaseUnavailableError):
                # one of them fails: the others are not to fail with it
                for each in group:
                    self._write([each])
            else:
                _answer(group, [error] * len(group))
            return
        if sum(map(len, codes)) < LARGE:
            self._expected = len(group) + len(self._waiting)
        _answer(group, codes)
        for listener in self.listeners:
            listener(changes)

    def _carried_out(self, group: Sequence[Asked], changes: Changes) -> list[list[Code]]:
        """The codes of each, once they are durable."""
        connection = self._transaction()
        connection.changed = [] if self._redo is not None else None
        codes: list[list[Code]] = []
        size = 0
        for operation, run in groupby(group, lambda each: each.operation):
            lists = [each.items for each in run]
            items = [item for each in lists for item in each] if len(lists) > 1 else lists[0]
            said = operation(connection, items, changes)
            at = 0
            for each in lists:
                codes.append(said[at : at + len(each)])
                at += len(each)
            size += len(items)
        changed, connection.changed = connection.changed, None
        if self._redo is None or not changed or size < LARGE:
            self._commit()
            return codes
        self._redo.append(self._number + 1, changed)
        self._number += 1
        self.held += size
        if self.held >= HELD:
            try:
                self._commit()
            except DatabaseUnavailableError as error:  # it is durable all the same, and carried out again
                log.warning("a commit of the replica catalog failed", extra={"error": str(error)})
                self._drop()
        return codes

    def _transaction(self) -> Connection:
        """One that has begun, with everything that is in the redo log."""
        if self._connection is None:
            self._connection = self._database.connect()
        if not self._begun:
            self._connection.begin()
            self._begun = True
            if self._redo is not None:
                ((self._committed,),) = self._connection.all("select coalesce(max(up_to), 0) from dai_redone")
                self._number = self._committed
                for number, changes in self._redo.after(self._committed):
                    for statement, rows in changes:
                        self._connection.many(statement, rows)
                    self._number = number
        return self._connection

    def _commit(self) -> None:
        assert self._connection is not None
        if self._number != self._committed:
            self._connection.control("delete from dai_redone")
            self._connection.control("insert into dai_redone (up_to) values (?)", self._number)
        self._connection.control("commit")
        self._begun, self.held, self._committed = False, 0, self._number
        if self._redo is not None:
            self._redo.committed(self._committed)

    def _drop(self) -> None:
        """Undoes what is not committed; of that the redo log has what was answered."""
        connection, self._connection, self._begun = self._connection, None, False
        if connection is not None:
            connection.close()


def _begins(asked: Asked) -> bool:
    return asked.answer is None or asked.answer.set_running_or_notify_cancel()


def _answer(group: Sequence[Asked], results: Sequence[list[Code] | Exception]) -> None:
    """Each event loop is woken once."""
    loops: dict[Loop, list[tuple[Answered, list[Code] | Exception]]] = {}
    for each, result in zip(group, results, strict=True):
        if each.answer is None:
            assert each.loop is not None
            assert each.answered is not None
            loops.setdefault(each.loop, []).append((each.answered, result))
        elif isinstance(result, Exception):
            each.answer.set_exception(result)
        else:
            each.answer.set_result(result)
    for loop, answers in loops.items():
        with suppress(RuntimeError):  # it has ended
            loop.call_soon_threadsafe(_deliver, answers)


def _deliver(answers: Sequence[tuple[Answered, list[Code] | Exception]]) -> None:
    for answered, result in answers:
        answered(result)
