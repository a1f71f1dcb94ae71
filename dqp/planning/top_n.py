"""Makes a top-N probe: a short statement that finds a value beyond which the first N rows cannot lie.

Take the first N rows of a query by a key. If at least N result rows have a key up to some value t, then rows with keys
after t cannot be among the first N, whatever the query does below; dropping them changes nothing. So t may be a guess.
A cheap guess takes one statement: the N-th distinct value of the key in a part of its table, or the N-th value where
few rows have the same one. The filter by t is pushed down into the sources, and a query that would have moved whole
tables moves few rows. If fewer than N rows come out, the guess was too low, because a join or a HAVING dropped rows;
then the query runs again without the filter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp

from dqp.algebra.constants import literal
from dqp.algebra.operators import (
    OF_LEFT,
    OF_RIGHT,
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
)
from dqp.algebra.trees import substituted, used
from dqp.planning.context import Context
from dqp.planning.costing.elapsed import elapsed
from dqp.planning.costing.work import indexed
from dqp.planning.splitting import parts
from dqp.sql import dialects
from dqp.sql.dialects import NotPushed

MOST = 1_000
"""Largest N for which a probe is sent."""
SPARE = 2
"""The probe reads so many times N values, because the query may drop the rows of some."""
ROWS = 200_000.0
"""Estimated rows of the key's table from which a probe pays."""
HOPELESS = 0.1
"""The part of N rows that must be expected with the filter. Estimates may be wrong by that factor."""
GAIN = 20.0
"""The key must have so many times more distinct values than the probe reads."""
SEEN = 2.0
"""Rows that the probe scans for each distinct value that the key is expected to have. Where the table has at most twice
as many for each, the probe reads values as they are: MariaDB takes 17 s to make a million distinct."""
SHARE = 0.5
"""The most of the query's seconds that a probe without an index may take."""


@dataclass(frozen=True)
class Probe:
    """A top-N probe. ``remote`` reads the first values of the key, which must be at least ``wanted``; ``rows``: the
    rows that the filtered query must give to be the answer; ``part``: the estimated part of the rows that the filter
    keeps."""

    remote: Remote
    wanted: int
    rows: int
    part: float


def probe_for(tree: Operator, context: Context) -> Probe | None:
    """The probe for an optimised tree; None if none pays."""
    top = _top(tree)
    if top is None or top.limit is None or not 0 < top.limit + top.offset <= MOST:
        return None
    key = top.keys[0]
    if not isinstance(key.this, exp.Column) or key.args.get("nulls_first"):
        return None
    origin = _origin(top.input, key.this)
    if origin is None:
        return None
    remote, key_expression = origin
    wanted = (top.limit + top.offset) * SPARE
    different: Operator = Distinct(Project(remote.tree, (("bound", key_expression),)))
    estimated = context.estimator.of(different).rows
    rows = context.estimator.of(remote).rows
    if rows < ROWS or estimated < GAIN * wanted:
        return None
    if context.estimator.rows(top.input) * wanted / estimated < HOPELESS * (top.limit + top.offset):
        # Too few rows would pass the filter, so that the query would have to run again without it.
        return None
    descending = bool(key.args.get("desc"))
    first = exp.Ordered(this=column("bound"), desc=descending, nulls_first=False)
    alike = rows / estimated
    pieces = parts(remote, int(alike / SEEN))
    if len(pieces) == 1 and not isinstance(_rows_of(remote.tree), Scan):
        # The source would compute the whole join twice.
        return None
    values = Project(pieces[-1 if descending else 0].tree, (("bound", key_expression),))
    if alike > 2 * SEEN:
        probing = Remote(remote.source, Sort(Distinct(values), (first,), wanted))
    else:
        probing = Remote(remote.source, Sort(values, (first,), math.ceil(wanted * alike)))
    by_index = context.type_of(key_expression) != "VARCHAR" and indexed(values, {"bound"})
    if not by_index and _seconds(probing, context) > SHARE * _seconds(tree, context):
        return None
    try:
        dialects.statement(probing.tree, context.dialect(remote.source))
    except NotPushed:
        return None
    return Probe(probing, wanted, top.limit, wanted / estimated)


def filtered(tree: Operator, values: pa.Table, probe: Probe) -> Operator | None:
    """The bound tree (not optimised) with a filter for keys up to the last of the probe's values; None if there are too
    few values."""
    if values.num_rows < probe.wanted:
        return None
    try:
        last_value: Any = values.column(0)[-1].as_py()
        last = None if last_value is None else literal(last_value)
    except (OverflowError, ValueError):  # a date beyond Python's range, a time of day, bytes
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
        condition.meta[SELECTIVITY] = probe.part
        return replace(node, input=Filter(node.input, condition))

    return change(tree) if _top(tree) is not None else None


def _seconds(tree: Operator, context: Context) -> float:
    return elapsed(tree, context.estimator, context.dialect, lambda *_: 1, sources=context)


def _rows_of(tree: Operator) -> Operator:
    """The operator below filters and projections."""
    return _rows_of(tree.input) if isinstance(tree, Filter | Project) else tree


def _top(tree: Operator) -> Sort | None:
    """The Sort whose limit is that of the query; None if there is none."""
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
        sides = tuple(each for each, kinds in zip(tree.inputs, (OF_LEFT, OF_RIGHT), strict=True) if tree.kind in kinds)
        side = next((each for each in sides if needed <= set(each.columns)), None)
        return None if side is None else _origin(side, key)
    return None
