"""A federated query from its text to its tuples: the only file that names every stage.

::

    text ──bind──> tree ──optimise──> tree over sources ──top_n──> perhaps a top-N probe ──runtime──> Stream
"""

from __future__ import annotations

import re
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from dai.client.credentials import Personal
from dai.drivers import Driver
from dai.drivers.sql.meanings import with_meanings
from dai.errors import DataError, DeniedError, LimitError, NotFoundError, StatementError, UnauthenticatedError
from dai.streams.cancellation import Cancellation
from dai.streams.meaning import Meaning
from dai.streams.stream import Stream
from dai.streams.tracing import ending
from dqp.algebra.functions import MOMENTS
from dqp.algebra.meanings import meanings_of
from dqp.algebra.operators import Names, Operator
from dqp.algebra.trees import identifiers
from dqp.binding import marks
from dqp.binding.binder import Bound, bind
from dqp.binding.parameters import Parameters, spelled
from dqp.catalog import descriptions
from dqp.catalog.catalog import Catalog
from dqp.catalog.diagnosis import pointed
from dqp.catalog.uploads import Uploads
from dqp.errors import ChangedError, OutdatedError
from dqp.execution.execution import Execution
from dqp.execution.fetch import scans_of
from dqp.execution.outdated import Outdating
from dqp.execution.service_calls import operations_of
from dqp.explain.explanation import Explanation
from dqp.explain.nodes import Figures
from dqp.explain.plan import asked_first, fragments_of, node_of, remarks_of
from dqp.planning import top_n
from dqp.planning.common_subtrees import Sharing
from dqp.planning.context import Context, Options
from dqp.planning.costing.cost import Estimator
from dqp.planning.distribution.placement import Placement
from dqp.planning.learning import LEAST_SECONDS, learn
from dqp.planning.reuse import expected, fits, is_reusable, with_values
from dqp.planning.rules import optimise
from dqp.runtimes import Runtime, runtime_of
from dqp.runtimes.local import Local
from dqp.settings import FederationSettings

_WORD = re.compile(r"\w+")
Begun = Callable[[Execution], None]
PLANS = 256
"""Plans kept, of the queries asked last."""
CHARACTERS = 200_000
"""Of the SQL and the parameters of the plans kept, all together: a long plan takes some 250 times their bytes."""
REPLANS = 3
"""Times that a query is planned again since a table was changed."""
FRAMES = 8_000
"""Python's limit of recursion where there is a federation. Queries that programs write are deep: sqlglot's parser takes
20 frames for a parenthesis. A thread's usual stack of 8 MiB holds more of them."""


def _unwatched(execution: Execution) -> None:
    """Nobody asks how far a query is."""


@dataclass(frozen=True)
class Planned:
    """A query that can be run any number of times while the catalog stays as it is. ``tree`` is ``bound.tree``
    optimised; ``probe`` a top-N probe; ``seconds`` by stage; ``rows`` that its statements are expected to give, where
    it may be used with other parameters."""

    sql: str
    bound: Bound
    tree: Operator
    context: Context
    probe: top_n.Probe | None
    seconds: Mapping[str, float]
    rows: Sequence[float] | None = None
    meanings: Sequence[Meaning] = ()
    """Of the columns; none: nobody knows any."""


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


class Coordinator:
    """One federation. Thread-safe; any number of queries at once. ``resolve``: the drivers of resources of this
    service. ConfigurationError for settings that cannot work."""

    def __init__(
        self,
        settings: FederationSettings,
        *,
        resolve: Callable[[str], Driver] | None = None,
        runtime: Runtime | None = None,
        person: Personal | None = None,
    ) -> None:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), FRAMES))
        self.settings = settings
        self.operations = operations_of(settings)
        self.catalog = Catalog(settings, resolve=resolve, person=person)
        self.runtime = runtime or runtime_of(settings, self.catalog, self.operations)
        self._plans: OrderedDict[tuple[str, str, int], Planned] = OrderedDict()
        self._version = 0
        self._lock = threading.Lock()

    def over(self, uploads: Uploads) -> Coordinator:
        """The same federation with these uploads instead of its own. Closing this coordinator closes it, too."""
        coordinator = copy(self)
        coordinator.catalog = self.catalog.over(uploads)
        coordinator._plans, coordinator._version, coordinator._lock = OrderedDict(), 0, threading.Lock()
        return coordinator

    def of(self, bearer: str | None, resolve: Callable[[str], Driver]) -> Coordinator:
        """The same federation as it asks for a caller: with a catalog, statistics, plans and learned figures of its
        own, and the same DuckDB."""
        coordinator = copy(self)
        coordinator.catalog = Catalog(self.settings, resolve=resolve, bearer=bearer)
        assert isinstance(self.runtime, Local)
        coordinator.runtime = self.runtime.over(coordinator.catalog)
        coordinator._plans, coordinator._version, coordinator._lock = OrderedDict(), 0, threading.Lock()
        return coordinator

    def plan(self, sql: str, parameters: Parameters = (), *, cancellation: Cancellation | None = None) -> Planned:
        """The optimised plan of a query; the last plans are cached.

        Raises StatementError with the position in ``sql``, NotAQueryError, ParameterError, LimitError for a query that
        is nested too deeply or has too many tables, the error of a needed source that cannot list its tables, and the
        cancellation's cause."""
        version = self.catalog.version + self.catalog.learned.version
        key = (sql, spelled(parameters), version)
        with self._lock:
            if version != self._version:
                # Plans hold the uploaded tables that they read.
                self._plans.clear()
                self._version = version
            known = self._plans.get(key)
            if known is not None:
                self._plans.move_to_end(key)
                return known
            form, texts = (marks.form(parameters) if parameters else None) or ("", {})
            alike = self._plans.get((sql, form, version)) if form else None
        if alike is not None and (other := self._with(alike, texts)) is not None:
            self._keep(key, other)
            return other
        above = None if cancellation is None else cancellation.span
        with ending(None if above is None else above.child("planning")), _not_too_deep():
            planned = self._planned(sql, parameters, texts, cancellation)
        if MOMENTS.keys().isdisjoint(_WORD.findall(sql.lower())):
            self._keep(key, planned)
            if form and planned.rows is not None:
                self._keep((sql, form, version), planned)
        return planned

    def _with(self, planned: Planned, texts: Mapping[str, str]) -> Planned | None:
        """The plan with other literals for its parameters; None where another plan is better."""
        begin = time.perf_counter()
        context = replace(planned.context, estimator=Estimator(self.catalog.learned))
        tree, bound, probe = with_values(planned.tree, texts), planned.bound, planned.probe
        if planned.rows is None or not fits(tree, context, planned.rows):
            return None
        if probe is not None:
            bound = replace(bound, tree=with_values(bound.tree, texts))
            probe = replace(probe, remote=replace(probe.remote, tree=with_values(probe.remote.tree, texts)))
        seconds = {"binding": 0.0, "optimising": time.perf_counter() - begin}
        return replace(planned, bound=bound, tree=tree, context=context, probe=probe, seconds=seconds, rows=None)

    def _keep(self, key: tuple[str, str, int], planned: Planned) -> None:
        with self._lock:
            if key[2] != self._version or key in self._plans:
                return
            self._plans[key] = planned
            while len(self._plans) > PLANS or sum(len(each[0]) + len(each[1]) for each in self._plans) > CHARACTERS:
                self._plans.popitem(last=False)

    def _planned(
        self, sql: str, parameters: Parameters, texts: Mapping[str, str], cancellation: Cancellation | None
    ) -> Planned:
        begin = time.perf_counter()
        bound = bind(sql, self.catalog, parameters, texts)
        middle = time.perf_counter()
        try:
            tree, context = self._optimised(bound.tree, cancellation)
        except StatementError as error:
            raise bound.placed(error) from error
        probe = top_n.probe_for(tree, context)
        seconds = {"binding": middle - begin, "optimising": time.perf_counter() - middle}
        rows = expected(tree, context) if bound.reusable and is_reusable(bound.tree, context) else None
        return Planned(sql, bound, tree, context, probe, seconds, rows, meanings_of(bound.tree))

    def _optimised(self, tree: Operator, cancellation: Cancellation | None) -> tuple[Operator, Context]:
        context = Context(
            catalog=self.catalog,
            estimator=Estimator(self.catalog.learned),
            names=Names(identifiers(tree)),
            options=Options(functions=frozenset(self.operations), pushdown=self.settings.pushdown),
            cancellation=cancellation,
        )
        tree = optimise(tree, context)
        for each in context.estimator.corrections:
            context.remark(each)
        return tree, replace(context, cancellation=None)

    def query(
        self,
        sql: str,
        parameters: Parameters = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
    ) -> Stream:
        """The tuples of a query, as ``dai.drivers.Driver.query``. EXPLAIN and EXPLAIN ANALYZE, also with (FORMAT
        json) or (FORMAT svg), return a plan as lines of text in one column; ``catalog.descriptions`` answers SHOW
        TABLES, DESCRIBE and SUMMARIZE."""
        return self.start(sql, parameters, cancellation=cancellation, batch_rows=batch_rows)[0]

    def start(
        self,
        sql: str,
        parameters: Parameters = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        begun: Begun = _unwatched,
    ) -> tuple[Stream, Running | None]:
        """As ``query``, with the query under way; None for an EXPLAIN and a description. ``begun`` is called before
        anything is asked, with the execution that says how far it is."""
        with pointed(sql):
            if (command := descriptions.command(sql)) is not None:
                try:
                    table = self._described(command, parameters, cancellation, begun)
                except StatementError as error:
                    raise error.of(sql) from None
                return table_stream(table, batch_rows), None
            planned = self.plan(sql, parameters, cancellation=cancellation)
            form = planned.bound.form
            if form is not None:
                analyze = planned.bound.statement == "explain analyze"
                explanation = self.explain(sql, parameters, analyze=analyze, cancellation=cancellation, begun=begun)
                lines = getattr(explanation, form).split("\n")
                return table_stream(pa.table({"plan": pa.array(lines, pa.string())}), batch_rows), None
            running = self._started(sql, parameters, cancellation, begun, batch_rows=batch_rows)
        return running.stream, running

    def _described(
        self, command: descriptions.Command, parameters: Parameters, cancellation: Cancellation, begun: Begun
    ) -> pa.Table:
        if command.word == "SHOW":
            return descriptions.tables(self.catalog)
        try:
            bound = self.plan(command.query, parameters, cancellation=cancellation).bound
        except StatementError:
            if (placed := descriptions.placed(self.catalog, command)) is None:
                raise
            return self._described(placed, parameters, cancellation, begun)
        shape = list(zip(bound.names, bound.types, strict=True))
        if command.word == "DESCRIBE":
            return descriptions.described(self.catalog, command.path, shape)
        query = descriptions.summary_query(command.query, shape)
        with self._started(query, parameters, cancellation, begun).stream as stream:
            row = stream.table().to_pylist()[0]
        return descriptions.summary(row.values(), shape)

    def _started(
        self,
        sql: str,
        parameters: Parameters,
        cancellation: Cancellation,
        begun: Begun,
        *,
        batch_rows: int | None = None,
        profiled: bool = False,
    ) -> Running:
        """The query under way, planned again where a source has other tables than it was planned for, or a copy
        of a logical table is gone, or a sample contradicts the statistics of a table before there is a row."""
        noted: tuple[str, ...] = ()
        for left in reversed(range(REPLANS + 1)):
            version, began = self.catalog.version, time.monotonic()
            planned = self.plan(sql, parameters, cancellation=cancellation)
            watched = Outdating(begun, self.catalog.late(scans_of(planned.bound.tree), began) if left else ())
            try:
                running = self.run(
                    planned, cancellation=cancellation, batch_rows=batch_rows, begun=watched.begun, profiled=profiled
                )
                return replace(running, stream=watched.stream(running.stream), noted=running.noted + noted)
            except OutdatedError as error:
                noted = (f"stopped and planned again: {error.detail}",)
            except (ChangedError, StatementError, DataError) as error:
                alias = self.catalog.owner(error.extra.get("source"))
                columns = error.extra.get("columns", ()) if isinstance(error, ChangedError) else ()
                if not left or alias is None or not self.catalog.renewed(alias, version, columns):
                    raise
            except (NotFoundError, DeniedError, UnauthenticatedError) as error:
                if not left or not self.catalog.set_aside(error):
                    raise
        raise AssertionError

    def run(
        self,
        planned: Planned,
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        begun: Begun = _unwatched,
        profiled: bool = False,
    ) -> Running:
        """Begins the query; its schema is known when this returns. ``profiled``: every operator is measured.
        ChangedError where a table was changed since it was planned."""
        execution = Execution(cancellation, profiled=profiled)
        begin = time.perf_counter()
        try:
            begun(execution)
            with _not_too_deep():
                running = self._bounded(planned, execution, batch_rows)
                if running is None:
                    running = self._run(planned, planned.tree, planned.context, execution, batch_rows)
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

    def _run(
        self, planned: Planned, tree: Operator, context: Context, execution: Execution, batch_rows: int | None
    ) -> Running:
        names, types = planned.bound.names, planned.bound.types
        execution.estimate = context.estimator.again().rows
        stream = self.runtime.run(tree, names, types, context, execution, batch_rows=batch_rows)
        return Running(planned, execution, stream, context)

    def _bounded(self, planned: Planned, execution: Execution, batch_rows: int | None) -> Running | None:
        """The query with a bound for its first N, where that gives N rows: these are few, and read here."""
        probe = planned.probe
        if probe is None:
            return None
        values = self.runtime.fetch(probe.remote, execution)
        smaller = top_n.filtered(planned.bound.tree, values, probe)
        if smaller is None:
            return None
        tree, context = self._optimised(smaller, execution.cancellation)
        running = self._run(planned, tree, context, execution, None)
        with running.stream as stream:
            table = stream.table()
        if table.num_rows < probe.rows:
            execution.again()
            return None
        remark = f"{probe.remote.source} was asked first for a bound of the first {probe.rows:,} rows"
        stream = table_stream(table, batch_rows)
        return replace(running, stream=stream, noted=(remark,))

    def explain(
        self,
        sql: str,
        parameters: Parameters = (),
        *,
        analyze: bool = False,
        cancellation: Cancellation | None = None,
        begun: Begun = _unwatched,
    ) -> Explanation:
        """The plan of the query; with ``analyze`` the query runs to its end, and the plan has the measurements, too."""
        with pointed(sql):
            return self._explained(sql, parameters, analyze, cancellation, begun)

    def _explained(
        self, sql: str, parameters: Parameters, analyze: bool, cancellation: Cancellation | None, begun: Begun
    ) -> Explanation:
        planned = self.plan(sql, parameters, cancellation=cancellation)
        calls = {name: each.seconds / each.concurrent for name, each in self.operations.items()}
        if not analyze:
            # Estimates of its own: those of the plan are not for several threads at once.
            context = replace(planned.context, estimator=planned.context.estimator.again())
            placement = self.runtime.placed(planned.tree, context)
            first = () if planned.probe is None else (asked_first(planned.probe.remote, context),)
            shared = (remark for each in placement.plan.fragments for remark in Sharing(each.tree).remarks)
            remarks = (*planned.context.remarks, *placement.remarks, *shared, *self._remarks(planned))
            return Explanation(node_of(placement, context, calls), sql, remarks, dict(planned.seconds), first)
        begin = time.perf_counter()
        running = self._started(sql, parameters, cancellation or Cancellation(), begun, profiled=True)
        planned = running.planned
        with running.stream:
            after = None
            rows = 0
            for batch in running.stream:
                after = after or time.perf_counter() - begin
                rows += batch.num_rows
        seconds = {**planned.seconds, "running": time.perf_counter() - begin}
        if after is not None:
            seconds["first rows after"] = after
        placement, execution = running.placement, running.execution
        context = replace(running.context, estimator=running.context.estimator.again())
        root = node_of(placement, context, calls, execution)
        if root.actual is None:
            root = replace(root, actual=Figures(rows=rows))
        fragments = fragments_of(placement, execution)
        remarks = (*running.remarks, *remarks_of(placement, execution, fragments), *self._remarks(planned))
        return Explanation(root, sql, remarks, seconds, fragments)

    def _remarks(self, planned: Planned) -> Sequence[str]:
        return self.catalog.remarks(each.table for each in scans_of(planned.bound.tree))

    def close(self) -> None:
        self.runtime.close()
        self.catalog.close()


def _finishing(stream: Stream, execution: Execution, sql: str, ended: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    """The stream; at its end ``ended`` is called. Then, at its failure or when it is closed, the execution closes."""
    with pointed(sql), execution, stream:
        yield from stream
        ended()


def _finish(stream: Stream, execution: Execution) -> None:
    """Where nobody pulled, the stream is still to be closed."""
    with execution, stream:
        pass


@contextmanager
def _not_too_deep() -> Iterator[None]:
    """Trees are walked by recursion; one deeper than Python goes is refused before anything has been asked."""
    try:
        yield
    except RecursionError as error:
        raise LimitError(
            "The query is nested too deeply.",
            hint="Write a long chain of OR as IN (…), many UNION ALL as VALUES or an uploaded table, and name parts of "
            "it in WITH.",
        ) from error


def table_stream(table: pa.Table, batch_rows: int | None) -> Stream:
    """The rows of a table at hand."""
    stream = Stream.of(table)
    return stream if batch_rows is None else stream.rebatch(batch_rows)
