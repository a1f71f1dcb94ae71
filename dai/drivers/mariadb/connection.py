"""Connections to MariaDB and MySQL: how they are opened, and made as new for whoever takes them next."""

from __future__ import annotations

import contextlib
import os
import select
import socket
from typing import Any

import MySQLdb
from MySQLdb.constants import CLIENT, FLAG
from sqlalchemy.engine import URL

from dai.drivers.mariadb import tls
from dai.drivers.mariadb.errors import error_of, parts_of
from dai.drivers.mariadb.types import TEXT_TYPES
from dai.drivers.mariadb.wire import reset, settle
from dai.errors import DatabaseUnavailableError, StatementError

_SETUP = (
    "SET NAMES utf8mb4 /*!80000 COLLATE utf8mb4_0900_ai_ci */, SESSION autocommit = 1, SESSION time_zone = '+00:00', "
    "SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION'"
    ", SESSION sql_select_limit = 18446744073709551615, SESSION sql_auto_is_null = 0"
    ", SESSION completion_type = 0, SESSION div_precision_increment = 4, SESSION max_sort_length = 1024"
    ", SESSION group_concat_max_len = 1048576"
    ", SESSION default_week_format = 0, SESSION lc_time_names = 'en_US'"
    "/*M!100318 , SESSION in_predicate_conversion_threshold = 0, SESSION default_regex_flags = ''"
    ", SESSION system_versioning_asof = DEFAULT */"
    "/*M!100601 , SESSION old_mode = 'UTF8_IS_UTF8MB3' */"
    "/*M! , SESSION tx_read_only = 1 */"
    "/*!80000 , SESSION information_schema_stats_expiry = 0, SESSION transaction_read_only = 1 */"
)
"""A session reads only until it is told otherwise: DROP TABLE ends a transaction that reads only, and begins one of the
session's kind.

``in_predicate_conversion_threshold``: MariaDB would turn a long IN list into a derived table, which takes three times
as long. ``information_schema_stats_expiry``: MySQL would report row counts that are a day old (MySQL alone reads the
comment). What the library sets when it connects is repeated, because a session that was reset loses it. The answer of
a statement depends on the other variables, so the settings of the server must not decide them."""
_CONVERSIONS = {type: [(FLAG.BINARY, bytes)] for type in TEXT_TYPES}
"""Converts nothing, but leaves a mark at columns whose character set is binary, which no other attribute shows."""
_RESET_MILLISECONDS = 2_000
"""After which a connection whose session is not new yet is replaced."""


class Connection:
    """With the thread's number, which a running statement would not let us ask for. ``renewable``: a session that is
    reset is as a new one; it is not where the server runs statements of its own (init_connect) in each new one."""

    def __init__(self, raw: Any, renewable: bool) -> None:
        self.raw, self.renewable = raw, renewable
        self.unread = 0
        """How many statements were sent whose answers, which tell nothing, were not waited for."""
        self.id: int = raw.thread_id()
        self.preceding: tuple[str, ...] = ()
        """Definitions of the query-scoped tables of its next query."""

    def settle(self) -> None:
        """Waits for these answers: before anything is asked through the library."""
        settle(self.raw, self.unread)
        self.unread = 0

    def quiet(self) -> bool:
        """An idle connection has nothing to say, once its session is new; where there is something to read, the server
        has gone or said so."""
        poll = select.poll()
        poll.register(self.raw.fileno(), select.POLLIN)
        if self.unread:
            if not poll.poll(_RESET_MILLISECONDS):
                return False
            self.settle()
        return not poll.poll(0)

    def cut(self) -> None:
        """Whatever is done with the connection from now on fails."""
        with contextlib.suppress(MySQLdb.Error, OSError), socket.socket(fileno=os.dup(self.raw.fileno())) as own:
            own.shutdown(socket.SHUT_RDWR)


class Connector:
    """Opens connections to the database of ``url``. ``seconds``: how long one may take."""

    def __init__(self, url: URL, seconds: float) -> None:
        self._url, self._seconds = url, seconds
        self._tls = tls.options_of(url)

    def raw(self, seconds: float | None = None) -> Any:
        """A connection of the library, which takes at most ``seconds`` to open; DatabaseUnavailableError, or what
        ``tls`` refuses."""
        url = self._url
        options = {"unix_socket": str(url.query["unix_socket"])} if "unix_socket" in url.query else {}
        named = {"host": url.host, "user": url.username, "password": url.password, "database": url.database}
        try:
            raw = MySQLdb.connect(
                **{name: str(value) for name, value in named.items() if value},
                **options,
                **self._tls,
                port=url.port or 3306,
                charset="utf8mb4",
                use_unicode=False,
                conv=_CONVERSIONS,
                multi_statements=False,
                local_infile=0,
                autocommit=True,
                # an update counts the rows it found, as in every other database, not only those it made different
                client_flag=CLIENT.MULTI_RESULTS | CLIENT.FOUND_ROWS,
                connect_timeout=max(1, round(seconds or self._seconds)),
            )
        except MySQLdb.Error as error:
            code, message = parts_of(error)
            failure = tls.refused() if code == tls.INSECURE else error_of(code, message, None, None, None)
            if not isinstance(failure, StatementError):
                raise failure from error
            raise DatabaseUnavailableError("The database refuses the connection.") from error
        tls.check(raw, self._tls)
        return raw

    def open(self) -> Connection:
        """A connection with a session as every query expects it."""
        raw = self.raw()
        try:
            raw.query(_SETUP.encode())
            raw.query(b"SELECT @@init_connect <> ''")
            ((prepared,),) = raw.store_result().fetch_row(0)
        except MySQLdb.Error as error:
            raise error_of(*parts_of(error), None, None, None) from error
        return Connection(raw, renewable=prepared == b"0")

    def renew(self, connection: Connection, *, reads: bool) -> None:
        """Makes the session new; with ``reads`` nothing waits for it: ``Connection.quiet`` looks whether it is. Raises
        MySQLdb.Error or OSError if the connection is of no more use."""
        if not connection.renewable:
            raise MySQLdb.OperationalError(2013, "")
        if reads:
            reset(connection.raw)
            connection.raw.send_query(_SETUP.encode())
            connection.unread += 2
        else:
            connection.raw.change_user(self._url.username or "", str(self._url.password or ""), self._url.database)
            connection.raw.query(_SETUP.encode())
