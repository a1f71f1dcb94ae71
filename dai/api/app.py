"""The service as an ASGI application: a request's way from its first line to its last."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

from dai.api.call import Call, Disconnected, Receive, Send, Sendable
from dai.api.openapi import document
from dai.api.operations import Router
from dai.api.origins import check_host, check_page, own_names
from dai.api.replies import problem_reply
from dai.api.routes import health, jobs, perform, problems, resources, sessions
from dai.api.service import Service
from dai.config import Config
from dai.errors import BusyError, DaiError, InternalError

log = logging.getLogger("dai.access")

OPERATIONS = (
    *sessions.OPERATIONS,
    *perform.OPERATIONS,
    *resources.OPERATIONS,
    *jobs.OPERATIONS,
    *problems.OPERATIONS,
    *health.OPERATIONS,
)


@cache
def openapi_document() -> dict[str, Any]:
    return document(OPERATIONS)


class Application:
    """ASGI 3. The service is made at ``lifespan.startup`` and closed at ``lifespan.shutdown``."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.router = Router(OPERATIONS)
        self.names = own_names(config.service)
        self.service: Service | None = None
        self.failure: DaiError | None = None
        """What kept the service from starting."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        return openapi_document()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http" and self.service is not None:
            await self._answer(Call(self.service, {**scope, "app": self}, receive, send))
        else:
            raise RuntimeError(f"Nothing answers {scope['type']!r} here.")

    async def _answer(self, call: Call) -> None:
        try:
            try:
                call.check_head()
                check_host(call.values(b"host"), call.scope["http_version"], self.names)
                operation, path = self.router.find(call.scope["method"], call.scope["path"])
                if not operation.reads:
                    check_page(call.headers, self.names)
                call.check(operation, path)
                reply: Sendable | None = await operation.handler(call)
            except DaiError as error:
                if call.status:
                    raise
                reply = problem_reply(call, error)
            except Disconnected as error:
                call.error = error
                return
            except Exception as error:
                if call.status:
                    raise
                log.error("request failed", exc_info=error, extra={"id": call.id})
                reply = problem_reply(call, InternalError("The service failed; its log says more under this id."))
            if reply is not None:
                await reply.send(call)
        except asyncio.CancelledError:
            # only a server that stops does this, when the time of grace is over
            call.error = BusyError("The service stops.", retry_after=10)
            if not call.status:
                await problem_reply(call, call.error).send(call)
        except BaseException as error:
            call.error = call.error or error
            raise
        finally:
            self._note(call)

    def _note(self, call: Call) -> None:
        """Metrics, and one line in the log."""
        seconds = time.perf_counter() - call.began
        error = call.error
        broken = error is not None and call.status == 200
        operation = call.operation
        call.service.metrics.ended(
            operation.path if operation is not None else "none",
            call.scope["method"] if operation is not None else "other",
            call.status,
            seconds,
            rows=call.rows,
            sent=call.sent,
            stages=call.stages,
            broken=broken,
        )
        if broken and error is not None:
            call.service.problems.keep(call.id, error, call.rows)
        quiet = call.operation is not None and call.operation.quiet and error is None
        level = logging.DEBUG if quiet else logging.INFO
        if not log.isEnabledFor(level):
            return
        values: dict[str, Any] = {
            "id": call.id,
            "method": call.scope["method"],
            "route": call.operation.path if call.operation is not None else None,
            "status": call.status,
            "rows": call.rows,
            "bytes": call.sent,
            "seconds": round(seconds, 6),
            "stages": {name: round(spent, 6) for name, spent in call.stages.items()},
        }
        if error is not None:
            values["error"] = error.code if isinstance(error, DaiError) else type(error).__name__
            values["broken"] = broken
        if "resource" in call.path:
            values["resource"] = call.path["resource"]
        log.log(level, "request", extra=values)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        loop = asyncio.get_running_loop()
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                try:
                    self.service = await loop.run_in_executor(None, Service, self.config)
                except DaiError as error:
                    self.failure = error
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                    return
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                if self.service is not None:
                    await loop.run_in_executor(None, self.service.close)
                await send({"type": "lifespan.shutdown.complete"})
                return


def create_app(config: Config) -> Application:
    """The application of a configuration. Nothing is opened before it starts."""
    return Application(config)
