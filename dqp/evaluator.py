"""An evaluator: runs the fragments that a coordinator gives it and hands their rows to whoever has the ticket.

Each task runs in a thread of its own, on one DuckDB for all queries. Its inputs are fetched by further threads, from
data services, from the ports of other processes, through operation calls; its rows wait in an ``Outbox`` for readers.
What it is told by a coordinator is bounded by its own settings: the services it may ask, the Python it may call.
A coordinator whose connection breaks has gone; one that is silent is asked whether it lives, and its fragments end when
it does not say so for long: nothing is kept for a process that has stopped, or is behind a network that has parted.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow as pa

from dai.cancellation import Cancellation
from dai.errors import ClosedError, DaiError, DataError, DeniedError, InternalError, UnreachableError
from dai.stream import Stream
from dqp.buffer import Buffer
from dqp.errors import EvaluatorLostError
from dqp.exchange import BLOCK_BYTES, distribute
from dqp.execution import Execution, ExecutionOptions, Measure, Measurement, figures_of
from dqp.fetch import Asked, Lost, brought, first_of
from dqp.flight import FlightPort, is_loopback
from dqp.flight_client import fetch, health
from dqp.fragment import Engine
from dqp.heartbeat import AFTER, Heartbeat
from dqp.leaves import over, read_as, restored
from dqp.operations import calling
from dqp.outbox import Outbox
from dqp.profile import bounded
from dqp.sources import ServiceSource
from dqp.wire import Body, Called, Received, RemoteInput, Task, Tuples

log = logging.getLogger("dqp.evaluator")

BEAT = 1.0
"""Seconds between two reports of work that goes on: what a coordinator takes for a sign of life."""
STARTED = 300.0
"""Seconds that a fragment waits for the evaluator to have the task that it reads from: that may wait for its turn. The
coordinator, who sees to it, is quicker."""
BUCKET = "bucket of the row"
LOOPBACK = ("http://127.0.0.1", "http://localhost", "http://[::1]")
SPLIT_BLOCKS = 8
"""Of a batch that is split, at most."""
ANSWER = 3.0
"""Seconds in which a coordinator has to answer when it is asked whether it lives."""
_KEPT = 256
"""Resources whose connections are kept, and coordinators."""


@dataclass(frozen=True, kw_only=True)
class EvaluatorSettings:
    """``flight_host`` and ``flight_port`` (0: a free one): where exchanges are served. ``memory_bytes``: what DuckDB
    holds for all queries together before it spills (0: its own limit); ``exchange_bytes`` and ``buffer_bytes``: what
    one output and one input hold. ``directory``: for what does not fit; the system's place for temporary files unless
    given. ``silence``: seconds that a coordinator may not say that it lives, until its fragments end. ``sources``:
    prefixes of the addresses of resources and operations that may be asked; ``python``: functions
    ``package.module:function`` that may be called."""

    flight_host: str = "127.0.0.1"
    flight_port: int = 0
    memory_bytes: int = 0
    exchange_bytes: int = 64 << 20
    buffer_bytes: int = 64 << 20
    directory: Path | None = None
    silence: float = 60.0
    sources: tuple[str, ...] = LOOPBACK
    python: tuple[str, ...] = ()


class Evaluator:
    """Listens from the start; ConfigurationError where it cannot. Thread-safe."""

    def __init__(self, settings: EvaluatorSettings = EvaluatorSettings()) -> None:
        self.settings = settings
        self.port = FlightPort(settings.flight_host, settings.flight_port)
        directory = None if settings.directory is None else str(settings.directory)
        self.engine = Engine(memory_bytes=settings.memory_bytes, directory=directory)
        self._sources: dict[str, ServiceSource] = {}
        self._coordinators: dict[str, Heartbeat] = {}
        self._lock = threading.Lock()
        self._works: set[Work] = set()

    def begin(self, tasks: Sequence[Task], cancellation: Cancellation) -> Work:
        """Begins the tasks, which belong to one attempt of one query. DeniedError for what the settings do not allow;
        nothing has begun then."""
        for each in tasks:
            self._check_port(each.coordinator)
            self._check(each.body)
        work = Work(self, tasks, cancellation)
        with self._lock:
            self._works.add(work)
        try:
            work.begin()
        except DaiError:
            self.ended(work)
            raise
        return work

    def ended(self, work: Work) -> None:
        with self._lock:
            self._works.discard(work)

    def state(self) -> Mapping[str, Any]:
        with self._lock:
            works = len(self._works)
        return {**self.port.health(), "address": self.port.address, "works": works}

    def source(self, alias: str, address: str) -> ServiceSource:
        """The resource at an address, with its connections."""
        with self._lock:
            found = self._sources.get(address)
            if found is None:
                while len(self._sources) >= _KEPT:
                    self._sources.pop(next(iter(self._sources))).close()
                found = self._sources[address] = ServiceSource(alias, address)
            return found

    def coordinator(self, address: str) -> Heartbeat:
        """The coordinator whose Flight port has the address."""

        def ask() -> None:
            try:
                health(address, timeout=ANSWER)
            except EvaluatorLostError as error:
                raise UnreachableError(error.detail) from error

        with self._lock:
            found = self._coordinators.get(address)
            if found is None:
                while len(self._coordinators) >= _KEPT:
                    self._coordinators.pop(next(iter(self._coordinators)))
                after = min(AFTER, self.settings.silence)
                found = Heartbeat(ask, "The coordinator", patience=self.settings.silence, after=after)
                self._coordinators[address] = found
            return found

    def _check(self, body: Body) -> None:
        for each in body.inputs.values():
            if isinstance(each, RemoteInput):
                for _, address, _ in each.places:
                    self._check_address(address)
            elif isinstance(each, Received):
                for address, _ in each.tickets:
                    self._check_port(address)
            elif isinstance(each, Called):
                self._check(each.below)
                function = each.operation.python
                if each.operation.url is not None:
                    self._check_address(each.operation.url)
                if function is not None and function not in self.settings.python:
                    raise DeniedError(
                        f"This evaluator does not call the Python function {function}.",
                        hint="Who runs it may allow it: python in [roles.evaluator].",
                    )

    def _check_port(self, address: str) -> None:
        if not is_loopback(address.rpartition(":")[0].strip("[]")):
            raise DeniedError(f"An evaluator without TLS and identity does not read from {address}.")

    def _check_address(self, address: str) -> None:
        if not any(_within(address, each) for each in self.settings.sources):
            raise DeniedError(
                f"This evaluator does not ask {address}.",
                hint="Who runs it may allow it: sources in [roles.evaluator].",
            )

    def close(self) -> None:
        with self._lock:
            works = list(self._works)
        for each in works:
            each.close()
        self.port.close()
        self.engine.close()
        for source in self._sources.values():
            source.close()


def _within(address: str, prefix: str) -> bool:
    """Whether an address lies below a prefix; without a port in the prefix, at any."""
    given, allowed = urlsplit(address), urlsplit(prefix)
    try:
        same = allowed.port is None or given.port == allowed.port
    except ValueError:
        return False
    path = allowed.path.rstrip("/")
    return (
        same
        and "@" not in given.netloc
        and (given.scheme, given.hostname) == (allowed.scheme, allowed.hostname)
        and (given.path == path or given.path.startswith(path + "/"))
        and not {"..", "."} & set(unquote(given.path).split("/"))
    )


class Work:
    """The tasks of one attempt of a query on one evaluator. Close it: what still runs stops, and nothing of it is left
    when that returns."""

    def __init__(self, evaluator: Evaluator, tasks: Sequence[Task], cancellation: Cancellation) -> None:
        self._evaluator, self.tasks = evaluator, tasks
        self._given, self._cancellation = cancellation, Cancellation()
        self._attempts = {(each.query, each.attempt) for each in tasks}
        self._runs = [_Run(evaluator, each, self._cancellation, self._tell) for each in tasks]
        self._threads = [threading.Thread(target=each, name="dqp-fragment", daemon=True) for each in self._runs]
        self._changed = threading.Condition()
        self._news = True  # that the work has begun: a coordinator waits for it
        self._held = ExitStack()

    def begin(self) -> None:
        self._held.enter_context(self._given.on_cancel(self._stop))
        for query, attempt in self._attempts:
            self._evaluator.port.expect(query, attempt)
        for address in {each.coordinator for each in self.tasks}:
            silent = Cancellation()
            self._held.enter_context(silent.on_cancel(self._forsaken))
            self._held.enter_context(self._evaluator.coordinator(address).waiting(silent))
        for each in self._threads:
            each.start()

    def _stop(self) -> None:
        self._cancellation.cancel(self._given.cause)
        self._tell()

    def _forsaken(self) -> None:
        seconds = self._evaluator.settings.silence
        self._given.cancel(
            EvaluatorLostError(
                f"The coordinator has not said for {seconds:g} s that it lives; its fragments were ended.",
                hint="Ask again.",
            )
        )

    def _tell(self) -> None:
        with self._changed:
            self._news = True
            self._changed.notify_all()

    def reports(self) -> Iterator[list[dict[str, Any]]]:
        """How every task stands: at once, when one has ended, and at least every BEAT seconds; at last when all have.
        After a failure that is when the coordinator has ended the work: until then, readers are told the reason. Raises
        the cancellation's cause."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._news, BEAT)
                self._news = False
            self._given.check()
            over = all(each.ended and not each.failed for each in self._runs)
            yield [each.report() for each in self._runs]
            if over:
                return

    def close(self) -> None:
        self._cancellation.cancel(ClosedError("The query has ended."))
        self._held.close()
        for each in self._threads:
            each.join()
        for query, attempt in self._attempts:
            self._evaluator.port.withdraw(query, attempt)
        self._evaluator.ended(self)


class _Run:
    """One task."""

    def __init__(self, evaluator: Evaluator, task: Task, cancellation: Cancellation, tell: Callable[[], None]) -> None:
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
            found = engine.run(sql, inputs, self._execution, types=task.types, measure=measure)
            calls.pop_all()
        return measure.stream(found)

    def _opened(self, body: Body, prefix: str, calls: ExitStack) -> tuple[str, dict[str, Stream | pa.Table]]:
        """The SQL and what it reads. Everything is begun before anything is waited for. ``calls`` closes what begins
        to run here."""
        inputs: dict[str, Stream | pa.Table] = {}
        tables: list[tuple[str, str]] = []
        arriving: dict[str, _Arriving] = {}
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

    def _arriving(self, given: RemoteInput | Received, key: str) -> _Arriving:
        measure = self._execution.measure(key)
        if isinstance(given, RemoteInput):
            names = [name for name, _ in given.columns]
            return _Arriving([partial(self._ask, given, measure)], names, self._execution, measure)
        names_of = None if given.columns is None else [name for name, _ in given.columns]
        fetches = [partial(self._fetch, address, ticket) for address, ticket in given.tickets]
        return _Arriving(fetches, names_of, self._execution, measure)

    def _fetch(self, address: str, ticket: Any, arriving: _Arriving) -> None:
        with fetch(address, ticket, cancellation=self._execution.cancellation, timeout=STARTED) as stream:
            arriving.take(stream)

    def _ask(self, given: RemoteInput, measure: Measure, arriving: _Arriving) -> None:
        asked = []
        for number, (alias, address, sql) in enumerate(given.places):
            tables = given.tables if number < given.bringing else {}
            asked.append(Asked(alias, sql, partial(self._take, alias, address, sql, tables, arriving), bool(tables)))
        first_of(asked, measure, self._execution.cancellation, Lost())

    def _take(
        self,
        alias: str,
        address: str,
        sql: str,
        tables: Mapping[str, pa.Table],
        arriving: _Arriving,
        touched: Callable[[], None],
    ) -> None:
        source = self._evaluator.source(alias, address)
        with source.query(sql, cancellation=self._execution.cancellation, **brought(tables)) as stream:
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


class _Arriving:
    """An input that threads of the execution fetch, into a bounded buffer: what cannot wait in memory is spooled while
    DuckDB does not read it yet. ``names``: of the columns, as they come unless given."""

    def __init__(
        self,
        fetches: Sequence[Callable[[_Arriving], None]],
        names: Sequence[str] | None,
        execution: Execution,
        measure: Measure,
    ) -> None:
        self._names, self._cancellation, self._measure = names, execution.cancellation, measure
        capacity = execution.options.buffer_bytes
        self._buffer = Buffer(capacity, len(fetches), execution.directory, execution.cancellation, measure)
        execution.at_end(self._buffer.close)
        self._known = threading.Condition()
        self._schema: pa.Schema | None = None
        for each in fetches:
            execution.start(partial(self._run, each), "dqp-arriving")

    def _run(self, fetch: Callable[[_Arriving], None]) -> None:
        fetch(self)
        self._buffer.finish()

    def take(self, stream: Stream, touched: Callable[[], None] = lambda: None) -> None:
        """All rows of one producer; ``touched`` is called when the first have come."""
        given = stream.schema
        if self._names is not None:
            if len(given) != len(self._names):
                raise InternalError("A source gave another number of columns than its statement has.")
            given = pa.schema(list(zip(self._names, given.types, strict=True)))
        with self._known:
            if self._schema is None:
                self._schema = given
                self._known.notify_all()
            elif not self._schema.equals(given):
                raise DataError("Two parts of one input have columns of different types: has the table been changed?")
        for batch in stream:
            if batch.num_rows:
                self._buffer.put(pa.RecordBatch.from_arrays(batch.columns, schema=self._schema))
                touched()

    def stream(self) -> Stream:
        """The rows as they arrive; waits until the first producer has begun."""
        with self._known, self._measure.waiting(), self._cancellation.on_cancel(self._wake):
            while self._schema is None:
                self._cancellation.check()
                self._known.wait()
        return Stream(self._schema, iter(self._buffer))

    def _wake(self) -> None:
        with self._known:
            self._known.notify_all()


def _raise(error: DaiError, cancellation: Cancellation) -> Stream:
    raise error


def _figures(measurement: Measurement) -> dict[str, Any]:
    profile = measurement.profile
    return {**figures_of(measurement), "profile": None if profile is None else bounded(profile)}
