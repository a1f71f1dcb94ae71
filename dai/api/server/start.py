"""``dai serve``: checks where it may listen, and begins to serve in this process or in several.

A supervisor needs neither the application nor its libraries: it begins a second earlier without them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from dai.api.monitoring.logs import configure
from dai.api.server import memory
from dai.api.server.listening import allow_connections, listen, scheme
from dai.api.server.refusals import refusals
from dai.api.server.supervisor import Supervisor, possible_workers
from dai.config import Config
from dai.errors import ConfigurationError

log = logging.getLogger("dai.api")


def _nothing(url: str) -> None:
    """Does nothing: the start is not announced."""


def serve(config: Config, announce: Callable[[str], None] = _nothing) -> int:
    """Serves until it is told to stop by a signal; the exit status of the process. ``announce`` is called with the
    address once requests are answered. ConfigurationError for what cannot be served, before anything is."""
    configure()
    allow_connections()
    if (refusal := next(refusals(config), None)) is not None:
        raise refusal
    if not config.service.loopback and not config.identity.methods:
        log.warning("everybody who can reach the port may send requests", extra={"host": config.service.host})
    try:
        listening = listen(config)
    except OSError as error:
        raise ConfigurationError(
            f"The service cannot listen on {config.service.host} port {config.service.port}: {error.strerror}.",
            hint="Another program may be using the port; choose another with --port.",
        ) from error
    host, port = listening.getsockname()[:2]
    url = f"{scheme(config)}://[{host}]:{port}" if ":" in host else f"{scheme(config)}://{host}:{port}"

    def announced() -> None:
        log.info("listening", extra={"url": url, "resources": sorted(config.resources)})
        announce(url)

    workers = possible_workers(config)
    if workers:
        return Supervisor(config, workers, listening).run(announced)
    os.environ.update(memory.ALLOCATORS)
    from dai.api.server.serve import Process, bounded, run

    return run(Process(bounded(config), announced), [listening])
