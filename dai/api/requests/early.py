"""Bodies that are read to identify their senders: bounded together, and kept for the route."""

from __future__ import annotations

from functools import cached_property
from types import TracebackType
from typing import Self

from starlette.requests import Request
from starlette.types import Message, Receive, Scope

from dai.api.requests.body import Body
from dai.errors import BusyError
from dai.security.attempts import origin_of

AT_ONCE = 16
"""So many of the largest documents may be in memory before their senders are identified."""
FROM_ONE = 4
"""So many of them from one address, or one network of IPv6."""


class EarlyBodies:
    """Those of a service, of at most ``limit`` bytes each."""

    def __init__(self, limit: int) -> None:
        self.limit, self.held = limit, 0
        self.by_sender = dict[str, int]()

    def hold(self, sender: str, size: int) -> None:
        """BusyError where there is no room."""
        held = self.by_sender.get(sender, 0) + size
        if self.held + size > AT_ONCE * self.limit or held > FROM_ONE * self.limit:
            raise BusyError("The service is checking the signatures of too many documents at once.")
        self.held += size
        self.by_sender[sender] = held

    def release(self, sender: str, size: int) -> None:
        self.held -= size
        if left := self.by_sender.pop(sender, 0) - size:
            self.by_sender[sender] = left

    def of(self, scope: Scope, receive: Receive) -> EarlyBody:
        return EarlyBody(self, scope, receive)


class EarlyBody:
    """The body of one request. Leaving the context means that the caller is identified."""

    def __init__(self, all: EarlyBodies, scope: Scope, receive: Receive) -> None:
        self._all, self._scope, self._receive = all, scope, receive
        self._held = 0
        self.body: bytes | None = None
        """None: nobody has asked for it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._held:
            self._all.release(self._sender, self._held)
            self._held = 0

    @cached_property
    def _sender(self) -> str:
        return origin_of((self._scope.get("client") or ("",))[0])

    async def read(self) -> bytes:
        """As ``Body.read``; BusyError where other bodies have all the room."""
        if self.body is None:
            self.body = await Body(Request(self._scope, self._counted)).read(self._all.limit)
        return self.body

    async def _counted(self) -> Message:
        message = await self._receive()
        size = len(message.get("body", b""))
        self._all.hold(self._sender, size)
        self._held += size
        return message

    def again(self, document: bytes | None) -> Receive:
        """What the route reads: the ``document`` that was signed, if there is one, else the body itself."""
        if self.body is None:
            return self._receive
        waiting = [self.body if document is None else document]

        async def receive() -> Message:
            if waiting:
                return {"type": "http.request", "body": waiting.pop(), "more_body": False}
            return await self._receive()

        return receive
