"""The collations that columns were declared with, where a database tells them only in its CREATE TABLE."""

from __future__ import annotations

from dai.drivers.sql.lexer import tokens
from dai.drivers.sql.syntax import Syntax


def declared(sql: str, syntax: Syntax) -> dict[str, str]:
    """Collations by case-folded name of the column."""
    collations: dict[str, str] = {}
    depth, column, first = 0, "", 0
    last, at_name, at_collation = 0, False, False
    for kind, start, end in tokens(sql, syntax):
        text = sql[start:end]
        if kind == "comment":
            continue
        if kind == "symbol" and text in "()":
            depth += 1 if text == "(" else -1
            at_name = at_name or (depth == 1 and text == "(" and not column)
        elif depth == 1 and text == ",":
            at_name = True
        elif at_name:
            column, first, last, at_name = _bare(text), start, end, False
        elif kind == "name" and start == last:  # a doubled quotation mark
            column, last = _bare(sql[first:end]), end
        elif at_collation:
            collations[column.casefold()], at_collation = _bare(text), False
        elif depth == 1 and kind == "word" and text.upper() == "COLLATE":
            at_collation = True
    return collations


def _bare(name: str) -> str:
    close = {'"': '"', "`": "`", "[": "]", "'": "'"}.get(name[0])
    return name if close is None else name[1:-1].replace(close * 2, close)
