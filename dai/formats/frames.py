"""Block frames: the rows of a document without its static part, which is sent once as a *context* (decision 43).

A frame is a head and a payload. Numbers are little-endian::

    bytes   what
    4       "DAIB"
    1       version, 1
    1       1: the payload is compressed; 0: it is not; 2: this is no block, but says what was lost; 3: nor is this, but
            ends an answer
    2       bytes of the session's id
    32      the context: SHA-256 of the static part
    8       number of the block in its stream
    4       rows
    4       bytes of the payload
    4       bytes of the static part at the beginning of the payload, which is a whole document then; 0: tuples alone
    4       CRC32C of the head before these 4 bytes, of the session's id and of the payload
    …       the session's id (UTF-8)
    …       the payload

A compressed payload is one zstd frame with the static part as its dictionary (``zstd -D``). No frame needs another one,
so a reader may begin anywhere. Context, payload and the ``tail`` of the format, one after the other, are a document.
A follower of a feed that has lost blocks is told so by a frame without a payload: its number is that of the first one,
its rows are how many there were (0: none, the connection lives). An answer that flows (``Asked.flow``) ends with a
frame whose number is that of the next block; its rows are 1 where there is none, because the stream has ended.
"""

from __future__ import annotations

import base64
import hashlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dai.errors import DataError, NotFoundError, TruncatedError
from dai.formats import Format, format_named, recognised

if TYPE_CHECKING:
    from dai.streams.stream import Block

MEDIA_TYPE = "application/vnd.dai.blocks"
SHA256 = re.compile(r"[0-9a-f]{64}")
_MAGIC, _VERSION = b"DAIB", 1
_LOST, _END = 2, 3
_HEAD = struct.Struct("<4sBBH32sQIII")
_CHECK = struct.Struct("<I")
_BEGIN = _HEAD.size + _CHECK.size
_LEVEL, _FAST_LEVEL, LARGE = 7, 1, 1 << 16
"""Of zstd: on blocks of 100 rows the level 7 needs 50 µs and gives a tenth less than the fastest; for payloads that are
LARGE that would be too long."""
MOST_BYTES = 1 << 30
MOST_STATIC = 1 << 20
"""Bytes of a static part that travels by itself: larger ones stay with their documents."""
MOST_BLOCKS = 1000
"""That are pushed at once."""
_KEPT_BYTES, _KEPT_CHARACTERS = 1 << 16, 1 << 10
"""Of dictionaries that are remembered, and of Accept headers."""


def context_of(static: bytes) -> str:
    """The id of a context: SHA-256 in hexadecimal digits."""
    return hashlib.sha256(static).hexdigest()


def format_of(static: bytes) -> Format:
    """The format of documents that begin with these bytes."""
    return format_named(recognised(static))


def tail_of(static: bytes) -> bytes:
    return format_of(static).tail or b""


@dataclass(frozen=True, slots=True)
class Frame:
    """``payload`` as it travels: ``compressed`` with the static part as dictionary, or a whole document, which begins
    with its ``static`` bytes."""

    context: str
    session: str
    number: int
    rows: int
    payload: bytes | memoryview
    static: int = 0
    compressed: bool = False
    lost: bool = False
    """No block: so many as it has ``rows`` are not there any more, from ``number`` on."""
    end: bool = False
    """No block: an answer has none after those before; ``rows``: nor has the stream."""

    def __bytes__(self) -> bytes:
        return b"".join(self.parts())

    def parts(self) -> tuple[bytes | memoryview, ...]:
        """The bytes of the frame in parts, in order."""
        kind = _LOST if self.lost else _END if self.end else int(self.compressed)
        return _parts(kind, self.context, self.session, self.number, self.rows, self.static, self.payload)


def _parts(
    kind: int, context: str, session: str, number: int, rows: int, static: int, *payload: bytes | memoryview
) -> tuple[bytes | memoryview, ...]:
    name, size = session.encode(), sum(memoryview(each).nbytes for each in payload)
    head = _HEAD.pack(_MAGIC, _VERSION, kind, len(name), bytes.fromhex(context), number, rows, size, static)
    return head, _CHECK.pack(_checksum(head, name, *payload)), name, *payload


def whole_parts(context: str, session: str, number: int, block: Block, static: bytes) -> tuple[bytes | memoryview, ...]:
    """The parts of a frame with the whole document of a block, whose tuples are not copied."""
    parts = static, block.payload, tail_of(static)
    return _parts(0, context, session, number, block.rows, len(static), *parts)


def framed(
    context: str,
    session: str,
    number: int,
    block: Block,
    static: bytes,
    *,
    whole: bool,
    compressed: bool,
) -> Frame:
    """The frame of a block, whose document has that context and ``static`` part: ``whole`` for a reader
    that does not have the context, and so could not decompress with it."""
    rows, payload = block.rows, block.payload
    if whole:
        return Frame(context, session, number, rows, b"".join((static, payload, tail_of(static))), len(static))
    data = _compressed(payload, static) if compressed else payload
    return Frame(context, session, number, rows, data, 0, compressed)


def read(data: bytes | memoryview) -> Iterator[Frame]:
    """The frames of a body, each checked. Raises DataError, TruncatedError."""
    view = memoryview(data).cast("B")
    at = 0
    while at < view.nbytes:
        begin = at + _BEGIN
        if begin > view.nbytes:
            raise TruncatedError("The body ends in the middle of a frame's head.")
        head = view[at : at + _HEAD.size]
        magic, version, kind, length, context, number, rows, size, static = _HEAD.unpack(head)
        if magic != _MAGIC or version != _VERSION:
            raise DataError("This is not a frame that can be read.", hint="Is the service newer than this client?")
        at = begin + length + size
        if at > view.nbytes:
            raise TruncatedError(f"The body ends in the middle of block {number}.")
        # copied once, for the checksum and for whoever decodes it
        session, payload = bytes(view[begin : begin + length]), bytes(view[begin + length : at])
        if _CHECK.unpack_from(view, begin - _CHECK.size)[0] != _checksum(head, session, payload):
            raise DataError(f"Block {number} was damaged on its way: its checksum does not match.")
        if kind > _END or static > size or (static and kind) or (kind >= _LOST and size):
            raise DataError(f"The head of block {number} contradicts itself.")
        try:
            name = session.decode()
        except UnicodeDecodeError as error:
            raise DataError(f"Block {number} has no readable session.") from error
        yield Frame(context.hex(), name, number, rows, payload, static, kind == 1, kind == _LOST, kind == _END)


def pushed(block: Block, number: int, static: bytes) -> bytes | None:
    """A block of the document with that static part as a compressed frame, the first one as a whole document; None for
    one that travels as it is: it has the end of the document, or there is no static part."""
    if block.tail or not 0 < len(static) <= MOST_STATIC:
        return None
    whole = not number
    return bytes(framed(context_of(static), "", number, block, static, whole=whole, compressed=not whole))


def payloads_of(body: bytes, static: bytes, number: int, most: int) -> tuple[list[tuple[bytes, int]], bytes]:
    """Tuples and rows of frames that a producer sends, from its block ``number`` on, and the static part of their
    document, which is ``static`` where that is known. DataError where they have other numbers, where their context is
    another or did not come with them, where they are more than MOST_BLOCKS or have more than ``most`` bytes, and where
    the static part has more than MOST_STATIC."""
    known = KnownContexts(most)
    if static:
        known.learn(context_of(static), static)
    payloads: list[tuple[bytes, int]] = []
    for at, frame in enumerate(read(body), number):
        if frame.number != at or frame.lost or frame.end:
            raise DataError(f"Block {at} was announced, and a frame of block {frame.number} came.")
        if len(payloads) == MOST_BLOCKS:
            raise DataError(
                f"A request can push at most {MOST_BLOCKS:,} blocks.", hint="Send the others in the next request."
            )
        if frame.static > MOST_STATIC:
            raise DataError(
                f"The context of a stream can have at most {MOST_STATIC:,} bytes; this one has {frame.static:,}.",
                hint="Push whole documents instead of frames.",
            )
        try:
            payload = bytes(known.tuples(frame))
        except NotFoundError as error:
            raise DataError(
                f"The context {frame.context} is not that of the stream.",
                hint="The context is that of the stream's first block.",
            ) from error
        known.most_bytes -= len(payload)
        if known.most_bytes < 0:
            raise DataError(f"These blocks have more than {most:,} bytes.")
        if static and known.static(frame) != static:
            raise DataError("All blocks of a stream must have the same context.")
        static = known.static(frame)
        payloads.append((payload, frame.rows))
    return payloads, static


class Arriving:
    """Frames of bytes that arrive in pieces. Bytes are joined once, and only those of a frame that came in several."""

    def __init__(self) -> None:
        self._parts: list[bytes | memoryview] = []
        self._have, self._wanted = 0, _BEGIN

    def add(self, piece: bytes | memoryview) -> Iterator[Frame]:
        """Those that are complete with this piece. Raises as ``read`` does."""
        self._parts.append(piece)
        self._have += len(piece)
        if self._have < self._wanted:
            return
        view = memoryview(piece if len(self._parts) == 1 else b"".join(self._parts))
        end, self._wanted = 0, _BEGIN
        while len(view) - end >= _BEGIN:
            magic, _, _, length, _, _, _, size, _ = _HEAD.unpack_from(view, end)
            if magic == _MAGIC and _BEGIN + length + size > len(view) - end:
                self._wanted = _BEGIN + length + size
                break
            yield from read(view[end : (end := end + _BEGIN + length + size)])
        self._have = len(view) - end
        self._parts = [view[end:]] if self._have else []

    def finish(self) -> None:
        """TruncatedError where a part of a frame is left."""
        if self._have:
            raise TruncatedError("The body ends in the middle of a block.")


DCZ = "dcz"
"""The content coding of RFC 9842: zstd with a dictionary that the reader has."""
_DCZ_HEAD = b"\x5e\x2a\x4d\x18\x20\x00\x00\x00"


def accepts_dcz(accept_encoding: str, available: str, context: str) -> bool:
    """Whether a reader takes that coding, with the dictionary ``available`` (of the header Available-Dictionary)."""
    from dai.formats.compression import quality  # which loads what readers may not need

    if available.strip() != f":{base64.b64encode(bytes.fromhex(context)).decode()}:":
        return False
    members = ([part.strip().lower() for part in each.split(";")] for each in accept_encoding.split(","))
    return any(coding == DCZ and quality(parameters) > 0 for coding, *parameters in members)


def dictionary_coded(body: bytes, static: bytes) -> bytes:
    """The body in the coding ``dcz`` with the static part as its dictionary."""
    return b"".join((_DCZ_HEAD, hashlib.sha256(static).digest(), _compressed(body, static)))


class KnownContexts:
    """The static parts that a reader knows, by their ids."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._known: dict[str, bytes] = {}
        self.most_bytes = most_bytes
        """That a payload may decompress to."""
        self.latest: str | None = None
        """The context of the last frame that was read."""

    def learn(self, context: str, static: bytes) -> None:
        """DataError where the bytes have another hash."""
        if context_of(static) != context:
            raise DataError(f"These bytes are not the context {context}: their hash does not match.")
        self._known[context] = static

    def tuples(self, frame: Frame) -> bytes | memoryview:
        """The tuples of a frame alone. NotFoundError where its context is not known."""
        if frame.static:
            self.learn(frame.context, bytes(frame.payload[: frame.static]))
        static = self._known.get(frame.context)
        if static is None:
            raise NotFoundError(f"The context {frame.context} of block {frame.number} is not known here.")
        self.latest = frame.context
        if frame.compressed:
            return _decompressed(frame.payload, static, self.most_bytes)
        if not frame.static:
            return frame.payload
        tail = tail_of(static)
        if not bytes(frame.payload[len(frame.payload) - len(tail) :]) == tail:
            raise DataError(f"The document of block {frame.number} does not end as documents of its format do.")
        return frame.payload[frame.static : len(frame.payload) - len(tail)]

    def document(self, frame: Frame) -> bytes:
        """The tuples of a frame as a document of its own."""
        tuples = self.tuples(frame)
        static = self._known[frame.context]
        return b"".join((static, tuples, tail_of(static)))

    def static(self, frame: Frame) -> bytes:
        """Of a frame that was read."""
        return self._known[frame.context]


@dataclass(frozen=True, slots=True)
class Asked:
    """How a reader wants its frames: the ``context`` that it has, and whether ``compressed``; ``flow``: as the blocks
    are made, until a frame ends the answer."""

    context: str | None = None
    compressed: bool = False
    flow: bool = False

    def __str__(self) -> str:
        """As it is written in an Accept header."""
        context = f";context={self.context}" if self.context else ""
        compression = ";compression=zstd" if self.compressed else ""
        return f"{MEDIA_TYPE}{context}{compression}{';flow=true' if self.flow else ''}"


def requested(accept: str) -> tuple[Asked, float] | None:
    """The frames that an Accept header asks for, and their weight; None if it does not. A part that cannot be read is
    ignored; the reader then gets whole documents."""
    return (_parse_accept if len(accept) <= _KEPT_CHARACTERS else _parse_accept.__wrapped__)(accept)


@lru_cache(1024)
def _parse_accept(accept: str) -> tuple[Asked, float] | None:
    for member in accept.split(","):
        media_range, *parameters = (part.strip().lower() for part in member.split(";"))
        if media_range == MEDIA_TYPE:
            from dai.formats.compression import quality  # which loads what readers may not need

            values = {name.strip(): text.strip() for name, _, text in (each.partition("=") for each in parameters)}
            context = values.get("context", "")
            held = context if SHA256.fullmatch(context) else None
            flow = values.get("flow") == "true"
            return Asked(held, values.get("compression") == "zstd", flow), quality(parameters)
    return None


def _checksum(*parts: bytes | memoryview) -> int:
    from google_crc32c import extend

    check = 0
    for each in parts:
        check = extend(check, bytes(each))
    return int(check)


def _dictionary(static: bytes) -> Any:
    return (_remembered if len(static) <= _KEPT_BYTES else _remembered.__wrapped__)(static)


@lru_cache(64)
def _remembered(static: bytes) -> Any:
    import zstandard

    if not static:
        return None
    return zstandard.ZstdCompressionDict(static, dict_type=zstandard.DICT_TYPE_RAWCONTENT)


def _compressed(payload: bytes | memoryview, static: bytes) -> bytes:
    import zstandard

    level = _FAST_LEVEL if memoryview(payload).nbytes > LARGE else _LEVEL
    return bytes(zstandard.ZstdCompressor(level=level, dict_data=_dictionary(static)).compress(payload))


def _decompressed(payload: bytes | memoryview, static: bytes, most: int) -> bytes:
    import zstandard

    try:
        if zstandard.frame_content_size(payload) > most:
            raise DataError(f"A block would have more than {most:,} bytes.")
        decompressor = zstandard.ZstdDecompressor(dict_data=_dictionary(static))
        return bytes(decompressor.decompress(payload, max_output_size=0, allow_extra_data=False))
    except zstandard.ZstdError as error:
        raise DataError(f"A block cannot be decompressed with its context: {error}") from error
