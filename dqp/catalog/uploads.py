"""Tables that users add to a federation, in memory: of a lab that runs here, or of a session of a service."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

import pyarrow as pa

from dai.errors import ClosedError


class Uploads:
    """Tables by name, whatever the case of its letters. Thread-safe."""

    def __init__(self, closed: Callable[[Uploads], None] | None = None) -> None:
        """``closed`` is called when they are closed."""
        self._after = closed
        self._tables: dict[str, tuple[str, pa.Table]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self.version = 0
        """Changes with the tables."""

    @property
    def tables(self) -> Mapping[str, pa.Table]:
        """By the names as they were written."""
        return dict(list(self._tables.values()))

    def get(self, name: str) -> pa.Table | None:
        _, table = self._tables.get(name.casefold(), (name, None))
        return table

    def add(self, name: str, table: pa.Table) -> None:
        """Adds a table, in place of one of the same name."""
        with self._lock:
            if self._closed:
                raise ClosedError(f"The table {name!r} cannot be uploaded: the store of uploaded tables is closed.")
            self._tables[name.casefold()] = (name, table)
            self.version += 1

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._tables.clear()
            self.version += 1
        if self._after is not None:
            self._after(self)
