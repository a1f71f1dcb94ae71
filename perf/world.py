"""What the benchmarks run against: real databases with the demo data, and a data service in a process of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from examples.demo.load import load
from tests.processes import ServiceProcess
from tests.servers.mariadb import MariaServer
from tests.servers.postgresql import PostgresServer

SETTINGS: Mapping[str, Mapping[str, str | int]] = {
    "postgresql": {"shared_buffers": "2GB"},
    "mariadb": {"innodb_buffer_pool_size": "3G"},
}
"""Every table of the benchmarks fits into memory; all else is as the tests have it."""


@dataclass(frozen=True)
class World:
    """``service`` is the base URL; its resources are ``pg`` and ``maria``; table ``mixed`` has ``mixed_rows``;
    concurrent users ask for ``blocksizes`` rows a block; ``scale`` is that of TPC-H,
    TPC-DS and the laboratory, of which ``placements`` and ``queries`` are run (none: all); ``workers`` are compared
    with one; an XML collection has ``documents``."""

    postgres: PostgresServer
    mariadb: MariaServer
    service: str
    process: psutil.Process
    mixed_rows: int
    blocksizes: tuple[int, ...]
    scale: float
    placements: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    workers: int = 2
    documents: int = 100_000

    def resource(self, name: str) -> str:
        return f"{self.service}/{name}"


@contextmanager
def world(
    mixed_rows: int = 1_000_000, blocksizes: tuple[int, ...] = (100, 1_000), scale: float = 1.0
) -> Iterator[World]:
    """Starts everything, loads the demo data into both databases, stops everything."""
    with PostgresServer(SETTINGS["postgresql"]) as postgres, MariaServer(SETTINGS["mariadb"]) as mariadb:
        for url in (postgres.url, mariadb.url):
            load(url)
            load(url, ["mixed"], mixed_rows)
        with service({"pg": postgres.url, "maria": mariadb.url}) as (base, process):
            yield World(postgres, mariadb, base, process, mixed_rows, blocksizes, scale)


@contextmanager
def service(
    resources: dict[str, str],
    federations: Mapping[str, Mapping[str, Mapping[str, str]]] | None = None,
    workers: int = 1,
) -> Iterator[tuple[str, psutil.Process]]:
    """``dai serve`` over these databases, and federations of them; its base URL and its process."""
    with tempfile.TemporaryDirectory() as directory:
        running = ServiceProcess(Path(directory), resources, federations=federations or {}, workers=workers)
        try:
            running.start()
            assert running.process is not None
            yield running.url, running.process
        finally:
            running.stop()
