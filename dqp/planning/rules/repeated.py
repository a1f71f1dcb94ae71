"""Makes groups that a query uses several times a statement of their own, which the source runs once.

Within one statement a database computes them for each use, and if it expects few of them, again for each row of a
nested loop around them (PostgreSQL: 3,500 times in TPC-DS's first query).
"""

from __future__ import annotations

from dqp.algebra.operators import Aggregate, Distinct, Operator, Project, Remote, Scan
from dqp.algebra.trees import walk
from dqp.planning.common_subtrees import Sharing
from dqp.planning.context import Context
from dqp.planning.rules.places import place
from dqp.planning.rules.subtrees import refused

FEWER = 0.5
"""Groups that are at most this part of the rows that the source reads are worth fetching for a second use."""


def ask_once(tree: Operator, context: Context) -> Operator:
    """Rule: groups of one source that are used several times become ``Remote`` leaves."""
    if context.options.pushdown != "cost":
        return tree
    sharing = Sharing(tree)
    return _asked(tree, sharing, context) if sharing.tables else tree


def _asked(tree: Operator, sharing: Sharing, context: Context) -> Operator:
    if sharing(tree) is not None and (source := _source(tree, context)) is not None:
        context.remark(f"{source}: what gives {', '.join(tree.columns)} is used more than once, so it is a statement")
        return Remote(source, tree)
    return tree.with_inputs(*(_asked(each, sharing, context) for each in tree.inputs))


def _source(tree: Operator, context: Context) -> str | None:
    """The source that can make these groups, fewer than the rows it reads for them; None for other trees."""
    groups = tree
    while isinstance(groups, Project):
        groups = groups.input
    source = place(tree)
    if source is None or not isinstance(groups, Aggregate | Distinct) or refused(tree, source, context) is not None:
        return None
    return source if worth_asking(tree, context) else None


def worth_asking(tree: Operator, context: Context) -> bool:
    """Whether groups are few beside the rows that are read for them."""
    of = context.estimator.of
    return of(tree).rows <= FEWER * sum(of(each).rows for each in walk(tree) if isinstance(each, Scan))
