"""The rewriting of a query's tree, as a tuple of rules in the order they run.

A rule is a function from a tree and a context to a tree with the same rows and the same columns; it never changes its
argument. At the end the tree's leaves are statements of sources (``Remote``) and tuples in memory
(``Inline``). Adding a rule is one module, one line in ``RULES`` and one fixture in ``tests/dqp/rules``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dqp.algebra.operators import Operator
from dqp.algebra.trees import everywhere
from dqp.planning.context import Context, Options, nested_plans
from dqp.planning.predicates import with_plans
from dqp.planning.rules.aggregates import split_aggregates
from dqp.planning.rules.calls import calls
from dqp.planning.rules.columns import prune_columns
from dqp.planning.rules.conditions import order_conditions
from dqp.planning.rules.empty import drop_empty
from dqp.planning.rules.extremes import group_semi_joins
from dqp.planning.rules.filters import push_filters
from dqp.planning.rules.groups import share_groups
from dqp.planning.rules.joins import order_joins
from dqp.planning.rules.limits import push_limits
from dqp.planning.rules.narrow import narrow
from dqp.planning.rules.passes import one_pass
from dqp.planning.rules.repeated import ask_once
from dqp.planning.rules.semijoins import push_semi_joins, thin_semi_joins
from dqp.planning.rules.simplify import simplify
from dqp.planning.rules.subtrees import push_subtrees, reads_again, remark_if_less
from dqp.planning.rules.unnest import unnest

__all__ = ["RULES", "Context", "Options", "Rule", "optimise"]

Rule = Callable[[Operator, Context], Operator]
RULES: tuple[Rule, ...] = (
    simplify,
    unnest,
    one_pass,
    push_filters,
    drop_empty,
    push_semi_joins,
    prune_columns,
    order_joins,
    group_semi_joins,
    thin_semi_joins,
    split_aggregates,
    push_limits,
    narrow,
    prune_columns,
    order_conditions,
    share_groups,
    ask_once,
    push_subtrees,
    calls,
)
"""The rules in their order. A rule may occur twice, because another rule may have given it more to do."""


def optimise(tree: Operator, context: Context) -> Operator:
    """The tree after every rule. Equal subtrees run once, but they are found only at the end, and a large statement
    hides those inside it. So where statements read a large table again, the plan is compared with a second one, in
    which sources only read tables."""
    context.learn(tree)
    planned = _ruled(tree, context)
    if context.options.pushdown == "cost" and reads_again(planned, context):
        alone = replace(context, options=replace(context.options, pushdown="none"), remarks=[])
        read = _ruled(tree, alone)
        context.learn(read)
        if (remark := remark_if_less(read, planned, context)) is not None:
            context.remarks[:] = [*alone.remarks, remark]
            planned = read
    for each in context.estimator.corrections:
        context.remark(each)
    return planned


def _ruled(tree: Operator, context: Context) -> Operator:
    for rule in RULES:
        context.check()
        tree = applied(rule, tree, context)
    return tree


def applied(rule: Rule, tree: Operator, context: Context) -> Operator:
    """The tree after a rule: the plans nested in its expressions first, unless the rule rewrites them itself."""
    if not getattr(rule, "rewrites_nested_plans", False) and nested_plans(tree):
        tree = everywhere(tree, lambda each: with_plans(each, lambda nested: applied(rule, nested.plan, context)))
    return rule(tree, context)
