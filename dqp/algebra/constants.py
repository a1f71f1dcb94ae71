"""Literal expressions as Python values, and back.

A value is an int, float, Decimal, str, bool, date, datetime or timedelta; only those whose comparison in Python is that
of DuckDB are taken: a literal of another kind is no constant here, nor a cast that fails.
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
_EPOCH = datetime.datetime(1970, 1, 1)  # noqa: DTZ001  TIMESTAMP has no zone


def value(node: Any) -> Value | None:
    """The value of a literal, None for anything else (NULL too)."""
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


def negated(given: int | float | Decimal) -> int | float | Decimal:
    """The number with the other sign; a minus would round a decimal to 28 digits."""
    return given.copy_negate() if isinstance(given, Decimal) else -given


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


def literal(given: Value) -> exp.Expression:
    """The literal of a value. ValueError for what is none, such as bytes or the time of a day."""
    if isinstance(given, bool):
        return exp.Boolean(this=given)
    if isinstance(given, str):
        return exp.Literal(this=given, is_string=True)
    if isinstance(given, datetime.datetime):
        return _cast(given.isoformat(sep=" "), "TIMESTAMP")
    if isinstance(given, datetime.date):
        return _cast(given.isoformat(), "DATE")
    if isinstance(given, float):
        return _cast(repr(given), "DOUBLE")
    if not isinstance(given, int | Decimal):
        raise ValueError(f"There is no literal of a {type(given).__name__}.")
    text = format(given.copy_abs(), "f") if isinstance(given, Decimal) else str(abs(given))
    plain = exp.Literal(this=text, is_string=False)
    return exp.Neg(this=plain) if given < 0 else plain


def _cast(text: str, kind: str) -> exp.Expression:
    return exp.Cast(this=exp.Literal(this=text, is_string=True), to=exp.DataType.build(kind, dialect="duckdb"))


def ends(values: Any) -> tuple[Any, Any] | None:
    """The lowest and the highest of an Arrow array's values (both None where it has none); None where Python has no
    value for one of them, such as a day after the year 9999. Raises pyarrow.ArrowNotImplementedError for a type that
    has no order."""
    import pyarrow.compute as pc

    found = pc.min_max(values)
    try:
        return found["min"].as_py(), found["max"].as_py()
    except (OverflowError, ValueError):
        return None


def number(given: Any) -> float | None:
    """A place on a line for values that are spread evenly over a range; None for text and what is beyond any place."""
    if isinstance(given, datetime.datetime):
        return (given.replace(tzinfo=None) - _EPOCH).total_seconds()
    if isinstance(given, datetime.date):
        return (given.toordinal() - _EPOCH.toordinal()) * 86400.0
    if isinstance(given, int | float | Decimal):
        place = float(given)
        return place if math.isfinite(place) else None
    return None


def year(place: float) -> float:
    """The year of a date or timestamp at that place on the line; of one that Python has no date for, about."""
    try:
        return float((_EPOCH + datetime.timedelta(seconds=place)).year)
    except OverflowError:
        return 1970.0 + place // 31_556_952
