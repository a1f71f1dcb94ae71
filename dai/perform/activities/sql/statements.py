"""Statements: query, update, stored procedure."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from xml.sax.saxutils import escape

import pyarrow as pa

from dai.drivers import CallResult
from dai.drivers.sql.lexer import bind_markers
from dai.drivers.sql.parameters import names_in
from dai.drivers.sql.query_tables import MOST_BYTES
from dai.drivers.sql.suggestions import at_syntax_error, numbered_parameter, other_parameter, unfit_quotes
from dai.drivers.sql.syntax import Syntax
from dai.drivers.statements import statement
from dai.errors import DataError, EncodingError, LimitError, ParameterError, StatementError
from dai.formats import format_named
from dai.formats.values.numbers import converted
from dai.perform.activities.sql.parameters import (
    SqlParameter,
    arranged,
    constants,
    in_order,
    parameter_rows,
    placed_rows,
)
from dai.perform.activity import (
    FRAGMENT,
    Activity,
    Context,
    Element,
    Input,
    Output,
    attribute,
    child,
    input,
    output,
)
from dai.streams.limited import limited
from dai.streams.stream import Block, ByteStream, Stream, size_of

NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, kw_only=True)
class QueryTable(Element):
    """Tuples that come ``from`` an output, as a table called ``name`` that this query alone sees. It needs only the
    right to read."""

    name: str = attribute()
    source: Input[Stream] | None = input(default=None)
    value: Any = None

    def read(self, context: Context) -> pa.Table:
        """All of it. LimitError where it is too large."""
        if self.source is None:
            if self.value is None:
                raise ParameterError(
                    f"The table {self.name!r} has no rows.", hint="Name the output that it reads: from."
                )
            return self.value
        batches, size = [], 0
        with context.tuples(self.source) as stream:
            for batch in stream:
                batches.append(batch)
                size += size_of(batch)
                if size > MOST_BYTES:
                    raise LimitError(
                        f"The table {self.name!r} has more than {MOST_BYTES:,} bytes.",
                        hint="Load it with sqlBulkLoadRowSet.",
                    )
            return pa.Table.from_batches(batches, stream.schema)


@dataclass(frozen=True, kw_only=True)
class SqlQueryStatement(Activity):
    """Runs one query and streams its tuples.

    If a parameter comes from an output, the query runs once for each of its tuples, and the results follow each
    other. A statement that is no query is refused. ``webRowSetStream`` may be an end point; ``resultStream`` (of the
    document format of 2005/10) must be the input of another activity. A ``table`` can be joined like any other table;
    in a query that has one, ``?`` is always a parameter, and ``??`` is the operator ``?``.
    """

    example: ClassVar[str] = """
        <sqlQueryStatement name="statement">
          <sqlParameter position="1" type="integer">10</sqlParameter>
          <expression>select id, name from littleblackbook where id &lt; ? order by id</expression>
          <webRowSetStream name="output"/>
        </sqlQueryStatement>"""
    raw: ClassVar[frozenset[str]] = frozenset({"resultStream"})

    parameters: tuple[SqlParameter, ...] = child("sqlParameter", default=())
    tables: tuple[QueryTable, ...] = child("table", default=())
    expression: str = child()
    result: Output[Stream] = output("webRowSetStream", "resultStream")
    limit: int | None = None
    """Rows at most; not of documents, which have Head. With more the query fails, unless they are to ``truncate``."""
    truncate: bool = False
    numeric: str | None = None
    """What decimal numbers are (``formats.values.numbers``); not of documents either."""

    def run(self, context: Context) -> Stream:
        meant = context.driver.meant(self.expression, [each.name for each in self.tables])
        stream = self._run(context)
        if meant is not None:
            stream.schema = meant(stream.schema)
        stream = converted(stream, self.numeric)
        if self.limit is None:
            return stream
        return limited(stream, self.limit, truncate=self.truncate, scratch=context.scratch)

    def _run(self, context: Context) -> Stream:
        names = [each.name for each in self.tables]
        if len(set(names)) < len(names):
            raise ParameterError("Two of the tables have the same name.")
        query_tables = {each.name: each.read(context) for each in self.tables}
        tables: dict[str, Any] = {"tables": query_tables} if query_tables else {}
        driver, parameters = context.driver, arranged(self.parameters)
        rows = parameter_rows(parameters, context)
        if rows is None:
            query = driver.placed(self.expression, constants(parameters))
            with _explained(self.expression, parameters, driver.syntax), query.translating():
                return driver.query(query.sql, query.values, cancellation=context.cancellation, **tables)
        query, rows = placed_rows(driver, self.expression, parameters, rows)
        first = next(rows, None)
        # without any values the query is only asked for its columns
        values = list(first) if first is not None else [None] * len(query.values)
        with query.translating():
            stream = driver.query(query.sql, values, cancellation=context.cancellation, **tables)
        if first is None:
            stream.close()
            return Stream(stream.schema, ())
        return Stream(stream.schema, self._each(stream, query.sql, rows, context, tables), stream.close)

    def _each(
        self, stream: Stream, sql: str, rows: Iterator[tuple[Any, ...]], context: Context, tables: dict[str, Any]
    ) -> Iterator[Any]:
        yield from stream
        for row in rows:
            with context.driver.query(sql, row, cancellation=context.cancellation, **tables) as following:
                yield from _conformed(following, stream.schema)


@contextmanager
def _explained(sql: str, values: Sequence[Any], syntax: Syntax) -> Iterator[None]:
    """A refused statement with what to write instead. Where no values are given a ``?`` is the database's own, which
    may have no such thing."""
    try:
        yield
    except ParameterError as error:
        if not values and (names := names_in(sql, syntax)):
            name = names[0][1:]
            raise ParameterError(
                f"The parameter {names[0]} has no value.",
                hint=f"Give it: query(…, {name}=…) in Python, -p {name}=… on the command line, "
                f'parameters {{"{name}": …}} over HTTP.',
            ) from error
        if other := (other_parameter(sql, syntax) if values else None) or numbered_parameter(sql, syntax):
            error.hint = other
        raise
    except StatementError as error:
        more: str | None = None
        if not values and bind_markers(sql, "qmark", syntax).count:
            more = (
                "If ? stands for a value, give one for each, in order (in a perform document: one sqlParameter each)."
            )
        elif not values and (names := names_in(sql, syntax)):
            more = f"If {names[0]} stands for a value, give it: query(…, {names[0][1:]}=…)."
        elif (other := other_parameter(sql, syntax) or numbered_parameter(sql, syntax)) is not None:
            more = other
        elif error.position is not None and "syntax" in error.detail.lower() and not error.hint:
            more = at_syntax_error(sql, error.position, syntax)
        more = more or unfit_quotes(sql, syntax)
        if more:
            error.hint = f"{error.hint}\n{more}" if error.hint else more
        raise


def _conformed(following: Stream, schema: pa.Schema) -> Stream:
    """The tuples with the types that the first execution had; they may differ where a database gives each value its
    own type."""
    if following.schema.equals(schema):
        return following

    def conform(batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return pa.RecordBatch.from_arrays(
                [column.cast(field.type) for column, field in zip(batch.columns, schema, strict=True)], schema=schema
            )
        except (pa.ArrowException, ValueError) as error:
            raise DataError(
                "The query returned other column types for later parameters than for the first ones.",
                hint="Cast the columns of the query.",
            ) from error

    return following.map(conform, schema)


def counted(count: Callable[[], int], more: str = "") -> ByteStream:
    """``<resultStream updateCount="N"/>``, the work being done when it is pulled."""

    def blocks() -> Iterator[Block]:
        yield Block(f'<resultStream updateCount="{count()}"{more}/>'.encode(), 0)

    return ByteStream(FRAGMENT, blocks())


@dataclass(frozen=True, kw_only=True)
class SqlUpdateStatement(Activity):
    """Runs a statement that changes data; the result is the number of rows changed.

    If a parameter comes from an output, the statement runs once for each of its tuples, all in one transaction, and
    the result is the sum.
    """

    example: ClassVar[str] = """
        <sqlUpdateStatement name="update">
          <sqlParameter position="1">07000 000001</sqlParameter>
          <expression>update littleblackbook set phone = ? where id = 1</expression>
          <resultStream name="count"/>
        </sqlUpdateStatement>"""
    tabular: ClassVar[Literal["no"]] = "no"
    changes: ClassVar[bool] = True

    parameters: tuple[SqlParameter, ...] = child("sqlParameter", default=())
    expression: str = child()
    result: Output[ByteStream] = output("resultStream")

    def run(self, context: Context) -> ByteStream:
        driver, parameters = context.driver, arranged(self.parameters)
        rows = parameter_rows(parameters, context)
        if rows is None:
            change = driver.placed(self.expression, constants(parameters))
            rows = iter([tuple(change.values)]) if change.values else None
        else:
            change, rows = placed_rows(driver, self.expression, parameters, rows)

        def changed() -> int:
            with _explained(self.expression, parameters, driver.syntax), change.translating():
                return driver.update(change.sql, rows, cancellation=context.cancellation)

        return counted(changed)


@dataclass(frozen=True, kw_only=True)
class StoredProcedure(Element):
    """The procedure's name, with its schema if it needs one."""

    name: str = attribute()


@dataclass(frozen=True, kw_only=True)
class SqlStoredProcedure(Activity):
    """Calls a stored procedure; its transaction is committed after the whole result has been read.

    A single result set without out parameters is a result like a query's. Otherwise the result is XML: a
    ``<resultStream>`` with each out parameter as ``<parameter position="…">`` and each result set as a WebRowSet.
    """

    example: ClassVar[str] = """
        <sqlStoredProcedure name="call">
          <storedProcedure name="people_in"/>
          <sqlParameter position="1">Southampton</sqlParameter>
          <resultStream name="people"/>
        </sqlStoredProcedure>"""
    changes: ClassVar[bool] = True

    procedure: StoredProcedure = child("storedProcedure")
    parameters: tuple[SqlParameter, ...] = child("sqlParameter", default=())
    result: Output[Stream] = output("resultStream")

    def run(self, context: Context) -> Stream | ByteStream:
        values = [(each.mode, None if each.mode == "out" else each.constant()) for each in in_order(self.parameters)]
        calling = _called(context, self.procedure.name, values)
        result = calling.__enter__()
        transaction = _Once(calling)
        context.closing(transaction)
        if len(result.results) == 1 and not result.out:
            (only,) = result.results
            return Stream(only.schema, transaction.around(only), transaction.close)
        return ByteStream(
            FRAGMENT, enclosed("resultStream", transaction.around(_call_document(result))), transaction.close
        )


@contextmanager
def _called(context: Context, procedure: str, values: Sequence[tuple[str, Any]]) -> Iterator[CallResult]:
    driver = context.driver
    with (
        statement(context.cancellation, driver, "CALL") as cancellation,
        driver.call(procedure, values, cancellation=cancellation) as result,
    ):
        yield result


class _Once:
    """A context manager left once: well when the items are all read, rolled back when they were not."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager: AbstractContextManager[Any] | None = manager

    def around(self, items: Iterator[Any]) -> Iterator[Any]:
        yield from items
        if self._manager is not None:
            manager, self._manager = self._manager, None
            manager.__exit__(None, None, None)

    def close(self) -> None:
        if self._manager is not None:
            manager, self._manager = self._manager, None
            abandoned = GeneratorExit()
            manager.__exit__(GeneratorExit, abandoned, None)


def _call_document(result: CallResult) -> Iterator[Block]:
    for position, value in result.out.items():
        if value is None:
            content = "<null/>"
        elif isinstance(value, bytes):
            content = base64.b64encode(value).decode()
        elif (match := NOT_XML.search(str(value))) is not None:
            raise EncodingError(
                f"The out parameter {position} holds the character U+{ord(match[0]):04X}, which XML cannot carry."
            )
        else:
            content = escape(str(value), {"\r": "&#13;"})
        yield Block(f'<parameter position="{position}">{content}</parameter>'.encode(), 0)
    for stream in result.results:
        yield from embedded(stream)


def enclosed(start: str, content: Iterable[Block]) -> Iterator[Block]:
    """The element ``<start>`` around ``content``; it is closed, too, when that fails half-way."""
    end = Block(f"</{start.split()[0]}>".encode(), 0)
    yield Block(f"<{start}>".encode(), 0)
    try:
        yield from content
    except Exception:
        yield end
        raise
    yield end


def embedded(stream: Stream) -> Iterator[Block]:
    """The stream as a WebRowSet inside another document: without its XML declaration, and closed when it fails."""
    begun = False
    try:
        for block in format_named("webrowset").encode(stream):
            data = bytes(memoryview(block.data))
            if not begun and data.startswith(b"<?xml"):
                data = data[data.index(b"?>") + 2 :].lstrip()
            begun = True
            yield Block(data, block.rows)
    except Exception:
        if begun:
            yield Block(b"</data></webRowSet>", 0)
        raise
