"""Activities that keep data: for later readers of the request, and as properties of the resource."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import ClassVar, Literal

import pyarrow as pa

from dai.drivers.published import MOST_BYTES
from dai.errors import DaiError, DataError, LimitError, ParameterError
from dai.perform.activity import ANY, Activity, Context, Element, Input, Output, attribute, child, input, output
from dai.streams.fanout import FanOut
from dai.streams.stream import ByteStream, Stream

ITEMS = pa.schema([pa.field("item", pa.string(), nullable=False)])


@dataclass(frozen=True, kw_only=True)
class DataStore(Activity):
    """Keeps data for later readers: its ``item`` elements as tuples of one column, or its input.

    It reads its input at once, without waiting for its own readers, so it does not delay a query. Data that does not
    fit in memory is kept on disk until the request ends.
    """

    example: ClassVar[str] = """
        <dataStore name="parameters">
          <item>100</item>
          <item>200</item>
          <itemCursor name="values"/>
        </dataStore>"""
    tabular: ClassVar[Literal["like its input"]] = "like its input"
    role: ClassVar[str | None] = ANY

    items: tuple[str, ...] = child("item", default=())
    source: Input[ByteStream] | None = input("input", default=None)
    result: Output[Stream] = output("itemCursor")

    def run(self, context: Context) -> Stream | ByteStream:
        if (self.source is None) == (not self.items):
            raise ParameterError("dataStore needs either items or an input.")
        if self.source is None:
            return Stream(ITEMS, [pa.record_batch([list(self.items)], schema=ITEMS)])
        ours, readers = FanOut(context.bytes(self.source), 2, scratch=context.scratch).branches()
        context.closing(_read_at_once(ours))
        return readers


@contextmanager
def _read_at_once(source: Stream | ByteStream) -> Iterator[None]:
    """Reads the source in a thread. A failure is seen by its other reader."""

    def read() -> None:
        with suppress(DaiError), source:
            for _ in source:
                continue

    thread = threading.Thread(target=read, name="data store")
    thread.start()
    try:
        yield
    finally:
        thread.join()


@dataclass(frozen=True, kw_only=True)
class ResourceProperty(Element):
    """The ``name`` of the property and its namespace ``ns``; ``sessionSpecific``: the name ends with that of the
    session."""

    name: str = attribute()
    namespace: str = attribute("ns", default="")
    session_specific: bool = attribute("sessionSpecific", default=False)


@dataclass(frozen=True, kw_only=True)
class DeliverToResourceProperty(Activity):
    """Publishes its input, a text, as a property of the resource: in ``published`` of ``GET /resources/NAME``.

    All callers who may read the resource can read it, until it is published again or the service ends. It has at most
    1 MiB.
    """

    example: ClassVar[str] = """
        <deliverToResourceProperty name="delivery">
          <input from="document"/>
          <resourceProperty name="latest" ns="http://example.org" sessionSpecific="false"/>
        </deliverToResourceProperty>"""
    role: ClassVar[str | None] = ANY
    changes: ClassVar[bool] = True

    source: Input[ByteStream] = input("input")
    target: ResourceProperty = child("resourceProperty")

    def run(self, context: Context) -> None:
        size, parts = 0, []
        with context.bytes(self.source) as source:
            for block in source:
                size += len(block)
                if size > MOST_BYTES:
                    raise LimitError(f"A property of a resource can have at most {MOST_BYTES:,} bytes.")
                parts.append(bytes(memoryview(block.data)))
        try:
            text = b"".join(parts).decode()
        except UnicodeDecodeError as error:
            raise DataError("A property of a resource must be text (UTF-8).") from error
        target = self.target
        name = f"{{{target.namespace}}}{target.name}" if target.namespace else target.name
        if target.session_specific:
            name += f"-{context.session.id}"
        context.driver.published.put(name, text)
