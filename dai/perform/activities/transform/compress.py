"""Compression of byte streams, with checksums; and back again, within bounds."""

from __future__ import annotations

import gzip
import io
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import zstandard

from dai.errors import DataError, LimitError, ParameterError
from dai.perform.activity import ANY, Activity, Context, Element, Input, Output, attribute, child, input, output, text
from dai.streams.fanout import FanOut
from dai.streams.stream import Block, ByteStream

_BLOCK_BYTES = 1 << 18
_PIECE_BYTES = 1 << 10
_COMMENT_BYTES = 65_535
_NAME_BYTES = 4_096
Checksum = Literal["adler32", "crc32"]
_CHECKSUMS: dict[str, tuple[Callable[[Any, int], int], int]] = {"adler32": (zlib.adler32, 1), "crc32": (zlib.crc32, 0)}


@dataclass(frozen=True, kw_only=True)
class CompressionSettings(Element):
    """``checksum``: the algorithm of the checksum in the metadata; ``level``: from 0 or 1 (fastest) to 9
    (smallest), for zstd to 19."""

    checksum: Checksum = attribute(default="adler32")
    level: int | None = attribute(default=None)

    def level_in(self, least: int, most: int, default: int) -> int:
        if self.level is None:
            return default
        if not least <= self.level <= most:
            raise ParameterError(f"The level must be from {least} to {most}, not {self.level}.")
        return self.level


Mode = Literal["compress", "decompress"]


@dataclass(frozen=True, kw_only=True)
class _Compression(Activity, ABC):
    """The common part of compressions of one stream."""

    tabular: ClassVar[Literal["no"]] = "no"
    role: ClassVar[str | None] = ANY
    levels: ClassVar[tuple[int, int, int]]
    """The least, the most and the default."""
    media_type: ClassVar[str]

    mode: Mode = attribute(default="compress")
    settings: CompressionSettings = child(default=CompressionSettings())
    source: Input[ByteStream] = input("input")
    result: Output[ByteStream] = output("compressedOutput")
    metadata: Output[ByteStream] | None = output("metadataOutput", default=None)

    def run(self, context: Context) -> Any:
        source = context.bytes(self.source)
        level = self.settings.level_in(*self.levels)
        if self.mode == "compress":
            pieces = _compressed(source, self.compressor(level))
        else:
            pieces = _bounded(self.unpacked(source), context)
        return _outputs(self, f"{self.element}Metadata", pieces, source.close, self.media_type, context)

    @abstractmethod
    def compressor(self, level: int) -> Any: ...

    @abstractmethod
    def unpacked(self, source: ByteStream) -> Iterator[bytes]: ...


@dataclass(frozen=True, kw_only=True)
class GzipCompression(_Compression):
    """Compresses a document in the format of gzip, or decompresses it (``mode="decompress"``).

    The metadata are ``<gzipCompressionMetadata><checksum type="…" value="…"/></gzipCompressionMetadata>``: the
    checksum of the output. Decompressed data has at most ``limits.unpacked_bytes``.
    """

    example: ClassVar[str] = """
        <gzipCompression name="compress">
          <settings checksum="crc32"/>
          <input from="document"/>
          <compressedOutput name="compressed"/>
          <metadataOutput name="metadata"/>
        </gzipCompression>"""
    levels: ClassVar[tuple[int, int, int]] = (0, 9, 6)
    media_type: ClassVar[str] = "application/gzip"

    def compressor(self, level: int) -> Any:
        return zlib.compressobj(level, wbits=31)

    def unpacked(self, source: ByteStream) -> Iterator[bytes]:
        with source:
            reader = gzip.GzipFile(fileobj=_Reader(source))
            while data := reader.read(_BLOCK_BYTES):
                yield data


@dataclass(frozen=True, kw_only=True)
class ZstdCompression(_Compression):
    """Compresses a document in the format of Zstandard (RFC 8878), or decompresses it (``mode="decompress"``).

    The metadata are like those of gzipCompression, as ``zstdCompressionMetadata``.
    """

    example: ClassVar[str] = """
        <zstdCompression name="compress">
          <settings checksum="crc32" level="3"/>
          <input from="document"/>
          <compressedOutput name="compressed"/>
          <metadataOutput name="metadata"/>
        </zstdCompression>"""
    levels: ClassVar[tuple[int, int, int]] = (1, 19, 3)
    media_type: ClassVar[str] = "application/zstd"

    def compressor(self, level: int) -> Any:
        return zstandard.ZstdCompressor(level).compressobj()

    def unpacked(self, source: ByteStream) -> Iterator[bytes]:
        """Input goes in by small pieces: none becomes more than some 32 MiB, whatever it holds."""
        unpacker = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        frame, whole = unpacker.decompressobj(), False
        with source:
            reader = _Reader(source)
            while piece := reader.read(_PIECE_BYTES):
                while piece:
                    if whole:
                        frame = unpacker.decompressobj()
                    if data := frame.decompress(piece):
                        yield data
                    whole = frame.eof
                    piece = frame.unused_data if whole else b""
        if not whole:
            raise EOFError


@dataclass(frozen=True, kw_only=True)
class ZipEntry(Element):
    """One file of the archive: its data come ``from`` an output, or are the text of the element. ``name``: by
    default the name of the output, or ``entryN``."""

    name: str | None = attribute(default=None)
    source: Input[ByteStream] | None = input(default=None)
    content: str = text(default="")


@dataclass(frozen=True, kw_only=True)
class ZipArchive(Activity):
    """Puts documents into a ZIP archive, one after the other.

    The metadata are ``<zipArchiveMetadata><checksum type="…" value="…"/></zipArchiveMetadata>``: the checksum of the
    archive.
    """

    example: ClassVar[str] = """
        <zipArchive name="archive">
          <comment>Two files</comment>
          <settings checksum="crc32" level="9"/>
          <zipEntry name="result.xml" from="document"/>
          <zipEntry name="README">Made by a perform document.</zipEntry>
          <archivedOutput name="archived"/>
          <metadataOutput name="metadata"/>
        </zipArchive>"""
    tabular: ClassVar[Literal["no"]] = "no"
    role: ClassVar[str | None] = ANY

    comment: str | None = child(default=None)
    settings: CompressionSettings = child(default=CompressionSettings())
    entries: tuple[ZipEntry, ...] = child("zipEntry")
    result: Output[ByteStream] = output("archivedOutput")
    metadata: Output[ByteStream] | None = output("metadataOutput", "metaDataOutput", default=None)

    def run(self, context: Context) -> Any:
        level = self.settings.level_in(0, 9, 6)
        comment = (self.comment or "").encode()
        if len(comment) > _COMMENT_BYTES:
            raise ParameterError(f"The comment has {len(comment):,} bytes; {_COMMENT_BYTES:,} are allowed.")
        names = [
            each.name or (each.source.link if each.source else f"entry{at}") for at, each in enumerate(self.entries, 1)
        ]
        for name, count in Counter(names).items():
            if count > 1:
                raise ParameterError(f"Two entries have the name {name!r}.")
            if (
                not name.strip("/")
                or not name.isprintable()
                or name[0] == "/"
                or name[-1] == "/"
                or "\\" in name
                or ".." in name.split("/")
                or len(name.encode()) > _NAME_BYTES
            ):
                raise ParameterError(
                    f"{name[:100]!r} cannot be the name of an entry.",
                    hint=f"Use a relative name of at most {_NAME_BYTES:,} bytes.",
                )
        sources = [
            context.bytes(each.source) if each.source else ByteStream("text/plain", [Block(each.content.encode(), 1)])
            for each in self.entries
        ]

        def close() -> None:
            for each in sources:
                each.close()

        pieces = _archived(names, sources, comment, level)
        return _outputs(self, "zipArchiveMetadata", pieces, close, "application/zip", context)


def _archived(names: list[str], sources: list[ByteStream], comment: bytes, level: int) -> Iterator[bytes]:
    written = _Written()
    with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
        archive.comment = comment
        for name, source in zip(names, sources, strict=True):
            with source, archive.open(name, "w", force_zip64=True) as file:
                for block in source:
                    file.write(block.data)
                    if len(written) >= _BLOCK_BYTES:
                        yield written.taken()
    yield written.taken()


class _Written(io.RawIOBase):
    """A file that cannot seek, whose bytes are taken as they are written."""

    def __init__(self) -> None:
        super().__init__()
        self._parts = bytearray()

    def __len__(self) -> int:
        return len(self._parts)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts += data
        return memoryview(data).nbytes

    def taken(self) -> bytes:
        data, self._parts = bytes(self._parts), bytearray()
        return data


def _compressed(source: ByteStream, compressor: Any) -> Iterator[bytes]:
    with source:
        for block in source:
            if data := compressor.compress(block.data):
                yield data
    yield compressor.flush()


def _bounded(pieces: Iterator[bytes], context: Context) -> Iterator[bytes]:
    most = context.config.limits.unpacked_bytes
    size = 0
    while True:
        try:
            data = next(pieces, None)
        except (OSError, EOFError, zlib.error, zstandard.ZstdError) as error:
            raise DataError("The data to decompress are incomplete, damaged, or in another format.") from error
        if data is None:
            return
        size += len(data)
        if size > most:
            raise LimitError(
                f"Decompressed, the data have more than {most:,} bytes.",
                hint="Ask the operator of the service for a higher limits.unpacked_bytes.",
                limit="limits.unpacked_bytes",
            )
        yield data


class _Reader(io.RawIOBase):
    """A byte stream as a file."""

    def __init__(self, source: ByteStream) -> None:
        super().__init__()
        self._source, self._rest = source, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest and (block := next(self._source, None)) is not None:
            self._rest = memoryview(block.data)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


def _outputs(
    activity: _Compression | ZipArchive,
    root: str,
    pieces: Iterator[bytes],
    close: Callable[[], None],
    media_type: str,
    context: Context,
) -> Any:
    """The stream of the pieces, and that of the metadata: if the metadata is read first, the
    pieces are kept for their reader."""
    update, value = _CHECKSUMS[activity.settings.checksum]

    def blocks() -> Iterator[Block]:
        nonlocal value
        for piece in pieces:
            value = update(piece, value)
            yield Block(piece, 0)

    kind = media_type if getattr(activity, "mode", "compress") == "compress" else "application/octet-stream"
    stream = ByteStream(kind, blocks(), close)
    if activity.metadata is None:
        return stream
    fan = FanOut(stream, 1, scratch=context.scratch)

    def metadata() -> Iterator[Block]:
        fan.drain()
        written = f'<checksum type="{activity.settings.checksum}" value="{value}"/>'
        yield Block(f"<{root}>{written}</{root}>".encode(), 0)

    (branch,) = fan.branches()
    return branch, ByteStream("application/xml", metadata())
