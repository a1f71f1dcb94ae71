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
from dai.streams.tracing import Span

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


def ended(span: Span, error: BaseException | None) -> None:
    if isinstance(error, StatementError) and error.sqlstate:
        span.set({"db.response.status_code": error.sqlstate})
    span.end(error)


@contextmanager
def statement(cancellation: Cancellation, dialect: str, sql: str) -> Iterator[Cancellation]:
    """A block that runs one statement, and the cancellation to run it with."""
    above = cancellation.span
    if above is None:
        yield cancellation
        return
    span = begun(above, dialect, sql)
    try:
        yield cancellation.under(span)
    except BaseException as error:
        ended(span, error)
        raise
    span.end()


def traced(query: Query) -> Query:
    """``Driver.query`` with a span, which ends with the stream."""

    @wraps(query)
    def run(self: Any, sql: str, parameters: Sequence[Any] = (), *, cancellation: Cancellation, **more: Any) -> Stream:
        above = cancellation.span
        if above is None:
            return query(self, sql, parameters, cancellation=cancellation, **more)
        span = begun(above, self.dialect, sql)
        try:
            stream = query(self, sql, parameters, cancellation=cancellation.under(span), **more)
        except BaseException as error:
            ended(span, error)
            raise
        return span.over(stream)

    return cast(Query, run)
