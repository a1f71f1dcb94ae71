"""Errors of SQLite as errors of ``dai.errors``, with the place and a hint."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from dai.drivers.sql.lexer import check_count
from dai.drivers.sql.positions import of_name, of_only_token
from dai.drivers.sql.suggestions import function_hint, in_double_quotes, name_hint
from dai.drivers.sqlite import catalog
from dai.drivers.sqlite.connection import Connection
from dai.drivers.sqlite.syntax import SYNTAX
from dai.drivers.sqlite.types import not_utf8
from dai.errors import BusyError, DatabaseUnavailableError, LimitError, ParameterError, StatementError

_INSTEAD = {
    **dict.fromkeys(("now", "getdate", "sysdate"), "CURRENT_TIMESTAMP"),
    **dict.fromkeys(("year", "month", "day", "to_char", "date_format", "date_trunc"), "strftime('%Y-%m-%d', …)"),
    **dict.fromkeys(("left", "right", "substring_index"), "substr(text, first, length)"),
    **dict.fromkeys(("string_agg", "array_agg", "listagg"), "group_concat(text, ', ')"),
    **dict.fromkeys(("datediff", "date_diff"), "julianday(one) - julianday(other)"),
    **dict.fromkeys(("len", "char_length"), "length(text)"),
    **dict.fromkeys(("concat", "concat_ws"), "a || b"),
    "greatest": "max(a, b)",
    "least": "min(a, b)",
}
"""Functions of other products, and what does the same here."""
_LOST = ("SQLITE_CANTOPEN", "SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_IOERR", "SQLITE_FULL")


@contextmanager
def translated(connection: Connection, path: Path, sql: str | None = None) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        _raise(error, connection, path, sql)
    except UnicodeDecodeError as error:  # what it says of a damaged file
        raise DatabaseUnavailableError("The SQLite database cannot be used: it is damaged.") from error
    except MemoryError as error:  # what an aggregate has gathered is larger than a value may be
        raise LimitError("A value of the statement needs more memory than a value may use.") from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise ParameterError("A parameter does not fit: integers have 64 bits, text is Unicode.") from error


def _raise(error: sqlite3.Error, connection: Connection, path: Path, sql: str | None) -> NoReturn:
    code, text = name_of(error), str(error)
    if is_locked(error):
        raise locked() from error
    if code.startswith("SQLITE_LOCKED"):
        raise BusyError("The database is locked by another user.", hint="Try again later.") from error
    if code.startswith(_LOST):
        hint = None
        if code.startswith("SQLITE_NOTADB"):
            with path.open("rb") as file:
                other = file.read(12)[8:] == b"DUCK"
            hint = "It is a DuckDB database: write duckdb:///…" if other else "Name a SQLite file."
        raise DatabaseUnavailableError(f"The SQLite database cannot be used: {text}.", hint=hint) from error
    if "decode to UTF-8" in text:
        raise not_utf8(text.split("'")[1] if "'" in text else "?") from error
    if code in ("SQLITE_AUTH", "SQLITE_READONLY") or "prohibited" in text:
        raise StatementError(
            "The statement is not allowed here: it would reach other files, settings or transactions, or change "
            "something in a query.",
            sql=sql,
        ) from error
    if counts := re.search(r"uses (\d+), and there are (\d+) supplied", text):
        check_count(int(counts.group(1)), int(counts.group(2)))
    if "binding" in text.lower():
        raise ParameterError(f"{text}") from error
    position, hint = (None, None) if sql is None else _place(text, sql, connection)
    sqlstate = "23000" if code.startswith("SQLITE_CONSTRAINT") else None
    raise StatementError(f"{text}.", sql=sql, position=position, sqlstate=sqlstate, hint=hint) from error


def is_locked(error: sqlite3.Error) -> bool:
    """Whether SQLite has waited for another's lock in vain."""
    return name_of(error).startswith("SQLITE_BUSY")


def locked() -> DatabaseUnavailableError:
    """The error of a locked file. It is not a BusyError, so that a client that has waited once does not retry by
    itself."""
    return DatabaseUnavailableError(
        "Another program or request has locked the SQLite file.",
        hint="Try again when it has finished. In WAL mode (PRAGMA journal_mode = WAL) readers do not wait for writers.",
    )


def name_of(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", ""))


def _place(text: str, sql: str, connection: Connection) -> tuple[int | None, str | None]:
    """Position and hint that follow from SQLite's message."""
    what, _, name = text.partition(": ")
    if what.startswith('near "'):
        return of_only_token(sql, what[6:].rstrip('"'), SYNTAX), None
    if what == "unrecognized token" and name == '":"' and sql.count("::") == 1:
        return sql.index("::") + 1, "A cast is written CAST(… AS TEXT)."
    if text == "incomplete input":
        return None, "The statement ends too early."
    known: list[str] = []
    with contextlib.suppress(sqlite3.Error):
        if what == "no such table":
            known = catalog.names(connection.run)
        elif what == "no such column":
            known = catalog.column_names(connection.run)
        elif what == "no such function":
            functions = {each: each for each in catalog.function_names(connection.run)}
            instead = _INSTEAD.get(name.casefold())
            return of_name(sql, name, SYNTAX), f"SQLite has {instead}." if instead else function_hint(name, functions)
    if what in ("no such table", "no such column", "ambiguous column name", "no such function"):
        hint = name_hint(name.rsplit(".", 1)[-1], {each: each for each in known})
        position = of_name(sql, name, SYNTAX)
        schema, dot, table = name.rpartition(".")
        if what == "no such table" and dot and hint is None and table in known:
            hint = f"Write {table} alone: SQLite has no schema {schema!r}."
        if what == "no such column" and position is not None and not (hint or "").startswith("Did you"):
            hint = in_double_quotes(sql, position) or hint
        return position, hint
    return None, None
