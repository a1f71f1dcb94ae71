"""Python programs in processes of their own: one that can be killed whatever it does, one that forks."""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import IO


class Program:
    """Runs with these arguments of the interpreter, without this process's environment and directory. ``sink`` is its
    standard input, ``source`` its standard output; each holds ``pipe_bytes``. ``close`` ends it."""

    def __init__(self, *arguments: str, pipe_bytes: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=pipe_bytes,
            pipesize=pipe_bytes,
            cwd="/",
            env={},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.sink: IO[bytes] = self._process.stdin
        self.source: IO[bytes] = self._process.stdout
        self.pid, self.kill, self.wait = self._process.pid, self._process.kill, self._process.wait

    def ended(self) -> bool:
        return self._process.poll() is not None

    def close(self) -> None:
        self.kill()
        self.wait()
        for pipe in (self.sink, self.source):
            with suppress(OSError):
                pipe.close()


class ForkServer:
    """Runs with these arguments of the interpreter and in this environment, and forks for each request, so that what it
    has imported or read is there. Its standard input is a socket, on which it gets ``first`` and then the files of each
    request, with one byte. It starts with the first request, and again where it has ended. Thread-safe.

    The server of forks in ``multiprocessing`` would import this program's main module in each of them.
    """

    def __init__(self, *arguments: str, first: bytes = b"", environment: Mapping[str, str] | None = None) -> None:
        self._arguments, self._first, self._environment = arguments, first, dict(environment or {})
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def ready(self) -> bool:
        """Whether it runs and has said a byte, which nobody reads."""
        with self._lock:
            if self._control is None or self.process is None or self.process.poll() is not None:
                return False
            return events(self._control.fileno(), select.POLLIN) == select.POLLIN

    def hand_over(self, *files: int) -> None:
        """Raises OSError where it does not start."""
        with self._lock:
            if self._control is not None:
                try:
                    socket.send_fds(self._control, [b"f"], files)
                    return
                except OSError:
                    self._end()
            self._control, theirs = socket.socketpair()
            with theirs:
                command, none = [sys.executable, "-I", *self._arguments], subprocess.DEVNULL
                self.process = subprocess.Popen(
                    command, stdin=theirs.fileno(), stdout=none, stderr=none, cwd="/", env=self._environment
                )
            self._control.sendall(self._first)
            socket.send_fds(self._control, [b"f"], files)

    def forget(self) -> None:
        """This process is a fork itself: the program is another one's."""
        if self._control is not None:
            self._control.close()
        self._lock, self._control, self.process = threading.Lock(), None, None

    def close(self) -> None:
        """Its forks go on."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
        if self.process is not None:
            self.process.kill()
            self.process.wait()
        self._control = self.process = None


def events(file: int, wanted: int, seconds: float = 0.0) -> int:
    """Those of the wanted events of ``poll`` that come within so many seconds, and that the other end is gone."""
    poll = select.poll()  # whatever the number of the descriptor
    poll.register(file, wanted)
    return dict(poll.poll(1000 * seconds)).get(file, 0)
