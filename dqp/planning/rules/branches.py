"""Finds the rows that need a part of an expression: those that take its branch of CASE, COALESCE, AND or OR, or pass
the FILTER of its aggregate."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from dqp.algebra.chains import operands
from dqp.algebra.operators import Nested

Guard = exp.Case
"""A CASE with a ``HOLE`` where a row arrives that needs the part, and NULL for every other row."""
Guards = tuple[Guard, ...]
"""From the outside inward."""
HOLE = exp.Placeholder()


def guarded(
    node: exp.Expression, wanted: Callable[[exp.Expression], bool], guards: Guards = ()
) -> Iterator[tuple[exp.Expression, Guards]]:
    """Every part of an expression that is ``wanted``, with its guard, which says which rows need it. Of AND and OR,
    operands without such a part come first, as SQL leaves the order open."""
    if wanted(node):
        yield node, guards
    for part, guard in _parts(node, lambda each: any(map(wanted, each.find_all(exp.Expression)))):
        yield from guarded(part, wanted, guards if guard is None else (*guards, guard))


def filled(guard: exp.Expression, part: exp.Expression) -> exp.Expression:
    """The part for a row that needs it, else NULL."""

    def change(node: exp.Expression) -> exp.Expression:
        return part.copy() if isinstance(node, exp.Placeholder) else node

    guarded_part: exp.Expression = guard.transform(change)
    return guarded_part


def passing(condition: exp.Expression) -> Guard:
    """The guard of a part that a row needs only if the condition is true."""
    return _guard([(condition, HOLE)])


def _parts(
    node: exp.Expression, dear: Callable[[exp.Expression], bool]
) -> Iterator[tuple[exp.Expression, Guard | None]]:
    if isinstance(node, Nested):
        if node.args.get("this") is not None:
            yield node.this, None
    elif isinstance(node, exp.Case):
        yield from _case(node)
    elif isinstance(node, exp.If):
        yield node.this, None
        yield node.args["true"], _guard([(node.this, HOLE)])
        if node.args.get("false") is not None:
            yield node.args["false"], _guard([(node.this, exp.Null())], HOLE)
    elif isinstance(node, exp.Coalesce):
        before: list[tuple[exp.Expression, exp.Expression]] = []
        for each in (node.this, *node.expressions):
            yield each, _guard(before, HOLE) if before else None
            known = exp.Not(this=exp.Is(this=exp.Paren(this=each), expression=exp.Null()))
            before.append((known, exp.Null()))
    elif isinstance(node, exp.And | exp.Or):
        before = []
        for each in sorted(operands(node, unwrapped=True), key=dear):
            yield each, _guard(before, HOLE) if before else None
            over = exp.Paren(this=each)
            before.append((exp.Not(this=over) if isinstance(node, exp.And) else over, exp.Null()))
    elif isinstance(node, exp.Filter):
        condition = node.expression.this
        yield condition, None
        yield node.this, passing(condition)
    else:
        for each in node.iter_expressions():
            yield each, None


def _case(node: exp.Case) -> Iterator[tuple[exp.Expression, Guard | None]]:
    operand = node.args.get("this")
    if operand is not None:
        yield operand, None
    before: list[tuple[exp.Expression, exp.Expression]] = []
    for each in node.args["ifs"]:
        yield each.this, _guard(before, HOLE, operand) if before else None
        yield each.args["true"], _guard([*before, (each.this, HOLE)], None, operand)
        before.append((each.this, exp.Null()))
    if node.args.get("default") is not None:
        yield node.args["default"], _guard(before, HOLE, operand)


def _guard(
    branches: list[tuple[exp.Expression, exp.Expression]],
    default: exp.Expression | None = None,
    operand: exp.Expression | None = None,
) -> Guard:
    return exp.Case(
        this=None if operand is None else operand.copy(),
        ifs=[exp.If(this=when.copy(), true=then.copy()) for when, then in branches],
        default=None if default is None else default.copy(),
    )
