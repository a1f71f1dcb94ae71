"""``/sessions`` and their streams: blocks are pulled and pushed by number.

A block that is there is answered at once on the event loop; for one that is not, the request waits for the mailbox.
"""

from __future__ import annotations

import asyncio
from typing import Any

from dai.api.calls.call import Call
from dai.api.calls.operations import Answer, Operation, Parameter
from dai.api.calls.replies import JSON, Reply, json_reply
from dai.errors import (
    BackPressureError,
    BusyError,
    CancelledError,
    ClosedError,
    ConflictError,
    DaiError,
    GoneError,
    LimitError,
    NotFoundError,
    ParameterError,
    TooLargeError,
    UnsupportedMediaTypeError,
)
from dai.service.sessions import Session
from dai.streams.mailbox import Budget, Mailbox
from dai.streams.stream import Block

MOST_WAIT = 60
PUSH_WAIT = 20
MOST_BLOCKS = 1000


async def post_session(call: Call) -> Reply:
    asked = await call.json(empty={})
    if not isinstance(asked, dict) or not set(asked) <= {"timeout"}:
        raise ParameterError('The body may be a JSON object with the member "timeout" (seconds).')
    timeout = asked.get("timeout")
    if timeout is not None and (
        isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout <= 86400
    ):
        raise ParameterError("'timeout' must be a number of seconds, more than 0 and at most 86400.")
    session = call.service.sessions.create(timeout)
    return json_reply(described(session), 201, {"Location": f"/sessions/{session.id}"})


async def get_session(call: Call) -> Reply:
    return json_reply(described(call.service.sessions.get(call.path["session"])))


async def delete_session(call: Call) -> Reply:
    sessions = call.service.sessions
    session = sessions.get(call.path["session"])
    await asyncio.get_running_loop().run_in_executor(call.service.control, sessions.end, session)
    return Reply(status=204)


def described(session: Session) -> dict[str, Any]:
    streams = []
    for direction, name, mailbox in session.streams():
        blocks, held = mailbox.held
        streams.append(
            {
                "name": name,
                "direction": direction,
                "next": mailbox.expected,
                "blocks": blocks,
                "bytes": held,
                "ended": mailbox.ended,
            }
        )
    return {
        "id": session.id,
        "explicit": session.explicit,
        "timeout": session.timeout,
        "idle": round(session.idle, 3),
        "requests": session.requests,
        "streams": streams,
    }


class _Changes:
    """Waits on the event loop for a mailbox or a budget to change. What changes after it is made is heard."""

    def __init__(self, seconds: float, *watched: Mailbox | Budget) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + seconds
        self._changed = asyncio.Event()
        self._removals = [each.add_listener(self._notify) for each in watched]

    def close(self) -> None:
        for remove in self._removals:
            remove()

    def _notify(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    def wake(self) -> None:
        """Ends a wait as a change does; on the event loop."""
        self._changed.set()

    async def wait(self) -> bool:
        """Until it changes, or the time is up: False."""
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        return True


async def get_block(call: Call) -> Reply:
    session = call.service.sessions.get(call.path["session"])
    number, count = call.path["number"], call.query.get("count", 1)
    mailbox = session.find_output(call.path["stream"])
    blocks, more = mailbox.poll_many(number, count)
    if more:
        blocks, more = await _awaited(call, session, mailbox, number, count)
        if more and not blocks:
            return Reply(status=202, headers={"Retry-After": "1"})
    return _blocks(call, mailbox, number, blocks)


async def _awaited(call: Call, session: Session, mailbox: Mailbox, number: int, count: int) -> tuple[list[Block], bool]:
    """The blocks once they are there, or what is there when the time is up; and whether more were to come."""
    changes = _Changes(call.query.get("wait", 0), mailbox)
    in_time = True
    try:
        while True:
            blocks, more = mailbox.poll_many(number, count)
            if not more or not in_time:
                return blocks, more
            with session.waiting():
                in_time = await changes.wait()
    finally:
        changes.close()


def _blocks(call: Call, mailbox: Mailbox, number: int, blocks: list[Block]) -> Reply:
    if not blocks:
        return Reply(status=204)
    call.access.rows = sum(block.rows for block in blocks)
    body = b"".join(memoryview(block.data) for block in blocks)
    headers = {"x-dai-blocks": str(len(blocks)), "x-block-rows": str(call.access.rows)}
    if mailbox.is_last(number + len(blocks) - 1):
        headers["x-block-last"] = "true"
    return Reply(body, mailbox.media_type, 200, headers)


async def put_block(call: Call) -> Reply:
    """Reads the body once there is room for it: until then it waits where it comes from."""
    service, number = call.service, call.path["number"]
    session = service.sessions.get(call.path["session"])
    mailbox = session.find_input(call.path["stream"])
    size = call.body_size(service.config.limits.block_bytes)
    changes = _Changes(call.query.get("wait", PUSH_WAIT), mailbox, service.sessions.budget)
    try:
        mailbox.check_offer(number)
        while (full := session.budget.reserve(size, mailbox.awaits(number))) is not None:
            with session.waiting():
                in_time = await changes.wait()
            if not in_time:
                raise _full(service.sessions.budget, full)
            mailbox.check_offer(number)
        try:
            await _offered(call, session, mailbox, changes)
        finally:
            session.budget.release(size)
    except ClosedError as error:
        if isinstance(error.__cause__, GoneError):  # the session has ended, not only who read the stream
            raise error.__cause__ from None
        raise GoneError("The request that read this stream has ended; nothing more can be pushed into it.") from error
    finally:
        changes.close()
    return Reply(status=204)


async def _offered(call: Call, session: Session, mailbox: Mailbox, changes: _Changes) -> None:
    number, last = call.path["number"], call.query.get("last", False)
    data = await call.body(call.service.config.limits.block_bytes)
    rows = call.header(b"x-block-rows") or ""
    block = Block(data, int(rows) if rows.isascii() and rows.isdigit() and len(rows) < 10 else 0)
    while not mailbox.offer(number, block, last):
        with session.waiting():
            in_time = await changes.wait()
        if not in_time:
            raise BackPressureError("The stream is full: its reader is behind.", hint="Send the block again.")


def _full(all: Budget, full: Budget) -> DaiError:
    if full is all:
        return BusyError(
            "The blocks of all sessions fill the room that the service has for them.", hint="Send the block again."
        )
    return BackPressureError(
        "Blocks that nobody has read yet fill the room that this session has for them.",
        hint="Read its output streams, then send the block again; a stream that a document reads goes on.",
    )


class _WholeStream:
    """All blocks that are left, one after the other. The first is awaited before the status line."""

    def __init__(self, session: Session, mailbox: Mailbox, number: int, first: Block) -> None:
        self._session, self._mailbox, self._number, self._first = session, mailbox, number, first

    async def send(self, call: Call) -> None:
        headers = [(b"content-type", self._mailbox.media_type.encode())]
        await call.send({"type": "http.response.start", "status": 200, "headers": headers})
        gone = asyncio.Event()
        changes = _Changes(call.service.config.limits.seconds or 1e9, self._mailbox)
        watching = asyncio.create_task(_disconnected(call, gone, changes))
        try:
            block: Block | None = self._first
            while block is not None and not gone.is_set():
                body = memoryview(block.data).cast("B")
                call.access.rows += block.rows
                await call.send({"type": "http.response.body", "body": body, "more_body": True})
                self._number += 1
                self._session.touch()
                block = await self._next(changes, gone)
            if not gone.is_set():
                await call.send({"type": "http.response.body", "body": b""})
        except DaiError as error:
            # returning without the last chunk makes the server close the connection
            call.access.error = error
        finally:
            changes.close()
            watching.cancel()

    async def _next(self, changes: _Changes, gone: asyncio.Event) -> Block | None:
        while True:
            blocks, more = self._mailbox.poll_many(self._number, 1)
            if blocks:
                return blocks[0]
            if not more:
                return None
            if gone.is_set():
                raise CancelledError("The client has gone.")
            with self._session.waiting():
                in_time = await changes.wait()
            if not in_time:
                raise LimitError("The stream took longer than a request may.")


async def _disconnected(call: Call, gone: asyncio.Event, changes: _Changes) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        continue
    gone.set()
    changes.wake()


async def get_stream(call: Call) -> Reply | _WholeStream:
    session = call.service.sessions.get(call.path["session"])
    mailbox = session.find_output(call.path["stream"])
    changes = _Changes(call.query.get("wait", MOST_WAIT), mailbox)
    try:
        while True:
            number = mailbox.acknowledged
            blocks, more = mailbox.poll_many(number, 1)
            if blocks:
                return _WholeStream(session, mailbox, number, blocks[0])
            if not more:
                return Reply(status=204)
            with session.waiting():
                in_time = await changes.wait()
            if not in_time:
                return Reply(status=202, headers={"Retry-After": "1"})
    finally:
        changes.close()


_SESSION = {"type": "object", "required": ["id", "timeout"]}
_NUMBER = Parameter("number", "of the block, from 0", int, "path", minimum=0, maximum=2**53)
_LAST = Parameter("last", "this block ends the stream", bool)


def _wait(default: int) -> Parameter:
    about = f"seconds to hold the answer ({default} where nothing is said)"
    return Parameter("wait", about, int, minimum=0, maximum=MOST_WAIT)


_STREAM = "/sessions/{session}/streams/{stream}"
_NOT_YET = Answer("Nothing is there yet; ask again", {}, {"Retry-After": "seconds"})

OPERATIONS = (
    Operation(
        "GET",
        _STREAM + "/blocks/{number}",
        get_block,
        "Pull a block, and as many after it as asked for; acknowledges all before it",
        {
            200: Answer(
                "The blocks, one after the other",
                {"*/*": None},
                {
                    "X-Dai-Blocks": "how many blocks these are",
                    "X-Block-Rows": "how many rows are in them",
                    "X-Block-Last": "true where the last is known to be the last of the stream",
                },
            ),
            202: _NOT_YET,
            204: Answer("The stream has ended before this block"),
        },
        parameters=(
            _NUMBER,
            Parameter("count", "blocks at once", int, minimum=1, maximum=MOST_BLOCKS),
            _wait(0),
        ),
        problems=(NotFoundError, ConflictError, GoneError),
        tag="sessions",
        quiet=True,
        head=False,
    ),
    Operation(
        "PUT",
        _STREAM + "/blocks/{number}",
        put_block,
        "Push a block; the same number again is the same block",
        {204: Answer("It is there")},
        parameters=(_NUMBER, _LAST, _wait(PUSH_WAIT)),
        body={"application/octet-stream": None, "*/*": None},
        body_required=False,
        problems=(NotFoundError, ConflictError, GoneError, TooLargeError, BackPressureError),
        tag="sessions",
        quiet=True,
    ),
    Operation(
        "POST",
        "/sessions",
        post_session,
        "Make a session",
        {201: Answer("The session", {JSON: _SESSION}, {"Location": "the session"})},
        body={
            JSON: {
                "type": "object",
                "additionalProperties": False,
                "properties": {"timeout": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 86400}},
            }
        },
        body_required=False,
        problems=(TooLargeError, UnsupportedMediaTypeError),
        tag="sessions",
    ),
    Operation(
        "GET",
        "/sessions/{session}",
        get_session,
        "A session and its streams",
        {200: Answer("The session", {JSON: _SESSION})},
        problems=(NotFoundError,),
        tag="sessions",
    ),
    Operation(
        "DELETE",
        "/sessions/{session}",
        delete_session,
        "End a session: what still runs in it stops",
        {204: Answer("It has ended")},
        problems=(NotFoundError,),
        tag="sessions",
    ),
    Operation(
        "GET",
        _STREAM,
        get_stream,
        "All blocks of a stream that are left",
        {
            200: Answer("The blocks, one after the other", {"*/*": None}),
            202: _NOT_YET,
            204: Answer("The stream has ended and all its blocks were taken"),
        },
        parameters=(_wait(MOST_WAIT),),
        problems=(NotFoundError, ConflictError, GoneError),
        tag="sessions",
        head=False,
    ),
)
