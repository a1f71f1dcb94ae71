"""PEP 249 (DB-API 2.0) over a resource of a data service, a federation among them.

::

    from dai import dbapi

    with dbapi.connect("http://127.0.0.1:8080/book") as connection, connection.cursor() as cursor:
        cursor.execute("select name, phone from littleblackbook where id < ?", (100,))
        for name, phone in cursor:
            ...

Every statement is a transaction of its own: ``commit`` does nothing, ``rollback`` raises NotSupportedError. Rows
stream: a cursor holds one batch of them. Threads may share the module and connections (``threadsafety`` 2); a cursor
belongs to one thread, but for ``cancel``. docs/dbapi.md says more.

``connection`` and ``cursor`` are for any ``Source``; ``service`` is the one of a data service. dqp has another one, for
a federation in the same process. ``dai.client.sqlalchemy`` stands on this package.
"""

from __future__ import annotations

from typing import Any

from dai.client.dbapi.connection import Connection
from dai.client.dbapi.cursor import Cursor
from dai.client.dbapi.errors import (
    DatabaseError,
    DataError,
    Error,
    IntegrityError,
    InterfaceError,
    InternalError,
    NotSupportedError,
    OperationalError,
    ProgrammingError,
    Warning,
    translated,
)
from dai.client.dbapi.service import ServiceSource
from dai.client.dbapi.types import (
    BINARY,
    DATETIME,
    NUMBER,
    ROWID,
    STRING,
    Binary,
    Date,
    DateFromTicks,
    Time,
    TimeFromTicks,
    Timestamp,
    TimestampFromTicks,
)

__all__ = [
    "BINARY",
    "DATETIME",
    "NUMBER",
    "ROWID",
    "STRING",
    "Binary",
    "Connection",
    "Cursor",
    "DataError",
    "DatabaseError",
    "Date",
    "DateFromTicks",
    "Error",
    "IntegrityError",
    "InterfaceError",
    "InternalError",
    "NotSupportedError",
    "OperationalError",
    "ProgrammingError",
    "Time",
    "TimeFromTicks",
    "Timestamp",
    "TimestampFromTicks",
    "Warning",
    "apilevel",
    "connect",
    "paramstyle",
    "threadsafety",
]

apilevel = "2.0"
threadsafety = 2
paramstyle = "qmark"


def connect(url: str, *, token: str | None = None, numeric: str | None = None, **options: Any) -> Connection:
    """A connection to the resource at ``http://host:port/resource``. ``options`` are those of ``dai.connect``.

    ``token``: identifies the caller; without one, the environment or a ``profile`` does (``dai.client.credentials``).
    ``numeric``: what becomes of decimal numbers, as in ``Resource.query``; by default ``decimal.Decimal`` in rows.
    """
    from dai.client import connect as resource_at

    with translated():
        resource = resource_at(url, token=token, **options)
    return Connection(ServiceSource(resource), numeric=numeric)
