"""Waits on the event loop for what other threads change."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, Self

from starlette.types import Receive


class Watched(Protocol):
    """A mailbox, a budget or a feed."""

    def add_listener(self, listener: Callable[[], None], /) -> Callable[[], None]: ...


class Used(Protocol):
    """A session or a feed."""

    def waiting(self) -> AbstractContextManager[None]: ...


class Changes:
    """Waits on the event loop for what is ``watched`` to change, from its own creation on; a context. What is ``used``
    has a client that waits meanwhile."""

    def __init__(self, used: Used | None, seconds: float, *watched: Watched) -> None:
        self._used = used
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._lingers = False
        self._enough: Callable[[], bool] = lambda: True
        self._changed = asyncio.Event()
        self._removals = [each.add_listener(self._notify) for each in watched]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for remove in self._removals:
            remove()

    def _notify(self) -> None:
        if self._enough():
            self._loop.call_soon_threadsafe(self._changed.set)

    def linger(self, seconds: float, enough: Callable[[], bool]) -> None:
        """From the first call on there are so many seconds left at most, and no change counts until there is
        ``enough``: many small ones would keep the loop busy."""
        if not self._lingers:
            self._lingers, self._enough = True, enough
            self._deadline = min(self._deadline, self._loop.time() + seconds)

    async def gather(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Until there is ``enough``, for so many seconds at most."""
        self._enough, before = enough, self._enough
        self._changed.clear()
        if not enough():
            await self.wait(seconds)
        self._enough = before

    def wake(self) -> None:
        """Ends a wait as a change does; on the event loop."""
        self._changed.set()

    async def wait(self, seconds: float = math.inf) -> bool:
        """Until it changes; False where the time is up, or so many seconds are."""
        try:
            with self._used.waiting() if self._used is not None else nullcontext():
                async with asyncio.timeout_at(min(self._deadline, self._loop.time() + seconds)):
                    await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True


async def wait_for_disconnect(receive: Receive) -> None:
    """Returns when the client has gone."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def disconnected(receive: Receive, gone: asyncio.Event, changes: Changes) -> None:
    await wait_for_disconnect(receive)
    gone.set()
    changes.wake()
