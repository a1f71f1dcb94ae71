"""Computes an expression over columns of one source in that source if its result has fewer bytes than the columns that
then need not be sent: a part of a text, a product, a comparison."""

from __future__ import annotations

from sqlglot import exp

from dqp.algebra.operators import Aggregate, Filter, Join, Nested, Operator, Project, column
from dqp.algebra.trees import exchanged, free, rewritten, used
from dqp.planning.context import Context
from dqp.planning.costing.columns import WIDTH
from dqp.planning.predicates import COMPARISONS, bare, calm, rebuilt, strict
from dqp.planning.rules.places import place
from dqp.planning.rules.subtrees import accepted

GAIN = 4.0
"""Least bytes of a row that this must save."""
Expressions = tuple[exp.Expression, ...]
_TRUTHS = (*COMPARISONS, exp.And, exp.Or, exp.Not, exp.Like, exp.In, exp.Is, exp.Between)
_VALUES = (
    *(exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Case, exp.Coalesce, exp.Substring, exp.Upper, exp.Lower, exp.Length),
    *(exp.Extract, exp.Year, exp.Month, exp.Day, exp.DPipe, exp.Trim, *_TRUTHS),
)
"""Expressions that may be computed in another place."""


def narrow(tree: Operator, context: Context) -> Operator:
    """Rule: an expression whose result has fewer bytes than its columns is computed in the source."""
    return rewritten(tree, lambda each: _narrowed(each, context))


def _narrowed(tree: Operator, context: Context) -> Operator:
    if not isinstance(tree, Project | Aggregate) or place(tree) is not None:
        return tree
    while True:
        for side, filled in _sides(tree.inputs[0], False):
            moved = _moved(tree, side, filled, context)
            if moved is not None:
                tree = moved
                break
        else:
            return tree


def _sides(tree: Operator, filled: bool) -> list[tuple[Operator, bool]]:
    """The largest parts of a join tree that are in one source, each with whether it is filled with NULLs."""
    if place(tree) is not None:
        return [(tree, filled)]
    if isinstance(tree, Filter):
        return _sides(tree.input, filled)
    if isinstance(tree, Join):
        left = _sides(tree.left, filled or tree.kind in ("right", "full"))
        if tree.kind in ("semi", "anti"):
            return left
        return [*left, *_sides(tree.right, filled or tree.kind in ("left", "full", "asof left"))]
    return []


def _moved(tree: Operator, side: Operator, filled: bool, context: Context) -> Operator | None:
    """The tree with the parts of its expressions that pay computed in the side; None where none does."""
    inside = frozenset(side.columns)
    parts: dict[exp.Expression, None] = {}
    for each in tree.expressions:
        _gather(each, inside, parts, context)
    if not parts or free(side):
        return None
    elsewhere = _needed(tree.inputs[0], side)
    chosen = [each for each in parts if not filled or strict(each, used(each))]
    # Parts that share a column pay together or not at all.
    while chosen:
        rest = _rest(tree.expressions, set(chosen)) | elsewhere
        gone = frozenset().union(*map(used, chosen)) - rest
        known = context.estimator.of(side).columns
        saved = sum(known[each].width if each in known else WIDTH for each in gone)
        spent = sum(_width(each, context, side) for each in chosen)
        useless = [each for each in chosen if not used(each) & gone]
        if saved - spent >= GAIN and not useless:
            return _built(tree, side, chosen, gone, context)
        chosen = [each for each in chosen if each not in useless] if useless else chosen[:-1]
    return None


def _gather(node: exp.Expression, inside: frozenset[str], parts: dict[exp.Expression, None], context: Context) -> None:
    """Enters the largest parts that need columns of the side alone."""
    if isinstance(node, exp.Column | exp.Literal | exp.Window | exp.Escape):
        return
    names = used(node)
    if names and names <= inside and isinstance(node, _VALUES) and calm(node, context.types):
        parts[bare(node)] = None
        return
    for each in node.iter_expressions():
        if isinstance(each, exp.Expression):
            _gather(each, inside, parts, context)


def _needed(tree: Operator, side: Operator) -> frozenset[str]:
    """The columns that the operators around ``side`` use."""
    if tree is side:
        return frozenset()
    names: frozenset[str] = frozenset().union(*map(used, tree.expressions))
    return names.union(*(_needed(each, side) for each in tree.inputs))


def _rest(expressions: Expressions, parts: set[exp.Expression]) -> frozenset[str]:
    """The columns that the expressions use outside of the parts."""
    names: set[str] = set()

    def visit(node: exp.Expression) -> exp.Expression | None:
        if node in parts:
            return node
        if isinstance(node, exp.Column | Nested):
            names.update(used(node))
        return None

    for each in expressions:
        rebuilt(each, visit)
    return frozenset(names)


def _width(node: exp.Expression, context: Context, side: Operator) -> float:
    """Bytes of the result."""
    if isinstance(node, _TRUTHS):
        return 1.0
    if isinstance(node, exp.Add | exp.Sub | exp.Mul):
        # A number is not wider than the wider one of two, as it is sent.
        return max(_width(each, context, side) for each in (node.this, node.expression))
    if isinstance(node, exp.Paren):
        return _width(node.this, context, side)
    if isinstance(node, exp.Literal):
        return 1.0
    return context.estimator.of(side).computed(node).width


def _built(
    tree: Operator, side: Operator, chosen: list[exp.Expression], gone: frozenset[str], context: Context
) -> Operator | None:
    source = place(side)
    assert source is not None
    names = {each: context.names.new(_name(each)) for each in chosen}
    kept = tuple((each, column(each)) for each in side.columns if each not in gone)
    below = Project(side, (*kept, *((name, each) for each, name in names.items())))
    if not accepted(below, source, context):
        return None

    def change(node: exp.Expression) -> exp.Expression | None:
        name = names.get(node)
        return None if name is None else column(name)

    changed = tree.with_expressions(lambda each: rebuilt(each, change))
    return changed.with_inputs(exchanged(tree.inputs[0], side, below))


def _name(node: exp.Expression) -> str:
    return type(node).__name__.lower()
