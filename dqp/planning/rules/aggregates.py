"""Aggregates in two steps, the first where the rows are: below a UNION ALL, and before a join on a side whose many rows
have few groups ("eager aggregation", W. Yan and P. Larson, 1995).

A group of the first step stands for ``weight`` rows. In the second step counts add the weights up, sums over the other
side of the join multiply by them, and minima, maxima and DISTINCT ignore them. A sum of what a CASE takes of the side,
by conditions on the other, is a CASE of sums.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from sqlglot import exp

from dqp.algebra.operators import Aggregate, Filter, Item, Join, Nested, Operator, Project, SetOperation, column
from dqp.algebra.trees import exchanged, free, rewritten, used
from dqp.algebra.types import EXACT
from dqp.planning.context import Context
from dqp.planning.costing.cost import costs
from dqp.planning.predicates import bare, calm, changing, count_of, rebuilt, replaced, strict, widened
from dqp.planning.rules.places import place
from dqp.planning.rules.subtrees import accepted, refused

FEWER = 0.25
"""The first step has to leave at most this part of the rows."""


def split_aggregates(tree: Operator, context: Context) -> Operator:
    """Rule: aggregates in two steps, the first in a source."""
    return rewritten(tree, lambda each: _split(each, context) if isinstance(each, Aggregate) else each)


def _split(tree: Aggregate, context: Context) -> Operator:
    source = place(tree)
    if source is not None:
        return _means(tree, source, context)
    tree = _over_join(tree, context)
    if not all(_simple(each) for _, each in tree.aggregates):
        return tree
    if isinstance(tree.input, SetOperation):
        return _below_union(tree, tree.input, context)
    around = _around(tree.input)
    for side, kind in sorted(_sides(tree.input), key=lambda each: -context.estimator.rows(each[0])):
        pushed = _eager(tree, side, kind, around, context)
        if pushed is not None:
            return pushed
    return tree


def _means(tree: Aggregate, source: str, context: Context) -> Operator:
    """With means as totals and counts and a division above, where the source does not take means."""
    means = {name: each.this for name, each in tree.aggregates if isinstance(each, exp.Avg)}
    if not means or not all(numeric(each, context) for each in means.values()):
        return tree
    if free(tree) or refused(tree, source, context) is None:
        return tree
    steps = _Steps(context)
    for name, each in tree.aggregates:
        if name in means:
            total = steps.partial(exp.Sum(this=each.this), "total")
            count = steps.partial(exp.Count(this=each.this, big_int=True), "counted")
            steps.items.append((name, mean(total, count, each.this, context)))
        else:
            steps.items.append((name, steps.partial(each, name)))
    aggregate = replace(tree, aggregates=tuple(steps.first))
    return Project(aggregate, (*((name, column(name)) for name, _ in tree.keys), *steps.items))


def _over_join(tree: Aggregate, context: Context) -> Aggregate:
    """The aggregate over what its projection is over."""
    while isinstance(tree.input, Project):
        items = dict(tree.input.items)
        if any(each.find(Nested, exp.Window) or changing(each, context.options.functions) for each in items.values()):
            break
        if tree.sets is not None:
            break
        ordering = {name for each in tree.expressions for key in each.find_all(exp.Ordered) for name in used(key)}
        if any(not used(items[each]) for each in ordering & items.keys()):  # no order is by a constant
            break
        lower = tree.with_expressions(lambda each, items=items: replaced(each, items))  # type: ignore[misc]
        lower = lower.with_inputs(tree.input.input)
        assert isinstance(lower, Aggregate)
        tree = lower
    return tree


_GROUPING = (exp.Grouping, exp.GroupingId)


def _simple(node: exp.Expression) -> bool:
    """Whether it is one of the aggregates that can be computed in two steps, without FILTER or ORDER BY, or says which
    keys a group has."""
    if isinstance(node, _GROUPING):
        return True
    if isinstance(node, exp.Count | exp.Sum | exp.Avg | exp.Min | exp.Max):
        return not node.find(Nested, exp.Order, exp.Filter, exp.Having, exp.HavingMax) and not node.expressions
    return False


def _argument(node: exp.Expression) -> tuple[exp.Expression | None, bool]:
    """What is aggregated (None: rows), and whether each value once."""
    inner = node.this
    if isinstance(inner, exp.Star):
        return None, False
    if isinstance(inner, exp.Distinct):
        return (inner.expressions[0] if len(inner.expressions) == 1 else exp.Tuple(expressions=inner.expressions)), True
    return inner, False


@dataclass
class _Steps:
    """``first``: aggregates of the first step; ``second``: those of the second; ``items``: the columns they make."""

    context: Context
    first: list[Item] = field(default_factory=list)
    second: list[Item] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    _known: dict[exp.Expression, str] = field(default_factory=dict)

    def partial(self, node: exp.Expression, name: str) -> exp.Column:
        """The column of an aggregate of the first step."""
        name_of_column = self._known.get(node)
        if name_of_column is None:
            name_of_column = self._known[node] = self.context.names.new(name)
            self.first.append((name_of_column, node))
        return column(name_of_column)

    def total(self, node: exp.Expression, name: str) -> exp.Column:
        """The column of an aggregate of the second step."""
        identifier = self.context.names.new(name)
        self.second.append((identifier, node))
        return column(identifier)

    def weight(self, optional: bool) -> exp.Expression:
        rows = self.partial(exp.Count(this=exp.Star(), big_int=True), "rows")
        return exp.Coalesce(this=rows, expressions=[exp.Literal.number(1)]) if optional else rows


def _taken(node: exp.Expression, inside: frozenset[str], context: Context) -> list[exp.Expression]:
    """The values of the side, all of one type, that a sum over a CASE takes by conditions on the other side; none if it
    is another sum, or takes anything else but NULL and 0."""
    case = node.this
    if not isinstance(node, exp.Sum) or not isinstance(case, exp.Case):
        return []
    conditions = [case.this, *(each.this for each in case.args["ifs"])]
    values = [case.args.get("default"), *(each.args["true"] for each in case.args["ifs"])]
    if any(used(each) & inside for each in conditions if each is not None):
        return []
    values = [each for each in values if each is not None and not isinstance(each, exp.Null) and each != _ZERO]
    if len({context.type_of(each) for each in values}) > 1:
        return []
    return values if all(used(each) <= inside and _adds_up(each, context) for each in values) else []


_ZERO = exp.Literal.number(0)


def _adds_up(value: exp.Expression, context: Context) -> bool:
    """Whether a sum of all its values certainly has no overflow, as those have that the CASE does not take."""
    type = context.type_of(value) or ""
    decimal = _DECIMAL.fullmatch(type.replace(" ", ""))
    short = type in _SHORT if decimal is None else int(decimal[1]) <= _MOST_DIGITS
    return isinstance(bare(value), exp.Column) and short


_SHORT = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT", "FLOAT", "DOUBLE"})
_MOST_DIGITS = 18
"""Of decimals, whose sums have 38."""


def _of_side(steps: _Steps, name: str, node: exp.Expression, taken: Iterable[exp.Expression] = ()) -> bool:
    """Enters both steps of an aggregate over the side of the first step, or over what a CASE takes of it."""
    argument, once = _argument(node)
    if taken:
        sums = {each: steps.partial(exp.Sum(this=each), name) for each in taken}
        case = rebuilt(node.this, sums.get)
        steps.items.append((name, steps.total(exp.Sum(this=case), name)))
    elif isinstance(node, exp.Min | exp.Max):
        partial = steps.partial(node, name)
        steps.items.append((name, steps.total(type(node)(this=partial), name)))
    elif once or argument is None:
        return False
    elif isinstance(node, exp.Sum):
        steps.items.append((name, steps.total(exp.Sum(this=steps.partial(node, name)), name)))
    else:
        count = steps.partial(exp.Count(this=argument, big_int=True), "counted")
        counted = steps.total(exp.Sum(this=count), "counted")
        if isinstance(node, exp.Count):
            steps.items.append((name, count_of(counted)))
        else:
            if not numeric(argument, steps.context):
                return False
            total = steps.total(exp.Sum(this=steps.partial(exp.Sum(this=argument), "total")), "total")
            steps.items.append((name, mean(total, counted, argument, steps.context)))
    return True


def mean(total: exp.Expression, count: exp.Expression, of: exp.Expression, context: Context) -> exp.Expression:
    """The mean of ``of``. For decimals it is a quotient of whole numbers (multiples of their last digit), so that it is
    rounded once (while the total has less than 16 digits)."""
    double: exp.Expression = exp.Cast(this=total, to=exp.DataType.build("DOUBLE", dialect="duckdb"))
    decimal = _DECIMAL.fullmatch((context.type_of(of) or "").replace(" ", ""))
    if decimal is not None and decimal[2] != "0":
        units = exp.Literal.number(f"1e{decimal[2]}")
        double = exp.Round(this=exp.Mul(this=double, expression=units))
        count = exp.Paren(this=exp.Mul(this=count, expression=units.copy()))
    return exp.Div(this=double, expression=count, typed=False, safe=False)


_DECIMAL = re.compile(r"DECIMAL\((\d+),(\d+)\)")


def _weighed(steps: _Steps, name: str, node: exp.Expression, optional: bool) -> bool:
    """Adds the second step of an aggregate over the other side, whose rows now each stand for several."""
    if isinstance(node, _GROUPING):
        steps.items.append((name, steps.total(node, name)))
        return True
    argument, once = _argument(node)
    if once or isinstance(node, exp.Min | exp.Max):
        steps.items.append((name, steps.total(node, name)))
        return True
    weight = steps.weight(optional)
    if argument is None:
        steps.items.append((name, count_of(steps.total(exp.Sum(this=weight), name))))
        return True
    known = exp.Not(this=exp.Is(this=argument, expression=exp.Null()))
    counted = exp.Sum(this=exp.Case(ifs=[exp.If(this=known, true=weight)]))
    if isinstance(node, exp.Count):
        steps.items.append((name, count_of(steps.total(counted, name))))
        return True
    if not numeric(argument, steps.context):
        return False
    factor = exp.Paren(this=argument) if isinstance(argument, exp.Binary) else argument
    if steps.context.type_of(argument) in EXACT:
        factor = exp.Cast(this=argument, to=exp.DataType.build("HUGEINT", dialect="duckdb"))
    elif steps.context.type_of(argument) != "DOUBLE":
        return False
    total = exp.Sum(this=exp.Mul(this=factor, expression=weight))
    if isinstance(node, exp.Sum):
        steps.items.append((name, steps.total(total, name)))
        return True
    average = mean(steps.total(total, "total"), steps.total(counted, "counted"), argument, steps.context)
    steps.items.append((name, average))
    return True


_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Paren)


def numeric(node: exp.Expression, context: Context) -> bool:
    """Whether the expression certainly is a number."""
    node = bare(node)
    if isinstance(node, exp.Literal):
        return not node.is_string
    if isinstance(node, _ARITHMETIC):
        return all(numeric(each, context) for each in node.iter_expressions())
    known = context.type_of(node)
    return known is not None and (known in EXACT or known in ("DOUBLE", "FLOAT") or known.startswith("DECIMAL"))


def _finished(tree: Aggregate, steps: _Steps, below: Operator, keys: tuple[Item, ...]) -> Operator:
    second = Aggregate(below, keys, tuple(steps.second), tree.sets)
    return Project(second, (*((name, column(name)) for name, _ in keys), *steps.items))


# Before a join.


def _sides(tree: Operator, kind: str = "inner") -> Iterator[tuple[Operator, str]]:
    """The largest parts of a join tree that are in one source, or a UNION ALL, each with ``left`` where it is the side
    of an outer join that is filled with NULLs, else ``inner``."""
    if place(tree) is not None or _is_union_all(tree):
        yield tree, kind
    elif isinstance(tree, Filter):
        yield from _sides(tree.input, kind)
    elif isinstance(tree, Join):
        if tree.kind in ("inner", "left", "semi", "anti"):
            yield from _sides(tree.left, kind)
        if tree.kind == "inner":
            yield from _sides(tree.right, kind)
        elif tree.kind == "left" and kind == "inner":
            yield from _sides(tree.right, "left")


def _eager(tree: Aggregate, side: Operator, kind: str, around: frozenset[str], context: Context) -> Operator | None:
    """The aggregate with a first step over the side; None if that would be wrong or does not pay. ``around``: the
    columns that the operators around all sides use."""
    inside = frozenset(side.columns)
    keys = around & inside
    for _, each in tree.keys:
        keys |= used(each) & inside
    of_side: list[tuple[str, exp.Expression, list[exp.Expression]]] = []
    others: list[Item] = []
    for name, each in tree.aggregates:
        if isinstance(each, _GROUPING):
            others.append((name, each))
            continue
        argument, once = _argument(each)
        names = frozenset() if argument is None else used(argument)
        taken = [] if names <= inside else _taken(each, inside, context)
        if taken or (names and names <= inside and not (once and not isinstance(each, exp.Min | exp.Max))):
            assert argument is not None
            if kind == "left" and not all(strict(value, used(value)) for value in taken or [argument]):
                return None  # It has a value where the side is filled with NULLs.
            if not all(calm(value, context.types) for value in taken or [argument]):
                wide = None if taken or isinstance(each, exp.Min | exp.Max) else widened(argument, context.types)
                if wide is None:
                    return None  # It may fail for a row that the join drops.
                each = type(each)(this=wide)
            of_side.append((name, each, taken))
        else:
            others.append((name, each))
            keys |= names & inside
    if not keys or free(side):
        return None
    estimate = context.estimator.of(side)
    if estimate.distinct(keys) > FEWER * estimate.rows:
        return None
    if sum(_seconds(each, context) for each, _ in _branches(side)) < 1e-3:
        return None
    steps = _Steps(context)
    if not all(_of_side(steps, *each) for each in of_side):
        return None
    if not all(_weighed(steps, name, each, kind == "left") for name, each in others):
        return None
    order = {name: number for number, (name, _) in enumerate(tree.aggregates)}
    steps.items.sort(key=lambda each: order[each[0]])
    by = tuple((name, column(name)) for name in side.columns if name in keys)
    source = place(side)
    if source is None:
        first: Operator | None = _of_branches(side, by, steps.first, context)
    else:
        first = Aggregate(side, by, tuple(steps.first), partial=True)
        if not accepted(first, source, context):
            return None
    return None if first is None else _finished(tree, steps, exchanged(tree.input, side, first), tree.keys)


def _seconds(tree: Operator, context: Context) -> float:
    """Of fetching the rows of a tree in one source."""
    source = place(tree)
    return 0.0 if source is None else context.estimator.rows(tree) * costs(context.dialect(source)).row


def _around(tree: Operator) -> frozenset[str]:
    """The columns that operators over several sources use."""
    names: set[str] = set()
    stack = [tree]
    while stack:
        node = stack.pop()
        if place(node) is None:
            names.update(*map(used, node.expressions))
            stack += node.inputs
    return frozenset(names)


# Below a UNION ALL.


def _below_union(tree: Aggregate, union: SetOperation, context: Context) -> Operator:
    if not _is_union_all(union) or place(union) is not None:
        return tree
    steps = _Steps(context)
    for name, each in tree.aggregates:
        if isinstance(each, _GROUPING):
            return tree
        argument, once = _argument(each)
        if argument is None:
            rows = steps.partial(exp.Count(this=exp.Star(), big_int=True), "rows")
            steps.items.append((name, count_of(steps.total(exp.Sum(this=rows), name))))
        elif once or not _of_side(steps, name, each):
            return tree
    whole = _of_branches(union, tree.keys, steps.first, context)
    if whole is None:
        return tree
    return _finished(tree, steps, whole, tuple((name, column(name)) for name, _ in tree.keys))


def _of_branches(union: Operator, keys: Iterable[Item], first: Iterable[Item], context: Context) -> Operator | None:
    """The first step of each branch of a UNION ALL, and their UNION ALL: a group may be in several. None if that would
    be wrong or does not pay."""
    names = (*(name for name, _ in keys), *(name for name, _ in first))
    whole: Operator | None = None
    if not _alike(union, context):
        return None
    for branch, identifiers in _branches(union):
        renamed: dict[str, exp.Expression] = {
            name: column(one) for name, one in zip(union.columns, identifiers, strict=True)
        }
        if context.estimator.of(branch).rows < 100:
            return None
        part = Aggregate(branch, _renamed(keys, renamed, context), _renamed(first, renamed, context), partial=True)
        if whole is None:
            whole = part
        else:
            whole = SetOperation(whole, part, "union", True, tuple(map(context.names.new, names)))
    assert isinstance(whole, SetOperation)
    return replace(whole, names=names)


def _branches(tree: Operator) -> Iterator[tuple[Operator, tuple[str, ...]]]:
    """The inputs of a tree of UNION ALLs, with their columns in the order of the union's."""
    if _is_union_all(tree):
        for each in tree.inputs:
            yield from _branches(each)
    else:
        yield tree, tree.columns


def _is_union_all(tree: Operator) -> bool:
    return isinstance(tree, SetOperation) and tree.kind == "union" and tree.all


def _alike(union: Operator, context: Context) -> bool:
    """Whether no branch's values are converted by the union: they would be aggregated before it."""
    types = [[context.types.get(name) for name in identifiers] for _, identifiers in _branches(union)]
    return all(each == types[0] and None not in each for each in types)


def _renamed(items: Iterable[Item], by: dict[str, exp.Expression], context: Context) -> tuple[Item, ...]:
    return tuple((context.names.new(name), replaced(each, by)) for name, each in items)
