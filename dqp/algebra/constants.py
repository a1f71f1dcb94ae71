"""Converts literal expressions to Python values, and back.

A value is an int, float, Decimal, str, bool, date, datetime or timedelta: the types that Python compares as DuckDB
does. A literal of another type, or a cast that fails, is not a constant here.
"""

from __future__ import annotations

import datetime
import math
from decimal import Decimal
from typing import Any

from sqlglot import exp

Value = int | float | Decimal | str | bool | datetime.date | datetime.datetime
_TIMESTAMPS = (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPNTZ)
_BITS = {exp.DType.TINYINT: 8, exp.DType.SMALLINT: 16, exp.DType.INT: 32, exp.DType.BIGINT: 64, exp.DType.INT128: 128}
PLACE = "place"
"""Argument of a literal that stands for a parameter: the parameter's name or number (``dqp.binding.marks``)."""
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  TIMESTAMP has no zone


def value(node: Any) -> Value | None:
    """The value of a literal; None for anything else, and for NULL."""
    if isinstance(node, exp.Literal):
        return node.name if node.is_string else _number(node.name)
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.Paren):
        return value(node.this)
    if isinstance(node, exp.Neg):
        inner = value(node.this)
        return negated(inner) if isinstance(inner, int | float | Decimal) and not isinstance(inner, bool) else None
    if type(node) is exp.Cast and isinstance(node.this, exp.Literal):
        return _typed(node.this, node.to)
    return None


def listed(node: exp.In) -> tuple[tuple[Any, bool, str], ...] | None:
    """The literals of a list, each with the type it is cast to, and whether it is a text; None if the list has anything
    else. Equal for equal lists, and made ten times as fast as their SQL."""
    literals: list[tuple[Any, bool, str]] = []
    for each in node.expressions:
        literal, kind = each, None
        if type(each) is exp.Cast and not each.to.expressions and not each.to.args.get("kind"):
            literal, kind = each.this, each.to.this
        if not isinstance(literal, exp.Literal) or PLACE in literal.args:
            return None
        literals.append((kind, literal.is_string, literal.name))
    return tuple(literals) or None


def negated(value: int | float | Decimal) -> int | float | Decimal:
    """The number with the other sign. (Python's minus would round a decimal to 28 digits.)"""
    return value.copy_negate() if isinstance(value, Decimal) else -value


def _number(text: str) -> int | float | Decimal | None:
    try:
        if text.isdigit():
            return int(text)
        return float(text) if "e" in text.lower() else Decimal(text)
    except (ValueError, ArithmeticError):
        return None


def _typed(literal: exp.Literal, to: Any) -> Value | None:
    kind = to.this if isinstance(to, exp.DataType) else None
    text = literal.name
    try:
        if kind == exp.DType.DATE and literal.is_string:
            return datetime.date.fromisoformat(text) if len(text) == 10 else None
        if kind in _TIMESTAMPS and literal.is_string:
            moment = datetime.datetime.fromisoformat(text)
            return moment if moment.tzinfo is None else None
        if kind in _BITS:
            whole = int(text)
            return whole if -1 << _BITS[kind] - 1 <= whole < 1 << _BITS[kind] - 1 else None
        if kind == exp.DType.DECIMAL:
            digits, scale = (*(int(each.name) for each in to.expressions), 0)[:2] if to.expressions else (18, 3)
            number = Decimal(text)
            fits = -int(number.as_tuple().exponent) <= scale and number.copy_abs() < 10 ** (digits - scale)
            return number if fits else None
        if kind == exp.DType.DOUBLE:
            return float(text)
        if kind in exp.DataType.TEXT_TYPES and literal.is_string:
            return text
    except (ValueError, ArithmeticError):
        return None
    return None


def literal(value: Value) -> exp.Expression:
    """The literal of a value. Raises ValueError for other types, such as bytes or a time of day."""
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, str):
        return exp.Literal(this=value, is_string=True)
    if isinstance(value, datetime.datetime):
        return _cast(value.isoformat(sep=" "), "TIMESTAMP")
    if isinstance(value, datetime.date):
        return _cast(value.isoformat(), "DATE")
    if isinstance(value, float):
        return _cast(repr(value), "DOUBLE")
    if not isinstance(value, int | Decimal):
        raise ValueError(f"There is no literal of a {type(value).__name__}.")
    text = format(value.copy_abs(), "f") if isinstance(value, Decimal) else str(abs(value))
    plain = exp.Literal(this=text, is_string=False)
    return exp.Neg(this=plain) if value < 0 else plain


def _cast(text: str, kind: str) -> exp.Expression:
    return exp.Cast(this=exp.Literal(this=text, is_string=True), to=exp.DataType.build(kind, dialect="duckdb"))


def ends(values: Any) -> tuple[Any, Any] | None:
    """The lowest and the highest value of an Arrow array (both None if it has none). None if Python has no value for
    one of them, such as a day after the year 9999. Raises pyarrow.ArrowNotImplementedError for a type without an
    order."""
    import pyarrow.compute as pc

    extremes = pc.min_max(values)
    try:
        return extremes["min"].as_py(), extremes["max"].as_py()
    except (OverflowError, ValueError):
        return None


def narrowed(low: int, high: int, comparison: exp.Expression) -> tuple[int, int] | None:
    """The ends of a column's range that a comparison with a whole number leaves; None for another comparison."""
    bound = value(comparison.args.get("expression"))
    if not isinstance(bound, int) or isinstance(bound, bool):
        return None
    match comparison:
        case exp.EQ():
            return max(low, bound), min(high, bound)
        case exp.LT() | exp.LTE():
            return low, min(high, bound - isinstance(comparison, exp.LT))
        case exp.GT() | exp.GTE():
            return max(low, bound + isinstance(comparison, exp.GT)), high
    return None


def number(value: Any) -> float | None:
    """The value as a number, to interpolate within a range; None for text and for infinite values."""
    if isinstance(value, datetime.datetime):
        return (value.replace(tzinfo=None) - _EPOCH).total_seconds()
    if isinstance(value, datetime.date):
        return (value.toordinal() - _EPOCH.toordinal()) * 86400.0
    if isinstance(value, int | float | Decimal):
        place = float(value)
        return place if math.isfinite(place) else None
    return None


def year(place: float) -> float:
    """The year of a date or timestamp with that number; approximate beyond Python's range of dates."""
    try:
        return float((_EPOCH + datetime.timedelta(seconds=place)).year)
    except OverflowError:
        return 1970.0 + place // 31_556_952
