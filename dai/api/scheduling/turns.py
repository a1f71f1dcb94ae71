"""Limits how many threads encode at once, and knows which statements have small answers."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Hashable
from itertools import count

OLDEST_EVERY = 4
"""One of so many turns goes to the thread that has waited longest, so that a long answer goes on beside many short
ones."""
SMALL_BYTES = 1 << 16
SMALL_SECONDS = 0.5
"""An answer of at most so many bytes, begun and ended in so many seconds, is small."""
KNOWN = 10_000
"""Statements that are remembered."""
_MOST_BYTES = 1 << 13
_LITERAL = re.compile(rb"'[^']*'|\d+")


class Turns:
    """``places`` threads encode at once: more would only wait for each other, as Python runs one of them at a time.
    The thread that has had the least time goes first, so that a small answer does not wait behind large ones."""

    def __init__(self, places: int) -> None:
        self._lock = threading.Lock()
        self._free = places
        self._waiting: list[tuple[float, int, threading.Lock]] = []
        self._numbers, self._given = count(), count(1)

    @property
    def free(self) -> int:
        return self._free

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, had: float) -> None:
        """Returns when the thread may go on; ``had``: the seconds that its request has had."""
        with self._lock:
            if self._free:
                self._free -= 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append((had, next(self._numbers), turn))
        turn.acquire()

    def leave(self) -> None:
        """The next one may go on."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            oldest = next(self._given) % OLDEST_EVERY == 0
            waiter = min(self._waiting, key=lambda each: each[1] if oldest else each[0])
            self._waiting.remove(waiter)
        waiter[2].release()


class Small:
    """Which statements gave small answers when they were last asked, whatever the numbers and texts in them."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, bool] = OrderedDict()

    @staticmethod
    def key(resource: Hashable, statement: bytes) -> int | None:
        """None for a statement that is too long to be looked at."""
        return hash((resource, _LITERAL.sub(b"?", statement))) if len(statement) <= _MOST_BYTES else None

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: int | None) -> bool:
        return self._known.get(key, False) if key is not None else False

    def note(self, key: int | None, small: bool) -> None:
        if key is None:
            return
        self._known[key] = small
        self._known.move_to_end(key)
        if len(self._known) > KNOWN:
            self._known.popitem(last=False)
