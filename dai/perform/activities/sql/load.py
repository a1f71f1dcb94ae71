"""Bulk load."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import ClassVar, Literal
from xml.sax.saxutils import quoteattr

from dai.drivers.statements import statement
from dai.perform.activities.sql.statements import counted
from dai.perform.activity import Activity, Context, Element, Input, Output, attribute, child, input, output
from dai.streams.stream import ByteStream, Stream


@dataclass(frozen=True, kw_only=True)
class LoadIntoTable(Element):
    """The table to load into; ``transactionally`` (default ``true``): all rows are loaded, or none."""

    table: str = attribute("tableName")
    transactional: bool = attribute("transactionally", default=True)


@dataclass(frozen=True, kw_only=True)
class SqlBulkLoadRowSet(Activity):
    """Loads tuples into a table, with the database's fastest method; the result is the number of rows.

    Columns match by name. Without ``loadIntoTable`` it creates a table, whose name is the ``tableName`` of the result.
    It also reads bytes: a WebRowSet or an Arrow stream.
    """

    example: ClassVar[str] = """
        <sqlBulkLoadRowSet name="load">
          <webRowSetStream from="tuples"/>
          <loadIntoTable tableName="copy_of_book" transactionally="true"/>
          <resultStream name="count"/>
        </sqlBulkLoadRowSet>"""
    tabular: ClassVar[Literal["no"]] = "no"
    changes: ClassVar[bool] = True

    rows: Input[Stream] = input("webRowSetStream")
    into: LoadIntoTable | None = child("loadIntoTable", default=None)
    result: Output[ByteStream] = output("resultStream")

    def run(self, context: Context) -> ByteStream:
        table = self.into.table if self.into else f"rowset_{secrets.token_hex(6)}"
        transactional = self.into.transactional if self.into else True

        def load() -> int:
            driver = context.driver
            with statement(context.cancellation, driver, "LOAD") as cancellation:
                return driver.load(
                    table,
                    context.tuples(self.rows),
                    cancellation=cancellation,
                    create=self.into is None,
                    transactional=transactional,
                )

        return counted(load, "" if self.into else f" tableName={quoteattr(table)}")
