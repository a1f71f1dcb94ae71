"""Queries: described once, then read by psycopg (few rows), from the socket (many) or by ADBC (many that are not read
there), all into the same Arrow schema.

What a statement's description said is kept for a minute: its columns, their types, and the planner's estimate of the
rows, which decides the path. No path trusts it: each compares what the database gives with what was kept, and
``Stale`` has the caller describe the statement again before a row was handed over. A wrong estimate costs time only:
psycopg streams in small chunks however many rows there are, and how many there were takes the estimate's place.
"""

from __future__ import annotations

import json
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import Any

import psycopg
import pyarrow as pa

from dai.drivers import NO_TABLES
from dai.drivers.connections.interrupts import interruptible
from dai.drivers.postgresql.decode import batch
from dai.drivers.postgresql.errors import from_result
from dai.drivers.postgresql.query_tables import definitions, values
from dai.drivers.postgresql.syntax import SYNTAX
from dai.drivers.postgresql.types import LOOKUP, Shape, TypeInfo, Wanted, missing, projected, shape, uncasts
from dai.drivers.postgresql.wire import Connection, Execution, Parameters, check_most, described, one_round_trip
from dai.drivers.sql.lexer import Bound, bind_markers, check_count, keyword
from dai.drivers.sql.query_tables import Tables, preceded
from dai.errors import DaiError, DataError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

SMALL_CELLS = 6_000
"""Rows times columns up to which psycopg is faster: docs/decisions/0006-postgresql-two-paths.md has the figures."""
SMALLEST_BATCH, BATCHES = 1 << 17, 8
KEPT_SECONDS = 60.0
CANCEL_SECONDS = 5.0
KEPT_STATEMENTS = 1_000
_COPYABLE = frozenset({"SELECT", "WITH", "VALUES", "TABLE"})


class Stale(Exception):
    """The kept description of a statement is out of date; no row was returned yet."""


@dataclass(frozen=True, slots=True)
class Projection:
    """The SQL that is sent: the caller's query, from ``offset`` on, inside the casts that ``shapes`` need."""

    sql: str
    shapes: tuple[Shape, ...]
    offset: int
    wrapped: bool

    @classmethod
    def of(cls, inner: str, shapes: tuple[Shape, ...]) -> Projection:
        sql = projected(inner, shapes)
        return cls(sql, shapes, 0 if sql is inner else sql.index(inner), sql is not inner)


@dataclass(slots=True)
class Description:
    """``few`` is sent by psycopg, ``many`` by ADBC, which knows fewer types by itself."""

    columns: tuple[Wanted, ...]
    schema: pa.Schema
    struct: pa.StructType
    inner: str
    few: Projection
    many: Projection
    parameter_types: tuple[str, ...]
    rows: float
    width: float
    until: float


@dataclass(frozen=True, slots=True)
class Query:
    """One query as the caller sent it (``sql``), behind its query-scoped tables (``text``), and with its
    markers numbered (``bound``)."""

    sql: str
    text: str
    bound: Bound
    parameters: Parameters

    @property
    def key(self) -> tuple[str, tuple[int, ...]]:
        return self.bound.sql, self.parameters.oids

    @property
    def copyable(self) -> bool:
        return keyword(self.sql, SYNTAX) in _COPYABLE


def prepared_query(sql: str, parameters: Parameters, tables: Tables = NO_TABLES) -> Query:
    """The caller's statement with its markers and tables as PostgreSQL's ``$1``. ParameterError for another number of
    values than markers."""
    if not tables:
        bound = bind_markers(sql, "dollar", SYNTAX) if parameters.values else Bound(sql, 0)
        check_count(bound.count, len(parameters.values))
        check_most(bound.count)
        return Query(sql, sql, bound, parameters)
    text, inserted = preceded(sql, definitions(tables), SYNTAX)
    arrays = tuple(values(tables))
    bound = replace(bind_markers(text, "dollar", SYNTAX), inserted=inserted)
    check_count(bound.count - len(arrays), len(parameters.values))
    check_most(bound.count)
    # The tables stand in front of all the query's own markers.
    bound_parameters = Parameters((*arrays, *parameters.values), (*(0 for _ in arrays), *parameters.oids))
    return Query(sql, text, bound, bound_parameters)


class Descriptions:
    """The statements described last, for a short time; the types met, for good. Thread-safe."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Any, Description] = OrderedDict()
        self._types: dict[int, TypeInfo] = {}
        self._lock = Lock()

    def get(self, query: Query) -> Description | None:
        with self._lock:
            description = self._kept.get(query.key)
            if description is None or description.until < time.monotonic():
                return None
            self._kept.move_to_end(query.key)
            return description

    def forget(self, query: Query) -> None:
        with self._lock:
            self._kept.pop(query.key, None)

    def describe(
        self,
        connection: psycopg.Connection[Any],
        query: Query,
        *,
        transaction: bool = True,
        plan: bool = True,
        begin: bool = False,
    ) -> Description:
        """Asks the database; a round trip, and another one for types that were never met. What is kept is used again
        where the database says the same. ``transaction`` and ``begin`` are those of ``described``."""
        inner = query.bound.sql
        plan = plan and query.copyable
        answer = described(
            connection,
            inner.encode(),
            query.parameters,
            query.sql,
            query.bound.original,
            plan=plan,
            transaction=transaction,
            begin=begin,
        )
        with self._lock:
            kept = self._kept.get(query.key)
        if kept is not None and kept.columns == answer.columns and not (plan or answer.parameter_oids):
            kept.until = time.monotonic() + KEPT_SECONDS
            return kept
        shapes = self.shapes(connection, answer.columns, transaction=transaction)
        direct = uncasts(shapes, answer.columns, self._types)
        if not query.copyable:  # SHOW, EXPLAIN and FETCH cannot stand in a subquery
            if direct is None:
                raise DataError(
                    "The result has a column whose type cannot be read from a cursor.",
                    hint="Cast it to text in the query of the cursor.",
                )
            shapes = direct
        parameter_types = self._parameter_types(connection, answer.parameter_oids, transaction)
        rows, width = _estimate(answer.plan)
        many = Projection.of(inner, shapes)
        description = Description(
            answer.columns,
            pa.schema([each.field for each in shapes]),
            pa.struct([each.field for each in shapes]),
            inner,
            many if direct is None else Projection(inner, direct, 0, False),
            many,
            parameter_types,
            rows,
            width,
            time.monotonic() + KEPT_SECONDS,
        )
        with self._lock:
            self._kept[query.key] = description
            while len(self._kept) > KEPT_STATEMENTS:
                self._kept.popitem(last=False)
        return description

    def shapes(
        self, connection: psycopg.Connection[Any], columns: tuple[Wanted, ...], *, transaction: bool
    ) -> tuple[Shape, ...]:
        while wanted := missing([column.oid for column in columns], self._types):
            oids = "{" + ",".join(map(str, wanted)) + "}"
            parameters = Parameters((oids.encode(),), (1028,))
            (result,) = one_round_trip(connection, [(LOOKUP, parameters)], transaction=transaction)
            for row in range(result.ntuples):
                oid, name, element, base, kind, typmod = (_text(result.get_value(row, column)) for column in range(6))
                self._types[int(oid)] = TypeInfo(name, int(element), int(base), kind, int(typmod))
            for oid_wanted in wanted:  # gone in the meantime: only its text form is left
                self._types.setdefault(oid_wanted, TypeInfo("text", 0, 0, "b"))
        return tuple(shape(column, self._types) for column in columns)

    def _parameter_types(
        self, connection: psycopg.Connection[Any], oids: tuple[int, ...], transaction: bool
    ) -> tuple[str, ...]:
        """Their names as SQL writes them."""
        if not oids:
            return ()
        array = "{" + ",".join(map(str, oids)) + "}"
        sql = b"SELECT pg_catalog.format_type(o, NULL) FROM unnest($1::oid[]) WITH ORDINALITY AS u(o, n) ORDER BY n"
        (result,) = one_round_trip(connection, [(sql, Parameters((array.encode(),), (1028,)))], transaction=transaction)
        return tuple(_text(result.get_value(row, 0)) for row in range(result.ntuples))


def _text(cell: bytes | None) -> str:
    return "" if cell is None else cell.decode()


def _estimate(plan: bytes | None) -> tuple[float, float]:
    if plan is None:
        return 0.0, 0.0
    top = json.loads(plan)[0].get("Plan", {})
    return float(top.get("Plan Rows", 0)), float(top.get("Plan Width", 0))


def is_small(description: Description, batch_bytes: int) -> bool:
    """Whether psycopg reads it sooner than a COPY would, by the planner's guess of rows (docs/decisions/0006)."""
    cells = description.rows * max(len(description.columns), 1)
    return cells <= SMALL_CELLS and description.rows * description.width <= batch_bytes


def batch_bytes_for(description: Description, most: int) -> int:
    """A result that is expected to fit a few batches comes in smaller ones: each is encoded and sent while the next is
    fetched."""
    expected = description.rows * description.width
    return min(most, max(SMALLEST_BATCH, int(expected / BATCHES))) if expected else most


def small(
    connection: Connection,
    query: Query,
    description: Description,
    *,
    release: Callable[[bool], None],
    cancellation: Cancellation,
    batch_rows: int,
    batch_bytes: int,
    transaction: bool = True,
) -> Stream:
    """Rows streamed by libpq. ``release(clean)`` is called once, when the stream ends or is closed.

    The first batch is read before this returns, so that what the database has against the statement is raised here.
    """

    def batches() -> Iterator[pa.RecordBatch]:
        clean = False
        interrupt = partial(connection.cancel_safe, timeout=CANCEL_SECONDS)
        inner = description.inner.encode() if description.few.wrapped else None
        try:
            execution = Execution(
                connection, description.few.sql.encode(), query.parameters, inner=inner, transaction=transaction
            )
            chunks = execution.chunks()
            seen, more = 0, True
            while more:
                parts: list[Any] = []
                rows = size = 0
                # Registered only while it blocks: no callback comes while the consumer runs.
                with interruptible(cancellation, interrupt):
                    while rows < batch_rows and size < batch_bytes:
                        chunk = next(chunks, None)
                        if chunk is None:
                            more = False
                            break
                        if not seen and execution.columns != description.columns:
                            raise Stale
                        parts.append(chunk)
                        rows += chunk.ntuples
                        size += _size(chunk)
                seen += rows
                if not more:
                    clean = True
                    if execution.failure is not None:
                        raise _failure(execution.failure, query, description)
                    description.rows = float(seen)
                    release(True)  # the connection is free before the last batch is looked at
                whole = _batch(description, parts)
                for start in range(0, whole.num_rows, batch_rows):
                    yield whole if whole.num_rows <= batch_rows else whole.slice(start, batch_rows)
        finally:
            if not clean and connection.info.transaction_status == _ACTIVE:
                with suppress(Exception):
                    interrupt()
            release(clean and not cancellation.cancelled)

    return with_first_batch(description.schema, batches())


_ACTIVE = psycopg.pq.TransactionStatus.ACTIVE


def with_first_batch(schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Stream:
    """A stream whose first batch is there already, and whose end is noticed when there is only that one."""
    first = next(batches, None)

    def all_of_them() -> Iterator[pa.RecordBatch]:
        try:
            if first is not None:
                yield first
                yield from batches
        finally:
            batches.close()  # type: ignore[attr-defined]

    return Stream(schema, all_of_them(), batches.close)  # type: ignore[attr-defined]


def _failure(result: Any, query: Query, description: Description) -> DaiError:
    def position(at: int) -> int:
        return query.bound.original(max(at - description.few.offset, 1))

    return from_result(result, query.sql, position)


def _size(chunk: Any) -> int:
    """About how many bytes: as if all rows were as long as the first."""
    if not chunk.ntuples:
        return 0
    return sum(len(chunk.get_value(0, column) or b"") for column in range(chunk.nfields)) * int(chunk.ntuples)


def _batch(description: Description, chunks: list[Any]) -> pa.RecordBatch:
    shapes = description.few.shapes
    if not shapes:
        rows = sum(chunk.ntuples for chunk in chunks)
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    columns = [
        [chunk.get_value(row, index) for chunk in chunks for row in range(chunk.ntuples)]
        for index in range(len(shapes))
    ]
    return batch(description.schema, description.struct, shapes, columns)
