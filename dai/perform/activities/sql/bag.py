"""Several statements in one transaction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from dai.drivers.statements import statement
from dai.perform.activities.sql.parameters import SqlParameter, arranged, constants
from dai.perform.activities.sql.statements import embedded, enclosed
from dai.perform.activity import FRAGMENT, Activity, Context, Element, Output, attribute, child, output
from dai.streams.stream import Block, ByteStream


@dataclass(frozen=True, kw_only=True)
class Statement(Element):
    """One statement. Its result is the ``count`` of rows that it changed, or the ``rows`` of a query."""

    returns: Literal["count", "rows"] = attribute(default="count")
    parameters: tuple[SqlParameter, ...] = child("sqlParameter", default=())
    expression: str = child()


@dataclass(frozen=True, kw_only=True)
class SqlBag(Activity):
    """Runs statements in order in one transaction: all of them take effect, or none.

    The result is XML: a ``<resultStream>`` with, for each statement, a ``<statement position="…" updateCount="…"/>``
    or a ``<statement position="…">`` with a WebRowSet. The transaction is committed before the result ends.
    """

    example: ClassVar[str] = """
        <sqlBag name="bag">
          <statement><expression>update littleblackbook set phone = '1' where id = 1</expression></statement>
          <statement returns="rows"><expression>select phone from littleblackbook where id = 1</expression></statement>
          <resultStream name="results"/>
        </sqlBag>"""
    tabular: ClassVar[Literal["no"]] = "no"
    changes: ClassVar[bool] = True

    statements: tuple[Statement, ...] = child("statement")
    result: Output[ByteStream] = output("resultStream")

    def run(self, context: Context) -> ByteStream:
        return ByteStream(FRAGMENT, enclosed("resultStream", self._results(context)))

    def _results(self, context: Context) -> Iterator[Block]:
        with context.driver.transaction(cancellation=context.cancellation) as session:
            for position, each in enumerate(self.statements, 1):
                context.cancellation.check()
                own = context.driver.placed(each.expression, constants(arranged(each.parameters)))
                with statement(context.cancellation, context.driver, each.expression), own.translating():
                    if each.returns == "rows":
                        with session.query(own.sql, own.values) as stream:
                            yield from enclosed(f'statement position="{position}"', embedded(stream))
                    else:
                        count = session.update(own.sql, [own.values] if own.values else None)
                        yield Block(f'<statement position="{position}" updateCount="{count}"/>'.encode(), 0)
