"""Statements of MariaDB and MySQL that share one connection and one transaction."""

from __future__ import annotations

import tempfile
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import pyarrow as pa

from dai.drivers.connections.interrupts import interruptible
from dai.drivers.connections.pooled import PooledDriver, PooledSession, Release
from dai.drivers.mariadb.connection import Connection
from dai.drivers.mariadb.literals import literal
from dai.drivers.mariadb.syntax import SYNTAX
from dai.drivers.mariadb.types import Kind, kind
from dai.drivers.sql.lexer import COMMANDS, Bound, bind_markers, check_comments, check_count, check_locks, keyword
from dai.errors import DataError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

_SESSION_WORDS = {
    "BEGIN", "COMMIT", "DEALLOCATE", "EXECUTE", "HANDLER", "KILL", "LOAD", "LOCK", "PREPARE", "RELEASE", "ROLLBACK",
    "SAVEPOINT", "SET", "SHUTDOWN", "START", "UNLOCK", "USE", "XA",
}  # fmt: skip
_SPOOLED_BYTES = 8 << 20


class Server(PooledDriver[Connection]):
    """The part of its driver that a session needs."""

    @abstractmethod
    def kill(self, thread: int) -> None:
        """Ends the statement of a connection, through another one."""

    @abstractmethod
    def translated(
        self, connection: Connection, sql: str | None = None, bound: Bound | None = None
    ) -> AbstractContextManager[None]:
        """Raises the library's errors of the block as ours. ``sql`` is what they show."""

    @abstractmethod
    def read(
        self,
        connection: Connection,
        result: Any,
        kinds: Sequence[Kind],
        sql: str,
        cancellation: Cancellation,
        batch_rows: int | None,
        release: Release[Connection],
    ) -> Stream:
        """The rows of a result that the library reads."""


class MariaSession(PooledSession[Connection]):
    """``Session`` on one connection; cancelling kills its statement from another."""

    _driver: Server
    _reads = True
    """Whether the transaction may only read."""

    def begin(self, *, read_only: bool) -> None:
        self._reads = read_only
        if not read_only:
            self.run("SET SESSION TRANSACTION READ WRITE")
        self.run(f"START TRANSACTION{' READ ONLY' if read_only else ''}")

    def commit(self) -> None:
        self.run("COMMIT")

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Stream:
        if self._reads:
            check_locks(sql, SYNTAX)
        return super().query(sql, parameters)

    def update(self, sql: str, parameter_rows: Iterable[Sequence[Any]] | None = None) -> int:
        check_comments(sql, SYNTAX)
        word = keyword(sql, SYNTAX)
        if word in _SESSION_WORDS or (word and word not in COMMANDS):  # IF, LOOP, a label: a program of statements
            raise StatementError(
                "The statement is not allowed here: it would reach files, settings or transactions.", sql=sql
            )
        if parameter_rows is None:
            return self.run(sql, sql)
        bound = bind_markers(sql, "qmark", SYNTAX)
        changed, prepared = 0, False
        for row in parameter_rows:
            check_count(bound.count, len(row))
            if not prepared:
                self._prepare(bound, sql)
                prepared = True
            names = self.set_variables(row)
            changed += self.run(f"EXECUTE dai_statement{' USING ' if names else ''}{', '.join(names)}", sql, bound)
        return changed

    def _prepare(self, bound: Bound, sql: str) -> None:
        self.run(f"SET @dai_sql = {literal(bound.sql, 0)}")
        self.run("PREPARE dai_statement FROM @dai_sql", sql, bound)

    def set_variables(self, values: Sequence[Any]) -> list[str]:
        """Values in user variables: the names of these."""
        return _set_variables(self.run, values)

    def run(self, statement: str | bytes, sql: str | None = None, bound: Bound | None = None) -> int:
        """A statement whose rows, if it has any, are only counted: rows changed. ``sql`` is what an error shows."""
        self.finish()
        driver, raw = self._driver, self.connection.raw
        with (
            interruptible(self._cancellation, lambda: driver.kill(self.connection.id)),
            driver.translated(self.connection, sql, bound),
        ):
            raw.query(statement if isinstance(statement, bytes) else encoded(statement))
            result = raw.store_result()
            return int(raw.affected_rows()) if result is None else int(result.num_rows())

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """A query of the driver's own."""
        stream = self._driver.stream(self.connection, sql, (), self._cancellation, None, release=lambda *_: None)
        records: list[dict[str, Any]] = stream.table().to_pylist()
        return records

    def results(self, sql: str) -> Iterator[Stream]:
        """The result sets of a CALL, each read whole."""
        driver, raw = self._driver, self.connection.raw
        with (
            interruptible(self._cancellation, lambda: driver.kill(self.connection.id)),
            driver.translated(self.connection, sql),
        ):
            raw.query(encoded(sql))
            while True:
                result = raw.use_result()
                if result is not None:
                    kinds = kinds_of(result)
                    stream = driver.read(
                        self.connection, result, kinds, sql, self._cancellation, None, release=lambda *_: None
                    )
                    del result
                    yield _spooled(_with_floats_refused(stream, kinds))
                if raw.next_result() != 0:
                    return


def _with_floats_refused(stream: Stream, kinds: Sequence[Kind]) -> Stream:
    cut = next((each.name for each in kinds if each.is_cut), None)
    if cut is not None:
        stream.close()
        raise DataError(
            f"Column {cut!r} is a FLOAT, which the database sends with six digits only.",
            hint="Select CAST(… AS DOUBLE) in the procedure.",
            column=cut,
        )
    return stream


def _spooled(stream: Stream) -> Stream:
    """The same tuples, read to the end and kept in memory or, beyond 8 MiB, in a temporary file."""
    file = tempfile.SpooledTemporaryFile(_SPOOLED_BYTES)  # noqa: SIM115 - closed with the stream
    with stream, pa.ipc.new_stream(file, stream.schema) as writer:
        for batch in stream:
            writer.write_batch(batch)
    file.seek(0)
    return Stream(stream.schema, pa.ipc.open_stream(file), file.close)


def kinds_of(result: Any) -> list[Kind]:
    """How each column of a result of the library's is read."""
    return [
        kind(name, wire, length, digits, flags, binary=mark is bytes)
        for (name, wire, _, _, length, digits, _), flags, mark in zip(
            result.describe(), result.field_flags(), result.converter, strict=True
        )
    ]


def prepare(raw: Any, sql: str, parameters: Sequence[Any]) -> list[str]:
    """Prepares ``dai_statement`` on the server and sets its values: the names of their variables. ParameterError for a
    value that cannot be bound."""
    names = _set_variables(lambda statement: raw.query(encoded(statement)), parameters)
    raw.query(f"SET @dai_sql = {literal(sql, 0)}".encode())
    raw.query(b"PREPARE dai_statement FROM @dai_sql")
    return names


def _set_variables(run: Callable[[str], object], values: Sequence[Any]) -> list[str]:
    names = [f"@dai{at}" for at in range(1, len(values) + 1)]
    if names:
        pairs = (
            f"{name} = {literal(value, at)}" for at, (name, value) in enumerate(zip(names, values, strict=True), 1)
        )
        run(f"SET {', '.join(pairs)}")
    return names


def encoded(sql: str) -> bytes:
    """As UTF-8; StatementError for what is not text."""
    try:
        return sql.encode()
    except UnicodeEncodeError as error:
        raise StatementError("The statement has half a surrogate pair, which is not Unicode.") from error
