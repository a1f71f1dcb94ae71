"""A connection of PEP 249 over a federation; the rest of the module, ``dqp.dbapi``, is that of a data service.

::

    from dqp import dbapi

    connection = dbapi.connect("federation.toml")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dai.client import dbapi
from dai.client.credentials import Personal
from dai.client.dbapi.connection import Connection
from dai.client.dbapi.errors import Error, translated
from dai.client.statements import Parameters
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.interfaces.driver import Federation
from dqp.settings.loading import settings_of


def connect(
    federation: Any, *, numeric: str | None = None, token: str | None = None, profile: str | None = None
) -> Connection:
    """A connection to whatever ``dqp.connect`` takes. ``numeric`` as in ``dai.dbapi.connect``, ``token`` and
    ``profile`` as in ``dqp.connect``."""
    if isinstance(federation, str) and federation.startswith(("http://", "https://")):
        return dbapi.connect(federation, numeric=numeric, token=token, profile=profile)
    opened = opened_federation(federation, token, profile)
    try:
        return Connection(FederationSource(opened, opened.close), numeric=numeric)
    except Error:
        opened.close()
        raise


def opened_federation(federation: Any, token: str | None = None, profile: str | None = None) -> Federation:
    with translated():
        return Federation(settings_of(federation, token), person=Personal(profile))


class FederationSource:
    """The driver of a federation as the source of a connection. ``close`` is called when the connection is closed."""

    dialect = "duckdb"

    def __init__(self, federation: Federation, close: Callable[[], None]) -> None:
        self._federation, self.close = federation, close

    @property
    def product(self) -> str:
        return self._federation.product()

    def query(self, sql: str, parameters: Parameters, cancellation: Cancellation, blocksize: int | None) -> Stream:
        return self._federation.query(sql, parameters, cancellation=cancellation, batch_rows=blocksize)

    def change(self, sql: str, rows: Sequence[Parameters], cancellation: Cancellation) -> int:
        return self._federation.update(sql, cancellation=cancellation)  # which refuses it

    def insert(self, sql: str, parameters: Parameters, identity: str, cancellation: Cancellation) -> tuple[int, Any]:
        return self.change(sql, [parameters], cancellation), None

    def schema(self, tables: str = "%") -> Sequence[Mapping[str, Any]]:
        return [dataclasses.asdict(each) for each in self._federation.tables(tables)]
