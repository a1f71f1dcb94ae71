"""One task on an evaluator: its SQL over its inputs, its rows in an outbox for whoever has the tickets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from dai.errors import ClosedError, DaiError, InternalError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.catalog.sources import Source
from dqp.execution.arriving import Arriving
from dqp.execution.engine import Engine
from dqp.execution.exchange.exchange import BLOCK_BYTES, distribute
from dqp.execution.exchange.outbox import Outbox
from dqp.execution.execution import Execution, ExecutionOptions, Measure, Measurement, figures_of
from dqp.execution.fetch import Asked, Lost, brought, checked, first_of
from dqp.execution.leaves import over, read_as, restored
from dqp.execution.profile import bounded
from dqp.execution.service_calls import calling
from dqp.runtimes.flight.client import fetch
from dqp.runtimes.flight.server import FlightPort
from dqp.runtimes.wire import Body, Called, Received, RemoteInput, Task, Tuples
from dqp.settings import EvaluatorSettings

log = logging.getLogger("dqp.runtimes.task")

STARTED = 300.0
"""Seconds that a fragment waits for the evaluator to have the task that it reads from: that may wait for its turn. The
coordinator, who sees to it, is quicker."""
BUCKET = "bucket of the row"
SPLIT_BLOCKS = 8
"""Of a batch that is split, at most."""


class Host(Protocol):
    """What a task needs of the evaluator that runs it."""

    settings: EvaluatorSettings
    port: FlightPort
    engine: Engine

    def source(self, alias: str, address: str) -> Source:
        """The resource at an address, whose connections are kept."""


class TaskRun:
    """One task, in the thread that calls it. ``tell`` is called when it has ended."""

    def __init__(self, evaluator: Host, task: Task, cancellation: Cancellation, tell: Callable[[], None]) -> None:
        self._evaluator, self._task, self._tell = evaluator, task, tell
        settings = evaluator.settings
        # A batch that is split is as large as a block for each of its parts, so that none has to be joined again.
        parts = 1 if task.bucket is None else min(task.partitions, SPLIT_BLOCKS)
        options = ExecutionOptions(buffer_bytes=settings.buffer_bytes, batch_bytes=parts * BLOCK_BYTES)
        self._execution = Execution(cancellation, options, settings.directory, profiled=task.profiled)
        self._measure = self._execution.measure("", "")
        self._wanted = True
        self._failure: DaiError | None = None
        self.ended = False

    def __call__(self) -> None:
        try:
            with self._execution:
                self._perform()
        except DaiError as error:
            if self._wanted:
                self._failure = error
        except Exception as error:
            log.exception("a fragment failed")
            self._failure = InternalError(f"A fragment failed: {type(error).__name__}.")
        finally:
            self._measure.ended("done" if self._failure is None else "failed")
            self.ended = True
            self._tell()

    def _perform(self) -> None:
        task, execution = self._task, self._execution
        cancellation = execution.cancellation
        port = self._evaluator.port
        try:
            stream = self._stream()
            try:
                outbox = self._outbox(stream.schema)
            except BaseException:
                stream.close()
                raise
        except DaiError as error:
            for reader in range(task.partitions * task.copies):
                with suppress(DaiError):
                    port.publish(task.ticket(reader), partial(_raise, error))
            raise
        try:
            for reader in range(outbox.readers):
                port.publish(task.ticket(reader), partial(outbox.stream, reader))
            distribute(stream, outbox, cancellation, buckets=None if task.bucket is None else BUCKET)
            outbox.wait(cancellation)
        finally:
            stream.close()
            outbox.close()

    def _outbox(self, schema: pa.Schema) -> Outbox:
        task = self._task
        if task.bucket is not None:
            schema = schema.remove(schema.get_field_index(BUCKET))
        return Outbox(
            schema,
            task.partitions,
            copies=task.copies,
            memory_bytes=self._evaluator.settings.exchange_bytes,
            directory=self._execution.directory() if task.partitions * task.copies > 1 else None,
            broadcast=task.broadcast,
            abandoned=self._abandoned,
            measure=self._measure,
        )

    def _abandoned(self) -> None:
        """All readers left before the end: they have what they wanted."""
        self._wanted = False
        self._measure.ended("stopped")
        self._execution.fail(ClosedError("All readers of this fragment have left."))

    def _stream(self) -> Stream:
        task = self._task
        engine, measure = self._evaluator.engine, self._measure
        with ExitStack() as calls:
            sql, inputs = self._opened(task.body, "", calls)
            if task.bucket is not None:
                sql = f'SELECT *, {task.bucket} AS "{BUCKET}" FROM (\n{sql}\n)'
            measure.sent("", sql)
            found = engine.run(sql, inputs, self._execution, names=task.names, types=task.types, measure=measure)
            calls.pop_all()
        return measure.stream(found)

    def _opened(self, body: Body, prefix: str, calls: ExitStack) -> tuple[str, dict[str, Stream | pa.Table]]:
        """The SQL and what it reads. Everything is begun before anything is waited for. ``calls`` closes what begins
        to run here."""
        inputs: dict[str, Stream | pa.Table] = {}
        tables: list[tuple[str, str]] = []
        arriving: dict[str, Arriving] = {}
        for name, each in body.inputs.items():
            if isinstance(each, RemoteInput | Received):
                arriving[name] = self._arriving(each, prefix + name)
        for name, each in body.inputs.items():
            if isinstance(each, Called):
                inputs[name] = stream = self._called(each, prefix + name)
                calls.callback(stream.close)
                tables.append((name, restored(name, stream.schema)))
                continue
            if isinstance(each, Tuples):
                inputs[name] = each.data
            elif isinstance(each, Received) and each.whole:
                inputs[name] = arriving[name].stream().table()
            else:
                inputs[name] = arriving[name].stream()
            schema = inputs[name].schema
            if each.columns is not None:
                types = dict(each.columns)
                tables.append((name, read_as(name, [one for one, _ in each.columns], schema, types)))
            elif isinstance(each, Received) and not each.whole:
                tables.append((name, restored(name, schema)))
        return over(body.sql, tables, body.repeated.__contains__), inputs

    def _arriving(self, given: RemoteInput | Received, key: str) -> Arriving:
        measure = self._execution.measure(key)
        if isinstance(given, RemoteInput):
            names = [name for name, _ in given.columns]
            return Arriving([partial(self._ask, given, measure)], names, self._execution, measure)
        names_of = None if given.columns is None else [name for name, _ in given.columns]
        fetches = [partial(self._fetch, address, ticket) for address, ticket in given.tickets]
        return Arriving(fetches, names_of, self._execution, measure)

    def _fetch(self, address: str, ticket: Any, arriving: Arriving) -> None:
        with fetch(address, ticket, cancellation=self._execution.cancellation, timeout=STARTED) as stream:
            arriving.take(stream)

    def _ask(self, given: RemoteInput, measure: Measure, arriving: Arriving) -> None:
        asked = []
        for number, (alias, _, sql) in enumerate(given.places):
            brings = number < given.bringing and bool(given.tables)
            asked.append(Asked(alias, sql, partial(self._take, given, number, arriving), brings))
        first_of(asked, measure, self._execution.cancellation, Lost())

    def _take(self, given: RemoteInput, number: int, arriving: Arriving, touched: Callable[[], None]) -> None:
        alias, address, sql = given.places[number]
        tables = given.tables if number < given.bringing else {}
        source = self._evaluator.source(alias, address)
        stream = source.query(sql, cancellation=self._execution.cancellation, **brought(tables))
        with checked(stream, given.promise):
            arriving.take(stream, touched)

    def _called(self, given: Called, key: str) -> Stream:
        """The rows below an operation call, with its results."""
        execution, operation = self._execution, given.operation
        measure = execution.measure(key + "/")
        with ExitStack() as calls:
            sql, inputs = self._opened(given.below, key + "/", calls)
            measure.sent("", sql)
            below = measure.stream(self._evaluator.engine.run(sql, inputs, execution, measure=measure))
            calls.callback(below.close)
            made = calling(operation, below, given.kept, given.identifier, execution, key)
            calls.pop_all()
        return made

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def report(self) -> dict[str, Any]:
        """For JSON: what is measured, by input (the fragment itself is ``""``), and the problem that ended it."""
        ended = self.ended
        measures = {str(each.key): _figures(each) for each in self._execution.measurements()}
        problem = None if self._failure is None else self._failure.problem()
        return {"task": self._task.name, "ended": ended, "problem": problem, "measures": measures}


def _raise(error: DaiError, cancellation: Cancellation) -> Stream:
    raise error


def _figures(measurement: Measurement) -> dict[str, Any]:
    profile = measurement.profile
    return {**figures_of(measurement), "profile": None if profile is None else bounded(profile)}
