"""Reading the leaves that live in sources: all at once, large scans in parts, whichever replica answers.

``Reading`` begins to fetch when it is made, in threads of the execution's, into a bounded buffer
(``dqp.execution.buffer``), so that the statements of a plan that depend on nothing run at the same time. Parts of a
scan are statements and hence transactions of their own: rows that change between them may be seen as they were before
or after.

A source that cannot be reached is replaced by the next replica as long as nothing of the part has arrived. After that
the attempt fails, and the runtime may begin another one (``lost`` has the sources to avoid).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Generic, TypeVar

import pyarrow as pa
from sqlglot import exp

from dai.errors import DaiError, DatabaseUnavailableError, InternalError, TruncatedError, UnreachableError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.dialects import explained, properties
from dqp.algebra.keys import MOST_LOOKED_UP, Members, without_members
from dqp.algebra.operators import Filter, Nested, Operator, Remote, Scan, Sort, column
from dqp.algebra.table import ROWID, Table
from dqp.algebra.trees import rewritten, walk, walk_deep
from dqp.algebra.types import planned
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.source import Source
from dqp.errors import ChangedError
from dqp.execution.arriving import OTHER_COLUMNS, OTHER_TYPES, Arriving
from dqp.execution.execution import Execution, Measure, Slots
from dqp.execution.overtaking import chance_of, raced
from dqp.planning.costing.work import looked_up
from dqp.planning.splitting import LOOKED_UP, divided, few, scanned, ungrouped
from dqp.sql import dialects
from dqp.sql.dialects import NotPushed, Statement

LOST = (DatabaseUnavailableError, UnreachableError, TruncatedError)
"""Failures of a source, not of the statement: another place may answer."""

T = TypeVar("T")


class Lost:
    """Aliases whose sources failed in this query: asked last. Thread-safe."""

    def __init__(self) -> None:
        self._aliases: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(self, alias: str) -> None:
        with self._lock:
            self._aliases[alias] = self._aliases.get(alias, 0) + 1

    def count(self, alias: str) -> int:
        return self._aliases.get(alias, 0)


@dataclass(frozen=True)
class Place:
    """A source and the statement that gives the rows there, of the tree over its tables."""

    source: Source
    statement: Statement
    tree: Operator


def places(remote: Remote, catalog: Catalog, lost: Lost | None = None) -> tuple[Place, ...]:
    """Where the remote subtree can run: its source, then sources in which all its tables have replicas; those that were
    lost last."""
    scans = tuple(scans_of(remote.tree))
    able: list[Place] = []
    away = None
    try:
        able += _places(remote.tree, catalog.sources[remote.source])
    except (NotPushed, *LOST) as error:  # a replica of another dialect may have answered when the plan was made
        away = error
    moved: dict[str, dict[Table, Table]] = {}
    for scan in scans:
        for alias, schema, name in scan.table.replicas:
            moved.setdefault(alias, {}).setdefault(scan.table, catalog.moved(scan.table, alias, schema, name))
    for alias, tables in moved.items():
        if alias in catalog.sources and all(scan.table in tables for scan in scans):
            source = catalog.sources[alias]
            try:
                able += _places(_moved(remote.tree, tables), source)
            except (NotPushed, *LOST):
                continue
    if not able:
        assert away is not None
        raise away
    if lost is not None:
        able.sort(key=lambda each: lost.count(each.source.alias))
    return tuple(able)


def _places(tree: Operator, source: Source) -> Iterator[Place]:
    """The source; once more for its statement without its query-scoped tables of keys, should they be refused."""
    statement = _statement(tree, source)
    if not statement.tables or source.takes_tables():
        yield Place(source, statement, tree)
    if statement.tables:
        yield Place(source, _statement(rewritten(tree, without_members), source), tree)


def _statement(tree: Operator, source: Source) -> Statement:
    try:
        return dialects.statement(tree, source.dialect)
    except LOST as error:
        raise _of_source(error, source.alias) from error


def scans_of(tree: Operator) -> Iterator[Scan]:
    """The scans of a tree, those of the plans in its expressions included."""
    return (node for node in walk_deep(tree) if isinstance(node, Scan))


def _moved(tree: Operator, tables: dict[Table, Table]) -> Operator:
    """The tree over the tables of a replica."""

    def change(node: exp.Expression) -> exp.Expression:
        if isinstance(node, Nested):
            return node.over(_moved(node.plan, tables))
        return node

    if isinstance(tree, Scan):
        return replace(tree, table=tables[tree.table])
    moved = tree.with_inputs(*(_moved(each, tables) for each in tree.inputs))
    if any(each.find(Nested) for each in moved.expressions):
        moved = moved.with_expressions(lambda each: each.transform(change))
    return moved


class Reading(Arriving):
    """The rows of one remote subtree, being fetched. ``columns`` are (identifier, DuckDB type) as the statement says:
    what arrives can be cast to that type without loss.

    Failures are those of the source, named by its alias; the first fails the execution's attempt.
    """

    def __init__(self, remote: Remote, catalog: Catalog, execution: Execution, lost: Lost) -> None:
        self.remote, self._catalog, self._execution, self._lost = remote, catalog, execution, lost
        measure = execution.measure(remote, remote.source)
        options = execution.options
        splits = 1 if _few(remote, catalog, execution) else options.splits
        parts = [places(each, catalog, lost) for each in divided(remote, options.split_rows, splits)]
        self.columns = parts[0][0].statement.columns
        self._slots, self._at_once = execution.slots(remote.source), Slots(max(1, splits))
        # the parts of a scan have to have the same types
        self._chance = chance_of(remote, execution) if len(parts) == 1 else None
        self._parts = len(parts) > 1
        fetches = [partial(self._fetch, part) for part in parts]
        super().__init__(fetches, [each for each, _ in self.columns], execution, measure, f"dqp-{remote.source}")

    def _fetch(self, part: tuple[Place, ...], _: Arriving) -> None:
        asked = [Asked.of(each, partial(self._take, each)) for each in part]
        with self._at_once(self._cancellation), self._slots(self._cancellation):
            first_of(asked, self._measure, self._cancellation, self._lost)

    def _take(self, place: Place, touched: Callable[[], None]) -> None:
        if self._chance is None:
            stream = _opened(place, self._catalog, self._cancellation)
        else:
            sent = partial(_opened, place, self._catalog)
            stream = raced(sent, self.remote, self.columns, self._execution, self._chance)
        with stream:
            if not self._parts or not properties(place.source.dialect).LOOSE:
                self.take(stream, touched)
                return
            try:
                self.take(planned(stream, [type for _, type in self.columns]), touched)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ChangedError(OTHER_TYPES, hint="Run the query again.") from error


def _few(remote: Remote, catalog: Catalog, execution: Execution) -> bool:
    """Whether one statement is enough: few rows are expected from a database that reads a table with several workers,
    or an index finds few rows, however many groups these become. Each part would load a table of keys again."""
    scan = scanned(remote)
    if scan is None:
        return False
    of = properties(catalog.dialect(remote.source))
    expected = execution.expected(replace(remote, tree=ungrouped(remote.tree)) if of.SINGLE_THREADED else remote)
    if expected is None:
        return False
    if of.SINGLE_THREADED:
        keys = of.ANY_INDEX and any(each.find(Members) for node in walk(remote.tree) for each in node.expressions)
        most = MOST_LOOKED_UP if keys else LOOKED_UP
        found = looked_up(remote.tree, scan)
        return found is not None and max(found * scan.table.rows, expected) <= most * scan.table.rows
    return expected <= few(scan, execution.options.splits)


def _opened(place: Place, catalog: Catalog, cancellation: Cancellation) -> Stream:
    statement = place.statement
    probe(place, catalog, cancellation)
    tables = {each.name: each.data for each in statement.tables}
    stream = place.source.query(statement.sql, statement.parameters, cancellation=cancellation, tables=tables)
    return statement.promise.checked(stream)


def probe(place: Place, catalog: Catalog, cancellation: Cancellation) -> None:
    """Asks for the types of the columns that the statement computes with and does not hand out: ChangedError where they
    are not those that were planned. (SQLite has no such types; its statements look at the values. It is asked whether
    each row has a number, if the table is read by ranges of these.)"""
    promise = place.statement.promise
    for scan in scans_of(place.tree):
        if properties(place.source.dialect).LOOSE:
            _numbered(scan, place, catalog, cancellation)
            continue
        table, handed = scan.table, frozenset(promise.origins.values())
        hidden = tuple(
            (identifier, name)
            for identifier, name in scan.items
            if (table.schema, table.name, table.column(name).source_name or name) not in handed
        )
        if hidden and catalog.probes.is_due(
            (place.source.alias, table.schema, table.name, *sorted(n for _, n in hidden))
        ):
            asked = _statement(Sort(replace(scan, items=hidden), limit=0), place.source)
            asked.promise.checked(place.source.query(asked.sql, cancellation=cancellation)).close()


def _numbered(scan: Scan, place: Place, catalog: Catalog, cancellation: Cancellation) -> None:
    """ChangedError where rows have no number: the table is a view now, or has a column of that name."""
    table, numbers = scan.table, tuple(each for each in scan.items if each[1] == ROWID)
    if table.rowid is None or not numbers or not catalog.probes.is_due((place.source.alias, table.name, ROWID)):
        return
    rows = replace(scan, items=numbers)
    without = Filter(rows, exp.Is(this=column(numbers[0][0]), expression=exp.Null()))
    for tree in (rows, without):  # SQLite takes the second for false in a view, where each row is without a number
        asked = _statement(Sort(tree, limit=1), place.source)
        with place.source.query(asked.sql, asked.parameters, cancellation=cancellation) as stream:
            if any(each.column(0).null_count for each in stream):
                raise ChangedError(f"{table} is another one than was planned with.", hint="Run the query again.")


@dataclass(frozen=True)
class Asked(Generic[T]):
    """A place's alias and statement, and the function that takes its rows and says when the first have arrived.
    ``refusable``: the statement has query-scoped tables; if it is refused, the next place is asked."""

    alias: str
    sql: str
    take: Callable[[Callable[[], None]], T]
    refusable: bool = False

    @classmethod
    def of(cls, place: Place, take: Callable[[Callable[[], None]], T]) -> Asked[T]:
        return cls(place.source.alias, place.statement.sql, take, bool(place.statement.tables))


def first_of(
    asked: Sequence[Asked[T]],
    measure: Measure,
    cancellation: Cancellation,
    lost: Lost,
) -> T:
    """The result of the first place that is not lost. Once rows have arrived, no other place is asked. Raises the
    failure of the last one asked, named by its alias, or the cancellation's cause."""
    touched = threading.Event()
    for number, each in enumerate(asked, 1):
        measure.sent(each.alias, each.sql)
        try:
            return each.take(touched.set)
        except DaiError as error:
            if error is cancellation.cause:
                raise
            if isinstance(error, LOST):
                lost.add(each.alias)
            if (isinstance(error, LOST) or each.refusable) and number < len(asked) and not touched.is_set():
                continue
            raise _named(error, each.alias, each.sql) from error
    raise InternalError("There is no source to read from.")


def read(remote: Remote, catalog: Catalog, execution: Execution, lost: Lost | None = None) -> Stream:
    """The rows of one remote subtree."""
    return Reading(remote, catalog, execution, lost or Lost()).stream()


def direct(remote: Remote, catalog: Catalog, execution: Execution, lost: Lost) -> tuple[Stream, Measure]:
    """The rows of one remote subtree without threads or buffers: nothing else is to be read at the same time."""
    measure = execution.measure(remote, remote.source)
    cancellation: Cancellation = execution.cancellation

    def opened(place: Place, _: Callable[[], None]) -> Stream:
        if (chance := chance_of(remote, execution)) is None:
            stream = _opened(place, catalog, cancellation)
        else:
            sent = partial(_opened, place, catalog)
            stream = raced(sent, remote, place.statement.columns, execution, chance)
        return _renamed(stream, place, cancellation, lost)

    asked = [Asked.of(each, partial(opened, each)) for each in places(remote, catalog, lost)]
    return first_of(asked, measure, cancellation, lost), measure


def _named(error: DaiError, alias: str, sql: str) -> DaiError:
    """The error with its source; in the dialect's words where its own SQL is the cause."""
    return _of_source(explained(error, sql), alias)


def _renamed(stream: Stream, place: Place, cancellation: Cancellation, lost: Lost) -> Stream:
    alias, names = place.source.alias, [each for each, _ in place.statement.columns]
    if len(names) != len(stream.schema.types):
        stream.close()
        raise _of_source(InternalError(OTHER_COLUMNS), alias)
    schema = pa.schema(list(zip(names, stream.schema.types, strict=True)))

    def batches() -> Iterator[pa.RecordBatch]:
        try:
            for batch in stream:
                yield pa.RecordBatch.from_arrays(batch.columns, schema=schema)
        except DaiError as error:
            if error is cancellation.cause:
                raise
            if isinstance(error, LOST):
                lost.add(alias)
            raise _named(error, alias, place.statement.sql) from error

    return Stream(schema, batches(), stream.close)


def _of_source(error: DaiError, source: str) -> DaiError:
    """The same error, with the source in its text."""
    renamed = copy(error)
    detail = error.detail or error.title
    if not detail.startswith(f"{source}: "):
        renamed.detail = f"{source}: {detail}"
        renamed.args = (renamed.detail,)
    renamed.extra = {**error.extra, "source": source}
    renamed.__cause__, renamed.__traceback__ = error.__cause__, error.__traceback__
    return renamed
