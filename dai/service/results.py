"""Files of job results: one directory a job, one file a result, and beside it the other forms somebody asked for.

A file is written as ``NAME.part`` and renamed when it is whole and on the disk, so that whatever has its final name is
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

PART = ".part"
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


class Results:
    """``limit``: bytes of all results together, 0 for none. Thread-safe. ConfigurationError for a directory that cannot
    be made."""

    def __init__(self, directory: Path, limit: int = 0) -> None:
        self.directory, self.limit = directory, limit
        self._lock = threading.Lock()
        self.naming = threading.Lock()
        """Held while files get their names or are removed: what is counted as removed was there."""
        self._rendering: dict[Path, tuple[threading.Lock, int]] = {}
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"The directory for job results (service.results_directory) cannot be made: {error.strerror}."
            ) from error
        self._used = sum(path.stat().st_size for path in directory.glob("*/*") if path.is_file())

    @property
    def used(self) -> int:
        """Bytes of all files."""
        return self._used

    def path(self, job: str, index: int, form: str | None = None) -> Path:
        """Of result number ``index`` as it is kept, or in another ``form``."""
        return self.directory / job / (f"{index}" if form is None else f"{index}.{form}")

    @contextmanager
    def writer(self, job: str, index: int, form: str | None = None) -> Iterator[Writer]:
        """Writes a result; what was not finished when the block is left is removed. LimitError where the disk or the
        room for results is full, GoneError where the job was destroyed meanwhile: no other form outlives it."""
        path = self.path(job, index, form)
        part = path.with_name(path.name + PART)
        try:
            if form is None:
                part.parent.mkdir(exist_ok=True)
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
        """One thread at a time makes the file ``path``, or one of its kind."""
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
        """Takes or gives back room; LimitError when there is none left."""
        with self._lock:
            if size > 0 and self.limit and self._used + size > self.limit:
                raise LimitError(
                    f"The room for job results ({self.limit:,} bytes) is full.",
                    hint="Delete jobs that are no longer needed, or ask for less.",
                )
            self._used += size

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

    def remove_forms(self, job: str, index: int, pattern: str) -> None:
        """The files of a result in the forms whose names fit the ``pattern``. Who reads one reads it to its end."""
        with self.naming:
            found = list((self.directory / job).glob(f"{index}.{pattern}"))
            size = sum(path.stat().st_size for path in found)
            for path in found:
                path.unlink()
        self.account(-size)

    def found(self) -> set[str]:
        """The jobs that have files."""
        return {each.name for each in self.directory.iterdir() if each.is_dir()}

    def sweep(self, jobs: set[str], keep: set[str]) -> None:
        """Removes the files of ``jobs`` but for those to ``keep``, and what a killed process left half written."""
        for job in jobs - keep:
            shutil.rmtree(self.directory / job, ignore_errors=True)
        for job in jobs & keep:
            for part in (self.directory / job).glob(f"*{PART}"):
                part.unlink(missing_ok=True)
        self._used = sum(path.stat().st_size for path in self.directory.glob("*/*") if path.is_file())


class Writer:
    """See ``Results.writer``. ``written`` counts bytes."""

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
        """The result is whole: it gets its name."""
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
        return LimitError("The disk for job results is full.", hint="Try again later, or ask for less.")
    if error.errno == errno.ENOENT:
        return GoneError("The result was destroyed.")
    return InternalError("The result could not be written.")
