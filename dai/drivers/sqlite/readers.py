"""Large results of SQLite, read by ADBC in processes of their own (``worker`` says why): one query at a time each.

The driver's connection has begun to execute the statement, with its authorizer; a process opens the same file for
reading only. It gives the columns as they are stored. ADBC refuses what is no whole number in a column of whole
numbers; for what it would convert silently, a column says which rows have values of another storage class. It makes an
empty text of one for which there is no memory; another column says how many bytes a row's texts have.

ADBC's SQLite is another version than the driver's. Versions round, add floating numbers, write them as text and read
dates in different ways, so a process computes only what all of them compute alike (``computes_alike``).
"""

from __future__ import annotations

import json
import logging
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dai.drivers.connections.rows import Convert, Portions, batches, field, portion_rows, record_batch
from dai.drivers.sql.lexer import tokens
from dai.drivers.sqlite.syntax import SYNTAX
from dai.drivers.sqlite.types import Kind, converted, is_exact, other_type
from dai.errors import DataError, LimitError
from dai.streams.machine import cores
from dai.streams.program import Program
from dai.streams.stream import Stream

log = logging.getLogger("dai.drivers.sqlite")

Asking = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""What surrounds a wait for a process, which the function ends."""

EXPECTED = max(2, min(4, cores()))
MOST = 2 * EXPECTED
"""Processes of one driver: as many as can compute at the same time, and others while nobody reads from those."""
MANY_ROWS = 2048
"""Rows of a result that the driver's connection reads, and then once more the process."""
STEPS = 300_000
"""Of SQLite's machine, some 15 ms: if the first rows take more, a process reads them and the connection stops."""
SOME_SECONDS, AGAIN_SECONDS = 0.02, 0.1
"""Processor time after which a process is asked also for fewer rows, and from which on it is not asked any more, as it
computes again what the connection has computed. Elapsed time would count waits for Python's lock, which ``sqlite3``
gives up for each row."""
WAIT_SECONDS, IDLE_SECONDS = 1.0, 0.1
"""How long a statement waits for a process, as the connection takes several times as long; but not where nobody has
read from any of them for IDLE_SECONDS."""
_MOST_BYTES = 32 << 20
"""Of rows that the connection reads before it asks a process."""
START_ROWS = 30_000
"""Rows of a result, read without a process, from which one is started for those that follow."""
LARGE_BYTES = 64 << 20
"""A file from which large results are expected once somebody has asked for statistics, to plan a query."""
_BATCH_ROWS, _TEXT_ROWS, _FEW_ROWS = 1 << 16, 1 << 11, 1 << 10
"""Of a batch at most: of numbers; of texts, which may be much longer than those of the first rows; where rows come
slowly, which are not to wait for many others."""
BATCH_SECONDS = 0.1
"""The connection's time for the rows of a batch."""
_PIPE_BYTES = 1 << 20
_MOST_COLUMNS = 60
_LARGE = 1 << 53
"""Beyond it not every whole number is an 8-byte float."""
_NO_MEMORY = "emory"
"""In the messages of SQLite and of Arrow about memory."""
_ALIKE = frozenset("abs char coalesce count dense_rank ifnull iif max min nullif rank row_number typeof".split())
"""Functions that every version of SQLite computes alike, each time they are called."""
_NUMBERS = frozenset("abs coalesce ifnull iif max min nullif".split())
"""Those of them whose value is a floating number if an argument is."""
_OF_TEXTS = frozenset("glob instr length like lower ltrim replace rtrim substr substring trim unicode upper".split())
"""Functions that they compute alike unless an argument is a floating number, which these read as text."""
_UNLIKE = frozenset({"Concat", "VOpen"})
"""Of SQLite's machine: ``||``, which writes numbers as text; tables whose rows a function gives."""
_CALLS = ("Function", "PureFunc", "Agg")
"""What operations that call a function begin with."""
_WHOLE = ord("D")
"""A cast to whole numbers. Other casts write floating numbers as text, or read them from it."""
_WORKER = Path(__file__).with_name("worker.py")
_FIRST = {pa.int64(): "0", pa.float64(): "0.0", pa.string(): "''"}
"""A value by which ADBC takes the column for one of this type."""


class ReaderError(Exception):
    """A process has read nothing: it ended, or it takes the values for others."""


def _as_read(type: pa.DataType) -> pa.DataType | None:
    """How a process reads a column of this type; None if it cannot without loss."""
    if type in (pa.int64(), pa.bool_()):
        return pa.int64()
    if type == pa.float64() or is_exact(type):
        return pa.float64()
    return pa.string() if type == pa.string() or pa.types.is_temporal(type) else None


def readable(query: Query) -> bool:
    """Whether a process may read the query: the values of its rows without loss."""
    text, kinds = query.text, query.kinds
    words = [text[each.start : each.end].upper() for each in tokens(text, SYNTAX) if each.kind == "word"]
    return (
        words[:1] in (["SELECT"], ["VALUES"], ["WITH"])
        and len(kinds) <= _MOST_COLUMNS
        and all(_as_read(kind.type) is not None for kind in kinds)
        and not any(isinstance(each, bytes) for each in query.parameters)
    )


def computes_alike(program: Sequence[Sequence[Any]]) -> bool:
    """Whether every version of SQLite gives these rows, however often it computes a value. ``program``: what EXPLAIN
    says of the statement, its views and generated columns."""
    floating = _floating(program)
    for _, operation, _, second, _, called, *_ in program:
        if operation in _UNLIKE or (operation == "Cast" and second != _WHOLE):
            return False
        if operation.startswith(_CALLS):
            name, arguments = _called(second, called)
            if name not in _ALIKE and (name not in _OF_TEXTS or not floating.isdisjoint(arguments)):
                return False
    return True


def _called(first: int, called: Any) -> tuple[str, range]:
    """The name of a function, and the registers of its arguments; none where it takes any number of them."""
    name, _, number = str(called).partition("(")
    return name, range(first, first + int(number.rstrip(")")))


def _floating(program: Sequence[Sequence[Any]]) -> set[int]:
    """The registers that may have floating numbers: from columns that are declared so, from numbers in the statement
    and from arithmetic; and what is copied or computed from these, or read from rows that SQLite has made with them."""
    registers: set[int] = set()
    tables = {first for _, operation, first, *_ in program if operation == "OpenRead"}
    rows, known = False, -1
    while known < len(registers) + rows:  # what stands first may run last
        known = len(registers) + rows
        for _, operation, first, second, third, called, *_ in program:
            if operation == "RealAffinity":
                registers.add(first)
            elif operation == "AggValue" and first in registers:
                registers.add(third)
            elif operation == "Real":
                registers.add(second)
            elif operation in ("Add", "Subtract", "Multiply", "Divide"):
                registers.add(third)
            elif operation in ("Copy", "SCopy"):
                more = third if operation == "Copy" else 0
                registers |= {second + each for each in range(more + 1) if first + each in registers}
            elif operation == "MakeRecord":
                rows = rows or not registers.isdisjoint(range(first, first + second))
            elif operation == "Column" and rows and first not in tables:
                registers.add(third)
            elif operation.startswith(_CALLS):
                name, arguments = _called(second, called)
                if name in _NUMBERS and (not arguments or not registers.isdisjoint(arguments)):
                    registers.add(third)
    return registers


def _statement(query: str, kinds: Sequence[Kind]) -> str:
    """A row that is not the query's, by whose values ADBC takes the types; then the query's rows, in its order: SQLite
    leaves out the ORDER BY of a subquery only below a join, an aggregate or another ORDER BY (optoverview.html).
    Behind the columns stand those of ``_checks``."""
    columns = [f"c{each}" for each in range(len(kinds))]
    checks = _checks(kinds)
    first = ", ".join([*(_FIRST[_as_read(kind.type)] for kind in kinds), *("0" for _ in checks)])
    return (
        f"WITH dai_rows ({', '.join(columns)}) AS (\n{query}\n) SELECT {first} UNION ALL "
        f"SELECT {', '.join([*columns, *checks.values()])} FROM dai_rows"
    )


def _checks(kinds: Sequence[Kind]) -> dict[str, str]:
    """Columns by which an answer is checked, where it needs them (each takes a tenth of the time of four numbers):
    ``others`` has a bit for each column whose value is of another storage class, ``bytes`` those of all texts."""
    others, sizes = [], []
    for bit, kind in enumerate(kinds):
        name = f"c{bit}"
        if _as_read(kind.type) == pa.string():
            others.append(f"((typeof({name}) NOT IN ('text', 'null')) << {bit})")
            sizes.append(f"coalesce(octet_length({name}), 0)")
        elif kind.type == pa.float64():
            others.append(f"(({name} NOT BETWEEN -{_LARGE} AND {_LARGE} AND typeof({name}) = 'integer') << {bit})")
    checks = {"others": " | ".join(others), "bytes": " + ".join(sizes)}
    return {name: check for name, check in checks.items() if check}


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    parameters: Sequence[Any]
    kinds: Sequence[Kind]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([field(each.name, each.type, each.type_name) for each in self.kinds])


@dataclass(frozen=True, slots=True)
class Begun:
    """A query that the driver's connection has begun to execute: the columns of its ``have`` first rows, how many
    ``seconds`` of processor time these took, and the others with what makes columns of them."""

    columns: list[pa.Array]
    have: int
    seconds: float
    portions: Portions
    convert: Convert

    def read(self) -> Begun:
        """The same, with MANY_ROWS at least, if there are, unless they take SOME_SECONDS or have _MOST_BYTES."""
        parts, have, most = [self.columns], self.have, portion_rows(len(self.columns))
        size, spent, began = _size(self.columns), 0.0, time.thread_time()
        while have < MANY_ROWS and size < _MOST_BYTES and spent < SOME_SECONDS:
            if not (more := self.portions.next(min(most, have))):
                break
            parts.append(self.convert(more, 1 + have))
            have += len(more)
            size += _size(parts[-1])
            spent = time.thread_time() - began
        columns = [pa.concat_arrays(each) for each in zip(*parts, strict=True)]
        return Begun(columns, have, self.seconds + spent, self.portions, self.convert)

    def batch_rows(self, batch_bytes: int) -> int:
        """How many rows a batch of a process may have."""
        fast = max(_FEW_ROWS, int(self.have * BATCH_SECONDS / max(self.seconds, 1e-6)))
        return max(1, min(fast, batch_bytes * self.have // max(1, _size(self.columns))))

    def rows(self, schema: pa.Schema, batch_bytes: int, batch_rows: int | None) -> Iterator[pa.RecordBatch]:
        """All of them, by the connection."""
        return batches(self.columns, self.have, self.portions, self.convert, schema, batch_bytes, batch_rows)


class Reader:
    """One process. ``kill`` stops it, whatever it does."""

    def __init__(self) -> None:
        self._program = Program(str(_WORKER), pipe_bytes=_PIPE_BYTES)
        self._sink, self._source = self._program.sink, self._program.source
        self._begun = False
        self.left_at: float | None = None
        """Since when nobody reads from it (monotonic); None while somebody does."""
        self.kill, self.ended = self._program.kill, self._program.ended

    def begun(self, seconds: float = 0.0) -> bool:
        """Whether the process has started, or does so within so many seconds."""
        if not self._begun and select.select([self._source], [], [], seconds)[0]:
            self._begun = self._source.readline() == b"{}\n"
        return self._begun

    def ask(self, uri: str, sql: str, parameters: Sequence[Any], rows: int) -> pa.RecordBatchReader:
        """The answer, to be read to its end; then ``failure``."""
        asked = {"uri": uri, "sql": sql, "parameters": list(parameters), "rows": rows}
        try:
            self._sink.write(json.dumps(asked).encode() + b"\n")
            self._sink.flush()
            if (failure := self.failure()) is not None:
                raise ReaderError(failure)
            return pa.ipc.open_stream(pa.PythonFile(self._source, "r"))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ReaderError("The process ended.") from error

    def failure(self) -> str | None:
        """Why it stopped; None where it did not."""
        said: dict[str, str] = json.loads(self._source.readline())
        return said.get("error")

    def close(self) -> None:
        self._program.close()


class Readers:
    """The processes of one driver, for the file at ``uri``. Thread-safe."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._lock = threading.Condition()
        self._idle: list[Reader] = []
        self._busy: set[Reader] = set()
        self._closed = False

    def start(self, most: int = MOST) -> None:
        """One more, unless there are so many, for the queries that follow."""
        with self._lock:
            self._leave_ended()
            if not self._closed and len(self._idle) + len(self._busy) < most:
                with suppress(OSError):
                    self._idle.append(Reader())

    def expect(self, path: Path) -> None:
        """EXPECTED processes start if the file is large: that takes most of a second, and a first large result without
        them takes several times as long."""
        with suppress(OSError):
            if path.stat().st_size >= LARGE_BYTES:
                for _ in range(EXPECTED):
                    self.start(EXPECTED)

    def any(self, seconds: float = 0.0) -> bool:
        """Whether one waits for a query, or does so within so many seconds, or answers one."""
        with self._lock:
            return bool(self._busy) or any(each.begun(seconds) for each in self._idle)

    def take(self) -> Reader | None:
        """One that waits for a query, or does so soon. Where none does, one more starts for the queries that follow."""
        until = time.monotonic() + WAIT_SECONDS
        with self._lock:
            while True:
                self._leave_ended()
                for reader in self._idle:
                    if reader.begun():
                        self._idle.remove(reader)
                        self._busy.add(reader)
                        return reader
                now = time.monotonic()
                used = any(each.left_at is None or now < each.left_at + IDLE_SECONDS for each in self._busy)
                if now >= until or self._closed or not used:
                    break
                self._lock.wait(min(IDLE_SECONDS, until - now))
        if not self._idle:
            self.start()
        return None

    def _leave_ended(self) -> None:
        for reader in [each for each in self._idle if each.ended()]:
            self._idle.remove(reader)
            reader.close()

    def give_back(self, reader: Reader, whole: bool) -> None:
        """``whole``: its answer was read to the end. Otherwise it is stopped."""
        with self._lock:
            self._busy.discard(reader)
            self._lock.notify()
            if whole and not self._closed:
                reader.left_at = None
                self._idle.append(reader)
                return
        reader.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
            idle, self._idle = self._idle, []
            for each in self._busy:
                each.kill()  # who reads from it closes it
        for each in idle:
            each.close()


class Handover:
    """A statement that the driver's connection begins, and a process reads from the beginning if it takes long or has
    many rows. ``watch`` sets the connection's progress handler; ``asking`` is around each wait."""

    def __init__(
        self, readers: Readers, watch: Callable[[Callable[[], bool] | None, int], None], asking: Asking
    ) -> None:
        self._readers, self._watch, self._asking = readers, watch, asking
        self._reader: Reader | None = None
        self._tried = self._whole = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """After STEPS the statement ends, if a process waits, which is then ``taken``."""
        self._watch(self._take, STEPS)
        try:
            yield
        except sqlite3.OperationalError:
            if not self.taken:
                raise
        finally:
            self._watch(None, 0)

    def _take(self) -> bool:
        if not self._tried:
            self._tried, self._reader = True, self._readers.take()
        return self.taken

    @property
    def taken(self) -> bool:
        return self._reader is not None

    def first(self, query: Query, batch_rows: int | None) -> Iterator[pa.RecordBatch] | None:
        """All rows of the query, once it is ``taken``; None if the process cannot be used, or its first rows do not
        have these types."""
        rows = self._answered(query, min(_FEW_ROWS, batch_rows or _FEW_ROWS), batch_rows)
        try:
            first = next(rows, None)
        except (ReaderError, DataError):
            self.close()
            return None
        return chain(() if first is None else (first,), rows)

    def rows(
        self, query: Query, begun: Begun, batch_bytes: int, batch_rows: int | None, alike: Callable[[], bool]
    ) -> Iterator[pa.RecordBatch]:
        """All rows of the query, by a process if many come fast. ``alike``: whether it computes the same."""
        if begun.seconds < AGAIN_SECONDS and self._readers.any():
            begun = begun.read()
            if not begun.portions.at_end and begun.seconds < AGAIN_SECONDS and alike() and self._take():
                try:
                    yield from self._answered(query, begun.batch_rows(batch_bytes), batch_rows)
                    return
                except ReaderError:
                    log.warning("a process that reads SQLite could not be used", exc_info=True)
                    self.close()
        read = 0
        for batch in begun.rows(query.schema, batch_bytes, batch_rows):
            yield batch
            if read < START_ROWS <= read + batch.num_rows and alike():
                self._readers.start()
            read += batch.num_rows

    def _answered(self, query: Query, most: int, batch_rows: int | None) -> Iterator[pa.RecordBatch]:
        if (reader := self._reader) is None:
            raise AssertionError("No process has been taken.")
        stream = Stream(query.schema, self._awaited(_rows(self._readers.uri, reader, query, most), reader))
        yield from stream if batch_rows is None else stream.rebatch(batch_rows)

    def _awaited(self, rows: Iterator[pa.RecordBatch], reader: Reader) -> Iterator[pa.RecordBatch]:
        while True:
            reader.left_at = None
            with self._asking(reader.kill):
                batch = next(rows, None)
            reader.left_at = time.monotonic()
            if batch is None:
                self._whole = True
                self.close()
                return
            yield batch

    def close(self) -> None:
        """The process is there for others, or ends where it has rows of this query."""
        reader, self._reader = self._reader, None
        if reader is not None:
            self._readers.give_back(reader, self._whole)


def _size(columns: Sequence[pa.Array]) -> int:
    return sum(each.nbytes for each in columns)


def _rows(uri: str, reader: Reader, query: Query, rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of at most so many rows. Raises ReaderError before the first of them; sqlite3.OperationalError with
    SQLite's message, DataError for values of other types."""
    kinds = query.kinds
    read, checked = [_as_read(kind.type) for kind in kinds], _checks(kinds)
    rows = min(rows, _TEXT_ROWS if pa.string() in read else _BATCH_ROWS)
    answer = reader.ask(uri, _statement(query.text, kinds), query.parameters, rows)
    if answer.schema.types[: len(read)] != read:
        raise ReaderError("The first rows have values of other types.")
    at, skipped = 1, 1
    try:
        for batch in answer:
            have = batch.slice(skipped)
            skipped = 0
            if not have.num_rows:
                continue
            stored = have.columns[: len(kinds)]
            checks = dict(zip(checked, have.columns[len(kinds) :], strict=True))
            if "others" in checks:
                _refuse_others(kinds, checks["others"], at)
            if "bytes" in checks and sum(_bytes(each) for each in stored) != pc.sum(checks["bytes"]).as_py():
                raise _too_large()
            columns = [converted(kind, each, at) for kind, each in zip(kinds, stored, strict=True)]
            yield record_batch(columns, query.schema, have.num_rows)
            at += have.num_rows
        failure = reader.failure()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _too_large() from error
    if failure is None:
        return
    _, mismatch, column = failure.partition("Type mismatch in column ")
    if mismatch:
        raise other_type(kinds[int(column.partition(":")[0])], f"rows {at:,} to {at + rows - 1:,}")
    raise _too_large() if _NO_MEMORY in failure else sqlite3.OperationalError(failure)


def _bytes(column: pa.Array) -> int:
    return (pc.sum(pc.binary_length(column)).as_py() or 0) if column.type == pa.string() else 0


def _too_large() -> LimitError:
    return LimitError(
        "The process that reads the rows ended, or needs more memory than it may use.",
        hint="Select long texts in parts: substr(column, 1, 1000000).",
    )


def _refuse_others(kinds: Sequence[Kind], bits: pa.Array, row: int) -> None:
    """DataError where a bit says that a value is of another storage class."""
    if pc.max(bits).as_py():
        at = pc.index(pc.not_equal(bits, 0), True).as_py()
        number = bits[at].as_py()
        raise other_type(kinds[(number & -number).bit_length() - 1], f"row {row + at:,}")
