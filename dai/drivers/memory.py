"""A driver double: a database with scripted answers, for tests of code that uses drivers.

Each statement has a ``Script``: its result, and how it fails. What was done is in ``executed``, ``committed`` and
``open_streams``; ``blocked`` is set while a statement waits to be cancelled. For example::

    memory = Memory({"select 1": Script(table, fails=DataError("half-way"))})
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from dai.drivers import NO_TABLES, CallResult, Driver, DriverOptions, Session
from dai.drivers.sql.query_tables import Tables, refused
from dai.drivers.sqlite.syntax import SYNTAX
from dai.drivers.statements import traced
from dai.drivers.tables import Statistics, TableInfo
from dai.errors import DaiError, NotAQueryError, NotFoundError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream


@dataclass(frozen=True, slots=True)
class Script:
    """What one statement does: it is ``refused``, or gives ``tuples`` in batches of ``batch_rows`` and then ``fails``
    or ``blocks`` until it is cancelled. ``count`` is what an update gives, for each row of parameters; only a
    statement without a count is a query. ``out`` and ``tuples`` are what a procedure gives."""

    tuples: pa.Table = field(default_factory=lambda: pa.table({}))
    batch_rows: int = 1024
    count: int | None = None
    out: Mapping[int, Any] | None = None
    refused: Exception | None = None
    fails: Exception | None = None
    blocks: bool = False


class Memory(Driver):
    """Statements by their text; thread-safe."""

    dialect = "sqlite"
    syntax = SYNTAX

    def __init__(self, scripts: Mapping[str, Script], tables: tuple[TableInfo, ...] = ()) -> None:
        self.scripts, self.infos = dict(scripts), tables
        self.executed: list[tuple[str, tuple[Any, ...]]] = []
        self.committed: list[str] = []
        self.loaded: dict[str, pa.Table] = {}
        self.blocked = threading.Event()
        self._lock = threading.Lock()
        self._open = 0

    @property
    def open_streams(self) -> int:
        """Streams and transactions that nobody has closed yet."""
        return self._open

    @classmethod
    def connect(cls, url: str, options: DriverOptions) -> Memory:
        return cls({})

    def product(self) -> str:
        return "memory 1"

    @traced
    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Tables = NO_TABLES,
    ) -> Stream:
        if tables:
            raise refused()
        script = self._script(sql, parameters, cancellation)
        if script.count is not None:
            raise NotAQueryError("This statement is not a query.", sql=sql)
        return self._stream(script, cancellation, batch_rows)

    @contextmanager
    def transaction(self, *, cancellation: Cancellation, read_only: bool = False) -> Iterator[Session]:
        session = _Session(self, cancellation)
        with self._counted():
            yield session
            cancellation.check()
            self.committed += session.done

    @contextmanager
    def call(
        self, procedure: str, parameters: Sequence[tuple[str, Any]], *, cancellation: Cancellation
    ) -> Iterator[CallResult]:
        script = self._script(procedure, parameters, cancellation)
        results = (self._stream(script, cancellation, None),) if len(script.tuples.schema) else ()
        with self._counted(), ExitStack() as open_results:
            for result in results:
                open_results.enter_context(result)
            yield CallResult(results, dict(script.out or {}))
            self.committed.append(procedure)

    def load(
        self,
        table: str,
        stream: Stream,
        *,
        cancellation: Cancellation,
        create: bool = False,
        transactional: bool = True,
    ) -> int:
        with stream:
            batches = []
            try:
                for batch in stream.checked():
                    cancellation.check()
                    batches.append(batch)
            except DaiError:
                if not transactional:
                    self.loaded[table] = pa.Table.from_batches(batches, stream.schema)
                raise
        self.loaded[table] = pa.Table.from_batches(batches, stream.schema)
        return sum(batch.num_rows for batch in batches)

    def tables(self, pattern: str = "%") -> tuple[TableInfo, ...]:
        return tuple(info for info in self.infos if pattern in ("%", info.name))

    def statistics(self, table: str) -> Statistics:
        if all(info.name != table for info in self.infos):
            raise NotFoundError(f"There is no table {table!r}.")
        return Statistics(next(info.rows for info in self.infos if info.name == table))

    def check(self) -> float:
        return 0.0

    def pool_state(self) -> dict[str, int]:
        return {"open": self._open, "idle": 0, "limit": 1 << 30}

    def close(self) -> None:
        """Holds nothing."""

    def _script(self, sql: str, parameters: Sequence[Any], cancellation: Cancellation) -> Script:
        cancellation.check()
        with self._lock:
            self.executed.append((sql, tuple(parameters)))
        if sql not in self.scripts:
            raise StatementError("There is no such statement here.", sql=sql, position=1)
        script = self.scripts[sql]
        if script.refused is not None:
            raise script.refused
        return script

    def _stream(self, script: Script, cancellation: Cancellation, batch_rows: int | None) -> Stream:
        resources = ExitStack()
        resources.enter_context(self._counted())
        return Stream(script.tuples.schema, self._batches(script, cancellation, batch_rows), resources.close)

    def _batches(self, script: Script, cancellation: Cancellation, rows: int | None) -> Iterator[pa.RecordBatch]:
        for batch in script.tuples.to_batches(rows or script.batch_rows):
            cancellation.check()
            yield batch
        self._end(script, cancellation)

    def _end(self, script: Script, cancellation: Cancellation) -> None:
        if script.fails is not None:
            raise script.fails
        if script.blocks:
            cancelled = threading.Event()
            with cancellation.on_cancel(cancelled.set):
                self.blocked.set()
                cancelled.wait()
            cancellation.check()

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._lock:
            self._open += 1
        try:
            yield
        finally:
            with self._lock:
                self._open -= 1


class _Session(Session):
    def __init__(self, memory: Memory, cancellation: Cancellation) -> None:
        self._memory, self._cancellation = memory, cancellation
        self.done: list[str] = []

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Stream:
        return self._memory.query(sql, parameters, cancellation=self._cancellation)

    def update(self, sql: str, parameter_rows: Iterable[Sequence[Any]] | None = None) -> int:
        changed = 0
        for row in [()] if parameter_rows is None else parameter_rows:
            script = self._memory._script(sql, row, self._cancellation)
            self._memory._end(script, self._cancellation)
            changed += script.count or 0
        self.done.append(sql)
        return changed
