"""The common part of the runtimes with several evaluators: it cuts a plan, places its fragments and returns its rows.

An attempt of a query goes like this. Small build sides are read by the coordinator, as in the local runtime, and reduce
what is left (``adapt``). Now that their sizes are known, the tree is cut (``partition``): a build side that turned out
large is hashed and not sent to everybody, one that turned out small the other way round. Every evaluator gets its tasks
at once; those that read from others wait for them. The rows of the root come through an exchange like all others.

Evaluators report at least once a second; one that does not is lost, and so is one whose connection breaks. Then, as
long as no row was handed out, the query begins again under the next attempt on the evaluators that are left. One that
was lost is left alone for a while, unless there is no other.

An evaluator runs so many requests at once, from all its coordinators, and the others wait in their order. The first
attempt asks all evaluators together and waits at none; where one has no turn for it, the next one asks them one after
the other, by address, and each only when the one before has taken the tasks: so two queries never wait for each other.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dai.errors import BusyError, DaiError
from dai.streams.stream import Stream
from dqp.algebra.constants import literal
from dqp.algebra.operators import Aggregate, Exchange, Join, Names, Operator, Project, Remote, Sort, column
from dqp.algebra.trees import identifiers, remotes, walk
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.service import ServiceSource
from dqp.errors import EvaluatorLostError
from dqp.execution.engine import arrow_field
from dqp.execution.execution import Execution, Slots
from dqp.execution.fetch import LOST
from dqp.execution.leaves import statement_key
from dqp.execution.readings import Readings
from dqp.execution.service_calls import Operation
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.planning.distribution.partition import Plan, cut
from dqp.planning.distribution.placement import Placement, named_places
from dqp.planning.distribution.spreading import DEFAULT, Thresholds
from dqp.planning.semijoins.adaptive import foreseen
from dqp.planning.semijoins.program import leaf_of
from dqp.planning.splitting import divided, parts
from dqp.runtimes.attempt import ANSWER, Attempt, RemoteEvaluator
from dqp.runtimes.flight.client import health
from dqp.runtimes.flight.server import FlightPort
from dqp.runtimes.local import FORESEEN, Local, Query, adapted
from dqp.settings import FederationSettings
from dqp.sql.dialects import NotPushed

LIVENESS_TIMEOUT = 10.0
"""Seconds without an answer after which an evaluator is lost."""
AWAY = 15.0
"""Seconds that a lost evaluator is not asked for, while there are others."""
ATTEMPTS = 4
"""Of a query, at most."""
QUERIES = 12
"""At once, of one coordinator; others wait their turn. A query needs a request at each evaluator at the same time."""
SAMPLE_ROWS = 20_000
"""First rows of a statement that are searched for frequent values."""
COUNT = "rows with the key"
Heavy = tuple[exp.Expression, ...]
"""Literals."""


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
        self._evaluators = self.join(settings)

    @property
    def evaluators(self) -> Sequence[RemoteEvaluator]:
        """All of them, whether they answer or not."""
        return self._evaluators

    @property
    def _least(self) -> float:
        """Rows from which it is worth to look for values that most of them have."""
        return max(self._thresholds.split_rows, SAMPLE_ROWS)

    @abstractmethod
    def join(self, settings: FederationSettings) -> Sequence[RemoteEvaluator]:
        """The evaluators that the settings name. ConfigurationError where that cannot be."""

    @property
    def port(self) -> FlightPort:
        """Of the coordinator: for what only it can read."""
        with self._lock:
            if self._port is None:
                host, port = self._settings.flight_host, self._settings.flight_port
                self._port = FlightPort(host, port, tls=self.evaluators[0].tls)
            return self._port

    @property
    def catalog(self) -> Catalog:
        return self._catalog

    @contextmanager
    def loaded(self, evaluator: RemoteEvaluator, tasks: int) -> Iterator[None]:
        """While the block runs the evaluator has so many tasks more."""
        self._count(evaluator, tasks)
        try:
            yield
        finally:
            self._count(evaluator, -tasks)

    def _count(self, evaluator: RemoteEvaluator, tasks: int) -> None:
        with self._lock:
            self._load[evaluator.name] = self._load.get(evaluator.name, 0) + tasks

    def close(self) -> None:
        super().close()
        if self._port is not None:
            self._port.close()
        for each in self.evaluators:
            each.close()

    # --- attempts ---

    def _retries(self, error: DaiError, query: Query) -> bool:
        if isinstance(error, LOST):
            source = error.extra.get("source")
            if source is not None and not query.lost.count(str(source)):
                query.lost.add(str(source))
            return super()._retries(error, query)
        if isinstance(error, BusyError):
            return query.execution.attempt == 1 and "evaluator" in error.extra
        if not isinstance(error, EvaluatorLostError):
            return False
        for each in self.evaluators:
            if each.name == error.extra.get("evaluator"):
                self._lost(each)
        return query.execution.attempt < ATTEMPTS

    def _lost(self, evaluator: RemoteEvaluator) -> None:
        evaluator.forget()
        with self._lock:
            self._away[evaluator.name] = time.monotonic() + AWAY

    def _alive(self, again: bool) -> list[tuple[RemoteEvaluator, str]]:
        """The evaluators that answer, with the addresses of their ports, the one with the least work first. ``again``:
        all are asked, those too whose address is known."""
        now = time.monotonic()
        with self._lock:
            here = [each for each in self.evaluators if self._away.get(each.name, 0.0) <= now]
        answering = self._answering(here, again) or self._answering(self.evaluators, True)
        if not answering:
            names = ", ".join(each.name for each in self.evaluators)
            raise EvaluatorLostError(f"No evaluator answers: {names}.", hint="Start them, or wait until they are back.")
        with self._lock:
            return sorted(answering, key=lambda each: self._load.get(each[0].name, 0))

    def _answering(self, evaluators: Sequence[RemoteEvaluator], again: bool) -> list[tuple[RemoteEvaluator, str]]:
        def address_of(evaluator: RemoteEvaluator) -> str | None:
            try:
                address = evaluator.address
                if again:
                    health(address, timeout=ANSWER, tls=evaluator.tls)
            except EvaluatorLostError:
                self._lost(evaluator)
                return None
            return address

        if not evaluators:
            return []
        with ThreadPoolExecutor(len(evaluators), thread_name_prefix="dqp-alive") as pool:
            addresses = list(pool.map(address_of, evaluators))
        return [(each, address) for each, address in zip(evaluators, addresses, strict=True) if address is not None]

    def _place(self, tree: Operator, context: Context) -> Placement:
        remarks = list(foreseen(tree, context, FORESEEN.inline_bytes))
        try:
            names = [each.name for each, _ in self._alive(again=True)]
        except EvaluatorLostError:
            names = []
        remarks += [f"{each.name} does not answer" for each in self.evaluators if each.name not in names]
        names = names or [f"{each.name} does not answer" for each in self.evaluators]
        plan = cut(tree, context, len(names), thresholds=self._thresholds, seconds=self._seconds)
        for key, remote in skewable(plan, context, self._least):
            remarks.append(f"{remote.source} is asked first which values of {key} most rows have: these are dealt out")
        parts = {each: self._divided(each, plan) for each in remotes(plan.tree)}
        return Placement(plan, named_places(plan, names), parts, tuple(remarks))

    def _divided(self, remote: Remote, plan: Plan) -> tuple[Remote, ...]:
        """The parts in which evaluators read a subtree, or this process where they cannot."""
        for each in plan.fragments:
            if remote in each.parted:
                return parts(remote, each.instances)
        source = self._catalog.sources[remote.source]
        if isinstance(source, ServiceSource) and not source.private:
            return (remote,)
        return divided(remote, FORESEEN.split_rows, FORESEEN.splits)

    # --- one attempt ---

    def _opened(self, query: Query) -> Stream:
        context = query.context or Context(self._catalog, Estimator(), Names(identifiers(query.tree)))
        return super()._opened(replace(query, context=context))

    def _admit(self, execution: Execution) -> None:
        turn = ExitStack()
        turn.enter_context(self._turns(execution.cancellation))
        execution.at_end(turn.close)

    def _start(self, query: Query, readings: Readings) -> Stream:
        execution, context, tree = query.execution, query.context, adapted(query, readings)
        assert context is not None
        evaluators = self._alive(again=execution.attempt > 1)
        at_hand = {
            remote: table
            for remote, reading in readings.begun.items()
            if (table := reading.whole(execution.options.inline_bytes)) is not None
        }
        plan = self._cut(tree, context, len(evaluators), execution, readings, at_hand)
        execution.placement = Placement(plan, named_places(plan, [each.name for each, _ in evaluators]))
        attempt = Attempt(self, plan, evaluators, execution, readings, at_hand)
        return _renamed(attempt.start(query.names, query.types), query.names, query.types)

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
        context = replace(context, estimator=context.estimator.again())
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
        known: dict[object, Heavy] = {}
        heavy: dict[str, Heavy] = {}
        for key, remote in skewable(plan, context, self._least):
            if remote in at_hand:
                frequent_values = frequent(at_hand[remote].column(key), evaluators)
            elif remote in readings.begun:
                continue
            else:
                # A statement that occurs twice in the plan is sent once, so that both have the same answer.
                same = statement_key(Remote(remote.source, Project(remote.tree, ((key, column(key)),))), self._catalog)
                if same not in known:
                    known[same] = self._heavy(remote, key, evaluators, execution)
                frequent_values = known[same]
            if frequent_values:
                heavy[key] = frequent_values
        return cutting(heavy=heavy) if heavy else plan

    def _heavy(self, remote: Remote, key: str, evaluators: int, execution: Execution) -> Heavy:
        """Values of a column that so many of its first rows have that one evaluator would get far more than others."""
        sample = Sort(Project(remote.tree, ((key, column(key)),)), (), SAMPLE_ROWS)
        counted = Aggregate(sample, ((key, column(key)),), ((COUNT, exp.Count(this=exp.Star(), big_int=True)),))
        most = exp.Ordered(this=column(COUNT), desc=True, nulls_first=False)
        try:
            counts = self.fetch(Remote(remote.source, Sort(counted, (most,), 2 * evaluators)), execution)
        except NotPushed:
            return ()
        limit = SAMPLE_ROWS / (2 * evaluators)
        return _literals(counts.column(key).filter(pc.greater_equal(counts.column(COUNT), limit)))


def frequent(values: pa.ChunkedArray, evaluators: int) -> Heavy:
    """The values that are so frequent that one evaluator would get far more rows than others; never lists."""
    try:
        counted = pc.value_counts(values)
    except pa.ArrowNotImplementedError:
        return ()
    most = pc.greater_equal(counted.field("counts"), max(1.0, len(values) / (2 * evaluators)))
    return _literals(counted.field("values").filter(most))


def _literals(values: pa.Array | pa.ChunkedArray) -> Heavy:
    """Of those that are not NULL; none where one of them has no literal, such as a day after the year 9999, a time of
    the day, bytes."""
    try:
        return tuple(literal(each) for each in values.to_pylist() if each is not None)
    except (OverflowError, ValueError):
        return ()


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
