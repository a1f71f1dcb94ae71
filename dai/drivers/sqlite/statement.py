"""What is to be known of a query before a process may read it; each is found out once."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from dai.drivers.sql.lexer import bind_markers, shortened, tokens
from dai.drivers.sqlite.alike import computes_alike
from dai.drivers.sqlite.connection import Connection
from dai.drivers.sqlite.syntax import SYNTAX
from dai.drivers.sqlite.types import Kind, has_text_affinity, promised

MOST_EXPLAINED = 50_000
"""Characters of a statement; SQLite explains a longer one, with the first value of each list, in too many rows."""
MOST_PROMISED = 10_000
"""Characters of a statement of which that is asked before it has a row."""
_COLLATED = re.compile(
    r"\s*+(?:select\b(?:(?!\bfrom\b).)*\bcollate\b|(?!select\b).*\bcollate\b)", re.IGNORECASE | re.DOTALL
)
"""A statement that may select a column with a collation, which a view and a result call by different names."""


class Statement:
    """A query with its parameters. ``columns``: their names and declared types."""

    def __init__(self, connection: Connection, query: str, bound: Sequence[Any]) -> None:
        self._connection, self.bound = connection, bound
        self.text = bind_markers(query, "qmark", SYNTAX).sql if bound else query
        self._short = shortened(query, SYNTAX)
        self.columns: list[tuple[str, str]] = []

    def find_columns(self) -> None:
        """Only a view of a query tells the declared types of its columns. A view takes no parameters: NULL stands for
        them. None of what cannot be a view (EXPLAIN)."""
        run = self._connection.run
        try:
            run(f"CREATE TEMP VIEW dai_query AS {_without_markers(self._short)}\n")
        except sqlite3.Error:
            return
        try:
            self.columns = [(row[1], row[2]) for row in run("PRAGMA temp.table_info(dai_query)")]
        except sqlite3.Error:
            return
        finally:
            run("DROP VIEW temp.dai_query")

    def promised(self) -> list[Kind]:
        """The kinds of the columns, as far as they are certain before a row is read; else none."""
        if len(self._short) > MOST_PROMISED or _COLLATED.match(self._short):
            return []
        return promised(self.columns)

    @cached_property
    def alone(self) -> bool:
        """Whether another connection sees what this one does (it is in no transaction and has no temporary tables), and
        texts have the bytes that they have in Arrow."""
        connection = self._connection
        return (
            connection.read_only
            and not connection.raw.in_transaction
            and not connection.run("SELECT 1 FROM sqlite_temp_schema LIMIT 1")
            and connection.run("PRAGMA encoding") == [("UTF-8",)]
        )

    @cached_property
    def alike(self) -> bool:
        """Whether other versions of SQLite compute the same. The authorizer is asked, too."""
        if len(self._short) > MOST_EXPLAINED:
            return False
        text = bind_markers(self._short, "qmark", SYNTAX).sql if self.bound else self._short
        try:
            program = self._connection.raw.execute(f"EXPLAIN {text}", self.bound).fetchall()
        except sqlite3.Error:  # the statement itself says what is wrong
            return False
        return computes_alike(program, self._texts)

    def _texts(self, page: int) -> Sequence[bool]:
        """As ``alike.Texts``: columns of an affinity that makes texts of numbers."""
        run = self._connection.run
        tables = run("SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND rootpage = ?", (page,))
        if len(tables) != 1 or "WITHOUT" in str(tables[0][1]).upper():  # rowid: stored in another order
            return ()
        virtual = 2  # columns that are computed, and stored nowhere
        columns = run("SELECT type FROM pragma_table_xinfo(?) WHERE hidden <> ?", (tables[0][0], virtual))
        return [has_text_affinity(type) for (type,) in columns]


def _without_markers(query: str) -> str:
    parts, at = [], 0
    for kind, start, end in tokens(query, SYNTAX, lists=True) if "?" in query else ():
        if kind in ("marker", "escaped"):
            parts += [query[at:start], "NULL" if kind == "marker" else "?"]
            at = end
    return "".join([*parts, query[at:]])
