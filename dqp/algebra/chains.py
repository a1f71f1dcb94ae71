"""Long chains of AND and of OR as balanced trees: whatever walks an expression goes as deep as the expression is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlglot import exp

LONG = 16
"""Operands of a chain that is not balanced: written by people, it stays as it was written."""


def chained(kind: type[exp.And] | type[exp.Or], parts: Sequence[exp.Expression]) -> exp.Expression:
    """``a AND b AND …`` of at least one part, in their order; the parts are shared, not copied."""
    if len(parts) > LONG:
        middle = len(parts) // 2
        return kind(this=chained(kind, parts[:middle]), expression=chained(kind, parts[middle:]))
    made = parts[0]
    for each in parts[1:]:
        made = kind(this=made, expression=each)
    return made


def operands(node: exp.Expression, *, unwrapped: bool = False) -> list[exp.Expression]:
    """The operands of the chain that begins at an AND or OR; ``unwrapped``: those in parentheses too."""
    found: list[exp.Expression] = []
    stack: list[Any] = [node]
    while stack:
        each = stack.pop()
        inner = each.unnest() if unwrapped else each
        if type(inner) is type(node):
            stack += [inner.expression, inner.this]
        else:
            found.append(each)
    return found


def balanced(query: exp.Expression) -> exp.Expression:
    """A parsed query, which is changed, with its long chains balanced."""
    chains: list[Any] = list(query.find_all(exp.And, exp.Or))
    for node in chains:
        kind = type(node)
        if type(node.parent) is kind or type(node.this) is not kind:
            continue
        parts = operands(node)
        if len(parts) > LONG:
            for each in parts:
                each.pop()
            made = chained(kind, parts)
            if node is query:
                query = made
            else:
                node.replace(made)
    return query
