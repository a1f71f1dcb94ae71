"""The server's error numbers as our errors. Messages lose host, user and database names on the way."""

from __future__ import annotations

import re
from collections.abc import Callable

from dai.drivers.mariadb.syntax import SYNTAX
from dai.drivers.sql.lexer import Bound
from dai.drivers.sql.positions import of_name
from dai.errors import (
    BusyError,
    CancelledError,
    ConflictError,
    DaiError,
    DatabaseUnavailableError,
    LimitError,
    NotFoundError,
    StatementError,
)

INTERRUPTED = 1317
LOST = {1053, 1080, 1927, 2002, 2003, 2005, 2006, 2012, 2013, 2014, 2026, 2055}
_REFUSED = {
    1044: "The user may not use the database of the URL.",
    1045: "The database refused the user name or the password.",
    1049: "The database of the URL does not exist.",
}
_ASK = "Try again later; its operator can see why in the database's own log."
_BUSY = {1040, 1203, 1226, 1205}
_READ_ONLY = 1792


def parts_of(error: Exception) -> tuple[int, str]:
    """Number and message of an error of the library."""
    code = error.args[0] if error.args and isinstance(error.args[0], int) else 0
    return (code or 2013), str(error.args[1] if len(error.args) > 1 else "")


HintFor = Callable[[int, str], str | None]
"""A hint about the name that an error of that number and message does not know."""


def error_of(
    code: int, message: str, sqlstate: str | None, sql: str | None, bound: Bound | None, hint_for: HintFor | None = None
) -> DaiError:
    """The error of a statement or connection."""
    if code in LOST:
        return DatabaseUnavailableError("The database cannot be reached, or the connection to it was lost.", hint=_ASK)
    if code in _REFUSED and sql is None:
        return DatabaseUnavailableError(_REFUSED[code], hint=_ASK)
    if code in _BUSY:
        why = "Another transaction holds a lock" if code == 1205 else "It has too many connections"
        return BusyError(f"The database is busy. {why}.", hint="Try again later.")
    if code == INTERRUPTED:
        return CancelledError("The statement was stopped in the database.")
    if code == 1213:
        return ConflictError(
            "Two transactions waited for each other (a deadlock); this one was rolled back.", hint="Try again."
        )
    if code in (1969, 3024):
        return LimitError("The database stopped the statement: it took too long.")
    text = _without_names(message)
    if code == 1305:
        return NotFoundError(f"{text}.", hint=hint_for(code, message) if hint_for is not None else None)
    if code == _READ_ONLY:
        text = "The statement would change data, and only queries are allowed here"
    position = _position(code, message, sql, bound) if sql is not None else None
    hint = hint_for(code, message) if hint_for is not None and code in (1051, 1054, 1146) else None
    return StatementError(f"{text}.", sql=sql, position=position, sqlstate=sqlstate, hint=hint)


def _without_names(message: str) -> str:
    text = re.sub(r"'[^']*'@'[^']*'", "this user", message)
    text = re.sub(r"^(FUNCTION|PROCEDURE) \S*?\.(?=\S+ does not exist)", r"\1 ", text)
    text = re.sub(r"(?<=[Tt]able ')[^'.]*\.(?=[^']*')", "", text)
    text = re.sub(r"(?<=for table )`[^`]*`\.(?=`)", "", text)
    return text.replace(
        "; check the manual that corresponds to your MariaDB server version for the right syntax to use", ""
    )


def _position(code: int, message: str, sql: str | None, bound: Bound | None) -> int | None:
    if sql is None:
        return None
    if code == 1064:
        near = re.search(r"near '(.*)' at line (\d+)$", message, re.DOTALL)
        text = bound.sql if bound is not None else sql
        if near is None:
            return None
        rest, line = near.group(1), int(near.group(2))
        starts = [0, *(match.end() for match in re.finditer("\n", text))]
        at = len(text) - len(rest) if text.endswith(rest) else text.find(rest, starts[min(line, len(starts)) - 1])
        if at < 0:
            return None
        return bound.original(at + 1) if bound is not None else at + 1
    if code in (1054, 1052, 1146, 1051, 1146):
        named = re.search(r"'([^']+)'", _without_names(message))
        return of_name(sql, named.group(1), SYNTAX) if named else None
    return None
