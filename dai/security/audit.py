"""The audit: who requested what, and with what result. One JSON object a line for each request, and one for the end of
each job; ``docs/security.md`` names the members.

The file is opened for appending and read by nobody here. A record is one write, so records of several processes do not
mix, and its text is ASCII, so that no value begins a line of its own. A file that was renamed or removed (by a program
that rotates logs) is made anew within ROTATION_SECONDS.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dai.errors import ConfigurationError

log = logging.getLogger("dai.security.audit")
ROTATION_SECONDS = 1.0
SILENCE_SECONDS = 60.0
"""How often the log says that records are lost."""


def digest(document: bytes) -> str:
    """By which a record names a document: its SHA-256 in hexadecimal digits."""
    return hashlib.sha256(document).hexdigest()


def check_file(path: Path) -> None:
    """ConfigurationError where records cannot be written. The file is not made."""
    try:
        if path.exists():
            path.open("ab").close()
        else:
            tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _refused(error) from error


def _refused(error: OSError) -> ConfigurationError:
    return ConfigurationError(f"The audit file (audit.file) cannot be written: {error.strerror}.")


class Audit:
    """Of one process; thread-safe. Without a ``file`` nothing is written. ``also`` is given each record too.
    ConfigurationError for a file that cannot be written."""

    def __init__(self, file: Path | None, also: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self._path, self._also = file, also
        self._lock = threading.Lock()
        self._descriptor = -1
        self._looked = self._complained = 0.0
        self.lost = 0
        """Records that could not be written."""
        if file is not None:
            try:
                self._open(file)
            except OSError as error:
                raise _refused(error) from error

    @property
    def on(self) -> bool:
        return self._path is not None or self._also is not None

    def record(self, event: str, **values: Any) -> None:
        """Without the members whose value is None. Does not raise: what is asked goes on when the disk is full, and the
        log says so."""
        if not self.on:
            return
        moment = datetime.datetime.now(datetime.UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        said = {name: value for name, value in values.items() if value is not None}
        record = {"time": moment, "event": event, **said}
        if self._also is not None:
            self._also(record)
        if self._path is None:
            return
        line = json.dumps(record, default=str).encode() + b"\n"
        with self._lock:
            try:
                self._follow(self._path)
                complete = os.write(self._descriptor, line) == len(line)
            except OSError as error:
                self._complain(error.strerror)
            else:
                if not complete:
                    self._complain("the disk is full")

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
            self._descriptor, self._path = -1, None

    def _open(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def _follow(self, path: Path) -> None:
        if (now := time.monotonic()) - self._looked < ROTATION_SECONDS and self._descriptor >= 0:
            return
        self._looked = now
        if self._descriptor >= 0:
            try:
                if os.path.samestat(os.stat(path), os.fstat(self._descriptor)):
                    return
            except FileNotFoundError:
                pass
            os.close(self._descriptor)
            self._descriptor = -1
        self._open(path)

    def _complain(self, why: str | None) -> None:
        self.lost += 1
        if (now := time.monotonic()) - self._complained > SILENCE_SECONDS:
            self._complained = now
            log.error("a record of the audit is lost", extra={"why": why, "lost": self.lost})
