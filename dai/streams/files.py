"""Files that are replaced while a process uses their contents (certificates, role maps), and files that only their
owner may read."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path


def make_private(file: str | Path | None) -> None:
    """Makes a file that its owner alone may read and write, where there is none, and its directory: SQLite gives what
    it puts beside a database the rights that the database has then. Where that is not possible, who opens the file is
    told why."""
    with suppress(OSError):
        if file and not str(file).startswith("file:"):
            Path(file).parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))


def check_writable(directory: Path) -> None:
    """OSError where no file can be made in the directory, or the directory itself cannot; nothing stays there."""
    there = next(each for each in (directory, *directory.parents) if each.exists())
    tempfile.TemporaryDirectory(prefix=".dai-", dir=there).cleanup()


def state_of(*files: str | Path | None) -> tuple[tuple[int, int, int], ...] | None:
    """Something else whenever one of the files is replaced or written; None where one of them cannot be looked at."""
    try:
        states = [os.stat(each) for each in files if each is not None]
    except OSError:
        return None
    return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in states)
