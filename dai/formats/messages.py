"""Arrow's encapsulated messages, by the FlatBuffers tables that describe them: what pyarrow does not tell before it
unpacks their buffers. See https://github.com/apache/arrow/blob/main/format/Message.fbs for the numbers of the fields.
"""

from __future__ import annotations

import struct
from collections import Counter

from dai.errors import DataError, TooLargeError

UNPACKED_BYTES = 512 << 20
"""To which the compressed buffers of one message, or of all dictionaries of a stream, may unpack: a few bytes could
become all memory of the machine."""
_KIND, _HEADER, _BODY_LENGTH = 1, 2, 3
_BUFFERS, _COMPRESSION = 2, 3
_DICTIONARY, _DATA = 2, 1
_MOST_METADATA = 1 << 28


class Watch:
    """Sees the bytes of a stream in pieces of any size before a reader has them."""

    def __init__(self) -> None:
        self._kept, self._missing = bytearray(), 4
        self._is_metadata = False
        self._body, self._at = 0, 0
        """What is left of the body of a message, and how much of it was seen."""
        self._sizes: list[tuple[int, int]] = []
        """Where sizes of buffers stand in the body, the last first, and how many buffers have it."""
        self._size = bytearray()
        self._unpacked, self._dictionaries, self._is_dictionary = 0, 0, False

    def see(self, piece: memoryview | bytes | bytearray) -> None:
        """TooLargeError for a message that unpacks to too much, before its last byte is handed over."""
        view, at = memoryview(piece), 0
        try:
            while at < len(view):
                if self._body:
                    at += self._look(view[at : at + self._body])
                    continue
                taken = view[at : at + self._missing - len(self._kept)]
                self._kept += taken
                at += len(taken)
                if len(self._kept) == self._missing:
                    self._next(bytes(self._kept))
        except (struct.error, IndexError) as error:
            raise DataError("This is not an Arrow stream: the description of a message is wrong.") from error

    def _next(self, kept: bytes) -> None:
        self._kept.clear()
        if self._is_metadata:
            self._is_metadata, self._missing = False, 4
            self._begin(kept)
        elif kept != b"\xff\xff\xff\xff":  # the mark of a message, behind which its length stands
            length = struct.unpack("<i", kept)[0]
            if not 0 <= length <= _MOST_METADATA:
                raise DataError("This is not an Arrow stream: the description of a message is wrong.")
            self._is_metadata, self._missing = bool(length), length or 4

    def _begin(self, metadata: bytes) -> None:
        message = _at(metadata, 0)
        length = _field(metadata, message, _BODY_LENGTH)
        self._body = max(0, struct.unpack_from("<q", metadata, length)[0]) if length is not None else 0
        self._at, self._unpacked = 0, 0
        kind = _field(metadata, message, _KIND)
        self._is_dictionary = kind is not None and metadata[kind] == _DICTIONARY
        batch = _batch(metadata)
        buffers = _field(metadata, batch, _BUFFERS)
        self._sizes = []
        if buffers is not None and _field(metadata, batch, _COMPRESSION) is not None:
            first = _at(metadata, buffers)
            count = struct.unpack_from("<I", metadata, first)[0]
            pairs = struct.unpack_from(f"<{2 * count}q", metadata, first + 4)
            places = Counter(place for place, length in zip(pairs[::2], pairs[1::2], strict=True) if length > 0)
            self._sizes = sorted(places.items(), reverse=True)

    def _look(self, view: memoryview) -> int:
        end = self._at + len(view)
        while self._sizes:
            place, buffers = self._sizes[-1]
            first = place + len(self._size)
            if first < self._at:
                raise DataError("This is not an Arrow stream: its buffers overlap.")
            self._size += view[first - self._at : first - self._at + 8 - len(self._size)]
            if len(self._size) < 8:
                break
            self._count(max(0, struct.unpack("<q", self._size)[0]) * buffers)
            self._size.clear()
            self._sizes.pop()
        self._at = end
        self._body -= len(view)
        return len(view)

    def _count(self, size: int) -> None:
        self._unpacked += size
        self._dictionaries += size if self._is_dictionary else 0
        if max(self._unpacked, self._dictionaries) > UNPACKED_BYTES:
            raise TooLargeError(
                f"A batch of the Arrow stream unpacks to more than the {UNPACKED_BYTES:,} bytes allowed.",
                hint="Write smaller batches, or do not compress them.",
            )


def is_compressed(metadata: bytes) -> bool:
    """Whether a message has a batch whose buffers are compressed. struct.error for what cannot be read."""
    return _field(metadata, _batch(metadata), _COMPRESSION) is not None


def _batch(metadata: bytes) -> int | None:
    """The table of the batch of a message, or of its dictionary."""
    message = _at(metadata, 0)
    kind = _field(metadata, message, _KIND)
    header = _table(metadata, _field(metadata, message, _HEADER))
    if kind is not None and metadata[kind] == _DICTIONARY:
        return _table(metadata, _field(metadata, header, _DATA))
    return header if kind is not None and metadata[kind] > _DICTIONARY else None


def _at(data: bytes, place: int) -> int:
    return place + int(struct.unpack_from("<I", data, place)[0])


def _table(data: bytes, place: int | None) -> int | None:
    return None if place is None else _at(data, place)


def _field(data: bytes, table: int | None, number: int) -> int | None:
    """Where the field of a FlatBuffers table lies; None where it is not there."""
    if table is None:
        return None
    vtable = table - int(struct.unpack_from("<i", data, table)[0])
    size = int(struct.unpack_from("<H", data, vtable)[0])
    if 4 + 2 * number >= size:
        return None
    offset = int(struct.unpack_from("<H", data, vtable + 4 + 2 * number)[0])
    return table + offset if offset else None
