"""The dialects: SQLAlchemy's own of each database, served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sqlalchemy import exc
from sqlalchemy.dialects.mysql.base import MySQLCompiler, MySQLDialect, MySQLExecutionContext
from sqlalchemy.dialects.mysql.mariadb import MariaDBDialect
from sqlalchemy.dialects.postgresql.base import PGCompiler, PGDDLCompiler, PGDialect, PGExecutionContext
from sqlalchemy.dialects.sqlite.base import SQLiteDialect, SQLiteExecutionContext
from sqlalchemy.engine import default
from sqlalchemy.sql import compiler

from dai.client.sqlalchemy import types
from dai.client.sqlalchemy.served import ExecutionContext, Served


class _PostgreSQLContext(ExecutionContext, PGExecutionContext):
    pass


class _PostgreSQLCompiler(PGCompiler):
    def visit_custom_op_binary(self, element: Any, operator: Any, **kw: Any) -> str:
        """``??`` is the operator ``?``: a single one stands for a value."""
        text: str = super().visit_custom_op_binary(element, operator, **kw)
        if operator.opstring in ("?", "?|", "?&"):
            return text.replace(f" {operator.opstring} ", f" ?{operator.opstring} ", 1)
        return text


class PostgreSQL(Served, PGDialect):
    supports_statement_cache = True
    execution_ctx_cls = _PostgreSQLContext
    statement_compiler = _PostgreSQLCompiler
    colspecs: ClassVar[Any] = {**PGDialect.colspecs, **types.POSTGRESQL}
    identity = "select currval(pg_get_serial_sequence({table}, {column}))"

    def identity_of(self, table: Any, column: Any) -> str:
        names = self.identifier_preparer.format_table(table), column.name
        quoted = ["'" + name.replace("'", "''") + "'" for name in names]
        return self.identity.format(table=quoted[0], column=quoted[1])

    def _set_backslash_escapes(self, connection: Any) -> None:
        """The service sets ``standard_conforming_strings``."""
        self._backslash_escapes = False


class _MySQLContext(ExecutionContext, MySQLExecutionContext):
    pass


class MySQL(Served, MySQLDialect):
    supports_statement_cache = True
    execution_ctx_cls = _MySQLContext
    statement_compiler = MySQLCompiler
    colspecs: ClassVar[Any] = {**MySQLDialect.colspecs, **types.MYSQL}
    identity = "select last_insert_id()"

    def _get_default_schema_name(self, connection: Any) -> None:
        """The service names the schema of tables of other databases only."""

    def _detect_charset(self, connection: Any) -> str:
        return "utf8mb4"


class MariaDB(MySQL, MariaDBDialect):
    """``name`` and the rest of what differs from MySQL are SQLAlchemy's."""

    name = MariaDBDialect.name
    is_mariadb = True
    supports_statement_cache = True
    colspecs: ClassVar[Any] = {**MariaDBDialect.colspecs, **types.MYSQL}


class _SQLiteContext(ExecutionContext, SQLiteExecutionContext):
    pass


class SQLite(Served, SQLiteDialect):
    supports_statement_cache = True
    execution_ctx_cls = _SQLiteContext
    colspecs: ClassVar[Any] = {**SQLiteDialect.colspecs, **types.SQLITE}
    identity = "select last_insert_rowid()"

    def __init__(self, dbapi: Any = None, **options: Any) -> None:
        """SQLAlchemy would ask the module for the version of a SQLite in this process."""
        super().__init__(**options)
        self.dbapi = dbapi

    def _get_default_schema_name(self, connection: Any) -> None:
        """There is one schema."""


class _DuckDBDDL(PGDDLCompiler):
    def get_column_specification(self, column: Any, **kw: Any) -> str:
        """DuckDB has no SERIAL."""
        return compiler.DDLCompiler.get_column_specification(self, column, **kw)


class DuckDB(PostgreSQL):
    """DuckDB's SQL is PostgreSQL's, as far as SQLAlchemy writes it. Federations speak it, too."""

    name = "duckdb"
    supports_statement_cache = True
    ddl_compiler = _DuckDBDDL
    identity = ""
    names_schemas_of_sources = True

    def initialize(self, connection: Any) -> None:
        default.DefaultDialect.initialize(self, connection)

    def _get_default_schema_name(self, connection: Any) -> None:
        """The service names the schemas of other tables than those of ``main`` only."""


DIALECTS: Mapping[str, Any] = {
    "postgresql": PostgreSQL,
    "mariadb": MariaDB,
    "mysql": MySQL,
    "sqlite": SQLite,
    "duckdb": DuckDB,
}


def class_for(dialect: str, product: str) -> type[Any]:
    """The dialect for what a service says of a resource. ArgumentError for a database without one."""
    name = {"postgres": "postgresql"}.get(dialect, dialect)
    if name == "mysql" and product.startswith("MariaDB"):
        name = "mariadb"
    if name not in DIALECTS:
        raise exc.ArgumentError(
            f"There is no dialect for {dialect or 'a resource without SQL'}. There are {', '.join(DIALECTS)}."
        )
    of_database: type[Any] = DIALECTS[name]
    return of_database
