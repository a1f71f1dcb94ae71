"""Makes joins of lateral joins, whose right side uses columns of the left side.

The dependent join moves down the right side until the rows below depend on the left side no more (T. Neumann and
A. Kemper, "Unnesting Arbitrary Queries", BTW 2015). Filters and projections then stand above it. What looks at several
rows (an aggregate, a limit, a window) is computed once for all rows of the left side, by groups of what the right side
has to be equal to.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sqlglot import exp

from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.operators import (
    OF_LEFT,
    Aggregate,
    Distinct,
    Filter,
    Item,
    Join,
    JoinKind,
    Names,
    Operator,
    Project,
    Scan,
    Sort,
    column,
    numbered,
)
from dqp.algebra.trees import free, used
from dqp.algebra.types import same_values
from dqp.binding.scope import Unmodelled

_NULL_WITHOUT_ROWS = (
    exp.Sum,
    exp.Avg,
    exp.Min,
    exp.Max,
    exp.Median,
    exp.Quantile,
    exp.Stddev,
    exp.StddevPop,
    exp.StddevSamp,
    exp.Variance,
    exp.VariancePop,
    exp.ArgMax,
    exp.ArgMin,
    exp.ArrayAgg,
    exp.GroupConcat,
)
Keys = dict[str, exp.Expression]
"""Columns of the right side, and what of the left side each has to be equal to."""


def lateral_join(
    left: Operator, right: Operator, kind: JoinKind, condition: exp.Expression | None, names: Names
) -> Operator:
    """The join of ``left`` with ``right`` for each of its rows. Raises Unmodelled where the rows on the right depend on
    the left in another way than by conditions, and by equalities below what looks at several rows."""
    lateral = _Lateral(left, names)
    if kind == "inner":
        joined = lateral.joined(left, right)
        return joined if condition is None else Filter(joined, condition)
    if kind != "left":
        raise Unmodelled("lateral join")
    if condition is None and _one_row(right):
        return lateral.joined(left, right)
    keyed, keys = lateral.keyed(right)
    return lateral.on_keys(left, right, keyed, keys, "left", condition)


def _one_row(tree: Operator) -> bool:
    while isinstance(tree, Project):
        tree = tree.input
    return isinstance(tree, Aggregate) and not tree.keys and tree.sets is None


class _Lateral:
    """``outer``: the columns of the left side."""

    def __init__(self, left: Operator, names: Names) -> None:
        self.left, self.outer, self.names = left, frozenset(left.columns), names

    def joined(self, left: Operator, right: Operator) -> Operator:
        """The inner join; its columns are those of ``left``, then ``right``."""
        if not free(right) & self.outer:
            return Join(left, right)
        if isinstance(right, Filter):
            return Filter(self.joined(left, right.input), right.condition)
        if isinstance(right, Project) and not _has_window(right):
            return Project(self.joined(left, right.input), (*_passed(left.columns), *right.items))
        if isinstance(right, Sort) and right.limit is None and not right.offset:
            return self.joined(left, right.input)
        if isinstance(right, Join):
            return self.join(left, right)
        if isinstance(right, Aggregate) and not right.keys:
            return self.total(left, right)
        keyed, keys = self.keyed(right)
        return self.on_keys(left, right, keyed, keys, "inner")

    def join(self, left: Operator, right: Join) -> Operator:
        if right.kind == "inner":
            both = self.joined(self.joined(left, right.left), right.right)
            return both if right.condition is None else Filter(both, right.condition)
        if right.kind not in OF_LEFT or free(right.right) & self.outer:
            raise Unmodelled("lateral join")
        return replace(right, left=self.joined(left, right.left))

    def total(self, left: Operator, right: Aggregate) -> Operator:
        """With an aggregate of all rows, which has a row where there are none, too."""
        if right.sets is not None:
            raise Unmodelled("lateral join")
        below, keys = self.keyed(right.input)
        self.closed(right)
        items: list[Item] = []
        aggregates: list[Item] = []
        for name, each in right.aggregates:
            function = each.this if isinstance(each, exp.Filter) else each
            made = self.names.new(name)
            value: exp.Expression = column(made)
            if isinstance(function, exp.Count):
                value = exp.Coalesce(this=value, expressions=[exp.Literal.number(0)])
            elif not isinstance(function, _NULL_WITHOUT_ROWS):
                raise Unmodelled("lateral join")
            aggregates.append((made, each))
            items.append((name, value))
        groups = Aggregate(below, _passed(keys), tuple(aggregates))
        joined = Join(left, groups, "left", _equal(keys))
        return Project(joined, (*_passed(left.columns), *items))

    def on_keys(
        self,
        left: Operator,
        right: Operator,
        keyed: Operator,
        keys: Keys,
        kind: JoinKind,
        condition: exp.Expression | None = None,
    ) -> Operator:
        """The join with ``keyed``, which is ``right`` for all rows of the left side, by its keys."""
        if any(not used(each) <= frozenset(left.columns) for each in keys.values()):
            raise Unmodelled("lateral join")
        joined = Join(left, keyed, kind, all_of([*conjuncts(_equal(keys)), *conjuncts(condition)]))
        return Project(joined, _passed((*left.columns, *right.columns)))

    def keyed(self, tree: Operator) -> tuple[Operator, Keys]:
        """The tree for all rows of the left side, and its keys. It has the tree's columns and the keys."""
        if not free(tree) & self.outer:
            return tree, {}
        if isinstance(tree, Join):
            return self.keyed_join(tree)
        if not isinstance(tree, Filter | Project | Sort | Distinct | Aggregate):
            raise Unmodelled("lateral join")
        below, keys = self.keyed(tree.input)
        if isinstance(tree, Filter):
            own, more = self.divided(tree.condition, tree.input)
            return (below if own is None else Filter(below, own)), _united(keys, more)
        self.closed(tree)
        if isinstance(tree, Project):
            items = tuple((name, _by_group(each, keys)) for name, each in tree.items)
            return Project(below, (*items, *_passed(each for each in keys if each not in tree.columns))), keys
        if isinstance(tree, Sort):
            return self.limited(tree, below, keys), keys
        if isinstance(tree, Aggregate):
            if not tree.keys or tree.sets is not None:
                raise Unmodelled("lateral join")
            others = _passed(each for each in keys if each not in tree.columns)
            return replace(tree, input=below, keys=(*tree.keys, *others)), keys
        return tree.with_inputs(below), keys

    def keyed_join(self, tree: Join) -> tuple[Operator, Keys]:
        if tree.kind not in OF_LEFT:
            raise Unmodelled("lateral join")
        left, keys = self.keyed(tree.left)
        own, more = self.divided(tree.condition, tree)
        right = tree.right
        if tree.kind == "inner":
            right, others = self.keyed(tree.right)
            keys = _united(keys, others, more)
        elif more or free(tree.right) & self.outer:
            raise Unmodelled("lateral join")
        return replace(tree, left=left, right=right, condition=own), keys

    def divided(self, condition: exp.Expression | None, over: Operator) -> tuple[exp.Expression | None, Keys]:
        """The conditions that do not depend on the left side, and the keys in the others."""
        own, keys = [], Keys()
        for each in conjuncts(condition):
            if not used(each) & self.outer:
                own.append(each)
                continue
            sides = (each.this, each.expression) if type(each) is exp.EQ else ()
            inside = [one for one in sides if isinstance(one, exp.Column) and one.name not in self.outer]
            outside = [one for one in sides if isinstance(one, exp.Column) and one.name in self.outer]
            if len(inside) != 1 or len(outside) != 1:
                raise Unmodelled("lateral join")
            if not same_values(_type(over, inside[0].name), _type(self.left, outside[0].name)):
                # the texts '1' and '01' are one number, but two groups
                raise Unmodelled("lateral join by values of two types")
            keys = _united(keys, {inside[0].name: outside[0]})
        return all_of(own), keys

    def limited(self, tree: Sort, below: Operator, keys: Keys) -> Operator:
        """The rows between the limits in each group."""
        if tree.limit is None and not tree.offset:
            return tree.with_inputs(below)  # a list above it has this order
        number = self.names.new("row_number")
        rows = numbered(below, number, list(map(column, keys)), [each.copy() for each in tree.keys])
        ends: list[exp.Expression] = []
        if tree.offset:
            ends.append(exp.GT(this=column(number), expression=exp.Literal.number(tree.offset)))
        if tree.limit is not None:
            ends.append(exp.LTE(this=column(number), expression=exp.Literal.number(tree.offset + tree.limit)))
        condition = all_of(ends)
        assert condition is not None
        return Project(Filter(rows, condition), _passed(below.columns))

    def closed(self, node: Operator) -> None:
        if any(used(each) & self.outer for each in node.expressions):
            raise Unmodelled("lateral join")


def _has_window(tree: Project) -> bool:
    return any(each.find(exp.Window) for each in tree.expressions)


def _passed(columns: Iterable[str]) -> tuple[Item, ...]:
    return tuple((each, column(each)) for each in columns)


def _united(*several: Keys) -> Keys:
    """All keys. Raises Unmodelled for a column that has to be equal to two of the left side."""
    keys = Keys()
    for name, value in (item for each in several for item in each.items()):
        if keys.setdefault(name, value) != value:
            raise Unmodelled("lateral join")
    return keys


def _equal(keys: Keys) -> exp.Expression | None:
    return all_of(exp.EQ(this=each.copy(), expression=column(name)) for name, each in keys.items())


def _by_group(expression: exp.Expression, keys: Keys) -> exp.Expression:
    """The expression with its windows divided by the keys, too."""
    if not keys or not expression.find(exp.Window):
        return expression
    divided: exp.Expression = expression.copy()
    for window in divided.find_all(exp.Window):
        window.set("partition_by", [*(window.args.get("partition_by") or []), *map(column, keys)])
    return divided


def _type(tree: Operator, name: str) -> str | None:
    """The type of a column that comes from a table as it is; None for others."""
    if isinstance(tree, Scan):
        return next((tree.table.column(known).type for identifier, known in tree.items if identifier == name), None)
    if isinstance(tree, Project | Aggregate):
        items = dict(tree.items if isinstance(tree, Project) else tree.keys)
        each = items.get(name)
        return _type(tree.input, each.name) if isinstance(each, exp.Column) else None
    if isinstance(tree, Filter | Sort | Distinct | Join):
        return next((found for each in tree.inputs if (found := _type(each, name)) is not None), None)
    return None
