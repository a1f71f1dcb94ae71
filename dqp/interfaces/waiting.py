"""Reads a query in a thread, so that the thread that waits for it can be interrupted at any moment."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pyarrow as pa

from dai.client.progress import STOPPED, Meter
from dai.client.results.interrupted import shortly_told
from dai.client.tracing import current
from dai.drivers import share_of
from dai.errors import RequestError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import Remote
from dqp.coordinator.running import Begun
from dqp.execution.execution import Execution

_WAIT = 0.1
"""Seconds between looks at whether somebody pressed Ctrl-C."""


def interruptible(start: Callable[[Cancellation, Begun], Stream], meter: Meter, running: set[Cancellation]) -> Stream:
    """The stream that ``start`` gives, read by a thread, so that the caller's can be interrupted while it waits.
    ``running`` has its cancellation meanwhile."""
    cancellation = Cancellation(current())
    opened: queue.Queue[Any] = queue.Queue(1)
    batches: queue.Queue[Any] = queue.Queue(2)
    stopped = threading.Event()
    begun: list[Execution] = []

    def put(what: Any) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                batches.put(what, timeout=_WAIT)
                return

    def reading() -> None:
        try:
            stream = start(cancellation, begun.append)
        except BaseException as error:  # noqa: BLE001
            running.discard(cancellation)
            opened.put(cancellation.cause or error)
            return
        opened.put(stream.schema)
        try:
            with stream:
                for batch in stream:
                    put(batch)
                    if stopped.is_set():
                        return
            put(None)
        except BaseException as error:  # noqa: BLE001
            put(cancellation.cause or error)
        finally:
            running.discard(cancellation)

    thread = threading.Thread(target=reading, name="dqp-query", daemon=True)

    def stop() -> None:
        stopped.set()
        cancellation.cancel()
        if thread.is_alive():
            thread.join()
        running.discard(cancellation)
        meter.finish(rows, _fetched(begun[0]) if begun else 0, STOPPED)

    def next_batch() -> Any:
        try:
            with shortly_told():
                return next_of(batches)
        except BaseException:
            stop()
            raise

    def next_of(where: queue.Queue[Any]) -> Any:
        while True:
            with suppress(queue.Empty):
                item = where.get(timeout=_WAIT)
                if isinstance(item, RequestError):  # the caller's mistake: where in the thread is of no use
                    raise item.with_traceback(None)
                if isinstance(item, BaseException):
                    raise item
                return item
            if begun:
                meter.update(rows, _fetched(begun[0]), partial(_going_on, begun[0]), partial(_share, begun[0]))

    rows = 0
    try:
        with shortly_told():
            running.add(cancellation)
            thread.start()
            schema = next_of(opened)
    except BaseException:
        stop()
        raise

    def batches_read() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        while (batch := next_batch()) is not None:
            rows += batch.num_rows
            yield batch
        thread.join()
        meter.finish(rows, _fetched(begun[0]) if begun else 0)

    return stopped_when_lost(Stream(schema, batches_read(), stop), stop, lambda: not thread.is_alive())


def stopped_when_lost(stream: Stream, stop: Callable[[], None], over: Callable[[], bool]) -> Stream:
    """The stream. If it is dropped before its query is ``over``, the query is stopped, in a thread of its own, because
    the last reference may be dropped at any moment."""

    def lost() -> None:
        if over():
            return
        threading.Thread(target=stop, name="dqp-stop", daemon=True).start()

    weakref.finalize(stream, lost).atexit = False
    return stream


def _fetched(execution: Execution) -> int:
    """Bytes that came from the sources so far."""
    return sum(each.bytes for each in execution.measurements() if isinstance(each.key, Remote))


def _share(execution: Execution) -> float | None:
    return share_of(execution.parts())


def _going_on(execution: Execution) -> str:
    """The parts that have not ended yet: ``pg 1,200,000 rows, maria 0 rows``."""
    parts = [each for each in execution.parts() if each.state in ("waiting", "running")]
    return ", ".join(f"{each.name} {each.rows:,} rows" for each in parts)
