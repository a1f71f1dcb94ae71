"""Delivery between data services: into and from the streams of a session of another one (``[delivery]`` allows it)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from dai.errors import ParameterError
from dai.formats import format_named
from dai.perform.activity import ANY, Activity, Context, Element, Input, Output, attribute, child, input, output, text
from dai.perform.delivery.streams import RemoteStream
from dai.streams.stream import Block, ByteStream, Encoded

PIECE_BYTES = 1 << 20
"""Data that are delivered in full are sent in pieces of about this size."""
MOST_BLOCKS = 1000


def _gathered(blocks: Iterator[Block]) -> Iterator[Block]:
    """The same bytes in blocks of about PIECE_BYTES or more."""
    parts: list[Block] = []
    size = 0
    for block in blocks:
        parts.append(block)
        size += len(block)
        if size >= PIECE_BYTES:
            yield _joined(parts)
            parts, size = [], 0
    if parts:
        yield _joined(parts)


def _joined(parts: list[Block]) -> Block:
    if len(parts) == 1:
        return parts[0]
    return Block(b"".join(memoryview(each.data) for each in parts), sum(each.rows for each in parts))


@dataclass(frozen=True, kw_only=True)
class ToGDT(Element):
    """The URL of the session, ``http://host:port/sessions/ID``; ``streamId``: the name of its inputStream.

    ``mode``: ``block`` keeps the blocks of the input, ``full`` lets the service choose their size. ``resourceName`` is
    accepted for old documents and ignored: a session belongs to no resource.
    """

    stream: str = attribute("streamId")
    resource: str | None = attribute("resourceName", default=None)
    mode: Literal["full", "block"] = attribute(default="full")
    url: str = text()


@dataclass(frozen=True, kw_only=True)
class DeliverToGDT(Activity):
    """Pushes its input into an inputStream of a session of another service that the operator allows.

    Tuples travel as Arrow if all readers of the stream take tuples, otherwise as WebRowSet. The activity ends when the
    reader has taken all; if it fails, the reader gets an error.
    """

    example: ClassVar[str] = """
        <deliverToGDT name="delivery">
          <fromLocal from="document"/>
          <toGDT streamId="upload" mode="block">http://127.0.0.1:8080/sessions/ID</toGDT>
        </deliverToGDT>"""
    role: ClassVar[str | None] = ANY
    changes: ClassVar[bool] = True

    source: Input[ByteStream] = input("fromLocal")
    target: ToGDT = child("toGDT")

    def run(self, context: Context) -> None:
        target = self.target
        source = context.bytes(self.source)
        with RemoteStream(target.url, target.stream, "input", context.config, context.cancellation) as stream, source:
            if isinstance(source, Encoded) and source.format.name == "webrowset":
                arrow = format_named("arrow")
                if arrow.media_type in stream.forms():
                    source = source.recoded(arrow)
            blocks: Iterator[Block] = source
            if target.mode == "full":
                blocks = _gathered(source.pieces() if isinstance(source, Encoded) else source)
            stream.push(blocks, source.media_type)


@dataclass(frozen=True, kw_only=True)
class FromGDT(Element):
    """The URL of the session, ``http://host:port/sessions/ID``; ``streamId``: the name of its outputStream.

    ``numberOfBlocks``: the number of blocks in a request. ``mode`` and ``resourceName`` are accepted for old documents
    and ignored.
    """

    stream: str = attribute("streamId")
    blocks: int = attribute("numberOfBlocks", default=1)
    resource: str | None = attribute("resourceName", default=None)
    mode: Literal["full", "block"] = attribute(default="block")
    url: str = text()


@dataclass(frozen=True, kw_only=True)
class DeliverFromGDT(Activity):
    """Pulls an outputStream of a session of another service that the operator allows.

    If the reader of its output stops, the activity that writes the stream stops, too.
    """

    example: ClassVar[str] = """
        <deliverFromGDT name="delivery">
          <fromGDT streamId="results" numberOfBlocks="5">http://127.0.0.1:8080/sessions/ID</fromGDT>
          <toLocal name="data"/>
        </deliverFromGDT>"""
    role: ClassVar[str | None] = ANY
    tabular: ClassVar[Literal["no"]] = "no"

    source: FromGDT = child("fromGDT")
    result: Output[ByteStream] = output("toLocal")

    def run(self, context: Context) -> ByteStream:
        source = self.source
        if not 1 <= source.blocks <= MOST_BLOCKS:
            raise ParameterError(f"numberOfBlocks must be from 1 to {MOST_BLOCKS}, not {source.blocks}.")
        stream = RemoteStream(source.url, source.stream, "output", context.config, context.cancellation)
        return ByteStream("application/octet-stream", stream.pull(source.blocks), stream.close)
