"""``Perform`` → running pipeline: one ExitStack, one first cause.

``Running`` opens the activities of a step in link order, hands each output to its consumers, runs sinks in threads (a
job runs its only one itself) and yields the end points to whoever pulls. An exception that leaves an
activity is recorded where it arose; the cancellation of that pipeline (the connected part of the document; the members
of a ``sequence`` belong together) then stops everything up and down stream, database statements included, while
independent pipelines of the same document go on.

``watching`` is what the outputs of activities pass through, ``progress`` what has become of each activity.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dai.config import Config
from dai.drivers import Driver
from dai.errors import ClosedError, DaiError, RequestError
from dai.formats import format_named
from dai.perform.activity import Activity, Input, Sessions, Source
from dai.perform.graph import EndPoint, Perform
from dai.perform.pipeline.progress import COMPLETED, Progress, Report
from dai.perform.pipeline.watching import unforeseen_at, watched
from dai.streams.cancellation import Cancellation
from dai.streams.fanout import FanOut
from dai.streams.stream import ByteStream, Encoded, Stream


@dataclass(frozen=True, slots=True)
class Environment:
    """The environment of a request: its resource's database, its session, its cancellation, its block size, the
    directory for spilling, and the configuration of the service."""

    driver: Driver | None
    session: Sessions
    cancellation: Cancellation
    blocksize: int | None = None
    scratch: Path | None = None
    config: Config = Config()


class Running:
    """A running document; a context manager: leaving it closes everything, whatever happened.

    Stop it from any thread through ``environment.cancellation``.
    """

    def __init__(self, perform: Perform, environment: Environment) -> None:
        self.perform, self.environment = perform, environment
        self.progress = Progress(perform, environment.cancellation.span)
        self._stack = ExitStack()
        self._place = {each.name: at for at, step in enumerate(perform.steps) for each in step}
        self._ready: dict[str, list[Source]] = {}
        self._ends: list[tuple[EndPoint, Source]] = []
        self._keep: list[FanOut] = []
        self._sinks: list[threading.Thread] = []
        self._alone: Activity | None = None
        """A sink that waits for who asks for end points: a thread of its own costs."""
        self._here = False
        self._next_step = 0
        self.spent: defaultdict[str, float] = defaultdict(float)
        """As ``Context.spent``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self, *, here: bool = False) -> Running:
        """Opens the first step: its queries have been accepted by the database when this returns. Raises what an
        activity raises; everything is closed then. ``here``: a sink that has nothing beside it need not run before the
        end points are asked for, and runs in the thread that does so."""
        self._here = here
        outer = self.environment.cancellation
        try:
            self._stack.enter_context(outer.on_cancel(lambda: self.progress.stop(outer.cause)))
            self._open_step()
            self.raise_cause()
            outer.check()
            self._start_sinks()
        except BaseException:
            self.close()
            raise
        return self

    def end_points(self) -> Iterator[tuple[EndPoint, Source]]:
        """The end points, step by step, results before the others, else in document order; pull each to its end (or its
        failure) before asking for the next. What is asked for again goes on where it was left. After the last one
        everything else has run to its end too, and ``cause`` is the first failure."""
        while True:
            while self._ends:
                yield self._ends.pop(0)
            for fan_out in self._keep:
                self._guarded(fan_out.drain)
            self._keep = []
            if (alone := self._alone) is not None:
                self._alone = None
                self._run_sink(alone)
            for sink in self._sinks:
                sink.join()
            self._sinks = []
            if self._next_step >= len(self.perform.steps):
                break
            self._open_step()
            self._start_sinks()
        self.progress.settle()

    def finish(self) -> None:
        """Runs all that is left to its end; what comes to an end point is read and dropped. Raises the first cause."""
        for _, source in self.end_points():
            self._guarded(partial(_exhaust, source))
        self.raise_cause()

    @property
    def cause(self) -> DaiError | None:
        """The first failure."""
        return self.progress.cause

    def raise_cause(self) -> None:
        if self.cause is not None:
            raise self.cause

    @property
    def opened(self) -> bool:
        """Whether ``open`` was called."""
        return self._next_step > 0

    @property
    def committed(self) -> list[str]:
        """The activities that have changed the database for good, whatever fails beside or after them."""
        changing = {each.name for each in self.perform.activities if each.changes}
        return [each.activity for each in self.reports() if each.status == COMPLETED and each.activity in changing]

    def reports(self) -> tuple[Report, ...]:
        """How every activity stands now, in document order; from any thread."""
        return self.progress.reports()

    def close(self) -> None:
        """Stops what still runs and frees everything. Never while a source is being pulled."""
        self.progress.stop(self.environment.cancellation.cause or ClosedError("The request has ended."))
        for sink in self._sinks:
            sink.join()
        try:
            self._stack.close()
        finally:
            self.progress.settle()

    # --- opening ----------------------------------------------------------------------------------------------------

    def _open_step(self) -> None:
        """What cannot be opened stops its own pipeline only."""
        for activity in self._step(self._next_step):
            if not self.progress.cancellation_of(activity.name).cancelled:
                self.progress.started(activity.name)
                if not _is_sink(activity):
                    self._open_activity(activity)
        self._next_step += 1
        order = {end.name: place for place, end in enumerate(self.perform.end_points)}
        # what reads before what changes: where one lock guards the database, an update would wait for a reader of ours
        self._ends.sort(key=lambda pair: (not pair[0].tabular, order[pair[0].name]))

    def _start_sinks(self) -> None:
        sinks = [
            each
            for each in self._step(self._next_step - 1)
            if _is_sink(each) and not self.progress.cancellation_of(each.name).cancelled
        ]
        if self._here and len(sinks) == 1 and not self._ends and not self._keep:
            self._alone = sinks.pop()
        for each in sinks:
            thread = threading.Thread(target=self._run_sink, args=(each,), name=f"sink {each.name}")
            thread.start()
            self._sinks.append(thread)

    def _step(self, number: int) -> tuple[Activity, ...]:
        return self.perform.steps[number] if number < len(self.perform.steps) else ()

    def _open_activity(self, activity: Activity) -> None:
        try:
            outputs = activity.run(_Context(self, activity))
            sources = outputs if isinstance(outputs, tuple) else (outputs,)
            for port, source in zip(activity.outputs, sources, strict=True):
                if source is None:
                    raise TypeError(f"{activity.element} gave nothing for {port.element}")
                self._stack.callback(source.close)
                self._hand_over(activity, port.link, watched(self.progress, activity.name, port.link, source))
        except DaiError as error:
            self.progress.failed(activity.name, error)
        except Exception as error:  # noqa: BLE001 - the boundary of an activity
            self.progress.failed(activity.name, unforeseen_at(activity.name, error))

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
            self.progress.failed(activity.name, error)
        except Exception as error:  # noqa: BLE001 - the boundary of a thread
            self.progress.failed(activity.name, unforeseen_at(activity.name, error))
        else:
            self.progress.completed(activity.name, time.perf_counter() - began)

    def take(self, source: Input[Any]) -> Source:
        """What arrives at an input; each consumer takes its own once."""
        return self._ready[source.link].pop(0)

    def _guarded(self, work: Callable[[], object]) -> None:
        """A failure has been recorded by the activity it arose in; the rest of the document goes on."""
        with suppress(DaiError):
            work()

    def closing(self, thing: Any) -> Any:
        if isinstance(thing, AbstractContextManager) and not isinstance(thing, Stream | ByteStream):
            return self._stack.enter_context(thing)
        self._stack.callback(thing.close)
        return thing


class _Context:
    """See ``dai.perform.activity.Context``."""

    def __init__(self, running: Running, activity: Activity) -> None:
        self._running, self._activity = running, activity.name
        self.cancellation = running.progress.cancellation_of(activity.name)
        self.session = running.environment.session
        self.blocksize = running.environment.blocksize
        self.scratch, self.config = running.environment.scratch, running.environment.config
        self.spent = running.spent

    @property
    def driver(self) -> Driver:
        if self._running.environment.driver is None:
            raise RequestError(
                "This resource is not a relational database.", hint="GET /resources tells the kind of each resource."
            )
        begun = partial(self._running.progress.began, self._activity)
        return self._running.environment.driver.within(self.session, begun)

    def tuples(self, source: Input[Any]) -> Stream:
        arrived = self._running.take(source)
        if isinstance(arrived, Stream):
            return arrived
        if isinstance(arrived, Encoded):
            return arrived.unencoded()
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
    first = b""
    while len(first) < 4 and (chunk := next(chunks, None)) is not None:
        first += chunk
    name = "arrow" if first.startswith(b"\xff\xff\xff\xff") else "webrowset"
    return format_named(name).decode(chain((first,), chunks))


def _is_sink(activity: Activity) -> bool:
    return not activity.outputs


def _exhaust(source: Source) -> None:
    for _ in source:
        continue
