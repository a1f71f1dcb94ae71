"""Translates PostgreSQL's errors into ours: the one place where foreign errors of both libraries are translated.

The SQLSTATE decides (PostgreSQL documentation, appendix A). Positions are mapped back to the caller's SQL by whoever
rewrote it. What says that there is no connection never leaves as it is: it names hosts, ports and users.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from adbc_driver_manager import Error as AdbcError
from psycopg import Error as PsycopgError
from psycopg import pq

from dai.drivers.postgresql.types import array_refused
from dai.drivers.sql.suggestions import not_numbered
from dai.errors import (
    BusyError,
    DaiError,
    DatabaseUnavailableError,
    DataError,
    NotAQueryError,
    ParameterError,
    StatementError,
)

Position = Callable[[int], int]

# 57P0x: shut down or crashed; 58: system error; XX: corrupted or internal, the connection is not to be trusted either.
_LOST = ("08", "57P01", "57P02", "57P03", "57P05", "25P03", "25P04")
_PROTOCOL = "08P01"
"""Of fewer values than the statement has ``$1``: its message, in whatever language, says both numbers."""
_WROTE = "25006"
_TOO_MANY = "53300"


def unavailable(reason: str = "The database cannot be reached or broke the connection.") -> DatabaseUnavailableError:
    """For a connection that cannot be opened or was lost. The message does not say where the database is."""
    hint = "Try again later; its operator can see why in the database's own log."
    return DatabaseUnavailableError(reason, hint=hint)


def statement_error(
    sqlstate: str | None,
    message: str,
    *,
    sql: str | None = None,
    position: int | None = None,
    hint: str | None = None,
    detail: str | None = None,
) -> DaiError:
    """By SQLSTATE; ``position`` counts in ``sql``."""
    if sqlstate == _PROTOCOL and (missing := re.fullmatch(r"\D*\d+\D+?(\d+)\D*", message)):
        shown = f"${missing[1]}"
        return ParameterError(f"The statement has {shown}, which gets no value.", hint=not_numbered(shown))
    if sqlstate is None or sqlstate.startswith(_LOST):
        return unavailable()
    if sqlstate == _TOO_MANY:
        return BusyError("The database takes no more connections.", retry_after=5)
    refused = array_refused(message)
    if refused is not None:
        return refused
    if sqlstate == _WROTE:
        return NotAQueryError(
            f"The statement would change the database ({message}): nothing was changed.",
            sql=sql,
            position=position,
            sqlstate=sqlstate,
            hint="A query runs read-only. Send statements that change data as an update (sqlUpdateStatement).",
        )
    text = message if detail is None else f"{message}\n{detail}"
    return StatementError(text, sql=sql, position=position, sqlstate=sqlstate, hint=hint)


def from_result(result: Any, sql: str | None = None, position: Position | None = None) -> DaiError:
    """A failed PGresult."""

    def part(name: pq.DiagnosticField) -> str | None:
        value: bytes | None = result.error_field(name)
        return None if value is None else value.decode("utf-8", "replace")

    field = pq.DiagnosticField
    at = part(field.STATEMENT_POSITION)
    return statement_error(
        part(field.SQLSTATE),
        part(field.MESSAGE_PRIMARY) or "",
        sql=sql,
        position=None if at is None or sql is None else position(int(at)) if position else int(at),
        hint=part(field.MESSAGE_HINT),
        detail=part(field.MESSAGE_DETAIL),
    )


def from_psycopg(
    error: PsycopgError, sql: str | None = None, position: Position | None = None, *, connecting: bool = False
) -> DaiError:
    """An exception of psycopg's own interface."""
    if connecting:
        return _no_connection(error)
    if error.pgresult is not None:
        return from_result(error.pgresult, sql, position)
    if error.sqlstate is None and type(error).__name__ in ("ProgrammingError", "DataError", "NotSupportedError"):
        return ParameterError(str(error).partition("\n")[0])
    return unavailable()


def from_adbc(error: AdbcError, sql: str | None = None) -> DaiError:
    """An exception of ADBC; its details carry what libpq's result did, but for the position."""
    parts = {_text(name): _text(value) for name, value in (error.details or [])}
    message = parts.get("PG_DIAG_MESSAGE_PRIMARY", "")
    if error.sqlstate is None and "overflow when converting to nanoseconds" in str(error):
        return DataError(
            "The result holds an interval with a time longer than 292 years, which Arrow cannot carry.",
            hint="Cast the column to text (column::text).",
        )
    return statement_error(
        error.sqlstate,
        message,
        sql=sql,
        hint=parts.get("PG_DIAG_MESSAGE_HINT"),
        detail=parts.get("PG_DIAG_MESSAGE_DETAIL"),
    )


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _no_connection(error: PsycopgError) -> DaiError:
    """While connecting libpq gives no SQLSTATE, only the server's words."""
    text = str(error).lower()
    if "too many clients" in text or "remaining connection slots" in text:
        return BusyError("The database takes no more connections.", retry_after=5)
    if "password" in text or "authentication failed" in text or "role" in text:
        return unavailable("The database refused the user name or the password.")
    if "does not exist" in text:
        return unavailable("The database of the URL does not exist.")
    return unavailable()
