"""Stores the results of jobs: one directory for each job, one file for each result and each further requested form.

A file is written as ``NAME.part`` and renamed when it is complete and on the disk. So a file with its final name is
complete, even after the process was killed. The bytes of all files together are bounded.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from dai.errors import ConfigurationError, GoneError, InternalError, LimitError
from dai.service.identities import ALONE, Identities
from dai.streams.files import check_writable
from dai.streams.tally import Tally

PART = ".part"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def check_directory(directory: Path) -> None:
    """ConfigurationError where results cannot be stored there. It is not created."""
    try:
        check_writable(directory)
    except OSError as error:
        raise _refused(directory, error) from error


def _refused(directory: Path, error: OSError) -> ConfigurationError:
    return ConfigurationError(
        f"The directory for job results (service.results_directory) cannot be created or written: {error.strerror}.",
        hint=f"Check service.results_directory: {directory}.",
    )


class Results:
    """The files of all results. ``limit``: bytes of all of them, 0 for no limit; ``used`` counts them, in other
    processes of the service too, each those of the jobs that it owns. Thread-safe. Raises ConfigurationError for a
    directory that cannot be created."""

    def __init__(
        self, directory: Path, limit: int = 0, *, identities: Identities = ALONE, used: Tally | None = None
    ) -> None:
        self.directory, self.limit = directory, limit
        self._identities, self._used = identities, used or Tally()
        self._lock = threading.Lock()
        self.naming = threading.Lock()
        """The lock for renaming and removing files, so that only existing files count as removed."""
        self._rendering: dict[Path, tuple[threading.Lock, int]] = {}
        try:
            directory.mkdir(0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _refused(directory, error) from error
        self._count()

    def _count(self) -> None:
        """Other processes remove what is theirs meanwhile, so that only own directories are looked into."""
        own = (each for each in self.directory.iterdir() if self._identities.owns(each.name) and each.is_dir())
        files = (path for directory in own for path in directory.iterdir() if path.is_file())
        self._used.add(sum(path.stat().st_size for path in files) - self._used.own)

    @property
    def used(self) -> int:
        """Bytes of the files of the jobs that this process owns."""
        return self._used.own

    def path(self, job: str, index: int, form: str | None = None) -> Path:
        """The file of result number ``index``, as it is stored or in another ``form``."""
        return self.directory / job / (f"{index}" if form is None else f"{index}.{form}")

    @contextmanager
    def writer(self, job: str, index: int, form: str | None = None) -> Iterator[Writer]:
        """A context that writes a result, and removes it if it is not finished at the end. Raises LimitError if the
        disk or the space for results is full, GoneError if the job was destroyed meanwhile."""
        path = self.path(job, index, form)
        part = path.with_name(path.name + PART)
        try:
            if form is None:
                part.parent.mkdir(0o700, exist_ok=True)
            file = part.open("wb")
        except OSError as error:
            raise _translated(error) from error
        writer = Writer(self, path, part, index, file)
        try:
            yield writer
        finally:
            with suppress(OSError):
                file.close()
            if not writer.finished:
                with suppress(OSError):
                    part.unlink(missing_ok=True)
                self.account(-writer.written)

    @contextmanager
    def rendering(self, path: Path) -> Iterator[None]:
        """A context for one thread at a time that creates the file ``path``."""
        with self._lock:
            lock, waiting = self._rendering.get(path) or (threading.Lock(), 0)
            self._rendering[path] = lock, waiting + 1
        try:
            with lock:
                yield
        finally:
            with self._lock:
                lock, waiting = self._rendering.pop(path)
                if waiting > 1:
                    self._rendering[path] = lock, waiting - 1

    def account(self, size: int) -> None:
        """Counts bytes as used, or as free if ``size`` is negative. Raises LimitError if there is no space left."""
        if size <= 0 or not self.limit:
            self._used.add(size)
        elif not self._used.take(size, self.limit):
            raise LimitError(
                f"The space for job results ({self.limit:,} bytes) is full.",
                hint="Delete jobs that are no longer needed, or request less.",
            )

    def remove(self, job: str) -> None:
        """All files of a job."""
        directory = self.directory / job
        with self.naming:
            try:
                size = sum(path.stat().st_size for path in directory.iterdir() if path.suffix != PART)
            except OSError:
                return
            shutil.rmtree(directory, ignore_errors=True)
        self.account(-size)

    def forms(self, job: str, index: int) -> int:
        """Bytes of the files of a result in other forms than it is stored."""
        size = 0
        for each in (self.directory / job).glob(f"{index}.*"):
            with suppress(FileNotFoundError):  # removed meanwhile
                size += each.stat().st_size if each.suffix != PART else 0
        return size

    def remove_forms(self, job: str, index: int, pattern: str) -> None:
        """Removes the files of a result in the forms whose names match ``pattern``. Open files stay readable."""
        with self.naming:
            paths = list((self.directory / job).glob(f"{index}.{pattern}"))
            size = sum(path.stat().st_size for path in paths)
            for path in paths:
                path.unlink()
        self.account(-size)

    def jobs_with_files(self) -> set[str]:
        """The ids of jobs that have files and that this process owns."""
        return {each.name for each in self.directory.iterdir() if each.is_dir() and self._identities.owns(each.name)}

    def sweep(self, jobs: set[str], keep: set[str]) -> None:
        """Removes the files of ``jobs`` except those to ``keep``, and files that a killed process did not finish."""
        for job in jobs - keep:
            shutil.rmtree(self.directory / job, ignore_errors=True)
        for job in jobs & keep:
            for part in (self.directory / job).glob(f"*{PART}"):
                part.unlink(missing_ok=True)
        self._count()


class Writer:
    """The file that ``Results.writer`` writes. ``written`` counts bytes."""

    def __init__(self, results: Results, path: Path, part: Path, index: int, file: BinaryIO) -> None:
        self.index, self.written, self.finished = index, 0, False
        self._results, self._path, self._part, self._file = results, path, part, file

    def write(self, data: Any) -> None:
        size = memoryview(data).nbytes
        self._results.account(size)
        self.written += size
        try:
            self._file.write(data)
        except OSError as error:
            raise _translated(error) from error

    def finish(self) -> None:
        """Renames the complete file to its final name."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            with self._results.naming:
                self._part.rename(self._path)
                self.finished = True
        except OSError as error:
            raise _translated(error) from error


def _translated(error: OSError) -> Exception:
    if error.errno in _FULL:
        return LimitError("The disk for job results is full.", hint="Try again later, or request less.")
    if error.errno == errno.ENOENT:
        return GoneError("The result was destroyed.")
    return InternalError("The result cannot be written.")
