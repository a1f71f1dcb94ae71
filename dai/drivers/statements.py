"""The span of a statement (OpenTelemetry's conventions for databases). It has no values, and no SQL unless that is
configured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

from dai.drivers.sql.lexer import keyword
from dai.drivers.sql.syntax import Syntax
from dai.errors import StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dai.streams.tracing import Span, ending, streamed

Query = TypeVar("Query", bound=Callable[..., Stream])
SYSTEMS = {"mssql": "microsoft.sql_server", "oracle": "oracle.db", "postgres": "postgresql"}
"""The name of a dialect's database in OpenTelemetry's conventions, if it is not the name of the dialect."""
OPERATIONS = frozenset(
    "ALTER BEGIN CALL COMMIT COPY CREATE DELETE DESCRIBE DROP EXPLAIN GRANT INSERT LOAD MERGE REPLACE REVOKE SELECT "
    "SHOW TABLE TRUNCATE UPDATE VALUES WITH".split()
)
_LOOKED_AT = 1000
"""Characters of a statement, for its first word."""


class Database(Protocol):
    """The attributes of a span about a driver's database."""

    syntax: Syntax

    @property
    def system(self) -> str: ...


def statement_span(span: Span, database: Database, sql: str) -> Span:
    """The span of a statement, below ``span``."""
    operation = keyword(sql[:_LOOKED_AT], database.syntax)
    attributes = {"db.system.name": database.system}
    if operation in OPERATIONS:  # another word may be anything
        attributes["db.operation.name"] = operation
    if span.texts:
        attributes["db.query.text"] = sql
    return span.child(attributes.get("db.operation.name", "statement"), attributes, "client")


@contextmanager
def statement(cancellation: Cancellation, database: Database, sql: str) -> Iterator[Cancellation]:
    """A block that runs one statement, and the cancellation to run it with."""
    if (above := cancellation.span) is None:
        yield cancellation
        return
    span = statement_span(above, database, sql)
    with ending(span), _state(span):
        yield cancellation.under(span)


def traced(query: Query) -> Query:
    """``Driver.query`` with a span, which ends with the stream."""

    @wraps(query)
    def run(self: Any, sql: str, parameters: Sequence[Any] = (), *, cancellation: Cancellation, **more: Any) -> Stream:
        if (above := cancellation.span) is None:
            return query(self, sql, parameters, cancellation=cancellation, **more)
        span = statement_span(above, self, sql)

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
