"""The outermost part of the application: each request gets an id, an answer whatever happens, a line in the log and a
place in the metrics."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from dai.api.monitoring.metrics import Metrics
from dai.api.monitoring.problems import Problems
from dai.api.monitoring.tracing import Tracing
from dai.api.problems import response
from dai.api.requests.digests import checked
from dai.api.requests.early import EarlyBodies
from dai.api.requests.head import check_head
from dai.api.requests.origins import asks_whether, check_host, shared_with
from dai.errors import BusyError, DaiError, InternalError, RequestError, code_of, of_memory
from dai.security.audit import Audit
from dai.security.identity import ANONYMOUS, OPEN, Caller, Head, Identification
from dai.service.quotas import Quotas
from dai.streams.tracing import Span, arrived

log = logging.getLogger("dai.access")
_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_AS_DATA = (
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"sandbox; default-src 'none'"),
)
"""Headers of each answer: a result that a browser shows as HTML runs no scripts and has no origin."""
_AS_A_PAGE = ((b"x-content-type-options", b"nosniff"), (b"content-security-policy", b"frame-ancestors 'none'"))
"""Headers of ``/docs``, which has scripts; no other page may embed it."""
_OF_A_CALLER = ((b"cache-control", b"private"),)
"""Of an answer to somebody who is not known by ``Authorization``, from which caches shared by many keep away by
themselves (RFC 9111 section 3.5)."""


@dataclass(slots=True)
class Access:
    """The caller of a request, and what the log and the metrics record of it; ``request.state.access``. ``stages``:
    seconds by name; ``sent``: bytes of the answer; ``quiet`` ones are logged below the level info and have no span,
    unless they fail; one that was ``moved`` another worker answers and counts. For the audit: the digest of the
    ``document`` or statement, the ``database_user`` that runs it, the ``job`` that it became and the ``session`` in
    which it ran. For another worker that asks again who asks: what to call before (``forget``), and the body as it was
    ``received``, where what is read is a part of it. ``span``: where it is in a trace."""

    id: str
    caller: Caller = ANONYMOUS
    began: float = field(default_factory=time.perf_counter)
    rows: int = 0
    sent: int = 0
    status: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    error: BaseException | None = None
    document: str | None = None
    database_user: str | None = None
    job: str | None = None
    session: str | None = None
    quiet: bool = False
    moved: bool = False
    forget: Callable[[], None] | None = None
    received: bytes | None = None
    span: Span | None = None


class AccessMiddleware:
    """Pure ASGI: what streams is not touched."""

    def __init__(
        self,
        app: ASGIApp,
        names: frozenset[str],
        origins: frozenset[str],
        metrics: Metrics,
        problems: Problems,
        identification: Identification,
        quotas: Quotas,
        audit: Audit,
        document_bytes: int,
        tracing: Tracing | None = None,
    ) -> None:
        self.app, self.names, self.origins = app, names, origins
        self.metrics, self.problems = metrics, problems
        self.identification, self.quotas, self.audit, self.tracing = identification, quotas, audit, tracing
        self.early = EarlyBodies(document_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        sane = _SANE_ID.fullmatch(headers.get(b"x-request-id", b"").decode("latin-1"))
        access = Access(sane[0] if sane else secrets.token_hex(8))
        scope.setdefault("state", {})["access"] = access
        if b"traceparent" in headers:
            access.span = arrived(scope["headers"])
        if self.tracing is not None and scope["path"] not in OPEN:
            access.span = self.tracing.request(scope["method"], scope["path"], scope["scheme"], access.span)
        kind = _AS_A_PAGE if scope["path"] == "/docs" else _AS_DATA
        added = (*kind, (b"x-request-id", access.id.encode()), *shared_with(headers, self.origins))
        if self.identification.asks and b"authorization" not in headers:
            added = (*added, *_OF_A_CALLER)

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                access.status = message["status"]
                message["headers"] = [*message["headers"], *added]
            else:
                access.sent += len(message.get("body", b""))
            await send(message)

        async def refuse(error: DaiError) -> None:
            access.error = error
            await response(error, Request(scope))(scope, receive, noted)

        try:
            check_head(scope)
            hosts = [value for name, value in scope["headers"] if name == b"host"]
            check_host(hosts, scope["http_version"], self.names)
            if (allowed := asks_whether(scope["method"], headers, self.origins)) is not None:
                access.quiet = True
                await noted({"type": "http.response.start", "status": 204, "headers": allowed})
                await noted({"type": "http.response.body", "body": b""})
                return
            if self.identification.asks and scope["path"] not in self.identification.open:
                with self.early.of(scope, receive) as early:
                    head = _head(scope, early.read)
                    access.caller = await self._caller(scope, head)
                access.forget = head.forget
                if head.document is not None:
                    access.received = early.body
                receive = early.again(head.document)
                if head.digests is not None:
                    receive = checked(receive, head.digests)
            if scope["method"] != "DELETE" and scope["path"] not in self.identification.open:
                self.quotas.check_day(access.caller.name)
            await self.app(scope, receive, noted)
        except ClientDisconnect as error:
            access.error = error
        except asyncio.CancelledError:
            # only a server that stops does this, when the time of grace is over
            access.error = BusyError("The service is stopping.", retry_after=10)
            if not access.status:
                await refuse(access.error)
        except Exception as error:
            access.error = access.error or error
            if access.status:
                raise
            if not isinstance(error, DaiError):
                log.error("request failed", exc_info=error, extra={"id": access.id})
                error = of_memory(error) or InternalError("The service failed; its log has the cause under this id.")
            await refuse(error)
        finally:
            self._note(scope, access)
            if sys.exc_info()[0] is None:
                _forget_frames(access.error)

    async def _caller(self, scope: Scope, head: Head) -> Caller:
        if sum(name == b"authorization" for name, _ in scope["headers"]) > 1:
            raise RequestError("The request has several Authorization headers; it may have one.")
        return await self.identification.caller(head)

    def _note(self, scope: MutableMapping[str, Any], access: Access) -> None:
        """Metrics, one line in the log, and one record in the audit."""
        if access.moved:
            return
        seconds = time.perf_counter() - access.began
        error, method, route = access.error, scope["method"], scope.get("route")
        path = route.path if route is not None and access.status != 405 else None
        broken = error is not None and access.status == 200
        if access.span is not None and self.tracing is not None and not (access.quiet and error is None):
            self.tracing.ended(access.span, method, path, access.status, error, broken)
        self.metrics.ended(
            path or "none",
            method if path else "other",
            access.status,
            seconds,
            rows=access.rows,
            sent=access.sent,
            stages=access.stages,
            broken=broken,
        )
        if broken and error is not None:
            self.problems.keep(access.id, error, access.rows, access.caller.name)
        self.quotas.sent(access.caller.name, access.sent)
        if self.audit.on and scope["path"] not in OPEN:
            self._record(scope, access, seconds, broken)
        level = logging.DEBUG if access.quiet and error is None else logging.INFO
        if not log.isEnabledFor(level):
            return
        values: dict[str, Any] = {
            "id": access.id,
            "caller": access.caller.name,
            "method": method,
            "route": path,
            "status": access.status,
            "rows": access.rows,
            "bytes": access.sent,
            "seconds": round(seconds, 6),
            "stages": {name: round(spent, 6) for name, spent in access.stages.items()},
        }
        if error is not None:
            values["error"] = code_of(error)
            values["broken"] = broken
        if "resource" in scope.get("path_params", ()):
            values["resource"] = scope["path_params"]["resource"]
        if access.span is not None:
            values["trace_id"] = access.span.trace_id
        log.log(level, "request", extra=values)

    def _record(self, scope: MutableMapping[str, Any], access: Access, seconds: float, broken: bool) -> None:
        caller, route, error = access.caller, scope.get("route"), access.error
        self.audit.record(
            "request",
            id=access.id,
            caller=caller.name or None,
            identified_by=caller.method,
            administrator=caller.administrator or None,
            address=_address(scope) or None,
            method=scope["method"],
            route=route.path if route is not None else None,
            **({"job": access.job, "session": access.session} | scope.get("path_params", {})),
            trace_id=access.span.trace_id if access.span is not None else None,
            document=access.document,
            database_user=access.database_user,
            status=access.status,
            outcome=code_of(error) if error is not None else "ok" if access.status < 400 else "refused",
            broken=broken or None,
            rows=access.rows,
            bytes=access.sent,
            seconds=round(seconds, 6),
        )


def _head(scope: Scope, read: Callable[[], Awaitable[bytes]]) -> Head:
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    target = scope["raw_path"] + query
    chain = scope.get("extensions", {}).get("tls", {}).get("client_cert_chain", ())
    certificate = next(iter(chain), None)
    return Head(scope["headers"], scope["method"], scope["scheme"], target, _address(scope), certificate, read)


def _address(scope: MutableMapping[str, Any]) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _forget_frames(error: BaseException | None) -> None:
    """They have all that the request had, its body too, and through it the error: nothing of that would be freed before
    the garbage of many requests is collected. And an error that is raised again for each reader would gather them."""
    while error is not None and error.__traceback__ is not None:
        error.__traceback__ = None
        _forget_frames(error.__context__)
        error = error.__cause__
