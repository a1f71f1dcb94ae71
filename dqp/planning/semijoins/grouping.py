"""Groups the rows of a large input in its source, where keys that have been read make its joins filters.

A join with rows at hand only filters if their keys are unique and nothing above uses their other columns. Where the
statements on its other side have exactly these keys as a condition, it does nothing more, and the plan can do without
it. What stood between an aggregate and its rows is gone then: the plan is made again from the aggregate down, and taken
if it takes less time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from sqlglot import exp

from dqp.algebra.chains import conjuncts
from dqp.algebra.constants import value
from dqp.algebra.keys import Keys, number_of_keys
from dqp.algebra.operators import (
    Aggregate,
    Distinct,
    Filter,
    Inline,
    Join,
    Names,
    Operator,
    Remote,
    Scan,
    SetOperation,
    Verbatim,
    column,
)
from dqp.algebra.table import Table
from dqp.algebra.trees import identifiers, remotes, rewritten, used, walk
from dqp.algebra.types import EXACT
from dqp.planning.context import Context
from dqp.planning.costing.elapsed import elapsed, statement_keys
from dqp.planning.predicates import comparison, equality
from dqp.planning.rules.aggregates import split_aggregates
from dqp.planning.rules.places import place
from dqp.planning.rules.subtrees import is_plain, push_subtrees
from dqp.planning.semijoins.program import Leaf, commutes, origin, targets

BETTER = 0.8
"""The part of the seconds that the other plan may take at most."""
WORTHWHILE = 0.03
"""Least seconds to fetch the rows that a source might group."""
_LISTED = frozenset({"DATE", "VARCHAR"})


def group_there(tree: Operator, read: Mapping[Leaf, pa.Table], begun: Set[Remote], context: Context) -> Operator:
    """The tree with aggregates in sources as far as that pays. ``read``: the rows of builds; ``begun``: subtrees that
    are being read already."""
    if not read:
        return tree

    def change(node: Operator) -> Operator:
        return _group(node, tree, read, begun, context) if isinstance(node, Aggregate) else node

    return rewritten(tree, change)


def _group(
    aggregate: Aggregate, around: Operator, read: Mapping[Leaf, pa.Table], begun: Set[Remote], context: Context
) -> Operator:
    """The aggregate, or the same without joins that only filter."""
    if _seconds_to_fetch({*remotes(aggregate)} - begun, context) < WORTHWHILE:
        return aggregate
    counted = _used(aggregate)
    filters: dict[int, tuple[Operator, Sequence[Remote]]] = {}
    for join in walk(aggregate):
        found = _only_filters(join, read, counted, context) if isinstance(join, Join) else None
        if found is not None and begun.isdisjoint(found[1]):
            filters[id(join)] = found
    if not filters:
        return aggregate
    probes = {each for _, leaves in filters.values() for each in leaves}
    if _seconds_to_fetch(probes, context) < WORTHWHILE:
        return aggregate
    sources = {each.source for each in probes}
    # A table that is only read may be read there once more.
    working = {each for each in begun if not is_plain(each.tree)}

    def tree_of(node: Operator) -> Operator:
        return node.tree if isinstance(node, Remote) and node.source in sources and node not in working else node

    fetched = _without(aggregate, filters)
    whole = rewritten(fetched, tree_of)
    own = replace(context, names=Names([*identifiers(around), *identifiers(whole)]), remarks=[])
    split = split_aggregates(whole, own)
    if split is whole and place(whole) is None:
        return aggregate
    if any(_stands_again(each, around, context) for each in probes):
        return aggregate
    planned = push_subtrees(split, own)
    before, after = _seconds(fetched, context), _seconds(planned, context)
    if after > BETTER * before or not working & {*remotes(fetched)} <= {*remotes(planned)}:
        return aggregate
    where = ", ".join(sorted(sources))
    context.remark(f"{where}: about {before:.2g} s with groups made here, {after:.2g} s there: the keys only filter")
    return planned


def _seconds_to_fetch(leaves: Set[Remote], context: Context) -> float:
    return sum(context.estimator.fetch(each, context.dialect(each.source)) for each in leaves)


def _without(tree: Operator, joins: Mapping[int, tuple[Operator, Sequence[Remote]]]) -> Operator:
    """The tree with only one side of these joins."""
    while (found := joins.get(id(tree))) is not None:
        tree = found[0]
    return tree.with_inputs(*(_without(each, joins) for each in tree.inputs))


def _stands_again(remote: Remote, tree: Operator, context: Context) -> bool:
    """Whether the statement stands in the tree twice, where it runs once."""
    tables = _tables(remote)
    alike = [each for each in remotes(tree) if _tables(each) == tables]
    keys = statement_keys(alike, context.dialect) if len(alike) > 1 else {}
    return sum(each == remote or keys.get(each) == keys.get(remote, each) for each in alike) > 1


def _tables(remote: Remote) -> list[Table]:
    return [each.table for each in walk(remote.tree) if isinstance(each, Scan)]


def _seconds(tree: Operator, context: Context) -> float:
    context.learn(tree)
    return elapsed(tree, context.estimator, context.dialect, lambda *_: 1, sources=context)


def _used(tree: Operator) -> Counter[str]:
    """How many of the tree's operators use each column; what needs all columns uses each twice."""
    names: Counter[str] = Counter()
    for node in walk(tree):
        names.update(frozenset().union(*map(used, node.expressions)))
        if isinstance(node, Distinct | SetOperation | Verbatim):
            for each in node.inputs:
                names.update(2 * each.columns)
    return names


def _only_filters(
    join: Join, read: Mapping[Leaf, pa.Table], counted: Mapping[str, int], context: Context
) -> tuple[Operator, Sequence[Remote]] | None:
    """The other side of a join with rows at hand that does no more than the conditions of statements on that side, and
    these statements; else None."""
    sides = [(join.right, join.left)] if join.kind in ("inner", "semi") else []
    sides += [(join.left, join.right)] if join.kind == "inner" else []
    pair = None if join.condition is None else equality(join.condition)
    for build, other in sides:
        if pair is None or not isinstance(build, Remote | Inline) or build not in read:
            continue
        key, name = pair if pair[0] in build.columns else pair[::-1]
        if any(counted[each] > (each == key) for each in build.columns) or not _alike(key, name, context):
            continue
        leaves = list(targets(other, name, context))
        values = read[build].column(key).combine_chunks().drop_null()
        keys = pc.unique(values)
        if (join.kind == "semi" or len(keys) == len(values)) and all(
            each and _asks(each[0].tree, each[1], keys) for each in leaves
        ):
            return other, [each[0] for each in leaves if each is not None]
    return None


def _alike(one: str, other: str, context: Context) -> bool:
    types = {context.types.get(one), context.types.get(other)}
    return types <= EXACT or (len(types) == 1 and types <= _LISTED)


def _asks(tree: Operator, name: str, keys: pa.Array) -> bool:
    """Whether the tree gives no rows but those with one of the keys in this column."""
    ends: dict[type[exp.Expression], int] = {}
    while (lower := origin(tree, name)) is not None and commutes(tree, *lower):
        for each in conjuncts(tree.condition) if isinstance(tree, Filter) else ():
            listed = _listed(each, name) if number_of_keys(each) <= len(keys) else None
            if listed is not None and listed <= frozenset(keys.to_pylist()):
                return True
            compared = comparison(each)
            if compared is not None and compared[0] == name and type(end := value(compared[2])) is int:
                ends[compared[1]] = end
        tree, name = lower
    if isinstance(tree, SetOperation) and name in tree.names:
        at = tree.names.index(name)
        return all(_asks(each, each.columns[at], keys) for each in tree.inputs)
    low, high = ends.get(exp.GTE), ends.get(exp.LTE)
    if low is None or high is None or not pa.types.is_integer(keys.type):
        return False
    within = pc.sum(pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high))).as_py()
    return bool(within == high - low + 1)


def _listed(condition: exp.Expression, name: str) -> frozenset[Any] | None:
    """The values that the condition asks for in the column; None where it is no list of them."""
    compared = comparison(condition)
    if compared is not None:
        return frozenset({value(compared[2])}) if compared[:2] == (name, exp.EQ) else None
    if not isinstance(condition, exp.In | Keys) or condition.this != column(name):
        return None
    if isinstance(condition, Keys):
        return frozenset(map(int, condition.text_of_numbers.split(",")))
    listed = frozenset(map(value, condition.expressions))
    return listed if listed and None not in listed else None
