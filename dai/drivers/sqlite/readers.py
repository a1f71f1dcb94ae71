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
import math
import select
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dai.drivers.connections.rows import Convert, Portions, batches, portion_rows, record_batch
from dai.drivers.sql.lexer import tokens
from dai.drivers.sqlite.syntax import SYNTAX
from dai.drivers.sqlite.types import Kind, converted, is_exact, other_type
from dai.errors import LimitError
from dai.streams.machine import cores
from dai.streams.program import Program
from dai.streams.stream import Stream

log = logging.getLogger("dai.drivers.sqlite")

Asking = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""What surrounds a wait for a process, which the function ends."""

MOST = max(2, min(4, cores()))
"""Processes of one driver."""
MANY_ROWS = 8192
"""Rows of a result that the driver's connection reads, and then once more the process."""
AGAIN_SECONDS = 0.1
"""Processor time that these may take, as the process computes them again. Elapsed time would count waits for Python's
lock, which ``sqlite3`` gives up for each row."""
MOST_AGAIN, MOST_AGAIN_BYTES, VALUE_SECONDS = 1 << 18, 32 << 20, 2e-6
"""Where the first rows take long (a filter looks for them) and the next ones do not, the connection reads on until a
value took so long on average, but never so many rows: then those to come are probably worth it that a process looks for
the first ones again."""
START_ROWS = 30_000
"""Rows of a result, read without a process, from which one is started for those that follow."""
LARGE_BYTES = 64 << 20
"""A file from which large results are expected once somebody has asked for statistics, to plan a query."""
_BATCH_ROWS, _TEXT_ROWS = 1 << 16, 1 << 11
"""Of a batch at most: of numbers, and of texts, which may be much longer than those of the first rows."""
_PIPE_BYTES = 1 << 20
_MOST_COLUMNS = 60
_LONGEST = MOST_AGAIN * VALUE_SECONDS
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
MOST_EXPLAINED = 50_000
"""Characters of a statement; a longer one, whose lists SQLite explains value by value, is not read by a process."""
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


def readable(query: str, kinds: Sequence[Kind], parameters: Sequence[Any]) -> bool:
    """Whether a process may read the query: the values of its rows without loss."""
    words = [query[each.start : each.end].upper() for each in tokens(query, SYNTAX) if each.kind == "word"]
    return (
        words[:1] in (["SELECT"], ["VALUES"], ["WITH"])
        and len(kinds) <= _MOST_COLUMNS
        and all(_as_read(kind.type) is not None for kind in kinds)
        and not any(isinstance(each, bytes) for each in parameters)
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
    The last columns have a bit for each column whose value is of another storage class, and the bytes of all texts."""
    columns = [f"c{each}" for each in range(len(kinds))]
    read = [_as_read(kind.type) for kind in kinds]
    bits = ["0"]
    for bit, (name, kind, type) in enumerate(zip(columns, kinds, read, strict=True)):
        if type == pa.string():
            bits.append(f"((typeof({name}) NOT IN ('text', 'null')) << {bit})")
        elif kind.type == pa.float64():
            bits.append(f"(({name} NOT BETWEEN -{_LARGE} AND {_LARGE} AND typeof({name}) = 'integer') << {bit})")
    texts = [
        f"coalesce(octet_length({name}), 0)" for name, type in zip(columns, read, strict=True) if type == pa.string()
    ]
    first = ", ".join(_FIRST[each] for each in read)
    return (
        f"WITH dai_rows ({', '.join(columns)}) AS (\n{query}\n) SELECT {first}, 0, 0 UNION ALL "
        f"SELECT {', '.join(columns)}, {' | '.join(bits)}, {' + '.join(texts) or '0'} FROM dai_rows"
    )


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    parameters: Sequence[Any]
    kinds: Sequence[Kind]
    schema: pa.Schema
    alike: Callable[[], bool]
    """Whether a process computes the same."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A query that the driver's connection has begun to execute: the columns of its ``have`` first rows, how many
    ``seconds`` of processor time these took, and the others with what makes columns of them."""

    columns: list[pa.Array]
    have: int
    seconds: float
    portions: Portions
    convert: Convert

    def read(self, rows: int, seconds: float) -> Begun:
        """The same, with so many rows at least, if there are, unless they take that long or have MOST_AGAIN_BYTES."""
        parts, have, most = [self.columns], self.have, portion_rows(len(self.columns))
        size, spent, began = _size(self.columns), 0.0, time.thread_time()
        while have < rows and size < MOST_AGAIN_BYTES and spent < seconds:
            if not (more := self.portions.next(min(most, have))):
                break
            parts.append(self.convert(more, 1 + have))
            have += len(more)
            size += _size(parts[-1])
            spent = time.thread_time() - began
        columns = [pa.concat_arrays(each) for each in zip(*parts, strict=True)]
        return Begun(columns, have, self.seconds + spent, self.portions, self.convert)


class Reader:
    """One process. ``kill`` stops it, whatever it does."""

    def __init__(self) -> None:
        self._program = Program(str(_WORKER), pipe_bytes=_PIPE_BYTES)
        self._sink, self._source = self._program.sink, self._program.source
        self._begun = False
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
        self._lock = threading.Lock()
        self._idle: list[Reader] = []
        self._busy: set[Reader] = set()
        self._closed = False

    def start(self) -> None:
        """One more, unless there are MOST, for the queries that follow."""
        with self._lock:
            self._leave_ended()
            if not self._closed and len(self._idle) + len(self._busy) < MOST:
                with suppress(OSError):
                    self._idle.append(Reader())

    def expect(self, path: Path) -> None:
        """All of them start if the file is large: that takes most of a second, and a first large result without them
        takes several times as long."""
        with suppress(OSError):
            if path.stat().st_size >= LARGE_BYTES:
                for _ in range(MOST):
                    self.start()

    def begun(self, seconds: float = 0.0) -> bool:
        """Whether one waits for a query, or does so within so many seconds."""
        with self._lock:
            return any(each.begun(seconds) for each in self._idle)

    def take(self) -> Reader | None:
        """One that waits for a query."""
        with self._lock:
            self._leave_ended()
            for reader in self._idle:
                if reader.begun():
                    self._idle.remove(reader)
                    self._busy.add(reader)
                    return reader
        return None

    def _leave_ended(self) -> None:
        for reader in [each for each in self._idle if each.ended()]:
            self._idle.remove(reader)
            reader.close()

    def rows(
        self, query: Query, begun: Begun, asking: Asking, batch_bytes: int, batch_rows: int | None
    ) -> Iterator[pa.RecordBatch]:
        """All rows of the query: of many that come fast, a process reads all from the beginning. ``asking`` is around
        each wait."""
        reader = None
        if begun.seconds < _LONGEST * len(begun.columns) and self.begun():
            begun, needed = _read_until_worth(begun)
            if not begun.portions.at_end and begun.have >= needed and query.alike():
                reader = self.take()
        if reader is not None:
            size = max(1, _size(begun.columns))
            rows = _answered(self.uri, reader, query, max(1, batch_bytes * begun.have // size))
            whole = False
            try:
                stream = Stream(query.schema, _awaited(rows, asking, reader.kill))
                yield from stream if batch_rows is None else stream.rebatch(batch_rows)
                whole = True
                return
            except ReaderError:
                log.warning("a process that reads SQLite could not be used", exc_info=True)
            finally:
                self._give_back(reader, whole)
        read = 0
        for batch in batches(
            begun.columns, begun.have, begun.portions, begun.convert, query.schema, batch_bytes, batch_rows
        ):
            yield batch
            if read < START_ROWS <= read + batch.num_rows and query.alike():
                self.start()
            read += batch.num_rows

    def _give_back(self, reader: Reader, whole: bool) -> None:
        with self._lock:
            self._busy.discard(reader)
            if whole and not self._closed:
                self._idle.append(reader)
                return
        reader.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for each in self._busy:
                each.kill()  # who reads from it closes it
        for each in idle:
            each.close()


def _read_until_worth(begun: Begun) -> tuple[Begun, float]:
    """With more rows read, and the number of rows from which a process is worth what it computes again."""
    more = begun.read(MANY_ROWS, max(AGAIN_SECONDS, begun.seconds))
    if more.seconds < AGAIN_SECONDS or more.portions.at_end:
        return more, 0.0
    a_row = (more.seconds - begun.seconds) / max(1, more.have - begun.have)
    spared = VALUE_SECONDS * len(begun.columns) - a_row
    rows = begun.seconds / spared if spared > 0 else math.inf
    most = min(MOST_AGAIN, MOST_AGAIN_BYTES * more.have // max(1, _size(more.columns)))
    return (more.read(math.ceil(rows), more.seconds) if rows <= most else more), rows


def _size(columns: Sequence[pa.Array]) -> int:
    return sum(each.nbytes for each in columns)


def _awaited(rows: Iterator[pa.RecordBatch], asking: Asking, stop: Callable[[], None]) -> Iterator[pa.RecordBatch]:
    while True:
        with asking(stop):
            batch = next(rows, None)
        if batch is None:
            return
        yield batch


def _answered(uri: str, reader: Reader, query: Query, rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of at most so many rows. Raises ReaderError before the first of them; sqlite3.OperationalError with
    SQLite's message, DataError for values of other types."""
    kinds = query.kinds
    read = [_as_read(kind.type) for kind in kinds]
    rows = min(rows, _TEXT_ROWS if pa.string() in read else _BATCH_ROWS)
    answer = reader.ask(uri, _statement(query.text, kinds), query.parameters, rows)
    if answer.schema.types[: len(read)] != read:
        raise ReaderError("The first rows have values of other types.")
    at, skipped = 1, 1
    try:
        for batch in answer:
            have = batch.slice(skipped)
            skipped = 0
            *stored, bits, size = have.columns
            _refuse_others(kinds, bits, at)
            if sum(_bytes(each) for each in stored) != (pc.sum(size).as_py() or 0):
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
