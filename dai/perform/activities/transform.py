"""Transformations of byte streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from dai.errors import ParameterError
from dai.perform.activity import ANY, Activity, Context, Element, Input, Output, attribute, child, input, output
from dai.streams.stream import ByteStream


@dataclass(frozen=True, kw_only=True)
class Blocksize(Element):
    """``size``: rows, or strings, in each block."""

    size: int = attribute()


@dataclass(frozen=True, kw_only=True)
class BlockAggregator(Activity):
    """Cuts a document into blocks of ``size`` rows (of a result) or strings (of anything else)."""

    example: ClassVar[str] = """
        <blockAggregator name="blocks">
          <input from="document"/>
          <blocksize size="100"/>
          <output name="blocked"/>
        </blockAggregator>"""
    tabular: ClassVar[Literal["like its input"]] = "like its input"
    role: ClassVar[str | None] = ANY

    source: Input[ByteStream] = input("input")
    blocksize: Blocksize = child()
    result: Output[ByteStream] = output("output")

    def run(self, context: Context) -> ByteStream:
        if self.blocksize.size < 1:
            raise ParameterError(f"A block has at least one row, not {self.blocksize.size}.")
        return context.bytes(self.source).reblock(self.blocksize.size)
