"""`dai serve` in a process forked from one that has loaded its modules: each of the hundreds that the tests start takes
a second of a processor less, and each of its workers two. They are processes of their own all the same; that those
begun anew do what they should, the tests of the commands, the README and the demo show."""

from __future__ import annotations

import asyncio
import atexit
import fcntl
import multiprocessing
import os
import pickle
import resource
import signal
import socket
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import psutil

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.forks_modules"])


NAME = Path("/proc/self/comm")
SPARE = 4
WAITING = "waiting"
"""The name of a process that is not a worker yet."""


class Forked(psutil.Process):
    """A process of this one, where psutil sees one of the process from which it is forked."""

    def __init__(
        self, arguments: Sequence[str], directory: Path, temporary: Path, log: Path, largest_file: int, workers: int
    ) -> None:
        """``dai`` with those arguments, in a directory, with its temporary files in another and what it says in the
        file ``log``. ``largest_file``: bytes, 0 for no limit. ``workers``: how many processes serve; they are forked
        too, but for those that take the place of more than SPARE that died."""
        environment = {**os.environ, "TMPDIR": str(temporary)}
        given = (arguments, directory, environment, log, largest_file, workers)
        self._forked = _context.Process(target=_run, args=given)
        self._forked.start()
        assert self._forked.pid is not None
        super().__init__(self._forked.pid)

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None as long as it runs."""
        return self._forked.exitcode

    def children(self, recursive: bool = False) -> list[psutil.Process]:
        """Those that are at work."""
        actual = []
        for each in super().children(recursive):
            with suppress(psutil.NoSuchProcess):
                if each.name() != WAITING:
                    actual.append(each)
        return actual

    def wait(self, timeout: float | None = None) -> int:
        """As ``poll``, when it has ended. psutil.TimeoutExpired, a number of seconds later."""
        self._forked.join(timeout)
        status = self._forked.exitcode
        if status is None:
            raise psutil.TimeoutExpired(timeout or 0.0, self.pid)
        return status


def _run(
    arguments: Sequence[str],
    directory: Path,
    environment: dict[str, str],
    log: Path,
    largest_file: int,
    workers: int,
) -> None:
    from dai.__main__ import main
    from tests.forked_workers import fork_workers

    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    if workers > 1:
        _fork_workers(workers)
    sys.argv = ["dai", *arguments]
    fork_workers()
    try:
        sys.exit(main(arguments))
    finally:
        _end()


def _end() -> None:
    """As at the end of a process that was not forked."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()


def _fork_workers(count: int) -> None:
    """Now, before this process has threads and an open store: they wait until the supervisor starts them."""
    waiting: list[_Worker] = []
    name = NAME.read_text()
    NAME.write_text(WAITING)
    for _ in range(count + SPARE):
        waiting.append(_Worker(waiting))
    NAME.write_text(name)
    anew = asyncio.create_subprocess_exec

    async def start(*command: str, **options: Any) -> Any:
        return await waiting.pop(0).begin(**options) if waiting else await anew(*command, **options)

    setattr(asyncio, "create_subprocess_exec", start)  # noqa: B010 -- mypy: it takes everything that the other one does


class _Worker:
    """What the supervisor uses of an ``asyncio.subprocess.Process``."""

    stdin: asyncio.StreamWriter

    def __init__(self, before: Sequence[_Worker]) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if not self.pid:
            for each in (*before, self):
                each._ours.close()
            _work(theirs)
        theirs.close()

    async def begin(self, env: dict[str, str], pass_fds: Sequence[int], **_: Any) -> _Worker:
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        with self._ours:
            socket.send_fds(self._ours, [pickle.dumps((env, pass_fds))], [reading, *pass_fds])
        os.close(reading)
        pipe = os.fdopen(writing, "wb")
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
        self.stdin = asyncio.StreamWriter(transport, protocol, None, loop)
        self._status = loop.create_future()
        process = os.pidfd_open(self.pid)
        loop.add_reader(process, self._ended, loop, process)
        return self

    def _ended(self, loop: asyncio.AbstractEventLoop, process: int) -> None:
        loop.remove_reader(process)
        os.close(process)
        self.stdin.close()
        self._status.set_result(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))

    async def wait(self) -> int:
        return int(await asyncio.shield(self._status))

    def send_signal(self, number: int) -> None:
        if not self._status.done():
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _work(orders: socket.socket) -> NoReturn:
    """Waits in a new process for what the supervisor has for the worker, and is the worker."""
    status = 0
    try:
        os.setpgid(0, 0)
        with orders:
            told, passed, _, _ = socket.recv_fds(orders, 1 << 16, 64)
        if told:
            env, numbers = pickle.loads(told)
            NAME.write_text("worker")
            _take(passed, [0, *numbers])
            os.environ.clear()
            os.environ.update(env)
            status = _worker()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:  # noqa: BLE001 - as at the end of a process that was not forked
        status = 1
        traceback.print_exc()
    finally:
        _end()
        os._exit(status)


def _take(passed: Sequence[int], numbers: Sequence[int]) -> None:
    """Gives the descriptors those numbers, of which none is in use but for standard input."""
    above = max(*passed, *numbers) + 1
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, above) for each in passed]
    for each in passed:
        os.close(each)
    for each, number in zip(moved, numbers, strict=True):
        os.dup2(each, number, inheritable=False)
        os.close(each)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 -- until the end


def _worker() -> int:
    from prometheus_client import values

    from dai.api.server.worker import main

    values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]  # in the directory of the environment
    return main()
