"""A cache of the entries that were read last, up to a number of bytes: the least recently used goes first."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass

KEPT_SECONDS = 5.0
"""Seconds after which changes by other processes are seen."""
_OVERHEAD = 500
"""Bytes that one takes besides its content, about."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A context (``version`` 0) or a version of a document. Times are seconds since 1970 UTC."""

    id: str
    owner: str
    media_type: str
    content: bytes
    version: int
    created: float
    expires: float
    parents: tuple[str, ...] = ()


class Memory:
    """Thread-safe. ``limit``: bytes; 0 keeps nothing."""

    def __init__(self, limit: int) -> None:
        self._limit, self._held = limit, 0
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], tuple[Stored, float]] = OrderedDict()

    @property
    def held(self) -> int:
        return self._held

    def get(self, owner: str, id: str) -> Stored | None:
        with self._lock:
            known = self._known.get((owner, id))
            if known is None or known[1] < time.monotonic() or known[0].expires <= time.time():
                return None
            self._known.move_to_end((owner, id))
            return known[0]

    def put(self, stored: Stored) -> None:
        size = _size(stored)
        with self._lock:
            self._forget((stored.owner, stored.id))
            if size > self._limit:
                return
            self._known[stored.owner, stored.id] = stored, time.monotonic() + KEPT_SECONDS
            self._held += size
            while self._held > self._limit:
                self._forget(next(iter(self._known)))

    def forget(self, owner: str, id: str) -> None:
        with self._lock:
            self._forget((owner, id))

    def _forget(self, key: tuple[str, str]) -> None:
        known = self._known.pop(key, None)
        if known is not None:
            self._held -= _size(known[0])


def _size(stored: Stored) -> int:
    return len(stored.content) + _OVERHEAD
