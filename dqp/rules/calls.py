"""Operation calls out of expressions into ``Call`` operators, directly below the operator that uses their result.

The last rule: filters and joins have been moved by then, and only the rows that are left are called for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from sqlglot import exp

from dai.errors import StatementError
from dqp.operators import (
    Aggregate,
    Call,
    Filter,
    Join,
    Nested,
    Operator,
    Project,
    Sort,
    column,
    conjunction,
    conjuncts,
    free,
    used,
    walk,
)
from dqp.rules.context import Context


def calls(tree: Operator, context: Context) -> Operator:
    """``Filter(x, f(a) > 1)`` → ``Filter(Call(x, c = f(a)), c > 1)``, without ``c`` further up where it is not used."""
    if not context.options.functions:
        return tree
    return _trimmed(_extracted(tree, context), tree.columns)


def _trimmed(made: Operator, columns: tuple[str, ...]) -> Operator:
    """The operator without the results of calls that it passes on."""
    return made if made.columns == columns else Project(made, tuple((each, column(each)) for each in columns))


def _extracted(node: Operator, context: Context) -> Operator:
    """The tree with its calls extracted; it may give their results beside its own columns."""
    passing = isinstance(node, Project | Aggregate | Filter | Sort | Call)
    inputs = [_extracted(each, context) for each in node.inputs]
    if not passing:
        inputs = [_trimmed(made, each.columns) for made, each in zip(inputs, node.inputs, strict=True)]
    node = node.with_inputs(*inputs)
    if any(each.find(Nested) for each in node.expressions):
        node = node.with_expressions(lambda each: _inside(each, context))
    if not any(_found(each, context) for each in node.expressions):
        return node
    if isinstance(node, Join):
        return _join(node, context)
    if not passing:
        raise StatementError("An operation call cannot stand in this place.", hint="Call it in a subquery in FROM.")
    windows = [
        each
        for expression in node.expressions
        for call in _found(expression, context)
        for each in call.find_all(exp.Window)
    ]
    if windows:
        node = _windows_first(node, windows, context)
    below, changed = _called(node.inputs[0], node.expressions, context)
    replacing = iter(changed)
    return node.with_inputs(below).with_expressions(lambda _: next(replacing))


def _inside(expression: exp.Expression, context: Context) -> exp.Expression:
    """The expression with the calls of its subqueries extracted inside of these."""

    def change(node: exp.Expression) -> exp.Expression:
        if not isinstance(node, Nested):
            return node
        plan = calls(node.plan, context)
        if any(isinstance(each, Call) for each in walk(plan)) and free(plan):
            raise StatementError(
                "An operation call cannot stand in a subquery that uses columns of the query around it.",
                hint="Write the subquery as a join.",
            )
        return Nested(**{**node.args, "plan": plan})

    changed: exp.Expression = expression.transform(change)
    return changed


def _found(expression: exp.Expression, context: Context) -> list[exp.Anonymous]:
    """The calls in an expression, innermost first."""
    nodes = [each for each in expression.find_all(exp.Anonymous) if each.name.lower() in context.options.functions]
    return nodes[::-1]


def _called(
    below: Operator, expressions: tuple[exp.Expression, ...], context: Context
) -> tuple[Operator, list[exp.Expression]]:
    """The operator with a ``Call`` for each different call of the expressions, and the expressions that use them."""
    known = {call: name for call, name in _made(below) if name in below.columns}

    def change(node: exp.Expression) -> exp.Expression:
        nonlocal below
        if not isinstance(node, exp.Anonymous) or node.name.lower() not in context.options.functions:
            return node
        name = node.name.lower()
        call = exp.Anonymous(this=name, expressions=node.expressions)
        if call not in known:
            known[call] = context.names.new(name)
            below = Call(below, known[call], name, tuple(node.expressions))
        return column(known[call])

    changed = [_bottom_up(each, change) for each in expressions]
    return below, changed


def _made(below: Operator) -> Iterator[tuple[exp.Expression, str]]:
    """The calls whose results the operator may pass on, with their identifiers."""
    while isinstance(below, Filter | Sort | Call):
        if isinstance(below, Call):
            yield exp.Anonymous(this=below.function, expressions=list(below.arguments)), below.identifier
        below = below.input


def _bottom_up(node: exp.Expression, change: Callable[[exp.Expression], exp.Expression]) -> exp.Expression:
    if isinstance(node, Nested):
        return node
    copied = node.copy()
    for child in list(copied.iter_expressions()):
        child.replace(_bottom_up(child, change))
    return change(copied)


def _windows_first(node: Operator, windows: list[exp.Window], context: Context) -> Operator:
    below = node.inputs[0]
    names = {each: context.names.new("window") for each in windows}
    items = tuple((each, column(each)) for each in below.columns)
    made = node.with_inputs(Project(below, (*items, *((name, each) for each, name in names.items()))))

    def change(each: exp.Expression) -> exp.Expression:
        return column(names[each]) if isinstance(each, exp.Window) and each in names else each

    return made.with_expressions(lambda each: _bottom_up(each, change))


def _join(node: Join, context: Context) -> Operator:
    left, right = node.left, node.right
    kept: list[exp.Expression] = []
    after: list[exp.Expression] = []
    for each in conjuncts(node.condition):
        needs = frozenset[str]().union(*(used(call) for call in _found(each, context)))
        if not _found(each, context):
            kept.append(each)
        elif needs <= set(left.columns):
            left, (changed,) = _called(left, (each,), context)
            kept.append(changed)
        elif needs <= set(right.columns):
            right, (changed,) = _called(right, (each,), context)
            kept.append(changed)
        elif node.kind == "inner":
            after.append(each)
        else:
            raise StatementError(
                f"An operation call over both sides of a {node.kind} join cannot stand in its condition.",
                hint="Call it in a subquery in FROM.",
            )
    made: Operator = Join(left, right, node.kind, conjunction(kept))
    rest = conjunction(after)
    if rest is not None:
        made = _extracted(Filter(made, rest), context)
    return _trimmed(made, node.columns)
