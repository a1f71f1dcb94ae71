"""Chooses the form of the keys of a dynamic semi-join: a key table in the probe's statement, or lists and ranges.

A table costs less for many keys, for keys of several columns (it has their exact combinations), and for texts.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dqp.algebra.constants import ends, number, value
from dqp.algebra.keys import MOST_BYTES, MOST_KEYS, Keys, KeyTable, Members, in_table, number_of_keys
from dqp.algebra.operators import Remote, Scan
from dqp.algebra.trees import walk
from dqp.algebra.types import arrow_type
from dqp.planning.context import Context
from dqp.planning.costing.columns import UNKNOWN
from dqp.planning.costing.cost import ROUND_TRIP, costs
from dqp.planning.costing.estimates import Estimate
from dqp.planning.costing.key_lists import LARGEST_PART, NUMBER, table_seconds
from dqp.planning.costing.reductions import reducible
from dqp.planning.predicates import filtered
from dqp.planning.semijoins.program import Reduction, is_looked_up, share


def together(
    reduction: Reduction, keys: pa.Table, single: Sequence[exp.Expression], context: Context
) -> list[exp.Expression] | None:
    """The conditions with a key table; None if ``single``, the conditions for each column alone, cost less, or if the
    source accepts no tables."""
    probe = reduction.probe
    dialect = context.dialect(probe.source)
    if costs(dialect).table_key is None or not context.takes_tables(probe.source):
        return None
    estimate = context.estimator.of(probe)
    pairs = _independent(reduction, context)
    looked_up = any(is_looked_up(probe.tree, other) for _, other in pairs)
    whole = reducible(probe, context.estimator, context, looked_up)
    most = _seconds(single, reduction, whole, context)
    table = _combinations(keys, pairs, context) if most > ROUND_TRIP else None
    if table is None or _exact(single, table):
        return None
    part = _part(table, [other for _, other in pairs], estimate)
    seconds = part * whole + table_seconds(table.num_rows, estimate.rows, part, looked_up, dialect) + ROUND_TRIP
    if part > LARGEST_PART or seconds >= most:
        return None
    ends = [each for each in single if isinstance(each, exp.GTE | exp.LTE)]
    within = part / max(part, _kept(ends, reduction, context))  # of what the ends keep
    return [*ends, in_table([other for _, other in pairs], _key_table(probe, table, context), within)]


def _exact(single: Sequence[exp.Expression], table: pa.Table) -> bool:
    """Whether the conditions are a range that has each of its values among the keys."""
    if table.num_columns > 1 or len(single) != 2:
        return False
    first, last = single
    if not isinstance(first, exp.GTE) or not isinstance(last, exp.LTE):
        return False
    low, high = value(first.expression), value(last.expression)
    return isinstance(low, int) and isinstance(high, int) and high - low + 1 == table.num_rows


def _key_table(probe: Remote, data: pa.Table, context: Context) -> KeyTable:
    """The query's table of these keys, whose name no table of the statement has, here or in a replica, because it would
    hide that table."""
    tables = [each.table for each in walk(probe.tree) if isinstance(each, Scan)]
    taken = {name.lower() for each in tables for name in (each.name, *(copy for _, _, copy in each.replicas))}
    for each in context.key_tables:
        if each.name not in taken and each.data.equals(data):
            return each
    while (name := context.names.new("dqp_keys")).lower() in taken:
        pass
    context.key_tables.append(KeyTable(name, data))
    return context.key_tables[-1]


def _seconds(single: Sequence[exp.Expression], reduction: Reduction, whole: float, context: Context) -> float:
    """``whole``: those of all rows of the probe."""
    return _kept(single, reduction, context) * whole + NUMBER * sum(map(number_of_keys, single))


def _kept(conditions: Sequence[exp.Expression], reduction: Reduction, context: Context) -> float:
    """The part of the probe's rows that the conditions keep."""
    rows, tree = context.estimator.rows, reduction.probe.tree
    return min(1.0, rows(filtered(tree, conditions)) / max(1.0, rows(tree))) if conditions else 1.0


def _independent(reduction: Reduction, context: Context) -> list[tuple[str, str]]:
    """The pairs without redundant ones: one pair for columns that are equal within a side."""
    build, probe = context.estimator.of(reduction.build).same, context.estimator.of(reduction.probe).same
    by_columns: dict[tuple[str, str], tuple[str, str]] = {}
    for one, other in reduction.pairs:
        by_columns.setdefault((build.get(one, one), probe.get(other, other)), (one, other))
    return list({other: (one, other) for one, other in by_columns.values()}.values())


def _combinations(keys: pa.Table, pairs: Sequence[tuple[str, str]], context: Context) -> pa.Table | None:
    """The distinct combinations without NULLs, in the types of the probe; None if there are too many, or if the probe's
    type cannot hold one of them."""
    columns = {}
    for at, (one, other) in enumerate(pairs, 1):
        column, wanted = keys.column(one), arrow_type(context.types.get(other, "VARCHAR"))
        try:
            columns[f"k{at}"] = column.cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None
        if pa.types.is_string(wanted) and pc.any(pc.match_substring(columns[f"k{at}"], "\0")).as_py():
            return None
        if pa.types.is_temporal(wanted) and ends(columns[f"k{at}"]) is None:  # not every database can hold such dates
            return None
    table = pa.table(columns).drop_null()
    table = table.group_by(table.column_names).aggregate([])
    if not 0 < table.num_rows <= MOST_KEYS or table.nbytes > MOST_BYTES:
        return None
    return table.sort_by([(each, "ascending") for each in table.column_names])


def _part(table: pa.Table, names: Sequence[str], probe: Estimate) -> float:
    """The part of the probe's rows that the keys keep; 1 if the number of the probe's distinct keys is unknown."""
    columns = [probe.columns.get(each, UNKNOWN) for each in names]
    known = [each for each, column in zip(names, columns, strict=True) if column.distinct is not None]
    part = min(1.0, float(table.num_rows) / probe.distinct(known)) if known else 1.0
    for column, key in zip(columns, table.columns, strict=True):
        if not pa.types.is_string(key.type):
            low, high = map(number, ends(key) or (None, None))
            if low is not None and high is not None:
                part = min(part, share(low, high, column))
    return float(part)


def in_words(conditions: Sequence[exp.Expression]) -> str:
    """The form of a reduction as a text for EXPLAIN."""
    words: dict[str, None] = {}
    for each in conditions:
        if isinstance(each, Members):
            names = ", ".join(one.name for one in each.expressions)
            words[f"{number_of_keys(each):,} keys of {names} as a temporary table"] = None
        elif isinstance(each, Keys | exp.In):
            words[f"{number_of_keys(each):,} keys of {each.this.name} as a list"] = None
        else:
            words[f"a range of {each.this.name}"] = None
    return ", ".join(words)
