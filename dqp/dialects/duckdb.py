"""What a DuckDB database does as the evaluators' DuckDB does: the same engine."""

from __future__ import annotations

from typing import ClassVar

from dqp.dialects.dialect import Dialect, expanded


class DuckDB(Dialect):
    product = "DuckDB"
    COLUMNS: ClassVar = {}
    OPERATIONS = expanded({})
    binds_text = True
