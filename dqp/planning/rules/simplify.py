"""Simplifies conditions: folds constants whose result in DuckDB is certain, removes TRUE and FALSE, keeps one of equal
conjuncts, moves a conjunct that all alternatives of an OR share in front of the OR, and adds what an OR implies for one
side of a join alone as a condition that can filter that side.

The rule changes only constants and conditions, where FALSE and NULL mean the same. It does not change other values.
"""

from __future__ import annotations

import calendar
import datetime
import operator
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

from sqlglot import exp

from dqp.algebra.chains import all_of, any_of, conjuncts
from dqp.algebra.constants import PLACE, Value, literal, value
from dqp.algebra.operators import Filter, Join, Operator, subqueries
from dqp.algebra.trees import rewritten, used
from dqp.planning.context import Context
from dqp.planning.predicates import (
    COMPARISONS,
    FALSE,
    TRUE,
    bare,
    changing,
    disjuncts,
    is_false,
    is_true,
    quantified,
    rebuilt,
)
from dqp.planning.rules.decimals import as_in

_INT32 = 2**31 - 1
_ARITHMETIC: Mapping[type[exp.Expression], Callable[[Any, Any], Any]] = {
    exp.Add: operator.add,
    exp.Sub: operator.sub,
    exp.Mul: operator.mul,
}
_IMPLIED = 12
"""Most alternatives of an OR that are searched for conditions on one side."""


def simplify(tree: Operator, context: Context) -> Operator:
    """Rule: constants are folded, conditions that are always or never true disappear."""
    return rewritten(tree, lambda each: _operator(each, context))


def _operator(tree: Operator, context: Context) -> Operator:
    if isinstance(tree, Filter | Join) and tree.expressions:
        (before,) = tree.expressions
        if changing(before, context.options.functions):
            return tree
        simplified = condition(folded(before, context))
        if isinstance(tree, Filter) and is_true(simplified):
            return tree.input
        if isinstance(tree, Join) and is_true(simplified) and tree.kind == "inner":
            return Join(tree.left, tree.right)
        implied = _implied(simplified, _sides(tree))
        if implied:
            simplified = all_of([*conjuncts(simplified), *implied]) or simplified
        return tree if simplified is before else tree.with_expressions(lambda _: simplified)
    if not tree.expressions:
        return tree
    changed = {id(each): folded(each, context) for each in tree.expressions}
    if all(changed[id(each)] is each for each in tree.expressions):
        return tree
    return tree.with_expressions(lambda each: changed[id(each)])


# Constants.


def folded(node: exp.Expression, context: Context) -> exp.Expression:
    """With constants in place of operations on constants, and NOT in front of what it negates."""
    return rebuilt(node, lambda each: _constant(each, context))


def _constant(node: exp.Expression, context: Context) -> exp.Expression | None:
    if isinstance(node, exp.Add | exp.Sub):
        interval = bare(node.expression)
        if isinstance(interval, exp.Interval):
            return _moved(value(node.this), interval, -1 if isinstance(node, exp.Sub) else 1)
        return None
    if (membership := as_in(node, context)) is not None:
        return membership
    if isinstance(node, exp.Between) and not node.args.get("symmetric"):
        return _both(node, context)
    if isinstance(node, COMPARISONS):
        return _comparison(node, context)
    if isinstance(node, exp.In) and node.expressions:
        listed = [_operand(each, node.this, context) for each in node.expressions]
        if any(one is not other for one, other in zip(listed, node.expressions, strict=True)):
            operand = folded(node.this, context)
            return exp.In(**{**node.args, "this": operand, "expressions": listed})
        return None
    if isinstance(node, exp.Like | exp.ILike) and node.args.get("negate"):
        return exp.Not(this=type(node)(this=node.this, expression=node.expression))
    return None


def _both(node: exp.Between, context: Context) -> exp.Expression | None:
    """BETWEEN of values of one type and texts as two comparisons, of which each has that type."""
    this, low, high = bare(node.this), bare(node.args["low"]), bare(node.args["high"])
    types = {context.type_of(each) for each in (this, low, high) if not each.is_string}
    if not isinstance(this, exp.Column | exp.Literal) or len(types) != 1 or None in types:
        return None
    if this.is_string and (low.is_string or high.is_string):  # two texts alone would be compared as texts
        return None
    return exp.Paren(
        this=exp.And(
            this=_comparison(exp.GTE(this=this, expression=low), context),
            expression=_comparison(exp.LTE(this=this.copy(), expression=high), context),
        )
    )


def _operand(node: exp.Expression, other: exp.Expression, context: Context) -> exp.Expression:
    """A side of a comparison with ``other``: only its value matters, not its type, so numbers are added up here."""
    node = folded(node, context)
    if isinstance(bare(node), exp.Add | exp.Sub | exp.Mul):
        number = _number(node)
        if number is not None:
            return literal(number)
    return _day(other, node, context) or node


def _number(node: exp.Expression) -> int | Decimal | None:
    """The value of arithmetic on short numbers, in which nothing can be rounded or overflow."""
    node = bare(node)
    if not isinstance(node, exp.Add | exp.Sub | exp.Mul):
        known = value(node) if isinstance(node, exp.Literal | exp.Neg) else None
        return known if type(known) in (int, Decimal) and len(str(known)) < 12 else None  # type: ignore[return-value]
    left, right = _number(node.this), _number(node.expression)
    if left is None or right is None:
        return None
    result: int | Decimal = _ARITHMETIC[type(node)](left, right)
    return result if -_INT32 <= result <= _INT32 and len(str(result)) < 16 else None


def _moved(start: Value | None, interval: exp.Interval, sign: int) -> exp.Expression | None:
    """A date or timestamp plus an interval is a timestamp; a month later is the same day or the month's last one."""
    if not isinstance(start, datetime.date):
        return None
    unit = interval.args.get("unit")
    count = interval.this.name if isinstance(interval.this, exp.Literal) else ""
    if not count.isdigit() or not isinstance(unit, exp.Var):
        return None
    number = sign * int(count)
    name = unit.name.upper().removesuffix("S")
    moment = start if isinstance(start, datetime.datetime) else datetime.datetime.combine(start, datetime.time())
    try:
        if name in ("YEAR", "MONTH"):
            months = moment.year * 12 + moment.month - 1 + number * (12 if name == "YEAR" else 1)
            year, month = divmod(months, 12)
            day = min(moment.day, calendar.monthrange(year, month + 1)[1])
            return literal(moment.replace(year=year, month=month + 1, day=day))
        if name in ("DAY", "WEEK", "HOUR", "MINUTE", "SECOND"):
            return literal(moment + datetime.timedelta(**{f"{name.lower()}s": number}))
    except (ValueError, OverflowError):
        return None
    return None


def _comparison(node: exp.Expression, context: Context) -> exp.Expression:
    one, other = _operand(node.this, node.expression, context), _operand(node.expression, node.this, context)
    left, right = value(one), value(other)
    if left is not None and right is not None:
        truth = _compared(type(node), left, right)
        if truth is not None:
            if any(PLACE in each.args for each in node.find_all(exp.Literal)):
                context.decided.append(node)
            return TRUE if truth else FALSE
    return node if one is node.this and other is node.expression else type(node)(this=one, expression=other)


def _compared(kind: type[exp.Expression], left: Value, right: Value) -> bool | None:
    """Texts by their code points, which is the order of their bytes in UTF-8, as DuckDB has it."""
    exact = type(left) in (int, Decimal) and type(right) in (int, Decimal)
    if not exact and (type(left) is not type(right) or isinstance(left, float)):
        return None
    less, same = left < right, left == right  # type: ignore[operator]
    truths: dict[type[exp.Expression], bool] = {
        exp.EQ: same,
        exp.NEQ: not same,
        exp.LT: less,
        exp.LTE: less or same,
        exp.GT: not less and not same,
        exp.GTE: not less,
    }
    return truths[kind]


def _day(operand: exp.Expression, constant: exp.Expression, context: Context) -> exp.Expression | None:
    """The date that a timestamp is which a date is compared with, where it is midnight: the date is not converted
    row by row, and sources have an index on it."""
    operand = bare(operand)
    if not isinstance(operand, exp.Column) or context.types.get(operand.name) != "DATE":
        return None
    moment = value(constant)
    if isinstance(moment, datetime.datetime) and moment.time() == datetime.time():
        return literal(moment.date())
    return None


# Conditions.


def condition(node: exp.Expression) -> exp.Expression:
    """A condition that holds for the same rows."""
    node = bare(node)
    if isinstance(node, exp.And):
        return _conjunction(conjuncts(node))
    if isinstance(node, exp.Or):
        return _disjunction(disjuncts(node))
    if isinstance(node, exp.Not):
        return _negation(node)
    return node


def _conjunction(parts: list[exp.Expression]) -> exp.Expression:
    distinct_parts: dict[exp.Expression, None] = {}
    for each in parts:
        for one in conjuncts(condition(each)):
            if is_false(one):
                return FALSE
            if not is_true(one):
                distinct_parts[one] = None
    return all_of(distinct_parts) or TRUE


def _disjunction(parts: list[exp.Expression]) -> exp.Expression:
    distinct_parts: dict[exp.Expression, None] = {}
    for each in parts:
        for one in disjuncts(condition(each)):
            if is_true(one):
                return TRUE
            if not is_false(one):
                distinct_parts[one] = None
    if len(distinct_parts) < 2:
        return next(iter(distinct_parts), FALSE)
    conjuncts_of = [conjuncts(each) for each in distinct_parts]
    every = [each for each in conjuncts_of[0] if all(each in other for other in conjuncts_of[1:])]
    if not every:
        return any_of(distinct_parts) or FALSE
    rest = [[each for each in one if each not in every] for one in conjuncts_of]
    if not all(rest):
        return all_of(every) or TRUE
    inner = any_of(all_of(one) or TRUE for one in rest)
    return all_of([*every, inner]) if inner is not None else TRUE  # type: ignore[return-value]


_OPPOSITES: dict[type[exp.Expression], type[exp.Expression]] = {
    exp.EQ: exp.NEQ,
    exp.NEQ: exp.EQ,
    exp.LT: exp.GTE,
    exp.GTE: exp.LT,
    exp.GT: exp.LTE,
    exp.LTE: exp.GT,
    exp.NullSafeEQ: exp.NullSafeNEQ,
    exp.NullSafeNEQ: exp.NullSafeEQ,
}


def _negation(node: exp.Not) -> exp.Expression:
    inner = bare(node.this)
    if isinstance(inner, exp.Boolean):
        return FALSE if inner.this else TRUE
    if isinstance(inner, exp.Null):
        return FALSE
    if type(inner) in _OPPOSITES and not quantified(inner):
        return _OPPOSITES[type(inner)](this=inner.this, expression=inner.expression)
    if isinstance(inner, exp.Not):
        return condition(inner.this) if _boolean(bare(inner.this)) else node
    if isinstance(inner, exp.Or):
        return _conjunction([exp.Not(this=each) for each in disjuncts(inner)])
    if isinstance(inner, exp.And):
        return _disjunction([exp.Not(this=each) for each in conjuncts(inner)])
    return node


def _boolean(node: exp.Expression) -> bool:
    return isinstance(node, exp.Predicate | exp.And | exp.Or | exp.Not | exp.Boolean)


def _sides(tree: Operator) -> list[frozenset[str]]:
    """Groups of columns that could be filtered by themselves: those of the inputs of the joins below."""
    groups: list[frozenset[str]] = []

    def gather(each: Operator) -> None:
        if isinstance(each, Join) or (isinstance(each, Filter) and isinstance(each.input, Join)):
            for side in each.inputs:
                gather(side)
        else:
            groups.append(frozenset(each.columns))

    if isinstance(tree, Filter) and isinstance(tree.input, Join):
        gather(tree.input)
    elif isinstance(tree, Join):
        gather(tree.left)
        gather(tree.right)
    return groups


def _implied(node: exp.Expression, sides: list[frozenset[str]]) -> list[exp.Expression]:
    """The conditions on one side alone that the ORs among the conjuncts imply."""
    if len(sides) < 2:
        return []
    parts = conjuncts(node)
    implied_parts: list[exp.Expression] = []
    for each in parts:
        alternatives = disjuncts(each)
        if not 1 < len(alternatives) <= _IMPLIED:
            continue
        names = used(each)
        for side in sides:
            if names <= side or names.isdisjoint(side):
                continue
            of_side = [[one for one in conjuncts(other) if _is_of(side, one)] for other in alternatives]
            if all(of_side):
                implied = any_of(dict.fromkeys(all_of(one) or TRUE for one in of_side))
                if implied is not None and implied not in parts and implied not in implied_parts:
                    implied_parts.append(condition(implied))
    return [each for each in implied_parts if each not in parts]


def _is_of(side: frozenset[str], predicate: exp.Expression) -> bool:
    """A subquery is not to run twice, nor may its columns stand in the tree twice."""
    names = used(predicate)
    return bool(names) and names <= side and not subqueries(predicate)
