"""Adds the filter of a dynamic semi-join: the keys of a small input filter the statement for a large one.

When the small input (the build) of a step of the ``program`` has been read, ``reduced`` adds the filter (Mackert and
Lohman's semi-join, decided while the query runs): a range of the keys, a list if they are few or far apart, or a table.
If the build has no keys, the probe's statement gives no rows. The filter drops only rows that no row of the build
matches, and the join stays; so a filter that drops too little costs only time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dqp.algebra.constants import ends, literal, number
from dqp.algebra.dialects import MOST_LISTED
from dqp.algebra.keys import in_list, in_numbers, reducing
from dqp.algebra.operators import Inline, Operator, Remote, Sort, column
from dqp.algebra.trees import rewritten
from dqp.planning.context import Context
from dqp.planning.costing.columns import ColumnStatistics
from dqp.planning.costing.cost import costs
from dqp.planning.costing.key_lists import BITS, LARGEST_PART, NUMBER, most_listed
from dqp.planning.costing.reductions import reducible
from dqp.planning.predicates import filtered, with_plans
from dqp.planning.rules.conditions import order_conditions
from dqp.planning.rules.filters import push_filters
from dqp.planning.rules.subtrees import accepted
from dqp.planning.semijoins.forms import in_words, together
from dqp.planning.semijoins.program import Reduction, is_looked_up, share

FEW = 16
"""Whole numbers up to which each is an expression of its own."""
DISTINCT = 0.1
"""Distinct values of a column for each row, where nobody says how many there are."""


def reduced(reduction: Reduction, keys: pa.Table, context: Context) -> Remote:
    """The probe with a filter; the same object if no filter pays. ``keys``: the build's rows."""
    probe, rows = reduction.probe, keys.num_rows
    if not rows or any(keys.column(one).null_count == rows for one, _ in reduction.pairs):
        return _with(reduction, Sort(probe.tree, (), 0), rows, "no row is left", context) or probe
    build = context.estimator.of(reduction.build)
    conditions = [
        condition
        for one, other in reduction.pairs
        for condition in _conditions(keys.column(one), build.columns.get(one), other, probe, context)
    ]
    form = together(reduction, keys, conditions, context)
    smaller = None if form is None else _filtered(reduction, form, rows, context)
    if smaller is None and conditions:
        smaller = _filtered(reduction, conditions, rows, context)
    return smaller or probe


def _filtered(reduction: Reduction, conditions: list[exp.Expression], rows: int, context: Context) -> Remote | None:
    """The probe with the conditions; None if the source cannot run that."""
    reduced_tree = filtered(reduction.probe.tree, map(reducing, conditions))
    smaller = order_conditions(push_filters(reduced_tree, context), context)
    return _with(reduction, smaller, rows, in_words(conditions), context)


def _with(reduction: Reduction, smaller: Operator, rows: int, form: str, context: Context) -> Remote | None:
    probe = reduction.probe
    if not accepted(smaller, probe.source, context):
        return None
    by = reduction.build.source if isinstance(reduction.build, Remote) else "tuples at hand"
    context.remark(f"{probe.source}: reduced by {rows:,} rows of {by}: {form}")
    return replace(probe, tree=smaller)


def exchanged(tree: Operator, instead: Mapping[Remote, Remote]) -> Operator:
    """The tree, and the plans nested in its expressions, with other statements in place of these."""

    def change(node: Operator) -> Operator:
        if isinstance(node, Remote):
            return instead.get(node, node)
        if not node.subqueries:
            return node
        return node.with_expressions(lambda each: with_plans(each, lambda nested: exchanged(nested.plan, instead)))

    return rewritten(tree, change) if instead else tree


def at_hand(build: Inline) -> pa.Table:
    """The tuples with identifiers as the names of their columns."""
    return build.data.select([name for _, name in build.items]).rename_columns(list(build.columns))


def _conditions(
    keys: pa.ChunkedArray, expected: ColumnStatistics | None, name: str, remote: Remote, context: Context
) -> list[exp.Expression]:
    """The conditions of the keys on a column of the probe; none if they would keep most of the rows. ``expected``:
    what was known of the keys, whose ends stand for those of the column where its source does not say them."""
    probe, type = context.estimator.of(remote), context.types.get(name, "")
    values = pc.unique(keys.combine_chunks() if keys.num_chunks != 1 else keys.chunk(0)).drop_null()
    count = len(values)
    statistics = probe.columns.get(name)
    distinct = statistics.distinct if statistics is not None else None
    listed = count <= MOST_LISTED and (distinct is None or count <= LARGEST_PART * distinct)
    part = None if distinct is None else min(1.0, count / max(1.0, distinct))
    if type == "VARCHAR":
        return [in_list(name, map(literal, sorted(values.to_pylist())), part)] if listed else []
    extremes = ends(values)
    if extremes is None:
        return []
    low, high = extremes
    if low == high:
        return [exp.EQ(this=column(name), expression=literal(low))]
    span: list[exp.Expression] = [
        exp.GTE(this=column(name), expression=literal(low)),
        exp.LTE(this=column(name), expression=literal(high)),
    ]
    if pa.types.is_integer(values.type) and high - low + 1 == count:
        return span
    if listed and (part is None or count <= FEW or not _whole(values, type)):
        return [in_list(name, map(literal, sorted(values.to_pylist())), part)]
    if listed and part is not None:
        return [in_numbers(name, sorted(values.to_pylist()), part)]
    distinct = DISTINCT * probe.rows if distinct is None else distinct
    dialect, looked_up = context.dialect(remote.source), is_looked_up(remote.tree, name)
    seconds = reducible(remote, context.estimator, context, looked_up)
    compared = 0.0 if looked_up else probe.rows * costs(dialect).listed * math.log2(count)
    if _many(values, type, distinct, seconds, compared, dialect):
        return [in_numbers(name, sorted(values.to_pylist()), min(1.0, count / max(1.0, distinct)))]
    first, last = number(low), number(high)
    for each in (statistics, expected):
        if first is not None and last is not None and each is not None and None not in (each.low, each.high):
            return span if share(first, last, each) <= LARGEST_PART else []
    return span


def _many(values: pa.Array, type: str, distinct: float, seconds: float, compared: float, dialect: str) -> bool:
    """Whether a list of many whole numbers pays. ``seconds``: those that the probe's rows take; ``compared``: those to
    compare all of them with the list."""
    count = len(values)
    if not _whole(values, type) or count > min(LARGEST_PART * distinct, most_listed(type, dialect)):
        return False
    return (1 - count / distinct) * seconds > NUMBER * count + compared


def _whole(values: pa.Array, type: str) -> bool:
    """Whether the values are whole numbers of the type."""
    width: int = values.type.bit_width if pa.types.is_signed_integer(values.type) else 128
    return width <= BITS.get(type, 0)
