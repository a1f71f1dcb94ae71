"""The half of a synchronous request that runs on the event loop: sends pieces as they are pulled. And follows jobs.

A piece is pulled while the one before it leaves; the next one only when the client has taken that. So a client that
stops reading makes the service hold two pieces: one on its way, one waiting (a piece is a block, cut or gathered where
blocks are very large or very small). What is known in full at once is sent at once, with its length. A client that
disappears cancels the work at once. A failure after the status line breaks the connection off, without the end that a
whole answer has.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from dai.api.monitoring.access import Access
from dai.api.requests.head import preferences
from dai.api.service import Service
from dai.api.work import Pieces, Work
from dai.errors import CancelledError, DaiError, InternalError, LimitError
from dai.formats.compression import IDENTITY
from dai.security.identity import Caller
from dai.service.jobs.phases import MOVES
from dai.service.sessions import Session
from dai.service.state.store import Job
from dai.streams.cancellation import SETTLE_SECONDS

log = logging.getLogger("dai.api")
T = TypeVar("T")

FOLLOWED_SECONDS = 900.0
"""After this time a client that follows a job must connect again and is identified again."""
WATCH_AFTER = 0.02
"""Seconds before the service checks whether the client is still there: most answers have been sent by then."""


class _Watch:
    """Cancels the work when the client disappears or its time is up; from the event loop, without blocking it."""

    def __init__(self, service: Service, work: Work, receive: Receive) -> None:
        self._service, self._work, self._receive = service, work, receive
        self._loop = asyncio.get_running_loop()
        self._watching: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(WATCH_AFTER, self._start)
        self._request = asyncio.current_task()
        self.sending = False
        self.expired = False

    def _start(self) -> None:
        self._watching = self._loop.create_task(self._watch())
        if seconds := self._work.limits.seconds:
            self._timer = self._loop.call_later(max(seconds - WATCH_AFTER, 0), self._expire, seconds)

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self.cancel(CancelledError("The client has gone."))

    def _expire(self, seconds: float) -> None:
        self.cancel(
            LimitError(
                f"The request took longer than the {seconds:g} seconds allowed (limits.seconds of this service).",
                hint="Run it as a job (Prefer: respond-async; .submit(…) in Python); or ask the operator "
                "of the service for a higher limits.seconds.",
                limit="limits.seconds",
            )
        )
        if self.sending and self._request is not None:
            # the client does not read, so no pull will notice
            self.expired = True
            self._request.cancel()

    def cancel(self, cause: DaiError) -> None:
        # interrupting a statement may take a connection of its own
        self._service.interrupts.submit(self._work.cancellation.cancel, cause)

    def stop(self) -> None:
        self._timer.cancel()
        watching, self._watching = self._watching, None  # each would keep the other, and what the request had
        if watching is not None:
            watching.cancel()


class WorkAnswer(Response):
    """Runs ``work`` and sends what it gives. The ``session`` knows the request meanwhile, and ends with it where the
    document says so. What it raises was raised before anything was sent."""

    def __init__(self, request: Request, work: Work, session: Session | None) -> None:
        self.background = None
        self._service: Service = request.app.state.service
        self._access: Access = request.state.access
        wait = preferences(request).get("wait", "")
        # what the client wants to wait at most (RFC 7240), where it says so
        self._patience = float(wait) if wait.isdecimal() else None
        self._work, self._session = work, session

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        work, session = self._work, self._session
        with self._service.quotas.running(self._access.caller.name):
            if session is None:
                await self._conduct(receive, send)
                return
            try:
                with session.request(work.cancellation, work.perform.activities) as request:
                    await self._conduct(receive, send)
                    request.error = work.error
            finally:
                if work.perform.session is not None and work.perform.session.end:
                    self._service.sessions.end(session)

    async def _conduct(self, receive: Receive, send: Send) -> None:
        service, work, access = self._service, self._work, self._access
        admission = service.role_admission if work.role else service.admission
        small = work.statement in service.small
        await admission.acquire(self._patience, small=small)
        watch = _Watch(service, work, receive)
        service.working.add(work)
        try:
            try:
                pieces, done = await _in_thread(service.workers.submit, work.begin)
            finally:
                access.stages.update(work.stages)
            if done:
                body = b"".join(pieces)
                await self._start(send, len(body))
                await send({"type": "http.response.body", "body": body})
            else:
                await self._stream(pieces, watch, send)
        except BaseException as error:
            access.error = access.error or error
            raise
        finally:
            watch.stop()
            if not work.closed:
                watch.cancel(CancelledError("The request has ended."))
                await _settled(asyncio.ensure_future(_in_thread(service.workers.submit, work.close)))
            service.working.discard(work)
            admission.release(small=small)
            service.small.note(work.statement, work.small)
            access.rows, access.stages = work.rows, {**access.stages, **work.stages}
            access.error = access.error or work.error

    async def _start(self, send: Send, size: int | None = None) -> None:
        work = self._work
        stages = {**self._access.stages, **work.stages}
        timing = ", ".join(f"{name};dur={seconds * 1000:.3f}" for name, seconds in stages.items())
        headers = [
            (b"content-type", work.media_type.encode()),
            (b"vary", b"Accept, Accept-Encoding"),
            (b"server-timing", timing.encode()),
        ]
        if work.truncated:
            headers.append((b"truncated", b"true"))
        if work.coding != IDENTITY:
            headers.append((b"content-encoding", work.coding.encode()))
        if size is not None:
            headers.append((b"content-length", b"%d" % size))
        await send({"type": "http.response.start", "status": work.status, "headers": headers})

    async def _stream(self, pieces: Pieces, watch: _Watch, send: Send) -> None:
        work, access = self._work, self._access
        await self._start(send)
        done = False
        try:
            while True:
                watch.sending = True
                body = memoryview(pieces[0]).cast("B") if len(pieces) == 1 else b"".join(pieces)
                pieces = []
                await send({"type": "http.response.body", "body": body, "more_body": not done})
                watch.sending = False
                del body
                if done:
                    return
                pieces, done = await _in_thread(self._service.workers.submit, work.pull)
                if not pieces and not done:
                    raise InternalError("A pull gave nothing.")
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not watch.expired or task is None or task.uncancel() > 0:
                raise
            access.error = work.cancellation.cause
        except DaiError as error:
            # returning without the last chunk makes the server close the connection
            access.error = error
        except Exception as error:
            log.error("request failed half-way", exc_info=error, extra={"id": access.id})
            access.error = error


async def _in_thread(submit: Callable[[Callable[[], None]], Any], function: Callable[[], T]) -> T:
    """What asyncio.wrap_future does, in a third of its time. The function runs even where nobody waits any more."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[Any], None], outcome: Any) -> None:
        if not answer.done():
            settle(outcome)

    def run() -> None:
        with suppress(RuntimeError):  # of a loop that is closed
            try:
                result = function()
            except BaseException as error:  # noqa: BLE001 - whoever waits raises it
                loop.call_soon_threadsafe(tell, answer.set_exception, error)
            else:
                loop.call_soon_threadsafe(tell, answer.set_result, result)

    submit(run)
    return await answer


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


class Follower:
    """Waits for one job to change, as a caller sees it. NotFoundError where the caller does not see it any more."""

    def __init__(self, service: Service, caller: Caller, id: str) -> None:
        self._service, self._caller, self._id = service, caller, id
        self._loop, self._changed = asyncio.get_running_loop(), asyncio.Event()

    async def job(self) -> Job:
        return await self._loop.run_in_executor(self._service.control, self._service.jobs.get, self._id, self._caller)

    def _notify(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    async def _next(self, deadline: float) -> Job:
        """The job after the next change, or at that time."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._changed.wait()
        except TimeoutError:
            pass
        self._changed.clear()
        return await self.job()

    async def moved(self, known: Job, seconds: float) -> Job:
        """The job in another phase than it was, or after so many seconds."""
        deadline, phase = self._loop.time() + seconds, known.phase
        with self._service.jobs.listening(self._id, self._notify):
            known = await self.job()
            while known.phase == phase and phase in MOVES and self._loop.time() < deadline:
                known = await self._next(deadline)
        return known

    async def items(self, known: Job, said_of: Callable[[Job], bytes], every: float) -> AsyncIterator[bytes]:
        """What is said of the job, again when that is something else, until it has ended, the service ends or
        FOLLOWED_SECONDS are over."""
        with self._service.jobs.listening(self._id, self._notify):
            said, until = b"", self._loop.time() + FOLLOWED_SECONDS
            while True:
                if (item := said_of(known)) != said:
                    yield item
                    said = item
                if known.phase not in MOVES or self._service.ending or self._loop.time() >= until:
                    return
                known = await self._next(min(self._loop.time() + every, until))
