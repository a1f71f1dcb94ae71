"""Runs the service: uvicorn on uvloop and httptools, until it is told to stop."""

from __future__ import annotations

import signal
import socket
import sys
from types import FrameType
from typing import Any

import uvicorn

from dai.api.app import create_app
from dai.config import Config
from dai.errors import ConfigurationError

BACKLOG = 512
KEEP_ALIVE = 60
"""Seconds an idle connection stays open."""


class _Server(uvicorn.Server):
    """Says where it listens once it does."""

    def __init__(self, config: uvicorn.Config, greeting: str) -> None:
        super().__init__(config)
        self._greeting = greeting

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            print(self._greeting, flush=True)


def serve(config: Config) -> int:
    """Serve until SIGINT or SIGTERM; requests under way get ``service.grace`` seconds. Gives the exit code.

    Raises ConfigurationError where the address cannot be listened on, or for what the application refuses.
    """
    listening = _listening(config.service.host, config.service.port)
    host, port = listening.getsockname()[:2]
    settings = uvicorn.Config(
        create_app(config),
        loop="uvloop" if sys.platform != "win32" else "auto",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=round(config.service.grace),
    )
    server = _Server(settings, _greeting(config, host, port))
    # uvicorn raises the signal again after it has shut down: a wanted stop is no failure.
    signal.signal(signal.SIGTERM, _stopped)
    try:
        server.run(sockets=[listening])
    except KeyboardInterrupt:
        return 0
    finally:
        listening.close()
    return 0 if server.started else 1


def _stopped(number: int, frame: FrameType | None) -> Any:
    raise SystemExit(0)


def _listening(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        try:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind(address)
            listening.listen(BACKLOG)
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise ConfigurationError(
            f"The service cannot listen on {host}, port {port}: {error.strerror or error}.",
            hint="Is another one running? Choose a port with --port N (0 for a free one).",
        ) from error
    return listening


def _greeting(config: Config, host: str, port: int) -> str:
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    base = f"http://{shown}:{port}"
    names = [*config.resources, *config.federations]
    width = max(map(len, names), default=0)
    lines = [f"Data service at {base}", *(f"  {name:<{width}}  {base}/resources/{name}" for name in names)]
    if names:
        lines += ["Try:", f"  dai resources {names[0]} --server {base}", f'  dai query {base}/{names[0]} "select 1"']
    else:
        lines.append("It serves nothing yet: add [resources.NAME] with a url to the configuration.")
    if config.service.loopback:
        lines.append(f"Documentation of the HTTP API: {base}/docs. It listens on this machine only. Ctrl-C stops it.")
    else:
        lines.append("It listens beyond this machine, and whoever reaches it may ask: it does not know callers yet.")
    return "\n".join(lines)
