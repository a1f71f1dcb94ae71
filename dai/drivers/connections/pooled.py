"""The life of a connection between its pool and a query, a transaction or a load, the same for every driver whose
streams hold one connection. What differs stands in the drivers: how to begin, commit, read and roll back."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Generic

import pyarrow as pa

from dai.drivers import NO_TABLES, Driver, DriverOptions, Session
from dai.drivers.connections import bulk_load as bulk
from dai.drivers.connections.pool import C, Limit, Pool
from dai.drivers.sql.ddl import create_table
from dai.drivers.sql.lexer import check_locks, single_query
from dai.drivers.sql.query_tables import Tables, checked, refused
from dai.drivers.statements import traced
from dai.errors import DatabaseUnavailableError, DataError, ParameterError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream

Release = Callable[[C, bool], None]
"""What to do with the connection when its stream is closed; True: its state is unknown."""


class PooledDriver(Driver, Generic[C]):
    """``_pool`` is where connections come from, unless ``_take`` and ``_pool_of`` say otherwise."""

    _pool: Pool[C]

    def __init__(self, options: DriverOptions) -> None:
        self._options = options
        self._limit = Limit(options.pool_size, options.pool_wait, options.within)

    @abstractmethod
    def stream(
        self,
        connection: C,
        sql: str,
        parameters: Sequence[Any],
        cancellation: Cancellation,
        batch_rows: int | None,
        release: Release[C],
    ) -> Stream:
        """See ``Driver.query``. Closing the stream releases the connection; an error raised here does not."""

    @abstractmethod
    def _session(self, connection: C, cancellation: Cancellation) -> PooledSession[C]:
        """Not begun yet."""

    @abstractmethod
    def _insert(self, session: Session, table: str, schema: pa.Schema, transactional: bool) -> bulk.Insert:
        """Looks up the table that batches of the schema go to."""

    @abstractmethod
    def _release(self, connection: C, broken: bool) -> None:
        """Ends what a query or a transaction began. To the pool as new, with nothing that its statements left there
        (temporary tables, variables, locks, settings); thrown away when broken or when that is the cheaper way."""

    def _add_tables(self, connection: C, tables: Tables, cancellation: Cancellation) -> None:
        """Lets the next query of the connection see the tables, where ``takes_tables``."""

    def _forget(self, connection: C, names: Sequence[str]) -> None:
        """The connection has them no more; also where ``_add_tables`` failed half-way. Raises where that is not
        certain."""

    @contextmanager
    def _with_tables(self, connection: C, tables: Tables, cancellation: Cancellation) -> Iterator[Release[C]]:
        """How to release a connection that has the tables; they are gone already where the block fails."""

        def forgotten(connection: C) -> bool:
            with contextlib.suppress(Exception):
                self._forget(connection, tuple(tables))
                return True
            return False

        def release(connection: C, broken: bool) -> None:
            self._release(connection, broken or not forgotten(connection))

        try:
            self._add_tables(connection, tables, cancellation)
            yield release
        except BaseException as error:
            # After any other failure the connection is thrown away.
            known = isinstance(error, StatementError | ParameterError | DataError) and not cancellation.cancelled
            if known and not forgotten(connection):
                raise DatabaseUnavailableError(
                    "The state of the connection to the database is unknown; the connection was closed."
                ) from error
            raise

    def _abandon(self, connection: C, cancellation: Cancellation) -> None:
        """After a transaction that failed."""
        self._release(connection, cancellation.cancelled)

    def _begin_query(self, connection: C, cancellation: Cancellation) -> None:
        self._session(connection, cancellation).begin(read_only=True)

    def _create(self, session: Session, table: str, schema: pa.Schema) -> None:
        session.update(create_table(table, schema, self.syntax))

    def _undo_create(self, table: str) -> None:
        """After a load that failed, where CREATE TABLE commits by itself; elsewhere it was rolled back."""

    def _take(self, cancellation: Cancellation, *, read_only: bool) -> C:
        return self._pool.take(cancellation)

    def _pool_of(self, connection: C) -> Pool[C]:
        return self._pool

    @traced
    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        *,
        cancellation: Cancellation,
        batch_rows: int | None = None,
        tables: Tables = NO_TABLES,
    ) -> Stream:
        single_query(sql, self.syntax)
        check_locks(sql, self.syntax)
        if tables and not self.takes_tables():
            raise refused()
        tables = checked(tables) if tables else tables
        connection = self._take(cancellation, read_only=True)
        try:
            self._begin_query(connection, cancellation)
            if not tables:
                return self.stream(connection, sql, parameters, cancellation, batch_rows, self._release)
            with self._with_tables(connection, tables, cancellation) as release:
                return self.stream(connection, sql, parameters, cancellation, batch_rows, release)
        except (StatementError, ParameterError, DataError):
            # Where it was cancelled the error is of another part of the work, and this statement may still run.
            self._release(connection, cancellation.cancelled)
            raise
        except BaseException:
            self._release(connection, True)
            raise

    @contextmanager
    def transaction(self, *, cancellation: Cancellation, read_only: bool = False) -> Iterator[Session]:
        connection = self._take(cancellation, read_only=read_only)
        session = self._session(connection, cancellation)
        try:
            session.begin(read_only=read_only)
            yield session
            session.finish()
            cancellation.check()
            session.commit()
        except BaseException:
            with contextlib.suppress(Exception):
                session.finish()
            self._abandon(connection, cancellation)
            raise
        self._release(connection, False)

    def load(
        self,
        table: str,
        stream: Stream,
        *,
        cancellation: Cancellation,
        create: bool = False,
        transactional: bool = True,
    ) -> int:
        """Where the database commits CREATE TABLE by itself, this drops its new table again when the load fails."""
        created = False

        def prepare(session: Session, create: bool) -> bulk.Insert:
            nonlocal created
            if create:
                self._create(session, table, stream.schema)
                created = True
            return self._insert(session, table, stream.schema, transactional)

        try:
            return bulk.load(
                self, stream, prepare, cancellation=cancellation, create=create, transactional=transactional
            )
        except BaseException:
            if created and transactional:
                with contextlib.suppress(Exception):
                    self._undo_create(table)
            raise

    def pool_state(self) -> dict[str, int]:
        return self._limit.state()

    def close(self) -> None:
        self._pool.close()


class PooledSession(Session, Generic[C]):
    """One stream at a time is open: the next statement closes it."""

    def __init__(self, driver: PooledDriver[C], connection: C, cancellation: Cancellation) -> None:
        self._driver, self.connection, self._cancellation = driver, connection, cancellation
        self._open: Stream | None = None

    @abstractmethod
    def begin(self, *, read_only: bool) -> None:
        """The transaction."""

    @abstractmethod
    def commit(self) -> None:
        """Nothing of the session is open."""

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> Stream:
        self.finish()
        self._open = self._driver.stream(
            self.connection, sql, parameters, self._cancellation, None, release=lambda *_: None
        )
        return self._open

    def finish(self) -> None:
        if self._open is not None:
            self._open.close()
            self._open = None
