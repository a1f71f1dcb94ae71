"""Finds the columns of a query's result that are unchanged columns of tables, from the query's text if it is simple.

It understands one SELECT over named tables: ``SELECT g.flux AS f, * FROM sky.galaxies g JOIN fields USING (id) …``. Of
whatever else stands there (expressions, functions, subqueries in FROM) it says nothing, and of set operations, WITH and
forms of other languages nothing at all: a column without a meaning is no mistake, one with a wrong meaning is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from dai.drivers.sql.lexer import Token, tokens
from dai.drivers.sql.syntax import Syntax

MOST_CHARACTERS = 20_000
"""Longer statements are not analysed."""
_MODIFIERS = frozenset({"ALL", "DISTINCT"})
_END_OF_FROM = frozenset("WHERE GROUP HAVING ORDER LIMIT OFFSET FETCH WINDOW FOR QUALIFY".split())
_WHOLES = frozenset("UNION INTERSECT EXCEPT MINUS INTO SAMPLE TABLESAMPLE PIVOT UNPIVOT START CONNECT".split())
"""Behind which a statement is more than one SELECT, or another one."""
_JOINS = frozenset("JOIN INNER LEFT RIGHT FULL OUTER CROSS NATURAL STRAIGHT_JOIN ASOF SEMI ANTI POSITIONAL".split())
_VALUES = frozenset(
    """CURRENT_CATALOG CURRENT_DATE CURRENT_ROLE CURRENT_SCHEMA CURRENT_TIME CURRENT_TIMESTAMP CURRENT_USER DEFAULT
    FALSE LOCALTIME LOCALTIMESTAMP NULL SESSION_USER SYSTEM_USER TRUE USER VALUE""".split()
)
"""Words that are values, whatever columns there are."""
Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Named:
    """A table behind FROM, by the parts of its name; it is called ``alias``."""

    name: Words
    alias: str


@dataclass(frozen=True, slots=True)
class Selection:
    """``items``: what is selected, a column by the parts of its name, whose last is ``*`` for all of a table; none:
    something else. ``tables``: None stands for one of which nothing is known."""

    items: tuple[Words, ...]
    tables: tuple[Named | None, ...]


_WHERE = re.compile(r"\bwhere\b", re.IGNORECASE)
_SETS = re.compile(r"\b(?:union|intersect|except|minus)\b", re.IGNORECASE)


def selection(sql: str, syntax: Syntax) -> Selection | None:
    """None where nothing can be said. What stands in front of WHERE is remembered by itself: queries that differ in
    their conditions alone are understood once."""
    if len(sql) > MOST_CHARACTERS:
        return None
    where = _WHERE.search(sql)
    if where is not None and _SETS.search(sql, where.start()) is None:
        whole, selected = _selection(sql[: where.start()], syntax)
        if whole:
            return selected
    return _selection(sql, syntax)[1]


class _Part(NamedTuple):
    """A word in upper case, a quoted name as ``name``, or a symbol; ``name`` is what it means as a name."""

    text: str
    name: str | None


@lru_cache(maxsize=512)
def _selection(sql: str, syntax: Syntax) -> tuple[bool, Selection | None]:
    """The first: whether no text, name or parenthesis is open at the end."""
    parts: list[_Part] = []
    end, closed = -1, True
    for each in tokens(sql, syntax):
        closed = _closed(each, sql)
        if each.kind == "name" and each.start == end and parts and parts[-1].text == "name":
            # a doubled quote
            parts[-1] = _Part("name", f"{parts[-1].name}{sql[each.start]}{_part(sql, each).name}")
        elif each.kind != "comment":
            parts.append(_part(sql, each))
        end = each.end
    level, depth = _outside(parts)
    return closed and depth == 0, _plain_selection(level)


def _closed(token: Token, sql: str) -> bool:
    if token.kind in ("string", "comment", "executable"):
        return False  # perhaps
    return token.kind != "name" or (token.end - token.start > 1 and sql[token.end - 1] in "\"`]'")


def _plain_selection(level: list[_Part]) -> Selection | None:
    while level and level[-1].text == ";":
        level.pop()
    if not level or level[0].text != "SELECT" or any(each.text in _WHOLES for each in level):
        return None
    at = next((at for at, each in enumerate(level) if each.text == "FROM"), None)
    if at is None or any(each.text == "FROM" for each in level[at + 1 :]):
        return None
    selected = level[1:at]
    while selected and selected[0].text in _MODIFIERS:
        selected = selected[1:]
    end = next((end for end, each in enumerate(level) if end > at and each.text in _END_OF_FROM), len(level))
    return Selection(tuple(map(_column, _split(selected))), tuple(map(_table, _split_tables(level[at + 1 : end]))))


def _part(sql: str, token: Token) -> _Part:
    text = sql[token.start : token.end]
    if token.kind == "word":
        return _Part(text.upper(), text)
    if token.kind == "name":
        quote = {"[": "]"}.get(text[0], text[0])
        return _Part("name", text[1:-1].replace(quote * 2, quote))
    return _Part(text if token.kind == "symbol" else token.kind, None)


def _outside(parts: Sequence[_Part]) -> tuple[list[_Part], int]:
    """What is outside of parentheses, which are one part each; how many are open at the end."""
    level: list[_Part] = []
    depth = 0
    for each in parts:
        if each.text in ("(", "[", "{"):
            if depth == 0:
                level.append(_Part("()", None))
            depth += 1
        elif each.text in (")", "]", "}"):
            depth -= 1
        elif depth == 0:
            level.append(each)
    return level, depth


def _split(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    item: list[_Part] = []
    for each in parts:
        if each.text == ",":
            yield item
            item = []
        else:
            item.append(each)
    yield item


def _split_tables(parts: Sequence[_Part]) -> Iterator[list[_Part]]:
    """By commas and joins; what follows ON or USING belongs to none."""
    table: list[_Part] = []
    condition = False
    for each in parts:
        if each.text == "," or each.text in _JOINS:
            if table:
                yield table
            table, condition = [], False
        elif each.text in ("ON", "USING"):
            if table:
                yield table
            table, condition = [], True
        elif not condition:
            table.append(each)
    if table:
        yield table


def _dotted(parts: Sequence[_Part]) -> tuple[Words, int]:
    """A name with its qualifiers, and how many parts it takes."""
    names: list[str] = []
    at = 0
    while at < len(parts):
        name = "*" if parts[at].text == "*" and names else parts[at].name
        if name is None:
            break
        names.append(name)
        at += 1
        if at >= len(parts) or parts[at].text != ".":
            return tuple(names), at
        at += 1
    return (), 0


def _column(item: list[_Part]) -> Words:
    if [each.text for each in item] == ["*"]:
        return ("*",)
    name, at = _dotted(item)
    rest = item[at:]
    if len(name) == 1 and item[0].text in _VALUES:
        return ()
    if rest and name[-1:] != ("*",):
        if rest[0].text == "AS":
            rest = rest[1:]
        return name if len(rest) == 1 and rest[0].name is not None else ()
    return () if rest else name


def _table(written: list[_Part]) -> Named | None:
    name, at = _dotted(written)
    rest = written[at:]
    if not name:
        return None
    if rest and rest[0].text == "AS":
        rest = rest[1:]
    if not rest:
        return Named(name, name[-1])
    if len(rest) == 1 and rest[0].name is not None and written[0].text not in ("LATERAL", "ONLY"):
        return Named(name, str(rest[0].name))
    return None
