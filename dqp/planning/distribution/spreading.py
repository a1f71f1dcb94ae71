"""Puts exchanges into a tree where it pays to spread work over evaluators.

Every subtree is ``one`` (runs once), ``split`` (each instance has a part of its rows) or ``hashed`` on some columns (a
split where equal values are in one instance). Only Exchange changes this (Volcano, Graefe 1990). An operator that no
case below covers runs once, on one evaluator, with its inputs gathered there; so no subtree that runs once is part of a
fragment with several instances.

A join is partitioned by hash of its keys on both sides, or broadcasts the smaller side if that moves fewer bytes. For a
frequent key value, the left rows are spread in turn and the right rows broadcast. An aggregate has two steps: partial
aggregates where the rows are, then an exchange of the groups and the final aggregates. The rows of an expensive
operation call are spread over all evaluators.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from sqlglot import exp

from dqp.algebra.operators import (
    OF_LEFT,
    OF_RIGHT,
    Aggregate,
    Call,
    Distinct,
    Exchange,
    Filter,
    Item,
    Join,
    Nested,
    Operator,
    Project,
    Remote,
    SetOperation,
    Sort,
    column,
)
from dqp.algebra.types import EXACT
from dqp.planning.context import Context
from dqp.planning.predicates import count_of, partition_keys
from dqp.planning.rules.aggregates import mean, numeric
from dqp.planning.splitting import scanned

_MERGED: dict[Any, Any] = {
    exp.Sum: exp.Sum,
    exp.Count: exp.Sum,
    exp.Min: exp.Min,
    exp.Max: exp.Max,
    exp.LogicalAnd: exp.LogicalAnd,
    exp.LogicalOr: exp.LogicalOr,
}
"""Aggregate functions that can be computed in parts, and the functions that merge the parts."""
Keys = tuple[tuple[str, str], ...]
"""Hashed columns: identifier, and the type for hashing, so that equal values of different types have one hash."""


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Limits for estimates. ``split_rows``: rows of an input from which several evaluators pay; ``broadcast_bytes``:
    most bytes of the smaller side of a join for a broadcast; ``spread_seconds``: seconds of a query's operation calls
    from which their rows are spread."""

    split_rows: float = 200_000.0
    broadcast_bytes: float = 32 << 20
    spread_seconds: float = 0.5


DEFAULT = Thresholds()


@dataclass(frozen=True)
class _Placed:
    """A subtree and the distribution of its rows. ``keys``: hashed columns, in this order."""

    tree: Operator
    how: Literal["one", "split", "hashed"] = "one"
    keys: Keys = ()


class Spreading:
    """``place`` returns a tree with exchanges; ``split`` are the leaves of which each instance reads a part."""

    def __init__(
        self,
        context: Context,
        thresholds: Thresholds,
        seconds: Mapping[str, float],
        heavy: Mapping[str, tuple[exp.Expression, ...]],
        whole: frozenset[Remote],
    ) -> None:
        self._context, self._thresholds = context, thresholds
        self._estimate, self._types = context.estimator.of, context.types
        self._seconds, self._heavy, self._whole = seconds, heavy, whole
        self.split: set[Remote] = set()

    def place(self, node: Operator) -> _Placed:
        if any(each.find(Nested) for each in node.expressions):
            return self._alone(node)
        method = getattr(self, "_" + type(node).__name__.lower(), self._alone)
        placed: _Placed = method(node)
        return placed

    def _alone(self, node: Operator) -> _Placed:
        return _Placed(node.with_inputs(*(self.gathered(self.place(each)) for each in node.inputs)))

    @staticmethod
    def gathered(placed: _Placed) -> Operator:
        return placed.tree if placed.how == "one" else Exchange(placed.tree, "gather")

    def _hashed(self, placed: _Placed, keys: Keys) -> _Placed:
        """The rows hashed by ``keys``."""
        if placed.how == "hashed" and placed.keys == keys:
            return placed
        names = tuple(column(name) for name, _ in keys)
        return _Placed(Exchange(placed.tree, "hash", names), "hashed", keys)

    def _keys(self, names: tuple[str, ...]) -> Keys | None:
        """The columns with their types for hashing; None if one is unknown."""
        types = [hashed_as(self._types.get(each)) for each in names]
        keys = tuple((name, type) for name, type in zip(names, types, strict=True) if type is not None)
        return keys if keys and len(keys) == len(names) else None

    def _remote(self, node: Remote) -> _Placed:
        scan = scanned(node)
        if node in self._whole or scan is None or scan.table.rows < self._thresholds.split_rows:
            return _Placed(node)
        self.split.add(node)
        return _Placed(node, "split")

    def _filter(self, node: Filter) -> _Placed:
        below = self.place(node.input)
        return _Placed(node.with_inputs(below.tree), below.how, below.keys)

    def _project(self, node: Project) -> _Placed:
        below = self.place(node.input)
        partitions = partition_keys(node.expressions)
        if partitions is not None:
            return self._windows(node, below, partitions)
        names = {each.name: name for name, each in node.items if isinstance(each, exp.Column)}
        if below.how == "hashed" and all(each in names for each, _ in below.keys):
            keys = tuple((names[each], type) for each, type in below.keys)
            return _Placed(node.with_inputs(below.tree), "hashed", keys)
        return _Placed(node.with_inputs(below.tree), "one" if below.how == "one" else "split")

    def _windows(self, node: Project, below: _Placed, partitions: frozenset[str]) -> _Placed:
        """Hashed by the partition keys that all windows share; if there are none, it runs once."""
        keys = self._keys(tuple(sorted(partitions)))
        if below.how == "one" or keys is None:
            return _Placed(node.with_inputs(self.gathered(below)))
        return _Placed(node.with_inputs(self._hashed(below, keys).tree), "split")

    def _call(self, node: Call) -> _Placed:
        below = self.place(node.input)
        cost = self._estimate(node.input).rows * self._seconds.get(node.function, 0.0)
        if below.how == "one" and cost > self._thresholds.spread_seconds:
            return _Placed(node.with_inputs(Exchange(below.tree, "spread")), "split")
        return _Placed(node.with_inputs(below.tree), below.how, below.keys)

    def _join(self, node: Join) -> _Placed:
        left, right = self.place(node.left), self.place(node.right)
        left_size, right_size = self._estimate(node.left), self._estimate(node.right)
        if left.how == right.how == "one" and max(left_size.rows, right_size.rows) < self._thresholds.split_rows:
            return _Placed(node.with_inputs(left.tree, right.tree))
        join_keys = self._join_keys(node)
        moved = left_size.bytes + right_size.bytes
        most = (
            self._thresholds.broadcast_bytes if join_keys is None else min(self._thresholds.broadcast_bytes, moved / 4)
        )
        if node.kind in OF_LEFT and left.how != "one" and right_size.bytes <= most:
            tree = node.with_inputs(left.tree, Exchange(right.tree, "broadcast"))
            return _Placed(tree, left.how, left.keys)
        if node.kind in OF_RIGHT and right.how != "one" and left_size.bytes <= most:
            tree = node.with_inputs(Exchange(left.tree, "broadcast"), right.tree)
            return _Placed(tree, right.how, right.keys)
        if join_keys is None:
            return _Placed(node.with_inputs(self.gathered(left), self.gathered(right)))
        left_keys, right_keys = join_keys
        if (skewed := self._skewed(node, left, right, left_keys, right_keys)) is not None:
            return skewed
        one, other = self._hashed(left, left_keys), self._hashed(right, right_keys)
        tree = node.with_inputs(one.tree, other.tree)
        if node.kind in OF_LEFT:
            return _Placed(tree, "hashed", left_keys)
        return _Placed(tree, "hashed", right_keys) if node.kind == "right" else _Placed(tree, "split")

    def _join_keys(self, node: Join) -> tuple[Keys, Keys] | None:
        """The columns that the join's condition makes equal, with types for hashing on both sides."""
        left: list[tuple[str, str]] = []
        right: list[tuple[str, str]] = []
        for one, other in node.equal_columns:
            type = hashed_as(self._types.get(one))
            if type is not None and type == hashed_as(self._types.get(other)):
                left.append((one, type))
                right.append((other, type))
        return (tuple(left), tuple(right)) if left else None

    def _skewed(self, node: Join, left: _Placed, right: _Placed, one: Keys, other: Keys) -> _Placed | None:
        """The join hashed by one column with frequent values. For these, the left rows are spread in turn and the right
        rows are broadcast. So each left row is in one place, with all right rows that may match it."""
        if node.kind not in OF_LEFT:
            return None
        for (key, _), (matching, _) in zip(one, other, strict=True):
            heavy = self._heavy.get(key, ())
            if heavy:
                dealt = Exchange(left.tree, "hash", (column(key),), heavy)
                copied = Exchange(right.tree, "hash", (column(matching),), heavy, copied=True)
                return _Placed(node.with_inputs(dealt, copied), "split")
        return None

    def _aggregate(self, node: Aggregate) -> _Placed:
        below = self.place(node.input)
        plain = {each.name: name for name, each in node.keys if isinstance(each, exp.Column)}
        if below.how == "one" or node.sets is not None:
            return _Placed(node.with_inputs(self.gathered(below)))
        if below.how == "hashed" and all(each in plain for each, _ in below.keys):
            keys = tuple((plain[each], type) for each, type in below.keys)
            return _Placed(node.with_inputs(below.tree), "hashed", keys)
        if all(self._mergeable(each) for _, each in node.aggregates):
            return self._in_two(node, below)
        by = self._keys(tuple(plain)) if len(plain) == len(node.keys) else None
        if by is not None:
            tree = node.with_inputs(self._hashed(below, by).tree)
            return _Placed(tree, "hashed", tuple((plain[each], type) for each, type in by))
        return _Placed(node.with_inputs(self.gathered(below)))

    def _mergeable(self, node: exp.Expression) -> bool:
        """Whether it is only an aggregate that can be computed in parts: without DISTINCT, FILTER or ORDER BY."""
        if isinstance(node.this, exp.Distinct | exp.Order) or node.expressions:
            return False
        return type(node) in _MERGED or (type(node) is exp.Avg and numeric(node.this, self._context))

    def _in_two(self, node: Aggregate, below: _Placed) -> _Placed:
        """Two aggregates: partial ones where the rows are, and one that merges the parts of each group."""
        parts: list[Item] = []
        merged: list[Item] = []
        results: list[Item] = []
        for name, each in node.aggregates:
            results.append((name, self._merged(name, each, parts, merged)))
        partial = Aggregate(below.tree, node.keys, tuple(parts))
        names = tuple(name for name, _ in node.keys)
        self._context.learn(partial)
        keys = self._keys(names)
        if keys is not None and self._estimate(node).rows > self._thresholds.split_rows:
            moved = self._hashed(_Placed(partial, "split"), keys)
        else:
            moved = _Placed(Exchange(partial, "gather"))
        again = Aggregate(moved.tree, tuple((name, column(name)) for name in names), tuple(merged))
        tree = Project(again, (*((name, column(name)) for name in names), *results))
        return _Placed(tree, moved.how, moved.keys)

    def _merged(self, name: str, node: exp.Expression, parts: list[Item], merged: list[Item]) -> exp.Expression:
        """Adds the two steps of an aggregate; returns the expression for its result over the second step."""
        if isinstance(node, exp.Avg):
            total = self._merged(name, exp.Sum(this=node.this), parts, merged)
            count = self._merged(name, exp.Count(this=node.this, big_int=True), parts, merged)
            return mean(total, count, node.this, self._context)
        part, whole = self._context.names.new(f"{name} part"), self._context.names.new(name)
        parts.append((part, node))
        merged.append((whole, _MERGED[type(node)](this=column(part))))
        return count_of(column(whole)) if isinstance(node, exp.Count) else column(whole)

    def _distinct(self, node: Distinct) -> _Placed:
        below = self.place(node.input)
        if below.how in ("one", "hashed"):
            return _Placed(node.with_inputs(below.tree), below.how, below.keys)
        keys = self._keys(node.columns)
        if keys is not None:
            return _Placed(Distinct(self._hashed(_Placed(Distinct(below.tree), "split"), keys).tree), "hashed", keys)
        return _Placed(node.with_inputs(Exchange(Distinct(below.tree), "gather")))

    def _sort(self, node: Sort) -> _Placed:
        below = self.place(node.input)
        if below.how == "one":
            return _Placed(node.with_inputs(below.tree))
        tree = below.tree
        if node.limit is not None:
            tree = Sort(tree, node.keys, node.limit + node.offset)
        return _Placed(node.with_inputs(Exchange(tree, "gather")))

    def _setoperation(self, node: SetOperation) -> _Placed:
        left, right = self.place(node.left), self.place(node.right)
        if node.kind == "union" and node.all and left.how != "one" and right.how != "one":
            return _Placed(node.with_inputs(left.tree, right.tree), "split")
        return _Placed(node.with_inputs(self.gathered(left), self.gathered(right)))


def hashed_as(type: str | None) -> str | None:
    """The type for hashing a column of this type. Equal values have equal hashes if their types for hashing are
    equal."""
    return "HUGEINT" if type in EXACT else type
