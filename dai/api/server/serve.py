"""The application on an HTTP server in this process: in the foreground for ``dai serve``, in a thread for tests and the
demo."""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn

from dai.api.app import create_app
from dai.api.server import memory
from dai.api.server.listening import listen, scheme
from dai.api.server.protocol import protocol
from dai.api.server.supervisor import ending_seconds
from dai.api.server.tls import Certificate
from dai.api.service import Service
from dai.api.workers.member import HOME, Member
from dai.config import Config
from dai.config.database_files import address
from dai.errors import ConfigurationError, DaiError
from dai.replicas.rpc.server import Rules
from dai.replicas.rpc.server import Server as RpcServer
from dai.service.resources import Resource

log = logging.getLogger("dai.api")


def _settings(service: Service, http: str | None = None) -> uvicorn.Config:
    config = service.config
    return uvicorn.Config(
        create_app(service),
        host=config.service.host,
        port=config.service.port,
        http=http or protocol(config.limits.receive_seconds, service.member),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=math.ceil(config.service.grace),
        timeout_keep_alive=75,
        backlog=2048,
    )


def rpc_server(service: Service) -> RpcServer | None:
    """The port of the original replica protocol; None where it is not served."""
    settings = service.config.replicas
    if service.replicas is None or settings.rpc_port is None:
        return None
    rules = Rules(settings.acl, open_to_all=not service.config.identity.methods)
    audit = service.audit

    def noted(method: str, address: str, code: int) -> None:
        audit.record("rpc", method=method, address=address or None, status=code, outcome="refused" if code else "ok")

    return RpcServer(service.replicas, rules.allow, settings.rpc_port, noted if audit.on else None)


class _Server(uvicorn.Server):
    """Tells the service when its time of grace begins."""

    _watching: asyncio.Future[None] | None = None

    def __init__(self, service: Service, http: str | None = None) -> None:
        super().__init__(_settings(service, http))
        self._service = service
        self._certificate = Certificate(tls) if (tls := service.config.service.tls) is not None else None
        if self._certificate is not None:
            self.config.load()
            self.config.ssl = self._certificate.context
        self.rpc = rpc_server(service)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.rpc is not None:
            await self.rpc.start(self._service.config.service.host)
        await super().startup(sockets)
        if self.started and self._certificate is not None:
            self._watching = asyncio.ensure_future(self._certificate.watch())
        if self.started and (member := self._service.member) is not None:
            member.peers.start(self._take, self._service.woken, self._service.answer)

    async def _take(self, connection: socket.socket | None, origin: bytes, read: bytes, accepted: bool) -> None:
        """A connection that another process of the service hands over, with what it has read; None: it was lost."""
        member = self._service.member
        assert member is not None

        def create() -> asyncio.Protocol:
            kind: Any = self.config.http_protocol_class
            created = kind(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
            created.origin, created.handed = origin, read
            return created  # type: ignore[no-any-return]

        tls = self._certificate.context if accepted and self._certificate is not None else None
        try:
            if connection is None:
                log.warning("a connection was lost: no more files can be opened")
            else:
                await asyncio.get_running_loop().connect_accepted_socket(create, connection, ssl=tls)
        except OSError as error:  # as of a client that speaks no TLS
            log.debug("a connection was not opened", exc_info=error)
        finally:
            if accepted:
                member.table.set("accepted", member.table.get("accepted") + 1)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.stopping()
        if self._watching is not None:
            self._watching.cancel()
        if self.rpc is not None:
            self.rpc.stop()
        if self._service.member is not None:
            self._service.member.peers.stop()
        await super().shutdown(sockets)


class Process(_Server):
    """That of ``dai serve``: tells when it answers requests, and ends the process whatever its threads wait for."""

    def __init__(self, service: Service, announce: Callable[[], None]) -> None:
        super().__init__(service)
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            if self._certificate is not None:
                asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._certificate.reload)
            self._announce()
            member = self._service.member
            if member is None or member.identities.number == HOME:  # one of them has all resources
                resources = self._service.resources.values()
                self._telling = asyncio.gather(*(_tell_if_away(self._service, each) for each in resources))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # Python waits for all its threads, and some may wait for a database that does not answer
        threading.Thread(
            target=_end_process, args=(ending_seconds(self._service.config),), name="end of grace", daemon=True
        ).start()
        await super().shutdown(sockets)


def _end_process(seconds: float) -> None:
    time.sleep(seconds)
    log.warning("the process ends though threads still wait for a database")
    os._exit(0)


async def _tell_if_away(service: Service, resource: Resource) -> None:
    """Logs databases that do not answer, and files that cannot be read, so that a wrong password or path is noticed at
    start; the service serves the others. The log may name the database's address, answers may not."""
    config = service.config.resources.get(resource.name)
    place = address(config.url) if config is not None and config.url is not None else None
    try:
        await service.check(resource)
        if resource.driver.fixed:
            for table, why in (await service.unreadable(resource)).items():
                said = {"resource": resource.name, "table": table, "detail": why}
                log.warning("a table of files cannot be read", extra=said)
    except DaiError as error:
        log.warning(
            "the database of a resource does not answer",
            extra={"resource": resource.name, "error": error.code, "detail": error.detail, "at": place},
        )


def bounded(config: Config, member: Member | None = None) -> Service:
    """The service of this process, whose memory is bounded once it has what it begins with."""
    if config.limits.memory_bytes:
        memory.give_back()  # before an evaluator begins, which keeps what it frees (keep_freed_memory)
    service = Service(config, member)
    # Workers that all have every resource have as much to do.
    memory.bound(config.limits.memory_bytes, member.identities.workers if member is not None and member.alone else 1)
    return service


def run(server: uvicorn.Server, sockets: list[socket.socket]) -> int:
    """In the main thread of a process; its exit status."""
    _collect_seldom()
    _run(server, sockets)
    gc.unfreeze()  # else what is left of DuckDB's modules at the end complains
    return 0 if server.started else 1


def _collect_seldom() -> None:
    """Rows in flight are many small objects without cycles, which the collector would look through again and again."""
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _run(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
    # it exits the process where the application cannot start
    with suppress(SystemExit):
        server.run(sockets)


@dataclass(frozen=True)
class Background:
    """A running server; ``rpc_port``: of the original replica protocol, where it is served."""

    url: str
    service: Service
    rpc_port: int | None = None


@contextmanager
def background(config: Config, http: str | None = None) -> Iterator[Background]:
    """Serves in a thread of this process while the block runs. Port 0 takes a free one. Raises what keeps it from
    starting."""
    with listen(config) as listening:
        server = _Server(service := Service(config), http)
        host, port = listening.getsockname()[:2]
        thread = threading.Thread(target=_run, args=(server, [listening]), name="server", daemon=True)
        thread.start()
        try:
            while not server.started:
                if not thread.is_alive():
                    raise ConfigurationError("The service could not be started.")
                time.sleep(0.002)
            rpc_port = server.rpc.port if server.rpc is not None else None
            yield Background(f"{scheme(config)}://{host}:{port}", service, rpc_port)
        finally:
            server.should_exit = True
            thread.join()
