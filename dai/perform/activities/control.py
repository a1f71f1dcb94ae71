"""Control and test: a query that another replica answers where the first does not, and activities that only pass on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from dai.drivers import Driver
from dai.errors import BusyError, DatabaseUnavailableError, LimitError, ParameterError
from dai.perform.activity import (
    ANY,
    Activity,
    Context,
    Element,
    Input,
    Output,
    attribute,
    child,
    input,
    output,
    text,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Block, ByteStream, Stream
from dai.streams.waiting import Condition

WAITED = "milliseconds of waiting"


def _waiting(context: Context, milliseconds: int, what: str) -> None:
    """ParameterError for a negative number, LimitError where the document asks for more than it may wait."""
    most = context.config.limits.wait_seconds
    if milliseconds < 0:
        raise ParameterError(f"{what} must be a number of milliseconds, 0 or more, not {milliseconds}.")
    context.spent[WAITED] += milliseconds
    if context.spent[WAITED] > 1000 * most:
        raise LimitError(
            f"{what} is {milliseconds:,} ms: with that the document may wait for more than the {most:,} seconds "
            "allowed (limits.wait_seconds).",
            hint="Wait for less, or ask the operator of the service for a higher limits.wait_seconds.",
            limit="limits.wait_seconds",
        )


@dataclass(frozen=True, kw_only=True)
class SqlStatement(Element):
    """``value``: the query."""

    value: str = attribute()


@dataclass(frozen=True, kw_only=True)
class SqlResilient(Activity):
    """Runs one query on the database; if that does not answer, on the next replica of the resource.

    The replicas are ``replicas`` of the resource in the configuration. ``timeout``: milliseconds that each has for its
    first rows (0, the default: no limit). After the first rows a lost connection is an error.
    """

    example: ClassVar[str] = """
        <sqlResilient name="statement">
          <sqlStatement value="select id, name from littleblackbook where id = 5"/>
          <timeout>100000</timeout>
          <sqlResilientOutput name="output"/>
        </sqlResilient>"""

    statement: SqlStatement = child("sqlStatement")
    timeout: int = child(default=0)
    result: Output[Stream] = output("sqlResilientOutput")

    def run(self, context: Context) -> Stream:
        _waiting(context, self.timeout, "The timeout")
        primary = context.driver
        last: DatabaseUnavailableError | BusyError | None = None
        for driver in (primary, *primary.replicas):
            try:
                return self._answer(driver, context)
            except (DatabaseUnavailableError, BusyError) as error:
                context.cancellation.check()
                last = error
        assert last is not None
        raise last

    def _answer(self, driver: Driver, context: Context) -> Stream:
        """The rows of one of the databases, the first of them read."""
        attempt = Cancellation(context.cancellation.span)
        late = DatabaseUnavailableError(f"The database gave no rows within {self.timeout} ms.")
        timer = threading.Timer(self.timeout / 1000, attempt.cancel, [late])
        with ExitStack() as stack:
            stack.enter_context(context.cancellation.on_cancel(lambda: attempt.cancel(context.cancellation.cause)))
            if self.timeout:
                timer.start()
                stack.callback(timer.cancel)
            stream = stack.enter_context(driver.query(self.statement.value, cancellation=attempt))
            first = next(stream, None)
            timer.cancel()
            attempt.check()
            resources = stack.pop_all()
        return Stream(stream.schema, _after(first, stream), resources.close)


def _after(first: pa.RecordBatch | None, stream: Stream) -> Iterator[pa.RecordBatch]:
    if first is not None:
        yield first
        yield from stream


@dataclass(frozen=True, kw_only=True)
class EchoInput(Element):
    """The input: it comes ``from`` an output, or is the text of the element."""

    source: Input[ByteStream] | None = input(default=None)
    content: str = text(default="")


@dataclass(frozen=True, kw_only=True)
class Echo(Activity):
    """Passes its input on unchanged."""

    example: ClassVar[str] = """
        <Echo name="echo">
          <input from="document"/>
          <output name="same"/>
        </Echo>"""
    tabular: ClassVar[Literal["like its input"]] = "like its input"
    role: ClassVar[str | None] = ANY

    source: EchoInput = child("input")
    result: Output[ByteStream] = output("output")

    def run(self, context: Context) -> ByteStream:
        if self.source.source is None:
            return ByteStream("text/plain; charset=utf-8", [Block(self.source.content.encode(), 1)])
        return context.bytes(self.source.source)


@dataclass(frozen=True, kw_only=True)
class Sleep(Activity):
    """Waits for ``sleepTime`` milliseconds, then passes its input on, if it has one.

    Without an output it ends after the wait; its document then runs as a job.
    """

    example: ClassVar[str] = """
        <Sleep name="sleep">
          <sleepTime>10</sleepTime>
          <input from="document"/>
          <output name="later"/>
        </Sleep>"""
    tabular: ClassVar[Literal["no"]] = "no"
    role: ClassVar[str | None] = ANY

    milliseconds: int = child("sleepTime")
    source: Input[ByteStream] | None = input("input", default=None)
    result: Output[ByteStream] | None = output("output", default=None)

    def run(self, context: Context) -> ByteStream | None:
        _waiting(context, self.milliseconds, "sleepTime")
        source = context.bytes(self.source) if self.source else ByteStream("text/plain", ())

        def blocks() -> Iterator[Block]:
            waiting = Condition()
            with waiting:
                waiting.wait_for(lambda: context.cancellation.check(), context.cancellation, self.milliseconds / 1000)
            yield from source

        if self.result is not None:
            return ByteStream(source.media_type, blocks(), source.close)
        with source:
            for _ in blocks():
                continue
        return None


@dataclass(frozen=True, kw_only=True)
class Counter(Activity):
    """Reads its input to the end and counts it: ``<counter blocks="…" rows="…" bytes="…"/>``."""

    example: ClassVar[str] = """
        <Counter name="count">
          <input from="document"/>
          <output name="counts"/>
        </Counter>"""
    tabular: ClassVar[Literal["no"]] = "no"
    role: ClassVar[str | None] = ANY

    source: Input[ByteStream] = input("input")
    result: Output[ByteStream] = output("output")

    def run(self, context: Context) -> ByteStream:
        source = context.bytes(self.source)

        def blocks() -> Iterator[Block]:
            number = rows = size = 0
            for block in source:
                number, rows, size = number + 1, rows + block.rows, size + len(block)
            yield Block(f'<counter blocks="{number}" rows="{rows}" bytes="{size}"/>'.encode(), 0)

        return ByteStream("application/xml", blocks(), source.close)
