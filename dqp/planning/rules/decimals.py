"""Finds IN of a subquery or of a list (``IN […]``) that is not the same as ``=``.

If no DECIMAL type holds all digits of both of two decimals, ``=`` in DuckDB keeps all digits after the point, and IN
keeps all digits before it: ``0.001 IN (SELECT 0::DECIMAL(38, 2))``.
"""

from __future__ import annotations

from functools import reduce

from sqlglot import exp

from dqp.algebra.operators import Aggregate, Nested, Operator, Project, SetOperation, column
from dqp.planning.context import Context
from dqp.planning.predicates import bare
from dqp.sql.dialects.constants import number
from dqp.sql.dialects.typing import Type, compared, is_decimal, is_exact, is_within, parsed

_ANY = Type("DECIMAL")
"""The type of an expression that may be a decimal with any number of digits."""
_NUMBERS = (exp.Count, exp.CountIf, exp.Avg, exp.Div, exp.Length)
"""Functions that never return decimals, whatever their arguments."""


def is_equality(
    operand: exp.Expression, left: Operator, value: exp.Expression, right: Operator, context: Context
) -> bool:
    """Whether ``operand``, over the columns of ``left``, is one of the values of ``right`` where it is equal to one."""
    one, other = _decimal(operand, left, context), _decimal(value, right, context)
    if one is None or other is None or one == other != _ANY:
        return True
    if _ANY in (one, other):
        return False
    both = compared(one, other)
    return is_within(one, both) and is_within(other, both)


def as_in(node: exp.Expression, context: Context) -> exp.Expression | None:
    """``contains``, ``= ANY`` and ``<> ALL`` of a column and a list of exact numbers as IN, which sources run; None
    where that is not the same."""
    is_not = type(node) is exp.NEQ and isinstance(node.expression, exp.All)
    if isinstance(node, exp.Anonymous) and node.name == "contains" and len(node.expressions) == 2:
        listed, operand = node.expressions
        items = [each for each in listed.expressions if not isinstance(each, exp.Null)]
    elif is_not or (type(node) is exp.EQ and isinstance(node.expression, exp.Any)):
        operand, listed = node.this, bare(node.expression.this)
        items = listed.expressions
    else:
        return None
    known = context.type_of(bare(operand))
    if not isinstance(listed, exp.Array) or not items or known is None or not is_exact(own := parsed(known)):
        return None
    types = [own]
    for each in items:
        if isinstance(each, exp.Null):
            continue
        number_type = _number(each, context)
        if number_type is None or not is_exact(number_type):
            return None
        types.append(number_type)
    if any(map(is_decimal, types)):
        all_of_them = reduce(compared, types)  # a list has one type
        if not all(is_within(each, all_of_them) for each in types):
            return None
    membership = exp.In(this=operand, expressions=items)
    return exp.Not(this=membership) if is_not else membership


def _number(node: exp.Expression, context: Context) -> Type | None:
    """The type of a constant number."""
    node = bare(node)
    if isinstance(node, exp.Neg):
        return _number(node.this, context)
    if isinstance(node, exp.Literal):
        return None if node.is_string else number(node.this)[1]
    known = context.type_of(node) if isinstance(node, exp.Cast) and isinstance(node.this, exp.Literal) else None
    return None if known is None else parsed(known)


def _decimal(node: exp.Expression, tree: Operator, context: Context) -> Type | None:
    """The type of an expression over the columns of the tree that is or may be a decimal; None where it is none."""
    node = bare(node)
    if isinstance(node, exp.Filter | exp.Min | exp.Max | exp.Neg | exp.Abs):
        return _decimal(node.this, tree, context)
    if isinstance(node, exp.Sum):
        of = _decimal(node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this, tree, context)
        return of if of in (None, _ANY) else Type("DECIMAL", 38, of.scale)
    if isinstance(node, exp.Literal):
        type = None if node.is_string else number(node.this)[1]
        return type if type is not None and is_decimal(type) else None
    if isinstance(node, exp.Column | exp.Cast):
        known = context.type_of(node) or (node.to.sql(dialect="duckdb") if isinstance(node, exp.Cast) else None)
        if known is None:
            return _of_column(node.name, tree, context)
        return None if "DECIMAL" not in known else parsed(known) if is_decimal(parsed(known)) else _ANY
    if isinstance(node, exp.Anonymous | Nested):
        return _ANY
    if isinstance(node, _NUMBERS):
        return None
    parts = [each for each in node.iter_expressions() if not isinstance(each, exp.DataType | exp.Identifier)]
    return None if all(_decimal(each, tree, context) is None for each in parts) else _ANY


def _of_column(name: str, tree: Operator, context: Context) -> Type | None:
    if isinstance(tree, Project | Aggregate):
        items = dict(tree.items) if isinstance(tree, Project) else dict((*tree.keys, *tree.aggregates))
        return _decimal(items[name], tree.input, context) if name in items else _ANY
    if isinstance(tree, SetOperation) and name in tree.names:
        at = tree.names.index(name)
        sides = [_decimal(column(each.columns[at]), each, context) for each in tree.inputs]
        return None if sides == [None, None] else _ANY
    below = next((each for each in tree.inputs if name in each.columns), None)
    return _ANY if below is None else _decimal(column(name), below, context)
