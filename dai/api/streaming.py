"""The half of a synchronous request that runs on the event loop: sends pieces as they are pulled.

A piece is pulled while the one before it leaves; the next one only when the client has taken that. So a client that
stops reading makes the service hold two pieces: one on its way, one waiting (a piece is a block, cut or gathered where
blocks are very large or very small). What is known in full at once is sent at once, with its length. A client that
disappears cancels the work at once. A failure after the status line breaks the connection off, without the end that a
whole answer has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from dai.api.calls.call import Call
from dai.api.calls.replies import Reply
from dai.api.work import Pieces, Work
from dai.errors import CancelledError, DaiError, InternalError, LimitError
from dai.streams.cancellation import SETTLE_SECONDS

log = logging.getLogger("dai.api")
T = TypeVar("T")

WATCH_AFTER = 0.02
"""Seconds before somebody looks whether the client is still there: most answers have left by then."""


class _Watch:
    """Cancels the work when the client disappears or its time is up; from the event loop, without blocking it."""

    def __init__(self, call: Call, work: Work) -> None:
        self._call, self._work = call, work
        self._loop = asyncio.get_running_loop()
        self._watching: asyncio.Task[None] | None = None
        self._timers = [self._loop.call_later(WATCH_AFTER, self._start)]
        self._request = asyncio.current_task()
        self.sending = False
        self.expired = False
        if seconds := call.service.config.limits.seconds:
            self._timers.append(self._loop.call_later(seconds, self._expire, seconds))

    def _start(self) -> None:
        self._watching = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._call.receive())["type"] != "http.disconnect":
            continue
        self.cancel(CancelledError("The client has gone."))

    def _expire(self, seconds: float) -> None:
        self.cancel(
            LimitError(
                f"The request took longer than the {seconds:g} seconds allowed (limits.seconds of this service).",
                hint="Run it as a job (Prefer: respond-async; .submit(…) in Python); or have limits.seconds raised in "
                "the configuration.",
                limit="limits.seconds",
            )
        )
        if self.sending and self._request is not None:
            # the client does not read, so no pull will notice
            self.expired = True
            self._request.cancel()

    def cancel(self, cause: DaiError) -> None:
        # interrupting a statement may take a connection of its own
        self._call.service.interrupts.submit(self._work.cancellation.cancel, cause)

    def stop(self) -> None:
        for timer in self._timers:
            timer.cancel()
        if self._watching is not None:
            self._watching.cancel()


async def conduct(call: Call, work: Work) -> None:
    """Runs ``work`` and sends what it gives. What it raises was raised before anything was sent."""
    service = call.service
    admission = service.role_admission if work.role else service.admission
    small = work.statement in service.small
    await admission.acquire(_patience(call), small=small)
    watch = _Watch(call, work)
    service.working.add(work)
    try:
        try:
            pieces, done = await _in_thread(service.workers.submit, work.begin)
        finally:
            call.access.stages.update(work.stages)
        if done:
            await _whole(call, work, pieces)
        else:
            await _streamed(call, work, pieces, watch)
    except BaseException as error:
        call.access.error = call.access.error or error
        raise
    finally:
        watch.stop()
        if not work.closed:
            watch.cancel(CancelledError("The request has ended."))
            await _settled(asyncio.ensure_future(_in_thread(service.workers.submit, work.close)))
        service.working.discard(work)
        admission.release(small=small)
        service.small.note(work.statement, work.small)
        call.access.rows, call.access.stages = work.rows, {**call.access.stages, **work.stages}
        call.access.error = call.access.error or work.error


def _patience(call: Call) -> float | None:
    """Seconds that the client wants to wait at most (RFC 7240, ``wait``), where it says so."""
    wait = call.preferences.get("wait", "")
    return float(wait) if wait.isdecimal() else None


def _headers(call: Call, work: Work) -> dict[str, str]:
    stages = {**call.access.stages, **work.stages}
    timing = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in stages.items())
    headers = {"vary": "Accept, Accept-Encoding", "server-timing": timing}
    if work.coding != "identity":
        headers["content-encoding"] = work.coding
    return headers


async def _whole(call: Call, work: Work, pieces: Pieces) -> None:
    body = pieces[0] if len(pieces) == 1 and isinstance(pieces[0], bytes) else b"".join(pieces)
    await Reply(body, work.media_type, work.status, _headers(call, work)).send(call)


async def _streamed(call: Call, work: Work, pieces: Pieces, watch: _Watch) -> None:
    headers = {"content-type": work.media_type, **_headers(call, work)}
    raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
    await call.send({"type": "http.response.start", "status": work.status, "headers": raw})
    done = False
    try:
        while True:
            watch.sending = True
            body = memoryview(pieces[0]).cast("B") if len(pieces) == 1 else b"".join(pieces)
            pieces = []
            await call.send({"type": "http.response.body", "body": body, "more_body": not done})
            watch.sending = False
            del body
            if done:
                return
            pieces, done = await _in_thread(call.service.workers.submit, work.pull)
            if not pieces and not done:
                raise InternalError("A pull gave nothing.")
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not watch.expired or task is None or task.uncancel() > 0:
            raise
        call.access.error = work.cancellation.cause
    except DaiError as error:
        # returning without the last chunk makes the server close the connection
        call.access.error = error
    except Exception as error:
        log.error("request failed half-way", exc_info=error, extra={"id": call.id})
        call.access.error = error


async def _in_thread(submit: Callable[[Callable[[], T]], Any], function: Callable[[], T]) -> T:
    result: T = await asyncio.wrap_future(submit(function))
    return result


async def _settled(future: asyncio.Future[None]) -> None:
    """Waits for it even where this task is being cancelled: what is open must be closed. But the server cancels tasks
    when it stops, so from then on it waits for SETTLE_SECONDS at most."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    cancelled: asyncio.CancelledError | None = None
    until: float | None = None
    while not future.done():
        if until is None and task is not None and task.cancelling():
            until = loop.time() + SETTLE_SECONDS
        left = None if until is None else until - loop.time()
        if left is not None and left <= 0:
            log.warning("request abandoned: its database does not answer")
            break
        try:
            await asyncio.wait([future], timeout=left)
        except asyncio.CancelledError as error:
            cancelled = error
    if future.done() and not future.cancelled() and (late := future.exception()) is not None:
        log.error("closing failed", exc_info=late)
    if cancelled is not None:
        raise cancelled
