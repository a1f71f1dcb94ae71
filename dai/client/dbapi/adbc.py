"""A connection that pandas takes for one of ADBC: ``pandas.read_sql`` then reads Arrow, and no rows.

pandas reads by ``fetch_arrow_table`` from instances of ``adbc_driver_manager.dbapi.Connection``, an abstract class,
with which this one is registered. It fetches from any other connection, SQLAlchemy's engines among them, as Python
rows.
"""

from __future__ import annotations

from typing import Any, NoReturn

from dai.client.dbapi.connection import Connection
from dai.client.dbapi.errors import NotSupportedError, translated
from dai.client.results.frames import needed


class AdbcConnection(Connection):
    """Reads, with decimal numbers as DOUBLE unless ``numeric`` says otherwise, as pandas makes them of rows."""

    def adbc_get_objects(self, **_: Any) -> NoReturn:
        """What ``DataFrame.to_sql`` asks first."""
        raise NotSupportedError(
            "This connection reads. Write with to_sql(…, create_engine('dai://host:port/resource'))."
        )


def adbc_connection(connection: Connection) -> AdbcConnection:
    """Over the same source as ``connection``; closing one closes the source of both."""
    with translated():
        needed("adbc_driver_manager.dbapi").Connection.register(AdbcConnection)
    return AdbcConnection(connection.source, numeric=connection.numeric or "double")
