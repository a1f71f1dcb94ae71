"""The connections of the protocol. The requests of one connection are answered in order, on the event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

import re2

from dai.errors import ClosedError, ConfigurationError, DaiError
from dai.replicas.codes import Code, Refused, text
from dai.replicas.replicas import Replicas
from dai.replicas.rpc.calls import Rpc
from dai.replicas.rpc.changes import Failed, Submitted
from dai.replicas.rpc.methods import METHODS, Method

log = logging.getLogger("dai.replicas")

MOST_REQUEST = 64 << 20
"""Bytes of one request."""
PER_TEXT = 64
"""Bytes that each text of a request counts besides its own: what it takes in memory, however short it is."""
MOST_HELD = 4 * MOST_REQUEST
"""Bytes of the requests of all callers that have not come to their end; SMALL ones come in any case."""
MOST_UNREAD = 4 * MOST_REQUEST
"""Bytes of the answers that callers have not read yet: a further one may only be SMALL."""
UNREAD_SECONDS = 60.0
"""After which a connection is closed whose caller has read nothing of what waits."""
SMALL = 1 << 16
_MOST_NAME = 256
"""Bytes in which the name of a method must end."""
MOST_CONNECTIONS = 2000
TOO_MANY = 28
_OK = b"0\0"
_METHODS = {name.encode(): method for name, method in METHODS.items()}
Request = tuple[str, Method, list[str], list[list[str]]]
"""Name of the method, the method, its arguments."""
Noted = Callable[[str, str, int], None]
"""Called for each request with its method, the address that it came from, and the code of its answer."""


RIGHTS = ("lrc_read", "lrc_update", "rli_read", "rli_update", "stats", "admin", "all")


class Rules:
    """The rights of callers: lines ``REGEX: right …``, of which the first decides whose expression (RE2) matches the
    whole name of the caller. A caller of this protocol has no name; ``open_to_all``: everybody may everything where
    there are no lines. ConfigurationError for a line that cannot be read."""

    def __init__(self, lines: Sequence[str], open_to_all: bool) -> None:
        self._rules: list[tuple[Any, frozenset[str]]] = []
        self._otherwise = open_to_all and not lines
        for line in lines:
            expression, colon, rights = str(line).rpartition(":")
            granted = frozenset(rights.split())
            if not colon or not granted or granted - {*RIGHTS}:
                raise ConfigurationError(
                    f"replicas.acl: {line!r} is not a rule.",
                    hint=f"It looks like '.*: lrc_read'; rights: {', '.join(RIGHTS)}.",
                )
            try:
                self._rules.append((re2.compile(expression.strip()), granted))
            except re2.error as error:
                raise ConfigurationError(f"replicas.acl: {expression!r} is not a regular expression.") from error

    def allow(self, right: str, caller: str = "") -> bool:
        for expression, granted in self._rules:
            if expression.fullmatch(caller):
                return right in granted or "all" in granted
        return self._otherwise


class Server:
    """Listens at ``port`` (0: the system chooses one when it starts); ``may`` says whether a caller, who is not known,
    has a right; ``noted`` is told of each request."""

    def __init__(self, replicas: Replicas, may: Callable[[str], bool], port: int, noted: Noted | None = None) -> None:
        self._rpc, self._may, self.port, self._noted = Rpc(replicas), may, port, noted
        self._connected: set[Connection] = set()
        self._listening: asyncio.Server | None = None

    async def start(self, host: str) -> None:
        """ConfigurationError where the port is taken."""
        loop = asyncio.get_running_loop()
        try:
            self._listening = await loop.create_server(
                lambda: Connection(self._rpc, self._connected, self._may, self._noted), host, self.port, backlog=512
            )
        except OSError as error:
            raise ConfigurationError(
                f"replicas.rpc_port: the service cannot listen on {host} port {self.port}: {error.strerror}."
            ) from error
        self.port = int(self._listening.sockets[0].getsockname()[1])

    def stop(self) -> None:
        """Changes that are being written are committed; their callers get no answer."""
        if self._listening is not None:
            self._listening.close()
        for each in list(self._connected):
            each.abort()


class Connection(asyncio.Protocol):
    """One caller's. The texts that have arrived and are not used yet are in ``_texts`` from ``_at`` on; ``_rest`` is
    the last, which has not ended; ``_looked``: up to where a list was looked through for its end."""

    def __init__(
        self, rpc: Rpc, connected: set[Connection], may: Callable[[str], bool], noted: Noted | None = None
    ) -> None:
        self._rpc, self._connected, self._may, self._noted = rpc, connected, may, noted
        self._rest = bytearray()
        self._texts: list[bytes] = []
        self._at = self._looked = self._size = 0
        self._task: asyncio.Task[None] | None = None
        self._changing = False
        """A change of the catalog is waited for."""
        self._host = ""
        self._transport: asyncio.Transport
        self._writable = asyncio.Event()
        self._writable.set()
        self._looking: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # that of uvloop has another base
        if self._noted is not None:
            self._host = str((transport.get_extra_info("peername") or ("",))[0])
        if len(self._connected) >= MOST_CONNECTIONS:
            self._close(TOO_MANY, "Too many connections")
            return
        self._connected.add(self)
        self._transport.write(_OK)

    def connection_lost(self, error: Exception | None) -> None:
        self._connected.discard(self)
        for each in (self._task, self._looking):
            if each is not None:
                each.cancel()

    def abort(self) -> None:
        self._transport.abort()

    def pause_writing(self) -> None:
        self._writable.clear()
        self._look_later()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._looking is not None:
            self._looking.cancel()

    @property
    def unread(self) -> int:
        """Bytes that the caller has not read yet."""
        return self._transport.get_write_buffer_size()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(UNREAD_SECONDS, self._look, self.unread)

    def _look(self, before: int) -> None:
        if self.unread < before:
            self._look_later()
        else:
            self.abort()

    def data_received(self, data: bytes) -> None:
        self._size += len(data) + PER_TEXT * data.count(0)
        first, *texts = data.split(b"\0")
        self._rest += first
        if texts:
            self._texts += (bytes(self._rest), *texts[:-1])
            self._rest = bytearray(texts[-1])
        if self._size > MOST_REQUEST:
            most = f"a request has at most {MOST_REQUEST:,} bytes, where each text counts {PER_TEXT} more"
            self._close(Code.BADARG, text(Code.BADARG, most))
        elif self._size > SMALL and sum(each._size for each in self._connected) > MOST_HELD:
            self._close(TOO_MANY, "Too many large requests at once")
        elif self._task is None and not self._changing:
            self._serve()

    def _close(self, code: int, said: str) -> None:
        self._transport.write(_error(code, said))
        self._transport.close()

    def _serve(self) -> None:
        """Answers the requests that are here; one that takes time goes on in a task, after which come the others."""
        while not self._transport.is_closing() and (request := self._request()) is not None:
            name, method, before, items = request
            answer = self._answer(method, before, items)
            if isinstance(answer, Submitted):
                self._submit(name, answer)
                return
            if not isinstance(answer, bytes):
                self._task = asyncio.ensure_future(self._later(name, answer))
                return
            self._send(name, answer)
            if not self._writable.is_set():
                self._task = asyncio.ensure_future(self._later(name, None))
                return

    def _send(self, name: str, answer: bytes) -> None:
        if len(answer) > SMALL and sum(each.unread for each in self._connected) > MOST_UNREAD:
            answer = _error(TOO_MANY, "Too many large answers at once that are not read")
        self._transport.write(answer)
        if self._noted is not None:
            self._noted(name, self._host, int(answer[: answer.index(0)]))

    def _submit(self, name: str, submitted: Submitted) -> None:
        self._changing = True
        answered, loop = partial(self._changed, name, submitted), asyncio.get_running_loop()
        try:
            self._rpc.catalog.tell(submitted.operation, submitted.items, loop, answered)
        except ClosedError as error:
            loop.call_soon(answered, error)

    def _changed(self, name: str, submitted: Submitted, codes: list[Code] | Exception) -> None:
        self._changing = False
        if self._transport.is_closing():
            return
        try:
            answer = _failure(codes) if isinstance(codes, Exception) else _success(submitted.results(codes))
        except Failed as error:
            answer = _failure(error)
        self._send(name, answer)
        if not self._writable.is_set():
            self._task = asyncio.ensure_future(self._later(name, None))
        elif self._texts:
            self._serve()

    async def _later(self, name: str, answer: Coroutine[Any, Any, bytes] | None) -> None:
        if answer is not None:
            self._send(name, await answer)
        await self._writable.wait()
        self._task = None
        self._serve()

    def _request(self) -> Request | None:
        """The next request, once all of it is here."""
        texts, at = self._texts, self._at
        while at < len(texts) and texts[at].isdigit():
            at += 1  # some clients send offset and limit where none are taken
        self._at = at
        if at == len(texts):
            self._advance(at)
            if len(self._rest) > _MOST_NAME:
                self._close(Code.BADMETHOD, text(Code.BADMETHOD, self._rest[:60].decode(errors="replace")))
            return None
        if texts[at] == b"close":
            self._transport.close()
            return None
        name = texts[at]
        method = _METHODS.get(name)
        if method is None:
            self._close(Code.BADMETHOD, text(Code.BADMETHOD, name[:60].decode(errors="replace")))
            return None
        begin = at + 1
        end = begin + method.before
        if end > len(texts):
            self._await(method)
            return None
        items: list[bytes] = []
        before = texts[begin:end]
        if method.items:
            listed, end = end, max(end, self._looked)
            while end < len(texts) and texts[end]:
                end += method.items
            if end >= len(texts):
                self._looked = end
                self._await(method)
                return None
            items = texts[listed:end]
            end += 1
        self._advance(end)
        try:
            return name.decode(), method, [each.decode() for each in before], _decoded(items, method.items)
        except UnicodeDecodeError:
            self._close(Code.BADARG, text(Code.BADARG, "texts are UTF-8"))
            return None

    def _await(self, method: Method) -> None:
        """The end of a request, unless it is long and will be refused."""
        if self._size > SMALL and not self._may(method.right):
            self._close(Code.PERM, text(Code.PERM, method.right))

    def _advance(self, end: int) -> None:
        self._at = end
        self._looked = 0
        if end == len(self._texts):
            self._texts, self._at, self._size = [], 0, len(self._rest)

    def _answer(
        self, method: Method, before: list[str], items: list[list[str]]
    ) -> bytes | Submitted | Coroutine[Any, Any, bytes]:
        try:
            if not self._may(method.right):
                raise Refused(Code.PERM, method.right)
            answer = method.run(self._rpc, before, items)
        except Exception as error:  # noqa: BLE001 - the boundary of the protocol
            return _failure(error)
        if isinstance(answer, Submitted):
            return answer
        return _response(answer) if asyncio.iscoroutine(answer) else _success(answer)


def _decoded(texts: list[bytes], width: int) -> list[list[str]]:
    """Items of so many texts; all are decoded together, which takes less."""
    if not texts:
        return []
    decoded = b"\0".join(texts).decode().split("\0")
    return [decoded[at : at + width] for at in range(0, len(decoded), width)]


async def _response(answer: Coroutine[Any, Any, list[str]]) -> bytes:
    try:
        return _success(await answer)
    except Exception as error:  # noqa: BLE001 - the boundary of the protocol
        return _failure(error)


def _success(texts: list[str]) -> bytes:
    return _OK + ("\0".join(texts) + "\0").encode() if texts else _OK


def _failure(error: Exception) -> bytes:
    match error:
        case Refused():
            return _error(error.code, str(error))
        case Failed():
            return _error(error.code, error.text)
        case DaiError():
            return _error(Code.DBERROR, text(Code.DBERROR, error.detail))
    log.error("a request failed", exc_info=error)
    return _error(Code.GLOBUSERR, text(Code.GLOBUSERR))


def _error(code: int, said: str) -> bytes:
    return f"{int(code)}\0{said}\0".encode()
