"""A connection: cursors over one source."""

from __future__ import annotations

import weakref
from typing import Any, NoReturn, Self

from dai.client.dbapi import errors
from dai.client.dbapi.cursor import Cursor
from dai.client.dbapi.source import Source
from dai.client.results.choices import checked
from dai.client.results.frames import needed
from dai.client.statements import Parameters


class Connection:
    """Threads may share it. Closing it closes its cursors, which stops their statements; so does leaving a ``with``."""

    Warning = errors.Warning
    Error = errors.Error
    InterfaceError = errors.InterfaceError
    DatabaseError = errors.DatabaseError
    DataError = errors.DataError
    OperationalError = errors.OperationalError
    IntegrityError = errors.IntegrityError
    InternalError = errors.InternalError
    ProgrammingError = errors.ProgrammingError
    NotSupportedError = errors.NotSupportedError

    def __init__(self, source: Source, *, numeric: str | None = None) -> None:
        with errors.translated():
            self.numeric = checked(numeric)
        self._source: Source | None = source
        self._cursors: weakref.WeakSet[Cursor] = weakref.WeakSet()

    @property
    def source(self) -> Source:
        """InterfaceError where the connection is closed."""
        if self._source is None:
            raise errors.InterfaceError("The connection is closed.")
        return self._source

    @property
    def autocommit(self) -> bool:
        """Always: each statement is a transaction of its own."""
        return True

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        if not value:
            raise errors.NotSupportedError(
                "autocommit cannot be switched off: each statement is a transaction of its own."
                "\nPut statements that belong together into one sqlBag of a perform document."
            )

    def adbc(self) -> AdbcConnection:
        """The same as pandas knows it: ``pandas.read_sql(sql, connection.adbc())`` reads Arrow, several times as fast.
        Closing one closes the source of both."""
        with errors.translated():
            needed("adbc_driver_manager.dbapi").Connection.register(AdbcConnection)
        return AdbcConnection(self.source, numeric=self.numeric or "double")

    def cursor(self) -> Cursor:
        cursor = Cursor(self, self.source, self.numeric)
        self._cursors.add(cursor)
        return cursor

    def execute(self, operation: str, parameters: Parameters = ()) -> Cursor:
        """A new cursor that has executed the statement (no part of PEP 249, as in sqlite3)."""
        return self.cursor().execute(operation, parameters)

    def commit(self) -> None:
        """Does nothing: what succeeded is committed."""
        _ = self.source

    def rollback(self) -> None:
        """NotSupportedError: what succeeded is committed."""
        _ = self.source
        raise errors.NotSupportedError("Nothing can be rolled back: each statement is a transaction of its own.")

    def stop(self) -> None:
        """Closes its cursors, which stops their statements; new ones may follow. No part of PEP 249."""
        for cursor in list(self._cursors):
            cursor.close()

    def close(self) -> None:
        """Twice is once. Every later call raises InterfaceError."""
        source, self._source = self._source, None
        if source is not None:
            self.stop()
            source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<Connection: closed>" if self._source is None else f"<Connection: {self._source.product}>"


class AdbcConnection(Connection):
    """One that pandas takes for a connection of ADBC, an abstract class with which it is registered: pandas reads from
    such by ``fetch_arrow_table``, and from any other, SQLAlchemy's engines among them, Python rows. Decimal numbers are
    DOUBLE unless ``numeric`` says otherwise, as pandas makes them of rows."""

    def adbc_get_objects(self, **_: Any) -> NoReturn:
        """Called by ``DataFrame.to_sql`` before it writes."""
        raise errors.NotSupportedError(
            "This connection only reads. Write with to_sql(…, create_engine('dai://host:port/resource'))."
        )
