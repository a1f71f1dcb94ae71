"""Answers the rules' questions about expressions, and rewrites expressions.

Expressions are values: trees share them, and nothing changes them in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set

from sqlglot import exp

from dqp.algebra.chains import all_of
from dqp.algebra.constants import value
from dqp.algebra.operators import Filter, Nested, Operator, column
from dqp.algebra.trees import everywhere, free, walk

COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE)
FLIPPED: Mapping[type[exp.Expression], type[exp.Expression]] = {
    exp.EQ: exp.EQ,
    exp.NEQ: exp.NEQ,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}
_STRICT = (
    *(exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Paren, exp.Cast, exp.Substring, exp.Upper, exp.Lower, exp.Length),
    *(exp.Extract, exp.Year, exp.Month, exp.Day, exp.Abs, exp.Trim, exp.DPipe, exp.IntDiv, exp.Div, exp.Mod),
)
"""Expressions that are NULL if any column in them is NULL."""
_CALM = (
    *(exp.Column, exp.Identifier, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Var, exp.DataType),
    *(exp.Add, exp.Sub, exp.Mul, exp.Neg, exp.Substring, exp.Upper, exp.Lower, exp.Length, exp.Extract, exp.Year),
    *(exp.Month, exp.Day, exp.Case, exp.If, exp.And, exp.Or, exp.Not, exp.Is, exp.In, exp.Between, exp.Like),
    *(exp.Coalesce, exp.DPipe, exp.Trim, *COMPARISONS),
)
"""Expressions that are cheap and raise no error for any row, so they may run for rows that are dropped later."""
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Neg)
_BROKEN = ("DECIMAL", "DOUBLE", "FLOAT", "DATE", "TIMESTAMP")
"""Prefixes of types that are not whole numbers. A computation with one of these is not a whole number either."""
_BITS = {"TINYINT": 7, "UTINYINT": 8, "SMALLINT": 15, "USMALLINT": 16, "INTEGER": 31, "UINTEGER": 32}


def rebuilt(node: exp.Expression, change: Callable[[exp.Expression], exp.Expression | None]) -> exp.Expression:
    """The expression with every part replaced for which ``change`` returns another one, from the top. Shares the parts
    that do not change. Changes the operands of nested queries, but not their plans."""
    other = change(node)
    if other is not None:
        return other
    arguments = None
    for key, argument in node.args.items():
        new_argument = argument
        if isinstance(argument, exp.Expression):
            new_argument = rebuilt(argument, change)
        elif isinstance(argument, list) and argument:
            parts = [rebuilt(each, change) if isinstance(each, exp.Expression) else each for each in argument]
            if any(one is not other for one, other in zip(parts, argument, strict=True)):
                new_argument = parts
        if new_argument is not argument:
            arguments = arguments or dict(node.args)
            arguments[key] = new_argument
    if arguments is None:
        return node
    new_argument = type(node)(**arguments)
    new_argument._type, new_argument._meta = node._type, node._meta
    return new_argument


def replaced(node: exp.Expression, by: Mapping[str, exp.Expression]) -> exp.Expression:
    """The expression with columns replaced, also those that nested plans take from outside."""

    def change(each: exp.Expression) -> exp.Expression | None:
        if isinstance(each, exp.Column):
            return as_operand(by.get(each.name, each))
        if isinstance(each, Nested) and free(each.plan) & by.keys():
            plan = everywhere(each.plan, lambda inner: replaced(inner, by))
            return each.over(plan, lambda operand: replaced(operand, by))
        return None

    return rebuilt(node, change)


def as_operand(node: exp.Expression) -> exp.Expression:
    """The expression as a part of another one, in parentheses if need be: ``(NOT a) IS NULL``."""
    return exp.Paren(this=node) if isinstance(node, exp.Binary | exp.Not | exp.Between | exp.In) else node


def with_plans(node: exp.Expression, change: Callable[[Nested], Operator]) -> exp.Expression:
    """The expression with other plans in its nested queries, also in those of their operands."""

    def other(each: exp.Expression) -> exp.Expression | None:
        return each.over(change(each), lambda operand: rebuilt(operand, other)) if isinstance(each, Nested) else None

    return rebuilt(node, other)


def filtered(tree: Operator, predicates: Iterable[exp.Expression]) -> Operator:
    """The rows of the tree for which all predicates are true; the tree itself without any."""
    condition = all_of(predicates)
    return tree if condition is None else Filter(tree, condition)


def disjuncts(condition: exp.Expression) -> list[exp.Expression]:
    """The parts of an OR, also of nested ones."""
    if isinstance(condition, exp.Paren):
        return disjuncts(condition.this)
    if isinstance(condition, exp.Or):
        return [*disjuncts(condition.this), *disjuncts(condition.expression)]
    return [condition]


def bare(node: exp.Expression) -> exp.Expression:
    """The expression without the parentheses around it."""
    while isinstance(node, exp.Paren):
        node = node.this
    return node


def changing(node: exp.Expression, functions: Set[str]) -> bool:
    """Whether it has an operation call, which is too expensive to move or repeat and may give different results. (No
    tree has other volatile functions: the binder makes a Verbatim of such a query.)"""
    if not functions:
        return False
    for each in node.walk():
        if isinstance(each, exp.Anonymous) and each.name.lower() in functions:
            return True
        if isinstance(each, Nested):
            for operator in walk(each.plan):
                if any(changing(inner, functions) for inner in operator.expressions):
                    return True
    return False


def calm(node: exp.Expression, types: Mapping[str, str]) -> bool:
    """Whether it is cheap and raises no error for any row. ``types``: of columns, because arithmetic on whole numbers
    of some types overflows, while decimals have spare digits."""
    return all(
        isinstance(each, _CALM) and (not isinstance(each, _ARITHMETIC) or not _whole(each, types))
        for each in node.walk()
    )


def _whole(node: exp.Expression, types: Mapping[str, str]) -> bool:
    """Whether its value can be a whole number."""
    if isinstance(node, (*_ARITHMETIC, exp.Paren)):
        return all(_whole(each, types) for each in node.iter_expressions())
    if isinstance(node, exp.Literal):
        return not node.is_string and node.name.isdigit()
    return not isinstance(node, exp.Column) or not types.get(node.name, "").startswith(_BROKEN)


def widened(node: exp.Expression, types: Mapping[str, str]) -> exp.Expression | None:
    """As calm an expression of the same value: arithmetic on whole numbers of at most 32 bits is done with 64, where it
    does not overflow. None if there is none. Its type may be another one, so it stands in no other arithmetic: DuckDB
    adds no 64 bits to a date, and not all of them to a decimal."""
    refused = False

    def change(each: exp.Expression) -> exp.Expression | None:
        nonlocal refused
        if not isinstance(each, _ARITHMETIC):
            return None
        if not _whole(each, types):
            refused = refused or any(isinstance(one, _ARITHMETIC) and _whole(one, types) for one in each.walk())
            return each
        bits = _bits(each, types)
        refused = refused or bits is None or bits >= 63
        names = {one.name for one in each.find_all(exp.Column)}
        return replaced(each, {name: exp.Cast(this=column(name), to=exp.DataType.build("BIGINT")) for name in names})

    if not all(isinstance(each, _CALM) for each in node.walk()):
        return None
    if any(types.get(each.name, "").startswith("DECIMAL") for each in node.find_all(exp.Column)):
        return None
    wide = rebuilt(node, change)
    return None if refused else wide


def _bits(node: exp.Expression, types: Mapping[str, str]) -> int | None:
    """n if the value of a computation with whole numbers is at most 2^n, or -2^n; None if it is not known."""
    if isinstance(node, exp.Column):
        return _BITS.get(types.get(node.name, ""))
    if isinstance(node, exp.Literal):
        return int(node.name).bit_length() if node.name.isdigit() else None
    parts = [_bits(each, types) for each in node.iter_expressions()]
    known = [each for each in parts if each is not None]
    if not isinstance(node, (*_ARITHMETIC, exp.Paren)) or len(known) < len(parts):
        return None
    return sum(known) if isinstance(node, exp.Mul) else max(known) + isinstance(node, exp.Add | exp.Sub)


def strict(node: exp.Expression, identifiers: Set[str]) -> bool:
    """Whether it is NULL in every row where all ``identifiers`` are NULL."""
    if isinstance(node, exp.Column):
        return node.name in identifiers
    if isinstance(node, _STRICT):
        return any(strict(each, identifiers) for each in node.iter_expressions())
    return False


def rejects_nulls(condition: exp.Expression, identifiers: Set[str]) -> bool:
    """Whether it cannot be true in a row where all ``identifiers`` are NULL."""
    condition = bare(condition)
    if isinstance(condition, exp.And):
        return rejects_nulls(condition.this, identifiers) or rejects_nulls(condition.expression, identifiers)
    if isinstance(condition, exp.Or):
        return rejects_nulls(condition.this, identifiers) and rejects_nulls(condition.expression, identifiers)
    if isinstance(condition, exp.Not):
        inner = bare(condition.this)
        if isinstance(inner, exp.Is):
            return isinstance(inner.expression, exp.Null) and strict(inner.this, identifiers)
        return _null_for_nulls(inner, identifiers)
    return _null_for_nulls(condition, identifiers)


def _null_for_nulls(node: exp.Expression, identifiers: Set[str]) -> bool:
    if quantified(node):
        return False  # the list may be empty
    if isinstance(node, (*COMPARISONS, exp.Like, exp.ILike)):
        return strict(node.this, identifiers) or strict(node.expression, identifiers)
    if isinstance(node, exp.Between):
        return strict(node.this, identifiers)
    if isinstance(node, exp.In):
        return node.args.get("query") is None and strict(node.this, identifiers)
    if isinstance(node, exp.Column):
        return node.name in identifiers
    return False


def quantified(node: exp.Expression) -> bool:
    """Whether it compares with ANY or ALL of a list. Such a comparison has no opposite and may be true for NULL."""
    return isinstance(node, COMPARISONS) and isinstance(node.expression, exp.Any | exp.All)


def equality(node: exp.Expression) -> tuple[str, str] | None:
    """The two columns that an equality predicate compares; None for other predicates."""
    if type(node) is exp.EQ:
        one, other = bare(node.this), bare(node.expression)
        if isinstance(one, exp.Column) and isinstance(other, exp.Column) and one.name != other.name:
            return one.name, other.name
    return None


def comparison(node: exp.Expression) -> tuple[str, type[exp.Expression], exp.Expression] | None:
    """(column, operator, literal) of a predicate that compares a column with a literal on either side."""
    if isinstance(node, COMPARISONS):
        one, other = bare(node.this), bare(node.expression)
        if isinstance(one, exp.Column) and value(other) is not None:
            return one.name, type(node), other
        if isinstance(other, exp.Column) and value(one) is not None:
            return other.name, FLIPPED[type(node)], one
    return None


def same(one: str, other: str) -> exp.Expression:
    """The predicate that two columns, named by identifiers, are equal."""
    return exp.EQ(this=column(one), expression=column(other))


def partition_keys(expressions: Iterable[exp.Expression]) -> frozenset[str] | None:
    """The columns by which every window in the expressions is partitioned: a filter on them drops whole partitions.
    None without a window."""
    keys = [
        frozenset(one.name for one in window.args.get("partition_by") or () if isinstance(one, exp.Column))
        for each in expressions
        for window in each.find_all(exp.Window)
    ]
    return frozenset.intersection(*keys) if keys else None


def count_of(total: exp.Expression) -> exp.Expression:
    """A sum of counts as the count it is: a BIGINT, and 0 without rows."""
    zero = exp.Coalesce(this=total, expressions=[exp.Literal.number(0)])
    return exp.Cast(this=zero, to=exp.DataType.build("BIGINT", dialect="duckdb"))


TRUE = exp.Boolean(this=True)
FALSE = exp.Boolean(this=False)


def is_true(node: exp.Expression) -> bool:
    """Whether it is the constant TRUE."""
    return isinstance(node, exp.Boolean) and bool(node.this)


def is_false(node: exp.Expression) -> bool:
    """Whether it is the constant FALSE or NULL."""
    return isinstance(node, exp.Null) or (isinstance(node, exp.Boolean) and not node.this)
