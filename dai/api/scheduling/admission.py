"""How many requests are at work at once: some run, some wait, the rest is refused."""

from __future__ import annotations

import asyncio
from collections import deque

from dai.errors import BusyError

SMALL_IN_A_ROW = 8
"""Small requests that may go before one that waits longer."""
RESERVED_SECONDS = 5.0
"""For so long after a small request, a quarter of the places is kept for other small ones."""


class Admission:
    """Belongs to one event loop. Each ``acquire`` needs a ``release``. Requests that are known to be ``small`` go
    before others, because they end soon."""

    def __init__(self, concurrent: int, queue: int, seconds: float) -> None:
        self.concurrent, self.queue, self.seconds = concurrent, queue, seconds
        self.running = 0
        self._large = self._in_a_row = 0
        self._reserved_until = float("-inf")
        self._waiting: dict[bool, deque[asyncio.Future[None]]] = {True: deque(), False: deque()}
        """Small ones and others."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def acquire(self, patience: float | None = None, *, small: bool = False) -> None:
        """Returns when the request may run. BusyError when the queue is full, or after ``seconds`` in it, or after
        ``patience`` seconds if that is less."""
        seconds = self.seconds if patience is None else min(patience, self.seconds)
        if (turn := self._enter_or_wait(small)) is None:
            return
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.release(small=small)  # the turn came while it was given up
            else:
                self._give_up(turn, small)
            if isinstance(error, TimeoutError):
                raise BusyError(
                    f"The service is busy: no request ended within {seconds:g} seconds.", retry_after=5
                ) from error
            raise

    def _enter_or_wait(self, small: bool) -> asyncio.Future[None] | None:
        """None where the request may run at once."""
        loop = asyncio.get_running_loop()
        if small:
            self._reserved_until = loop.time() + RESERVED_SECONDS
        if self._fits(small):
            self._enter(small)
            return None
        if self.waiting >= self.queue:
            raise self._full(self.running, self.waiting)
        turn: asyncio.Future[None] = loop.create_future()
        self._waiting[small].append(turn)
        return turn

    @staticmethod
    def _full(running: int, waiting: int) -> BusyError:
        return BusyError(
            f"The service is busy: {running} requests are running and {waiting} are waiting.", retry_after=1
        )

    def _give_up(self, turn: asyncio.Future[None], small: bool) -> None:
        if turn in self._waiting[small]:
            self._waiting[small].remove(turn)

    def release(self, *, small: bool = False) -> None:
        """Hands the turn to the one that waits longest, among the small ones first."""
        self._leave(small)
        self._hand_out()

    def _hand_out(self) -> None:
        while (chosen := self._next()) is not None:
            turn = self._waiting[chosen].popleft()
            if not turn.done():
                self._in_a_row = self._in_a_row + 1 if chosen else 0
                self._enter(chosen)
                turn.set_result(None)

    def _enter(self, small: bool) -> None:
        self.running += 1
        self._large += not small

    def _leave(self, small: bool) -> None:
        self.running -= 1
        self._large -= not small

    def _fits(self, small: bool) -> bool:
        reserved = self.concurrent // 4 if asyncio.get_running_loop().time() < self._reserved_until else 0
        return self.running < self.concurrent and (small or self._large < self.concurrent - reserved)

    def _next(self) -> bool | None:
        """Which queue is served next, if any."""
        return self._chosen(bool(self._waiting[True]), bool(self._waiting[False]))

    def _chosen(self, small: bool, large: bool) -> bool | None:
        """Which is served next where small ones and others wait."""
        large = large and self._fits(False)
        if small and self._fits(True) and not (large and self._in_a_row >= SMALL_IN_A_ROW):
            return True
        return False if large else None
