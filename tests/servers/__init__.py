"""Real PostgreSQL, MariaDB and MySQL servers for tests and benchmarks.

Each server lives in a temporary directory of its own, listens on a free loopback port and on a Unix socket, and runs
as an unprivileged user (the caller, or for root the system user that the database's package made). Nothing of an
installed or running database is touched. A watchdog stops the server and removes the directory when the process that
started it dies, however it dies.

    with PostgresServer() as server:
        psycopg.connect(server.dsn)

`python -m tests.servers --seconds 600` starts one of each, prints the URLs and stops them on Ctrl-C or after the time.
"""

import contextlib
import glob
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

USER = "dai"
PASSWORD = "dai-secret"
DATABASE = "dai"
START_SECONDS = 60.0
STOP_SECONDS = 30.0

# Below the range from which Linux takes the ports of outgoing connections (32768 and up): a server that is restarted
# finds its port still free.
PORTS = range(20_000, 32_000)

# Test processes that run side by side (pytest-xdist names and counts them) share out the ports: what is stopped in one
# finds its port free when it starts again.
_worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))

_given: set[int] = set()

# Ends the server once standard input closes, which the kernel does when the starting process is gone.
WATCHDOG = """
read _
kill -s "$2" "$1" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$1" 2>/dev/null || break; sleep 0.5; done
rm -rf "$3"
"""


class ServerError(Exception):
    """A database server could not be found, started or stopped."""


@dataclass
class Server(ABC):
    """What the servers share: directory, port and the life of the process.

    `settings` are server settings by name; they override the defaults of the class. The data survive `stop`, `kill`
    and `restart`; `close` (or leaving the `with` block) stops the server and removes the directory.
    """

    settings: Mapping[str, str | int] = field(default_factory=dict)
    port: int = field(init=False)
    directory: Path = field(init=False)
    process: subprocess.Popen[bytes] | None = field(init=False, default=None)
    _watchdog: subprocess.Popen[bytes] | None = field(init=False, default=None)

    # Set by each subclass.
    product = ""
    scheme = ""
    system_user = ""
    package = ""
    stop_signal = signal.SIGTERM
    watchdog_signal = "TERM"
    defaults: Mapping[str, str | int] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.port = free_port()
        self.directory = Path(tempfile.mkdtemp(prefix=f"dai-{self.scheme}-"))
        try:
            if self._user is not None:
                os.chown(self.directory, self._user.pw_uid, self._user.pw_gid)
            self._initialise()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The SQLAlchemy style URL of the default database."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """The URL of another database on this server."""
        return f"{self.scheme}://{USER}:{PASSWORD}@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        """Process id of the running server; raises ServerError when it does not run."""
        if self.process is None or self.process.poll() is not None:
            raise ServerError(f"{self.product} is not running")
        return self.process.pid

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    def start(self) -> None:
        """Start the server and wait until it answers; raises ServerError with the end of its log after a minute."""
        if self.process is not None:
            raise ServerError(f"{self.product} is running already")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._spawn_options()
            )
        self._watchdog = subprocess.Popen(
            ["sh", "-c", WATCHDOG, "sh", str(self.process.pid), self.watchdog_signal, str(self.directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise ServerError(f"{self.product} did not start:\n{_tail(self.log)}")
            time.sleep(0.05)

    def stop(self) -> None:
        """End the server in order (connections are broken, nothing committed is lost). Harmless when stopped."""
        if self.process is None:
            return
        self._end_watchdog()
        if self.process.poll() is None:
            self.process.send_signal(self.stop_signal)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process = None

    def kill(self) -> None:
        """End the server and its children with SIGKILL, as a crash would. The next start recovers the data."""
        if self.process is None:
            return
        self._end_watchdog()
        try:
            family = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            family = []
        self.process.kill()
        for child in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self.process.wait(STOP_SECONDS)
        psutil.wait_procs(family, timeout=STOP_SECONDS)
        self.process = None

    def restart(self) -> None:
        """Stop and start: the same port, the same data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its directory."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    @abstractmethod
    def create_database(self, name: str) -> str:
        """Create an empty database and return its URL."""

    @abstractmethod
    def drop_database(self, name: str) -> None:
        """Drop a database, breaking the connections that are open to it."""

    @abstractmethod
    def _initialise(self) -> None: ...

    @abstractmethod
    def _command(self) -> Sequence[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    @property
    def _user(self) -> pwd.struct_passwd | None:
        """Whom to run as: None means the caller."""
        if os.geteuid() != 0:
            return None
        try:
            return pwd.getpwnam(self.system_user)
        except KeyError:
            return pwd.getpwnam("nobody")

    def _spawn_options(self) -> dict[str, Any]:
        user = self._user
        options: dict[str, Any] = {"cwd": self.directory, "start_new_session": True}
        if user is not None:
            options |= {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            options["env"] = {**os.environ, "HOME": str(self.directory), "USER": user.pw_name, "LC_ALL": "C.UTF-8"}
        return options

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, capture_output=True, text=True, check=False, **self._spawn_options())
        if done.returncode != 0:
            raise ServerError(f"{Path(command[0]).name} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")

    def _write(self, name: str, text: str) -> Path:
        path = self.directory / name
        path.write_text(text)
        if self._user is not None:
            os.chown(path, self._user.pw_uid, self._user.pw_gid)
        return path

    def _end_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None

    def _binary(self, *names: str) -> str:
        for name in names:
            actual = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin")
            if actual is not None:
                return actual
        versions = glob.glob(f"/usr/lib/postgresql/*/bin/{names[0]}")
        if versions:
            return max(versions, key=lambda path: int(path.split("/")[4]))
        raise ServerError(f"{names[0]} is not installed: `make test` installs it (Debian package {self.package})")


def free_port() -> int:
    """Never the same twice in a process: what stopped may start again at its own."""
    for port in random.SystemRandom().sample(sorted(set(PORTS[_worker::_workers]) - _given), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given.add(port)
            return port
    raise ServerError("no free loopback port was found")


def _tail(path: Path, size: int = 4000) -> str:
    return path.read_text(errors="replace")[-size:] if path.exists() else ""
