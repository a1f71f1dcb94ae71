"""What a misspelt name probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from dai.drivers.sql.ddl import quoted
from dai.drivers.sql.lexer import tokens
from dai.drivers.sql.syntax import Syntax
from dai.plugins import nearest

_RESERVED = frozenset(
    """ALL AND ANY AS ASC BETWEEN BOTH BY CASE CAST CHECK COLUMN CONSTRAINT CREATE CROSS DEFAULT DESC DISTINCT ELSE END
    EXCEPT FOR FOREIGN FROM GROUP HAVING IN INDEX INTERSECT INTO IS JOIN KEY LEFT LIKE LIMIT NATURAL NOT NULL OFFSET ON
    OR ORDER PRIMARY RANK REFERENCES RIGHT ROW SELECT SET TABLE THEN TO UNION UNIQUE UPDATE USER USING VALUES WHEN WHERE
    WINDOW WITH""".split()
)
_CLAUSES = ("SELECT", "FROM", "WHERE", "GROUP", "ORDER", "HAVING", "LIMIT", "JOIN", "UNION", "VALUES")
_OPERANDS = frozenset(
    {"SELECT", "DISTINCT", "WHERE", "BY", "ON", "AND", "OR", "NOT", "SET", ",", "(", ".", "=", "<", ">", "+"}
)
"""What a column may stand behind."""


def at_syntax_error(sql: str, position: int, syntax: Syntax) -> str | None:
    """A hint where a keyword seems to be meant as a column, or a word is nearly that of a clause. ``position`` as the
    database says it: of the word, or of the one behind it."""
    code = [each for each in tokens(sql, syntax) if each.kind != "comment"]
    texts = [sql[each.start : each.end] for each in code]
    at = next((place for place, each in enumerate(code) if each.start >= position - 1), len(code))
    for place in (at, at - 1):
        if not 0 < place < len(code) or code[place].kind != "word":
            continue
        word = texts[place]
        if word.upper() in _RESERVED and texts[place - 1].upper() in _OPERANDS:
            return f"{word} is a keyword; a column of that name is written {quoted(word, syntax)}."
    words = [texts[place] for place in (at, at - 1) if 0 <= place < len(code) and code[place].kind == "word"]
    for word in words:
        close = difflib.get_close_matches(word.upper(), _CLAUSES, 1, 0.7)
        if close and word.upper() not in _RESERVED:
            return f"Did you mean {close[0]}?"
    return None


def meant(name: str, known: Mapping[str, str]) -> str | None:
    """A hint with the nearest of ``known`` (names, and how each is written), whatever the case of its letters, or with
    all of them where none is near. None where nothing is known, or the name is: then its spelling is not the fault."""
    if not known or known.get(name) == name:
        return None
    written = {each.casefold(): text for each, text in known.items()}
    close = difflib.get_close_matches(name.casefold(), written, 1)
    return f"Did you mean {written[close[0]]!r}?" if close else nearest(name, list(known.values()))
