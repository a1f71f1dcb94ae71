"""Transformations of byte streams."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from dai.errors import DataError, LimitError, ParameterError
from dai.perform.activity import ANY, Activity, Context, Element, Input, Output, attribute, child, input, output, text
from dai.perform.xml.xslt import transformed
from dai.streams.stream import Block, ByteStream


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


@dataclass(frozen=True, kw_only=True)
class Delimiters(Element):
    """``value``: the characters at which the text is split; ``separator``: the text after each token (default:
    none)."""

    value: str = attribute(default=" ")
    separator: str = attribute(default="")


@dataclass(frozen=True, kw_only=True)
class StringTokenizer(Activity):
    """Splits a text (UTF-8) at each of the delimiters (default: a space); each token becomes a string of the output.

    Delimiters that follow one another enclose no token. A token may begin in one block and end in a later one.
    """

    example: ClassVar[str] = """
        <stringTokenizer name="tokenizer">
          <stringBlocksInput from="document"/>
          <delimiters value="&lt;&gt; " separator="&#10;"/>
          <stringTokensOutput name="tokens"/>
        </stringTokenizer>"""
    tabular: ClassVar[Literal["no"]] = "no"
    role: ClassVar[str | None] = ANY

    source: Input[ByteStream] = input("stringBlocksInput")
    delimiters: Delimiters = child(default=Delimiters())
    result: Output[ByteStream] = output("stringTokensOutput")

    def run(self, context: Context) -> ByteStream:
        source = context.bytes(self.source)
        return ByteStream("text/plain; charset=utf-8", self._tokens(source, context.config.limits.block_bytes))

    def _tokens(self, source: ByteStream, most: int) -> Iterator[Block]:
        split = re.compile(f"[{re.escape(self.delimiters.value)}]+" if self.delimiters.value else "(?!)").split
        end = self.delimiters.separator
        decoder, begun, size = codecs.getincrementaldecoder("utf-8")(), [""], 0
        with source:
            for data in _with_end(source):
                try:
                    *tokens, rest = split(decoder.decode(data or b"", final=data is None))
                except UnicodeDecodeError as error:
                    raise DataError("The text to split is not UTF-8.") from error
                if tokens:
                    tokens[0] = "".join((*begun, tokens[0]))
                    begun, size = [], 0
                    for token in tokens:
                        if token:
                            yield Block(f"{token}{end}".encode(), 1)
                begun.append(rest)
                size += len(rest)
                if size > most:
                    raise LimitError(
                        f"A token has more than {most:,} characters.",
                        hint="Use other delimiters.",
                        limit="limits.block_bytes",
                    )
        if last := "".join(begun):
            yield Block(f"{last}{end}".encode(), 1)


def _with_end(source: ByteStream) -> Iterator[bytes | None]:
    for block in source:
        yield bytes(memoryview(block.data))
    yield None


@dataclass(frozen=True, kw_only=True)
class XmlInput(Element):
    """An XML document: it comes ``from`` an output, or is the text of the element."""

    source: Input[ByteStream] | None = input(default=None)
    content: str = text(default="")

    def read(self, context: Context) -> bytes:
        """All of it, up to ``limits.transform_bytes``."""
        if self.source is None:
            return self.content.strip().encode()
        most, size, parts = context.config.limits.transform_bytes, 0, []
        with context.bytes(self.source) as source:
            for block in source:
                size += len(block)
                if size > most:
                    raise LimitError(
                        f"A document to transform has more than {most:,} bytes.", limit="limits.transform_bytes"
                    )
                parts.append(block.data)
        return b"".join(map(memoryview, parts))


@dataclass(frozen=True, kw_only=True)
class XslTransform(Activity):
    """Transforms an XML document by a style sheet (XSLT 1.0 with EXSLT).

    A style sheet reads and writes no file and no address: ``document()``, ``xsl:import``, ``xsl:include`` and
    ``exsl:document`` are refused, as are DTDs. It runs in a process of its own with limits on memory and on the time
    of all style sheets of a document. Eight run at once in a process of the service; others wait up to 30 seconds.
    """

    example: ClassVar[str] = """
        <xslTransform name="transform">
          <inputXSLT><![CDATA[
            <xsl:stylesheet version="1.0" xmlns:xsl="http://www.w3.org/1999/XSL/Transform">
              <xsl:template match="/"><cells><xsl:value-of select="count(//*)"/></cells></xsl:template>
            </xsl:stylesheet>]]></inputXSLT>
          <inputXML from="document"/>
          <output name="transformed"/>
        </xslTransform>"""
    tabular: ClassVar[Literal["no"]] = "no"
    role: ClassVar[str | None] = ANY

    style: XmlInput = child("inputXSLT")
    document: XmlInput = child("inputXML")
    result: Output[ByteStream] = output("output")

    def run(self, context: Context) -> ByteStream:
        def blocks() -> Iterator[Block]:
            style, document = self.style.read(context), self.document.read(context)
            seconds = context.config.limits.transform_seconds
            for data in transformed(style, document, context.cancellation, seconds, context.spent):
                yield Block(data, 0)

        return ByteStream("application/xml", blocks())
