"""One task on an evaluator: its SQL over its inputs, its rows in an outbox for whoever has the tickets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from dai.errors import ClosedError, DaiError, InternalError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.catalog.sources.source import Source
from dqp.execution.arriving import Arriving
from dqp.execution.engine import Engine
from dqp.execution.exchange.exchange import BLOCK_BYTES, distribute
from dqp.execution.exchange.outbox import Outbox
from dqp.execution.execution import Execution, ExecutionOptions, Measure, Measurement, figures_of
from dqp.execution.fetch import Asked, Lost, first_of
from dqp.execution.fragment import Begun, FragmentRunner
from dqp.execution.profile import bounded
from dqp.runtimes.flight.client import fetch
from dqp.runtimes.flight.server import FlightPort
from dqp.runtimes.wire import Received, RemoteInput, Task
from dqp.settings import EvaluatorSettings, TlsSettings

log = logging.getLogger("dqp.runtimes.task")

STARTED = 300.0
"""Seconds that a fragment waits until an evaluator has the task that it reads from, which may have to wait for its
turn. The coordinator notices a failure sooner."""
BUCKET = "bucket of the row"
SPLIT_BLOCKS = 8
"""Most blocks of a batch that is split."""


class Host(Protocol):
    """What a task needs of the evaluator that runs it."""

    settings: EvaluatorSettings
    port: FlightPort
    engine: Engine
    tls: TlsSettings | None

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
        above = cancellation.span
        self._span = None if above is None else above.child("fragment", {"dqp.fragment": task.name})
        cancellation = cancellation.under(self._span)
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
            if self._span is not None:
                self._span.end(self._failure)
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
        """All readers left before the end: they need no more rows."""
        self._wanted = False
        self._measure.ended("stopped")
        self._execution.fail(ClosedError("All readers of this fragment have left."))

    def _stream(self) -> Stream:
        task, body = self._task, self._task.body
        if task.bucket is not None:
            body = replace(body, sql=f'SELECT *, {task.bucket} AS "{BUCKET}" FROM (\n{body.sql}\n)')
        runner = FragmentRunner(self._evaluator.engine, self._execution, self._start)
        return runner.run(body, task.names, task.types)

    def _start(self, path: str, fetched: RemoteInput | Received) -> Begun:
        measure = self._execution.measure(path)
        names = None if fetched.columns is None else [name for name, _ in fetched.columns]
        if isinstance(fetched, RemoteInput):
            arriving = Arriving([partial(self._ask, fetched, measure)], names, self._execution, measure)
            return Begun(arriving, fetched.columns)
        fetches = [partial(self._fetch, address, ticket) for address, ticket in fetched.tickets]
        return Begun(Arriving(fetches, names, self._execution, measure), fetched.columns, fetched.whole)

    def _fetch(self, address: str, ticket: Any, arriving: Arriving) -> None:
        tls, cancellation = self._evaluator.tls, self._execution.cancellation
        with fetch(address, ticket, cancellation=cancellation, timeout=STARTED, tls=tls) as stream:
            arriving.take(stream)

    def _ask(self, remote: RemoteInput, measure: Measure, arriving: Arriving) -> None:
        asked = []
        for number, (alias, _, sql) in enumerate(remote.places):
            brings = number < remote.bringing and bool(remote.tables)
            asked.append(Asked(alias, sql, partial(self._take, remote, number, arriving), brings))
        first_of(asked, measure, self._execution.cancellation, Lost())

    def _take(self, remote: RemoteInput, number: int, arriving: Arriving, touched: Callable[[], None]) -> None:
        alias, address, sql = remote.places[number]
        tables = remote.tables if number < remote.bringing else {}
        source = self._evaluator.source(alias, address)
        stream = source.query(sql, cancellation=self._execution.cancellation, tables=tables)
        with remote.promise.checked(stream):
            arriving.take(stream, touched)

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
