"""SQLAlchemy's reflection from what the service says of tables. What the service does not say is a NotImplementedError,
which is how a dialect tells SQLAlchemy so (``sqlalchemy.engine.interfaces.Dialect``)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import reflection
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.engine.reflection import ReflectionDefaults

from dai.client.dbapi.errors import translated
from dai.client.sqlalchemy.types import type_of

Described = Mapping[str, Any]
_LONGEST_NAME = 255


class Reflection:
    """One request describes all tables; an ``Inspector`` keeps it. What the service does not say (checks, definitions
    of views, sequences) is not there."""

    default_schema_name: str | None
    supports_comments: bool
    names_schemas_of_sources = False
    """Whether a table may be called ``schema.table``, and ``table`` for short: in a federation the schema is its
    source."""
    has_multi_table = DefaultDialect.has_multi_table
    get_multi_columns = DefaultDialect.get_multi_columns
    get_multi_pk_constraint = DefaultDialect.get_multi_pk_constraint
    get_multi_foreign_keys = DefaultDialect.get_multi_foreign_keys
    get_multi_indexes = DefaultDialect.get_multi_indexes
    get_multi_unique_constraints = DefaultDialect.get_multi_unique_constraints
    get_multi_check_constraints = DefaultDialect.get_multi_check_constraints
    get_multi_table_comment = DefaultDialect.get_multi_table_comment
    get_multi_table_options = DefaultDialect.get_multi_table_options

    @reflection.cache
    def _tables(self, connection: Any, pattern: str = "%", **kw: Any) -> list[Described]:
        with translated():
            return list(connection.connection.dbapi_connection.source.schema(pattern))

    def _within(
        self, connection: Any, schema: str | None, kind: str | None = None, pattern: str = "%", **kw: Any
    ) -> list[Described]:
        wanted = schema or self.default_schema_name
        # what has no schema of its own is in the only one
        described = self._tables(connection, pattern, info_cache=kw.get("info_cache"))
        tables = [each for each in described if each["schema"] in (wanted, schema)]
        return [each for each in tables if kind in (None, each["kind"])]

    def _described(self, connection: Any, name: str, schema: str | None, **kw: Any) -> Described:
        tables = self._within(connection, schema, **kw)
        called = [each for each in tables if each["name"] == name]
        if not called and self.names_schemas_of_sources:
            called = [each for each in tables if each["name"].partition(".")[2] == name]
        if len(called) == 1:
            return called[0]
        raise exc.NoSuchTableError(f"{schema}.{name}" if schema else name)

    def has_table(self, connection: Any, table_name: Any, schema: str | None = None, **kw: Any) -> bool:
        """Asks for this table alone. What is no name is no table: pandas asks so whether a statement is one."""
        if not isinstance(table_name, str) or len(table_name) > _LONGEST_NAME:
            return False
        pattern = ("%" if self.names_schemas_of_sources else "") + re.sub(r"([\\%_])", r"\\\1", table_name)
        try:
            self._described(connection, table_name, schema, pattern=pattern, **kw)
        except exc.NoSuchTableError:
            return False
        return True

    def has_index(
        self, connection: Any, table_name: str, index_name: str, schema: str | None = None, **kw: Any
    ) -> bool:
        if not self.has_table(connection, table_name, schema, **kw):
            return False
        return any(each["name"] == index_name for each in self.get_indexes(connection, table_name, schema, **kw))

    def has_schema(self, connection: Any, schema_name: str, **kw: Any) -> bool:
        return schema_name in self.get_schema_names(connection, **kw)

    def has_sequence(self, connection: Any, sequence_name: str, schema: str | None = None, **kw: Any) -> bool:
        return False

    def get_schema_names(self, connection: Any, **kw: Any) -> list[str]:
        """Those that have tables."""
        names = {each["schema"] for each in self._tables(connection, info_cache=kw.get("info_cache"))} | {
            self.default_schema_name
        }
        return sorted(name for name in names if name is not None)

    def get_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return [str(each["name"]) for each in self._within(connection, schema, "table", **kw)]

    def get_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return [str(each["name"]) for each in self._within(connection, schema, "view", **kw)]

    def get_materialized_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        """They are among the views."""
        return []

    def get_temp_table_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return []

    def get_temp_view_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return []

    def get_sequence_names(self, connection: Any, schema: str | None = None, **kw: Any) -> list[str]:
        return []

    def get_view_definition(self, connection: Any, view_name: str, schema: str | None = None, **kw: Any) -> str:
        raise NotImplementedError("The service does not tell the definition of a view.")

    def get_columns(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        described = self._described(connection, table_name, schema, **kw)
        return [
            {
                "name": each["name"],
                "type": type_of(each, self),
                "nullable": each["nullable"],
                "default": each["default"],
                "autoincrement": each["autoincrement"],
                **({"comment": each["comment"]} if self.supports_comments else {}),
            }
            for each in described["columns"]
        ]

    def get_pk_constraint(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        described = self._described(connection, table_name, schema, **kw)
        columns = list(described["primary_key"])
        index = _index_of(described, columns)
        return {"name": index["name"] if index else None, "constrained_columns": columns}

    def get_foreign_keys(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        described = self._described(connection, table_name, schema, **kw)
        keys = [
            {
                "name": each["name"],
                "constrained_columns": list(each["columns"]),
                "referred_schema": self._referred_schema(each["schema"], schema),
                "referred_table": each["table"],
                "referred_columns": list(each["referred_columns"]),
                "options": {},
            }
            for each in described["foreign_keys"]
        ]
        return keys or ReflectionDefaults.foreign_keys()

    def _referred_schema(self, referred: str | None, schema: str | None) -> str | None:
        """The schema of a table that is referred to: none where it is the default one, as SQLAlchemy has it."""
        return None if schema is None and referred == self.default_schema_name else referred

    def get_indexes(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> list[Any]:
        """By name. Without that of the primary key and those of SQLite for constraints, as SQLAlchemy has it."""
        described = self._described(connection, table_name, schema, **kw)
        primary = _index_of(described, list(described["primary_key"]))
        return [
            {"name": each["name"], "column_names": list(each["columns"]), "unique": each["unique"]}
            for each in sorted(described["indexes"], key=lambda index: str(index["name"]))
            if each is not primary and not str(each["name"]).startswith("sqlite_autoindex_")
        ]

    def get_unique_constraints(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        """The service says unique indexes, which keep them."""
        self._described(connection, table_name, schema, **kw)
        return ReflectionDefaults.unique_constraints()

    def get_check_constraints(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        self._described(connection, table_name, schema, **kw)
        return ReflectionDefaults.check_constraints()

    def get_table_comment(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        described = self._described(connection, table_name, schema, **kw)
        if not self.supports_comments:
            raise NotImplementedError("The database has no comments.")
        return {"text": described["comment"]}

    def get_table_options(self, connection: Any, table_name: str, schema: str | None = None, **kw: Any) -> Any:
        raise NotImplementedError("The service does not tell the options of tables.")


def _index_of(described: Described, columns: list[str]) -> Any:
    """The index that keeps the primary key."""
    if not columns:
        return None
    return next((each for each in described["indexes"] if each["unique"] and list(each["columns"]) == columns), None)
