"""The schema of a database: reading it, creating and dropping tables."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal
from xml.sax.saxutils import escape, quoteattr

from dai.drivers.sql.ddl import quoted, quoted_table
from dai.drivers.sql.syntax import Syntax
from dai.drivers.statements import statement
from dai.drivers.tables import TableInfo
from dai.drivers.virtual import WithoutTables
from dai.errors import ParameterError, RequestError
from dai.perform.activities.sql.statements import NOT_XML, counted
from dai.perform.activity import Activity, Context, Element, Output, attribute, child, output
from dai.streams.stream import Block, ByteStream

NAMESPACE = "http://ogsadai.org.uk/namespaces/2003/07/gds/schema"
"""The namespace of the schema documents; ``schemas/database-schema.xsd`` describes them."""

_TYPE = re.compile(r"[A-Za-z]\w*( [A-Za-z]\w*){0,4}( ?\( ?\d+( ?, ?\d+)? ?\))?( [A-Za-z ]+)?(\[\])?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class GetTables(Element):
    """Which tables: ``name`` is a pattern with ``%`` (any text) and ``_`` (any character)."""

    name: str = attribute(default="%")


@dataclass(frozen=True, kw_only=True)
class ExtractPhysicalSchema(Activity):
    """Describes the tables and views of the database as XML.

    Columns with their types, primary and foreign keys, indexes, comments and the database's own estimate of the
    number of rows.
    """

    example: ClassVar[str] = """
        <extractPhysicalSchema name="schema">
          <getTables name="little%"/>
          <output name="tables"/>
        </extractPhysicalSchema>"""
    tabular: ClassVar[Literal["no"]] = "no"

    tables: GetTables = child("getTables", default=GetTables())
    result: Output[ByteStream] = output("output")

    def run(self, context: Context) -> ByteStream:
        driver = context.driver
        if isinstance(driver, WithoutTables):
            raise RequestError(f"{driver.called} has no tables.", hint=driver.instead)
        tables = driver.described(self.tables.name)
        return ByteStream("application/xml", _document(tables))


@dataclass(frozen=True, kw_only=True)
class ExtractDatabaseSchema(ExtractPhysicalSchema):
    """The newer name of ``extractPhysicalSchema``."""

    example: ClassVar[str] = """
        <extractDatabaseSchema name="schema">
          <getTables name="%"/>
          <output name="tables"/>
        </extractDatabaseSchema>"""


def _document(tables: tuple[TableInfo, ...]) -> Iterator[Block]:
    yield Block(f'<?xml version="1.0" encoding="UTF-8"?>\n<databaseSchema xmlns="{NAMESPACE}">\n'.encode(), 0)
    for table in tables:
        yield Block("".join(_table(table)).encode(), 1)
    yield Block(b"</databaseSchema>\n", 0)


def _carried(text: str) -> str:
    """A comment or default as XML can carry it."""
    return NOT_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _attributes(**values: object) -> str:
    """Attributes that have a value; camelCase from Python's names."""
    shown = []
    for name, value in values.items():
        if value is None:
            continue
        head, *rest = name.split("_")
        text = str(value).lower() if isinstance(value, bool) else _carried(str(value))
        shown.append(f" {head}{''.join(each.title() for each in rest)}={quoteattr(text)}")
    return "".join(shown)


def _table(table: TableInfo) -> Iterator[str]:
    known = _attributes(name=table.name, schema=table.schema, kind=table.kind, row_estimate=table.rows)
    yield f"  <table{known}>\n"
    if table.comment:
        yield f"    <comment>{escape(_carried(table.comment))}</comment>\n"
    for position, column in enumerate(table.columns, 1):
        known = _attributes(
            name=column.name,
            position=position,
            type=column.type,
            length=column.length,
            precision=column.precision,
            scale=column.scale,
            nullable=column.nullable,
            auto_increment=column.autoincrement or None,
            default=column.default,
            comment=column.comment,
            unit=column.unit,
            ucd=column.ucd,
            quantity=column.quantity,
            collation=column.collation,
        )
        yield f"    <column{known}/>\n"
    if table.primary_key:
        yield f"    <primaryKey>{_columns(table.primary_key)}</primaryKey>\n"
    for key in table.foreign_keys:
        known = _attributes(name=key.name, table=key.table, schema=key.schema)
        referred = "".join(f"<referred name={quoteattr(name)}/>" for name in key.referred_columns)
        yield f"    <foreignKey{known}>{_columns(key.columns)}{referred}</foreignKey>\n"
    for index in table.indexes:
        yield f"    <index{_attributes(name=index.name, unique=index.unique)}>{_columns(index.columns)}</index>\n"
    yield "  </table>\n"


def _columns(names: tuple[str, ...]) -> str:
    return "".join(f"<columnName name={quoteattr(name)}/>" for name in names)


@dataclass(frozen=True, kw_only=True)
class NewColumn(Element):
    """A column of a new table; ``type`` is a type name of the database, with length or precision."""

    name: str = attribute()
    type: str = attribute()
    nullable: bool = attribute(default=True)
    primary_key: bool = attribute("primaryKey", default=False)

    def definition(self, syntax: Syntax) -> str:
        if not _TYPE.fullmatch(self.type.strip()):
            raise ParameterError(
                f"{self.type!r} is not a type for the column {self.name!r}.",
                hint="For example integer, varchar(40), numeric(12,2).",
            )
        return f"{quoted(self.name, syntax)} {self.type.strip()}{'' if self.nullable else ' NOT NULL'}"


@dataclass(frozen=True, kw_only=True)
class CreateTable(Element):
    """A new table."""

    table: str = attribute("tableName")
    columns: tuple[NewColumn, ...] = child("column")

    def sql(self, syntax: Syntax) -> str:
        parts = [column.definition(syntax) for column in self.columns]
        keys = [quoted(column.name, syntax) for column in self.columns if column.primary_key]
        if keys:
            parts.append(f"PRIMARY KEY ({', '.join(keys)})")
        return f"CREATE TABLE {quoted_table(self.table, syntax)} ({', '.join(parts)})"


@dataclass(frozen=True, kw_only=True)
class DropTable(Element):
    """A table to drop."""

    table: str = attribute("tableName")

    def sql(self, syntax: Syntax) -> str:
        return f"DROP TABLE {quoted_table(self.table, syntax)}"


@dataclass(frozen=True, kw_only=True)
class RelationalResourceManagement(Activity):
    """Creates tables, then drops tables, in one transaction where the database allows it."""

    example: ClassVar[str] = """
        <relationalResourceManagement name="manage">
          <createTable tableName="notes">
            <column name="id" type="integer" nullable="false" primaryKey="true"/>
            <column name="note" type="varchar(200)"/>
          </createTable>
          <resultStream name="done"/>
        </relationalResourceManagement>"""
    tabular: ClassVar[Literal["no"]] = "no"
    changes: ClassVar[bool] = True

    create: tuple[CreateTable, ...] = child("createTable", default=())
    drop: tuple[DropTable, ...] = child("dropTable", default=())
    result: Output[ByteStream] = output("resultStream")

    def run(self, context: Context) -> ByteStream:
        syntax = context.driver.syntax
        statements = [*(each.sql(syntax) for each in self.create), *(each.sql(syntax) for each in self.drop)]
        if not statements:
            raise ParameterError("Name a table to create or a table to drop.")

        def manage() -> int:
            with context.driver.transaction(cancellation=context.cancellation) as session:
                for each in statements:
                    with statement(context.cancellation, context.driver, each):
                        session.update(each)
            return 0

        return counted(manage)
