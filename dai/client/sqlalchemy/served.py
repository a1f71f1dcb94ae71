"""Common to all databases behind a service: connections, transactions, changes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from sqlalchemy import exc
from sqlalchemy.engine import URL, CursorResult, default
from sqlalchemy.engine.cursor import CursorFetchStrategy

from dai.client import dbapi
from dai.client.results.rows import uncollected
from dai.client.sqlalchemy.reflection import Reflection

_PORT = 8080
_TEXTS = ("numeric", "compression", "ca", "certificate", "key", "signing_key", "key_id", "profile")
_NUMBERS = {"connect": float, "read": float, "retries": int}


def address(url: URL) -> str:
    """The resource at ``dai://host:port/resource``, as ``dai.connect`` takes it."""
    secure = url.drivername.endswith("+https")
    host = url.host or "127.0.0.1"
    port = url.port or (None if secure else _PORT)
    place = f"[{host}]" if ":" in host else host
    return f"{'https' if secure else 'http'}://{place}{f':{port}' if port else ''}/{url.database or ''}"


def options(url: URL) -> dict[str, Any]:
    """The options in the URL. ArgumentError for unknown ones. A password is a token, because SQLAlchemy does not print
    passwords."""
    if url.username:
        raise exc.ArgumentError(
            "The URL has a user, which SQLAlchemy prints. Set DAI_TOKEN, or write the token as a password: "
            "dai://:TOKEN@host:8080/NAME."
        )
    said: dict[str, Any] = {"token": url.password} if url.password else {}
    for name, value in url.query.items():
        if name in _TEXTS:
            said[name] = value
        elif name in _NUMBERS:
            said[name] = _NUMBERS[name](str(value))
        elif name != "dialect":
            known = ", ".join((*_TEXTS, *_NUMBERS, "dialect"))
            if name == "token":
                raise exc.ArgumentError(
                    "The URL has a token that would be printed with it. Set DAI_TOKEN, or use a profile; "
                    "or write the token as a password, which SQLAlchemy hides: dai://:TOKEN@host:8080/NAME."
                )
            raise exc.ArgumentError(f"The URL has the option {name!r}. Known are: {known}.")
    return said


class Result(CursorResult[Any]):
    """Makes the ``Row`` objects of a fetch at once, which takes half the time without the garbage collector."""

    __slots__ = ()
    context: Any

    def keys(self) -> Any:
        """What pandas asks first of a statement that it takes for a query."""
        if not self.returns_rows:
            raise exc.ResourceClosedError(
                "The statement returns no rows: it changed data, and the change was committed. "
                "For such statements use connection.execute(…) of an engine, or resource.execute(…)."
            )
        return super().keys()

    def _allrows(self) -> Any:
        with self._pausing():
            return super()._allrows()

    def fetchmany(self, size: int | None = None) -> Any:
        with self._pausing():
            return super().fetchmany(size)

    @contextmanager
    def _pausing(self) -> Iterator[None]:
        """The collector is paused once the rows of the cursor are there, until they are ``Row`` objects."""
        with ExitStack() as pause:
            self.context.pause = pause
            try:
                yield
            finally:
                self.context.pause = None

    def _fetchall_impl(self) -> Any:
        return self._paused(super()._fetchall_impl())

    def _fetchmany_impl(self, size: int | None = None) -> Any:
        return self._paused(super()._fetchmany_impl(size))

    def _paused(self, rows: Any) -> Any:
        if self.context.pause is not None:
            self.context.pause.enter_context(uncollected(len(rows)))
        return rows


class ExecutionContext(default.DefaultExecutionContext):
    """Rows always stream: ``stream_results`` needs no other cursor, and no buffer but the cursor's."""

    cursor_fetch_strategy = CursorFetchStrategy()
    pause: ExitStack | None = None

    def create_server_side_cursor(self) -> Any:
        return self._dbapi_connection.cursor()

    def _setup_result_proxy(self) -> Any:
        result = super()._setup_result_proxy()
        if type(result) is CursorResult:
            result.__class__ = Result
        return result


class Served(Reflection):
    """To be inherited from before SQLAlchemy's dialect of the database. ``identity``: the query for the key that the
    database gave to the row that was inserted last in the transaction; empty where there is none."""

    driver = "dai"
    default_paramstyle = "qmark"
    supports_server_side_cursors = True
    supports_sane_multi_rowcount = False
    supports_native_decimal = True
    supports_sequences = False
    preexecute_autoincrement_sequences = False
    # The service runs what changes something without handing rows on.
    insert_returning = update_returning = delete_returning = False
    insert_executemany_returning = insert_executemany_returning_sort_by_parameter_order = False
    update_executemany_returning = delete_executemany_returning = False
    use_insertmanyvalues = False
    identity = ""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.postfetch_lastrowid = bool(self.identity)

    @classmethod
    def import_dbapi(cls) -> Any:
        return dbapi

    def create_connect_args(self, url: URL) -> tuple[Sequence[str], dict[str, Any]]:
        return (address(url),), options(url)

    def _get_server_version_info(self, connection: Any) -> tuple[int, ...]:
        """OperationalError where the service does not know it: the SQL depends on it."""
        product = _source(connection).product
        if not product:
            raise dbapi.OperationalError("The service cannot reach its database. Try again when the database answers.")
        return tuple(map(int, re.findall(r"\d+", product.split(" ")[-1]))) or (0,)

    # --- transactions: each statement is one ---

    def get_isolation_level_values(self, dbapi_connection: Any) -> list[str]:
        return ["AUTOCOMMIT"]

    def get_isolation_level(self, dbapi_connection: Any) -> str:
        return "AUTOCOMMIT"

    def get_default_isolation_level(self, dbapi_connection: Any) -> str:
        return "AUTOCOMMIT"

    def set_isolation_level(self, dbapi_connection: Any, level: str) -> None:
        """AUTOCOMMIT is what there is; SQLAlchemy lets nothing else through."""

    def reset_isolation_level(self, dbapi_connection: Any) -> None:
        """There is no other."""

    def detect_autocommit_setting(self, dbapi_connection: Any) -> bool:
        return True

    def do_begin(self, dbapi_connection: Any) -> None:
        """Nothing begins."""

    def do_rollback(self, dbapi_connection: Any) -> None:
        """Undoes nothing. Rows that were not fetched are dropped, also when a connection returns to the pool."""
        dbapi_connection.stop()

    def do_commit(self, dbapi_connection: Any) -> None:
        """Does nothing: each statement that succeeded is already committed."""

    def do_savepoint(self, connection: Any, name: str) -> None:
        raise exc.InvalidRequestError("There are no savepoints: each statement is a transaction of its own.")

    def do_begin_twophase(self, connection: Any, xid: Any) -> None:
        raise exc.InvalidRequestError(
            "There are no two-phase transactions: each statement is a transaction of its own."
        )

    # --- statements ---

    def do_execute(self, cursor: Any, statement: str, parameters: Any, context: Any = None) -> None:
        if getattr(getattr(context, "compiled", None), "effective_returning", None):
            raise dbapi.NotSupportedError(
                "RETURNING is not supported: a statement that changes data returns no rows. Read them with a SELECT."
            )
        if (identity := self._identity(context)) is not None:
            cursor.insert(statement, parameters or (), identity)
        else:
            cursor.execute(statement, parameters or ())

    def do_ping(self, dbapi_connection: Any) -> bool:
        dbapi_connection.execute("select 1").close()
        return True

    def is_disconnect(self, error: Any, connection: Any, cursor: Any) -> bool:
        """A connection has no state that could be lost."""
        return False

    def _identity(self, context: Any) -> str | None:
        """The query for the key of the row that the statement inserts, where SQLAlchemy waits for it."""
        compiled = context.compiled if context is not None else None
        if not self.identity or compiled is None or not context.isinsert or context.executemany:
            return None
        if not compiled.postfetch_lastrowid or compiled.inline:
            return None
        table = compiled.compile_state.dml_table
        column = getattr(table, "_autoincrement_column", None)
        if column is None or column.key in context.compiled_parameters[0]:
            return None
        return self.identity_of(table, column)

    def identity_of(self, table: Any, column: Any) -> str:
        return self.identity


def _source(connection: Any) -> Any:
    return connection.connection.dbapi_connection.source
