"""Tuples to text: WebRowSet, CSV, Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from dai.formats import format_named
from dai.perform.activity import Activity, Context, Input, Output, attribute, child, input, output
from dai.streams.stream import ByteStream, Encoded, Stream


@dataclass(frozen=True, kw_only=True)
class SqlResultsToXML(Activity):
    """Writes tuples as a WebRowSet document (JSR 114).

    ``invalidCharacters``: a character that XML does not allow is an error (``refuse``, the default), or becomes U+FFFD.
    """

    example: ClassVar[str] = """
        <sqlResultsToXML name="toXML">
          <resultSet from="tuples"/>
          <webRowSet name="document"/>
        </sqlResultsToXML>"""
    tabular: ClassVar[Literal["yes"]] = "yes"

    result_set: Input[Stream] = input("resultSet")
    document: Output[ByteStream] = output("webRowSet")
    invalid: Literal["refuse", "replace"] = attribute("invalidCharacters", default="refuse")

    def run(self, context: Context) -> ByteStream:
        options = {"on_invalid": "replace"} if self.invalid == "replace" else {}
        return Encoded(context.tuples(self.result_set), format_named("webrowset"), options=options)


@dataclass(frozen=True, kw_only=True)
class SqlResultsToCSV(Activity):
    """Writes tuples as CSV (RFC 4180), with a line of column names unless ``includeHeader`` is false."""

    example: ClassVar[str] = """
        <sqlResultsToCSV name="toCSV">
          <resultSet from="tuples"/>
          <includeHeader>true</includeHeader>
          <csv name="document"/>
        </sqlResultsToCSV>"""
    tabular: ClassVar[Literal["yes"]] = "yes"

    result_set: Input[Stream] = input("resultSet")
    include_header: bool = child("includeHeader", default=True)
    document: Output[ByteStream] = output("csv")

    def run(self, context: Context) -> ByteStream:
        options = {"includeHeader": self.include_header}
        return Encoded(context.tuples(self.result_set), format_named("csv"), options=options)


@dataclass(frozen=True, kw_only=True)
class SqlResultsToArrow(Activity):
    """Writes tuples as an Arrow IPC stream; ``compression`` (default ``none``) compresses its buffers."""

    example: ClassVar[str] = """
        <sqlResultsToArrow name="toArrow">
          <resultSet from="tuples"/>
          <arrow name="document"/>
        </sqlResultsToArrow>"""
    tabular: ClassVar[Literal["yes"]] = "yes"

    result_set: Input[Stream] = input("resultSet")
    document: Output[ByteStream] = output("arrow")
    compression: Literal["none", "zstd", "lz4"] = attribute(default="none")

    def run(self, context: Context) -> ByteStream:
        options = {} if self.compression == "none" else {"compression": self.compression}
        return Encoded(context.tuples(self.result_set), format_named("arrow"), options=options)
