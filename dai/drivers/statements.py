"""The span of a statement (OpenTelemetry's conventions for databases). It has no values, and no SQL unless that is
configured."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

from dai.errors import StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dai.streams.tracing import Span, ending, streamed

Query = TypeVar("Query", bound=Callable[..., Stream])
SYSTEMS = {"postgres": "postgresql"}
"""What a dialect is called there, where not as here."""
OPERATIONS = frozenset(
    "ALTER BEGIN CALL COMMIT COPY CREATE DELETE DESCRIBE DROP EXPLAIN GRANT INSERT LOAD MERGE REPLACE REVOKE SELECT "
    "SHOW TABLE TRUNCATE UPDATE VALUES WITH".split()
)
_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\n]*\n|(?>/\*.*?\*/))*+([a-z]+)", re.IGNORECASE | re.DOTALL)


def begun(span: Span, dialect: str, sql: str) -> Span:
    """The span of a statement, below ``span``."""
    first = _FIRST_WORD.match(sql, 0, 1000)
    operation = first[1].upper() if first is not None else ""
    attributes = {"db.system.name": SYSTEMS.get(dialect, dialect)}
    if operation in OPERATIONS:  # another word may be anything
        attributes["db.operation.name"] = operation
    if span.texts:
        attributes["db.query.text"] = sql
    return span.child(attributes.get("db.operation.name", "statement"), attributes, "client")


@contextmanager
def statement(cancellation: Cancellation, dialect: str, sql: str) -> Iterator[Cancellation]:
    """A block that runs one statement, and the cancellation to run it with."""
    if (above := cancellation.span) is None:
        yield cancellation
        return
    span = begun(above, dialect, sql)
    with ending(span), _state(span):
        yield cancellation.under(span)


def traced(query: Query) -> Query:
    """``Driver.query`` with a span, which ends with the stream."""

    @wraps(query)
    def run(self: Any, sql: str, parameters: Sequence[Any] = (), *, cancellation: Cancellation, **more: Any) -> Stream:
        if (above := cancellation.span) is None:
            return query(self, sql, parameters, cancellation=cancellation, **more)
        span = begun(above, self.dialect, sql)

        def opened() -> Stream:
            with _state(span):
                return query(self, sql, parameters, cancellation=cancellation.under(span), **more)

        return streamed(span, opened)

    return cast(Query, run)


@contextmanager
def _state(span: Span) -> Iterator[None]:
    try:
        yield
    except StatementError as error:
        if error.sqlstate:
            span.set({"db.response.status_code": error.sqlstate})
        raise
