"""Refuses SQL that SQLite accepts but users hardly mean: a name in double quotes that does not exist, which SQLite
reads as a text, and comparing numbers with a text, which SQLite orders by their storage classes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

from dai.drivers.sql.ddl import quoted
from dai.drivers.sql.lexer import Token, tokens
from dai.drivers.sqlite.connection import Connection
from dai.drivers.sqlite.syntax import SYNTAX
from dai.errors import StatementError

MOST_CHECKED = 10_000
"""Characters of a statement that a person may have written; longer ones are not read once more."""
MOST_READ = 100_000
"""Rows of a table that are read to see whether a column of numbers has texts."""
_ORDERS = frozenset({"<", "<=", ">", ">="})
_NUMBER = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)
_NUMERIC = re.compile("int|real|floa|doub", re.IGNORECASE)
"""In the declared type of a column of numbers. (The affinity of NUMERIC is also that of dates, which are texts.)"""


def check(connection: Connection, sql: str, bound: Any) -> None:
    """Raises sqlite3.OperationalError for a name that nothing has, StatementError for an order that says nothing."""
    if len(sql) > MOST_CHECKED:
        return
    if '"' in sql:
        _check_names(connection, sql, bound)
    if "<" in sql or ">" in sql:
        _check_orders(connection, sql, bound)


def _check_names(connection: Connection, sql: str, bound: Any) -> None:
    """In brackets SQLite says that there is none."""
    names = [each for each in tokens(sql, SYNTAX) if each.kind == "name" and sql[each.start] == '"']
    quotes = [sql[each.start - 1 : each.start] + sql[each.end : each.end + 1] for each in names]  # of a "" within
    plain = [
        each
        for each, beside in zip(names, quotes, strict=True)
        if '"' not in beside and not {"]", '"'} & set(sql[each.start + 1 : each.end - 1])
    ]
    if not plain:
        return
    written = sql
    for each in plain:  # as long as before
        written = f"{written[: each.start]}[{written[each.start + 1 : each.end - 1]}]{written[each.end :]}"
    try:
        connection.raw.execute(f"EXPLAIN {written}", bound).close()
    except sqlite3.OperationalError as error:
        if str(error).startswith("no such column: "):
            raise
    except sqlite3.Error:
        return  # the statement itself says what is wrong


def _check_orders(connection: Connection, sql: str, bound: Any) -> None:
    """A number comes before every text, whatever it says. Where the column has texts, too, that may be meant."""
    code = [each for each in tokens(sql, SYNTAX) if each.kind != "comment"]
    words = [_bare(sql[each.start : each.end]) for each in code]
    if not _of_tables(words):
        return
    for at, text in _texts(code, sql, bound):
        for column in _beside(code, words, at):
            name = words[column]
            if not text or _NUMBER.fullmatch(text) or any(pair == ("as", name) for pair in pairwise(words)):
                continue
            tables = _tables_of_numbers(connection, name, frozenset(words))
            if tables and not any(_may_have_texts(connection, table, name) for table in tables):
                raise StatementError(
                    f"The column {name!r} has numbers, and SQLite sorts every number before every text, such as "
                    f"{text!r} here.",
                    sql=sql,
                    position=code[at].start + 1,
                    hint=f"Compare with a number; or compare texts: CAST({name} AS TEXT) < 'ten'.",
                )


def _of_tables(words: Sequence[str]) -> bool:
    """Whether columns are those of tables: no WITH, no query within, no function in FROM (nor any other bracket)."""
    if "with" in words or words.count("select") > 1:
        return False
    behind = words[words.index("from") :] if "from" in words else ()
    return "(" not in behind[: behind.index("where")] if "where" in behind else "(" not in behind


def _bare(word: str) -> str:
    return word.strip('"[]`').casefold()


def _texts(code: Sequence[Token], sql: str, bound: Any) -> Iterator[tuple[int, str]]:
    """Texts that stand alone: written, or the values of markers."""
    values = iter(bound if isinstance(bound, Sequence) and not isinstance(bound, str) else ())
    for at, each in enumerate(code):
        if each.kind == "marker" and isinstance(value := next(values, None), str):
            yield at, value
        elif each.kind == "string":
            yield at, sql[each.start + 1 : each.end - 1]


def _beside(code: Sequence[Token], words: Sequence[str], at: int) -> Iterator[int]:
    """The columns that are ordered with what stands at a place."""

    def symbols(place: int, step: int) -> str:
        found = ""
        while 0 <= place < len(code) and code[place].kind == "symbol" and words[place] in "<>=|-!":
            found = words[place] + found if step < 0 else found + words[place]
            place += step
        return found

    def ends(place: int, signs: str) -> bool:
        """Whether an expression does not go on there."""
        return not 0 <= place < len(code) or words[place] in signs or words[place].isalpha()

    before, after = symbols(at - 1, -1), symbols(at + 1, 1)
    column = first = at - len(before) - 1
    if before in _ORDERS and not after and column >= 0 and code[column].kind in ("word", "name"):
        while first >= 2 and words[first - 1] == ".":
            first -= 2
        if ends(first - 1, "(,"):
            yield column
    column = at + len(after) + 1
    if after in _ORDERS and not before and column < len(code) and code[column].kind in ("word", "name"):
        while words[column + 1 : column + 2] == ["."] and column + 2 < len(code):
            column += 2
        if ends(column + 1, "),;"):
            yield column


def _tables_of_numbers(connection: Connection, column: str, words: frozenset[str]) -> list[str]:
    """The tables of the statement that have the column; none where one of them declares it otherwise, or where the
    statement names a view or a temporary table."""
    others = connection.run(
        "SELECT name FROM sqlite_schema WHERE type = 'view' UNION ALL SELECT name FROM sqlite_temp_schema"
    )
    if any(str(name).casefold() in words for (name,) in others):
        return []
    found = connection.run(
        "SELECT m.name, c.type FROM sqlite_schema m, pragma_table_xinfo(m.name) c "
        "WHERE m.type = 'table' AND lower(c.name) = ?",
        (column,),
    )
    declared = [(table, kind) for table, kind in found if table.casefold() in words]
    return [table for table, _ in declared] if all(_NUMERIC.search(kind) for _, kind in declared) else []


def _may_have_texts(connection: Connection, table: str, column: str) -> bool:
    """Of a table of more than MOST_READ rows nobody knows, and one without rows may be filled with texts."""
    name = quoted(column, SYNTAX)
    read = f"SELECT typeof({name}) AS kind FROM {quoted(table, SYNTAX)} LIMIT {MOST_READ + 1}"
    ((rows, texts),) = connection.run(f"SELECT count(*), sum(kind = 'text') FROM ({read})")
    return not 0 < rows <= MOST_READ or bool(texts)
