"""Turns subqueries in expressions into joins.

``EXISTS`` and ``IN`` in a filter become semi-joins, their negations anti-joins (``NOT IN`` only if neither side can
have a NULL, because one NULL among the values leaves no row). A scalar subquery that always has one row becomes a cross
join. One with aggregates that equalities correlate with the query around it is grouped by their columns once and joined
by a left join; a row without a group then has the count 0 (W. Kim, "On Optimizing an SQL-like Nested Query", 1982, and
R. Ganski and H. Wong, 1987, on the error in it). Subqueries with other correlations stay: DuckDB runs them.
"""

from __future__ import annotations

from dataclasses import replace

from sqlglot import exp

from dqp.algebra.chains import all_of, conjuncts
from dqp.algebra.operators import (
    OF_LEFT,
    OF_RIGHT,
    Aggregate,
    Distinct,
    Filter,
    Inline,
    Item,
    Join,
    JoinKind,
    Nested,
    Operator,
    Project,
    Scan,
    Sort,
    column,
    subqueries,
)
from dqp.algebra.trees import free, rewritten, used
from dqp.algebra.types import same_values
from dqp.planning.context import Context
from dqp.planning.predicates import as_operand, bare, changing, filtered, rebuilt, strict
from dqp.planning.rules.columns import in_order
from dqp.planning.rules.decimals import is_equality

Predicates = list[exp.Expression]


def unnest(tree: Operator, context: Context) -> Operator:
    """Rule: subqueries in expressions become joins."""
    return rewritten(tree, lambda each: _unnested(each, context))


def _unnested(tree: Operator, context: Context) -> Operator:
    if not isinstance(tree, Filter | Project | Aggregate) or not tree.subqueries:
        return tree
    if isinstance(tree, Filter):
        return _filter(tree, context)
    return _scalars(tree, context)


def _filter(tree: Filter, context: Context) -> Operator:
    """Conditions without a subquery first, then comparisons with scalars (their joins may change places with those
    below), then semi-joins."""
    plain, scalars, semis = [], [], []
    for each in conjuncts(tree.condition):
        if not subqueries(each):
            plain.append(each)
        elif (semi_join := _semi_join(tree.input, each, context)) is not None:
            semis.append(semi_join)
        else:
            scalars.append(each)
    result = filtered(tree.input, plain)
    compared = []
    for each in scalars:
        result, changed = _lifted(result, each, context)
        compared.append(changed)
    result = filtered(result, compared)
    for kind, plan, condition in semis:
        result = Join(result, plan, kind, all_of(condition))
    return in_order(result, tree.columns)


def _scalars(tree: Project | Aggregate, context: Context) -> Operator:
    below = tree.input

    def change(expression: exp.Expression) -> exp.Expression:
        nonlocal below
        below, changed = _lifted(below, expression, context)
        return changed

    other = tree.with_expressions(change)
    return other.with_inputs(below)


# EXISTS and IN.


def _semi_join(
    tree: Operator, predicate: exp.Expression, context: Context
) -> tuple[JoinKind, Operator, Predicates] | None:
    """The join (its kind, right side and condition) that leaves the rows of the tree for which the predicate holds;
    None where it is no such predicate."""
    predicate = bare(predicate)
    negated = isinstance(predicate, exp.Not)
    nested = bare(predicate.this) if negated else predicate
    if not isinstance(nested, Nested):
        return None
    kind, operand = nested.kind, nested.args.get("this")
    if kind in ("any", "all"):
        operator = nested.args.get("operator")
        if (kind, operator) == ("all", "<>"):
            negated = not negated
        elif (kind, operator) != ("any", "="):
            return None
        kind = "in"
    if kind not in ("exists", "in") or (operand is not None and subqueries(operand)):
        return None
    released = _released(nested.plan, context)
    if released is None:
        return None
    plan, condition = released
    if kind == "in":
        operands = operand.expressions if isinstance(operand, exp.Tuple) else [operand]
        if operand is None or len(nested.plan.columns) != len(operands):
            return None
        pairs = list(zip(operands, map(column, nested.plan.columns), strict=True))
        if not all(is_equality(one, tree, value, nested.plan, context) for one, value in pairs):
            context.remark("IN over decimals of which no decimal has all the digits is left to DuckDB")
            return None
        if negated and not all(never_null(one, tree) and never_null(value, plan) for one, value in pairs):
            context.remark("NOT IN over values that may be NULL is left to DuckDB")
            return None
        condition = [*(exp.EQ(this=one, expression=value) for one, value in pairs), *condition]
    if not _closed(condition, tree, plan):
        return None
    return "anti" if negated else "semi", plan, condition


def _closed(condition: Predicates, left: Operator, right: Operator) -> bool:
    """Whether the two sides have all that the condition needs: a join bound to a query further out stays nested."""
    known = {*left.columns, *right.columns}
    return all(used(each) <= known for each in condition)


def _released(tree: Operator, context: Context) -> tuple[Operator, Predicates] | None:
    """A plan whose rows only have to exist, without what binds it to the query around, and that as predicates."""
    if not free(tree):
        return tree, []
    if isinstance(tree, Filter):
        released = _released(tree.input, context)
        if released is None:
            return None
        bound, own = _bound(conjuncts(tree.condition), tree.input)
        if any(subqueries(each) or changing(each, context.options.functions) for each in bound):
            return None
        return filtered(released[0], own), [*released[1], *bound]
    if isinstance(tree, Project):
        return _released_project(tree, context)
    if isinstance(tree, Distinct) or (isinstance(tree, Sort) and tree.limit is None and not tree.offset):
        return _released(tree.input, context)
    if isinstance(tree, Join):
        return _released_join(tree, context)
    if isinstance(tree, Aggregate) and tree.keys and tree.sets is None:
        released = _released(tree.input, context)
        if released is None or _bound(list(tree.expressions), tree.input)[0]:
            return None
        grouped = _grouped(released[1], released[0], context)
        if grouped is None:
            return None
        return replace(tree, input=released[0], keys=(*tree.keys, *grouped[0])), grouped[1]
    return None


def _released_project(tree: Project, context: Context) -> tuple[Operator, Predicates] | None:
    released = _released(tree.input, context)
    items = tree.expressions
    if released is None or _bound(list(items), tree.input)[0]:
        return None
    if any(each.find(exp.Window) or changing(each, context.options.functions) for each in items):
        return None
    inner, predicates = released
    known = set(tree.columns)
    passed = {name for each in predicates for name in used(each) & set(inner.columns)} - known
    return Project(inner, (*tree.items, *((name, column(name)) for name in sorted(passed)))), predicates


def _released_join(tree: Join, context: Context) -> tuple[Operator, Predicates] | None:
    if tree.kind not in OF_LEFT:
        return None
    left = _released(tree.left, context)
    right = _released(tree.right, context) if tree.kind == "inner" else (tree.right, [])
    if left is None or right is None or free(right[0]):
        return None
    here = {*tree.left.columns, *tree.right.columns}
    bound = [each for each in conjuncts(tree.condition) if not used(each) <= here]
    if bound and (tree.kind != "inner" or any(subqueries(each) for each in bound)):
        return None
    own = all_of(each for each in conjuncts(tree.condition) if used(each) <= here)
    return replace(tree, left=left[0], right=right[0], condition=own), [*left[1], *right[1], *bound]


def _bound(expressions: Predicates, over: Operator) -> tuple[Predicates, Predicates]:
    """The predicates that need columns from outside, and the others."""
    known = frozenset(over.columns)
    bound = [each for each in expressions if not used(each) <= known]
    return bound, [each for each in expressions if used(each) <= known]


def _grouped(predicates: Predicates, over: Operator, context: Context) -> tuple[tuple[Item, ...], Predicates] | None:
    """Keys by which to group ``over`` such that the predicates can be asked of the groups; None where one of them is
    not an equality of something inside with something outside, or may hold for several groups: the numbers that '1' and
    '01' are converted to are equal, the texts are not."""
    inside = frozenset(over.columns)
    keys: dict[exp.Expression, str] = {}
    changed: Predicates = []
    for each in predicates:
        if type(each) is not exp.EQ:
            return None
        one, other = bare(each.this), bare(each.expression)
        if not used(one) <= inside:
            one, other = other, one
        if not used(one) or not used(one) <= inside or used(other) & inside:
            return None
        if not same_values(context.type_of(one), context.type_of(other)):
            return None
        name = keys.get(one)
        if name is None:
            name = keys[one] = context.names.new(one.name if isinstance(one, exp.Column) else "key")
            known = context.type_of(one)
            if known is not None:
                context.types[name] = known
        changed.append(exp.EQ(this=other, expression=column(name)))
    return tuple((name, one) for one, name in keys.items()), changed


# Scalars.


def _lifted(tree: Operator, expression: exp.Expression, context: Context) -> tuple[Operator, exp.Expression]:
    """The tree joined with the scalar subqueries of the expression, and the expression over their columns."""
    joined = tree

    def change(node: exp.Expression) -> exp.Expression | None:
        nonlocal joined
        if isinstance(node, exp.Window | exp.Lambda):
            return node
        if isinstance(node, Nested):
            scalar = _scalar(joined, node, context) if node.kind == "scalar" else None
            if scalar is None:
                return node
            joined, value = scalar
            return value
        return None

    if not subqueries(expression):
        return tree, expression
    changed = rebuilt(expression, change)
    return joined, changed


def _scalar(tree: Operator, nested: Nested, context: Context) -> tuple[Operator, exp.Expression] | None:
    plan = nested.plan
    (name,) = plan.columns
    if not free(plan):
        if one_row(plan):
            return Join(tree, plan), column(name)
        return None
    items: list[Project] = []
    inner = plan
    while isinstance(inner, Project):
        items.append(inner)
        inner = inner.input
    subquery_join = _aggregate(tree, inner, context) if isinstance(inner, Aggregate) else _row(tree, inner, context)
    if subquery_join is None:
        return None
    joined, values, key = subquery_join
    known = frozenset(joined.columns)
    value: exp.Expression = column(name)
    for each in items:
        if any(one.find(exp.Window) for one in each.expressions):
            return None
        below = dict(each.items)
        value = rebuilt(value, lambda node, below=below: _item(node, below))  # type: ignore[misc]
    value = rebuilt(value, lambda node: values.get(node.name) if isinstance(node, exp.Column) else None)
    if key is not None and not strict(value, frozenset(joined.right.columns)):
        # Without a row there is no value, only what the expression makes of NULL.
        present = exp.Not(this=exp.Is(this=column(key), expression=exp.Null()))
        value = exp.Case(ifs=[exp.If(this=present, true=value)])
    return (joined, value) if used(value) <= known else None


def _item(node: exp.Expression, items: dict[str, exp.Expression]) -> exp.Expression | None:
    if not isinstance(node, exp.Column):
        return None
    return as_operand(items.get(node.name, node))


Joined = tuple[Join, dict[str, exp.Expression], str | None]
"""A join from the left, what stands for columns of its right side, and a column there that is NULL only in rows without
a partner; None where those without a partner are rows of the subquery too."""


def _aggregate(tree: Operator, plan: Aggregate, context: Context) -> Joined | None:
    """The tree joined from the left with the plan grouped by what binds it."""
    if plan.keys or plan.sets is not None:
        return None
    released = _released(plan.input, context)
    if released is None or _repeats(plan.input):
        return None
    inner, predicates = released
    if any(not used(each) <= frozenset(inner.columns) for each in plan.expressions):
        return None
    grouped = _grouped(predicates, inner, context)
    if grouped is None or not all(
        used(each) <= {*tree.columns, *(name for name, _ in grouped[0])} for each in grouped[1]
    ):
        context.remark("a subquery that is bound by more than equalities is left to DuckDB")
        return None
    values: dict[str, exp.Expression] = {}
    for name, each in plan.aggregates:
        bare_one = each.this if isinstance(each, exp.Filter) else each
        if isinstance(bare_one, exp.Count):
            values[name] = exp.Coalesce(this=column(name), expressions=[exp.Literal.number(0)])
        elif not isinstance(bare_one, exp.CountIf | exp.Sum | exp.Avg | exp.Min | exp.Max):
            return None
    once = Aggregate(inner, grouped[0], plan.aggregates)
    if not _closed(grouped[1], tree, once):
        return None
    return Join(tree, once, "left", all_of(grouped[1])), values, None


def _repeats(tree: Operator) -> bool:
    """Whether there is a DISTINCT that ``_released`` leaves out, which an aggregate would notice."""
    if isinstance(tree, Distinct):
        return True
    return any(_repeats(each) for each in tree.inputs) if not isinstance(tree, Scan) else False


def _row(tree: Operator, plan: Operator, context: Context) -> Joined | None:
    """The tree joined from the left with a plan of which each of its rows finds one row at most."""
    released = _released(plan, context)
    if released is None:
        return None
    inner, predicates = released
    grouped = _grouped(predicates, inner, context)
    if grouped is None:
        return None
    fixed = {one.name for _, one in grouped[0] if isinstance(one, exp.Column)}
    if not _unique(inner, fixed) or not _closed(predicates, tree, inner):
        return None
    return Join(tree, inner, "left", all_of(predicates)), {}, min(fixed)


def _unique(tree: Operator, names: set[str]) -> bool:
    """Whether no two rows have the same values in these columns, as far as keys say it."""
    while isinstance(tree, Filter):
        tree = tree.input
    if isinstance(tree, Scan):
        fixed = {name for identifier, name in tree.items if identifier in names}
        return any(fixed.issuperset(key) for key in tree.table.keys)
    if isinstance(tree, Aggregate) and tree.sets is None and tree.keys:
        return names.issuperset(name for name, _ in tree.keys)
    return False


def one_row(tree: Operator) -> bool:
    """Whether the tree always has exactly one row."""
    if isinstance(tree, Project):
        return one_row(tree.input)
    if isinstance(tree, Sort):
        return one_row(tree.input) and not tree.offset and tree.limit != 0
    if isinstance(tree, Join):
        return tree.kind == "inner" and tree.condition is None and one_row(tree.left) and one_row(tree.right)
    if isinstance(tree, Inline):
        return bool(tree.data.num_rows == 1)
    return isinstance(tree, Aggregate) and not tree.keys and tree.sets is None


def never_null(expression: exp.Expression, tree: Operator) -> bool:
    """Whether the expression, over the columns of the tree, has a value in every row."""
    expression = bare(expression)
    if isinstance(expression, exp.Literal):
        return True
    if not isinstance(expression, exp.Column):
        return False
    name = expression.name
    if isinstance(tree, Scan):
        for identifier, known in tree.items:
            if identifier == name:
                return not tree.table.column(known).nullable
        return False
    if isinstance(tree, Filter):
        if any(_says_not_null(each, name) for each in conjuncts(tree.condition)):
            return True
        return never_null(expression, tree.input)
    if isinstance(tree, Project | Aggregate):
        items = dict(tree.items if isinstance(tree, Project) else tree.keys if tree.sets is None else ())
        item = items.get(name)
        if item is None and isinstance(tree, Aggregate) and tree.sets is None:
            return any(each == name and isinstance(one, exp.Count) for each, one in tree.aggregates)
        return item is not None and never_null(item, tree.input)
    if isinstance(tree, Join):
        if tree.kind in OF_LEFT and name in tree.left.columns:
            return never_null(expression, tree.left)
        if tree.kind in OF_RIGHT and name in tree.right.columns:
            return never_null(expression, tree.right)
        return False
    if isinstance(tree, Distinct | Sort):
        return never_null(expression, tree.input)
    return False


def _says_not_null(predicate: exp.Expression, name: str) -> bool:
    inner = bare(predicate.this) if isinstance(predicate, exp.Not) else None
    return (
        isinstance(inner, exp.Is)
        and isinstance(inner.expression, exp.Null)
        and isinstance(inner.this, exp.Column)
        and inner.this.name == name
    )
