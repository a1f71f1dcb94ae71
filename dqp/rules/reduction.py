"""Dynamic semi-joins: the keys that a small input holds become a filter of the statement that a large one will send.

``reducible`` finds where that may pay, by estimate; once the small input (the build) has been read, ``reduced`` adds
the filter (Mackert and Lohman's semi-join, decided while the query runs). It is a range of the keys, or a list of them
where they are few or lie far apart; a build without keys makes the probe a statement that gives no rows. The filter
removes only rows that no row of the build could have matched, and the join stays: where a filter says too
little, nothing but time is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dqp.constants import literal, number
from dqp.cost import ROUND_TRIP, costs
from dqp.estimates import Estimate
from dqp.keys import among
from dqp.operators import (
    Aggregate,
    Call,
    Distinct,
    Filter,
    Inline,
    Join,
    Operator,
    Project,
    Remote,
    Sort,
    column,
    conjunction,
    conjuncts,
    rewritten,
    walk,
)
from dqp.rules.conditions import order_conditions
from dqp.rules.context import EXACT, Context, same_values
from dqp.rules.filters import push_filters
from dqp.rules.implode import refused

MOST_LISTED = 1_000
"""Keys that are written as a list: what every source compares a row with fast."""
MOST_NUMBERS = {"postgresql": 50_000, "mariadb": 20_000, "duckdb": 20_000, "sqlite": 20_000}
"""Whole numbers that are, where the dialect's database looks them up in a table of hashes, a sorted list or a tree."""
NUMBER = 5e-6
"""Seconds that a number of a long list costs, from here to the source's plan."""
LARGEST_PART = 0.8
"""The part of the probe's rows that may be left where a filter is to pay."""
_ORDERED = frozenset({"DATE", "TIMESTAMP"})
_BITS = {"TINYINT": 8, "SMALLINT": 16, "INTEGER": 32, "BIGINT": 64}


@dataclass(frozen=True)
class Reduction:
    """``build``: a subtree to be read, or tuples at hand. ``pairs``: (identifier in the build, identifier in the probe)
    that the join says are equal. ``saved``: seconds, by estimate."""

    build: Remote | Inline
    probe: Remote
    pairs: tuple[tuple[str, str], ...]
    saved: float


def reducible(tree: Operator, context: Context, limit: float) -> list[Reduction]:
    """The reductions that may pay, the best first. ``limit``: bytes that a build may have."""
    context.learn(tree)
    found: dict[tuple[Remote | Inline, Remote], list[tuple[str, str]]] = {}
    for join in walk(tree):
        if not isinstance(join, Join):
            continue
        for one, other in _equal(join):
            left, right = _source_of(join.left, one), _source_of(join.right, other)
            if left is None or right is None or not _comparable(left[1], right[1], context):
                continue
            if isinstance(left[0], Remote) and join.kind in ("inner", "semi", "right") and _through(join.left, one):
                found.setdefault((right[0], left[0]), []).append((right[1], left[1]))
            if (
                isinstance(right[0], Remote)
                and join.kind in ("inner", "semi", "left", "anti")
                and _through(join.right, other)
            ):
                found.setdefault((left[0], right[0]), []).append((left[1], right[1]))
    made = [
        Reduction(build, probe, tuple(pairs), saved)
        for (build, probe), pairs in found.items()
        if build != probe and (saved := _saved(build, probe, pairs, context, limit)) > 0
    ]
    return sorted(made, key=lambda each: -each.saved)


def reduced(tree: Operator, reduction: Reduction, keys: pa.Table, context: Context) -> Operator:
    """The tree with the probe's statement filtered; the same tree where no filter pays. ``keys``: the build's rows."""
    probe = reduction.probe
    if not keys.num_rows or any(keys.column(one).null_count == keys.num_rows for one, _ in reduction.pairs):
        smaller: Operator = Sort(probe.tree, (), 0)
    else:
        conditions = [
            made for one, other in reduction.pairs for made in _conditions(keys.column(one), other, probe, context)
        ]
        condition = conjunction(conditions)
        if condition is None:
            return tree
        smaller = order_conditions(push_filters(Filter(probe.tree, condition), context), context)
    reason = refused(smaller, probe.source, context)
    if reason is not None:
        context.remark(f"{probe.source}: {reason}")
        return tree
    instead = replace(probe, tree=smaller)
    by = reduction.build.source if isinstance(reduction.build, Remote) else "tuples at hand"
    context.remark(f"{probe.source}: reduced by {keys.num_rows:,} rows of {by}")
    return rewritten(tree, lambda each: instead if each == probe else each)


def at_hand(build: Inline) -> pa.Table:
    """The tuples, their columns by identifier."""
    return build.data.select([name for _, name in build.items]).rename_columns(list(build.columns))


def _equal(join: Join) -> Iterator[tuple[str, str]]:
    """The columns (left, right) that the join's condition says are equal."""
    left, right = frozenset(join.left.columns), frozenset(join.right.columns)
    for each in conjuncts(join.condition):
        if isinstance(each, exp.EQ) and isinstance(each.this, exp.Column) and isinstance(each.expression, exp.Column):
            one, other = each.this.name, each.expression.name
            if one in left and other in right:
                yield one, other
            elif other in left and one in right:
                yield other, one


def leaf_of(tree: Operator, name: str) -> tuple[Remote, str] | None:
    """The remote subtree that a column comes from, and its name there: all values of the column are among those."""
    if isinstance(tree, Remote):
        return tree, name
    below = _below(tree, name)
    return None if below is None else leaf_of(*below)


def _source_of(tree: Operator, name: str) -> tuple[Remote | Inline, str] | None:
    """As ``leaf_of``, or the tuples at hand that a column comes from."""
    while not isinstance(tree, Remote | Inline):
        below = _below(tree, name)
        if below is None:
            return None
        tree, name = below
    return tree, name


def _below(tree: Operator, name: str) -> tuple[Operator, str] | None:
    """Where a column comes from, one operator further down."""
    if isinstance(tree, Filter | Distinct | Sort | Call):
        return (tree.input, name) if name in tree.input.columns else None
    if isinstance(tree, Join):
        return next(((each, name) for each in tree.inputs if name in each.columns), None)
    if isinstance(tree, Project | Aggregate):
        if isinstance(tree, Aggregate) and tree.sets is not None:
            return None
        items = dict(tree.items if isinstance(tree, Project) else tree.keys)
        made = items.get(name)
        return (tree.input, made.name) if isinstance(made, exp.Column) else None
    return None


def _through(tree: Operator, name: str) -> bool:
    """Whether rows may be taken away from the leaf by this column instead of from the tree."""
    if isinstance(tree, Remote):
        return True
    if isinstance(tree, Sort) and (tree.limit is not None or tree.offset):
        return False
    if isinstance(tree, Project) and any(each.find(exp.Window) for each in tree.expressions):
        return False
    below = _below(tree, name)
    if below is None:
        return False
    if isinstance(tree, Join):
        kept = {"inner": (0, 1), "semi": (0,), "anti": (0,), "left": (0,), "right": (1,), "full": ()}[tree.kind]
        if all(below[0] is not tree.inputs[each] for each in kept):
            return False
    return _through(*below)


def _comparable(one: str, other: str, context: Context) -> bool:
    types = context.types.get(one), context.types.get(other)
    if not same_values(*types):
        return False
    return all(
        each in EXACT or each in _ORDERED or each == "VARCHAR" or each.startswith("DECIMAL") for each in map(str, types)
    )


def _saved(
    build: Remote | Inline, probe: Remote, pairs: Sequence[tuple[str, str]], context: Context, limit: float
) -> float:
    """Seconds that fetching the probe takes less, by estimate; 0 where it is not worth to wait for the build."""
    small, large = context.estimator.of(build), context.estimator.of(probe)
    if small.bytes > limit or small.rows > large.rows:
        return 0.0
    part = 1.0
    for one, other in pairs:
        keys, values = small.columns[one], large.columns[other]
        count = min(small.rows, keys.distinct or small.rows)
        part = min(part, count / (values.distinct or max(1.0, large.rows * 0.5)))
        if keys.low is not None and keys.high is not None and values.low is not None and values.high is not None:
            part = min(part, _share(keys.low, keys.high, values.low, values.high))
    of = costs(context.dialect(probe.source))
    saved = (1.0 - min(part, 1.0)) * large.rows * (of.row + of.byte * large.width)
    return saved if part <= LARGEST_PART and saved > ROUND_TRIP else 0.0


def _share(low: float, high: float, lowest: float, highest: float) -> float:
    """The part of a range that another one covers."""
    if highest <= lowest:
        return 1.0
    return max(0.0, min(1.0, (min(high, highest) - max(low, lowest)) / (highest - lowest)))


def _conditions(keys: pa.ChunkedArray, name: str, remote: Remote, context: Context) -> list[exp.Expression]:
    """What the keys say about a column of the probe; nothing where it would keep most of the rows."""
    probe, type = context.estimator.of(remote), context.types.get(name, "")
    values = pc.unique(keys.combine_chunks() if keys.num_chunks != 1 else keys.chunk(0)).drop_null()
    count = len(values)
    statistics = probe.columns.get(name)
    distinct = statistics.distinct if statistics is not None else None
    listed = count <= MOST_LISTED and (distinct is None or count <= LARGEST_PART * distinct)
    if type == "VARCHAR":
        return [_list(values, name)] if listed else []
    ends = pc.min_max(values)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low == high:
        return [exp.EQ(this=column(name), expression=literal(low))]
    span: list[exp.Expression] = [
        exp.GTE(this=column(name), expression=literal(low)),
        exp.LTE(this=column(name), expression=literal(high)),
    ]
    if pa.types.is_integer(values.type) and high - low + 1 == count:
        return span
    if listed:
        return [_list(values, name)]
    if _many(values, type, distinct, probe, context.dialect(remote.source)):
        assert distinct is not None
        return [among(name, sorted(values.to_pylist()), count / distinct)]
    first, last = number(low), number(high)
    if first is None or last is None or statistics is None or statistics.low is None or statistics.high is None:
        return span
    return span if _share(first, last, statistics.low, statistics.high) <= LARGEST_PART else []


def _many(values: pa.Array, type: str, distinct: float | None, probe: Estimate, dialect: str) -> bool:
    """Whether a long list of whole numbers pays."""
    width = _BITS.get(type)
    if width is None or not pa.types.is_signed_integer(values.type) or values.type.bit_width > width:
        return False
    count = len(values)
    if distinct is None or count > min(LARGEST_PART * distinct, MOST_NUMBERS.get(dialect, MOST_LISTED)):
        return False
    of = costs(dialect)
    return (1 - count / distinct) * probe.rows * (of.row + of.byte * probe.width) > NUMBER * count


def _list(values: pa.Array, name: str) -> exp.Expression:
    return exp.In(this=column(name), expressions=[literal(each) for each in sorted(values.to_pylist())])
