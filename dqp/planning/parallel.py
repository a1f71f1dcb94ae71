"""Splits an aggregate that a source would compute in one thread into parts that run at the same time.

The plan has one statement; a runtime that reads in parallel calls this before it reads, and again when keys that were
read leave fewer groups. The parts are ranges of a key (``dqp.planning.splitting``). DuckDB merges their groups and also
computes what the statement has above the aggregate (a division, HAVING, an order).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

from sqlglot import exp

from dqp.algebra.dialects import properties
from dqp.algebra.operators import Aggregate, Filter, Item, Nested, Operator, Project, Remote, Sort, column
from dqp.algebra.trees import rewritten
from dqp.planning.context import Context
from dqp.planning.predicates import count_of
from dqp.planning.splitting import large, scanned

GROUPS = 50_000.0
"""Most estimated groups for which parts pay, because every part sends its groups."""
GROUPS_A_ROW = 0.02
"""As ``GROUPS``, for each row of the table: to send a group once more takes as long as reading about six rows, and two
parts save the time of half of them."""
MERGED: dict[Any, Any] = {exp.Sum: exp.Sum, exp.Count: exp.Sum, exp.Min: exp.Min, exp.Max: exp.Max}
"""Aggregate functions that can be made in parts, and what makes one of the parts."""


def in_parts(tree: Operator, context: Context, rows: float, begun: Container[Operator] = ()) -> Operator:
    """The tree with partial aggregates in statements that scan at least ``rows`` rows and are not ``begun`` yet."""

    def change(node: Operator) -> Operator:
        return merging_parts(node, context, rows) if isinstance(node, Remote) and node not in begun else node

    return rewritten(tree, change)


def merging_parts(remote: Remote, context: Context, rows: float, left: float = 1.0) -> Operator:
    """The aggregate over a partial one in a statement; the statement itself where that does not pay. ``left``: the part
    of its rows that keys of other inputs leave."""
    if not properties(context.dialect(remote.source)).SINGLE_THREADED:
        return remote
    above: list[Operator] = []
    node = remote.tree
    while isinstance(node, Project | Sort | Filter) and not any(
        each.find(exp.Window, Nested) for each in node.expressions
    ):
        above.append(node)
        node = node.input
    if not isinstance(node, Aggregate) or node.partial or node.sets is not None:
        return remote
    if not all(mergeable(each) for _, each in node.aggregates):
        return remote
    partial = replace(remote, tree=replace(node, partial=True))
    scan = scanned(partial)
    if scan is None or not large(scan, rows):
        return remote
    if left * context.estimator.rows(node) > max(GROUPS, GROUPS_A_ROW * scan.table.rows):
        return remote
    merged_tree: Operator = merging(node, partial, [name for name, _ in node.aggregates])
    for each in reversed(above):
        merged_tree = each.with_inputs(merged_tree)
    return merged_tree


def mergeable(expression: exp.Expression) -> bool:
    """Whether an item is an aggregate that can be computed in parts: without DISTINCT, FILTER or ORDER BY."""
    return type(expression) in MERGED and not isinstance(expression.this, exp.Distinct | exp.Order)


def merging(whole: Aggregate, parts: Operator, names: list[str]) -> Aggregate:
    """The aggregate that merges the groups in ``parts``, whose aggregates are the columns ``names``."""
    keys: tuple[Item, ...] = tuple((name, column(name)) for name, _ in whole.keys)
    items = tuple((name, merged(each, part)) for (name, each), part in zip(whole.aggregates, names, strict=True))
    return Aggregate(parts, keys, items)


def merged(expression: exp.Expression, part: str) -> exp.Expression:
    """The expression that merges the parts of an aggregate."""
    merge: exp.Expression = MERGED[type(expression)](this=column(part))
    return count_of(merge) if isinstance(expression, exp.Count) else merge
