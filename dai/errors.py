"""Every error that is raised on purpose.

::

    DaiError                    code                    HTTP status
    ├─ RequestError             bad-request             400   a request that fails again when it is retried
    │  ├─ DocumentError         invalid-document        400   a perform document, with line and element
    │  ├─ StatementError        sql-error               400   the database refused the SQL; a position where it says one
    │  │  └─ NotAQueryError     not-a-query             400   not a query, where only a query is allowed
    │  ├─ ParameterError        bad-parameter           400   a value that does not fit its place
    │  ├─ DataError             bad-data                400   data that cannot be read, converted or written
    │  │  └─ EncodingError      cannot-encode           400   a value the format cannot carry, with column and row
    │  ├─ ConfigurationError    bad-configuration       500   found at start, never because of a request
    │  └─ MissingDependencyError  missing-dependency    500   an optional package is not installed
    ├─ UnauthenticatedError     unauthenticated         401   the caller is not identified
    ├─ DeniedError              denied                  403
    ├─ NotFoundError            not-found               404
    ├─ MethodError              method-not-allowed      405
    ├─ NotAcceptableError       not-acceptable          406
    ├─ SlowRequestError         request-timeout         408   a request did not arrive within the configured time
    ├─ ConflictError            conflict                409
    ├─ GoneError                gone                    410   a block that was acknowledged, a result destroyed
    ├─ PreconditionError        precondition-failed     412   what If-Match names was replaced meanwhile
    ├─ TooLargeError            too-large               413
    │  └─ HeadTooLargeError     head-too-large          431   the request line and the headers
    ├─ UnsupportedMediaTypeError  unsupported-media-type  415
    ├─ RangeError               bad-range               416   a byte range outside of a result
    ├─ LimitError               limit-exceeded          422   a configured limit on rows, bytes or seconds was reached
    ├─ PreconditionRequiredError  precondition-required  428   a request that replaces must say what
    ├─ BackPressureError        back-pressure           429   a reader is behind; with retry_after seconds
    ├─ QuotaError               quota-exceeded          429   the caller's share is used up; with retry_after seconds
    ├─ BusyError                busy                    503   with retry_after seconds
    ├─ CancelledError           cancelled               499   somebody asked for the work to stop
    ├─ ClosedError              stream-closed           500   another activity's failure closed this: never a cause
    ├─ DatabaseUnavailableError database-unavailable    503   no connection, or it was lost half-way
    ├─ TruncatedError           truncated               502   a transfer ended before its end was seen (client side)
    ├─ UnreachableError         unreachable             504   no service answers at the address (client side)
    └─ InternalError            internal                500   anything unforeseen: only a correlation id leaves the
    server

A foreign exception is translated once, at the boundary where it arises (a driver, a format, the HTTP client), with
``raise … from``. The stable ``code`` is the ``type`` of an RFC 9457 problem document and the ``error@id`` of a
response.
"""

from __future__ import annotations

import linecache
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

_OURS = frozenset({"dai", "dqp"})
_BETWEEN = frozenset({"IPython", "ipykernel", "pandas", "sqlalchemy"})
"""Packages whose lines are not shown to the caller."""


DETAIL = 4000
"""Characters of a text in a problem document: a message may repeat a name of megabytes."""


class DaiError(Exception):
    """Base of the tree.

    ``detail`` says what and where, ``hint`` what to try; an ``excerpt`` among ``extra`` shows the place. All may leave
    the server: they never hold a path, a secret, a host of ours or a stack.
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str = "", *, hint: str | None = None, **extra: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.hint = hint
        self.extra = extra

    def __str__(self) -> str:
        parts = (self.detail or self.title, self.extra.get("excerpt"), self.hint)
        return "\n".join(part for part in parts if part)

    def _render_traceback_(self) -> list[str]:
        """The traceback in a notebook: the caller's own lines and the message, not the library's lines."""
        return [*own_lines(self), f"{type(self).__name__}: {self}"]

    def with_commits(self, activities: Sequence[str], counts: Mapping[str, int] | None = None) -> Self:
        """Says, once, which activities were committed all the same: in ``hint`` and ``extra["committed"]``; ``counts``:
        the rows they changed, by end point, in ``extra["update_counts"]``."""
        if activities and "committed" not in self.extra:
            self.extra["committed"] = list(activities)
            note = f"These activities were committed before the failure, and are not undone: {', '.join(activities)}."
            if counts:
                self.extra["update_counts"] = dict(counts)
                note += f" Rows changed: {', '.join(f'{name} {count:,}' for name, count in counts.items())}."
            self.hint = f"{self.hint}\n{note}" if self.hint else note
        return self

    def problem(self, instance: str | None = None) -> dict[str, Any]:
        """The RFC 9457 problem document; members without a value are left out."""
        members = {
            "type": self.code,
            "title": self.title,
            "status": self.status,
            "detail": self.detail or None,
            "hint": self.hint,
            "instance": instance,
            **self.extra,
        }
        return {name: shortened(value, DETAIL) for name, value in members.items() if value is not None}


def code_of(error: BaseException) -> str:
    """The code of an error; of a foreign one its class."""
    return error.code if isinstance(error, DaiError) else type(error).__name__


def shortened(value: Any, most: int) -> Any:
    """A text cut to so many characters; any other value unchanged."""
    return f"{value[:most]}…" if isinstance(value, str) and len(value) > most else value


def own_lines(error: BaseException) -> list[str]:
    """The lines of the caller's own code, on the way to the library, in which an error struck."""
    shown: list[str] = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package in _OURS:
            break
        name = frame.f_code.co_filename
        if package not in _BETWEEN and not name.startswith("<sqlalchemy"):
            text = linecache.getline(name, line, frame.f_globals).strip()
            shown.append(f"{'cell' if 'ipykernel' in name or 'ipython' in name else name}, line {line}: {text}")
    return shown


class RequestError(DaiError):
    code, status, title = "bad-request", 400, "Bad request"


class DocumentError(RequestError):
    """A perform document that is refused before anything runs. ``line`` counts from 1."""

    code, status, title = "invalid-document", 400, "Invalid perform document"

    def __init__(
        self,
        detail: str,
        *,
        line: int | None = None,
        element: str | None = None,
        expected: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(detail, hint=hint, line=line, element=element, expected=expected)
        self.line, self.element, self.expected = line, element, expected

    def __str__(self) -> str:
        place = ", ".join(
            text
            for text, known in (
                (f"line {self.line}", self.line),
                (f"element {self.element}", self.element),
                (f"expected: {self.expected}", self.expected),
            )
            if known is not None
        )
        return "\n".join(part for part in (self.detail or self.title, place, self.hint) if part)


class StatementError(RequestError):
    """The database refused a statement.

    ``position`` is the 1-based character offset into the SQL the caller sent, where the database says one;
    ``sqlstate`` the five characters of SQL:2016 part 2, where it has them. The caller's own SQL is quoted with a caret.
    """

    code, status, title = "sql-error", 400, "The database refused the statement"

    def __init__(
        self,
        detail: str,
        *,
        sql: str | None = None,
        position: int | None = None,
        sqlstate: str | None = None,
        hint: str | None = None,
    ) -> None:
        marked = caret(sql, position) if sql and position else None
        super().__init__(detail, hint=hint, position=position, sqlstate=sqlstate, excerpt=marked)
        self.position, self.sqlstate = position, sqlstate

    def of(self, sql: str) -> Self:
        """The same error in another text, in which the position is the same."""
        return type(self)(self.detail, sql=sql, position=self.position, sqlstate=self.sqlstate, hint=self.hint)


class NotAQueryError(StatementError):
    code, title = "not-a-query", "Not a query"


class ParameterError(RequestError):
    code, title = "bad-parameter", "Bad parameter"


class DataError(RequestError):
    code, title = "bad-data", "Bad data"


class EncodingError(DataError):
    """A value that the chosen format cannot carry; names its column and its row (from 1)."""

    code, title = "cannot-encode", "The format cannot carry a value"

    def __init__(
        self, detail: str, *, column: str | None = None, row: int | None = None, hint: str | None = None
    ) -> None:
        super().__init__(detail, hint=hint, column=column, row=row)


class ConfigurationError(RequestError):
    code, status, title = "bad-configuration", 500, "Bad configuration"


class MissingDependencyError(RequestError):
    code, status, title = "missing-dependency", 500, "An optional package is not installed"


class UnauthenticatedError(DaiError):
    code, status, title = "unauthenticated", 401, "Not identified"


class DeniedError(DaiError):
    code, status, title = "denied", 403, "Denied"


class NotFoundError(DaiError):
    code, status, title = "not-found", 404, "Not found"


class MethodError(DaiError):
    code, status, title = "method-not-allowed", 405, "Method not allowed"


class NotAcceptableError(DaiError):
    code, status, title = "not-acceptable", 406, "No acceptable representation"


class SlowRequestError(DaiError):
    code, status, title = "request-timeout", 408, "The request took too long to arrive"


class ConflictError(DaiError):
    code, status, title = "conflict", 409, "Conflict"


class GoneError(DaiError):
    code, status, title = "gone", 410, "Gone"


class PreconditionError(DaiError):
    code, status, title = "precondition-failed", 412, "Precondition failed"


class TooLargeError(DaiError):
    code, status, title = "too-large", 413, "Too large"


class HeadTooLargeError(TooLargeError):
    code, status, title = "head-too-large", 431, "The head of the request is too large"


class UnsupportedMediaTypeError(DaiError):
    code, status, title = "unsupported-media-type", 415, "Unsupported media type"


class RangeError(DaiError):
    code, status, title = "bad-range", 416, "Range not satisfiable"


class LimitError(DaiError):
    code, status, title = "limit-exceeded", 422, "A limit was reached"


class PreconditionRequiredError(DaiError):
    code, status, title = "precondition-required", 428, "Precondition required"


class BackPressureError(DaiError):
    """The reader of a stream is behind; the same block may be sent again after ``retry_after`` seconds."""

    code, status, title = "back-pressure", 429, "The reader is behind"

    def __init__(self, detail: str, *, retry_after: int = 1, hint: str | None = None) -> None:
        super().__init__(detail, hint=hint, retry_after=retry_after)
        self.retry_after = retry_after


class BusyError(DaiError):
    """The service does all it may at once; the same request may be sent again after ``retry_after`` seconds."""

    code, status, title = "busy", 503, "Busy"

    def __init__(self, detail: str, *, retry_after: int = 1, hint: str | None = None, **extra: Any) -> None:
        super().__init__(detail, hint=hint, retry_after=retry_after, **extra)
        self.retry_after = retry_after


class QuotaError(DaiError):
    """The caller has used up its share; the same request may be sent again after ``retry_after`` seconds."""

    code, status, title = "quota-exceeded", 429, "Your quota is used up"

    def __init__(self, detail: str, *, retry_after: int = 30, hint: str | None = None, **extra: Any) -> None:
        super().__init__(detail, hint=hint, retry_after=retry_after, **extra)
        self.retry_after = retry_after


class CancelledError(DaiError):
    code, status, title = "cancelled", 499, "Cancelled"


class ClosedError(DaiError):
    code, title = "stream-closed", "The stream was closed because a connected activity failed"


class DatabaseUnavailableError(DaiError):
    code, status, title = "database-unavailable", 503, "The database cannot be reached"


class TruncatedError(DaiError):
    code, status, title = "truncated", 502, "The transfer ended before the result did"


class UnreachableError(DaiError):
    code, status, title = "unreachable", 504, "No service answers"


class InternalError(DaiError):
    pass


def of_memory(error: BaseException) -> LimitError | None:
    """The LimitError for an error that says that memory was refused, also for the stack of a thread; None for any
    other."""
    if not isinstance(error, MemoryError) and not str(error).startswith("can't start new thread"):
        return None
    return LimitError(
        "The request needs more memory than the service has left.",
        hint="Ask for shorter texts and lists, or fewer rows or columns; or ask the operator of the service for "
        "more (limits.memory_bytes).",
        limit="limits.memory_bytes",
    )


def caret(sql: str, position: int, width: int = 100) -> str:
    """The line of ``sql`` that holds the 1-based character ``position``, and a caret below that character."""
    index = min(max(position - 1, 0), len(sql))
    start = sql.rfind("\n", 0, index) + 1
    end = sql.find("\n", index)
    line = sql[start : len(sql) if end < 0 else end]
    column = index - start
    left = max(0, column - width // 2)
    shown = line[left : left + width].replace("\t", " ")
    number = sql.count("\n", 0, index) + 1
    prefix = f"line {number}: "
    return f"{prefix}{shown}\n{' ' * (len(prefix) + column - left)}^"


def _walk(kind: type[DaiError]) -> dict[str, type[DaiError]]:
    kinds = {kind.code: kind} if kind is not DaiError else {}
    for child in kind.__subclasses__():
        for code, below in _walk(child).items():
            kinds.setdefault(code, below)  # a subclass without a code of its own does not stand for its parent's
    return kinds


def by_code(code: str) -> type[DaiError]:
    """The class of a stable error code: what a client raises for a problem document. Unknown codes are DaiError."""
    return _walk(DaiError).get(code, DaiError)
