"""A connection to a file of SQLite, with the authorizer that keeps statements from other files and settings."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_READS = {sqlite3.SQLITE_READ, sqlite3.SQLITE_SELECT, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE}
_NEVER = {
    sqlite3.SQLITE_ATTACH,
    sqlite3.SQLITE_DETACH,
    sqlite3.SQLITE_PRAGMA,
    sqlite3.SQLITE_TRANSACTION,
    sqlite3.SQLITE_SAVEPOINT,
}
_TEMPORARY = {
    sqlite3.SQLITE_CREATE_TEMP_INDEX,
    sqlite3.SQLITE_CREATE_TEMP_TABLE,
    sqlite3.SQLITE_CREATE_TEMP_TRIGGER,
    sqlite3.SQLITE_CREATE_TEMP_VIEW,
}
"""Statements whose effects stay on the connection alone."""
_READING_PRAGMAS = {"table_info", "table_xinfo", "index_list", "index_info", "index_xinfo", "foreign_key_list"}
"""What table-valued functions like ``pragma_table_info('t')`` come down to."""
_OF_MODULES = {"data_version", "page_size"}
"""What virtual tables ask, FTS5 in a query and R*Tree when it is created; with a value it may be a setting."""
_FILE_FUNCTIONS = {"load_extension", "readfile", "writefile", "edit", "fts3_tokenizer"}
_TELLING = {"sqlite_stmt"}
"""Virtual tables that tell what others have asked."""
_VALUE_BYTES = 1 << 27
"""Of a text, a blob or a row: a few characters of a statement make as much as may be."""
_LOCK_SECONDS = 5.0
"""How long SQLite itself waits for another user's lock, at most."""
_FEW_STEPS = 1_000_000
"""Of SQLite's machine: some 20 ms."""


class Connection:
    """``own`` statements are the driver's; all others are watched by the authorizer. ``used``: somebody's temporary
    tables, views or triggers may be there, which the next user must not meet. ``wait``: seconds for another user's
    lock, where that is less than _LOCK_SECONDS."""

    def __init__(self, uri: str, read_only: bool, wait: float = _LOCK_SECONDS) -> None:
        self.read_only, self.own, self.used = read_only, True, False
        wait = min(wait, _LOCK_SECONDS)
        self.raw = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False, timeout=wait, cached_statements=0
        )
        self.raw.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _VALUE_BYTES)
        try:
            self.raw.execute("PRAGMA foreign_keys = ON")
            if not read_only and self.raw.execute("PRAGMA page_count").fetchone() == (0,):
                self.raw.execute("PRAGMA journal_mode = WAL").fetchall()
        except BaseException:
            self.raw.close()
            raise
        self.own = False
        self.raw.set_authorizer(self._authorize)

    def _authorize(self, action: int, first: str | None, second: str | None, *_: object) -> int:
        if self.own:
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_FUNCTION and str(second).lower() in _FILE_FUNCTIONS:
            return sqlite3.SQLITE_DENY
        if action == sqlite3.SQLITE_PRAGMA and (first in _READING_PRAGMAS or (first in _OF_MODULES and second is None)):
            return sqlite3.SQLITE_OK
        if action == sqlite3.SQLITE_READ and str(first).lower() in _TELLING:
            return sqlite3.SQLITE_DENY
        self.used |= action in _TEMPORARY
        allowed = action in _READS if self.read_only else action not in _NEVER
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    def run(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """A statement of the driver's own."""
        with self.owning():
            return self.raw.execute(sql, parameters).fetchall()

    def shortly(self, sql: str) -> list[tuple[Any, ...]] | None:
        """The rows of a statement of the driver's own; None where it takes more steps than are few, or its rows cannot
        be read."""
        self.raw.set_progress_handler(lambda: True, _FEW_STEPS)
        try:
            return self.run(sql)
        except sqlite3.Error:
            return None
        finally:
            self.raw.set_progress_handler(None, 0)

    @contextmanager
    def owning(self) -> Iterator[None]:
        """All statements are the driver's own."""
        before, self.own = self.own, True
        try:
            yield
        finally:
            self.own = before
