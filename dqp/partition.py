"""Spreads a tree over evaluators: puts exchanges where they pay and cuts the tree at them into fragments.

Every subtree is ``one`` (runs once), ``split`` (each instance has a part of its rows) or ``hashed`` on some columns (a
split in which equal values meet in one instance). Exchange is the only operator that changes this (Volcano, Graefe
1990). What the cases below do not cover runs once, on one evaluator, with its inputs gathered there.

A join is split by hash of its keys on both sides, or by sending the smaller side to everybody where that moves fewer
bytes. An aggregate is made in part where its rows are, and finished after an exchange of the groups. An operation call
that is dear is spread over all evaluators.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

from sqlglot import exp

from dqp.cost import Estimator
from dqp.operators import (
    Aggregate,
    Call,
    Distinct,
    Exchange,
    ExchangeKind,
    Filter,
    Join,
    Nested,
    Operator,
    Project,
    Receive,
    Remote,
    SetOperation,
    Sort,
    column,
    conjuncts,
    walk,
)
from dqp.splitting import scanned

SPLIT_ROWS = 200_000.0
"""Estimated rows of an input from which it is worth to have several evaluators work on it."""
BROADCAST_BYTES = 32 << 20
"""Estimated bytes up to which the smaller side of a join may be sent to everybody."""
SPREAD_SECONDS = 0.5
"""What the operation calls of a query must cost, by estimate, before their rows are spread."""
_MERGED: dict[Any, Any] = {exp.Sum: exp.Sum, exp.Count: exp.Sum, exp.Min: exp.Min, exp.Max: exp.Max}
"""Aggregate functions that can be made in parts, and what makes one of the parts."""


@dataclass(frozen=True)
class Output:
    """Where a fragment's rows go: ``keys`` are identifiers of hashed columns."""

    kind: ExchangeKind
    keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fragment:
    """What one evaluator runs at once: a tree whose leaves are remote statements, tuples at hand and other fragments'
    rows. ``instances``: how many run; of n, the i-th reads the i-th part of the scans named in ``parted``. ``output``
    is None for the root."""

    id: int
    tree: Operator
    instances: int
    output: Output | None
    parted: tuple[Remote, ...] = ()

    @property
    def producers(self) -> tuple[int, ...]:
        return tuple(node.fragment for node in walk(self.tree) if isinstance(node, Receive))


@dataclass(frozen=True)
class Plan:
    """``fragments``: each after those it reads from; the last is the root, which gives the answer."""

    fragments: tuple[Fragment, ...]

    @property
    def root(self) -> Fragment:
        return self.fragments[-1]


@dataclass(frozen=True)
class _Placed:
    """A subtree and how its rows lie. ``keys``: identifiers whose equal values lie together, in this order."""

    tree: Operator
    how: Literal["one", "split", "hashed"] = "one"
    keys: tuple[str, ...] = ()


def cut(
    tree: Operator,
    estimator: Estimator,
    types: Mapping[str, str],
    evaluators: int,
    *,
    seconds: Mapping[str, float] | None = None,
) -> Plan:
    """The plan of an optimised tree for so many evaluators. ``types``: DuckDB types of identifiers, as far as they are
    known; columns of other types are never hashed. ``seconds``: what a row costs in an operation, by its name."""
    if evaluators < 2:
        return Plan((Fragment(0, tree, 1, None),))
    spreading = _Spreading(estimator, types, seconds or {})
    placed = spreading.place(tree)
    root = placed.tree if placed.how == "one" else Exchange(placed.tree, "gather")
    return Plan(tuple(_Cutting(evaluators, frozenset(spreading.split)).fragments(root)))


class _Spreading:
    def __init__(self, estimator: Estimator, types: Mapping[str, str], seconds: Mapping[str, float]) -> None:
        self._estimate, self._types, self._seconds = estimator.of, types, seconds
        self._fresh = count(1)
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

    def _hashed(self, placed: _Placed, keys: tuple[str, ...]) -> _Placed:
        """The rows where equal values of ``keys`` meet."""
        if placed.how == "hashed" and placed.keys == keys:
            return placed
        return _Placed(Exchange(placed.tree, "hash", tuple(map(column, keys))), "hashed", keys)

    def _hashable(self, keys: tuple[str, ...]) -> bool:
        return bool(keys) and all(self._types.get(each) is not None for each in keys)

    def _remote(self, node: Remote) -> _Placed:
        scan = scanned(node)
        if scan is None or scan.table.rows < SPLIT_ROWS:
            return _Placed(node)
        self.split.add(node)
        return _Placed(node, "split")

    def _filter(self, node: Filter) -> _Placed:
        below = self.place(node.input)
        return _Placed(node.with_inputs(below.tree), below.how, below.keys)

    def _project(self, node: Project) -> _Placed:
        below = self.place(node.input)
        if any(each.find(exp.Window) for each in node.expressions):
            return self._windows(node, below)
        names = {each.name: name for name, each in node.items if isinstance(each, exp.Column)}
        if below.how == "hashed" and all(each in names for each in below.keys):
            return _Placed(node.with_inputs(below.tree), "hashed", tuple(names[each] for each in below.keys))
        return _Placed(node.with_inputs(below.tree), "one" if below.how == "one" else "split")

    def _windows(self, node: Project, below: _Placed) -> _Placed:
        """Split where all windows have a partition key in common."""
        common: set[str] | None = None
        for expression in node.expressions:
            for window in expression.find_all(exp.Window):
                by = {each.name for each in window.args.get("partition_by") or () if isinstance(each, exp.Column)}
                common = by if common is None else common & by
        keys = tuple(sorted(common or ()))
        if below.how == "one" or not self._hashable(keys):
            return _Placed(node.with_inputs(self.gathered(below)))
        return _Placed(node.with_inputs(self._hashed(below, keys).tree), "split")

    def _call(self, node: Call) -> _Placed:
        below = self.place(node.input)
        cost = self._estimate(node.input).rows * self._seconds.get(node.function, 0.0)
        if below.how == "one" and cost > SPREAD_SECONDS:
            return _Placed(node.with_inputs(Exchange(below.tree, "spread")), "split")
        return _Placed(node.with_inputs(below.tree), below.how, below.keys)

    def _join(self, node: Join) -> _Placed:
        left, right = self.place(node.left), self.place(node.right)
        if left.how == right.how == "one":
            large = max(self._estimate(node.left).rows, self._estimate(node.right).rows)
            if large < SPLIT_ROWS:
                return _Placed(node.with_inputs(left.tree, right.tree))
        pairs = equal_columns(node)
        left_keys, right_keys = tuple(one for one, _ in pairs), tuple(other for _, other in pairs)
        hashable = self._hashable(left_keys) and all(self._types[one] == self._types.get(other) for one, other in pairs)
        small = self._estimate(node.right).bytes
        to_all = node.kind in ("inner", "left", "semi", "anti") and left.how != "one" and small <= BROADCAST_BYTES
        moved = self._estimate(node.left).bytes + small
        if to_all and (not hashable or 4 * small < moved):
            tree = node.with_inputs(left.tree, Exchange(right.tree, "broadcast"))
            return _Placed(tree, left.how, left.keys)
        if hashable:
            one, other = self._hashed(left, left_keys), self._hashed(right, right_keys)
            kept = node.kind in ("inner", "left", "semi", "anti")
            return _Placed(
                node.with_inputs(one.tree, other.tree), "hashed" if kept else "split", left_keys if kept else ()
            )
        return _Placed(node.with_inputs(self.gathered(left), self.gathered(right)))

    def _aggregate(self, node: Aggregate) -> _Placed:
        below = self.place(node.input)
        plain = {each.name: name for name, each in node.keys if isinstance(each, exp.Column)}
        if below.how == "one" or node.sets is not None:
            return _Placed(node.with_inputs(self.gathered(below)))
        if below.how == "hashed" and all(each in plain for each in below.keys):
            return _Placed(node.with_inputs(below.tree), "hashed", tuple(plain[each] for each in below.keys))
        if all(_mergeable(each) for _, each in node.aggregates):
            return self._in_two(node, below)
        if len(plain) == len(node.keys) and self._hashable(tuple(plain)):
            return _Placed(node.with_inputs(self._hashed(below, tuple(plain)).tree), "split")
        return _Placed(node.with_inputs(self.gathered(below)))

    def _in_two(self, node: Aggregate, below: _Placed) -> _Placed:
        """Parts where the rows are, then the parts of each group together."""
        parts = tuple((f"{name} part {next(self._fresh)}", each) for name, each in node.aggregates)
        partial = Aggregate(below.tree, node.keys, parts)
        names = tuple(name for name, _ in node.keys)
        groups = self._estimate(node).rows
        if self._hashable(names) and groups > SPLIT_ROWS:
            moved, how = self._hashed(_Placed(partial, "split"), names), "split"
        else:
            moved, how = _Placed(Exchange(partial, "gather")), "one"
        merged = tuple(
            (name, _merge(each, part)) for (name, each), (part, _) in zip(node.aggregates, parts, strict=True)
        )
        keys = tuple((name, column(name)) for name in names)
        return _Placed(Aggregate(moved.tree, keys, merged), "one" if how == "one" else "split")

    def _distinct(self, node: Distinct) -> _Placed:
        below = self.place(node.input)
        if below.how == "one":
            return _Placed(node.with_inputs(below.tree))
        if self._hashable(node.columns):
            first = _Placed(Distinct(below.tree), below.how, below.keys)
            return _Placed(Distinct(self._hashed(first, node.columns).tree), "split")
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


class _Cutting:
    """Exchanges become ``Receive`` leaves, what is below them fragments."""

    def __init__(self, evaluators: int, split: frozenset[Remote]) -> None:
        self._evaluators, self._split = evaluators, split
        self._made: list[Fragment] = []

    def fragments(self, root: Operator) -> list[Fragment]:
        self._fragment(root, None)
        return self._made

    def _fragment(self, tree: Operator, output: Output | None) -> int:
        leaves = list(_leaves(tree))
        parted = tuple(each for each in leaves if isinstance(each, Remote) and each in self._split)
        wide = bool(parted) or any(isinstance(each, Exchange) and each.kind in ("hash", "spread") for each in leaves)
        body = self._cut(tree)
        number = len(self._made)
        self._made.append(Fragment(number, body, self._evaluators if wide else 1, output, parted))
        return number

    def _cut(self, node: Operator) -> Operator:
        if isinstance(node, Exchange):
            keys = tuple(each.name for each in node.keys)
            return Receive(self._fragment(node.input, Output(node.kind, keys)), node.columns)
        return node.with_inputs(*(self._cut(each) for each in node.inputs))


def _leaves(tree: Operator) -> Iterator[Operator]:
    """What a fragment reads."""
    if isinstance(tree, Exchange) or not tree.inputs:
        yield tree
    else:
        for each in tree.inputs:
            yield from _leaves(each)


def equal_columns(join: Join) -> list[tuple[str, str]]:
    """The columns (left, right) that the join's condition says are equal."""
    pairs = []
    left, right = set(join.left.columns), set(join.right.columns)
    for each in conjuncts(join.condition):
        if isinstance(each, exp.EQ) and isinstance(each.this, exp.Column) and isinstance(each.expression, exp.Column):
            one, other = each.this.name, each.expression.name
            if one in left and other in right:
                pairs.append((one, other))
            elif other in left and one in right:
                pairs.append((other, one))
    return pairs


def _plain_call(expression: exp.Expression) -> exp.Expression | None:
    """The aggregate that an item is and nothing else, without DISTINCT, FILTER or ORDER BY."""
    if type(expression) not in _MERGED or isinstance(expression.this, exp.Distinct | exp.Order):
        return None
    return expression


def _mergeable(expression: exp.Expression) -> bool:
    return _plain_call(expression) is not None


def _merge(expression: exp.Expression, part: str) -> exp.Expression:
    """What makes an aggregate of its parts; a count stays a BIGINT that is 0 without rows."""
    merged: exp.Expression = _MERGED[type(expression)](this=column(part))
    if not isinstance(expression, exp.Count):
        return merged
    zero = exp.Coalesce(this=merged, expressions=[exp.Literal.number(0)])
    return exp.Cast(this=zero, to=exp.DataType.build("BIGINT"))
