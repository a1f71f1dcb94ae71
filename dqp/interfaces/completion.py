"""Completes SQL: the sources, tables, columns, functions and words that fit at the cursor."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from dai.drivers.duckdb.syntax import SYNTAX
from dai.drivers.sql.lexer import tokens
from dqp.algebra.operators import quoted
from dqp.catalog.validator import functions
from dqp.interfaces.listing import Names

_PATH = re.compile(r"""((?:(?:[^\W\d]\w*|"[^"]*")\.)*)([^\W\d]\w*|"[^"]*)?\Z""")
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_INTRODUCING = frozenset({"FROM", "JOIN", "DESCRIBE", "DESC", "SUMMARIZE", "TABLE"})
_WORDS = """select from where group by order having limit join left on using union all distinct case when then else end
    with as and or not in between like ilike is null exists cast describe summarize show tables explain analyze qualify
    asc desc""".split()


def completions(before: str, behind: str, names: Names) -> tuple[str, list[str]]:
    """The part of a word that is written before the cursor, and its possible completions. ``before`` and ``behind``:
    the text on both sides of the cursor."""
    match = _PATH.search(before)
    assert match is not None
    path, word = _parts(match[1]), match[2] or ""
    tables = _tables(before[: match.start()] + " " + behind, names)
    if path:
        offered = _below(path, tables, names)
    elif _after_from(before[: match.start()]):
        offered = [*dict.fromkeys(each[0] for each in names), *_ctes(before)]
    else:
        columns = (column for each in tables.values() or names for column in names[each])
        offered = [*dict.fromkeys(columns), *tables, *dict.fromkeys(each[0] for each in names)]
    fitting = [_quote(each) for each in offered if each.casefold().startswith(word.strip('"').casefold())]
    if not path and word and not _after_from(before[: match.start()]):
        fitting += [each for each in (*_WORDS, *functions()) if each.startswith(word.lower())]
    return word, list(dict.fromkeys(fitting))


def _below(path: tuple[str, ...], tables: dict[str, tuple[str, ...]], names: Names) -> list[str]:
    """The columns of a table that is called so in the query, or what is below the path."""
    known = {name.casefold(): each for name, each in tables.items()}
    if len(path) == 1 and path[0].casefold() in known:
        return list(names[known[path[0].casefold()]])
    folded = tuple(map(str.casefold, path))
    below: list[str] = []
    for each, columns in names.items():
        parts = tuple(map(str.casefold, each))
        if parts == folded:
            below += columns
        elif parts[: len(folded)] == folded:
            below.append(each[len(folded)])
    return list(dict.fromkeys(below))


def _tables(sql: str, names: Names) -> dict[str, tuple[str, ...]]:
    """The tables that stand in the query, by the names that they have there."""
    known = {tuple(map(str.casefold, each)): each for each in names}
    parts = [_unquoted(sql[start:end]) for kind, start, end in tokens(sql, SYNTAX) if kind != "comment"]
    in_query: dict[str, tuple[str, ...]] = {}
    for place in range(len(parts)):
        if place and parts[place - 1] == ".":
            continue
        for length in (3, 2, 1):
            written = parts[place : place + 2 * length - 1]
            path = known.get(tuple(map(str.casefold, written[::2])))
            if path is None or written[1::2] != ["."] * (length - 1):
                continue
            after = place + 2 * length - 1
            alias = parts[after : after + 2]
            name = alias[1] if alias[:1] and alias[0].upper() == "AS" and len(alias) > 1 else (alias or [""])[0]
            if not re.fullmatch(r"\w+", name) or name.lower() in _WORDS:
                name = path[-1]
            in_query.setdefault(name, path)
            break
    return in_query


def _after_from(before: str) -> bool:
    """Whether the next word is a table's."""
    words = list(_words(before))
    return bool(words) and (words[-1].upper() in _INTRODUCING or (words[-1] == "," and _last_clause(words) == "FROM"))


def _last_clause(words: list[str]) -> str:
    clauses = ("SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "ON", "USING", "LIMIT")
    return next((each.upper() for each in reversed(words) if each.upper() in clauses), "")


def _words(sql: str) -> Iterator[str]:
    return (sql[start:end] for kind, start, end in tokens(sql, SYNTAX) if kind != "comment")


def _ctes(before: str) -> Iterable[str]:
    return re.findall(r"(?i)(?:\bwith|,)\s+([^\W\d]\w*)\s+as\s*\(", before)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(map(_unquoted, re.findall(r"""[^\W\d]\w*|"[^"]*\"""", path)))


def _unquoted(written: str) -> str:
    return written[1:-1] if len(written) > 1 and written[0] == '"' == written[-1] else written


def _quote(name: str) -> str:
    """In quotes where SQL needs them: DuckDB keeps capitals, and finds them without quotes."""
    return name if _PLAIN.fullmatch(name.lower()) else quoted(name)
