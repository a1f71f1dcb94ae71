"""The exceptions of PEP 249, and which error of the service is which.

Their text is that of the service, with its excerpt and hint; the error itself is the ``__cause__``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dai import errors


class Warning(Exception):
    """Part of PEP 249; nothing raises it."""


class Error(Exception):
    """``code``: the stable code of the service's error; ``sqlstate``: that of the database, where it said one."""

    code: str | None = None
    sqlstate: str | None = None

    def _render_traceback_(self) -> list[str]:
        """The traceback in a notebook: the caller's own lines and the message, not the library's lines."""
        return [*errors.own_lines(self), f"{type(self).__name__}: {self}"]


class InterfaceError(Error):
    """A cursor or connection that is closed or in use, or a call that makes no sense."""


class DatabaseError(Error):
    pass


class DataError(DatabaseError):
    """A value that does not fit."""


class OperationalError(DatabaseError):
    """Nothing that the statement could mend: no service, no database, no right, a limit, a cancellation."""


class IntegrityError(DatabaseError):
    """A constraint of the database."""


class InternalError(DatabaseError):
    pass


class ProgrammingError(DatabaseError):
    """A wrong statement, or parameters that do not fit it."""


class NotSupportedError(DatabaseError):
    """The resource only reads, or the database has no such thing."""


_BY_SQLSTATE: dict[str, type[Error]] = {
    "0A": NotSupportedError,
    "22": DataError,
    "23": IntegrityError,
    "40": OperationalError,
    "53": OperationalError,
    "55": OperationalError,
    "57": OperationalError,
    "58": OperationalError,
    "XX": InternalError,
}
"""By the first two characters (the class) of SQL:2016 part 2, and those of PostgreSQL."""
_BY_KIND: tuple[tuple[type[errors.DaiError], type[Error]], ...] = (
    (errors.NotAQueryError, NotSupportedError),
    (errors.DataError, DataError),
    (errors.MissingDependencyError, InterfaceError),
    (errors.RequestError, ProgrammingError),
    (errors.InternalError, InternalError),
    (errors.DaiError, OperationalError),
)


def of(error: errors.DaiError) -> Error:
    """The exception of PEP 249 for an error of the service."""
    sqlstate = error.extra.get("sqlstate")
    kind = _BY_SQLSTATE.get(str(sqlstate)[:2]) if isinstance(error, errors.StatementError) else None
    kind = kind or next(kind for known, kind in _BY_KIND if isinstance(error, known))
    text = "\n".join(line for line in str(error).split("\n") if not line.startswith("Activity: "))
    translation = kind(text)  # the activities of our documents say nothing to the caller
    translation.code, translation.sqlstate = error.code, sqlstate
    return translation


@contextmanager
def translated() -> Iterator[None]:
    """Errors of the service leave the block as exceptions of PEP 249."""
    try:
        yield
    except errors.DaiError as error:
        raise of(error) from error
