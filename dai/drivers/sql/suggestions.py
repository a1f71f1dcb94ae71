"""Hints for misspelt names and other mistakes in SQL."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from dai.drivers.sql.ddl import quoted
from dai.drivers.sql.lexer import Token, tokens
from dai.drivers.sql.syntax import Syntax
from dai.plugins import close_to, nearest

_RESERVED = frozenset(
    """ALL AND ANY AS ASC BETWEEN BOTH BY CASE CAST CHECK COLUMN CONSTRAINT CREATE CROSS DEFAULT DESC DISTINCT ELSE END
    EXCEPT FOR FOREIGN FROM GROUP HAVING IN INDEX INTERSECT INTO IS JOIN KEY LEFT LIKE LIMIT NATURAL NOT NULL OFFSET ON
    OR ORDER PRIMARY RANK REFERENCES RIGHT ROW SELECT SET TABLE THEN TO UNION UNIQUE UPDATE USER USING VALUES WHEN WHERE
    WINDOW WITH""".split()
)
_CLAUSES = ("SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "JOIN", "UNION", "VALUES")
_ELSEWHERE = frozenset(
    {"TOP", "FETCH", "FIRST", "NEXT", "ROWS", "ONLY", "INNER", "OUTER", "FULL", "LATERAL", "QUALIFY"}
)
"""Keywords of some products."""
_OPERANDS = frozenset(
    {"SELECT", "DISTINCT", "WHERE", "BY", "ON", "AND", "OR", "NOT", "SET", ",", "(", ".", "=", "<", ">", "+"}
)
"""The words after which a column may follow."""
_PERCENT = re.compile(r"%s\b|%\(\w+\)s\b|\{\w+\}")
"""How other drivers write parameters."""
_TYPED = re.compile("[\u2018\u2019\u201c\u201d\u201e\u00a0]")
"""Quotes and spaces that text editors make."""


def at_syntax_error(sql: str, position: int, syntax: Syntax) -> str | None:
    """A hint where a keyword seems to be meant as a column, or a word is nearly that of a clause. ``position`` as the
    database says it: of the word, or of the one behind it."""
    code = [each for each in tokens(sql, syntax) if each.kind != "comment"]
    texts = [sql[each.start : each.end] for each in code]
    at = next((place for place, each in enumerate(code) if each.start >= position - 1), len(code))
    if any(_cut(code, place) for place in (at, at - 1)):
        return "Write '' for a ' within a text; or better, give the text as a parameter: ? or :name."
    for place in (at, at - 1):
        if not 0 < place < len(code) or code[place].kind != "word":
            continue
        word = texts[place]
        if texts[place - 1] == "," and word.upper() == "FROM":
            return f"Leave out the comma before {word}."
        if word.upper() in _RESERVED and texts[place - 1].upper() in _OPERANDS:
            return f"{word} is a keyword; write a column of that name {quoted(word, syntax)}."
    upper = [each.upper() for each in texts]
    if {"TOP", "FETCH"} & set(upper[max(at - 2, 0) : at + 1]):
        return "For the first rows write LIMIT 5 at the end."
    if "ILIKE" in upper[max(at - 1, 0) : at + 1]:
        return "This database has no ILIKE; write lower(name) LIKE 'pica%'."
    if 0 < at < len(code) and upper[at - 1] == "IN" and texts[at] != "(":
        return "IN needs a list: … IN :ids with ids=[1, 2] (on the command line -p 'ids=[1, 2]'), or IN (1, 2)."
    if (name := _spaced(code, texts, at)) is not None:
        return f"Write a name with spaces {quoted(name, syntax)}."
    words = [texts[place] for place in (at, at - 1) if 0 <= place < len(code) and code[place].kind == "word"]
    for word in words:
        close = close_to(word.upper(), _CLAUSES, 0.7)
        if close and word.upper() not in _RESERVED:
            return f"Did you mean {close}?"
    return "A ( has no )." if texts.count("(") > texts.count(")") else None


def unfit_quotes(sql: str, syntax: Syntax) -> str | None:
    """A hint where a quote is one of a text editor's, or has no other."""
    code = list(tokens(sql, syntax))
    if any(_TYPED.search(sql, each.start, each.end) for each in code if each.kind not in ("string", "name", "comment")):
        return "Write a text in '…' and a name in \"…\", with straight quotes, and use ordinary spaces."
    last = sql[code[-1].start : code[-1].end] if code else ""
    if last[:1] in ("'", '"') and (len(last) == 1 or last[-1] != last[0]):
        return f"The {last[0]} before {last[1:20]!r} has no closing one."
    return None


def in_double_quotes(sql: str, position: int) -> str | None:
    """A hint where what seems to be meant as a text stands in the quotes of names."""
    name = re.compile(r'"([^"\']*)"').match(sql, position - 1)
    return name and f"If it is a text, write it in single quotes: '{name[1]}'."


def other_parameter(sql: str, syntax: Syntax) -> str | None:
    """A hint where a parameter is written in another way: ``%s``, ``%(name)s``, ``{name}``."""
    if (percent := next((each for each in _PERCENT.finditer(sql)), None)) is None:
        return None
    if any(
        kind in ("string", "name", "comment") and start <= percent.start() < end
        for kind, start, end in tokens(sql, syntax)
    ):
        return None
    return f"Parameters are ? (in order) or :name, not {percent.group()}."


def numbered_parameter(sql: str, syntax: Syntax) -> str | None:
    """A hint where a parameter is written ``$1`` and means nothing."""
    code = [] if syntax.numbered else list(tokens(sql, syntax))
    for (kind, start, end), (following, begin, last) in pairwise(code):
        if (kind, following, sql[start:end]) == ("symbol", "number", "$") and begin == end:
            return not_numbered(sql[start:last])
    return None


def not_numbered(shown: str) -> str:
    return f"{shown} is not a parameter here. Write ? for each value, in order, or :name."


def _cut(code: Sequence[Token], place: int) -> bool:
    """Whether a word stands right behind a text, as where a text has a quote."""
    if not 0 < place < len(code):
        return False
    return code[place].kind == "word" and code[place - 1].kind == "string" and code[place - 1].end == code[place].start


def _spaced(code: Sequence[Token], texts: Sequence[str], at: int) -> str | None:
    """Three and more words in a row, of which none is a keyword, at the place of the error: one name, perhaps."""
    for place in (at, at - 1):
        first = last = place
        while 0 <= first < len(code) and _is_name(code[first], texts[first]):
            first -= 1
        while 0 <= last < len(code) and _is_name(code[last], texts[last]):
            last += 1
        if last - first - 1 >= 3:
            return " ".join(texts[first + 1 : last])
    return None


def _is_name(token: Token, text: str) -> bool:
    return (
        token.kind == "word"
        and text.upper() not in _RESERVED | _ELSEWHERE
        and not close_to(text.upper(), _CLAUSES, 0.7)
    )


def function_hint(name: str, known: Mapping[str, str]) -> str | None:
    """As ``name_hint``, where one is much like it: others are known by hundreds."""
    close = close_to(name.casefold(), (each.casefold() for each in known), 0.75)
    return name_hint(name, known) if close else None


def name_hint(name: str, known: Mapping[str, str]) -> str | None:
    """A hint with the nearest of ``known`` (names, and how each is written), whatever the case of its letters, or with
    all of them where none is near. None where nothing is known, or the name is: then its spelling is not the fault."""
    if not known or known.get(name) == name:
        return None
    written = {each.casefold(): text for each, text in known.items()}
    close = close_to(name.casefold(), written)
    return f"Did you mean {written[close]!r}?" if close is not None else nearest(name, list(known.values()))
