"""Large results of SQLite, read by ADBC in processes of their own (``worker`` says why): one query at a time each.

The driver's connection has begun to execute the statement, with its authorizer; a process opens the same file for
reading only. It gives the columns as they are stored. ADBC refuses what is no whole number in a column of whole
numbers; for what it would convert silently, a column says which rows have values of another storage class. It makes an
empty text of one for which there is no memory; that column says which texts are empty.

A process computes only what every version of SQLite computes alike (``alike``). ``handover`` says when one is asked.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dai.drivers.connections.rows import field, record_batch
from dai.drivers.sql.lexer import keyword
from dai.drivers.sqlite.forks import FORKS, fork
from dai.drivers.sqlite.syntax import SYNTAX
from dai.drivers.sqlite.types import Kind, converted, is_exact, other_type
from dai.errors import LimitError
from dai.streams.machine import cores

EXPECTED = max(2, min(4, cores()))
MOST = 2 * EXPECTED
"""Processes of one driver: as many as can compute at the same time, and others while nobody reads from those."""
_BEGIN_SECONDS, _END_SECONDS = 0.002, 5.0
"""After which a process that has just been forked is looked at, and most for one that is killed."""
IDLE_SECONDS = 0.1
"""For which nobody has read from a process: then nobody waits for it."""
LARGE_BYTES = 64 << 20
"""A file from which large results are expected once somebody has asked for statistics, to plan a query."""
_BATCH_ROWS, _TEXT_ROWS = 1 << 16, 1 << 11
"""Of a batch at most, and what is read of texts at once, which may be much longer than those of the first rows."""
_MOST_COLUMNS = 60
_LARGE = 1 << 53
"""Beyond it not every whole number is an 8-byte float."""
_EMPTY, _OTHER, _MOST_STATES = 1, 2, 31
"""States of a value that have to be looked at, and how many states of two bits a whole number has."""
_NO_MEMORY = "emory"
"""In the messages of SQLite and of Arrow about memory."""
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
    return (
        len(query.kinds) <= _MOST_COLUMNS
        and all(_as_read(kind.type) is not None for kind in query.kinds)
        and not any(isinstance(each, bytes) for each in query.parameters)
        and keyword(query.text, SYNTAX) in ("SELECT", "VALUES", "WITH")
    )


def _statement(query: str, kinds: Sequence[Kind]) -> str:
    """A row that is not the query's, by whose values ADBC takes the types; then the query's rows, in its order: SQLite
    leaves out the ORDER BY of a subquery only below a join, an aggregate or another ORDER BY (optoverview.html).
    Behind the columns stand those of ``_checks``."""
    columns = [f"c{each}" for each in range(len(kinds))]
    checks = _checks(kinds)
    first = ", ".join([*(_FIRST[_as_read(kind.type)] for kind in kinds), *("0" for _ in checks)])
    return (
        f"WITH dai_rows ({', '.join(columns)}) AS (\n{query}\n) SELECT {first} UNION ALL "
        f"SELECT {', '.join([*columns, *checks])} FROM dai_rows"
    )


def _checks(kinds: Sequence[Kind]) -> dict[str, list[int]]:
    """Columns by which an answer is checked, each with the numbers of the columns whose states it has, from its lowest
    bits on: 0, ``_EMPTY`` for an empty text, ``_OTHER`` for a value of another storage class. A text is less than every
    BLOB and greater than every number (datatype3.html): to compare takes a quarter of what ``typeof`` does."""
    numbers = [at for at, kind in enumerate(kinds) if _as_read(kind.type) == pa.string() or kind.type == pa.float64()]
    checks = [numbers[each : each + _MOST_STATES] for each in range(0, len(numbers), _MOST_STATES)]
    return {
        " | ".join(_state(f"c{at}", kinds[at].type, 2 * bit) for bit, at in enumerate(each)): each for each in checks
    }


def _state(name: str, type: pa.DataType, bit: int) -> str:
    """The state of a value, from this bit on."""
    empty, other = _EMPTY << bit, _OTHER << bit
    if type == pa.float64():
        large = f"{name} NOT BETWEEN -{_LARGE} AND {_LARGE}"
        return f"CASE WHEN {large} AND typeof({name}) = 'integer' THEN {other} ELSE 0 END"
    text = f"+{name} COLLATE BINARY"  # without its affinity, which would make a text of a number that is compared
    return (
        f"CASE WHEN {text} > '' AND {text} < x'' THEN 0 WHEN {name} IS NULL THEN 0 "
        f"WHEN {text} = '' THEN {empty} ELSE {other} END"
    )


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    parameters: Sequence[Any]
    kinds: Sequence[Kind]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([field(each.name, each.type, each.type_name) for each in self.kinds])


class Reader:
    """One process. ``kill`` stops it, whatever it does."""

    def __init__(self) -> None:
        self._fork = fork()
        self._source = self._fork.source
        self.left_at: float | None = None
        """Since when nobody reads from it (monotonic); None while somebody does."""
        self.kill, self.ended = self._fork.kill, self._fork.ended

    @property
    def pid(self) -> int | None:
        return self._fork.pid

    def begun(self, seconds: float = 0.0) -> bool:
        """Whether the process has started, or does so within so many seconds."""
        return self._fork.begun(seconds)

    def ask(self, uri: str, sql: str, parameters: Sequence[Any], at_once: int, rows: int) -> pa.RecordBatchReader:
        """The answer, to be read to its end; then ``failure``. It reads so many rows ``at_once``; a batch has as many
        ``rows`` as come in a moment, at most."""
        asked = {"uri": uri, "sql": sql, "parameters": list(parameters), "at_once": at_once, "rows": rows}
        try:
            self._fork.sink.sendall(json.dumps(asked).encode() + b"\n")
            if (failure := self.failure()) is not None:
                raise ReaderError(failure)
            return pa.ipc.open_stream(pa.PythonFile(self._source, "r"))
        except (OSError, ValueError, pa.ArrowException) as error:
            raise ReaderError("The process ended.") from error

    def close(self) -> None:
        self._fork.close(0.0 if self.pid is None else _END_SECONDS)

    def failure(self) -> str | None:
        """Why it stopped; None where it did not."""
        said: dict[str, str] = json.loads(self._source.readline())
        return said.get("error")


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
        """Whether one waits for a query, or does so within so many seconds, or answers one, or could at once."""
        with self._lock:
            return bool(self._busy) or any(each.begun(seconds) for each in self._idle) or FORKS.ready

    def take(self, seconds: float = 0.0) -> Reader | None:
        """One that waits for a query, or does so within so many seconds. Where none does now, one more starts."""
        until = time.monotonic() + seconds
        with self._lock:
            free = self._free()
            if free is None and not self._idle:
                self.start()
            while free is None and (left := until - time.monotonic()) > 0:
                if self._idle and FORKS.ready:
                    self._lock.wait(min(left, _BEGIN_SECONDS))  # it begins
                elif self._used():
                    self._lock.wait(left)
                else:
                    break
                free = self._free()
            return free

    def _free(self) -> Reader | None:
        self._leave_ended()
        for reader in self._idle:
            if reader.begun():
                self._idle.remove(reader)
                self._busy.add(reader)
                return reader
        return None

    def _used(self) -> bool:
        """Whether somebody reads from a process, which will be free then."""
        now = time.monotonic()
        return any(each.left_at is None or now < each.left_at + IDLE_SECONDS for each in self._busy)

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


def rows_of(uri: str, reader: Reader, query: Query, rows: int) -> Iterator[pa.RecordBatch]:
    """Batches of at most so many rows. Raises ReaderError before the first of them; sqlite3.OperationalError with
    SQLite's message, DataError for values of other types."""
    kinds, schema = query.kinds, query.schema
    read, checks = [_as_read(kind.type) for kind in kinds], list(_checks(kinds).values())
    rows = min(rows, _BATCH_ROWS)
    at_once = min(rows, _TEXT_ROWS) if pa.string() in read else rows
    answer = reader.ask(uri, _statement(query.text, kinds), query.parameters, at_once, rows)
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
            for numbers, states in zip(checks, have.columns[len(kinds) :], strict=True):
                _check([(kinds[each], stored[each]) for each in numbers], states, at)
            columns = [converted(kind, each, at) for kind, each in zip(kinds, stored, strict=True)]
            yield record_batch(columns, schema, have.num_rows)
            at += have.num_rows
        failure = reader.failure()
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _too_large() from error
    if failure is None:
        return
    _, mismatch, column = failure.partition("Type mismatch in column ")
    if mismatch:
        raise other_type(kinds[int(column.partition(":")[0])], f"rows {at:,} to {at + at_once - 1:,}")
    raise _too_large() if _NO_MEMORY in failure else sqlite3.OperationalError(failure)


def _too_large() -> LimitError:
    return LimitError(
        "The process that reads the rows ended, or needs more memory than it may use.",
        hint="Select long texts in parts: substr(column, 1, 1000000).",
    )


def _check(columns: Sequence[tuple[Kind, pa.Array]], states: pa.Array, row: int) -> None:
    """DataError where a value is of another storage class, LimitError where a text is empty that is not in the file."""
    any_state = pc.max(states).as_py()
    if any_state:
        others = pc.bit_wise_and(states, sum(_OTHER << 2 * bit for bit in range(len(columns))))
        if pc.max(others).as_py():
            at = pc.index(pc.not_equal(others, 0), True).as_py()
            number = others[at].as_py()
            kind, _ = columns[(number & -number).bit_length() // 2 - 1]
            raise other_type(kind, f"row {row + at:,}")
    for bit, (_, column) in enumerate(columns):
        if column.type == pa.string():
            empty = pc.bit_wise_and(pc.shift_right(states, 2 * bit), _EMPTY) if any_state else None
            if _count(pc.equal(pc.binary_length(column), 0)) != (0 if empty is None else _count(empty)):
                raise _too_large()


def _count(ones: pa.Array) -> int:
    return pc.sum(ones).as_py() or 0
