"""What SQLite does as DuckDB does: little, for its columns may hold values of any type, whatever was declared."""

from __future__ import annotations

from typing import ClassVar

from dqp.dialects.dialect import Dialect, expanded


class SQLite(Dialect):
    product = "SQLite"
    COLUMNS: ClassVar = {}
    OPERATIONS = expanded({})
    binds_text = True
