"""Watches the file of a SQLite state database.

A SQLite file that is deleted or overwritten while it is open still accepts rows, which are then lost. So every
transaction checks that the file is still the same.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

import sqlalchemy as sa

from dai.errors import DatabaseUnavailableError

log = logging.getLogger("dai.service.state")


class StateFile:
    """The file of a SQLite database whose ``user_version`` is ``mark``. It stays open, because closing any descriptor
    of the file would release SQLite's locks on it in this process."""

    def __init__(self, path: Path, mark: int) -> None:
        self._path, self._descriptor = path, os.open(path, os.O_RDONLY)
        self._identity, stored_mark = self._read()
        # a mark that another connection keeps from the file yet
        self._marks = {mark, stored_mark}

    def check(self) -> None:
        """Raises DatabaseUnavailableError if the file was deleted, replaced or overwritten."""
        try:
            identity, mark = self._read()
            if identity == self._identity and mark in self._marks:
                return
        except OSError as error:
            log.error("the file of the state database cannot be read", exc_info=error)
        log.error("the file of the state database was deleted or overwritten while the service ran")
        raise DatabaseUnavailableError(
            "The state of the service was deleted or overwritten while it ran; it accepts no jobs.",
            hint="The operator must restore the file and restart the service.",
        )

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _read(self) -> tuple[tuple[int, int, bytes], int]:
        """The file's identity, and the mark in the database header (https://www.sqlite.org/fileformat.html)."""
        there = os.stat(self._path)
        head = os.pread(self._descriptor, 64, 0)
        return (there.st_dev, there.st_ino, head[:16]), int.from_bytes(head[60:64], signed=True)


def marked(engine: sa.Engine) -> int:
    """A number that distinguishes a SQLite database from others."""
    with engine.connect() as connection:
        mark = int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())
        if not mark:
            mark = secrets.randbelow(2**31 - 1) + 1
            connection.exec_driver_sql(f"PRAGMA user_version = {mark}")
            connection.commit()
            connection.exec_driver_sql("PRAGMA wal_checkpoint").fetchall()
    return mark
