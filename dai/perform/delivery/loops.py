"""An event loop that a synchronous delivery drives, for libraries that know no other way to be stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Self, TypeVar

from dai.errors import TruncatedError
from dai.perform.delivery.calls import Call

T = TypeVar("T")
SETTLE_SECONDS = 1.0
"""What is undone at a failure may take so long."""


class Loop:
    """Runs in whichever thread waits; between two waits nothing runs. What ends the call ends a wait."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self._loop = asyncio.new_event_loop()
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            for each in asyncio.all_tasks(self._loop):
                each.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
        finally:
            self._loop.close()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """TimeoutError after ``silence`` seconds; the cause of a cancellation."""
        task = self._task = self._loop.create_task(_bounded(work, self._call.config.silence))
        if self._call.ended:
            work.close()  # a task that is cancelled before it begins would leave it behind
            task.cancel()
        try:
            result: T = self._loop.run_until_complete(task)
        except asyncio.CancelledError:
            self._call.check()
            raise TruncatedError(f"{self._call.host!r} broke off.") from None
        finally:
            self._task = None
        return result

    def settle(self, work: Coroutine[Any, Any, object]) -> None:
        """Undoes something after a failure or a cancellation, if it can be done soon."""
        with suppress(Exception):
            self._loop.run_until_complete(_bounded(work, SETTLE_SECONDS))

    def stop(self) -> None:
        """Ends a wait, from another thread."""
        task = self._task
        if task is not None:
            with suppress(RuntimeError):  # it has just ended, and the loop with it
                self._loop.call_soon_threadsafe(task.cancel)


async def _bounded(work: Coroutine[Any, Any, T], seconds: float) -> T:
    async with asyncio.timeout(seconds):
        return await work
