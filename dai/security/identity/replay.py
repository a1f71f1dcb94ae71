"""Remembers recent signatures, so that each counts once for a while, in all workers together.

A table of fixed size in memory that the workers share: buckets of entries, of which each has the first bytes of a hash
and when it may be forgotten. Where a bucket is full of what may not be forgotten yet, a request is refused rather than
taken unseen.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import struct
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from dai.errors import BusyError, UnauthenticatedError

_ENTRY = struct.Struct("<16sd")
_ENTRIES, _BUCKETS = 16, 1 << 14
_BUCKET = _ENTRIES * _ENTRY.size
BYTES = _BUCKETS * _BUCKET
"""6 MiB, for 262,144 entries."""
SKEW = 5.0
"""Seconds that the clocks of a caller and of the service may differ."""
_MOST_NONCE = 200


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
                raise BusyError("The service is getting too many signed requests at once.", retry_after=10)
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


class Window:
    """In which a signature counts, once: ``seconds`` from when it was made."""

    def __init__(self, seconds: float, seen: Seen | None) -> None:
        self._seconds, self._seen = seconds, Seen() if seen is None else seen
        self._began = math.floor(time.time())

    def take(self, key: str, created: float, nonce: str | None) -> Callable[[], None]:
        """Notes a signature by that key; what forgets it again. UnauthenticatedError for one that counts no more."""
        if not nonce or len(nonce) > _MOST_NONCE:
            raise UnauthenticatedError(
                "This signature has no nonce.", hint="Sign each request with a nonce of its own."
            )
        now = time.time()
        if not now - self._seconds - SKEW <= created <= now + SKEW:
            raise UnauthenticatedError(
                "This signature is too old, or its time is in the future.",
                hint=f"It may be at most {self._seconds:g} seconds old by the clock of this service.",
            )
        if created < self._began:
            # what was seen before is not known any more
            raise UnauthenticatedError(
                "This signature was made before the service started.", hint="Sign the request again."
            )
        digest = hashlib.sha256(f"{key}\n{nonce}".encode()).digest()
        if not self._seen.first(digest, created + self._seconds + 2 * SKEW):
            raise UnauthenticatedError(
                "This signature was used before.", hint="Sign each request with a nonce of its own."
            )
        return partial(self._seen.forget, digest)
