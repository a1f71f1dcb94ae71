"""Stops a query before its first row if a sample that was still running when the query was planned contradicts the
statistics: a plan made with wrong statistics may never end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import chain

from dai.streams.stream import Stream
from dqp.errors import OutdatedError
from dqp.execution.execution import Execution


class Outdating:
    """Watches one query until its first row. ``late``: for each sample that is running, or ended while the query was
    planned, whether it contradicts the statistics; without any the query runs unwatched."""

    def __init__(self, begun: Callable[[Execution], None], late: Sequence[Future[bool]]) -> None:
        self._begun, self._late = begun, late
        self._lock = threading.Lock()
        self._failure: OutdatedError | None = None
        self._over = False

    def begun(self, execution: Execution) -> None:
        """From now on a sample that contradicts fails the execution with OutdatedError."""
        self._begun(execution)
        for each in self._late:
            each.add_done_callback(partial(self._learned, execution))

    def _learned(self, execution: Execution, contradicts: Future[bool]) -> None:
        with self._lock:
            if self._over or not contradicts.result():
                return
            self._failure = failure = OutdatedError(
                "A table has far more or fewer rows than its source's statistics say."
            )
        execution.fail(failure)

    def stream(self, stream: Stream) -> Stream:
        """The same stream, once its first batch is there. Raises what the stream raises, and OutdatedError; it is
        closed then."""
        if not self._late:
            return stream
        try:
            head = next(stream, None)
            with self._lock:
                self._over = True
            if self._failure is not None:
                raise self._failure
        except BaseException:
            stream.close()
            raise
        return Stream(stream.schema, chain(() if head is None else (head,), stream), stream.close)
