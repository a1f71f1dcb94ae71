"""Checks queries in an in-memory DuckDB that has the federation's tables without rows.

Each source is an attached database with its alias as the name, so DuckDB itself resolves ``alias.table`` and
``alias.schema.table``. A table is created when a query first names it. The validator runs no query: DuckDB binds it
(``DESCRIBE``) and returns the names and types of its columns, or an error with a position. A query here reaches no
files, extensions, settings or variables of Python.
"""

from __future__ import annotations

import inspect
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from inspect import Parameter
from typing import Any

import duckdb
from duckdb import DuckDBPyConnection, StatementType

from dai.drivers.duckdb.errors import advisable
from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.duckdb.types import kind_of
from dai.drivers.sql.lexer import keyword, tokens
from dai.errors import ConfigurationError, NotAQueryError, ParameterError, StatementError
from dqp.algebra.operators import quoted

_CONFIG: dict[str, Any] = {"python_enable_replacements": False, "threads": 1, "async_threads": 0}
_SETTINGS = (
    "TimeZone = 'UTC'",
    "errors_as_json = true",
    "autoinstall_known_extensions = false",
    "autoload_known_extensions = false",
    "enable_external_access = false",
    "lock_configuration = true",
)
_DESCRIBE = "DESCRIBE "
_KEPT = 10_000
"""Longest query, in characters, whose words stay in the cache."""
_NO_SETTINGS = "A federation has no settings and extensions that a query could change."
_INSTEAD = {
    "COPY": "A result goes into a file by lab.sql(…).save('x.parquet'), or dqp query … --output x.parquet.",
    "EXPORT": "A result goes into a file by lab.sql(…).save('x.parquet'), or dqp query … --output x.parquet.",
    **dict.fromkeys(("SET", "RESET", "PRAGMA", "INSTALL", "LOAD", "USE"), _NO_SETTINGS),
    "ATTACH": 'Databases are sources: dqp.connect({"sources": {"lab": "field.db"}}).',
}
SHOWN = "SHOW TABLES lists the tables, and DESCRIBE source.table the columns of one; send them alone."
_OF_DUCKDB = re.compile(
    r"information_schema|pg_catalog|pg_(?:class|tables|views|attribute|namespace)|sqlite_(?:master|schema)"
    r"|duckdb_\w+|pragma_\w+|(?:table|storage)_info|show_tables\w*|database_list",
    re.I,
)
_CHANGES = frozenset({"INSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "DROP", "ALTER", "TRUNCATE"})
NOT_HERE = frozenset({"SHOW", "DESCRIBE", "DESC", "SUMMARIZE"})
"""Statements that are queries for DuckDB, but would describe the validator and not the sources. Where they stand alone,
``descriptions`` answers."""
_PRIVATE = 0xE000
"""The first private-use character of Unicode, which no user's name contains."""
Shape = tuple[tuple[str, str], ...]
"""Columns of a query or table: name, DuckDB type."""


@dataclass(frozen=True, slots=True)
class Signature:
    """DuckDB types of a function's arguments and result."""

    arguments: tuple[str, ...]
    returns: str


@dataclass(frozen=True, slots=True)
class Fault:
    """DuckDB's reason to refuse a query. ``position`` and ``length``, in characters from 1, are of the wrong text."""

    message: str
    position: int | None
    length: int
    kind: str
    name: str | None
    candidates: str | None


class Refused(Exception):
    """DuckDB refuses the text; ``fault`` has the reason."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Validator:
    """Checks queries against one state of a catalog. Thread-safe. A changed catalog creates a new validator."""

    def __init__(self, aliases: Iterable[str], functions: Mapping[str, Signature] | None = None) -> None:
        self._root = duckdb.connect(config=_CONFIG)
        for alias in aliases:
            self._root.execute(f"ATTACH ':memory:' AS {quoted(alias)}")
        for name, signature in (functions or {}).items():
            self._function(name, signature)
        for setting in _SETTINGS:
            self._root.execute(f"SET GLOBAL {setting}")
        self._made: set[tuple[str, ...]] = set()
        self._exact: dict[tuple[str, ...], str] = {}
        """Paths whose letters' case counts, each with the private character that begins its schema here (or its name,
        if the path has one part), so that no other spelling reaches the table."""
        self._viewed = False
        self._making = threading.Lock()
        self._idle: list[DuckDBPyConnection] = []

    def _function(self, name: str, signature: Signature) -> None:
        """Registers an operation call. DuckDB never calls it here, because queries are bound and not run."""

        def bound(*_: Any) -> None:
            raise AssertionError(f"The validator called {name}.")

        names = [Parameter(f"a{number}", Parameter.POSITIONAL_ONLY) for number in range(len(signature.arguments))]
        bound.__signature__ = inspect.Signature(names)  # type: ignore[attr-defined]
        arguments: Any = list(signature.arguments)
        try:
            self._root.create_function(name, bound, arguments, signature.returns, side_effects=True)
        except duckdb.Error as error:
            if isinstance(error, duckdb.CatalogException) and "Type with name" not in str(error):
                raise ConfigurationError(
                    f"functions.{name}: DuckDB already has a function of this name.", hint="Give it another name."
                ) from error
            raise ConfigurationError(
                f"functions.{name}: {', '.join(signature.arguments)} → {signature.returns} are not DuckDB types.",
                hint="For example VARCHAR, BIGINT, DOUBLE.",
            ) from error

    def table(self, path: tuple[str, ...], columns: Shape, *, exact: bool = False) -> None:
        """Creates an empty table; ``path`` is (alias, schema or "main", name), or (name,) for one without an alias.
        ``exact``: only the exact spelling means this table, because another table's name differs only in case, which
        DuckDB does not tell apart."""
        if exact:
            for written in _spellings(path):
                with self._making:
                    if len(path) == 3 and path[1] != "main":  # there it is said which ones there are
                        self._root.execute(f"CREATE SCHEMA IF NOT EXISTS {quoted(path[0])}.{quoted(path[1])}")
                    letter = self._exact.setdefault(written, chr(_PRIVATE + len(self._exact)))
                self.table(_marked(written, letter), columns)
            return
        with self._making:
            if path in self._made:
                return
            name = ".".join(map(quoted, path))
            if len(path) > 1 and path[-2].casefold() != "main":
                self._root.execute(f"CREATE SCHEMA IF NOT EXISTS {'.'.join(map(quoted, path[:-1]))}")
            listed = ", ".join(f"{quoted(column)} {type}" for column, type in columns)
            # A table may exist with this name in other letters; then the name means that table.
            self._root.execute(f"CREATE TABLE IF NOT EXISTS {name} ({listed})")
            self._made.add(path)

    def view(self, name: str, sql: str) -> None:
        """Creates a view. The tables that it reads must exist. Raises Refused for a wrong query."""
        with self._making:
            if (name,) in self._made:
                return
            prefix = f"CREATE VIEW {quoted(name)} AS "
            read = self._read(sql)
            with _refusing(prefix, sql, read):
                self._root.execute(prefix + read)
            self._viewed = True
            self._made.add((name,))

    def describe(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Shape:
        """Names and types of the columns of one query. Raises Refused, NotAQueryError, ParameterError."""
        with self._cursor() as cursor:
            with _refusing("", sql):
                statements = cursor.extract_statements(sql)
            if (word := keyword(sql, SYNTAX)) in NOT_HERE:
                raise NotAQueryError(
                    f"{word} cannot stand here; nothing was run.",
                    sql=sql,
                    hint=f"Send {word} alone: it cannot be a view, and it has no plan.",
                )
            kind = kind_of(statements[0]) if len(statements) == 1 else None
            if kind != StatementType.SELECT:
                hint = _INSTEAD.get(word) or "Send one SELECT."
                detail = "This is not a single query; nothing was run." if statements else "The statement is empty."
                if "PIVOT" in sql.upper():
                    detail = "A PIVOT must name its values here; nothing was run."
                    hint = "Write them after IN: PIVOT t ON a IN ('x', 'y') USING sum(n)."
                if word == "PRAGMA" and any(map(describes, words(sql))):
                    hint = SHOWN
                if kind is not None and word == "WITH":
                    word = kind.name.partition("_")[0]
                if word in _CHANGES:
                    hint = f"A federation only reads. Send {word} to the resource: dai.connect(…).execute(…)."
                raise NotAQueryError(detail, sql=sql, hint=hint)
            values: Any = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
            read = self._read(sql)
            with _refusing(_DESCRIBE, sql, read):
                rows = cursor.execute(_DESCRIBE + read, values or None).fetchall()
            names = [row[0] for row in rows]
            if not values and (self._viewed or _other_letters(sql, names)):
                with _refusing("", sql, read):
                    names = cursor.sql(read).columns
        return tuple((name, row[1]) for name, row in zip(names, rows, strict=True))

    def _read(self, sql: str) -> str:
        """The SQL with the validator's names for tables whose exact spelling counts. No position changes."""
        if not self._exact:
            return sql
        text = list(sql)
        path: list[tuple[str, int]] = []
        for kind, start, end in [*tokens(sql, SYNTAX), ("end", len(sql), len(sql))]:
            if kind in ("word", "name") and (not path or path[-1][0] == "."):
                path.append((sql[start:end].strip('"`').replace('""', '"'), start + (kind == "name")))
            elif sql[start:end] == "." and path and path[-1][0] != ".":
                path.append((".", start))
            else:
                self._mark(text, path[::2])
                path = [(sql[start:end].strip('"`'), start + (kind == "name"))] if kind in ("word", "name") else []
        return "".join(text)

    def _mark(self, text: list[str], path: Sequence[tuple[str, int]]) -> None:
        for length in range(min(len(path), 3), 0, -1):
            names = tuple(each for each, _ in path[:length])
            letter = self._exact.get((names[0].casefold(), *names[1:]) if length > 1 else names)
            if letter is not None:
                text[path[max(length - 2, 0)][1]] = letter
                return

    def close(self) -> None:
        """Ends running descriptions. A connection that is in use is freed when its user returns it."""
        with self._making:
            for each in (*self._idle, self._root):
                with suppress(duckdb.Error):
                    each.close()

    @contextmanager
    def _cursor(self) -> Iterator[DuckDBPyConnection]:
        with self._making:
            cursor = self._idle.pop() if self._idle else self._root.cursor()
        try:
            yield cursor
        finally:
            with self._making:
                self._idle.append(cursor)


def _other_letters(sql: str, names: Iterable[str]) -> bool:
    """Whether the SQL also writes a name in other letters. DESCRIBE names ``id AS "Id"`` after the column, ``id``."""
    written = sql.replace('""', '"')
    folded = written.lower()
    return any(folded.count(name.lower()) > written.count(name) for name in names)


@contextmanager
def _refusing(prefix: str, sql: str, read: str | None = None) -> Iterator[None]:
    """Translates DuckDB's errors. ``read``: the text that DuckDB gets for the SQL, of the same length."""
    try:
        yield
    except duckdb.PermissionException as error:
        fault = _fault(error, prefix, read or sql)
        raise StatementError(
            "The statement is not allowed here: it would reach files, extensions or settings.",
            sql=sql,
            position=fault.position,
            hint='To read files, make them a source: dqp.connect({"sources": {"traits": "data/*.csv"}}).',
        ) from error
    except duckdb.Error as error:
        raise Refused(_fault(error, prefix, read or sql)) from error
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise ParameterError(f"DuckDB has no type for the value of a parameter: {error}") from error


def _fault(error: duckdb.Error, prefix: str, sql: str) -> Fault:
    match = re.search(r"\{.*\}", str(error), re.DOTALL)
    try:
        details = json.loads(match.group()) if match else {}
    except ValueError:
        details = {}
    message = advisable(details.get("exception_message") or str(error).partition("\n")[0])
    position, length = None, 0
    if place := re.fullmatch(r"\[(\d+),(\d+)\]", details.get("location", "")):
        # DuckDB counts bytes.
        at, size = int(place.group(1)) - len(prefix.encode()), int(place.group(2))
        encoded = sql.encode()
        if 0 <= at <= len(encoded):
            position = len(encoded[:at].decode(errors="ignore")) + 1
            length = len(encoded[at : at + size].decode(errors="ignore"))
    kind = details.get("error_subtype") or details.get("exception_type", "")
    return Fault(message, position, length, kind, details.get("name"), details.get("candidates"))


def _spellings(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The ways in which SQL may write a path: it may leave out the main schema."""
    if len(path) == 1:
        return [path]
    alias, schema, name = path
    return [(alias.casefold(), schema, name), *([(alias.casefold(), name)] if schema == "main" else [])]


def _marked(path: tuple[str, ...], letter: str) -> tuple[str, ...]:
    """The path in a schema of its own, where the table can keep its name."""
    at = max(len(path) - 2, 0)
    return (*path[:at], letter + path[at][1:], *path[at + 1 :])


@lru_cache(maxsize=1)
def functions() -> tuple[str, ...]:
    """The names of DuckDB's functions, without its operators."""
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT DISTINCT function_name FROM duckdb_functions() ORDER BY 1").fetchall()
    return tuple(name for (name,) in rows if name.isidentifier())


@lru_cache(maxsize=1)
def keywords() -> frozenset[str]:
    """The lower-case keywords of DuckDB that need quotes where they are names of tables."""
    with duckdb.connect() as connection:
        sql = "SELECT keyword_name FROM duckdb_keywords() WHERE keyword_category IN ('reserved', 'type_function')"
        return frozenset(name for (name,) in connection.execute(sql).fetchall())


def names_in(sql: str) -> frozenset[str]:
    """``words`` without the keywords: the names of tables that an error may mean."""
    names, before = set(), ""
    for kind, text in texts(sql):
        if kind == "name" or (kind == "word" and (before == "." or text.lower() not in keywords())):
            names.add(text.casefold())
        before = text
    return frozenset(names)


def describes(name: str) -> bool:
    """Whether DuckDB or another product describes its tables under this name: a schema, table, function or pragma."""
    return _OF_DUCKDB.fullmatch(name) is not None


def words(sql: str) -> frozenset[str]:
    """Every word and quoted name of the SQL, case-folded: the possible names of tables."""
    return _known_words(sql) if len(sql) <= _KEPT else _words(sql)


def _words(sql: str) -> frozenset[str]:
    return frozenset(text.casefold() for kind, text in texts(sql) if kind in ("word", "name"))


_known_words = lru_cache(maxsize=256)(_words)


def path_of(written: str) -> list[str]:
    """The parts of the name at the start of a text, such as ``"a b".c``, without an alias after it."""
    parts: list[str] = []
    dotted = True
    for kind, text in texts(written):
        if dotted and kind in ("word", "name"):
            parts.append(text)
            dotted = False
        elif text == "." and not dotted:
            dotted = True
        else:
            break
    return parts


def texts(sql: str) -> Iterator[tuple[str, str]]:
    """Kind and text of every token, names without quotes. Joins ``"a""b"``, which the lexer takes for two names."""
    name, before = "", -1
    for kind, start, end in tokens(sql, SYNTAX):
        if name and not (kind == "name" and start == before):
            yield "name", name
            name = ""
        if kind == "name":
            name, before = f"{name}{sql[start]}{sql[start + 1 : end - 1]}" if name else sql[start + 1 : end - 1], end
        else:
            yield kind, sql[start:end]
    if name:
        yield "name", name


def dollars(sql: str, names: Iterable[str]) -> str:
    """The SQL with DuckDB's ``$name`` in place of ``:name`` for the names of parameters. No position changes."""
    known, text = set(names), list(sql)
    previous, before = "", -1
    for kind, start, end in tokens(sql, SYNTAX):
        if kind == "word" and previous == ":" and before == start and sql[start:end] in known:
            text[start - 1] = "$"
        # This colon is the second one of a cast.
        previous = "::" if sql[start:end] == ":" and previous == ":" and before == start else sql[start:end]
        before = end
    return "".join(text)
