"""Names that statements may not use."""

from __future__ import annotations

from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.sql.lexer import tokens
from dai.errors import StatementError

TELLING = frozenset(
    "current_setting duckdb_databases duckdb_log_contexts duckdb_logs duckdb_secrets duckdb_settings "
    "duckdb_temporary_files pg_settings pragma_database_list which_secret".split()
)
"""Functions and views that tell paths and settings of the service."""
BUILDING = frozenset(
    "create_external_resource deregister_external_resource destroy_external_resource json_execute_serialized_sql "
    "json_serialize_plan query query_table register_external_resource register_external_resource_type".split()
)
"""Functions that run a text, in which no name could be found."""
_BEFORE_TABLES = frozenset("exists into on recursive references table with".split())
"""Words behind which a name and a parenthesis are a table and its columns."""


def check_names(sql: str, telling: frozenset[str]) -> None:
    """StatementError for a statement with one of the names ``telling``, or a call of a function that runs a text."""
    called = before = ""
    for kind, start, end in tokens(sql, SYNTAX):
        text = sql[start:end]
        if called and text == "(":
            raise StatementError(
                f"The function {called} is not allowed: it runs SQL from a text.", sql=sql, position=start + 1
            )
        if kind == "comment":
            continue
        name = text.strip('"`').casefold() if kind in ("word", "name") else ""
        if name in telling:
            raise StatementError(
                f"{name} is not allowed: it gives information about the service.", sql=sql, position=start + 1
            )
        called = name if name in BUILDING and before not in _BEFORE_TABLES else ""
        before = name
