"""A Python program in a process of its own, which can be killed whatever it does."""

from __future__ import annotations

import subprocess
import sys
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
