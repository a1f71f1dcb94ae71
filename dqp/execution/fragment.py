"""Running a fragment: SQL for DuckDB over inputs that are fetched beside it.

It is the same in the process that has the query (``dqp.runtimes.local``) and on an evaluator (``dqp.runtimes.task``);
only how an input is fetched differs, and ``begin`` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from dai.streams.stream import Stream
from dqp.algebra.operators import Call, Operator, Project, Receive, Remote, Verbatim, column
from dqp.algebra.trees import walk_deep
from dqp.catalog.catalog import Catalog
from dqp.execution.engine import Engine
from dqp.execution.execution import Execution
from dqp.execution.leaves import Leaves, as_promised, over, read_as, restored, table_of
from dqp.execution.service_calls import Operation, calling

Columns = tuple[tuple[str, str], ...]
"""(identifier, DuckDB type)."""
Leaf: TypeAlias = Remote | Receive | pa.Table


@dataclass(frozen=True)
class Tuples:
    """Rows at hand. ``columns``: what they are cast to; None, as they are."""

    data: pa.Table
    columns: Columns | None = None


@dataclass(frozen=True)
class Called:
    """The first ``kept`` columns of ``below``, and the results of an operation as the column ``identifier``: its
    arguments are the columns behind them."""

    operation: Operation
    below: Body
    kept: int
    identifier: str


@dataclass(frozen=True)
class Body:
    """A query over inputs by name: ``Tuples``, ``Called`` and what is fetched; ``repeated`` are those it reads more
    than once; ``choosing``: DuckDB chooses the order of joins. ``remarks`` for EXPLAIN: what is computed once."""

    sql: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    repeated: frozenset[str] = frozenset()
    choosing: bool = False
    remarks: tuple[str, ...] = field(default=(), compare=False)


def body_of(
    tree: Operator,
    catalog: Catalog,
    input_of: Callable[[str, Leaf], Any],
    operation_of: Callable[[str, Call], Operation],
    path: str = "",
) -> Body:
    """The tree as a query over its leaves. An input's path is its name behind those of the calls that it lies below."""
    leaves = Leaves(tree, catalog)
    sql = leaves.sql()
    fetched = {**leaves.tables, **leaves.remotes, **leaves.receives}
    inputs = {name: input_of(path + name, leaf) for name, leaf in fetched.items()}
    remarks = leaves.remarks
    for name, call in leaves.calls.items():
        operation = operation_of(path + name, call)
        kept = tuple((each, column(each)) for each in call.input.columns)
        arguments = tuple((f"argument {at}", each) for at, each in enumerate(call.arguments, 1))
        below = body_of(Project(call.input, (*kept, *arguments)), catalog, input_of, operation_of, f"{path}{name}/")
        inputs[name] = Called(operation, below, len(kept), call.identifier)
        remarks += below.remarks
    choosing = any(isinstance(each, Verbatim) for each in walk_deep(tree))
    return Body(sql, inputs, frozenset(filter(leaves.several, inputs)), choosing, remarks)


class Rows(Protocol):
    """Rows that are being fetched."""

    def stream(self) -> Stream:
        """Waits until it has begun to arrive."""


@dataclass(frozen=True)
class Begun:
    """An input that is being fetched. ``columns``: what its rows are cast to; None, the types that their producers say.
    ``whole``: read to its end before the fragment begins, as it is, since the fragment may read it several times."""

    rows: Rows
    columns: Columns | None
    whole: bool = False


class FragmentRunner:
    """Runs the fragments of one execution. ``begin``: begins to fetch the input at a path; ``keys``: of measurements,
    by path; a fragment's own path is that of its inputs without their names. ``where``: the place, for EXPLAIN."""

    def __init__(
        self,
        engine: Engine,
        execution: Execution,
        begin: Callable[[str, Any], Begun],
        where: str = "",
        keys: Mapping[str, Hashable] | None = None,
    ) -> None:
        self._engine, self._execution, self._begin, self._where = engine, execution, begin, where
        self._keys = keys or {}

    def run(self, body: Body, names: Any = None, types: Any = None, path: str = "") -> Stream:
        """The rows, once all that they are made of has begun. Raises what ``Engine.run`` and the inputs raise."""
        measure = self._execution.measure(self._keys.get(path, path), self._where)
        with ExitStack() as calls:  # an input may fail when the rows of a call are on their way
            sql, inputs = self._opened(body, path, calls)
            measure.sent(self._where, sql)
            stream = self._engine.run(
                sql, inputs, self._execution, names=names, types=types, measure=measure, choosing=body.choosing
            )
            calls.pop_all()
        return measure.stream(stream)

    def _opened(self, body: Body, path: str, calls: ExitStack) -> tuple[str, dict[str, Stream | pa.Table]]:
        """The SQL and what it reads. Everything is begun before anything is waited for."""
        inputs: dict[str, Stream | pa.Table] = {}
        tables: dict[str, str] = {}
        begun = {
            name: self._begin(path + name, each)
            for name, each in body.inputs.items()
            if not isinstance(each, Tuples | Called)
        }
        for name, each in body.inputs.items():
            if isinstance(each, Called):
                inputs[name] = stream = self._called(each, path + name)
                calls.callback(stream.close)
                tables[name] = restored(name, stream.schema)
            elif isinstance(each, Tuples):
                inputs[name] = each.data
                if each.columns is not None:
                    tables[name] = read_as(name, each.columns, each.data.schema)
        for name, input in begun.items():
            stream = input.rows.stream()
            rows = stream.table() if input.whole else stream
            if input.columns is not None:
                selected = read_as(name, input.columns, stream.schema)
                if name not in body.repeated and as_promised(input.columns, stream.schema):
                    # DuckDB need not parse and bind the SELECT, which would select all.
                    inputs[table_of(name)] = rows
                    continue
                tables[name] = selected
            elif not input.whole:
                tables[name] = restored(name, stream.schema)
            inputs[name] = rows
        return over(body.sql, tables, body.repeated), inputs

    def _called(self, called: Called, path: str) -> Stream:
        """The rows below an operation call, with its results."""
        below = self.run(called.below, path=f"{path}/")
        try:
            key = self._keys.get(path, path)
            return calling(called.operation, below, called.kept, called.identifier, self._execution, key)
        except BaseException:
            below.close()
            raise
