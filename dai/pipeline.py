"""``Perform`` → running pipeline: one ExitStack, one first cause.

``Running`` opens the activities of a step in link order, hands each output to its consumers, runs sinks in threads
and yields the end points to whoever pulls. An exception that leaves an activity is recorded where it arose; the
cancellation of that pipeline (the connected part of the document) then stops everything up and down stream,
database statements included, while independent pipelines of the same document go on.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from dai.activity import Activity, Input, Sessions, Source
from dai.cancellation import Cancellation
from dai.drivers import Driver
from dai.errors import ClosedError, DaiError, InternalError, RequestError
from dai.fanout import FanOut
from dai.formats import format_named
from dai.perform_graph import EndPoint, Perform
from dai.stream import Block, ByteStream, Encoded, Stream

log = logging.getLogger("dai.pipeline")
Item = TypeVar("Item", pa.RecordBatch, Block)

UNSTARTED, PROCESSING, COMPLETED = "UNSTARTED", "PROCESSING", "COMPLETED"
TERMINATED, ERROR = "TERMINATED", "ERROR"


@dataclass(frozen=True, slots=True)
class Environment:
    """What a request brings along: its resource's database, its session, its cancellation, the block size it asked
    for and the directory for what does not fit the memory."""

    driver: Driver | None
    session: Sessions
    cancellation: Cancellation
    blocksize: int | None = None
    scratch: Path | None = None


@dataclass(frozen=True, slots=True)
class Report:
    """How one activity stands. ``rows``, ``blocks`` and ``bytes`` left it so far; ``seconds`` were spent waiting
    for it, its own inputs included. ``error`` is its own failure, or what closed it."""

    activity: str
    element: str
    status: str = UNSTARTED
    error: DaiError | None = None
    rows: int = 0
    blocks: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Running:
    """A document at work; a context manager: leaving it closes everything, whatever happened.

    Stop it from any thread through ``environment.cancellation``.
    """

    def __init__(self, perform: Perform, environment: Environment) -> None:
        self.perform, self.environment = perform, environment
        self.cause: DaiError | None = None
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._reports = {each.name: Report(each.name, each.element) for each in perform.activities}
        self._cancellations = {number: Cancellation() for number in set(perform.component.values())}
        self._place = {each.name: at for at, step in enumerate(perform.steps) for each in step}
        self._ready: dict[str, list[Source]] = {}
        self._ends: list[tuple[EndPoint, Source]] = []
        self._keep: list[FanOut] = []
        self._sinks: list[threading.Thread] = []
        self._next_step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> Running:
        """Opens the first step: its queries have been accepted by the database when this returns. Raises what an
        activity raises; everything is closed then."""
        outer = self.environment.cancellation
        try:
            self._stack.enter_context(outer.on_cancel(lambda: self._stop(outer.cause)))
            self._open_step()
        except BaseException:
            self.close()
            raise
        return self

    def end_points(self) -> Iterator[tuple[EndPoint, Source]]:
        """The end points in document order; pull each to its end (or its failure) before asking for the next. After the
        last one everything else has run to its end too; ``cause`` is the first failure. Raises what opening a later
        step raises."""
        while True:
            ends, self._ends = self._ends, []
            yield from ends
            for kept in self._keep:
                self._guarded(kept.drain)
            self._keep = []
            for sink in self._sinks:
                sink.join()
            self._sinks = []
            if self._next_step >= len(self.perform.steps) or self.cause is not None:
                return
            self._open_step()

    def finish(self) -> None:
        """Runs all that is left to its end; what comes to an end point is read and dropped. Raises the first cause."""
        for _, source in self.end_points():
            self._guarded(lambda source=source: _exhaust(source))
        self.raise_cause()

    def raise_cause(self) -> None:
        if self.cause is not None:
            raise self.cause

    def reports(self) -> tuple[Report, ...]:
        """How every activity stands now, in document order; from any thread."""
        return tuple(self._reports.values())

    def close(self) -> None:
        """Stops what still runs and frees everything. Never while a source is being pulled."""
        self._stop(self.environment.cancellation.cause or ClosedError("The request has ended."))
        for sink in self._sinks:
            sink.join()
        self._stack.close()
        for name, report in self._reports.items():
            if report.status in (UNSTARTED, PROCESSING):
                self._reports[name] = replace(report, status=TERMINATED)

    # --- opening ----------------------------------------------------------------------------------------------------

    def _open_step(self) -> None:
        step = self.perform.steps[self._next_step]
        self._next_step += 1
        sinks = []
        for activity in step:
            self._mark(activity.name, PROCESSING)
            if not any(True for _ in activity.outputs()):
                sinks.append(activity)
                continue
            try:
                given = activity.run(_Context(self, activity))
            except DaiError as error:
                self._failed(activity.name, error)
                raise
            sources = given if isinstance(given, tuple) else (given,)
            for port, source in zip(activity.outputs(), sources, strict=True):
                if source is None:
                    raise InternalError(f"{activity.name!r} gave nothing for {port.link!r}.")
                self._stack.callback(source.close)
                self._hand_over(activity, port.link, self._watched(activity.name, source))
        for activity in sinks:
            thread = threading.Thread(target=self._run_sink, args=(activity,), name=f"sink {activity.name}")
            self._sinks.append(thread)
            thread.start()

    def _hand_over(self, activity: Activity, link: str, source: Source) -> None:
        consumers = self.perform.consumers[link]
        if not consumers:
            if isinstance(source, Encoded) and source.blocksize is None and self.environment.blocksize:
                source = source.reblock(self.environment.blocksize)
            end = next(each for each in self.perform.end_points if each.name == link)
            self._ends.append((end, source))
            return
        later = any(self._place[name] > self._place[activity.name] for name in consumers)
        if len(consumers) == 1 and not later:
            self._ready[link] = [source]
            return
        fan = FanOut(source, len(consumers), scratch=self.environment.scratch)
        branches = fan.branches()
        for branch in branches:
            self._stack.callback(branch.close)
        self._ready[link] = branches
        if later:
            self._keep.append(fan)

    def _run_sink(self, activity: Activity) -> None:
        began = time.perf_counter()
        try:
            activity.run(_Context(self, activity))
        except DaiError as error:
            self._failed(activity.name, error)
        except Exception as error:  # noqa: BLE001 - the boundary of a thread
            self._failed(activity.name, _unforeseen(activity.name, error))
        else:
            self._mark(activity.name, COMPLETED, seconds=time.perf_counter() - began)

    def take(self, source: Input[Any]) -> Source:
        """What arrives at an input; each consumer takes its own once."""
        return self._ready[source.link].pop(0)

    # --- watching ---------------------------------------------------------------------------------------------------

    def _watched(self, name: str, source: Source) -> Source:
        if isinstance(source, Encoded):
            return source.watched(lambda blocks: self._watch(name, blocks))
        if isinstance(source, Stream):
            return Stream(source.schema, self._watch(name, source), source.close)
        return ByteStream(source.media_type, self._watch(name, source), source.close)

    def _watch(self, name: str, items: Iterator[Item]) -> Iterator[Item]:
        rows = blocks = size = 0
        seconds = 0.0
        try:
            while True:
                began = time.perf_counter()
                try:
                    item = next(items)
                except StopIteration:
                    break
                finally:
                    seconds += time.perf_counter() - began
                rows += item.num_rows if isinstance(item, pa.RecordBatch) else item.rows
                blocks += 1
                size += item.nbytes if isinstance(item, pa.RecordBatch) else len(item)
                self._mark(name, PROCESSING, rows=rows, blocks=blocks, bytes=size, seconds=seconds)
                yield item
        except GeneratorExit:
            pass  # the consumer has all it wants, or the request ends: close() says which
        except DaiError as error:
            self._failed(name, error)
            raise
        except Exception as error:
            unforeseen = _unforeseen(name, error)
            self._failed(name, unforeseen)
            raise unforeseen from error
        else:
            self._mark(name, COMPLETED, rows=rows, blocks=blocks, bytes=size, seconds=seconds)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _mark(self, name: str, status: str, **counts: Any) -> None:
        self._reports[name] = replace(self._reports[name], status=status, **counts)

    def _failed(self, name: str, error: DaiError) -> None:
        """The first failure in a pipeline is its cause; what it makes fail further on was closed by it."""
        cancellation = self.cancellation_of(name)
        with self._lock:
            if self._reports[name].status == ERROR:
                return
            first = not cancellation.cancelled and not isinstance(error, ClosedError)
            if self.cause is None:
                self.cause = self.environment.cancellation.cause or error
            status = ERROR if first else TERMINATED
            closed = error if first else ClosedError("This stream was closed because another activity failed.")
            self._reports[name] = replace(self._reports[name], status=status, error=closed)
        cancellation.cancel(error)

    def _stop(self, cause: DaiError | None) -> None:
        for cancellation in self._cancellations.values():
            cancellation.cancel(cause)

    def _guarded(self, work: Any) -> None:
        """A failure has been recorded by the activity it arose in; the rest of the document goes on."""
        try:
            work()
        except DaiError as error:
            self.note(error)

    def note(self, error: DaiError) -> None:
        """A failure seen by whoever pulls; the first one is the cause."""
        if self.cause is None:
            self.cause = error

    def cancellation_of(self, name: str) -> Cancellation:
        return self._cancellations[self.perform.component[name]]

    def closing(self, thing: Any) -> Any:
        if isinstance(thing, AbstractContextManager) and not isinstance(thing, Stream | ByteStream):
            return self._stack.enter_context(thing)
        self._stack.callback(thing.close)
        return thing


class _Context:
    """See ``dai.activity.Context``."""

    def __init__(self, running: Running, activity: Activity) -> None:
        self._running = running
        self.cancellation = running.cancellation_of(activity.name)
        self.session = running.environment.session
        self.blocksize = running.environment.blocksize

    @property
    def driver(self) -> Driver:
        if self._running.environment.driver is None:
            raise RequestError("This resource is not a relational database.", hint="GET /resources says what each is.")
        return self._running.environment.driver

    def tuples(self, source: Input[Any]) -> Stream:
        arrived = self._running.take(source)
        if isinstance(arrived, Stream):
            return arrived
        if isinstance(arrived, Encoded):
            return arrived.tuples
        decoded = _decoded(arrived)
        return Stream(decoded.schema, self._running.closing(decoded), arrived.close)

    def bytes(self, source: Input[Any]) -> ByteStream:
        arrived = self._running.take(source)
        if isinstance(arrived, Stream):
            return Encoded(arrived, format_named("webrowset"), self.blocksize)
        if isinstance(arrived, Encoded) and arrived.blocksize is None and self.blocksize:
            return arrived.reblock(self.blocksize)
        return arrived

    def closing(self, thing: Any) -> Any:
        return self._running.closing(thing)


def _decoded(arrived: ByteStream) -> Stream:
    """Bytes that came from outside as tuples: an Arrow IPC stream by its first bytes, WebRowSet otherwise."""
    chunks = (bytes(memoryview(block.data)) for block in arrived)
    first = next(chunks, b"")
    name = "arrow" if first.startswith(b"\xff\xff\xff\xff") else "webrowset"
    return format_named(name).decode(chain((first,), chunks))


def _exhaust(source: Source) -> None:
    for _ in source:
        continue


def _unforeseen(name: str, error: Exception) -> InternalError:
    log.error("activity failed", exc_info=error, extra={"activity": name})
    return InternalError("The service failed at this activity; its log says more under the request's id.")
