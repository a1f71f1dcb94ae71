"""A process that has imported what reading SQLite needs, and forks for each process that reads: such a one begins
within a few milliseconds, where one of its own takes most of a second. It has one thread, so that it may fork.

The server of forks in ``multiprocessing`` would import the program's main module in each of them.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, suppress
from fcntl import fcntl
from pathlib import Path
from typing import BinaryIO

_PROGRAM = Path(__file__).with_name("worker.py")
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
        if self.pid is None and _events(self.sink.fileno(), select.POLLIN, seconds) & select.POLLIN:
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
            return bool(_events(self._handle, select.POLLIN, seconds))
        return bool(_events(self.source.fileno(), 0, seconds) & select.POLLHUP)

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


class Forks:
    """The process that forks; it starts with the first fork, and again where it has ended. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def forget(self) -> None:
        """This process is a fork itself: what forks is another one's."""
        if self._control is not None:
            self._control.close()
        self.__init__()  # type: ignore[misc]

    @property
    def ready(self) -> bool:
        """Whether a fork begins at once."""
        with self._lock:
            if self._control is None or self._process is None or self._process.poll() is not None:
                return False
            return _events(self._control.fileno(), select.POLLIN, 0.0) == select.POLLIN

    def fork(self) -> Fork:
        """Raises OSError where none can be made."""
        with ExitStack() as ours, ExitStack() as theirs:
            sink, its_source = socket.socketpair()
            ours.callback(sink.close)
            theirs.callback(its_source.close)
            source, its_sink = os.pipe()
            reading = ours.enter_context(open(source, "rb", _PIPE_BYTES))
            theirs.callback(os.close, its_sink)
            with suppress(OSError):  # no such pipes, or more than a user may have
                fcntl(its_sink, _SET_PIPE_SIZE, _PIPE_BYTES)
            self._hand_over([its_source.fileno(), its_sink])
            ours.pop_all()
        return Fork(sink, reading)

    def _hand_over(self, files: list[int]) -> None:
        with self._lock:
            if self._control is not None:
                try:
                    socket.send_fds(self._control, [b"f"], files)
                    return
                except OSError:
                    self._end()
            self._control, theirs = socket.socketpair()
            with theirs:
                command, none = [sys.executable, "-I", str(_PROGRAM)], subprocess.DEVNULL
                self._process = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=none, stderr=none, cwd="/", env=_ONE_THREAD
                )
            socket.send_fds(self._control, [b"f"], files)

    def close(self) -> None:
        """Its forks go on until their own ends are closed."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._control = self._process = None


def _events(file: int, wanted: int, seconds: float) -> int:
    poll = select.poll()  # whatever the number of the descriptor
    poll.register(file, wanted)
    return dict(poll.poll(1000 * seconds)).get(file, 0)


FORKS = Forks()
atexit.register(FORKS.close)
os.register_at_fork(after_in_child=FORKS.forget)
