"""A query under way: its plan runs, perhaps after a top-N probe has."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from dai.drivers.sql.meanings import with_meanings
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import Operator
from dqp.catalog.diagnosis import pointed
from dqp.coordinator.plans import Planned, not_too_deep
from dqp.execution.execution import Execution
from dqp.planning import top_n
from dqp.planning.context import Context
from dqp.planning.distribution.placement import Placement
from dqp.planning.learning import LEAST_SECONDS, learn
from dqp.planning.rules import optimise
from dqp.runtimes import Runtime

Begun = Callable[[Execution], None]


def unwatched(execution: Execution) -> None:
    """Nobody asks how far a query is."""


@dataclass(frozen=True)
class Running:
    """A query that has begun. Closing ``stream`` stops its statements and fragments. ``remarks``: which parts no source
    runs, and why; how the plan has changed since the query began."""

    planned: Planned
    execution: Execution
    stream: Stream
    context: Context
    noted: tuple[str, ...] = ()

    @property
    def remarks(self) -> tuple[str, ...]:
        return (
            *self.context.remarks,
            *self.noted,
            *self.execution.remarks,
            *map(str, self.execution.overtakings.values()),
        )

    @property
    def placement(self) -> Placement:
        """The fragments that run, and where each runs."""
        return self.execution.placement or Placement.here(self.planned.tree)


class Runner:
    """Begins queries that are planned. Thread-safe."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def run(
        self,
        planned: Planned,
        *,
        cancellation: Cancellation,
        begun: Begun = unwatched,
        profiled: bool = False,
    ) -> Running:
        """Begins the query; its schema is known when this returns. ``profiled``: every operator is measured.
        ChangedError where a table was changed since it was planned."""
        execution = Execution(cancellation, profiled=profiled)
        begin = time.perf_counter()
        try:
            begun(execution)
            with not_too_deep():
                running = self._bounded(planned, execution)
                if running is None:
                    running = self._run(planned, planned.tree, planned.context, execution)
        except BaseException:
            execution.close()
            raise
        stream = running.stream
        close = partial(_finish, stream, execution)
        rows = _finishing(stream, execution, planned.sql, partial(self._learn, running, begin))
        schema = with_meanings(stream.schema, planned.meanings) if planned.meanings else stream.schema
        return replace(running, stream=Stream(schema, rows, close))

    def _learn(self, running: Running, begin: float) -> None:
        """From a query that ended, what its next plan may know."""
        planned, execution, seconds = running.planned, running.execution, time.perf_counter() - begin
        if seconds >= LEAST_SECONDS:
            measured, overtakings = execution.measurements(), execution.overtakings.values()
            learn(planned.sql, seconds, planned.tree, running.context, measured, overtakings)

    def _run(self, planned: Planned, tree: Operator, context: Context, execution: Execution) -> Running:
        names, types = planned.bound.names, planned.bound.types
        execution.estimate = context.estimator.again().rows
        stream = self._runtime.run(tree, names, types, context, execution)
        return Running(planned, execution, stream, context)

    def _bounded(self, planned: Planned, execution: Execution) -> Running | None:
        """The query with a bound for its first N, where that gives N rows: these are few, and read here."""
        probe = planned.probe
        if probe is None:
            return None
        values = self._runtime.fetch(probe.remote, execution)
        smaller = top_n.filtered(planned.bound.tree, values, probe)
        if smaller is None:
            return None
        context = replace(planned.context.anew(smaller), cancellation=execution.cancellation)
        running = self._run(planned, optimise(smaller, context), context, execution)
        with running.stream as stream:
            table = stream.table()
        if table.num_rows < probe.rows:
            execution.again()
            return None
        remark = f"{probe.remote.source} was asked first for a bound of the first {probe.rows:,} rows"
        return replace(running, stream=Stream.of(table), noted=(remark,))


def _finishing(stream: Stream, execution: Execution, sql: str, ended: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """The stream; at its end ``ended`` is called. Then, at its failure or when it is closed, the execution closes."""
    with pointed(sql), execution, stream:
        yield from stream
        ended()


def _finish(stream: Stream, execution: Execution) -> None:
    """Where nobody pulled, the stream is still to be closed."""
    with execution, stream:
        pass
