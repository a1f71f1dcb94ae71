"""How many requests are at work at once: some run, some wait, the rest is refused."""

from __future__ import annotations

import asyncio
from collections import deque

from dai.errors import BusyError


class Admission:
    """Belongs to one event loop. Who acquired must release."""

    def __init__(self, concurrent: int, queue: int, seconds: float) -> None:
        self.concurrent, self.queue, self.seconds = concurrent, queue, seconds
        self.running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    async def acquire(self, patience: float | None = None) -> None:
        """Returns when the request may run. BusyError when the queue is full, or after ``seconds`` in it, or after
        ``patience`` seconds if that is less."""
        seconds = self.seconds if patience is None else min(patience, self.seconds)
        if self.running < self.concurrent:
            self.running += 1
            return
        if len(self._waiting) >= self.queue:
            raise BusyError(
                f"{self.running} requests run and {len(self._waiting)} wait; no more are taken.", retry_after=1
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(seconds):
                await turn
        except BaseException as error:
            if turn.done() and not turn.cancelled():
                self.release()  # the turn came while it was given up
            elif turn in self._waiting:
                self._waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise BusyError(f"No request ended within {seconds:g} seconds.", retry_after=5) from error
            raise

    def release(self) -> None:
        """Hands the turn to the one that waits longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self.running -= 1
