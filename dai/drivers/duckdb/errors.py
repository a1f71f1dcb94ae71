"""Errors of DuckDB as errors of ``dai.errors``, with the place and a hint."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import duckdb
import pyarrow as pa
from duckdb import DuckDBPyConnection

from dai.drivers.duckdb.inputs import beyond_arrow
from dai.drivers.duckdb.syntax import OF_THE_GRAMMAR, SYNTAX
from dai.drivers.sql.lexer import Bound, bind_markers, check_count
from dai.drivers.sql.positions import of_name
from dai.drivers.sql.suggestions import not_numbered
from dai.errors import (
    ConflictError,
    DatabaseUnavailableError,
    DataError,
    LimitError,
    ParameterError,
    StatementError,
    of_memory,
)
from dai.plugins import close_to, nearest

_SQLSTATES: tuple[tuple[type[Exception], str], ...] = ((duckdb.IntegrityError, "23000"), (duckdb.DataError, "22000"))
"""DuckDB says no states of its own."""
_TABLES = """
SELECT table_name FROM duckdb_tables() WHERE NOT internal AND database_name = current_database()
UNION SELECT view_name FROM duckdb_views() WHERE NOT internal AND database_name = current_database()
"""
_SETTING = re.compile(r""", or SET \w+ ?=[^.]*|\s+Use "?(?:SET|PRAGMA) \w+[^.]*\.?""")
"""What DuckDB advises and nobody who reads it here can do: to change a setting."""
_fatal_errors = 0


def fatal_errors() -> int:
    """How many errors this process has seen after which some database of DuckDB answers nothing any more."""
    return _fatal_errors


def advisable(message: str) -> str:
    """DuckDB's message without its advice to change a setting."""
    return _SETTING.sub("", message)


@contextmanager
def translated(
    sql: str | None = None, bound: Bound | None = None, connection: DuckDBPyConnection | None = None
) -> Iterator[None]:
    """Inside the block DuckDB's errors are ours; those of a statement have its place, and for an unknown table the
    tables of the ``connection``."""
    try:
        yield
    except (duckdb.Error, OSError, MemoryError, pa.ArrowException) as error:
        _raise(error, sql, bound, connection)
    except (OverflowError, UnicodeEncodeError) as error:
        raise ParameterError("A parameter does not fit any DuckDB type.") from error


def _raise(error: Exception, sql: str | None, bound: Bound | None, connection: DuckDBPyConnection | None) -> NoReturn:
    global _fatal_errors
    text = advisable(str(error))
    if _fatal(error):
        _fatal_errors += 1
    damaged = "does not match stored checksum" in text
    unusable = isinstance(error, duckdb.IOException | duckdb.FatalException)
    if damaged or unusable or text.startswith(("IO Error", "FATAL Error")):
        if "Could not set lock" in text:
            raise DatabaseUnavailableError(
                "The DuckDB database is open in another process; only one process at a time can open it.",
                hint="If that process is a data service, send the query to it; else end it.",
            ) from error
        hint = "Name a DuckDB file." if "not a valid DuckDB database" in text else None
        raise DatabaseUnavailableError("The DuckDB database cannot be opened or read.", hint=hint) from error
    if (refused := of_memory(error)) is not None:
        raise refused from error
    if isinstance(error, duckdb.OutOfMemoryException) or "Out of Memory Error" in text or "bad allocation" in text:
        raise LimitError(
            "This query needs more memory and temporary disk space than DuckDB may use.",
            hint="Sort, join or group fewer rows or columns, make shorter texts and lists, or ask the operator of the "
            "service for more (memory_bytes).",
        ) from error
    if isinstance(error, duckdb.PermissionException):
        raise StatementError("The statement is not allowed here: it would reach files.", sql=sql) from error
    if isinstance(error, duckdb.TransactionException) and "onflict" in text:
        raise ConflictError("Another transaction changed the same rows.", hint="Try again.") from error
    if "Values were not provided" in text and sql is not None:
        check_count(bind_markers(sql, "qmark", SYNTAX).count, 0)
    if missing := re.search(r"Values were not provided for the following parameters: (\w+)", text):
        shown = f"${missing[1]}"
        hint = not_numbered(shown) if missing[1].isdecimal() else None
        raise ParameterError(f"The statement has {shown}, which gets no value.", hint=hint) from error
    if isinstance(error, duckdb.NotImplementedException | TypeError):
        raise ParameterError(f"A value has no type in DuckDB: {text.splitlines()[0]}") from error
    if (failure := beyond_arrow(text)) is not None:
        raise failure from error
    message, _, rest = text.partition("\n")
    position = None
    if sql is not None:
        position = _position(text, sql)
        if position is not None and bound is not None:
            position = bound.original(position)
        elif name := re.search(r'column "(.+?)"|with name (\S+)', message):
            position = of_name(sql, name.group(1) or name.group(2), SYNTAX)
    hints = (line for line in rest.splitlines() if line.startswith(("Did you mean", "Candidate")))
    hint = next((line for line in hints if '"pg_' not in line), None)
    if function := re.search(r"Function with name (\S+) does not exist", message):
        near = close_to(function[1].casefold(), [*OF_THE_GRAMMAR, *re.findall('"(.+?)"', hint or "")])
        hint = f'Did you mean "{near}"?' if near else hint
    elif (
        hint is None
        and connection is not None
        and (table := re.match(r".*Table with name (.+) does not exist", message))
    ):
        hint = _table_hint(table[1], connection)
    sqlstate = next((state for kind, state in _SQLSTATES if isinstance(error, kind)), None)
    detail = message.partition(": ")[2] or message
    if detail.startswith("CSV Error on Line"):
        file = re.search(r"^\s*file = (?:.*[/\\])?(.+)$", rest, re.M)
        where = f"{file.group(1)}: " if file else ""
        what = ". ".join(line.rstrip(".") for line in rest.splitlines()[:2])
        raise DataError(f"{where}{detail}. {what}.", hint="Correct the line in the file, or leave it out.") from error
    raise StatementError(detail, sql=sql, position=position, sqlstate=sqlstate, hint=hint) from error


def _table_hint(table: str, connection: DuckDBPyConnection) -> str | None:
    with contextlib.suppress(duckdb.Error), connection.cursor() as cursor:
        known = [str(name) for (name,) in cursor.execute(_TABLES).fetchall()]
        return nearest(table, known) if known else "The database has no tables."
    return None


def _position(text: str, sql: str) -> int | None:
    """From the caret under the excerpt that DuckDB prints; a long line is cut with an ellipsis."""
    caret = re.search(r"^LINE (\d+): (.*)\n( *)\^", text, re.MULTILINE)
    if caret is None:
        return None
    number, excerpt = int(caret.group(1)), caret.group(2)
    lines = sql.split("\n")
    if number > len(lines):
        return None
    column = len(caret.group(3)) - len(f"LINE {number}: ")
    if excerpt.startswith("..."):
        shift = lines[number - 1].find(excerpt.strip("."))
        if shift < 0:
            return None
        column += shift - 3
    return sum(len(line) + 1 for line in lines[: number - 1]) + column + 1


def answering(root: DuckDBPyConnection) -> DuckDBPyConnection | None:
    """The connection; None if its database has failed and was closed: it must be opened again."""
    try:
        root.execute("SELECT 1")
    except duckdb.Error as error:
        if _fatal(error):
            with contextlib.suppress(duckdb.Error):
                root.close()
            return None
    return root


def _fatal(error: Exception) -> bool:
    return isinstance(error, duckdb.FatalException | duckdb.InternalException) or str(error).startswith("FATAL Error")
