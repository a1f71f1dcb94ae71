"""`dai serve` as a process of its own: what tests kill, stop, fill and count."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import ssl
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import httpx
import psutil

from tests.forks import Forked
from tests.servers import free_port

ROOT = Path(__file__).parents[1]
SECONDS = 90.0
"""After which what is waited for does not come any more, on a busy machine too; a test has 480."""

WORKERS = int(os.environ.get("TEST_WORKERS", "1"))
"""Processes of a service, where a test does not say: ``TEST_WORKERS=2 pytest tests/faults`` runs all with two."""


WRITABLE = {"policy": {"write": ["*", "anonymous"]}}
"""The section of a configuration by which whoever may ask may also write."""


def until(condition: Callable[[], Any], seconds: float = SECONDS) -> float:
    """Waits for the condition; the seconds it took. Fails after ``seconds``. What takes long is looked at less often:
    a look may be a request or a session of a database."""
    began = time.monotonic()
    while not condition():
        waited = time.monotonic() - began
        assert waited < seconds, "it never came true"
        time.sleep(min(max(0.01, waited / 10), 0.2))
    return time.monotonic() - began


def address_of(answer: httpx.Response) -> tuple[str, int]:
    """The client's end of the connection on which the answer came."""
    host, port = answer.extensions["network_stream"].get_extra_info("client_addr")
    return str(host), int(port)


def _connections(metrics: Mapping[str, float], name: str) -> tuple[int, int]:
    opened, idle = (metrics[f'dai_pool_connections{{resource="{name}",state="{state}"}}'] for state in ("open", "idle"))
    return int(opened), int(idle)


@dataclass
class ServiceProcess:
    """A service in front of ``resources`` (name to URL), with its files in ``directory``, its temporary ones included.
    ``federations``: by name, alias to what its source is (``resource`` or ``url``), with ``evaluators``.
    ``roles``: by name, their keys. ``collections``: resources of XML collections, by name. ``delivery``: addresses to
    which it may deliver. ``identity``: methods by which it knows its callers. ``audit``: the file of its audit.
    ``tls``: its certificate, with its key beside it; ``client_ca``: the authority of certificates that it asks for.
    ``more``: further sections of its configuration. ``anew``: begun without a fork, for modules of the test's own, or
    so that it takes a second to start.

    Killed or stopped it can be started again: the same port, the same state. ``largest_file``: bytes after which it
    finds the disk full, 0 for no such limit.
    """

    directory: Path
    resources: Mapping[str, str]
    limits: Mapping[str, float] = field(default_factory=dict)
    results: Path | None = None
    grace: float = 0.5
    pool_size: int = 16
    largest_file: int = 0
    federations: Mapping[str, Mapping[str, Mapping[str, str]]] = field(default_factory=dict)
    evaluators: Sequence[str] = ("local",)
    roles: Mapping[str, str] = field(default_factory=dict)
    collections: Mapping[str, str] = field(default_factory=dict)
    delivery: Sequence[str] = ()
    identity: Sequence[str] = ()
    audit: Path | None = None
    tls: Path | None = None
    client_ca: Path | None = None
    more: str = ""
    workers: int = WORKERS
    anew: bool = False
    port: int = field(init=False, default_factory=free_port)
    process: Forked | psutil.Popen | None = field(init=False, default=None)

    @property
    def url(self) -> str:
        return f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"

    @property
    def results_directory(self) -> Path:
        return self.results or self.directory / "results"

    @property
    def temporary(self) -> Path:
        return self.directory / "tmp"

    @property
    def log(self) -> Path:
        return self.directory / "service.log"

    def start(self) -> Self:
        assert self.process is None
        self.temporary.mkdir(parents=True, exist_ok=True)
        lines = ["[service]", f"port = {self.port}", 'state = "sqlite:///state.db"', f"grace = {self.grace}"]
        lines += [f"workers = {self.workers}"]
        lines += [f'results_directory = "{self.results_directory}"', "[limits]"]
        lines += [f"{name} = {value}" for name, value in self.limits.items()]
        lines += [
            "[identity]",
            f"methods = {list(self.identity)}",
            "[delivery]",
            f"urls = {list(self.delivery)}",
            "private = true",
        ]
        if self.tls is not None:
            lines += ["[service.tls]", f'certificate = "{self.tls}"', f'key = "{self.tls.with_suffix(".key")}"']
        if self.client_ca is not None:
            lines += [f'client_ca = "{self.client_ca}"']
        if self.audit is not None:
            lines += ["[audit]", f'file = "{self.audit}"']
        for name, url in self.resources.items():
            lines += [f"[resources.{name}]", f'url = "{url}"', f"pool_size = {self.pool_size}"]
        for name, store in self.collections.items():
            lines += [f"[resources.{name}]", f'collections = "{store}"']
        for name, sources in self.federations.items():
            lines += [f"[federations.{name}]", f"evaluators = {list(self.evaluators)}"]
            for alias, source in sources.items():
                lines += [f"[[federations.{name}.sources]]", f'alias = "{alias}"']
                lines += [f'{key} = "{value}"' for key, value in source.items()]
        for name, keys in self.roles.items():
            lines += [f"[roles.{name}]", keys]
        if not self.identity and "[policy]" not in self.more:
            lines += ["[policy]", f"write = {WRITABLE['policy']['write']}"]
        lines.append(self.more)
        config = self.directory / "dai.toml"
        config.write_text("\n".join(lines))
        arguments = ["serve", "--config", str(config)]
        if self.anew:
            command = [sys.executable, "-m", "dai", *arguments]
            environment = {**os.environ, "TMPDIR": str(self.temporary)}
            with self.log.open("ab") as log:
                self.process = psutil.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)
        else:
            self.process = Forked(arguments, ROOT, self.temporary, self.log, self.largest_file, self.workers > 1)

        def answers() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            with contextlib.suppress(httpx.TransportError):
                certificate = None if self.client_ca is None else (self.client_ca, self.client_ca.with_suffix(".key"))
                with httpx.Client(verify=self.tls is None, cert=certificate, timeout=SECONDS) as client:  # type: ignore[arg-type]
                    return client.get(f"{self.url}/health/live").status_code == 200
            return False

        try:
            until(answers)
        except BaseException:
            self.kill()
            raise
        return self

    def kill(self) -> None:
        """As a crash would: SIGKILL."""
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends the signal and waits for the end; the exit status. Harmless when it does not run."""
        if self.process is None:
            return 0
        process, self.process = self.process, None
        if process.poll() is None:
            process.send_signal(number)
        try:
            return int(process.wait(SECONDS))
        except psutil.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=100, verify=self.trusted, **options)

    @property
    def trusted(self) -> ssl.SSLContext | bool:
        """What ``verify`` of httpx takes."""
        return True if self.tls is None else ssl.create_default_context(cafile=self.tls)

    def connect(self) -> socket.socket:
        """A connection to write bytes to."""
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if isinstance(context := self.trusted, ssl.SSLContext):
            return context.wrap_socket(connection, server_hostname="127.0.0.1")
        return connection

    def metrics(self) -> dict[str, float]:
        """Every gauge and counter, by name with labels, as /metrics writes them."""
        text = httpx.get(f"{self.url}/metrics", timeout=SECONDS, verify=self.trusted).text
        return {name: float(value) for name, value in re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE)}

    def connections(self, name: str) -> tuple[int, int]:
        """Connections of a resource that are open, and those of them that are idle."""
        return _connections(self.metrics(), name)

    def at_rest(self) -> bool:
        """No request, no job, and every connection back in its pool."""
        metrics = self.metrics()
        work = ("requests_running", "requests_queued", "jobs_running", "jobs_queued")
        pools = [_connections(metrics, name) for name in self.resources]
        return not any(metrics[f"dai_{name}"] for name in work) and all(open_ == idle for open_, idle in pools)

    def processes(self) -> list[psutil.Process]:
        """That of the service, and its workers where it has several."""
        assert self.process is not None
        return [self.process, *self.process.children()]

    def living_workers(self) -> set[psutil.Process]:
        living = set()
        for each in self.processes()[1:]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if each.status() != psutil.STATUS_ZOMBIE:
                    living.add(each)
        return living

    def has_connection(self, worker: psutil.Process, address: tuple[str, int]) -> bool:
        """Whether the worker holds the connection of a client at that address."""
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            return any(tuple(each.raddr) == address for each in worker.net_connections("tcp"))
        return False

    def connection_of_each(self, stack: contextlib.ExitStack, **options: Any) -> dict[psutil.Process, httpx.Client]:
        """For each worker a client with one connection, which that worker holds. The supervisor gives a new one to the
        worker that has fewer, those included that have just been closed."""
        clients: dict[psutil.Process, httpx.Client] = {}

        def all_have_one() -> bool:
            client = stack.enter_context(self.client(limits=httpx.Limits(max_connections=1), **options))
            address = address_of(client.get("/health/live"))
            for worker in self.living_workers():
                if self.has_connection(worker, address):
                    clients.setdefault(worker, client)
            return len(clients) == self.workers

        until(all_have_one)
        return clients

    def threads(self) -> int:
        return sum(int(each.num_threads()) for each in self.processes())

    def memory(self) -> int:
        """Bytes of main memory in use."""
        return sum(int(each.memory_info().rss) for each in self.processes())

    def leftovers(self) -> list[Path]:
        """Temporary files, and results that were begun and not finished."""
        counters = ("dai-metrics-*", "dai-metrics-*/*")  # of a service that runs
        there = set(self.temporary.rglob("*"))
        if self.process is not None:
            there -= {path for pattern in counters for path in self.temporary.glob(pattern)}
        return [*there, *self.results_directory.glob("*/*.part")]
