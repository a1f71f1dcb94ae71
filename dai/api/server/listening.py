"""Where the service listens."""

from __future__ import annotations

import resource
import socket
from contextlib import suppress

from dai.config import Config

MOST_FILES = 1 << 16
"""Open files and connections of a process."""


def allow_connections() -> None:
    """As many as the system lets this process have: by itself it begins with fewer (often 1,024)."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if most == resource.RLIM_INFINITY else min(most, MOST_FILES)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def scheme(config: Config) -> str:
    """Of the service's address."""
    return "http" if config.service.tls is None else "https"


def listen(config: Config) -> socket.socket:
    """A socket that is bound, and closed if that fails (OSError)."""
    family = socket.AF_INET6 if ":" in config.service.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((config.service.host, config.service.port))
    except BaseException:
        listening.close()
        raise
    return listening
