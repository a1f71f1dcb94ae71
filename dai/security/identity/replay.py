"""What was seen lately: each signed request counts once, whichever worker meets it.

A table of fixed size in memory that the workers share: buckets of entries, of which each has the first bytes of a hash
and when it may be forgotten. Where a bucket is full of what may not be forgotten yet, a request is refused rather than
taken unseen.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from dai.errors import BusyError

_ENTRY = struct.Struct("<16sd")
_ENTRIES, _BUCKETS = 16, 1 << 14
_BUCKET = _ENTRIES * _ENTRY.size
BYTES = _BUCKETS * _BUCKET
"""6 MiB, for 262,144 entries."""


class Seen:
    """In ``memory``, of BYTES zeros at first, which nobody else touches while ``locked``; else in this process."""

    def __init__(
        self, memory: memoryview | None = None, locked: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        self._memory = memoryview(mmap.mmap(-1, BYTES)) if memory is None else memory
        self._locked = locked

    def first(self, digest: bytes, until: float) -> bool:
        """Whether the hash is new; it is kept ``until`` that time. BusyError where there is no place."""
        now, key = time.time(), digest[:16]
        with self._locked():
            place = None
            for at, (entry, end) in self._bucket(digest):
                if end <= now:
                    place = at
                elif entry == key:
                    return False
            if place is None:
                raise BusyError("Too many signed requests at once.", retry_after=10)
            _ENTRY.pack_into(self._memory, place, key, until)
        return True

    def forget(self, digest: bytes) -> None:
        """Of a request that goes to another worker, which looks at it anew."""
        with self._locked():
            for at, (entry, _) in self._bucket(digest):
                if entry == digest[:16]:
                    _ENTRY.pack_into(self._memory, at, bytes(16), 0.0)

    def _bucket(self, digest: bytes) -> list[tuple[int, tuple[bytes, float]]]:
        first = int.from_bytes(digest[16:20]) % _BUCKETS * _BUCKET
        entries = _ENTRY.iter_unpack(self._memory[first : first + _BUCKET])
        return [(first + number * _ENTRY.size, entry) for number, entry in enumerate(entries)]
