"""One running query: its threads and files, its limits, its progress.

Whatever a query starts (threads that fetch, cursors, temporary files) belongs to an ``Execution``, and closing that
ends all of it. An execution has *attempts*: when a source is lost and no row has been returned, the runtime begins the
next attempt, after everything of the attempt before has ended.
"""

from __future__ import annotations

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import copy
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import pyarrow as pa

from dai.drivers import Part
from dai.errors import ClosedError, DaiError, InternalError
from dai.streams.cancellation import Cancellation
from dai.streams.machine import cores
from dai.streams.stream import Stream
from dai.streams.waiting import Condition
from dqp.algebra.operators import Exchange, Remote
from dqp.planning.splitting import SPLIT_ROWS

if TYPE_CHECKING:
    from dqp.planning.alternatives import Chance, Overtaking
    from dqp.planning.distribution.placement import Placement

log = logging.getLogger("dqp.execution.execution")

State = Literal["waiting", "running", "done", "failed", "stopped"]
PartKey = tuple[str, str, str]
END_SECONDS = 30.0
"""How long the end of a query waits for a thread: as long as a driver may take to cancel its statement."""


@dataclass(frozen=True, kw_only=True)
class ExecutionOptions:
    """``buffer_bytes``: of an input that wait in memory until DuckDB reads them. ``inline_bytes``: up to this size a
    build side is taken as tuples at hand. ``split_rows``: of a table from which its scan is read in ``splits`` parts
    at once. ``connections``: statements at once in one source. ``batch_bytes``: of a batch of the answer, about."""

    buffer_bytes: int = 64 << 20
    inline_bytes: int = 16 << 20
    split_rows: float = SPLIT_ROWS
    splits: int = max(2, min(4, cores()))
    connections: int = 8
    batch_bytes: int = 1 << 20


@dataclass(slots=True)
class Measurement:
    """The measurements of one node: a remote subtree (whose ``statements`` were sent to ``where``), a fragment, an
    exchange, an operation call. ``seconds`` from its begin to its end (or to now), ``first`` to its first batch;
    ``waiting``: its reader had to wait for it; ``held``: it had to wait for its reader. ``parts``: what each evaluator
    reported of it, by (evaluator, task, name of the input there). Changed under a lock by ``Measure`` only."""

    key: Hashable
    where: str = ""
    statements: tuple[str, ...] = ()
    attempt: int = 1
    state: State = "waiting"
    rows: int = 0
    bytes: int = 0
    batches: int = 0
    spooled: int = 0
    seconds: float = 0.0
    first: float | None = None
    waiting: float = 0.0
    held: float = 0.0
    profile: Mapping[str, Any] | None = None
    """What the engine says of its operators."""
    parts: Mapping[PartKey, Measurement] = field(default_factory=dict)


_FIGURES = tuple(each.name for each in fields(Measurement) if each.name not in ("key", "attempt", "parts"))


def figures_of(measurement: Measurement) -> dict[str, Any]:
    """For JSON: what ``Measure.add`` takes."""
    return {name: getattr(measurement, name) for name in _FIGURES}


class Measure:
    """Adds to one ``Measurement``; thread-safe."""

    def __init__(self, measurement: Measurement) -> None:
        self._of = measurement
        self._lock = threading.Lock()
        self._begin = time.perf_counter()
        self._parts: dict[PartKey, Measurement] = {}

    @property
    def now(self) -> Measurement:
        with self._lock:
            now = copy(self._of)
            now.parts = dict(self._parts)
        if now.state in ("waiting", "running") and not now.parts:
            now.seconds = time.perf_counter() - self._begin
        return now

    def sent(self, where: str, statement: str) -> None:
        with self._lock:
            self._of.where, self._of.state = where, "running"
            self._of.statements = (*self._of.statements, statement)

    def passed(self, batch: pa.RecordBatch) -> None:
        with self._lock:
            if self._of.first is None:
                self._of.first = time.perf_counter() - self._begin
            self._of.state = "running"
            self._of.rows += batch.num_rows
            self._of.bytes += batch.nbytes
            self._of.batches += 1

    def spooled(self, size: int) -> None:
        with self._lock:
            self._of.spooled += size

    def add(self, part: PartKey, figures: Mapping[str, Any]) -> None:
        """What an evaluator says of its part of the node, as fields of a ``Measurement``: the parts are added up, of
        times the longest counts."""
        measurement = Measurement(part, **{name: figures[name] for name in _FIGURES})
        measurement.statements = tuple(measurement.statements)
        with self._lock:
            self._parts[part] = measurement
            parts = list(self._parts.values())
            for name in ("rows", "bytes", "batches", "spooled"):
                setattr(self._of, name, sum(getattr(each, name) for each in parts))
            for name in ("seconds", "waiting", "held"):
                setattr(self._of, name, max(getattr(each, name) for each in parts))
            self._of.first = min((each.first for each in parts if each.first is not None), default=None)
            self._of.where = ", ".join(dict.fromkeys(each.where for each in parts if each.where))
            self._of.statements = tuple(dict.fromkeys(sql for each in parts for sql in each.statements))
            states = {each.state for each in parts}
            order: tuple[State, ...] = ("failed", "running", "waiting", "stopped")
            self._of.state = next((each for each in order if each in states), "done")

    def profiled(self, profile: Mapping[str, Any]) -> None:
        with self._lock:
            self._of.profile = profile

    def ended(self, state: State = "done") -> None:
        with self._lock:
            if self._of.state in ("waiting", "running"):
                self._of.state = state
                self._of.seconds = time.perf_counter() - self._begin

    @contextmanager
    def waiting(self, held: bool = False) -> Iterator[None]:
        """The block is time in which the reader waits for the node; ``held``, the node for its reader."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            with self._lock:
                if held:
                    self._of.held += seconds
                else:
                    self._of.waiting += seconds

    def stream(self, stream: Stream) -> Stream:
        """The stream, its batches counted as they pass and the time that its reader waits for them measured."""

        def passed() -> Iterator[pa.RecordBatch]:
            try:
                while True:
                    with self.waiting():
                        batch = next(stream, None)
                    if batch is None:
                        break
                    self.passed(batch)
                    yield batch
            except GeneratorExit:
                self.ended("stopped")
                raise
            except BaseException:
                self.ended("failed")
                raise
            self.ended()

        return Stream(stream.schema, passed(), stream.close)


class Slots:
    """A semaphore: so many at once, the others wait; a cancellation ends the waiting."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._changed = Condition()

    @contextmanager
    def __call__(self, cancellation: Cancellation) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: self._free, cancellation)
            self._free -= 1
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()


class Execution:
    """Thread-safe. ``cancellation`` is the caller's, ``self.cancellation`` that of the attempt under way: it fires with
    the caller's, at the first failure of anything that belongs to the attempt, and at its end. ``directory``: where
    temporary files may be made; None is the system's place for them. ``profiled``: every operator is measured.
    """

    def __init__(
        self,
        cancellation: Cancellation,
        options: ExecutionOptions | None = None,
        directory: str | Path | None = None,
        *,
        profiled: bool = False,
    ) -> None:
        self.profiled = profiled
        self.options = options or ExecutionOptions()
        self.attempt = 1
        self.placement: Placement | None = None
        """What runs, after all that was learnt, and where: leaves and exchanges are keys of measurements."""
        self.remarks: tuple[str, ...] = ()
        """What was adapted on the way, for people."""
        self.estimate: Callable[[Remote], float] | None = None
        """The rows that a statement gives, about; by one thread at a time."""
        self.chance: Chance | None = None
        """What knows the alternatives of statements that give no row in time."""
        self.overtakings: dict[Hashable, Overtaking] = {}
        """Statements beside which their alternatives were started."""
        self.cancellation = Cancellation(cancellation.span)
        self._given, self._parent = cancellation, directory
        self._lock = threading.Lock()
        self._measures: dict[tuple[Hashable, int], Measure] = {}
        self._threads: list[threading.Thread] = []
        self._slots: dict[str, Slots] = {}
        self._held = ExitStack()
        self._closed = False
        self._outer = ExitStack()
        self._outer.enter_context(cancellation.on_cancel(self._cancelled))

    def _cancelled(self) -> None:
        self.cancellation.cancel(self._given.cause)

    @property
    def tree(self) -> Hashable:
        """What runs; None before that is known."""
        return None if self.placement is None else self.placement.plan.tree

    # --- what belongs to it ---

    def directory(self) -> Path:
        """The directory for temporary files. They have no names, so that none is left however the process ends."""
        with self._lock:
            if self._closed:
                raise ClosedError("The query has ended.")
        return Path(self._parent or tempfile.gettempdir())

    def start(self, work: Callable[[], None], name: str, measure: Measure | None = None) -> None:
        """Run ``work`` in a thread. What it raises ends ``measure`` and fails the attempt under way, and no later one:
        a thread may outlive its attempt if its driver does not return."""
        cancellation = self.cancellation

        def run() -> None:
            try:
                work()
            except Exception as error:
                if measure is not None:
                    measure.ended("stopped" if cancellation.cancelled else "failed")
                if not isinstance(error, DaiError):
                    log.exception("%s failed", name)
                    error = InternalError(f"Fetching failed: {type(error).__name__}.")
                cancellation.cancel(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            if self._closed:
                raise ClosedError("The query has ended.")
            self._threads = [each for each in self._threads if each.is_alive()]
            # Inside, and before it is known: nobody joins a thread that has not begun, or that the system refused.
            thread.start()
            self._threads.append(thread)

    def slots(self, source: str) -> Slots:
        """The limit of statements that run in a source at the same time."""
        with self._lock:
            return self._slots.setdefault(source, Slots(self.options.connections))

    def beside(self, cancellation: Cancellation) -> Execution:
        """An execution for other work of the same query that can be stopped by itself, under the same limits of the
        sources."""
        other = Execution(cancellation, self.options, self._parent)
        other._slots = self._slots
        return other

    def at_end(self, close: Callable[[], None]) -> None:
        """``close`` is called when the attempt ends; the last one given first."""
        with self._lock:
            if not self._closed:
                self._held.callback(close)
                return
        close()

    def fail(self, error: DaiError) -> None:
        """The attempt cannot go on: the first cause stays, everything that belongs to it stops."""
        self.cancellation.cancel(error)

    @property
    def failure(self) -> DaiError | None:
        """Why the attempt cannot go on."""
        return self.cancellation.cause

    # --- attempts ---

    def again(self) -> None:
        """End what is under way and begin the next attempt. Raises the caller's cancellation."""
        self.stop()
        self._given.check()
        with self._lock:
            self.attempt += 1
            self._held = ExitStack()
            self.cancellation = Cancellation(self._given.span)
        if self._given.cancelled:  # between the check and the new one
            self._cancelled()

    def close(self) -> None:
        """Ends everything that was started for the query: statements are cancelled in their databases, threads have
        ended and temporary files are gone when this returns. Called again, does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        try:
            self.stop()
        finally:
            self._outer.close()

    def stop(self) -> None:
        """Ends the attempt under way: statements are cancelled, threads have ended when this returns."""
        self.cancellation.cancel(ClosedError("The query has ended."))
        with self._lock:
            threads, self._threads = self._threads, []
            held, self._held = self._held, ExitStack()
        try:
            held.close()
        finally:
            deadline = time.monotonic() + END_SECONDS
            for thread in threads:
                if thread is not threading.current_thread():
                    thread.join(max(0.0, deadline - time.monotonic()))
                    if thread.is_alive():
                        log.warning("%s has not ended in time", thread.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- how far it is ---

    def measure(self, key: Hashable, where: str = "") -> Measure:
        """What measures a node in the attempt under way: the same for the same key."""
        with self._lock:
            at = (key, self.attempt)
            measure = self._measures.get(at)
            if measure is None:
                measure = self._measures[at] = Measure(Measurement(key, where, attempt=self.attempt))
            return measure

    def parts(self) -> tuple[Part, ...]:
        """The progress of the attempt under way by place: sources, operation calls, and every fragment on every
        evaluator. Rows in an exchange, or on the way to an operation call, are counted where they come from. From any
        thread."""
        parts: list[Part] = []
        for each in self.measurements():
            if each.attempt != self.attempt or isinstance(each.key, Exchange | tuple):
                continue
            if isinstance(each.key, str) and each.parts:
                parts += [_part(f"{each.key} at {where}", one) for (where, _, _), one in each.parts.items()]
            else:
                parts.append(_part(each.where or str(each.key), each, self.expected(each.key)))
        return tuple(parts)

    def expected(self, key: Hashable) -> int | None:
        """The rows that are expected of a remote subtree; None for other keys, or where nobody knows."""
        if self.estimate is None or not isinstance(key, Remote):
            return None
        with self._lock:
            return round(self.estimate(key))

    def measurements(self) -> tuple[Measurement, ...]:
        """The measurements of all nodes, in the order in which they began, earlier attempts first. From any thread."""
        with self._lock:
            measures = list(self._measures.values())
        return tuple(each.now for each in measures)


def _part(name: str, of: Measurement, expected: int | None = None) -> Part:
    return Part(name, of.state, of.rows, of.bytes, round(of.seconds, 6), expected)
