"""Makes and takes apart chains of AND and of OR. Long chains are balanced, because recursion over an expression is as
deep as the expression."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlglot import exp

LONG = 16
"""Most operands of a chain that stays as it was written."""


def chained(kind: type[exp.And] | type[exp.Or], parts: Sequence[exp.Expression]) -> exp.Expression:
    """``a AND b AND …`` of at least one part, in order. Does not copy the parts."""
    if len(parts) > LONG:
        middle = len(parts) // 2
        return kind(this=chained(kind, parts[:middle]), expression=chained(kind, parts[middle:]))
    chain = parts[0]
    for each in parts[1:]:
        chain = kind(this=chain, expression=each)
    return chain


def operands(node: exp.Expression, *, unwrapped: bool = False) -> list[exp.Expression]:
    """The operands of the chain that starts at an AND or OR; ``unwrapped``: also those of chains in parentheses."""
    parts: list[exp.Expression] = []
    stack: list[Any] = [node]
    while stack:
        each = stack.pop()
        inner = each.unnest() if unwrapped else each
        if type(inner) is type(node):
            stack += [inner.expression, inner.this]
        else:
            parts.append(each)
    return parts


def balanced(query: exp.Expression) -> exp.Expression:
    """The parsed query with its long chains balanced. Changes the query."""
    chains: list[Any] = list(query.find_all(exp.And, exp.Or))
    for node in chains:
        kind = type(node)
        if type(node.parent) is kind or type(node.this) is not kind:
            continue
        parts = operands(node)
        if len(parts) > LONG:
            for each in parts:
                each.pop()
            chain = chained(kind, parts)
            if node is query:
                query = chain
            else:
                node.replace(chain)
    return query


def conjuncts(condition: exp.Expression | None) -> list[exp.Expression]:
    """The conditions that AND joins, as a list; none for None."""
    if condition is None:
        return []
    if isinstance(condition, exp.Paren):
        return conjuncts(condition.this)
    if isinstance(condition, exp.And):
        return [*conjuncts(condition.this), *conjuncts(condition.expression)]
    return [condition]


def all_of(parts: Iterable[exp.Expression]) -> exp.Expression | None:
    """The parts joined by AND, None if there are none. Does not copy the parts."""
    operands = [exp.Paren(this=each) if isinstance(each, exp.Or | exp.Xor) else each for each in parts]
    return chained(exp.And, operands) if operands else None


def any_of(parts: Iterable[exp.Expression]) -> exp.Expression | None:
    """The parts joined by OR, None if there are none. Does not copy the parts."""
    operands = [exp.Paren(this=each) if isinstance(each, exp.And | exp.Xor) else each for each in parts]
    return chained(exp.Or, operands) if operands else None
