"""A bound for the first N: asked of one source before anything is moved.

The first N rows of a query by a key are among the rows whose key is not after some value t, if at least N rows have
such a key: whatever the query does below, dropping the rows after t changes nothing. So t may be guessed. A guess that
costs little is the N-th different value of the key in a part of the table that it comes from: one statement there. With
t as a filter that goes down into the sources, a query that would have moved whole tables moves a handful of rows. When
fewer than N rows come out, the guess was too low (a join or a HAVING took them away), and the query runs again
without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from dqp.algebra.constants import literal
from dqp.algebra.operators import (
    SELECTIVITY,
    Aggregate,
    Distinct,
    Filter,
    Join,
    Operator,
    Project,
    Remote,
    Scan,
    Sort,
    column,
    substituted,
    used,
)
from dqp.planning.context import Context
from dqp.planning.distribution.splitting import parts
from dqp.sql import dialects
from dqp.sql.dialects import NotPushed

MOST = 1_000
"""Rows asked for up to which a bound is looked for."""
SPARE = 2
"""How many times N values are asked for: some may have no row left in the end."""
ROWS = 200_000.0
"""Estimated rows of the key's table from which it pays."""
HOPELESS = 0.1
"""The part of the rows asked for that must be expected with a bound: estimates may be wrong by as much."""
GAIN = 20.0
"""How many times more values the key must have than are asked for."""
SEEN = 2.0
"""Rows looked at for each value that the key is expected to have."""


@dataclass(frozen=True)
class Bound:
    """``probe`` gives the first values of the key; ``wanted``: how many they must be; ``rows``: how many the bounded
    query must give to be the answer; ``part``: of the rows whose keys are that low, about."""

    probe: Remote
    wanted: int
    rows: int
    part: float


def bound(tree: Operator, context: Context) -> Bound | None:
    """What to ask first, for an optimised tree; None where nothing is gained."""
    top = _top(tree)
    if top is None or top.limit is None or not 0 < top.limit + top.offset <= MOST:
        return None
    key = top.keys[0]
    if not isinstance(key.this, exp.Column) or key.args.get("nulls_first"):
        return None
    found = _origin(top.input, key.this)
    if found is None:
        return None
    remote, made = found
    wanted = (top.limit + top.offset) * SPARE
    different: Operator = Distinct(Project(remote.tree, (("bound", made),)))
    estimated = context.estimator.of(different).rows
    rows = context.estimator.of(remote).rows
    if rows < ROWS or estimated < GAIN * wanted:
        return None
    if context.estimator.rows(top.input) * wanted / estimated < HOPELESS * (top.limit + top.offset):
        # So few rows have a key that is not after the bound that the query would run again without it.
        return None
    descending = bool(key.args.get("desc"))
    pieces = parts(remote, int(rows / (SEEN * estimated)))
    if len(pieces) == 1 and not isinstance(_rows_of(remote.tree), Scan):
        # The whole of a join would be computed twice.
        return None
    sample = pieces[-1 if descending else 0]
    first = exp.Ordered(this=column("bound"), desc=descending, nulls_first=False)
    values = Distinct(Project(sample.tree, (("bound", made),)))
    probe = Remote(remote.source, Sort(values, (first,), wanted))
    try:
        dialects.statement(probe.tree, context.dialect(remote.source))
    except NotPushed:
        return None
    return Bound(probe, wanted, top.limit, wanted / estimated)


def bounded(tree: Operator, values: pa.Table, first: Bound) -> Operator | None:
    """The tree as it was bound (not optimised) without what is after the last of the values; None where there are too
    few values."""
    if values.num_rows < first.wanted:
        return None
    try:
        found: Any = values.column(0)[-1].as_py()
        last = None if found is None else literal(found)
    except (OverflowError, ValueError):  # a day that Python does not have, the time of a day, bytes
        return None
    if last is None:
        return None

    def change(node: Operator) -> Operator:
        if isinstance(node, Project):
            return node.with_inputs(change(node.input))
        assert isinstance(node, Sort)
        key = node.keys[0]
        word = exp.GTE if key.args.get("desc") else exp.LTE
        condition = word(this=key.this.copy(), expression=last)
        condition.meta[SELECTIVITY] = first.part
        return replace(node, input=Filter(node.input, condition))

    return change(tree) if _top(tree) is not None else None


def _rows_of(tree: Operator) -> Operator:
    """What makes the rows that are filtered and projected."""
    return _rows_of(tree.input) if isinstance(tree, Filter | Project) else tree


def _top(tree: Operator) -> Sort | None:
    """The sort that decides which rows the query gives."""
    while isinstance(tree, Project) and not any(each.find(exp.Window) for each in tree.expressions):
        tree = tree.input
    return tree if isinstance(tree, Sort) and tree.keys and isinstance(tree.keys[0].this, exp.Column) else None


def _origin(tree: Operator, key: exp.Expression) -> tuple[Remote, exp.Expression] | None:
    """The remote leaf that has all columns of an expression, and the expression over its columns."""
    needed = used(key)
    if not needed:
        return None
    if isinstance(tree, Remote):
        return (tree, key) if needed <= set(tree.columns) and not isinstance(tree.tree, Sort) else None
    if isinstance(tree, Project):
        items = dict(tree.items)
        if any(items[each].find(exp.Window) for each in needed):
            return None
        return _origin(tree.input, substituted(key, {each: items[each] for each in needed}))
    if isinstance(tree, Aggregate):
        keys = dict(tree.keys)
        if tree.sets is not None or not needed <= keys.keys():
            return None
        return _origin(tree.input, substituted(key, {each: keys[each] for each in needed}))
    if isinstance(tree, Filter):
        return _origin(tree.input, key)
    if isinstance(tree, Join):
        sides = {"left": (tree.left,), "right": (tree.right,), "full": ()}.get(tree.kind, tree.inputs)
        side = next((each for each in sides if needed <= set(each.columns)), None)
        return None if side is None else _origin(side, key)
    return None
