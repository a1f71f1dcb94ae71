"""The SOAP interface of the store: WS-Context 1.0 (OASIS, namespace ``NAMESPACE``) over SOAP 1.1, document/literal.

An activity is a document of the store: its identifier is the document's id as ``urn:uuid:``, its contents the document,
its timeout the lease. Each operation is a request and its response in one exchange of HTTP, the context on which it
works in the header; the standard's callbacks to a ``UserContextService`` are not offered. Bytes to bytes: no HTTP.
"""

from __future__ import annotations

import datetime
import math
import time
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from lxml import etree

from dai.errors import ConflictError, DaiError, DocumentError, NotFoundError, ParameterError
from dai.security.identity import Caller
from dai.service import soap
from dai.service.contexts.contexts import Contexts
from dai.service.contexts.memory import Stored
from dai.service.soap import SOAP, envelope, opened, tree

NAMESPACE = "http://docs.oasis-open.org/ws-caf/2005/10/wsctx"
MEDIA_TYPE = "application/vnd.dai.wsctx+xml"
"""Of documents that are contents of activities."""
_WSDL = Path(__file__).with_name("wsctx.wsdl")
_ENVELOPE_BYTES = 16_384
_FAULTS: tuple[tuple[type[DaiError], str], ...] = (
    (NotFoundError, "InvalidContextFault"),
    (ConflictError, "ChildActivityPendingFault"),
    (DocumentError, "InvalidContextStructureFault"),
    (ParameterError, "TimeoutOutOfRangeFault"),
)
Wait = Callable[[Future[Any]], Coroutine[Any, Any, Any]]
Read = Callable[..., Coroutine[Any, Any, Stored]]


def wsdl(address: str) -> bytes:
    """The description of the interface at that address."""
    return _WSDL.read_bytes().replace(b"{address}", escape(address, {'"': "&quot;"}).encode())


@dataclass(frozen=True)
class Call:
    """``operation``: the name of the element in the body, which is ``element``; ``context``: an id of the store."""

    operation: str
    element: Any
    context: str | None


def parsed(message: bytes, most: int) -> Call:
    """DocumentError for what is no envelope with one call; ``most``: bytes of contents."""
    root, call = opened(message, NAMESPACE, most + _ENVELOPE_BYTES)
    return Call(etree.QName(call).localname, call, _context(root))


def _context(root: Any) -> str | None:
    headers = root.findall(f"{{{SOAP}}}Header/{{{NAMESPACE}}}context")
    if not headers:
        return None
    text = (headers[0].findtext(f"{{{NAMESPACE}}}context-identifier") or "").strip()
    try:
        return uuid.UUID(text.removeprefix("urn:uuid:")).hex
    except ValueError as error:
        raise DocumentError(f"The context-identifier {text[:100]!r} is not from this service.") from error


class ContextService:
    """For one caller. ``wait`` awaits a change of the store, ``read`` asks it in a thread; ``address``: its own."""

    def __init__(self, contexts: Contexts, caller: Caller, wait: Wait, read: Read, address: str) -> None:
        self._contexts, self._caller = contexts, caller
        self._wait, self._read, self._address = wait, read, address
        self._operations: dict[str, Callable[[Call], Coroutine[Any, Any, str]]] = {
            "begin": self._begin,
            "complete": self._complete,
            "getStatus": self._get_status,
            "getTimeout": self._get_timeout,
            "setTimeout": self._set_timeout,
            "getContents": self._get_contents,
            "setContents": self._set_contents,
        }

    async def answer(self, message: bytes, most: int) -> tuple[int, bytes]:
        """Status and message."""
        try:
            call = parsed(message, most)
            operation = self._operations.get(call.operation)
            if operation is None:
                known = ", ".join(self._operations)
                raise DocumentError(
                    f"There is no operation {call.operation[:100]!r}.", hint=f"The operations are {known}."
                )
            return 200, envelope(await operation(call), NAMESPACE)
        except DaiError as error:
            return 500, fault(error)

    async def _begin(self, call: Call) -> str:
        kind = (call.element.findtext(f"{{{NAMESPACE}}}type") or "").strip()
        seconds = _timeout(call.element)
        parents = []
        if call.context is not None:
            parents = [(await self._activity(call)).id]
        content = etree.tostring(_contents(kind))
        stored = await self._wait(self._contexts.create(content, MEDIA_TYPE, self._caller, seconds, parents))
        return f"<begun>{self._described(stored, kind)}</begun>"

    async def _complete(self, call: Call) -> str:
        await self._wait(self._contexts.end((await self._activity(call)).id, self._caller))
        return "<completed/>"

    async def _get_status(self, call: Call) -> str:
        await self._activity(call)
        return "<status>activity.status.ACTIVE</status>"

    async def _get_timeout(self, call: Call) -> str:
        return f"<timeout>{math.ceil((await self._activity(call)).expires - time.time())}</timeout>"

    async def _set_timeout(self, call: Call) -> str:
        seconds = _timeout(call.element)
        if seconds is None:
            raise ParameterError("setTimeout needs a timeout in seconds.")
        activity = await self._activity(call)
        await self._wait(self._contexts.renew(activity.id, self._caller, seconds, exact=True))
        return "<timeoutSet/>"

    async def _get_contents(self, call: Call) -> str:
        stored = await self._activity(call)
        # whoever may replace a document may have put anything there
        return etree.tostring(tree(stored.content, len(stored.content)), encoding="unicode")

    async def _set_contents(self, call: Call) -> str:
        activity = await self._activity(call)
        kind = tree(activity.content, len(activity.content)).get("type", "")
        content = etree.tostring(_contents(kind, call.element))
        await self._wait(self._contexts.replace(activity.id, self._caller, None, content, MEDIA_TYPE))
        return "<contentsSet/>"

    async def _activity(self, call: Call) -> Stored:
        """On which the call works. NotFoundError for other documents of the store, too."""
        if call.context is None:
            raise DocumentError(f"{call.operation} needs the context of an activity in the header of the message.")
        stored = await self._read(self._contexts.get, call.context, self._caller)
        if stored.media_type != MEDIA_TYPE:
            raise NotFoundError(f"{call.context!r} is not an activity.")
        return stored

    def _described(self, stored: Stored, kind: str) -> str:
        until = datetime.datetime.fromtimestamp(stored.expires, datetime.UTC).isoformat(timespec="milliseconds")
        parts = [f"<context-identifier>{_urn(stored.id)}</context-identifier>"]
        parts.append(f"<context-service>{escape(self._address)}</context-service>")
        if kind:
            parts.append(f"<type>{escape(kind)}</type>")
        parts += [
            f"<parent-context><context-identifier>{_urn(each)}</context-identifier></parent-context>"
            for each in stored.parents
        ]
        return f'<context expiresAt="{until}">{"".join(parts)}</context>'


def fault(error: DaiError) -> bytes:
    """A SOAP fault; ``detail`` names the fault of WS-Context, or else the code of the error."""
    name = next((name for kind, name in _FAULTS if isinstance(error, kind)), None)
    detail = f'<{name} xmlns="{NAMESPACE}"/>' if name else f'<problem xmlns="urn:dai:problem">{error.code}</problem>'
    return soap.fault(error, detail)


def _contents(kind: str, of: Any = None) -> Any:
    """Those of an activity of that type: what is in an element, or nothing."""
    tag = f"{{{NAMESPACE}}}contents"
    if of is None:
        element = etree.Element(tag, nsmap={"w": NAMESPACE})
    else:
        element = of  # children that move elsewhere would each bring all namespaces along
        element.tag, element.tail = tag, None
        element.attrib.clear()
    if kind:
        element.set("type", kind)
    return element


def _timeout(element: Any) -> float | None:
    """Seconds that the call asks for, by ``timeout`` or until ``expiresAt``; ParameterError for what is over."""
    text, until = element.findtext(f"{{{NAMESPACE}}}timeout"), element.get("expiresAt")
    try:
        if text is not None:
            seconds = float(int(text))
        elif until is not None:
            moment = datetime.datetime.fromisoformat(until.strip())
            moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=datetime.UTC)
            seconds = moment.timestamp() - time.time()
        else:
            return None
    except (ValueError, OverflowError) as error:
        raise ParameterError("The timeout is not a number of seconds, or expiresAt is not a time.") from error
    if not 0 < seconds < 1e9:
        raise ParameterError("The timeout must end in the future.", hint="Give a number of seconds above 0.")
    return seconds


def _urn(id: str) -> str:
    return uuid.UUID(id).urn
