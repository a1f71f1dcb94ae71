"""The processes that read SQLite, forked from one that has imported what they need: such a one begins within a few
milliseconds, where one of its own takes most of a second."""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
from contextlib import ExitStack, suppress
from fcntl import fcntl
from pathlib import Path
from typing import BinaryIO

from dai.streams.program import ForkServer, events

_PIPE_BYTES, _SET_PIPE_SIZE = 1 << 20, 1031
_ONE_THREAD = {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}
_NUMBER = 20
"""Bytes of a process's number."""


class Fork:
    """A process that may begin later. It reads from ``sink`` and writes to ``source``; it ends when nobody can write to
    it any more."""

    def __init__(self, sink: socket.socket, source: BinaryIO) -> None:
        self.sink, self.source = sink, source
        self.pid: int | None = None
        self._handle: int | None = None
        """A descriptor of the process (pidfd), where the system has such."""

    def begun(self, seconds: float) -> bool:
        """Whether it has begun, or does so within so many seconds."""
        if self.pid is None and events(self.sink.fileno(), select.POLLIN, seconds) & select.POLLIN:
            number, handles, _, _ = socket.recv_fds(self.sink, _NUMBER, 1)
            if number:
                self.pid, self._handle = int(number), next(iter(handles), None)
                for each in handles:
                    os.set_inheritable(each, False)
        return self.pid is not None

    def ended(self, seconds: float = 0.0) -> bool:
        if self.source.closed:
            return True
        if self._handle is not None:
            return bool(events(self._handle, select.POLLIN, seconds))
        return bool(events(self.source.fileno(), 0, seconds) & select.POLLHUP)

    def kill(self) -> None:
        """Ends it whatever it does, without waiting for that."""
        with suppress(OSError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            self.sink.shutdown(socket.SHUT_RDWR)

    def close(self, seconds: float) -> None:
        """Kills it and waits for so many seconds until it has ended."""
        self.kill()
        self.ended(seconds)
        self.sink.close()
        self.source.close()
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


_WHERE_IT_SORTS = {name: os.environ[name] for name in ("SQLITE_TMPDIR", "TMPDIR") if name in os.environ}
FORKS = ForkServer(str(Path(__file__).with_name("worker.py")), environment=_ONE_THREAD | _WHERE_IT_SORTS)
atexit.register(FORKS.close)
os.register_at_fork(after_in_child=FORKS.forget)


def fork() -> Fork:
    """Begins a process. Raises OSError where that cannot be."""
    with ExitStack() as ours, ExitStack() as theirs:
        sink, its_source = socket.socketpair()
        ours.callback(sink.close)
        theirs.callback(its_source.close)
        source, its_sink = os.pipe()
        reading = ours.enter_context(open(source, "rb", _PIPE_BYTES))
        theirs.callback(os.close, its_sink)
        with suppress(OSError):  # no such pipes, or more than a user may have
            fcntl(its_sink, _SET_PIPE_SIZE, _PIPE_BYTES)
        FORKS.hand_over(its_source.fileno(), its_sink)
        ours.pop_all()
    return Fork(sink, reading)
