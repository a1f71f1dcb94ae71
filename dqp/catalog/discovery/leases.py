"""When leases of services end, by the clock of their registry as far as this process knows it.

Both clocks run at the same speed. A request sent at s and answered with the registry's time r shows that the registry's
clock is at most r - s ahead of ours, so our estimate of it is never behind. Therefore no ended lease counts as holding;
a lease may count as ended too early, by the time of the fastest answer, and then the registry is asked.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping


class Leases:
    """Not thread-safe. Times are those of ``time.monotonic`` here; ``expires`` is by the registry's clock."""

    def __init__(self) -> None:
        self._ahead = math.inf
        self._ends: dict[str, float] = {}

    def clock(self, sent: float, answered: float, *, anew: bool = False) -> None:
        """Notes the registry's time in the answer to a request that was sent at ``sent``. ``anew``: it may be another
        process."""
        ahead = answered - sent
        self._ahead = ahead if anew else min(ahead, self._ahead)

    def hold(self, key: str, expires: float | None) -> None:
        """None: without end."""
        self._ends[key] = math.inf if expires is None else expires

    def known(self, key: str) -> bool:
        return key in self._ends

    def keep(self, keys: Iterable[str]) -> None:
        """Forgets the others."""
        kept = set(keys)
        self._ends = {key: end for key, end in self._ends.items() if key in kept}

    def drop(self, key: str) -> None:
        self._ends.pop(key, None)

    def ended(self, now: float) -> list[str]:
        return [key for key, end in self._ends.items() if not math.isinf(end) and end <= now + self._ahead]

    def next_end(self) -> float:
        """The first time here at which one has ended."""
        first = min(self._ends.values(), default=math.inf)
        return first if math.isinf(first) else first - self._ahead

    @property
    def ends(self) -> Mapping[str, float]:
        return self._ends
