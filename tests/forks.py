"""`dai serve` in a process forked from one that has loaded its modules: each of the hundreds that the tests start takes
a second of a processor less. It is a process of its own all the same; that one begun anew does what it should, the
tests of the commands, the README and the demo show."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import resource
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

MOTHER = "mother"
"""The name of the process of which workers are forked: see tests.forked_workers."""
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["tests.forks_modules"])


class Forked(psutil.Process):
    """A process of this one, where psutil sees one of the process from which it is forked."""

    def __init__(
        self,
        arguments: Sequence[str],
        directory: Path,
        temporary: Path,
        log: Path,
        largest_file: int,
        with_workers: bool,
    ) -> None:
        """``dai`` with those arguments, in a directory, with its temporary files in another and what it says in the
        file ``log``. ``largest_file``: bytes, 0 for no limit. ``with_workers``: it will
        have some, see tests.forked_workers."""
        environment = {**os.environ, "TMPDIR": str(temporary)}
        self._forked = _context.Process(
            target=_run, args=(arguments, directory, environment, log, largest_file, with_workers)
        )
        self._forked.start()
        assert self._forked.pid is not None
        super().__init__(self._forked.pid)

    def children(self, recursive: bool = False) -> list[psutil.Process]:
        """Without the mother of its workers."""
        return [each for each in super().children(recursive) if not _is_mother(each)]

    def poll(self) -> int | None:
        """The exit status, negative for a signal; None as long as it runs."""
        return self._forked.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """As ``poll``, when it has ended. psutil.TimeoutExpired, a number of seconds later."""
        self._forked.join(timeout)
        status = self._forked.exitcode
        if status is None:
            raise psutil.TimeoutExpired(timeout or 0.0, self.pid)
        return status


def _is_mother(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.name() == MOTHER)
    return False


def _run(
    arguments: Sequence[str],
    directory: Path,
    environment: dict[str, str],
    log: Path,
    largest_file: int,
    with_workers: bool,
) -> None:
    from dai.__main__ import main
    from dai.api.server import supervisor
    from tests.forked_workers import Mother

    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None
    with log.open("ab") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
    if largest_file:
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))
    sys.argv = ["dai", *arguments]
    if with_workers:
        supervisor.spawn = Mother().fork  # type: ignore[assignment]
    try:
        sys.exit(main(arguments))
    finally:
        threading._shutdown()  # type: ignore[attr-defined]  # as at the end of a process that was not forked
        atexit._run_exitfuncs()
