"""A number with a limit: what a service has taken of something."""

from __future__ import annotations

import threading


class Tally:
    """That of one process; thread-safe. ``dai.api.workers.table`` has the one that several processes count together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._own = 0

    @property
    def own(self) -> int:
        """What this process has taken."""
        return self._own

    @property
    def total(self) -> int:
        """What all processes of the service have taken."""
        return self._own

    def take(self, amount: int, most: float, *, first: bool = False) -> bool:
        """Takes the amount if no more than ``most`` is taken then; with ``first`` also if nothing is taken yet."""
        with self._lock:
            if self._own + amount > most and not (first and not self._own):
                return False
            self._own += amount
            return True

    def add(self, amount: int) -> None:
        """Takes the amount whether there is room or not; gives it back if it is negative."""
        with self._lock:
            self._own += amount
