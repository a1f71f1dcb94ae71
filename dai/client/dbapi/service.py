"""A resource of a data service as the source of a connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dai.client import statements
from dai.client.statements import OUTPUT, Parameters
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

    def query(self, sql: str, parameters: Parameters, cancellation: Cancellation, blocksize: int | None) -> Stream:
        if statements.is_json(parameters):
            values = (parameters,) if isinstance(parameters, Mapping) else parameters
            result = self.resource.query(sql, *values, blocksize=blocksize, progress=False, cancellation=cancellation)
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

    def change(self, sql: str, rows: Sequence[Parameters], cancellation: Cancellation) -> int:
        return statements.change(self.resource, sql, rows, cancellation)

    def insert(self, sql: str, parameters: Parameters, identity: str, cancellation: Cancellation) -> tuple[int, Any]:
        document = statements.insert(sql, parameters, identity)
        return statements.inserted(statements.performed(self.resource, document, cancellation))

    def schema(self, tables: str = "%") -> Sequence[Mapping[str, Any]]:
        return self.resource.schema(fresh=True, tables=tables)

    def close(self) -> None:
        self.resource.close()
