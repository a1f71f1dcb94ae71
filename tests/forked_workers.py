"""Workers of a service, forked where ``dai serve`` was forked itself: see tests.forks.

A worker begun anew loads for a second of a processor what is loaded already. A process that has opened a database of
SQLite cannot fork, as the supervisor has. So it has a mother of its workers, forked from it before it opened anything:
workers are forked from her, and become children of the supervisor. ``ServiceProcess(anew=True)`` is without.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import fcntl
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from prometheus_client import values

from dai.api.server import worker
from tests.forks import MOTHER

ABOVE_ALL = 1000
"""Descriptors that no worker was promised."""
_SUBREAPER, _SET_NAME, _GET_NAME = 36, 15, 16
_libc = ctypes.CDLL(None)


class Mother:
    """For the supervisor, which has one as long as it lives."""

    def __init__(self) -> None:
        self._to_her, hers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        own = ctypes.create_string_buffer(16)
        _libc.prctl(_GET_NAME, own)
        _libc.prctl(_SET_NAME, MOTHER.encode())  # hers from the fork on: nobody may take her for a worker
        if not os.fork():
            self._to_her.close()
            _bear(hers)
        _libc.prctl(_SET_NAME, own.value)
        hers.close()

    async def fork(
        self, *command: str, env: Mapping[str, str], pass_fds: Sequence[int], **options: Any
    ) -> ForkedWorker:
        """In place of ``asyncio.create_subprocess_exec``."""
        assert command[-1] == worker.__name__, command
        assert set(options) == {"stdin", "process_group"}, options
        reading, writing = os.pipe()
        _libc.prctl(_SUBREAPER, 1)  # orphans become our children: the worker, whose parent ends at once
        socket.send_fds(self._to_her, [pickle.dumps((dict(env), pass_fds))], [reading, *pass_fds])
        pid = int(self._to_her.recv(100))
        _libc.prctl(_SUBREAPER, 0)
        os.close(reading)
        pipe, loop = open(writing, "wb", buffering=0), asyncio.get_running_loop()  # noqa: SIM115
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
        return ForkedWorker(pid, asyncio.StreamWriter(transport, protocol, None, loop))


class ForkedWorker:
    """What the supervisor uses of an ``asyncio.subprocess.Process``."""

    def __init__(self, pid: int, stdin: asyncio.StreamWriter) -> None:
        self.pid, self.stdin = pid, stdin
        loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = loop.create_future()
        self._watched = os.pidfd_open(pid)
        loop.add_reader(self._watched, self._end)

    def _end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._watched)
        os.close(self._watched)
        _, status = os.waitpid(self.pid, 0)
        self.stdin.close()
        self._ended.set_result(os.waitstatus_to_exitcode(status))

    async def wait(self) -> int:
        return await asyncio.shield(self._ended)

    def send_signal(self, number: int) -> None:
        if self._ended.done():
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _bear(asked: socket.socket) -> NoReturn:
    """A worker whenever one is asked for, until the supervisor ends."""
    os.setpgid(0, 0)
    while True:
        message, descriptors, _, _ = socket.recv_fds(asked, 1_000_000, 100)
        if not message:
            os._exit(0)
        environment, numbers = pickle.loads(message)
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            _work(writing, environment, descriptors, numbers)
        pid = os.read(reading, 100)
        os.waitpid(between, 0)
        for each in (reading, writing, *descriptors):
            os.close(each)
        asked.send(pid)


def _work(told: int, environment: Mapping[str, str], descriptors: Sequence[int], numbers: Sequence[int]) -> NoReturn:
    """The process between, which ends so that the worker is an orphan; and the worker, in the next one."""
    if pid := os.fork():
        os.write(told, str(pid).encode())
        os._exit(0)
    _libc.prctl(_SET_NAME, b"worker")
    os.setpgid(0, 0)
    # They are to have the numbers that they have in the supervisor, the first one that of standard input.
    moved = [fcntl.fcntl(each, fcntl.F_DUPFD, ABOVE_ALL) for each in descriptors]
    os.closerange(3, ABOVE_ALL)
    for each, number in zip(moved, (0, *numbers), strict=True):
        os.dup2(each, number)
        os.close(each)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    os.environ.clear()
    os.environ.update(environment)
    values.ValueClass = values.get_value_class()  # type: ignore[no-untyped-call]  # it was chosen by the environment
    status: Any = 1
    try:
        status = worker.main()
    except SystemExit as end:
        status = end.code
    except BaseException:  # noqa: BLE001 -- as Python does it
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of a process that was not forked
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(int(status or 0))
