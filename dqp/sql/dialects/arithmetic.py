"""Arithmetic of expressions. In DuckDB a DOUBLE that is too large becomes an infinity, and one that is too small zero;
other databases raise errors. So a source computes with floating numbers only if the size of the operands rules out both
(the kind ``bounded`` of the whitelists): numbers that were exact, constants, averages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import add, mul, sub

from sqlglot import exp

from dqp.sql.dialects import constants
from dqp.sql.dialects.expressions import Expressions, Value, adapted, magnitude
from dqp.sql.dialects.typing import (
    DATE,
    DOUBLE,
    FLOAT,
    TIMESTAMP,
    VARCHAR,
    WHOLE,
    Arithmetic,
    Magnitude,
    arithmetic,
    fits,
    is_decimal,
    is_number,
)
from dqp.sql.render import Columns

_FOLDED: Mapping[str, Callable[[int, int], int]] = {"+": add, "-": sub, "*": mul}


class Operators(Expressions):
    """``+``, ``-``, ``*``, ``/``, ``//``, ``%`` and ``||``."""

    def _on_add(self, node: exp.Add, columns: Columns) -> Value:
        return self._arithmetic("+", node, columns)

    def _on_sub(self, node: exp.Sub, columns: Columns) -> Value:
        return self._arithmetic("-", node, columns)

    def _on_mul(self, node: exp.Mul, columns: Columns) -> Value:
        return self._arithmetic("*", node, columns)

    def _on_intdiv(self, node: exp.IntDiv, columns: Columns) -> Value:
        return self._arithmetic("//", node, columns)

    def _on_mod(self, node: exp.Mod, columns: Columns) -> Value:
        return self._arithmetic("%", node, columns)

    def _arithmetic(self, operator: str, node: exp.Binary, columns: Columns) -> Value:
        if isinstance(node.expression, exp.Interval):
            return self._moved(operator, node, columns)
        left, right = self.value(node.this, columns), self.value(node.expression, columns)
        if left.type in WHOLE and right.type in WHOLE:
            left, right = adapted(left, right), adapted(right, left)
        if DATE in (left.type, right.type) or TIMESTAMP in (left.type, right.type):
            raise self.refuse(f"{left.type} {operator} {right.type}")
        operation: Arithmetic = arithmetic(operator, left.type, right.type)
        if operation.type == DOUBLE:
            return self._floating(operator, self._double(left), self._double(right))
        if left.is_constant and right.is_constant and operation.type in WHOLE and operator in _FOLDED:
            folded = _FOLDED[operator](left.constant, right.constant)
            if fits(folded, operation.type):
                return Value(self.typed(folded, operation.type), operation.type, True, True, folded, typed=True)
        text = self.written(operator, operation.operands, left, right)
        if operation.checked and is_decimal(operation.type):
            text = self.checked(text, operation.type)
        return self.result(text, operation.type)._replace(magnitude=_sized(operator, left, right))

    def _double(self, value: Value) -> Value:
        """A number in DOUBLE, as DuckDB converts it."""
        if value.is_constant:
            return self.known(constants.cast(value.constant, value.type, DOUBLE), DOUBLE)
        if value.type == DOUBLE:
            return value
        return self.result(self.written("as double", value.type, value), DOUBLE)._replace(magnitude=magnitude(value))

    def _floating(self, operator: str, left: Value, right: Value) -> Value:
        sized = _sized(operator.partition(" ")[0], left, right)
        if sized is None and (operator, "double") not in self.OPERATIONS:
            raise self.refuse(f"{operator} on DOUBLE of any size, where what is too large is an error")
        return self.result(self.written(operator, DOUBLE, left, right), DOUBLE)._replace(magnitude=sized)

    def _on_div(self, node: exp.Div, columns: Columns) -> Value:
        left, right = self.value(node.this, columns), self.value(node.expression, columns)
        numbers = all(is_number(each.type) and each.type != FLOAT for each in (left, right))
        if not numbers or (right.is_constant and right.constant is None):
            raise self.refuse(f"{left.type} / {right.type}")
        one, other = self._double(left), self._double(right)
        if right.is_constant and right.constant:
            return self._floating("/ constant", one, other)
        if _sized("/", one, other) is None and ("/", "double") not in self.OPERATIONS:
            raise self.refuse("/ on DOUBLE of any size, where what is too large is an error")
        # The result may be an infinity or NaN: it is of any size.
        return Value(self.written("/", right.type, one, other), DOUBLE, True)

    def _moved(self, operator: str, node: exp.Binary, columns: Columns) -> Value:
        start, (months, rest) = self.value(node.this, columns), constants.span(node.expression)
        sign = {"+": 1, "-": -1}.get(operator)
        if sign is None or start.type not in (DATE, TIMESTAMP) or not start.is_constant or start.constant is None:
            raise self.refuse(f"{start.type} {operator} interval")
        return self.known(constants.moved(start.constant, sign * months, sign * rest), TIMESTAMP)

    def _on_dpipe(self, node: exp.DPipe, columns: Columns) -> Value:
        left, right = self.value(node.this, columns), self.value(node.expression, columns)
        if (left.type, right.type) != (VARCHAR, VARCHAR):
            raise self.refuse(f"{left.type} || {right.type}")
        return self.result(self.written("||", VARCHAR, left, right), VARCHAR)


def _sized(operator: str, left: Value, right: Value) -> Magnitude | None:
    one, other = magnitude(left), magnitude(right)
    return None if one is None or other is None else one.combined(operator, other)
