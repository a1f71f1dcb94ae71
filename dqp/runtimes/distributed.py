"""What the runtimes with several evaluators have in common: a plan is cut, its fragments placed, its rows come back.

An attempt of a query goes like this. Small build sides are read by the coordinator, as in the local runtime, and reduce
what is left (``adapt``). Now that their sizes are known, the tree is cut (``partition``): a build side that turned out
large is hashed and not sent to everybody, one that turned out small the other way round. Every evaluator gets its tasks
at once; those that read from others wait for them. The rows of the root come through an exchange like all others.

Evaluators report at least once a second; one that does not is lost, and so is one whose connection breaks. Then, as
long as no row was handed out, the query begins again under the next attempt on the evaluators that are left. One that
was lost is left alone for a while, unless there is no other.

An evaluator runs so many requests at once, from all its coordinators, and the others wait in their order. Every
coordinator asks its evaluators one after the other, by address, and each only when the one before has taken the tasks:
so two queries never wait for each other.
"""

from __future__ import annotations

import threading
import time
import uuid
from abc import abstractmethod
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Protocol

import pyarrow as pa
from sqlglot import exp

from dai.cancellation import Cancellation
from dai.client.problems import from_problem
from dai.errors import DaiError, InternalError
from dai.stream import Stream
from dqp.adaptive import adapt, foreseen
from dqp.catalog import Catalog
from dqp.constants import literal
from dqp.cost import Estimator
from dqp.dialects import NotPushed
from dqp.errors import EvaluatorLostError
from dqp.execution import Execution, ExecutionOptions, Slots
from dqp.fetch import LOST, Lost, Reading, places
from dqp.flight import FlightPort, Opener, Ticket, fetch, health, new_token
from dqp.fragment import arrow_field
from dqp.leaves import Leaves, remotes
from dqp.operations import Operation
from dqp.operators import (
    Aggregate,
    Call,
    Exchange,
    Join,
    Names,
    Operator,
    Project,
    Receive,
    Remote,
    Sort,
    column,
    identifiers,
    walk,
)
from dqp.partition import DEFAULT, Fragment, Plan, Thresholds, cut
from dqp.placement import Placement, named_places, places_of
from dqp.rules import Context
from dqp.rules.program import leaf_of
from dqp.runtimes.local import Local, Readings, alone
from dqp.settings import FederationSettings
from dqp.sources import ServiceSource
from dqp.splitting import divided, parts
from dqp.types import arrow_type
from dqp.wire import Body, Called, Columns, Input, Received, RemoteInput, Task, Tuples

EMBEDDED_BYTES = 256 << 10
"""Tuples at hand up to this size travel with a task; larger ones are fetched from the coordinator's port."""
SILENCE = 10.0
"""Seconds without an answer after which an evaluator is lost."""
ANSWER = 3.0
"""Seconds in which it has to answer when it is asked whether it is there."""
AWAY = 15.0
"""Seconds that a lost evaluator is not asked for, while there are others."""
ATTEMPTS = 4
"""Of a query, at most."""
QUERIES = 12
"""At once, of one coordinator; others wait their turn. A query needs a request at each evaluator at the same time."""
SAMPLE_ROWS = 20_000
"""First rows of a statement in which values are looked for that most rows have."""
COUNT = "rows with the key"
PROFILES, REPORTS = 5.0, 0.25
"""Seconds that the end of a query waits for what its evaluators still have to say: where it is explained, and where
only progress is asked for."""


class Evaluator(Protocol):
    """One evaluator as its coordinator sees it. ``name`` is for people; ``address`` that of its Flight port."""

    name: str

    @property
    def address(self) -> str:
        """Raises EvaluatorLostError where it cannot be asked."""

    def run(self, tasks: Sequence[Task], cancellation: Cancellation) -> Iterator[Sequence[Mapping[str, Any]]]:
        """Runs the tasks: their reports (``dqp.evaluator.Work.reports``), the first, perhaps empty, as soon as they
        are taken. Closing the generator, or cancelling, ends them. Raises EvaluatorLostError when it is gone,
        BusyError when it has no turn for them."""

    def forget(self) -> None:
        """What is known of it may be wrong: ask again."""


class Distributed(Local):
    """``thresholds`` say what is worth to be spread. A plan of one statement runs without any evaluator."""

    def __init__(
        self,
        catalog: Catalog,
        settings: FederationSettings,
        *,
        operations: Mapping[str, Operation] | None = None,
        thresholds: Thresholds = DEFAULT,
    ) -> None:
        super().__init__(catalog, settings, operations=operations)
        self._thresholds = thresholds
        self._seconds = {name: each.seconds / each.concurrent for name, each in self._operations.items()}
        self._port: FlightPort | None = None
        self._lock = threading.Lock()
        self._load: dict[str, int] = {}
        self._away: dict[str, float] = {}
        self._turns = Slots(QUERIES)

    @abstractmethod
    def evaluators(self) -> Sequence[Evaluator]:
        """All of them, whether they answer or not."""

    @property
    def port(self) -> FlightPort:
        """Of the coordinator: for what only it can read."""
        with self._lock:
            if self._port is None:
                self._port = FlightPort()
            return self._port

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    def operation(self, name: str) -> Operation:
        if name not in self._operations:
            raise InternalError(f"There is no operation {name!r}.")
        return self._operations[name]

    @contextmanager
    def loaded(self, evaluator: Evaluator, tasks: int) -> Iterator[None]:
        """While the block runs the evaluator has so many tasks more."""
        self._count(evaluator, tasks)
        try:
            yield
        finally:
            self._count(evaluator, -tasks)

    def _count(self, evaluator: Evaluator, tasks: int) -> None:
        with self._lock:
            self._load[evaluator.name] = self._load.get(evaluator.name, 0) + tasks

    def close(self) -> None:
        super().close()
        if self._port is not None:
            self._port.close()

    # --- attempts ---

    def _retries(self, error: DaiError, tree: Operator, execution: Execution, lost: Lost) -> bool:
        if isinstance(error, LOST):
            source = error.extra.get("source")
            if source is not None and not lost.count(str(source)):
                lost.add(str(source))
            return super()._retries(error, tree, execution, lost)
        if not isinstance(error, EvaluatorLostError):
            return False
        for each in self.evaluators():
            if each.name == error.extra.get("evaluator"):
                self._lost(each)
        return execution.attempt < ATTEMPTS

    def _lost(self, evaluator: Evaluator) -> None:
        evaluator.forget()
        with self._lock:
            self._away[evaluator.name] = time.monotonic() + AWAY

    def _alive(self, again: bool) -> list[tuple[Evaluator, str]]:
        """The evaluators that answer, with the addresses of their ports, the one with the least work first. ``again``:
        all are asked, those too whose address is known."""
        now = time.monotonic()
        with self._lock:
            here = [each for each in self.evaluators() if self._away.get(each.name, 0.0) <= now]
        found = self._answering(here, again) or self._answering(self.evaluators(), True)
        if not found:
            names = ", ".join(each.name for each in self.evaluators())
            raise EvaluatorLostError(f"No evaluator answers: {names}.", hint="Start them, or wait until they are back.")
        with self._lock:
            return sorted(found, key=lambda each: self._load.get(each[0].name, 0))

    def _answering(self, evaluators: Sequence[Evaluator], again: bool) -> list[tuple[Evaluator, str]]:
        def asked(evaluator: Evaluator) -> str | None:
            try:
                address = evaluator.address
                if again:
                    health(address, timeout=ANSWER)
            except EvaluatorLostError:
                self._lost(evaluator)
                return None
            return address

        if not evaluators:
            return []
        with ThreadPoolExecutor(len(evaluators), thread_name_prefix="dqp-alive") as pool:
            found = list(pool.map(asked, evaluators))
        return [(each, address) for each, address in zip(evaluators, found, strict=True) if address is not None]

    def placed(self, tree: Operator, context: Context) -> Placement:
        options = ExecutionOptions()
        tree, own = self._parted(tree, context, options)
        only = alone(tree)
        if only is not None:
            return Placement.here(only)
        remarks = list(foreseen(tree, own, options.inline_bytes))
        try:
            names = [each.name for each, _ in self._alive(again=True)]
        except EvaluatorLostError:
            names = []
        remarks += [f"{each.name} does not answer" for each in self.evaluators() if each.name not in names]
        names = names or [each.name for each in self.evaluators()]
        plan = cut(tree, own, len(names), thresholds=self._thresholds, seconds=self._seconds)
        parts = {each: self._divided(each, plan, options) for each in remotes(plan.tree)}
        return Placement(plan, named_places(plan, names), parts, tuple(remarks))

    def _divided(self, remote: Remote, plan: Plan, options: ExecutionOptions) -> tuple[Remote, ...]:
        """The parts in which evaluators read a subtree, or this process where they cannot."""
        for each in plan.fragments:
            if remote in each.parted:
                return parts(remote, each.instances)
        if isinstance(self._catalog.sources[remote.source], ServiceSource):
            return (remote,)
        return divided(remote, options.split_rows, options.splits)

    # --- one attempt ---

    def _opened(
        self,
        tree: Operator,
        names: Sequence[str],
        types: Sequence[str],
        execution: Execution,
        context: Context | None,
        lost: Lost,
    ) -> Stream:
        context = context or Context(self._catalog, Estimator(), Names(identifiers(tree)))
        tree, own = self._parted(tree, context, execution.options)
        only = alone(tree)
        if only is not None:
            return self._through(only, tree.columns, names, types, execution, lost)
        turn = ExitStack()
        turn.enter_context(self._turns(execution.cancellation))
        execution.at_end(turn.close)
        evaluators = self._alive(again=execution.attempt > 1)
        readings = Readings(self._catalog, execution, lost)
        tree = adapt(tree, own, readings.read, execution.options.inline_bytes)
        execution.remarks = tuple(own.remarks)
        at_hand = {
            remote: table
            for remote, reading in readings.begun.items()
            if (table := reading.whole(execution.options.inline_bytes)) is not None
        }
        plan = self._cut(tree, own, len(evaluators), execution, readings, at_hand)
        execution.placement = Placement(plan, named_places(plan, [each.name for each, _ in evaluators]))
        attempt = _Attempt(self, plan, evaluators, execution, readings, at_hand, lost)
        return _renamed(attempt.start(types), names, types)

    def _cut(
        self,
        tree: Operator,
        context: Context,
        evaluators: int,
        execution: Execution,
        readings: Readings,
        at_hand: Mapping[Remote, pa.Table],
    ) -> Plan:
        """The plan by what is known now."""
        context = replace(context, estimator=Estimator())
        for node in walk(tree):
            if isinstance(node, Remote) and node in at_hand:
                context.estimator.measured(node, at_hand[node])
        cutting = partial(
            cut,
            tree,
            context,
            evaluators,
            thresholds=self._thresholds,
            seconds=self._seconds,
            whole=frozenset(readings.begun),
        )
        plan = cutting()
        least = max(self._thresholds.split_rows, SAMPLE_ROWS)
        heavy = {
            key: values
            for key, remote in skewable(plan, context, least)
            if remote not in readings.begun and (values := self._heavy(remote, key, evaluators, execution))
        }
        return cutting(heavy=heavy) if heavy else plan

    def _heavy(self, remote: Remote, key: str, evaluators: int, execution: Execution) -> tuple[exp.Expression, ...]:
        """Values of a column that so many of its first rows have that one evaluator would get far more than others."""
        sample = Sort(Project(remote.tree, ((key, column(key)),)), (), SAMPLE_ROWS)
        counted = Aggregate(sample, ((key, column(key)),), ((COUNT, exp.Count(this=exp.Star(), big_int=True)),))
        most = exp.Ordered(this=column(COUNT), desc=True, nulls_first=False)
        asked = Remote(remote.source, Sort(counted, (most,), 2 * evaluators))
        try:
            found = self.fetch(asked, execution)
        except NotPushed:
            return ()
        limit = SAMPLE_ROWS / (2 * evaluators)
        counts = zip(found.column(key).to_pylist(), found.column(COUNT).to_pylist(), strict=True)
        return tuple(literal(value) for value, count in counts if value is not None and count >= limit)


class _Attempt:
    """Makes the tasks of a plan, has them run, and gives the rows of the root."""

    def __init__(
        self,
        runtime: Distributed,
        plan: Plan,
        evaluators: Sequence[tuple[Evaluator, str]],
        execution: Execution,
        readings: Readings,
        at_hand: Mapping[Remote, pa.Table],
        lost: Lost,
    ) -> None:
        self._runtime, self._plan, self._evaluators, self._execution = runtime, plan, evaluators, execution
        self._readings, self._at_hand, self._lost = readings, at_hand, lost
        self._query, self._token = uuid.uuid4().hex, new_token()
        self._streamed: set[Remote] = set()
        self._keys: dict[tuple[str, str], Hashable] = {}
        self._conducting = 0
        self._over = False
        self._reported = threading.Condition()
        self._published = count(1)
        self._tasks: dict[int, list[Task]] = {}
        self._places = places_of(plan, len(evaluators))
        """Of each fragment the evaluators of its instances, by number."""

    def start(self, types: Sequence[str]) -> Stream:
        """The rows of the root, once it has begun."""
        execution = self._execution
        for fragment in self._plan.fragments:
            for instance, place in enumerate(self._places[fragment.id]):
                task = self._task(fragment, instance, tuple(types))
                self._tasks.setdefault(place, []).append(task)
        self._conducting = len(self._tasks)
        for place, tasks in sorted(self._tasks.items(), key=lambda each: self._evaluators[each[0]][1]):
            taken = threading.Event()
            execution.start(partial(self._conduct, self._evaluators[place][0], tasks, taken), "dqp-evaluator")
            with execution.cancellation.on_cancel(taken.set):
                taken.wait()
        root = self._plan.root
        address = self._evaluators[self._places[root.id][0]][1]
        with self._named():
            stream = fetch(address, self._ticket(root, 0, 0), cancellation=execution.cancellation)
        return Stream(stream.schema, self._to_the_end(stream), stream.close)

    def _to_the_end(self, stream: Stream) -> Iterator[pa.RecordBatch]:
        """The rows; behind the last one, waits a little for what the evaluators have to say of their work."""
        with self._named(), stream:
            yield from stream
        cancellation = self._execution.cancellation
        with self._reported:
            self._over = True
        with cancellation.on_cancel(self._wake), self._reported:
            patience = PROFILES if self._execution.profiled else REPORTS
            self._reported.wait_for(lambda: not self._conducting or cancellation.cancelled, patience)

    def _wake(self) -> None:
        with self._reported:
            self._reported.notify_all()

    @contextmanager
    def _named(self) -> Iterator[None]:
        """An evaluator whose port is gone is called by its name."""
        try:
            yield
        except EvaluatorLostError as error:
            for evaluator, address in self._evaluators:
                if address == error.extra.get("address"):
                    raise gone(evaluator.name) from error
            raise

    def _conduct(self, evaluator: Evaluator, tasks: Sequence[Task], taken: threading.Event) -> None:
        """Has the evaluator run its tasks; the failure of one is that of the attempt, as long as rows are wanted."""
        try:
            with self._runtime.loaded(evaluator, len(tasks)), self._named():
                for reports in evaluator.run(tasks, self._execution.cancellation):
                    taken.set()
                    for each in reports:
                        self._told(evaluator, each)
        except DaiError:
            if not self._over:
                raise
        finally:
            taken.set()
            with self._reported:
                self._conducting -= 1
                self._reported.notify_all()

    def _told(self, evaluator: Evaluator, report: Mapping[str, Any]) -> None:
        for name, figures in report["measures"].items():
            key = self._keys.get((report["task"], name))
            if key is not None:
                where = figures["where"] or evaluator.name
                part = (evaluator.name, report["task"], name)
                self._execution.measure(key).told(part, {**figures, "where": where})
        if report["problem"] is not None:
            raise from_problem(report["problem"])

    # --- tasks ---

    def _ticket(self, fragment: Fragment, instance: int, partition: int) -> Ticket:
        return Ticket(self._query, self._execution.attempt, fragment.task(instance), partition, self._token)

    def _task(self, fragment: Fragment, instance: int, types: tuple[str, ...]) -> Task:
        consumer, output = self._plan.consumer(fragment), fragment.output
        name = fragment.task(instance)
        partitions = 1 if consumer is None else consumer.instances
        self._keys[name, ""] = Plan.name(fragment.id)
        return Task(
            query=self._query,
            attempt=self._execution.attempt,
            name=name,
            token=self._token,
            body=self._body(fragment.tree, fragment, instance, ""),
            partitions=partitions,
            broadcast=output is not None and output.kind == "broadcast",
            bucket=None if output is None else output.bucket(partitions),
            types=types if output is None else None,
            profiled=self._execution.profiled,
        )

    def _body(self, tree: Operator, fragment: Fragment, instance: int, prefix: str) -> Body:
        leaves = Leaves(tree, self._runtime.catalog)
        sql = leaves.sql()
        task = fragment.task(instance)
        inputs: dict[str, Input] = {name: self._tuples(data, None) for name, data in leaves.tables.items()}
        for name, remote in leaves.remotes.items():
            inputs[name] = self._remote(remote, fragment, instance)
            read_there = isinstance(inputs[name], RemoteInput)
            self._keys[task, prefix + name] = remote if read_there else ("read here", remote)
        for name, receive in leaves.receives.items():
            inputs[name] = self._received(receive, instance)
            self._keys[task, prefix + name] = self._plan.fragments[receive.fragment].exchange
        for name, call in leaves.calls.items():
            inputs[name] = self._called(call, fragment, instance, f"{prefix}{name}/")
            self._keys[task, prefix + name] = call
            self._keys[task, f"{prefix}{name}/"] = ("below", call)
        repeated = (*leaves.remotes, *leaves.receives, *leaves.calls)
        return Body(sql, inputs, frozenset(filter(leaves.several, repeated)))

    def _received(self, receive: Receive, instance: int) -> Received:
        producer = self._plan.fragments[receive.fragment]
        assert producer.output is not None
        partition = 0 if producer.output.kind == "gather" else instance
        return Received(
            tuple(
                (self._evaluators[place][1], self._ticket(producer, number, partition))
                for number, place in enumerate(self._places[producer.id])
            )
        )

    def _called(self, call: Call, fragment: Fragment, instance: int, prefix: str) -> Called:
        operation = self._runtime.operation(call.function)
        given = tuple((each, column(each)) for each in call.input.columns)
        arguments = tuple((f"argument {at}", each) for at, each in enumerate(call.arguments, 1))
        below = self._body(Project(call.input, (*given, *arguments)), fragment, instance, prefix)
        return Called(operation, below, len(given), call.identifier)

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
            found = places(remote, self._runtime.catalog, self._lost)
            if all(isinstance(each.source, ServiceSource) for each in found):
                asked = tuple((each.source.alias, each.source.address, each.statement.sql) for each in found)
                return RemoteInput(asked, found[0].statement.columns)
        return self._read_here(remote)

    def _read_here(self, remote: Remote) -> Received:
        """What only this process can read, or has begun to."""
        if remote in self._streamed:  # a reading gives its rows once
            reading = Reading(remote, self._runtime.catalog, self._execution, self._lost)
        else:
            reading = self._readings.read(remote)
        self._streamed.add(remote)
        return self._publish(lambda _: reading.stream(), reading.columns)

    def _tuples(self, data: pa.Table, columns: Columns | None) -> Input:
        if data.nbytes <= EMBEDDED_BYTES:
            return Tuples(data, columns)
        return replace(self._publish(lambda _: Stream.of(data), columns), whole=columns is None)

    def _publish(self, opener: Opener, columns: Columns | None) -> Received:
        """Rows that one task fetches from this process's own port."""
        port = self._runtime.port
        ticket = Ticket(self._query, self._execution.attempt, f"input {next(self._published)}", 0, self._token)
        if ticket.fragment == "input 1":
            self._execution.at_end(partial(port.withdraw, self._query, self._execution.attempt))
        port.publish(ticket, opener)
        return Received(((port.address, ticket),), columns)


def gone(name: str) -> EvaluatorLostError:
    """The evaluator of that name does not answer any more."""
    return EvaluatorLostError(
        f"The evaluator {name} went away.", hint="Ask again: it runs on those that are left.", evaluator=name
    )


def skewable(plan: Plan, context: Context, rows: float) -> Iterator[tuple[str, Remote]]:
    """The columns by which the large left sides of joins are hashed, with the statement they come from. A column with
    about as many values as rows has none that many rows have."""
    for node in walk(plan.tree):
        if isinstance(node, Join) and isinstance(node.left, Exchange) and node.left.kind == "hash":
            estimate = context.estimator.of(node.left.input)
            for each in node.left.keys if estimate.rows >= rows else ():
                leaf = leaf_of(node.left.input, each.name)
                if leaf is None or leaf[1] != each.name:
                    continue
                distinct = context.estimator.of(leaf[0]).columns[each.name].distinct
                if distinct is None or distinct < 0.5 * context.estimator.rows(leaf[0]):
                    yield each.name, leaf[0]


def _renamed(stream: Stream, names: Sequence[str], types: Sequence[str]) -> Stream:
    schema = pa.schema([arrow_field(name, type)[0] for name, type in zip(names, types, strict=True)])
    return stream.map(lambda batch: pa.RecordBatch.from_arrays(batch.columns, schema=schema), schema)
