"""A Ray cluster for tests and benchmarks, where nobody else can reach it.

Ray listens on all interfaces, whatever address it is told: its user runs in a network namespace that has none but
loopback (``ALONE`` before the command), and calls ``loopback_up`` there first.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.processes import until
from tests.servers import free_port

ALONE = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Needs root, or ``--map-root-user`` as well."""
SIOCSIFFLAGS, IFF_UP = 0x8914, 0x1
"""From netdevice(7)."""


def loopback_up() -> None:
    """In a new namespace, loopback is down."""
    with socket.socket() as any_socket:
        request = struct.pack("16sH14x", b"lo", IFF_UP)
        fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)


@contextmanager
def ray_cluster(cpus: int = 2) -> Iterator[str]:
    """The address of a cluster of one node; all its processes end with it, and its files go."""
    # The path of a socket has at most 107 characters, and Ray's have 60 below this.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        yield from _cluster(Path(directory), cpus)


def _cluster(directory: Path, cpus: int) -> Iterator[str]:
    port = free_port()
    command = [
        str(Path(sysconfig.get_path("scripts")) / "ray"), "start", "--head", "--block", f"--port={port}",
        "--node-ip-address=127.0.0.1", f"--num-cpus={cpus}", "--include-dashboard=false", "--disable-usage-stats",
        "--object-store-memory=80000000", f"--temp-dir={directory}",
    ]  # fmt: skip
    with (directory / "ray.log").open("w") as log:
        process = psutil.Popen(command, stdout=log, stderr=log, env={**os.environ, "RAY_DEDUP_LOGS": "0"})
    try:
        until(lambda: "Ray runtime started" in (directory / "ray.log").read_text())
        yield f"127.0.0.1:{port}"
    finally:
        below = process.children(recursive=True)
        process.terminate()
        _, alive = psutil.wait_procs([process, *below], timeout=20)
        for each in alive:
            each.kill()
