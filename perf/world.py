"""What the benchmarks run against: real databases with the demo data, and a data service in a process of its own."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from dai.demo.load import load
from tests.servers import MariaServer, PostgresServer

START_SECONDS = 30.0


@dataclass(frozen=True)
class World:
    """``service`` is the base URL; its resources are ``pg`` and ``maria``; table ``mixed`` has ``mixed_rows``;
    concurrent users ask for ``blocksizes`` rows a block."""

    postgres: PostgresServer
    mariadb: MariaServer
    service: str
    process: psutil.Process
    mixed_rows: int
    blocksizes: tuple[int, ...]

    def resource(self, name: str) -> str:
        return f"{self.service}/{name}"


@contextmanager
def world(mixed_rows: int = 1_000_000, blocksizes: tuple[int, ...] = (100, 1_000)) -> Iterator[World]:
    """Starts everything, loads the demo data into both databases, stops everything."""
    with (
        PostgresServer({"shared_buffers": "512MB"}) as postgres,
        MariaServer({"innodb_buffer_pool_size": "1G"}) as mariadb,
    ):
        for url in (postgres.url, mariadb.url):
            load(url)
            load(url, ["mixed"], mixed_rows)
        with service({"pg": postgres.url, "maria": mariadb.url}) as (base, process):
            yield World(postgres, mariadb, base, process, mixed_rows, blocksizes)


@contextmanager
def service(resources: dict[str, str], extra: str = "") -> Iterator[tuple[str, psutil.Process]]:
    """``dai serve`` over these databases; its base URL and its process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as directory:
        config = Path(directory) / "dai.toml"
        lines = [f'[service]\nport = {port}\nstate = "sqlite:///state.db"\n', extra]
        lines += [f'[resources.{name}]\nurl = "{url}"\n' for name, url in resources.items()]
        config.write_text("\n".join(lines))
        log = (Path(directory) / "service.log").open("wb")
        process = subprocess.Popen(
            [sys.executable, "-m", "dai", "serve", "--config", str(config)], stdout=log, stderr=log
        )
        try:
            base = f"http://127.0.0.1:{port}"
            _wait(base, process, Path(log.name))
            yield base, psutil.Process(process.pid)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
            process.kill()
            process.wait()
            log.close()


def _wait(base: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{base}/health/live", timeout=1):
            return
        time.sleep(0.05)
    raise RuntimeError(f"The service did not start:\n{log.read_text()[-2000:]}")
