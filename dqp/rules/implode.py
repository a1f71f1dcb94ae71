"""The largest subtrees whose tables share a source become one statement there, as far as its dialect takes them."""

from __future__ import annotations

from collections.abc import Set

from sqlglot import exp

from dqp import dialects
from dqp.cost import ROUND_TRIP, costs
from dqp.operators import (
    Block,
    Distinct,
    Filter,
    Join,
    Nested,
    Operator,
    Project,
    Remote,
    SetOperation,
    column,
    conjuncts,
    free,
    subqueries,
    used,
)
from dqp.rules.columns import in_order
from dqp.rules.context import Context
from dqp.rules.joins import place
from dqp.rules.predicates import all_of, rebuilt


def implode(tree: Operator, context: Context) -> Operator:
    return in_order(_imploded(tree, frozenset(tree.columns), context), tree.columns)


def _imploded(tree: Operator, needed: Set[str], context: Context) -> Operator:
    """``needed``: the columns of the tree that something above it uses; a statement gives no others."""
    if isinstance(tree, Remote):
        return tree
    source = place(tree)
    if source is not None and not free(tree) and not _exploding(tree, needed, source, context):
        whole = _remote(source, tree, needed, context)
        if whole is not None:
            return whole
    if isinstance(tree, Filter):
        return _filter(tree, needed, context)
    return _below(tree, needed, context)


def _below(tree: Operator, needed: Set[str], context: Context) -> Operator:
    """The node here, its inputs and the plans in its expressions imploded by themselves."""
    wanted = frozenset(needed)
    if isinstance(tree, Distinct | SetOperation | Block):
        inputs = [in_order(_imploded(each, frozenset(each.columns), context), each.columns) for each in tree.inputs]
    else:
        for each in tree.expressions:
            wanted |= used(each)
        inputs = [_imploded(each, wanted & frozenset(each.columns), context) for each in tree.inputs]
    made = tree.with_inputs(*inputs)
    if any(subqueries(each) for each in made.expressions):
        made = made.with_expressions(lambda each: _plans(each, context))
    return made


def _plans(expression: exp.Expression, context: Context) -> exp.Expression:
    def change(node: exp.Expression) -> exp.Expression | None:
        if not isinstance(node, Nested):
            return None
        exists = node.kind == "exists"
        plan = _imploded(node.plan, frozenset(), context) if exists else implode(node.plan, context)
        arguments = {**node.args, "plan": plan}
        if node.args.get("this") is not None:
            arguments["this"] = _plans(node.this, context)
        return Nested(**arguments)

    return rebuilt(expression, change)


def _remote(source: str, tree: Operator, needed: Set[str], context: Context) -> Remote | None:
    """The tree as one statement that gives the needed columns, None where the dialect does not take it."""
    columns = tuple(each for each in tree.columns if each in needed)
    if not columns:
        columns = tree.columns[:1]
    if columns != tree.columns and not isinstance(tree, SetOperation | Distinct):
        tree = Project(tree, tuple((each, column(each)) for each in columns))
    reason = refused(tree, source, context)
    if reason is None:
        return Remote(source, tree)
    context.remark(f"{source}: {reason}")
    return None


def refused(tree: Operator, source: str, context: Context) -> str | None:
    """Why the tree is no statement of its source; None where it is one."""
    try:
        dialects.statement(tree, context.dialect(source))
    except dialects.NotPushed as reason:
        return str(reason)
    return None


def _filter(tree: Filter, needed: Set[str], context: Context) -> Operator:
    """The conjuncts that the source takes there, the others here: what it refuses, what reads another source, what
    depends on the queries around it."""
    parts = conjuncts(tree.condition)
    source = place(tree.input)
    if len(parts) == 1 or source is None or free(tree.input) or refused(tree.input, source, context) is not None:
        return _below(tree, needed, context)
    there = [each for each in parts if _alone(Filter(tree.input, each), source, context)]
    here = [each for each in parts if each not in there]
    condition, rest = all_of(there), all_of(here)
    if condition is None or rest is None:
        return _below(tree, needed, context)
    return _below(Filter(Filter(tree.input, condition), rest), needed, context)


def _alone(tree: Operator, source: str, context: Context) -> bool:
    """Whether the source can do the tree with nothing else."""
    return place(tree) == source and not free(tree) and refused(tree, source, context) is None


def _exploding(tree: Operator, needed: Set[str], source: str, context: Context) -> bool:
    """Whether fetching the result of a join costs more than fetching its inputs and joining them here."""
    if not isinstance(tree, Join) or tree.kind in ("semi", "anti"):
        return False
    of, one = context.estimator.of, costs(context.dialect(source))
    made = of(tree)
    width = sum(each.width for name, each in made.columns.items() if name in needed)
    whole = made.rows * (one.row + one.byte * width)
    wanted = needed | (used(tree.condition) if tree.condition is not None else frozenset())
    apart = ROUND_TRIP
    for side in tree.inputs:
        each = of(side)
        width = sum(known.width for name, known in each.columns.items() if name in wanted)
        apart += each.rows * (one.row + one.byte * width)
    if whole > 1.2 * apart:
        context.remark(f"{source}: a join gives {made.rows:,.0f} rows, more than its inputs have")
        return True
    return False
