"""Files of a resource that is one directory: reading, changing, listing, moving."""

from __future__ import annotations

import base64
import codecs
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Literal

import pyarrow as pa

from dai.drivers.directory.beneath import Beneath, blocks
from dai.drivers.directory.driver import Directory
from dai.errors import DataError, LimitError, ParameterError, RequestError
from dai.perform.activities.files.locate import Finder, Locate
from dai.perform.activities.sql.statements import counted
from dai.perform.activity import Activity, Context, Element, Input, Output, attribute, child, input, output, the_only
from dai.streams.stream import Block, ByteStream, Stream

ROLE = "directory"
_LISTED = 1000


def _files(context: Context) -> Beneath:
    driver = context.driver
    if not isinstance(driver, Directory):
        raise RequestError(
            "This resource is not a directory of files.", hint="GET /resources tells the kind of each resource."
        )
    return driver.files


@dataclass(frozen=True, kw_only=True)
class Portion(Element):
    """``length`` bytes, or lines, from ``offset`` (the first is 0); without ``length``, to the end."""

    offset: int = attribute(default=0)
    length: int | None = attribute(default=None)


@dataclass(frozen=True, kw_only=True)
class FileOutput(Element):
    """``base64encode`` (default ``false``): the bytes are written in base64."""

    result: Output[ByteStream] = output()
    encode: bool = attribute("base64encode", default=False)


@dataclass(frozen=True, kw_only=True)
class FileAccessActivity(Activity):
    """Reads a file: all of it, some of its bytes, or some of its lines.

    A response has the file as text if its beginning is text (UTF-8), otherwise in base64.
    """

    example: ClassVar[str] = """
        <fileAccessActivity name="read">
          <file>notes/first.txt</file>
          <lines offset="1" length="2"/>
          <output name="lines" base64encode="false"/>
        </fileAccessActivity>"""
    role: ClassVar[str | None] = ROLE

    file: str = child()
    bytes: Portion | None = child(default=None)
    lines: Portion | None = child(default=None)
    result: FileOutput = child("output")

    def run(self, context: Context) -> ByteStream:
        if self.bytes is not None and self.lines is not None:
            raise ParameterError("fileAccessActivity can have bytes or lines, not both.")
        portion = self.bytes or self.lines or Portion()
        if portion.offset < 0 or (portion.length or 0) < 0:
            raise ParameterError("An offset and a length must be 0 or more.")
        file = context.closing(_files(context).reading(self.file))
        if self.lines is not None:
            data = _lines(blocks(file), portion.offset, portion.length)
        else:
            data = blocks(file, portion.offset, portion.length)
        if self.result.encode:
            return ByteStream("text/plain", (Block(each, 0) for each in _base64(data)))
        first = next(data, b"")
        kind = "text/plain; charset=utf-8" if _is_text(first) else "application/octet-stream"
        return ByteStream(kind, (Block(each, 0) for each in chain((first,) if first else (), data)))


def _base64(data: Iterator[bytes]) -> Iterator[bytes]:
    rest = b""
    for each in data:
        whole = rest + each
        cut = len(whole) - len(whole) % 3
        rest = whole[cut:]
        yield base64.b64encode(whole[:cut])
    if rest:
        yield base64.b64encode(rest)


def _is_text(data: bytes) -> bool:
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(data)
    except UnicodeDecodeError:
        return False
    return not any(character < " " and character not in "\t\n\r" for character in set(text))


def _lines(data: Iterator[bytes], skip: int, count: int | None) -> Iterator[bytes]:
    """``count`` lines behind the first ``skip``, however long they are."""
    left = count
    for block in data:
        start = 0
        while skip and start < len(block):
            end = _after_lines(block, start, skip)
            skip -= block.count(b"\n", start, end)
            start = end
        if skip or start == len(block):
            continue
        if left is None:
            yield block[start:]
            continue
        end = _after_lines(block, start, left)
        if start < end:
            yield block[start:end]
        left -= block.count(b"\n", start, end)
        if not left:
            return


def _after_lines(block: bytes, start: int, count: int) -> int:
    """Where the line number ``count`` from ``start`` ends, or the block."""
    if block.count(b"\n", start) < count:
        return len(block)
    for _ in range(count):
        start = block.index(b"\n", start) + 1
    return start


@dataclass(frozen=True, kw_only=True)
class Change(Element):
    """The data to write: a ``text``, or the data ``from`` an output."""

    text: str | None = attribute(default=None)
    source: Input[ByteStream] | None = input(default=None)


@dataclass(frozen=True, kw_only=True)
class Deletion(Element):
    """Deletes the located part."""


@dataclass(frozen=True, kw_only=True)
class FileWritingActivity(Activity):
    """Changes a file: inserts, appends, deletes or replaces at the places that ``locate`` finds, and counts them.

    ``insert`` writes before the located part, ``append`` behind it. Without ``locate`` that is the whole file; in an
    offset without a length, ``delete`` and ``replace`` go to the end. ``append`` and ``replace`` without ``locate``
    create a missing file. The file is replaced as a whole at the end: a failure changes nothing.
    """

    example: ClassVar[str] = """
        <fileWritingActivity name="write">
          <file>notes/first.txt</file>
          <locate><regexp>li(n)e</regexp><match>1-2</match></locate>
          <replace text="row"/>
          <output name="places"/>
        </fileWritingActivity>"""
    role: ClassVar[str | None] = ROLE
    tabular: ClassVar[Literal["no"]] = "no"
    changes: ClassVar[bool] = True

    file: str = child()
    locate: Locate | None = child(default=None)
    insert: Change | None = child(default=None)
    append: Change | None = child(default=None)
    delete: Deletion | None = child(default=None)
    replace: Change | None = child(default=None)
    result: Output[ByteStream] = output("output")

    def run(self, context: Context) -> ByteStream:
        operations = {name: getattr(self, name) for name in ("insert", "append", "delete", "replace")}
        name, change = the_only(operations, "fileWritingActivity")
        if isinstance(change, Change) and (change.text is None) == (change.source is None):
            raise ParameterError(f"{name} needs either a text or a from.")
        locate = self.locate or Locate()
        finder = locate.finder(name in ("delete", "replace"))
        if name == "append" and locate.offset is not None and locate.length is None and locate.regexp is None:
            finder = Finder(offset=finder.offset, length=0)
        new = self.locate is None and name in ("append", "replace")
        files = _files(context)
        return counted(partial(self._write, context, files, name, change, locate, finder, new))

    def _write(
        self,
        context: Context,
        files: Beneath,
        name: str,
        change: Change | Deletion,
        locate: Locate,
        finder: Finder,
        new: bool,
    ) -> int:
        limits = context.config.limits
        most = limits.transform_bytes
        written = _content(change, context)
        with files.replacing(self.file, new=new) as (file, writer):
            if not locate.per_line and locate.regexp is None:
                size = os.fstat(file).st_size if file is not None else 0
                place = finder.place(size)
                if place is None:
                    raise DataError(
                        f"The offset {locate.offset} is beyond the end of the file, which has {size:,} bytes."
                    )
                start, end = _replaced(place, name)
                before, after = (blocks(file, 0, start), blocks(file, end)) if file is not None else ((), ())
                for data in chain(before, written, after):
                    context.cancellation.check()
                    writer.write(data)
                return 1
            old = blocks(file) if file is not None else iter(())
            texts = _per_line(old, most) if locate.per_line else iter([(_whole(old, most), b"")])
            content = _whole(written, most)
            count = 0
            for text, ending in texts:
                context.cancellation.check()
                at = 0
                for span in finder.spans(text, context.cancellation.check):
                    if len(content) * (count + 1) > limits.unpacked_bytes:
                        raise LimitError(
                            f"The text written in several places has more than {limits.unpacked_bytes:,} bytes in all.",
                            hint="Write less, or ask the operator of the service for a higher limits.unpacked_bytes.",
                            limit="limits.unpacked_bytes",
                        )
                    start, end = _replaced(span, name)
                    writer.write(text[at:start])
                    writer.write(content)
                    at, count = end, count + 1
                writer.write(text[at:])
                writer.write(ending)
            context.cancellation.check()
            return count


def _replaced(span: tuple[int, int], name: str) -> tuple[int, int]:
    """What the content takes the place of: nothing, before or behind the span, or the span."""
    start, end = span
    return {"insert": (start, start), "append": (end, end)}.get(name, (start, end))


def _content(change: Change | Deletion, context: Context) -> Iterator[bytes]:
    if isinstance(change, Deletion):
        return iter(())
    if change.source is None:
        return iter([(change.text or "").encode()])
    return (bytes(memoryview(block.data)) for block in context.bytes(change.source))


def _whole(data: Iterator[bytes], most: int) -> bytes:
    parts, size = [], 0
    for each in data:
        parts.append(each)
        size += len(each)
        if size > most:
            raise LimitError(
                f"The text searched, or written in several places, has more than {most:,} bytes.",
                hint="Search it perLine, or ask the operator of the service for a higher limits.transform_bytes.",
                limit="limits.transform_bytes",
            )
    return b"".join(parts)


def _per_line(data: Iterator[bytes], most: int) -> Iterator[tuple[bytes, bytes]]:
    """The lines, each without and with its ending."""
    rest = b""
    for each in data:
        *lines, rest = (rest + each).split(b"\n")
        if len(rest) > most:
            raise LimitError(f"A line has more than {most:,} bytes.", limit="limits.transform_bytes")
        for line in lines:
            cut = len(line) - line.endswith(b"\r")
            yield line[:cut], line[cut:] + b"\n"
    if rest:
        yield rest, b""


ENTRIES = pa.schema(
    [
        pa.field("name", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("bytes", pa.int64()),
        pa.field("modified", pa.timestamp("us", "UTC"), nullable=False),
    ]
)


@dataclass(frozen=True, kw_only=True)
class DirectoryAccess(Activity):
    """Lists the files and directories in a directory, in any order; without ``directory``, in the root directory.

    The columns are ``name``, ``kind`` (``file`` or ``directory``), ``bytes`` (of a file) and ``modified``.
    """

    example: ClassVar[str] = """
        <directoryAccess name="list">
          <directory>notes</directory>
          <output name="files"/>
        </directoryAccess>"""
    role: ClassVar[str | None] = ROLE

    directory: str = child(default="")
    result: Output[Stream] = output("output")

    def run(self, context: Context) -> Stream:
        entries = _files(context).entries(self.directory)
        first = next(entries, None)  # what cannot be listed is refused before anything runs
        return Stream(ENTRIES, self._listed(chain(() if first is None else (first,), entries)))

    def _listed(self, entries: Iterator[Any]) -> Iterator[pa.RecordBatch]:
        while some := list(islice(entries, _LISTED)):
            columns = [
                [os.fsencode(each.name).decode(errors="replace") for each in some],
                ["directory" if each.is_directory else "file" for each in some],
                [None if each.is_directory else each.bytes for each in some],
                [int(each.modified * 1e6) for each in some],
            ]
            arrays = [pa.array(values, field.type) for values, field in zip(columns, ENTRIES, strict=True)]
            yield pa.RecordBatch.from_arrays(arrays, schema=ENTRIES)


@dataclass(frozen=True, kw_only=True)
class Way(Element):
    """``from`` one name ``to`` another, which must not exist."""

    source: str = attribute("from")
    target: str = attribute("to")


@dataclass(frozen=True, kw_only=True)
class FileManipulation(Activity):
    """Copies a file, moves or deletes a file or a directory, or creates a directory; one of these.

    Only an empty directory can be deleted. Nothing is overwritten.
    """

    example: ClassVar[str] = """
        <fileManipulation name="copy">
          <copy from="notes/first.txt" to="notes/second.txt"/>
          <output name="done"/>
        </fileManipulation>"""
    role: ClassVar[str | None] = ROLE
    tabular: ClassVar[Literal["no"]] = "no"
    changes: ClassVar[bool] = True

    copy: Way | None = child(default=None)
    move: Way | None = child(default=None)
    delete: str | None = child(default=None)
    mkdir: str | None = child(default=None)
    result: Output[ByteStream] = output("output")

    def run(self, context: Context) -> ByteStream:
        files = _files(context)
        operations = {name: getattr(self, name) for name in ("copy", "move", "delete", "mkdir")}
        name, what = the_only(operations, "fileManipulation")

        def done() -> int:
            if name == "copy":
                files.copy(what.source, what.target, context.cancellation)
            elif name == "move":
                files.move(what.source, what.target)
            elif name == "delete":
                files.delete(what)
            else:
                files.make_directory(what)
            return 1

        return counted(done)
