"""One attempt of a query on several evaluators: the tasks of its plan, the evaluators' reports, the rows."""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Protocol

import pyarrow as pa

from dai.client.http.problems import from_problem
from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dai.streams.waiting import Condition
from dqp.algebra.arrival import Promise
from dqp.algebra.operators import Call, Receive, Remote
from dqp.algebra.types import arrow_type
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.service import ServiceSource
from dqp.errors import EvaluatorLostError
from dqp.execution.execution import Execution
from dqp.execution.fetch import LOST, Place, places, probe
from dqp.execution.fragment import Body, Columns, Leaf, Tuples, body_of
from dqp.execution.readings import Readings
from dqp.execution.service_calls import Operation
from dqp.planning.distribution.partition import Fragment, Plan
from dqp.planning.distribution.placement import places_of
from dqp.planning.splitting import parts
from dqp.runtimes.flight.client import fetch, reached
from dqp.runtimes.flight.server import FlightPort, Ticket, new_token
from dqp.runtimes.wire import Input, Received, RemoteInput, Task
from dqp.settings import TlsSettings

ANSWER = 3.0
"""Seconds in which an evaluator must answer a question for a sign of life."""
EMBEDDED_BYTES = 256 << 10
"""Tuples at hand up to this size travel with a task; larger ones are fetched from the coordinator's port."""
PROFILES, REPORTS = 5.0, 0.25
"""Seconds that the end of a query waits for the last reports of its evaluators: for EXPLAIN ANALYZE, and for progress
alone."""


class RemoteEvaluator(ABC):
    """One evaluator as its coordinator sees it. ``name`` is for people, ``tls`` that of the exchanges."""

    def __init__(self, name: str, tls: TlsSettings | None = None) -> None:
        self.name, self.tls = name, tls
        self._lock = threading.Lock()
        self._address: str | None = None

    @property
    def address(self) -> str:
        """That of its Flight port, asked for once. Raises EvaluatorLostError where it cannot be asked,
        ConfigurationError where its port is not reached from here."""
        with self._lock:
            if self._address is None:
                self._address = reached(self.name, self.ask, timeout=ANSWER, tls=self.tls)
            return self._address

    def forget(self) -> None:
        """Forgets the address, which may be wrong, so that it is asked for again."""
        with self._lock:
            self._address = None

    @abstractmethod
    def ask(self) -> tuple[str, str | None]:
        """The address of its Flight port, and which instance of it that is."""

    @abstractmethod
    def run(
        self, tasks: Sequence[Task], cancellation: Cancellation, *, waits: bool
    ) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Runs the tasks: their reports (``dqp.runtimes.evaluator.Work.reports``), the first, perhaps empty, as soon as
        they are taken. Closing the generator, or cancelling, ends them. ``waits``: for a turn, where there is none yet.
        Raises EvaluatorLostError when it is gone, BusyError, which names it as ``evaluator``, when it has no turn."""

    @abstractmethod
    def close(self) -> None:
        """Frees what its coordinator holds for it."""


class Coordinating(Protocol):
    """What an attempt needs of the runtime that it belongs to. ``port`` is the coordinator's own Flight port."""

    @property
    def catalog(self) -> Catalog: ...

    @property
    def port(self) -> FlightPort: ...

    def operation(self, name: str) -> Operation: ...

    def loaded(self, evaluator: RemoteEvaluator, tasks: int) -> AbstractContextManager[None]:
        """While the block runs the evaluator has so many tasks more."""


class Attempt:
    """Makes the tasks of a plan, has them run, and gives the rows of the root."""

    def __init__(
        self,
        runtime: Coordinating,
        plan: Plan,
        evaluators: Sequence[tuple[RemoteEvaluator, str]],
        execution: Execution,
        readings: Readings,
        at_hand: Mapping[Remote, pa.Table],
    ) -> None:
        self._runtime, self._plan, self._evaluators, self._execution = runtime, plan, evaluators, execution
        self._readings, self._at_hand, self._lost = readings, at_hand, readings.lost
        self._query, self._token = uuid.uuid4().hex, new_token()
        self._cancellation = execution.cancellation
        self._keys: dict[tuple[str, str], Hashable] = {}
        self._conducting = 0
        self._over = False
        self._reported = Condition()
        self._published = count(1)
        self._tasks: dict[int, list[Task]] = {}
        self._places = places_of(plan, len(evaluators))
        """Of each fragment the evaluators of its instances, by number."""

    def start(self, names: Sequence[str], types: Sequence[str]) -> Stream:
        """The rows of the root, once it has begun."""
        execution = self._execution
        for fragment in self._plan.fragments:
            for instance, place in enumerate(self._places[fragment.id]):
                task = self._task(fragment, instance, tuple(names), tuple(types))
                self._tasks.setdefault(place, []).append(task)
        self._conducting = len(self._tasks)
        waits = execution.attempt > 1
        for place, tasks in sorted(self._tasks.items(), key=lambda each: self._evaluators[each[0]][1]):
            taken = threading.Event()
            conduct = partial(self._conduct, self._evaluators[place][0], tasks, taken, waits)
            execution.start(conduct, "dqp-evaluator")
            if waits:
                with execution.cancellation.on_cancel(taken.set):
                    taken.wait()
        root = self._plan.root
        evaluator, address = self._evaluators[self._places[root.id][0]]
        with self._named():
            ticket = self._ticket(root, 0, 0)
            stream = fetch(address, ticket, cancellation=execution.cancellation, tls=evaluator.tls)
        return Stream(stream.schema, self._to_the_end(stream), stream.close)

    def _to_the_end(self, stream: Stream) -> Iterator[pa.RecordBatch]:
        """The rows; after the last one, waits a little for the evaluators' reports."""
        with self._named(), stream:
            yield from stream
        cancellation = self._execution.cancellation
        with self._reported:
            self._over = True
            patience = PROFILES if self._execution.profiled else REPORTS
            self._reported.wait_for(lambda: not self._conducting, cancellation, patience)

    @contextmanager
    def _named(self) -> Iterator[None]:
        """The error with the name of an evaluator whose port is gone."""
        try:
            yield
        except EvaluatorLostError as error:
            for evaluator, address in self._evaluators:
                if address == error.extra.get("address"):
                    raise evaluator_lost(evaluator.name) from error
            raise

    def _conduct(self, evaluator: RemoteEvaluator, tasks: Sequence[Task], taken: threading.Event, waits: bool) -> None:
        """Has the evaluator run its tasks, ``taken`` once it has begun; the failure of one is that of the attempt, as
        long as rows are wanted."""
        above = self._cancellation.span
        span = None if above is None else above.child("fragments", {"dqp.evaluator": evaluator.name}, "client")
        failure: BaseException | None = None
        try:
            with self._runtime.loaded(evaluator, len(tasks)), self._named():
                for reports in evaluator.run(tasks, self._cancellation.under(span), waits=waits):
                    taken.set()
                    with self._failing():
                        for each in reports:
                            self._report(evaluator, each)
        except DaiError as error:
            if not self._over:
                failure = error
                raise
        finally:
            if span is not None:
                span.end(failure)
            taken.set()
            with self._reported:
                self._conducting -= 1
                self._reported.notify_all()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """An exception fails the attempt before the evaluator is released. Otherwise readers at its port would only
        learn that the exchange was withdrawn, not why."""
        try:
            with self._named():
                yield
        except DaiError as error:
            if not self._over:
                self._cancellation.cancel(error)
            raise

    def _report(self, evaluator: RemoteEvaluator, report: Mapping[str, Any]) -> None:
        for name, figures in report["measures"].items():
            key = self._keys.get((report["task"], name))
            if key is not None:
                where = figures["where"] or evaluator.name
                part = (evaluator.name, report["task"], name)
                self._execution.measure(key).add(part, {**figures, "where": where})
        if report["problem"] is not None:
            raise from_problem(report["problem"])

    # --- tasks ---

    def _ticket(self, fragment: Fragment, instance: int, partition: int) -> Ticket:
        return Ticket(self._query, self._execution.attempt, fragment.task(instance), partition, self._token)

    def _task(self, fragment: Fragment, instance: int, names: tuple[str, ...], types: tuple[str, ...]) -> Task:
        consumer, output = self._plan.consumer(fragment), fragment.output
        name = fragment.task(instance)
        partitions = 1 if consumer is None else consumer.instances
        self._keys[name, ""] = Plan.name(fragment.id)
        return Task(
            query=self._query,
            attempt=self._execution.attempt,
            name=name,
            token=self._token,
            coordinator=self._runtime.port.address,
            body=self._body(fragment, instance),
            partitions=partitions,
            copies=fragment.readers,
            broadcast=output is not None and output.kind == "broadcast",
            bucket=None if output is None else output.bucket(partitions),
            types=types if output is None else None,
            names=names if output is None else None,
            profiled=self._execution.profiled,
        )

    def _body(self, fragment: Fragment, instance: int) -> Body:
        task = fragment.task(instance)

        def input_of(path: str, leaf: Leaf) -> Input:
            if isinstance(leaf, Remote):
                fetched = self._remote(leaf, fragment, instance)
                self._keys[task, path] = leaf if isinstance(fetched, RemoteInput) else ("read here", leaf)
                return fetched
            if isinstance(leaf, Receive):
                self._keys[task, path] = self._plan.fragments[leaf.fragment].exchange
                return self._received(leaf, instance)
            return self._tuples(leaf, None)

        def operation_of(path: str, call: Call) -> Operation:
            self._keys[task, path], self._keys[task, f"{path}/"] = call, ("below", call)
            return self._runtime.operation(call.function)

        return body_of(fragment.tree, self._runtime.catalog, input_of, operation_of)

    def _received(self, receive: Receive, instance: int) -> Received:
        producer = self._plan.fragments[receive.fragment]
        consumer = self._plan.consumer(producer)
        assert producer.output is not None
        assert consumer is not None
        partition = 0 if producer.output.kind == "gather" else instance
        partition += receive.reader * consumer.instances
        return Received(
            tuple(
                (self._evaluators[place][1], self._ticket(producer, number, partition))
                for number, place in enumerate(self._places[producer.id])
            )
        )

    def _remote(self, remote: Remote, fragment: Fragment, instance: int) -> Input:
        if remote in self._at_hand:
            return self._tuples(self._at_hand[remote], self._readings.begun[remote].columns)
        if remote in fragment.parted:
            pieces = parts(remote, fragment.instances)
            if instance >= len(pieces):
                columns = places(remote, self._runtime.catalog, self._lost)[0].statement.columns
                return Tuples(pa.schema([(name, arrow_type(type)) for name, type in columns]).empty_table(), columns)
            remote = pieces[instance]
        if remote not in self._readings.begun:
            able = places(remote, self._runtime.catalog, self._lost)
            if all(isinstance(each.source, ServiceSource) and not each.source.private for each in able):
                able = tuple(sorted(able, key=lambda each: not each.statement.tables))
                asked = tuple((each.source.alias, each.source.address, each.statement.sql) for each in able)
                tables = {each.name: each.data for each in able[0].statement.tables}
                bringing = sum(bool(each.statement.tables) for each in able)
                return RemoteInput(
                    asked, able[0].statement.columns, tables, bringing, self._promised(able[0], self._runtime.catalog)
                )
        return self._read_here(remote)

    def _promised(self, place: Place, catalog: Catalog) -> Promise:
        """The promise for what arrives at an evaluator; if the source cannot be asked, another place may answer
        there."""
        with suppress(*LOST):
            probe(place, catalog, self._cancellation)
        return place.statement.promise

    def _read_here(self, remote: Remote) -> Received:
        """What only this process can read, or has begun to: served when its source has accepted the statement."""
        reading, ticket = self._readings.take(remote), self._own_ticket()

        def serve() -> None:
            stream = reading.stream()
            self._runtime.port.publish(ticket, lambda _: stream)

        self._execution.start(serve, "dqp-served")
        return self._received_here(ticket, reading.columns)

    def _tuples(self, data: pa.Table, columns: Columns | None) -> Input:
        if data.nbytes <= EMBEDDED_BYTES:
            return Tuples(data, columns)
        ticket = self._own_ticket()
        self._runtime.port.publish(ticket, lambda _: Stream.of(data))
        return replace(self._received_here(ticket, columns), whole=columns is None)

    def _own_ticket(self) -> Ticket:
        """For rows that one task fetches from this process's own port."""
        port, attempt = self._runtime.port, self._execution.attempt
        ticket = Ticket(self._query, attempt, f"input {next(self._published)}", 0, self._token)
        if ticket.fragment == "input 1":
            port.expect(self._query, attempt)
            self._execution.at_end(partial(port.withdraw, self._query, attempt))
        return ticket

    def _received_here(self, ticket: Ticket, columns: Columns | None) -> Received:
        return Received(((self._runtime.port.address, ticket),), columns)


def evaluator_lost(name: str) -> EvaluatorLostError:
    """The evaluator of that name does not answer any more."""
    return EvaluatorLostError(
        f"The evaluator {name} went away.",
        hint="Run the query again: it will use the evaluators that are left.",
        evaluator=name,
    )
