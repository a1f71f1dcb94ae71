"""A fragment: SQL for DuckDB over Arrow streams, and how it runs.

One ``Engine`` a runtime holds one DuckDB, so its memory limit counts for all queries of the process; each fragment runs
on a cursor of its own. It joins in the order of the SQL, which is the plan's, and builds the hash table of the right
side: DuckDB knows no sizes of the inputs. Only where a user's text stands in the SQL as it was written does DuckDB
choose, in a second DuckDB, because that is a setting of a whole one.

DuckDB pulls an input when it needs it: the build sides of joins one after the other, each to its end, then the probe
side. It waits for an input without holding Python's lock, and a fragment's first rows come
while its probing input is still being read.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache, wraps
from typing import Any, NoReturn, TypeAlias, TypeVar, cast

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection, DuckDBPyRelation, StatementType

from dai.drivers.connections.interrupts import interruptible
from dai.drivers.connections.rows import field
from dai.drivers.duckdb.errors import advisable
from dai.drivers.duckdb.inputs import StreamInput, beyond_arrow, typed
from dai.drivers.duckdb.names import BUILDING, check_names
from dai.drivers.duckdb.types import arrow_type, kind_of, projected
from dai.errors import ClosedError, DataError, InternalError, LimitError, NotAQueryError, StatementError
from dai.streams.machine import cores
from dai.streams.stream import Stream
from dqp.execution.execution import Execution, Measure
from dqp.execution.leaves import CARRIED, TYPE
from dqp.execution.nested import carried

Input: TypeAlias = "Stream | pa.Table"
F = TypeVar("F", bound=Callable[..., Any])
_KEPT = 1_000
_PROFILED = 32
"""Most fragments that are measured at the same time; others run without measurements."""
_PROFILE_BYTES = 50_000_000
"""Memory for each of them: with many cursors that measure, also idle ones, DuckDB fails where it should spill. With a
third of this memory the join of ``perf/federated_memory`` failed four times in five, with half of it never in ten."""
_THREAD_BYTES = 100_000_000
_SAID = re.compile(r"[A-Za-z ]+ Error: ")
"""How DuckDB's messages begin when Arrow's reader raises, as an OSError, an error that occurred while rows were
read."""
_OF_DATA = re.compile(r"(Conversion|Out of Range|Invalid Input) Error: ")
_RUNS_TEXT = re.compile("|".join(BUILDING), re.IGNORECASE)
_BROKEN = re.compile(r"(INTERNAL|FATAL) Error: (?!.*No space left)", re.DOTALL)
_VECTOR_ROWS = 2048
"""DuckDB's vectors: larger batches cost it more than joining them afterwards."""
_UNWANTED = "statistics_propagation"
"""A step of DuckDB 2.0's optimiser that gives wrong answers where a condition of a join always or never holds by the
statistics of constants. Inputs have no statistics, so that it is of no use here."""
_OF_SIZES = "join_order,build_side_probe_side"
"""Steps that need the sizes of inputs."""


class Engine:
    """One DuckDB in memory; thread-safe. ``memory_bytes``: what all its queries hold together before they spill to
    ``directory`` (0: DuckDB's own limit, 80 % of the machine); those that choose their order of joins hold at most half
    as much beside it, or what a thread needs. Statements reach no file, extension or setting. A
    thread of DuckDB's needs some memory that it cannot spill: where there is little there are fewer threads."""

    def __init__(
        self, *, memory_bytes: int = 0, threads: int = 0, directory: str | None = None, choosing: bool = False
    ) -> None:
        self._settings: dict[str, Any] = {"python_enable_replacements": False, "allocator_background_threads": True}
        half = max(memory_bytes // 2, min(memory_bytes, _THREAD_BYTES))
        self._choosing = (
            self if choosing else Engine(memory_bytes=half, threads=threads, directory=directory, choosing=True)
        )
        if memory_bytes:
            self._settings["memory_limit"] = f"{memory_bytes}B"
            threads = threads or max(1, min(cores(), memory_bytes // _THREAD_BYTES))
        elif choosing:
            self._settings["memory_limit"] = "40%"
        if threads:
            self._settings["threads"] = threads
        self._measured = min(_PROFILED, max(1, memory_bytes // _PROFILE_BYTES)) if memory_bytes else _PROFILED
        self._directory = directory
        self._root: DuckDBPyConnection | None = None
        self._opening = threading.Lock()
        self._running: weakref.WeakSet[_Run] = weakref.WeakSet()
        self._profiling: list[DuckDBPyConnection] = []

    def run(
        self,
        sql: str,
        inputs: Mapping[str, Input],
        execution: Execution,
        *,
        names: Sequence[str] | None = None,
        types: Sequence[str] | None = None,
        measure: Measure | None = None,
        choosing: bool = False,
    ) -> Stream:
        """The rows of one query over ``inputs``, named as the tables in the SQL. A stream can be read once: a query
        that reads it twice reads a materialised CTE of it. ``types``: DuckDB types to which the columns are cast;
        ``names``: the columns' names (a name may repeat). Without ``types``, the types are in the metadata of the
        fields, for ``leaves.restored``. ``choosing``: DuckDB chooses the order of joins. ``measure``
        gets what each operator did, if the execution is profiled.

        Batches come as DuckDB makes them, about ``batch_bytes`` large, the first as early as it can be. Raises
        DataError for a value that does not fit a type, LimitError when memory and disk do not suffice, StatementError
        for SQL that DuckDB refuses, the cause of a failed input. The inputs are closed with the stream; closing it
        before its end ends the execution's attempt, so that inputs that wait for something wake up.
        """
        if choosing and self._choosing is not self:
            return self._choosing.run(sql, inputs, execution, names=names, types=types, measure=measure, choosing=True)
        run = self._run(inputs, execution, measure)
        run.broken = self._broken
        with self._opening:
            self._running.add(run)
        try:
            return run.open(sql, names, types)
        except BaseException:
            run.close()
            raise

    def _run(self, inputs: Mapping[str, Input], execution: Execution, measure: Measure | None) -> _Run:
        cursor = self._cursor()
        if execution.profiled and measure is not None:
            with self._opening:
                profiling = self._profiling.pop() if self._profiling else None
            if profiling is not None:
                cursor.close()
                return _Profiled(profiling, inputs, execution, measure, self._profiling)
        return _Run(cursor, inputs, execution)

    def _cursor(self) -> DuckDBPyConnection:
        with self._opening:
            if self._root is None:
                try:
                    self._root = self._connect()
                except (duckdb.Error, OSError) as error:
                    _raise(error)
            return self._root.cursor()

    def _connect(self) -> DuckDBPyConnection:
        root = duckdb.connect(":memory:", config=self._settings)
        root.execute("SET GLOBAL temp_directory = ?", [self._directory or spill_directory()])
        with contextlib.suppress(duckdb.Error):  # without ICU, time zones are UTC anyway
            root.execute("SET GLOBAL TimeZone = 'UTC'")
        unwanted = _UNWANTED if self._choosing is self else f"{_UNWANTED},{_OF_SIZES}"
        root.execute("SET GLOBAL disabled_optimizers = ?", [unwanted])
        # It does not know how many rows come, takes them for few, and would compare each with each in an ASOF JOIN.
        root.execute("SET GLOBAL asof_loop_join_threshold = 0")
        root.execute("SET GLOBAL enable_external_access = false")
        self._profiling = [_profiling(root) for _ in range(self._measured)]
        root.execute("SET GLOBAL lock_configuration = true")
        return root

    def _broken(self) -> None:
        """After an internal error DuckDB answers no more queries: the next query gets a new one."""
        with self._opening:
            self._root, self._profiling = None, []

    def close(self) -> None:
        """Ends what runs; its memory is free once that has ended, which may be a little later."""
        if self._choosing is not self:
            self._choosing.close()
        with self._opening:
            running = list(self._running)
        for run in running:
            run.interrupt()
        with self._opening:
            cursors = [*self._profiling, *([] if self._root is None else [self._root])]
            self._profiling, self._root = [], None
        for cursor in cursors:
            with contextlib.suppress(duckdb.Error):  # busy with a query, which ends soon and then frees it
                cursor.close()


def spill_directory() -> str:
    """The default directory to which this user's processes spill: one for all of them, because DuckDB then removes the
    files of a process that was killed when another one spills."""
    path = os.path.join(tempfile.gettempdir(), f"dqp-spill-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    if os.path.islink(path) or os.stat(path).st_uid != os.getuid():
        return tempfile.mkdtemp(prefix="dqp-spill-")
    return path


def _profiling(root: DuckDBPyConnection) -> DuckDBPyConnection:
    """A cursor that measures. Its setting must be made before the settings are locked."""
    cursor = root.cursor()
    cursor.execute("SET enable_profiling = 'no_output'")
    return cursor


class _Run:
    """One query on one cursor."""

    def __init__(self, cursor: DuckDBPyConnection, inputs: Mapping[str, Input], execution: Execution) -> None:
        self._cursor, self._execution = cursor, execution
        self._cancellation = execution.cancellation
        self._inputs: dict[str, StreamInput] = {}
        self._tables: dict[str, Any] = {}
        for name, data in inputs.items():
            if isinstance(data, Stream):
                self._inputs[name] = StreamInput(data)
            else:
                self._tables[name] = data
        self._reader: Any = None
        self._open, self._ended = True, False
        self.broken: Callable[[], None] = lambda: None

    def open(self, sql: str, names: Sequence[str] | None, types: Sequence[str] | None) -> Stream:
        with self._guarded():
            for name, data in (self._tables | self._inputs).items():
                self._cursor.register(name, data)
            fragment = types is None
            relation = None
            if types is None or not any(map(_converted, types)):
                relation = self._query(f"SELECT * FROM (\n{sql}\n)")
                have = [str(each) for each in relation.types]
                if types is None:
                    names, types = names or relation.columns, have
                if have != list(types) or any(map(_converted, have)):
                    relation = None
            forms = [nested(each) if fragment else None for each in types]
            if relation is None or any(forms):  # DuckDB would parse and bind casts that change nothing
                items = [
                    f'{_arriving(f"#{at}", each, form)} AS "{at}"'
                    for at, (each, form) in enumerate(zip(types, forms, strict=True), 1)
                ]
                relation = self._query(f"SELECT {', '.join(items)} FROM (\n{sql}\n)")
            self._reader = relation.to_arrow_reader(_VECTOR_ROWS)
        called = names or [f"c{at}" for at in range(1, len(types) + 1)]
        fields = [arrow_field(name, type)[0] for name, type in zip(called, types, strict=True)]
        if fragment:
            fields = [
                each.with_type(pa.string() if form else each.type).with_metadata(_metadata(each, type, form))
                for each, type, form in zip(fields, types, forms, strict=True)
            ]
        schema = pa.schema(fields)
        return Stream(schema, self._batches(schema, fragment), self.close)

    def _query(self, sql: str) -> DuckDBPyRelation:
        """One SELECT, checked before anything runs. The query is inside it, where DuckDB allows no WITH that changes
        data; nor may it call what runs a text or registers something for all queries."""
        if _RUNS_TEXT.search(sql):
            check_names(sql, frozenset())
        statements = self._cursor.extract_statements(sql)
        if len(statements) != 1 or kind_of(statements[0]) != StatementType.SELECT:
            raise NotAQueryError("A fragment is not one single SELECT: nothing was run.")
        return self._cursor.sql(statements[0])

    def _batches(self, schema: pa.Schema, fragment: bool) -> Iterator[pa.RecordBatch]:
        """DuckDB's vectors, the first as it comes, the others joined."""
        wanted = 0
        while not self._ended:
            parts: list[pa.RecordBatch] = []
            size = 0
            while (not parts or size < wanted) and (batch := self._next()) is not None:
                parts.append(batch)
                size += batch.nbytes
            if parts:
                batch = parts[0] if len(parts) == 1 else pa.concat_batches(parts)
                yield typed(batch, schema, infinite=fragment)
            wanted = self._execution.options.batch_bytes

    def _next(self) -> pa.RecordBatch | None:
        with self._guarded():
            batch: pa.RecordBatch | None = next(self._reader, None)
        self._ended = batch is None
        return batch

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            with interruptible(self._cancellation, self._cursor.interrupt, here=True, waits=self._waits):
                yield
        except (duckdb.Error, OSError, RuntimeError, MemoryError, pa.ArrowException) as error:
            for each in self._inputs.values():
                if each.failure is not None:
                    raise each.failure from error
            if isinstance(error, duckdb.InternalException | duckdb.FatalException) or _BROKEN.match(str(error)):
                self.broken()
            _raise(error)

    def _waits(self) -> bool:
        return any(each.reading for each in self._inputs.values())

    def interrupt(self) -> None:
        with contextlib.suppress(duckdb.Error):
            self._cursor.interrupt()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        if not self._ended:
            self._execution.fail(ClosedError("The reader of a fragment stopped before the last row."))
        with contextlib.suppress(duckdb.Error, OSError, RuntimeError, pa.ArrowException):
            if self._reader is not None:
                self._reader.close()
        for each in self._inputs.values():
            each.close()
        with contextlib.suppress(duckdb.Error):
            self._release()
        self._reader = None
        self._tables.clear()

    def _release(self) -> None:
        self._cursor.close()


class _Profiled(_Run):
    """On a cursor that measures, which goes back to ``idle``."""

    def __init__(
        self,
        cursor: DuckDBPyConnection,
        inputs: Mapping[str, Input],
        execution: Execution,
        measure: Measure,
        idle: list[DuckDBPyConnection],
    ) -> None:
        super().__init__(cursor, inputs, execution)
        self._measure, self._idle = measure, idle

    def _release(self) -> None:
        if self._ended:
            self._measure.profiled(json.loads(self._cursor.get_profiling_information("json")))
        for name in self._tables | self._inputs:
            self._cursor.unregister(name)
        self._cursor.execute("SELECT setseed(?)", [random.uniform(-1, 1)]).fetchall()  # a query may have set it
        self._idle.append(self._cursor)


def _remembered(function: F) -> F:
    """The query with its last results, unless its names and types are long, because they would be kept too."""
    known = lru_cache(1_000)(function)

    @wraps(function)
    def remembering(*texts: str) -> Any:
        return (known if sum(map(len, texts)) <= _KEPT else function)(*texts)

    return cast(F, remembering)


@_remembered
def arrow_field(name: str, type: str) -> tuple[pa.Field, bool]:
    """The field of a result column of a DuckDB type, and whether DuckDB has to cast it."""
    column = projected(1, name, duckdb.sqltype(type))
    return field(name, column.type, column.type_name), column.cast


@_remembered
def arrival(type: str) -> str:
    """The template of the expression that gives a column of a DuckDB type in a form that Arrow has."""
    return arrow_type(duckdb.sqltype(type))[1] or "{}"


def _converted(type: str) -> bool:
    """Whether a column of a DuckDB type is to be converted for Arrow."""
    return arrival(type) != "{}"


@_remembered
def nested(type: str) -> str | None:
    """``carried`` of a DuckDB type by its name."""
    return carried(duckdb.sqltype(type))


def _arriving(column: str, type: str, form: str | None) -> str:
    """The expression that gives a column; ``form``: as which it is carried to another fragment."""
    value = f"CAST({column} AS {type})"
    return arrival(type).format(value) if form is None else f"CAST(to_json(CAST({value} AS {form})) AS VARCHAR)"


def _metadata(column: pa.Field, type: str, form: str | None) -> dict[bytes, bytes]:
    """Metadata of a fragment's column, for ``leaves.restored``."""
    carried = {} if form is None else {CARRIED: form.encode()}
    return {**column.metadata, TYPE: type.encode(), **carried}


def _raise(error: Exception) -> NoReturn:
    text = str(error)
    message = advisable(text.partition("\n")[0].partition(": ")[2] or text.partition("\n")[0])
    if isinstance(error, duckdb.InterruptException) or "interrupted" in text[:40]:
        raise ClosedError("The evaluator was closed.") from error
    # DuckDB takes what was free on the disk for its limit, and being over it for a lack of memory.
    full = "max_temp_directory_size" in text
    memory = isinstance(error, duckdb.OutOfMemoryException | MemoryError) or "bad allocation" in text
    if not full and (memory or "Out of Memory Error" in text):
        raise LimitError(
            "The query needs more memory than the evaluator may use.",
            hint="Give it more (memory_bytes), or select fewer rows, fewer columns, or shorter texts and lists.",
        ) from error
    if isinstance(error, duckdb.InternalException) or _BROKEN.match(text):
        raise InternalError("The evaluator's DuckDB failed; the next query has a new one.") from error
    full = (
        full or text.startswith(("IO Error", "FATAL Error")) or (isinstance(error, OSError) and not _SAID.match(text))
    )
    if full or isinstance(error, duckdb.IOException | duckdb.FatalException):
        raise LimitError(
            "The evaluator cannot spill to disk: is its disk full?",
            hint="Free space in its directory for temporary files, or give it more memory (memory_bytes).",
        ) from error
    if (failure := beyond_arrow(text)) is not None:
        raise failure from error
    if isinstance(error, pa.ArrowException) and "ecursion" in text:
        raise LimitError(
            "A column within the query has lists or structures that are nested too deeply to be sent.",
            hint="Take them apart with unnest, or CAST the column AS VARCHAR.",
        ) from error
    if _OF_DATA.match(text):
        raise DataError(message) from error
    raise StatementError(message) from error
