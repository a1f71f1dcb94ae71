"""The workers of a service of tests.forks are forked from its supervisor, instead of loading all modules anew: 0.2 s
of a processor instead of 1.3. That supervisors start them as they should, tests/api/test_tls.py shows."""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from prometheus_client import values

from dai.api.server import supervisor, worker
from dai.service.store import Store

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def fork_workers() -> None:
    """In the process of a supervisor, before it begins."""
    setattr(asyncio, "create_subprocess_exec", _forked)  # noqa: B010 -- mypy: the types of asyncio's are others
    setattr(supervisor, "Store", _Store)  # noqa: B010


class _Store(Store):
    """Has no connection while workers are forked: SQLite's are not to be carried into another process."""

    def claim(self) -> None:
        super().claim()
        self._engine.dispose()


class _Worker:
    """What the supervisor uses of asyncio.subprocess.Process."""

    def __init__(self, pid: int, standard_input: int) -> None:
        self.pid = pid
        self.stdin = self
        self._input = standard_input
        self._descriptor = os.pidfd_open(pid)
        self._loop = asyncio.get_running_loop()
        self._status: asyncio.Future[int] = self._loop.create_future()
        self._loop.add_reader(self._descriptor, self._ended)

    def _ended(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        os.close(self._input)
        self._status.set_result(os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]))

    def write(self, content: bytes) -> None:
        while content:
            content = content[os.write(self._input, content) :]

    async def drain(self) -> None:
        """All is written."""

    async def wait(self) -> int:
        return await asyncio.shield(self._status)

    def send_signal(self, number: int) -> None:
        if self._status.done():
            raise ProcessLookupError
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def _forked(
    *command: str, env: Mapping[str, str], process_group: int, pass_fds: Sequence[int], **_: Any
) -> _Worker:
    assert command[1:] == ("-P", "-m", worker.__name__)
    reading, writing = os.pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # what comes until then is not for the supervisor
    try:
        pid = os.fork()
        if not pid:
            _work(reading, env, process_group, pass_fds)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(reading)
    return _Worker(pid, writing)


def _work(reading: int, env: Mapping[str, str], process_group: int, pass_fds: Sequence[int]) -> NoReturn:
    """As ``python -m dai.api.server.worker``, below what the supervisor had begun: nothing of that goes on."""
    status = 1
    try:
        os.setpgid(0, process_group)
        signal.set_wakeup_fd(-1)
        for number in SIGNALS:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        os.dup2(reading, 0)
        for each in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *pass_fds}:
            try:
                os.close(each)
            except OSError:  # that of the directory
                continue
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # temporary directories of the supervisor
        os.environ.clear()
        os.environ.update(env)
        values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]  # as it is when it is loaded
        sys.stdin = open(0)  # noqa: SIM115 -- as long as the process lives
        status = worker.main()
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    except BaseException:  # noqa: BLE001 -- as at the end of any process
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)
