"""Marks the literals that stand for parameters, so that a plan can be used again with other values of the same form.

Literals are marked where the values of all of a statement's parameters decide nothing but the answer: as operands of
comparisons, BETWEEN and IN, opposite to columns. What planning looks at besides a value (its type, its sign, the types
that it fits into) is in the *form* of the parameters: calls with the same form may have the same plan.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from dqp.algebra.constants import PLACE
from dqp.binding.parameters import Parameters, Statement, literal, plain

_MARK = "\ue000"
"""A private-use character, which goes behind a marked literal and its place through the parser."""
_CAST = re.compile(r"CAST\('([^']*)' AS (.*)\)")
_COMPARED = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.In)
_LONGEST = 1_000


def form(parameters: Parameters) -> tuple[str, dict[str, str]] | None:
    """The form of the parameters, and the texts of their literals by place; None where one cannot be marked."""
    named: Iterable[tuple[Any, Any]] = parameters.items() if isinstance(parameters, Mapping) else enumerate(parameters)
    forms, texts = [], dict[str, str]()
    for key, each in named:
        known = _form(plain(each))
        if known is None:
            return None
        forms.append((key, known[0]))
        texts[str(key)] = known[1]
    return f"form {forms!r}", texts


def _form(value: Any) -> tuple[str, str] | None:
    """The form of one value and the text of its literal."""
    if type(value) is int:
        size = abs(value)
        return (f"{value < 0} {size < 1 << 31}", str(size)) if size < 1 << 63 else None
    if type(value) is str:
        return ("text", value) if len(value) <= _LONGEST and value.isascii() and value.isprintable() else None
    if type(value) in (float, Decimal) and not math.isfinite(value):
        return None
    if type(value) in (float, Decimal, date):  # a midnight may become a date
        match = _CAST.fullmatch(literal(value))
        return None if match is None else (match[2], match[1])
    return None


def marked(statement: Statement, texts: Mapping[str, str]) -> tuple[Token, ...] | None:
    """The tokens with a mark at the literal of each parameter; None where one cannot be marked, or there is none."""
    if not statement.values or _MARK in statement.text or any(place not in texts for *_, place in statement.values):
        return None
    tokens, at = list(statement.tokens), 0
    for start, _, place in statement.values:
        while tokens[at].start < start or tokens[at].token_type not in (TokenType.NUMBER, TokenType.STRING):
            at += 1
        one = tokens[at]
        tokens[at] = Token(one.token_type, f"{one.text}{_MARK}{place}", one.line, one.col, one.start, one.end)
    return tuple(tokens)


def settled(query: exp.Expression, marks: int) -> bool:
    """Whether all marked literals are where that is allowed; ``marks``: their number. Afterwards they have their own
    texts again, and their places if so."""
    marked = [each for each in query.find_all(exp.Literal) if _MARK in each.this]
    allowed = len(marked) == marks and all(map(_decides_nothing, marked))
    for each in marked:
        text, _, place = each.this.partition(_MARK)
        each.set("this", text)
        each.set(PLACE, place if allowed else None)
    return allowed


def _decides_nothing(node: exp.Expression) -> bool:
    """Whether the literal is compared with columns, and no column is named after it."""
    if _is_in_a_name(node):
        return False
    above: Any = node.parent
    while isinstance(above, exp.Paren | exp.Neg) or type(above) is exp.Cast:
        node, above = above, above.parent
    if not isinstance(above, _COMPARED) or above.args.get("query") is not None or above.this is node:
        return False
    return above.this.find(exp.Column) is not None and not above.this.find(exp.Subquery, exp.Query)


def _is_in_a_name(node: exp.Expr) -> bool:
    """Whether the literal is within a result without a name of its own: DuckDB names it after its text."""
    while (above := node.parent) is not None:
        if isinstance(above, exp.Select) and node.arg_key == "expressions" and not isinstance(node, exp.Alias):
            return True
        node = above
    return False
