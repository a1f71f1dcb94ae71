"""The interface of a connection to the resource behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from dai.client.statements import Parameters
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream


class Source(Protocol):
    """A resource of a service, or a federation in this process. Errors are those of ``dai.errors``."""

    @property
    def dialect(self) -> str:
        """The name of the SQL spoken, as services say it: ``postgres``, ``mysql``, ``sqlite``, ``duckdb`` …"""

    @property
    def product(self) -> str:
        """Name and version of the database, for people; empty while it cannot be reached."""

    def query(self, sql: str, parameters: Parameters, cancellation: Cancellation, blocksize: int | None) -> Stream:
        """The tuples of one query. NotAQueryError, before anything runs, for a statement that may change something."""

    def change(self, sql: str, rows: Sequence[Parameters], cancellation: Cancellation) -> int:
        """Runs a statement that changes something once for each row of parameters, all in one transaction; once where
        there are no rows. How many rows of the database changed."""

    def insert(self, sql: str, parameters: Parameters, identity: str, cancellation: Cancellation) -> tuple[int, Any]:
        """As ``change`` for one row. The second value is that of the query ``identity`` in the same transaction: the
        key that the database gave to the row."""

    def schema(self, tables: str = "%") -> Sequence[Mapping[str, Any]]:
        """Tables and views with their columns as they are now, described as by ``GET /resources/NAME/schema``: those
        whose names fit the LIKE pattern."""

    def close(self) -> None: ...
