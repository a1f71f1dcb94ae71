"""Estimates the statistics of computed columns.

A step function (``date_trunc``, ``floor``, a cast to DATE …) has at most as many values as steps lie between the lowest
and the highest value of its column; the part of a moment (``month``, ``hour`` …) has a fixed number.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from sqlglot import exp

from dqp.algebra.constants import number, value, year
from dqp.algebra.functions import function_name
from dqp.algebra.operators import Nested
from dqp.algebra.trees import used
from dqp.planning.costing.columns import UNKNOWN, WIDTH, ColumnStatistics

FAR = 6.0
"""Standard deviations from the mean within which nearly all values lie."""
_SECONDS = {
    "MICROSECOND": 1e-6,
    "MILLISECOND": 1e-3,
    "SECOND": 1.0,
    "MINUTE": 60.0,
    "HOUR": 3600.0,
    "DAY": 86400.0,
    "WEEK": 604800.0,
    "MONTH": 2_629_746.0,
    "QUARTER": 7_889_238.0,
    "YEAR": 31_556_952.0,
}
"""Of the unit of a step."""
_PARTS = {
    "MONTH": 12.0,
    "QUARTER": 4.0,
    "WEEK": 53.0,
    "DAY": 31.0,
    "DAYOFWEEK": 7.0,
    "DOW": 7.0,
    "ISODOW": 7.0,
    "WEEKDAY": 7.0,
    "DAYOFWEEKISO": 7.0,
    "DAYOFMONTH": 31.0,
    "DAYOFYEAR": 366.0,
    "DOY": 366.0,
    "HOUR": 24.0,
    "MINUTE": 60.0,
    "SECOND": 60.0,
}
"""Values of a part of a moment."""
_OF_FORMAT = (("fgn", "MILLISECOND"), ("ScT", "SECOND"), ("M", "MINUTE"), ("HIp", "HOUR"), ("dejuwaAxD", "DAY"))
"""Letters of strftime, the finest first, and the unit that they tell apart."""
_ARITHMETIC = (exp.Floor, exp.Ceil, exp.Round, exp.IntDiv, exp.Mod, exp.Add, exp.Sub, exp.Mul, exp.Div)
_DIGITS = 300.0
"""Most digits to which a number is rounded: 10 to the power of more is no number here."""
Columns = Mapping[str, ColumnStatistics]


def statistics_of(node: exp.Expression, columns: Columns, rows: float) -> ColumnStatistics:
    """The statistics of what is computed from these columns of so many rows."""

    def of(one: object) -> ColumnStatistics:
        return statistics_of(one, columns, rows) if isinstance(one, exp.Expression) else UNKNOWN

    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column):
        return columns.get(node.name, UNKNOWN)
    if isinstance(node, exp.Cast):
        inner = _of_type(of(node.this), node.to)
        return _stepped(inner, _SECONDS["DAY"]) if node.to.is_type(exp.DataType.Type.DATE) else inner
    if isinstance(node, exp.Boolean | exp.Literal | exp.Null):
        return ColumnStatistics(1.0, 0.0, None, None, float(len(node.name)) if node.is_string else WIDTH)
    if isinstance(node, exp.Min | exp.Max):
        return replace(of(node.this), distinct=None)
    if isinstance(node, exp.AggFunc | exp.Window | Nested):
        return UNKNOWN
    if isinstance(node, exp.Case):
        return ColumnStatistics(float(len(node.args["ifs"]) + 1), 0.0, None, None, WIDTH)
    if isinstance(node, exp.Predicate | exp.Not | exp.Connector):
        return ColumnStatistics(2.0, 0.0, None, None, 1.0)
    if isinstance(node, exp.Substring | exp.Left):
        length = value(node.args.get("length") if isinstance(node, exp.Substring) else node.expression)
        return _beginning(of(node.this), length, rows)
    if isinstance(node, exp.TimestampTrunc | exp.DateTrunc):
        return _stepped(of(node.this), _SECONDS.get(node.unit.name.upper() if node.unit else ""))
    if isinstance(node, exp.TimeToStr):
        return _stepped(of(node.this), _SECONDS.get(_finest(value(node.args["format"])) or ""), text=True)
    if isinstance(node, _ARITHMETIC):
        by = number(value(node.args.get("expression") or node.args.get("decimals")))
        if (found := _arithmetic(node, of(node.this), by)) is not None:
            return found
    if (part := _part(node)) is not None:
        return _part_of_moment(part[0], of(part[1]))
    known = [columns.get(each, UNKNOWN).distinct for each in used(node)]
    if not known or None in known:
        return UNKNOWN
    return ColumnStatistics(min(rows, math.prod(each for each in known if each is not None)))


def aggregated(node: exp.Expression, columns: Columns, rows: float, size: float) -> ColumnStatistics:
    """The statistics of an aggregate over groups of ``size`` rows. The size is Poisson distributed, which gives the
    distribution of counts, and of sums of non-negative values that are spread evenly."""
    if isinstance(node, exp.Count):
        return _bell(size, size)
    if isinstance(node, exp.Sum) and isinstance(node.this, exp.Column):
        inner = columns.get(node.this.name, UNKNOWN)
        low, high = inner.low, inner.high
        if low is not None and high is not None and low >= 0:
            return _bell(size * (low + high) / 2, size * (low * low + low * high + high * high) / 3)
    return statistics_of(node, columns, rows)


def _of_type(inner: ColumnStatistics, to: exp.DataType) -> ColumnStatistics:
    """Texts of other values, and other values of texts, are not those that are common."""
    texts = to.is_type(*exp.DataType.TEXT_TYPES)
    changed = any(isinstance(each, str) != texts for each in inner.common or ())
    return replace(inner, common=None) if changed else inner


def _bell(mean: float, variance: float) -> ColumnStatistics:
    deviation = math.sqrt(variance)
    return ColumnStatistics(None, 0.0, 0.0, mean + FAR * deviation, bell=(mean, deviation))


def _stepped(inner: ColumnStatistics, step: float | None, *, text: bool = False) -> ColumnStatistics:
    """As many values as steps lie in the range, at most those of the column."""
    if text:
        return replace(_stepped(inner, step), low=None, high=None, width=WIDTH)
    if step is None or inner.low is None or inner.high is None:
        return inner
    steps = (inner.high - inner.low) / step + 1.0
    return replace(inner, distinct=min(inner.distinct or math.inf, steps), common=None)


def _arithmetic(node: exp.Expression, inner: ColumnStatistics, by: float | None) -> ColumnStatistics | None:
    """Of a column and a number; None for anything else."""
    if isinstance(node, exp.Floor | exp.Ceil):
        return _stepped(inner, 1.0)
    if isinstance(node, exp.Round):
        return _stepped(inner, 10.0 ** -max(-_DIGITS, min(by or 0.0, _DIGITS)))
    if by is None or (by == 0 and isinstance(node, exp.Div | exp.IntDiv | exp.Mod)):
        return None
    if isinstance(node, exp.Mod):
        return ColumnStatistics(min(abs(by), inner.distinct or math.inf), inner.null_fraction, width=inner.width)
    changed = replace(inner, bell=None, common=None)
    if inner.low is not None and inner.high is not None:
        ends = [_changed(node, each, by) for each in (inner.low, inner.high)]
        changed = replace(changed, low=min(ends), high=max(ends))
    return _stepped(changed, 1.0) if isinstance(node, exp.IntDiv) else changed


def _changed(node: exp.Expression, one: float, by: float) -> float:
    if isinstance(node, exp.Add | exp.Sub):
        return one + by if isinstance(node, exp.Add) else one - by
    return one * by if isinstance(node, exp.Mul) else one / by


def _beginning(inner: ColumnStatistics, length: object, rows: float) -> ColumnStatistics:
    """Of the first letters of a text."""
    if not isinstance(length, int) or isinstance(length, bool) or length < 0:
        return replace(inner, low=None, high=None)
    few = min(inner.distinct or math.inf, 40.0 ** min(length, 8), max(1.0, rows * 0.1))
    return ColumnStatistics(few, inner.null_fraction, None, None, min(float(length), inner.width))


def _finest(format: object) -> str | None:
    """The unit that a format of strftime tells apart; None for one that nobody knows."""
    if not isinstance(format, str):
        return None
    letters = {format[at + 1 : at + 2] for at, each in enumerate(format) if each == "%"}
    found = next((unit for known, unit in _OF_FORMAT if letters & set(known)), None)
    return found or ("MONTH" if letters & set("mbB") else "YEAR")


def _part(node: exp.Expression) -> tuple[str, exp.Expr] | None:
    """The part of a moment that a function gives, and the moment."""
    if isinstance(node, exp.Extract):
        return node.name.upper(), node.expression
    if isinstance(node, exp.Anonymous):
        name, arguments = function_name(node).upper(), node.expressions
        if name in ("DATE_PART", "DATEPART") and len(arguments) == 2:
            return arguments[0].name.upper(), arguments[1]
    elif isinstance(node, exp.Func):
        name, arguments = type(node).__name__.upper(), [node.this]
    else:
        return None
    return (name, arguments[0]) if (name in _PARTS or name == "YEAR") and len(arguments) == 1 else None


def _part_of_moment(part: str, inner: ColumnStatistics) -> ColumnStatistics:
    if part == "YEAR":
        if inner.low is None or inner.high is None:
            return ColumnStatistics(20.0)
        low, high = year(inner.low), year(inner.high)
        return ColumnStatistics(high - low + 1.0, 0.0, low, high)
    return ColumnStatistics(_PARTS.get(part) or inner.distinct)
