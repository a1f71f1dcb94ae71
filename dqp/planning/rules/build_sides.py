"""Puts the smaller side of a join right. DuckDB builds its hash table of the right side: it knows no sizes of its
inputs, which are streams. A left join whose sides change places becomes a right join."""

from __future__ import annotations

from collections.abc import Mapping

from dqp.algebra.operators import Join, JoinKind, Operator
from dqp.algebra.trees import rewritten, walk
from dqp.planning.costing.cost import Estimator
from dqp.planning.rules.columns import in_order
from dqp.planning.rules.join_order import NESTED

TIMES = 2.0
"""The right side of a join must be expected to have so many times the rows of the left one to change places with it."""
_TURNED: Mapping[JoinKind, JoinKind] = {"inner": "inner", "left": "right", "right": "left", "full": "full"}


def smaller_built(tree: Operator, estimator: Estimator) -> Operator:
    """The tree with the smaller side of each join right; the same object where nothing changes. A join without an
    equality has no hash table, and the sides of a semi-join or an anti-join cannot change places."""

    def turned(node: Operator) -> Operator:
        if not isinstance(node, Join) or node.kind not in _TURNED or not node.equal_columns:
            return node
        if TIMES * estimator.rows(node.left) >= estimator.rows(node.right) or not _shallow(node.left):
            return node
        return in_order(Join(node.right, node.left, _TURNED[node.kind], node.condition), node.columns)

    return rewritten(tree, turned)


def _shallow(tree: Operator) -> bool:
    return sum(isinstance(each, Join) for each in walk(tree)) < NESTED
