"""The runtime in this process: remote subtrees are fetched at once, all else is one fragment of its own DuckDB."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dai.errors import DaiError, InternalError
from dai.streams.stream import Stream
from dai.streams.tracing import streamed
from dqp.algebra.operators import Call, Operator, Project, Remote, Scan, quoted
from dqp.algebra.trees import remotes, walk
from dqp.catalog.catalog import Catalog
from dqp.execution.engine import Engine, arrow_field
from dqp.execution.execution import Execution, ExecutionOptions
from dqp.execution.fetch import LOST, Lost, direct, places
from dqp.execution.fragment import Body, Columns, FragmentRunner, Leaf, Tuples, body_of
from dqp.execution.leaves import read_as
from dqp.execution.readings import Readings
from dqp.execution.service_calls import Operation
from dqp.planning.alternatives import Alternative, Chance
from dqp.planning.context import Context
from dqp.planning.distribution.partition import Plan
from dqp.planning.distribution.placement import HERE, Placement
from dqp.planning.parallel import in_parts
from dqp.planning.rules.build_sides import smaller_built
from dqp.planning.rules.first_rows import first_rows
from dqp.planning.semijoins.adaptive import adapt, foreseen
from dqp.planning.splitting import divided
from dqp.runtimes import Runtime
from dqp.settings import FederationSettings

ROOT = Plan.name(0)
"""Key of the measurement of the fragment that gives the answer."""
FORESEEN = ExecutionOptions()
"""For plans that are shown and do not run."""


@dataclass(frozen=True)
class Query:
    """What ``Runtime.run`` is to run, and which sources it has lost."""

    tree: Operator
    names: Sequence[str]
    types: Sequence[str]
    context: Context | None
    execution: Execution
    lost: Lost


class Local(Runtime):
    """``operations``: the operation calls by name. ``engine``: a DuckDB shared with others, who close it."""

    def __init__(
        self,
        catalog: Catalog,
        settings: FederationSettings | None = None,
        *,
        operations: Mapping[str, Operation] | None = None,
        engine: Engine | None = None,
        directory: str | None = None,
    ) -> None:
        self._catalog = catalog
        self._operations = dict(operations or {})
        self._own = engine is None
        self._settings = settings or FederationSettings()
        memory = settings.memory_bytes if settings is not None else 0
        self._engine = engine or Engine(memory_bytes=memory, directory=directory)

    def over(self, catalog: Catalog) -> Local:
        """The same on the sources of another catalog; whoever closes this one closes the DuckDB of both."""
        return Local(catalog, self._settings, operations=self._operations, engine=self._engine)

    def run(
        self,
        tree: Operator,
        names: Sequence[str],
        types: Sequence[str],
        context: Context | None,
        execution: Execution,
    ) -> Stream:
        query = Query(tree, names, types, context, execution, Lost())
        try:
            stream = self._first(query)
        except BaseException:
            execution.stop()
            raise

        def close() -> None:
            try:
                stream.close()  # where nobody pulled
            finally:
                execution.stop()

        return Stream(stream.schema, self._handed(stream, query), close)

    def fetch(self, remote: Remote, execution: Execution) -> pa.Table:
        stream, measure = direct(remote, self._catalog, execution, Lost())
        return measure.stream(stream).table()

    def placed(self, tree: Operator, context: Context) -> Placement:
        tree, own = self._parted(tree, context, FORESEEN)
        only = alone(tree)
        return Placement.here(only) if only is not None else self._place(tree, own)

    def _place(self, tree: Operator, context: Context) -> Placement:
        """Where a tree of several leaves would run."""
        parts = {each: divided(each, FORESEEN.split_rows, FORESEEN.splits) for each in remotes(tree)}
        remarks = tuple(foreseen(tree, context, FORESEEN.inline_bytes))
        return replace(Placement.here(tree), parts=parts, remarks=remarks)

    def close(self) -> None:
        if self._own:
            self._engine.close()

    # --- attempts ---

    def _first(self, query: Query) -> Stream:
        while True:
            try:
                return self._opened(query)
            except DaiError as error:
                if not self._retries(error, query):
                    raise
                query.execution.again()

    def _handed(self, stream: Stream, query: Query) -> Iterator[pa.RecordBatch]:
        handed = False
        while True:
            try:
                with stream:
                    for batch in stream:
                        yield batch
                        handed = handed or batch.num_rows > 0
                return
            except DaiError as error:
                if handed or not self._retries(error, query):
                    raise
            query.execution.again()
            stream = self._first(query)

    def _retries(self, error: DaiError, query: Query) -> bool:
        """Whether another attempt may succeed after this failure of one: a source was lost, and every remote subtree
        has a place that was not lost yet."""
        if not isinstance(error, LOST):
            return False
        losses = [
            [query.lost.count(place.source.alias) for place in places(leaf, self._catalog)]
            for leaf in remotes(query.tree)
        ]
        return any(any(each) for each in losses) and all(0 in each for each in losses)

    # --- one attempt ---

    def _opened(self, query: Query) -> Stream:
        execution, context = query.execution, query.context
        if context is not None:
            tree, context = self._parted(query.tree, context, execution.options)
            query = replace(query, tree=tree, context=context)
            if self._settings.second_chance and context.options.pushdown == "cost":
                least, multiple = self._settings.second_chance_after, self._settings.second_chance
                execution.chance = Chance(least, multiple, context, self._alternative)
        only = alone(query.tree)
        if only is not None:
            return self._through(only, query)
        self._admit(execution)
        return self._start(query, Readings(self._catalog, execution, query.lost))

    def _admit(self, execution: Execution) -> None:
        """Waits for a turn if too many queries run."""

    def _parted(self, tree: Operator, context: Context, options: ExecutionOptions) -> tuple[Operator, Context]:
        """The tree with large aggregates made in parts, and a context of its own: a plan may be run by several threads
        at once, and again."""
        own = replace(
            context, estimator=context.estimator.again(), types=dict(context.types), remarks=[], key_tables=[]
        )
        return (in_parts(tree, own, options.split_rows) if options.splits > 1 else tree), own

    def _through(self, remote: Remote, query: Query) -> Stream:
        """The rows of one statement, by DuckDB only where their types are not those of the answer."""
        columns, names, types, execution = query.tree.columns, query.names, query.types, query.execution
        execution.placement = Placement.here(remote)
        stream, measure = direct(remote, self._catalog, execution, query.lost)
        stream = measure.stream(stream)
        at = [stream.schema.get_field_index(each) for each in columns]
        fields = []
        for index, name, type in zip(at, names, types, strict=True):
            field, cast = arrow_field(name, type)
            have = stream.schema.field(index).type
            if have != field.type and (cast or not _widens(have, field.type)):
                inner = read_as("t", zip(columns, types, strict=True), stream.schema)
                items = ", ".join(quoted(each) for each in columns)
                return self._engine.run(
                    f"SELECT {items} FROM ({inner})", {"t": stream}, execution, names=names, types=types
                )
            fields.append(field)
        schema = pa.schema(fields)

        def renamed(batch: pa.RecordBatch) -> pa.RecordBatch:
            arrays = [
                array if (array := batch.column(index)).type == wanted.type else pc.cast(array, wanted.type)
                for index, wanted in zip(at, schema, strict=True)
            ]
            return pa.RecordBatch.from_arrays(arrays, schema=schema)

        return stream.map(renamed, schema)

    def _start(self, query: Query, readings: Readings) -> Stream:
        """The rows of a tree of several leaves."""
        return self._here(query, readings)

    def _alternative(self, alternative: Alternative, columns: Columns, execution: Execution) -> Stream:
        """The rows of the alternative of a statement, computed in this process."""
        names, types = zip(*columns, strict=True)
        query = Query(alternative.tree, names, types, alternative.context, execution, Lost())
        return self._here(query, Readings(self._catalog, execution, query.lost))

    def _here(self, query: Query, readings: Readings) -> Stream:
        execution, tree = query.execution, adapted(query, readings)
        execution.placement = Placement.here(tree)
        for each in _apart(tree):  # the sources work while the rest is prepared
            readings.read(each)
        keys: dict[str, Hashable] = {"": ROOT}

        def input_of(path: str, leaf: Leaf) -> Tuples | Remote:
            return leaf if isinstance(leaf, Remote) else Tuples(leaf)

        def operation_of(path: str, call: Call) -> Operation:
            keys[path], keys[f"{path}/"] = call, ("below", call)
            return self.operation(call.function)

        body: Body | None = tree.kept.get("body")
        if body is None:
            body = body_of(tree, self._catalog, input_of, operation_of)
            if len(keys) == 1:  # those of calls are made beside it
                tree.kept["body"] = body
        execution.remarks += body.remarks
        runner = FragmentRunner(self._engine, execution, readings.begin, HERE, keys)
        above = execution.cancellation.span
        if above is None:
            return runner.run(body, query.names, query.types)
        span = above.child("fragment", {"dqp.fragment": ROOT})
        return streamed(span, lambda: runner.run(body, query.names, query.types))

    def operation(self, name: str) -> Operation:
        if name not in self._operations:
            raise InternalError(f"There is no operation {name!r}.")
        return self._operations[name]


def _apart(tree: Operator) -> list[Remote]:
    """The remote subtrees, if each reads tables of its own. Others may be parts of what is computed once: of those that
    are equal but for their columns one is asked."""
    leaves = list(remotes(tree))
    tables = [each for leaf in leaves for each in {scan.table for scan in walk(leaf.tree) if isinstance(scan, Scan)}]
    return leaves if len(set(tables)) == len(tables) else []


def adapted(query: Query, readings: Readings) -> Operator:
    """The tree, planned again with the rows of its small build sides, and the smaller side of each join right. What it
    becomes without such rows is kept for the next run."""
    if query.context is None:
        return query.tree
    if "unreduced" in query.tree.kept:
        return query.tree.kept["unreduced"] or query.tree
    options = query.execution.options
    tree = adapt(query.tree, query.context, readings.read, options.inline_bytes)
    if tree is not query.tree and options.splits > 1:  # of fewer groups
        tree = in_parts(tree, query.context, options.split_rows, readings.begun)
    query.execution.remarks = tuple(query.context.remarks)
    built = first_rows(smaller_built(tree, query.context.estimator), query.context)
    if tree is query.tree and not (readings.begun or query.execution.remarks):
        tree.kept["unreduced"] = None if built is tree else built
    return built


def alone(tree: Operator) -> Remote | None:
    """The one remote subtree that the tree is, but for the order of its columns."""
    if isinstance(tree, Project) and all(isinstance(each, exp.Column) for _, each in tree.items):
        inner = alone(tree.input)
        if inner is None:
            return None
        items = tuple((name, each) for name, each in tree.items)
        if all(name == each.name for name, each in items):
            return inner
        return replace(inner, tree=Project(inner.tree, items))
    return tree if isinstance(tree, Remote) else None


def _widens(have: pa.DataType, want: pa.DataType) -> bool:
    """Whether every value of the one type is one of the other."""
    if pa.types.is_signed_integer(have) and pa.types.is_signed_integer(want):
        return bool(have.bit_width < want.bit_width)
    if pa.types.is_decimal128(have) and pa.types.is_decimal128(want):
        return bool(have.scale <= want.scale and have.precision - have.scale <= want.precision - want.scale)
    return bool(pa.types.is_float32(have) and pa.types.is_float64(want))
