"""A resource of a data service as the source of a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from dai.client.dbapi import statements
from dai.client.dbapi.statements import OUTPUT
from dai.errors import DaiError, DataError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

if TYPE_CHECKING:
    from dai.client.service import Resource


class ServiceSource:
    """Statements travel as ``/query`` or as perform documents, whichever has the types of their parameters."""

    def __init__(self, resource: Resource) -> None:
        self.resource = resource

    @property
    def dialect(self) -> str:
        return str(self.resource.properties.get("dialect") or "")

    @property
    def product(self) -> str:
        return str(self.resource.properties.get("product") or "")

    def query(self, sql: str, parameters: Sequence[Any], cancellation: Cancellation, blocksize: int | None) -> Stream:
        if all(isinstance(each, statements.JSON_TYPES) for each in parameters):
            result = self.resource.query(
                sql, *parameters, blocksize=blocksize, progress=False, cancellation=cancellation
            )
        else:
            result = self.resource.perform(
                statements.query(sql, parameters),
                OUTPUT,
                format="arrow",
                blocksize=blocksize,
                progress=False,
                cancellation=cancellation,
            )
        return result.stream()

    def change(self, sql: str, rows: Sequence[Sequence[Any]], cancellation: Cancellation) -> int:
        if len(rows) > 1 or not all(map(statements.is_written, rows)):
            return self._change_many(sql, rows, cancellation)
        return statements.update_count(self._performed(statements.change(sql, rows[0] if rows else ()), cancellation))

    def insert(self, sql: str, parameters: Sequence[Any], identity: str, cancellation: Cancellation) -> tuple[int, Any]:
        return statements.inserted(self._performed(statements.insert(sql, parameters, identity), cancellation))

    def schema(self, tables: str = "%") -> Sequence[Mapping[str, Any]]:
        return self.resource.schema(fresh=True, tables=tables)

    def close(self) -> None:
        self.resource.close()

    def _performed(self, document: bytes, cancellation: Cancellation) -> bytes:
        with self.resource.perform(document, OUTPUT, progress=False, cancellation=cancellation) as result:
            return result.bytes()

    def _change_many(self, sql: str, rows: Sequence[Sequence[Any]], cancellation: Cancellation) -> int:
        """The values travel as Arrow through a stream of a session."""
        table = _table(rows)
        document = statements.change_many(sql, table.num_columns)
        with self.resource.perform(document, progress=False, cancellation=cancellation) as response:
            if response.session is None:
                response.check()
            with self.resource.session(id=response.session) as session:
                try:
                    session.push("rows", table, format="arrow")
                except DaiError:
                    response.check()  # says why nobody reads the values
                    raise
            response.check()
            return response.results[OUTPUT].update_count


def _table(rows: Sequence[Sequence[Any]]) -> pa.Table:
    width = len(rows[0])
    if width == 0:
        raise DataError("The rows have no parameters.", hint="Execute the statement once for each.")
    for number, row in enumerate(rows, 1):
        if len(row) != width:
            raise DataError(f"Row {number} has {len(row)} parameters, row 1 has {width}.")
    columns = []
    for place in range(width):
        try:
            columns.append(pa.array(_alike([row[place] for row in rows])))
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"The values of parameter {place + 1} have no type in common: {error}.",
                hint="Give values of one type, or execute the statement for each row.",
            ) from error
    return pa.table(columns, names=[f"p{place}" for place in range(1, width + 1)])


def _alike(values: list[Any]) -> list[Any]:
    """Numbers of several types as ``Decimal`` where one of them is."""
    if not any(isinstance(each, Decimal) for each in values):
        return values
    return [Decimal(str(each)) if type(each) in (int, float) else each for each in values]
