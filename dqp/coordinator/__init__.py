"""A federated query from its text to its tuples: the only file that names every stage.

::

    text ──bind──> tree ──optimise──> tree over sources ──top_n──> perhaps a top-N probe ──runtime──> Stream
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace

import pyarrow as pa

from dai.client.credentials import Personal
from dai.drivers import Driver
from dai.errors import DataError, DeniedError, NotFoundError, StatementError, UnauthenticatedError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.binding.parameters import Parameters, is_explain
from dqp.catalog import descriptions
from dqp.catalog.catalog import Catalog
from dqp.catalog.diagnosis import pointed
from dqp.catalog.uploads import Uploads
from dqp.coordinator.plans import Planned, Plans
from dqp.coordinator.running import Begun, Runner, Running, unwatched
from dqp.errors import ChangedError, OutdatedError
from dqp.execution.fetch import scans_of
from dqp.execution.outdated import Outdating
from dqp.execution.service_calls import operations_of
from dqp.explain.explanation import Explanation
from dqp.explain.nodes import Figures
from dqp.explain.plan import asked_first, fragments_of, node_of, remarks_of
from dqp.planning.common_subtrees import Sharing
from dqp.planning.context import Options
from dqp.runtimes import Runtime, runtime_of
from dqp.runtimes.local import Local
from dqp.settings import FederationSettings

FRAMES = 8_000
"""Python's limit of recursion where there is a federation. Queries that programs write are deep: sqlglot's parser takes
20 frames for a parenthesis. A thread's usual stack of 8 MiB holds more of them."""
REPLANS = 3
"""Times that a query is planned again since a table was changed."""


class Coordinator:
    """One federation. Thread-safe; any number of queries at once. ``resolve``: the drivers of resources of this
    service. ConfigurationError for settings that cannot work."""

    def __init__(
        self,
        settings: FederationSettings,
        *,
        resolve: Callable[[str], Driver] | None = None,
        person: Personal | None = None,
    ) -> None:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), FRAMES))
        self.settings = settings
        self.operations = operations_of(settings)
        catalog = Catalog(settings, resolve=resolve, person=person)
        self.use(catalog, runtime_of(settings, catalog, self.operations))

    def use(self, catalog: Catalog, runtime: Runtime) -> None:
        """From now on queries go over this catalog and run there."""
        self.catalog, self.runtime = catalog, runtime
        options = Options(functions=frozenset(self.operations), pushdown=self.settings.pushdown)
        self.plans = Plans(catalog, options)
        self.runner = Runner(runtime)

    def over(self, uploads: Uploads) -> Coordinator:
        """The same federation with these uploads instead of its own. Closing this coordinator closes it, too."""
        coordinator = copy(self)
        coordinator.use(self.catalog.over(uploads), self.runtime)
        return coordinator

    def of(self, bearer: str | None, resolve: Callable[[str], Driver]) -> Coordinator:
        """The same federation as it asks for a caller: with a catalog, statistics, plans and learned figures of its
        own, and the same DuckDB."""
        coordinator, catalog = copy(self), Catalog(self.settings, resolve=resolve, bearer=bearer)
        assert isinstance(self.runtime, Local)
        coordinator.use(catalog, self.runtime.over(catalog))
        return coordinator

    def plan(self, sql: str, parameters: Parameters = (), *, cancellation: Cancellation | None = None) -> Planned:
        """As ``Plans.plan``."""
        return self.plans.plan(sql, parameters, cancellation=cancellation)

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
        begun: Begun = unwatched,
    ) -> tuple[Stream, Running | None]:
        """As ``query``, with the query under way; None for an EXPLAIN and a description. ``begun`` is called before
        anything is asked, with the execution that says how far it is."""
        if batch_rows is not None and batch_rows < 1:
            raise DataError(f"A block has at least one row, not {batch_rows}.")
        stream, running = self._answered(sql, parameters, cancellation, begun)
        return stream if batch_rows is None else stream.rebatch(batch_rows), running

    def _answered(
        self, sql: str, parameters: Parameters, cancellation: Cancellation, begun: Begun
    ) -> tuple[Stream, Running | None]:
        with pointed(sql):
            if (command := descriptions.command(sql)) is not None:
                try:
                    table = self._described(command, parameters, cancellation, begun)
                except StatementError as error:
                    raise error.of(sql) from None
                return Stream.of(table), None
            if is_explain(sql) and (bound := self.plans.plan(sql, parameters, cancellation=cancellation).bound).form:
                analyze = bound.statement == "explain analyze"
                explanation = self.explain(sql, parameters, analyze=analyze, cancellation=cancellation, begun=begun)
                lines = getattr(explanation, bound.form).split("\n")
                return Stream.of(pa.table({"plan": pa.array(lines, pa.string())})), None
            running = self._started(sql, parameters, cancellation, begun)
        return running.stream, running

    def _started(
        self,
        sql: str,
        parameters: Parameters,
        cancellation: Cancellation,
        begun: Begun,
        *,
        profiled: bool = False,
    ) -> Running:
        """The query under way, planned again where a source has other tables than it was planned for, or a copy
        of a logical table is gone, or a sample contradicts the statistics of a table before there is a row."""
        noted: tuple[str, ...] = ()
        for left in reversed(range(REPLANS + 1)):
            version, began = self.catalog.version, time.monotonic()
            planned = self.plans.plan(sql, parameters, cancellation=cancellation)
            watched = Outdating(begun, self.catalog.late(scans_of(planned.bound.tree), began) if left else ())
            try:
                running = self.runner.run(planned, cancellation=cancellation, begun=watched.begun, profiled=profiled)
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

    def _described(
        self, command: descriptions.Command, parameters: Parameters, cancellation: Cancellation, begun: Begun
    ) -> pa.Table:
        if command.word == "SHOW":
            return descriptions.tables(self.catalog)
        try:
            bound = self.plans.plan(command.query, parameters, cancellation=cancellation).bound
        except StatementError:
            if (placed := descriptions.with_source(self.catalog, command)) is None:
                raise
            return self._described(placed, parameters, cancellation, begun)
        shape = list(zip(bound.names, bound.types, strict=True))
        if command.word == "DESCRIBE":
            return descriptions.described(self.catalog, command.path, shape)
        query = descriptions.summary_query(command.query, shape)
        with self._started(query, parameters, cancellation, begun).stream as stream:
            row = stream.table().to_pylist()[0]
        return descriptions.summary(row.values(), shape)

    def explain(
        self,
        sql: str,
        parameters: Parameters = (),
        *,
        analyze: bool = False,
        cancellation: Cancellation | None = None,
        begun: Begun = unwatched,
    ) -> Explanation:
        """The plan of the query; with ``analyze`` the query runs to its end, and the plan has the measurements, too."""
        with pointed(sql):
            return self._explained(sql, parameters, analyze, cancellation, begun)

    def _explained(
        self, sql: str, parameters: Parameters, analyze: bool, cancellation: Cancellation | None, begun: Begun
    ) -> Explanation:
        planned = self.plans.plan(sql, parameters, cancellation=cancellation)
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
