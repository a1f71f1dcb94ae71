"""The validator: an in-memory DuckDB with the federation's tables, empty. It says what a query's SQL means.

Each source is an attached database of its alias, so that ``alias.table`` and ``alias.schema.table`` are DuckDB's own
names. Tables are made when a query first names them. Nothing is executed here: a query is bound (``DESCRIBE``) and its
names and types come back, or an error with a position. Files, extensions, settings and Python's variables are out of
reach.
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

from dai.drivers.sql.lexer import keyword, tokens
from dai.errors import ConfigurationError, NotAQueryError, ParameterError, StatementError

_CONFIG: dict[str, Any] = {"python_enable_replacements": False, "threads": 1}
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
"""Characters of a query whose words are kept."""
NOT_HERE = frozenset({"SHOW", "DESCRIBE", "DESC", "SUMMARIZE"})
"""To DuckDB these are queries; what they say of the validator is not true of the sources."""
_PRIVATE = 0xE000
"""The first character for private use: of none of the names that people give."""
Shape = tuple[tuple[str, str], ...]
"""Columns: name, DuckDB type."""


@dataclass(frozen=True, slots=True)
class Signature:
    """Of a function: DuckDB types."""

    arguments: tuple[str, ...]
    returns: str


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a query was refused. ``position`` counts characters from 1, ``length`` is of the text it is about."""

    message: str
    position: int | None
    length: int
    kind: str
    name: str | None
    candidates: str | None


class Refused(Exception):
    """DuckDB does not take the text; ``fault`` is what it says."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.message)
        self.fault = fault


class Validator:
    """One state of a catalog. Thread-safe; a changed catalog makes a new one."""

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
        """Paths that are to be written letter by letter, and the letter that the name before the last begins with here,
        or the only one: one that nobody writes."""
        self._making = threading.Lock()
        self._idle: list[DuckDBPyConnection] = []

    def _function(self, name: str, signature: Signature) -> None:
        """A function that is never called: queries are bound, not executed."""

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
                    f"functions.{name}: DuckDB has a function of this name.", hint="Give it another name."
                ) from error
            raise ConfigurationError(
                f"functions.{name}: {', '.join(signature.arguments)} → {signature.returns} are no types of DuckDB.",
                hint="VARCHAR, BIGINT, DOUBLE …",
            ) from error

    def table(self, path: tuple[str, ...], columns: Shape, *, exact: bool = False) -> None:
        """An empty table; ``path`` is (alias, schema or "main", name), or (name,) for one without an alias. ``exact``:
        it is meant only where its name is written letter by letter, since that of another one differs in the case of
        letters alone, which DuckDB does not tell apart."""
        if exact:
            for written in _written(path):
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
            # The name may stand there in other letters: the table that was made first is meant.
            self._root.execute(f"CREATE TABLE IF NOT EXISTS {name} ({listed})")
            self._made.add(path)

    def view(self, name: str, sql: str) -> None:
        """Raises Refused for a query that does not hold; what it reads must be there."""
        with self._making:
            if (name,) in self._made:
                return
            prefix = f"CREATE VIEW {quoted(name)} AS "
            read = self._read(sql)
            with _refusing(prefix, sql, read):
                self._root.execute(prefix + read)
            self._made.add((name,))

    def describe(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> Shape:
        """Names and types of the columns of one query. Raises Refused, NotAQueryError, ParameterError."""
        with self._cursor() as cursor:
            with _refusing("", sql):
                statements = cursor.extract_statements(sql)
            if (word := keyword(sql, "duckdb")) in NOT_HERE:
                raise NotAQueryError(
                    f"{word} is not known here; nothing was run.",
                    sql=sql,
                    hint="FROM t LIMIT 0 gives the names and types of the columns of t, and the schema lists all "
                    "tables (lab.tables(), dqp tables).",
                )
            if len(statements) != 1 or statements[0].type != StatementType.SELECT:
                raise NotAQueryError(
                    "This is not one single query: nothing was run." if statements else "The statement is empty.",
                    sql=sql,
                    hint="Send one SELECT. A PIVOT must name its values: PIVOT t ON a IN (…).",
                )
            given: Any = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
            read = self._read(sql)
            with _refusing(_DESCRIBE, sql, read):
                found = cursor.execute(_DESCRIBE + read, given or None).fetchall()
        return tuple((row[0], row[1]) for row in found)

    def _read(self, sql: str) -> str:
        """The SQL with the names of the tables that it names letter by letter as they are here. No position changes."""
        if not self._exact:
            return sql
        text = list(sql)
        path: list[tuple[str, int]] = []
        for kind, start, end in [*tokens(sql, "duckdb"), ("end", len(sql), len(sql))]:
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
        """What is being described fails, or ends; a connection that is busy at this moment goes when nobody has it."""
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


@contextmanager
def _refusing(prefix: str, sql: str, read: str | None = None) -> Iterator[None]:
    """``read``: what DuckDB reads for the SQL, with as many characters."""
    try:
        yield
    except duckdb.PermissionException as error:
        fault = _fault(error, prefix, read or sql)
        raise StatementError(
            "The statement is not allowed here: it would reach files, extensions or settings.",
            sql=sql,
            position=fault.position,
        ) from error
    except duckdb.Error as error:
        raise Refused(_fault(error, prefix, read or sql)) from error
    except (TypeError, OverflowError, UnicodeEncodeError) as error:
        raise ParameterError(f"A parameter has no type in DuckDB: {error}") from error


def _fault(error: duckdb.Error, prefix: str, sql: str) -> Fault:
    found = re.search(r"\{.*\}", str(error), re.DOTALL)
    try:
        said = json.loads(found.group()) if found else {}
    except ValueError:
        said = {}
    message = said.get("exception_message") or str(error).partition("\n")[0]
    position, length = None, 0
    if place := re.fullmatch(r"\[(\d+),(\d+)\]", said.get("location", "")):
        # Offsets are of bytes.
        at, size = int(place.group(1)) - len(prefix.encode()), int(place.group(2))
        encoded = sql.encode()
        if 0 <= at <= len(encoded):
            position = len(encoded[:at].decode(errors="ignore")) + 1
            length = len(encoded[at : at + size].decode(errors="ignore"))
    kind = said.get("error_subtype") or said.get("exception_type", "")
    return Fault(message, position, length, kind, said.get("name"), said.get("candidates"))


def _written(path: tuple[str, ...]) -> list[tuple[str, ...]]:
    """How SQL may write a path: the main schema may be left out."""
    if len(path) == 1:
        return [path]
    alias, schema, name = path
    return [(alias.casefold(), schema, name), *([(alias.casefold(), name)] if schema == "main" else [])]


def _marked(path: tuple[str, ...], letter: str) -> tuple[str, ...]:
    """A schema of its own, so that the table itself is called as it is written."""
    at = max(len(path) - 2, 0)
    return (*path[:at], letter + path[at][1:], *path[at + 1 :])


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def words(sql: str) -> frozenset[str]:
    """Every word and quoted name of the SQL, case-folded: what could be the name of a table."""
    return _known_words(sql) if len(sql) <= _KEPT else _words(sql)


def _words(sql: str) -> frozenset[str]:
    return frozenset(text.casefold() for kind, text in _texts(sql) if kind in ("word", "name"))


_known_words = lru_cache(maxsize=256)(_words)


def path_of(written: str) -> list[str]:
    """The parts of the name with which a text begins, ``"a b".c`` …; an alias behind it is none of them."""
    parts: list[str] = []
    dotted = True
    for kind, text in _texts(written):
        if dotted and kind in ("word", "name"):
            parts.append(text)
            dotted = False
        elif text == "." and not dotted:
            dotted = True
        else:
            break
    return parts


def _texts(sql: str) -> Iterator[tuple[str, str]]:
    """Kind and text of every token, names without their quotes. The lexer takes ``"a""b"`` for two names."""
    name, before = "", -1
    for kind, start, end in tokens(sql, "duckdb"):
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
    """``:name`` written as DuckDB writes it, ``$name``, for the names that are parameters. No position changes."""
    known, text = set(names), list(sql)
    previous, before = "", -1
    for kind, start, end in tokens(sql, "duckdb"):
        if kind == "word" and previous == ":" and before == start and sql[start:end] in known:
            text[start - 1] = "$"
        # The second colon of a cast is none of ours.
        previous = "::" if sql[start:end] == ":" and previous == ":" and before == start else sql[start:end]
        before = end
    return "".join(text)
