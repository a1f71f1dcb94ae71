"""A statement that gives no row in time is overtaken: its alternative starts beside it, the first to have a row wins.

The rows of one of the two are returned, never rows of both. The other one is cancelled in its database. If the
alternative fails, the query goes on; if the statement fails, the running alternative may still answer; if both fail,
the error is the statement's and has both messages.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pyarrow as pa

from dai.errors import ClosedError, DaiError, DataError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dai.streams.waiting import Condition
from dqp.algebra.operators import Remote
from dqp.catalog.threads import begin
from dqp.execution.execution import Execution
from dqp.planning.alternatives import Alternative, Chance, Columns, Overtaking, has_alternative

log = logging.getLogger("dqp.execution.overtaking")


Sent = Callable[[Cancellation], Stream]
"""Sends the statement."""


def chance_of(remote: Remote, execution: Execution) -> Chance | None:
    """None where the statement has no alternative."""
    return execution.chance if has_alternative(remote) else None


def raced(sent: Sent, remote: Remote, columns: Columns, execution: Execution, chance: Chance) -> Stream:
    """The rows of a statement, or of its alternative."""
    return _Race(remote, columns, execution, chance).run(sent)


class _Race:
    """The statement runs in the thread of its reader, the alternative in one of the execution's that starts when the
    statement is late."""

    def __init__(self, remote: Remote, columns: Columns, execution: Execution, chance: Chance) -> None:
        self._remote, self._columns, self._execution, self._chance = remote, columns, execution, chance
        self._given = execution.cancellation
        span = self._given.span
        self._statement, self._other = Cancellation(span), Cancellation(span)
        self._changed = Condition()
        self._begin = time.perf_counter()
        self._key = object()
        self._schema: pa.Schema | None = None
        """Of the statement, once its reader may know it."""
        self._running = False
        """The alternative, which has no row yet."""
        self._rows: Stream | None = None
        """The alternative's, which was first."""
        self._over = False
        """The statement was first, or nobody wants rows any more."""

    def run(self, sent: Sent) -> Stream:
        with ExitStack() as held:
            held.enter_context(self._given.on_cancel(self._cancelled))
            held.callback(self._end)
            held.callback(ALARMS.at(self._begin + self._chance.least, self._late))
            try:
                stream = sent(self._statement)
            except DaiError as error:
                stream = self._instead(error)
                return Stream(stream.schema, stream, held.pop_all().close)
            held.callback(stream.close)
            with self._changed:
                rows = self._rows
                if rows is None:
                    self._schema = stream.schema
            if rows is not None:
                stream.close()
                return Stream(rows.schema, rows, held.pop_all().close)
            return Stream(stream.schema, self._batches(stream), held.pop_all().close)

    def _batches(self, stream: Stream) -> Iterator[pa.RecordBatch]:
        try:
            first = next((each for each in stream if each.num_rows), None)
            rows = self._first()
        except DaiError as error:
            rows = self._instead(error)
        if rows is None:
            if first is not None:
                yield first
            yield from stream
        else:
            stream.close()
            yield from (_cast(each, stream.schema) for each in rows)

    def _first(self) -> Stream | None:
        """The statement has its first row, or none: that counts, unless the alternative was first."""
        with self._changed:
            if self._rows is not None:
                return self._rows
            self._over, running = True, self._running
            self._changed.notify_all()
        if running:
            self._say(first=self._seconds())
            self._other.cancel(ClosedError("The statement gave the first row."))
        return None

    def _instead(self, error: DaiError) -> Stream:
        """The alternative's rows where it is first, or answers although the statement has failed."""
        with self._changed:
            if not self._given.cancelled:
                self._changed.wait_for(lambda: self._rows is not None or not self._running, self._given)
            if self._rows is not None:
                return self._rows
            self._over = True
        failed = self._execution.overtakings.get(self._key)
        if failed is None or failed.failure is None or self._given.cancelled:
            raise error
        both = copy(error)
        both.detail = f"{error.detail or error.title} Computed here instead, it failed too: {failed.failure}"
        both.args = (both.detail,)
        raise both from error

    def _cancelled(self) -> None:
        self._statement.cancel(self._given.cause)
        self._other.cancel(self._given.cause)

    def _end(self) -> None:
        """Ends both: no more rows are needed."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._other.cancel(ClosedError("The rows are not wanted any more."))
        if self._rows is not None:
            self._rows.close()

    def _seconds(self) -> float:
        return time.perf_counter() - self._begin

    def _say(self, **changes: Any) -> None:
        """What EXPLAIN ANALYZE shows."""
        seen = self._execution.overtakings.get(self._key) or Overtaking(self._remote)
        self._execution.overtakings[self._key] = replace(seen, **changes)

    # --- the alternative ---

    def _late(self) -> None:
        with suppress(ClosedError):
            if not self._over:
                self._execution.start(self._beside, "dqp-second-chance")

    def _beside(self) -> None:
        try:
            child = self._execution.beside(self._other)
        except DaiError:  # the race was over before this thread began
            return
        try:
            alternative = self._awaited()
            if alternative is not None and self._leads(self._chance.run(alternative, self._columns, child), child):
                return
        except Exception as error:
            if not self._over and not self._given.cancelled:
                if not isinstance(error, DaiError):
                    log.exception("an alternative failed")
                self._say(failure=str(error))
        finally:
            if self._rows is None:
                child.close()
            with self._changed:
                self._running = False
                self._changed.notify_all()

    def _awaited(self) -> Alternative | None:
        """The alternative once the statement is late by its own estimate; None where it is not."""
        alternative = self._chance.alternative(self._remote)
        if alternative is None:
            return None
        with self._changed:
            left = alternative.after(self._chance.multiple) - self._seconds()
            if left > 0:
                self._changed.wait_for(lambda: self._over, self._given, left)
            if self._over:
                return None
            self._running = True
        self._say(estimated=alternative.statement, here=alternative.here, after=self._seconds())
        return alternative

    def _leads(self, stream: Stream, child: Execution) -> bool:
        """Waits for the first row. Whether it counts: ``child`` then ends with the rows."""
        try:
            first = next((each for each in stream if each.num_rows), None)
            head = pa.RecordBatch.from_pylist([], schema=stream.schema) if first is None else first
            with self._changed:
                if self._schema is not None:
                    _cast(head, self._schema)
                if not self._over:
                    self._rows = Stream(stream.schema, chain((head,), stream), partial(_ended, stream, child))
                self._changed.notify_all()
        finally:
            if self._rows is None:
                stream.close()
        if self._rows is None:
            return False
        statements = tuple(
            sql for each in child.measurements() if isinstance(each.key, Remote) for sql in each.statements
        )
        self._say(won=True, first=self._seconds(), statements=statements)
        self._statement.cancel(ClosedError("Its alternative gave the first row."))
        return True


def _ended(stream: Stream, child: Execution) -> None:
    with child:
        stream.close()


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The rows in the types of the statement, which its reader knows already. DataError where they do not fit."""
    try:
        arrays = [
            array if array.type == each.type else array.cast(each.type)
            for array, each in zip(batch.columns, schema, strict=True)
        ]
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"Its values are of other types: {error}") from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


class _Alarms:
    """Calls functions at given times, in one thread for all, which ends when there is nothing left to call. The
    functions must be quick."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._due: dict[object, tuple[float, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None

    def at(self, time: float, call: Callable[[], None]) -> Callable[[], None]:
        """``call`` at that time of ``perf_counter``. The function that is returned withdraws it."""
        key = object()
        with self._changed:
            if self._thread is not None and not self._thread.is_alive():  # a forked process has no threads
                self._due.clear()
                self._thread = None
            self._due[key] = time, call
            if self._thread is None:
                self._thread = begin(self._watch, "dqp-alarms")
            else:
                self._changed.notify_all()

        def withdraw() -> None:
            with self._changed:
                if self._due.pop(key, None) is not None and not self._due:
                    self._changed.notify_all()

        return withdraw

    def _watch(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._thread = None
                    return
                key = min(self._due, key=lambda each: self._due[each][0])
                due, call = self._due[key]
                left = due - time.perf_counter()
                if left > 0:
                    del call
                    self._changed.wait(min(left, threading.TIMEOUT_MAX))
                    continue
                del self._due[key]
            try:
                call()
            except Exception:
                log.exception("an alarm failed")
            finally:
                del call  # nothing of an ended query stays


ALARMS = _Alarms()
