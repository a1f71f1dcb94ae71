"""Defines ``Estimate``: an operator's rows, and for each column distinct values, NULLs, lowest and highest value,
bytes.

``distinct`` counts the values of a column before filters on other columns. The number among the remaining rows is at
most the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sqlglot import exp

from dqp.algebra.constants import ends, number, value, year
from dqp.algebra.operators import Nested
from dqp.algebra.trees import used

WIDTH = 8.0
"""Assumed bytes of a value."""
FAR = 6.0
"""Standard deviations from the mean within which nearly all values lie."""


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column. ``low`` and ``high`` are numbers (``dqp.algebra.constants.number``), None for text or if
    unknown. ``bell``: mean and standard deviation, if the values lie around a mean and are not spread evenly. ``most``:
    an upper bound of the remaining distinct values, if it is less than ``distinct`` or that is unknown. ``common``: the
    part of the rows that each of some values has."""

    distinct: float | None = None
    null_fraction: float = 0.0
    low: float | None = None
    high: float | None = None
    width: float = WIDTH
    bell: tuple[float, float] | None = None
    most: float | None = None
    common: Mapping[Any, float] | None = None

    def frequency(self, value: Any, default: float) -> float:
        """The part of the rows with this value; ``default`` if nothing is known of the column."""
        if not self.common:
            return (1 - self.null_fraction) / max(1.0, self.distinct) if self.distinct else default
        rest = max(0.0, 1 - self.null_fraction - sum(self.common.values()))
        others = max(1.0, (self.distinct or 0.0) - len(self.common))
        return self.common.get(value, rest / others)


UNKNOWN = ColumnStatistics()


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated rows with the statistics of their columns. ``keys``: unique combinations of columns, each with its
    number of combinations before filters. ``same``: one common name for columns that joins made equal."""

    rows: float
    columns: Mapping[str, ColumnStatistics]
    keys: Mapping[frozenset[str], float] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)

    @property
    def width(self) -> float:
        return sum(each.width for each in self.columns.values())

    @property
    def bytes(self) -> float:
        """Bytes of all columns in all rows."""
        return self.rows * self.width

    def distinct(self, identifiers: Iterable[str]) -> float:
        """The number of distinct combinations of these columns in the rows."""
        product = 1.0
        for each in identifiers:
            known = self.columns.get(each, UNKNOWN)
            product *= min(known.distinct or max(1.0, self.rows * 0.1), known.most or math.inf)
            if product >= self.rows:
                return max(1.0, self.rows)
        return max(1.0, min(product, self.rows))

    def values(self, identifier: str, part: float = 1.0) -> float:
        """The expected distinct values of a column in a part of the rows: for a key one for each row, for other columns
        as many as that many random draws find (A. Cardenas, "Analysis and performance of inverted data base
        structures", 1975)."""
        rows = max(1.0, self.rows * part)
        known = self.columns.get(identifier, UNKNOWN)
        distinct = known.distinct if known.most is None else known.most
        if distinct is None or frozenset((identifier,)) in self.keys:
            return rows
        return max(1.0, min(rows, distinct * -math.expm1(-rows / max(1.0, distinct))))

    def renamed(self, items: Iterable[tuple[str, exp.Expression]]) -> Estimate:
        """The estimate for the same rows with the computed columns ``items``."""
        names: dict[str, str] = {}
        columns = {}
        same = {}
        for name, each in items:
            columns[name] = statistics_of(each, self)
            if isinstance(each, exp.Column):
                names.setdefault(each.name, name)
                same[name] = self.same.get(each.name, each.name)
        keys = {
            frozenset(names[each] for each in key): count for key, count in self.keys.items() if key <= names.keys()
        }
        return Estimate(self.rows, columns, keys, same)


def common(one: ColumnStatistics, other: ColumnStatistics, rows: float) -> ColumnStatistics:
    """Statistics of two columns that a join makes equal; ``rows``: of its smaller side."""
    known = [each.distinct for each in (one, other) if each.distinct is not None]
    low = max((each for each in (one.low, other.low) if each is not None), default=None)
    high = min((each for each in (one.high, other.high) if each is not None), default=None)
    return ColumnStatistics(min([*known, rows]) if known else None, 0.0, low, high, max(one.width, other.width))


def either(one: ColumnStatistics, other: ColumnStatistics) -> ColumnStatistics:
    """Statistics of a column that has the values of both."""
    distinct = None if one.distinct is None or other.distinct is None else one.distinct + other.distinct
    low = None if one.low is None or other.low is None else min(one.low, other.low)
    high = None if one.high is None or other.high is None else max(one.high, other.high)
    fraction = max(one.null_fraction, other.null_fraction)
    return ColumnStatistics(distinct, fraction, low, high, max(one.width, other.width))


def exact(values: Any) -> ColumnStatistics:
    """Exact statistics of an Arrow array."""
    import pyarrow as pa
    import pyarrow.compute as pc

    size = max(1, len(values))
    width = values.nbytes / size
    try:
        distinct = float(pc.count_distinct(values, mode="only_valid").as_py())
        low, high = ends(values) or (None, None)
    except pa.ArrowNotImplementedError:
        return ColumnStatistics(None, values.null_count / size, None, None, width)
    return ColumnStatistics(distinct, values.null_count / size, number(low), number(high), width)


def statistics_of(node: exp.Expression, estimate: Estimate) -> ColumnStatistics:
    """The statistics of a computed column."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column):
        return estimate.columns.get(node.name, UNKNOWN)
    if isinstance(node, exp.Extract | exp.Year):
        return _part_of_date(node, estimate)
    if isinstance(node, exp.Min | exp.Max):
        inner = statistics_of(node.this, estimate) if isinstance(node.this, exp.Expression) else UNKNOWN
        return replace(inner, distinct=None)
    if isinstance(node, exp.Substring):
        inner = statistics_of(node.this, estimate)
        length = value(node.args.get("length"))
        if isinstance(length, int) and not isinstance(length, bool):
            most = min(float(length), inner.width)
            few = min(inner.distinct or math.inf, 40.0 ** min(length, 8), max(1.0, estimate.rows * 0.1))
            return ColumnStatistics(few, inner.null_fraction, None, None, most)
        return replace(inner, low=None, high=None)
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Column):
        return estimate.columns.get(node.this.name, UNKNOWN)
    if isinstance(node, exp.Boolean | exp.Literal | exp.Null):
        return ColumnStatistics(1.0, 0.0, None, None, float(len(node.name)) if node.is_string else WIDTH)
    if isinstance(node, exp.Case):
        return ColumnStatistics(float(len(node.args["ifs"]) + 1), 0.0, None, None, WIDTH)
    if isinstance(node, exp.AggFunc | exp.Window | Nested):
        return UNKNOWN
    names = used(node)
    known = [estimate.columns.get(each, UNKNOWN).distinct for each in names]
    if not names or None in known:
        return UNKNOWN
    return ColumnStatistics(min(estimate.rows, math.prod(each for each in known if each is not None)))


def aggregated(node: exp.Expression, estimate: Estimate, size: float) -> ColumnStatistics:
    """The statistics of an aggregate over groups of ``size`` rows. The size is Poisson distributed, which gives the
    distribution of counts, and of sums of non-negative values that are spread evenly."""
    if isinstance(node, exp.Count):
        return _bell(size, size)
    if isinstance(node, exp.Sum) and isinstance(node.this, exp.Column):
        inner = estimate.columns.get(node.this.name, UNKNOWN)
        low, high = inner.low, inner.high
        if low is not None and high is not None and low >= 0:
            return _bell(size * (low + high) / 2, size * (low * low + low * high + high * high) / 3)
    return statistics_of(node, estimate)


def _bell(mean: float, variance: float) -> ColumnStatistics:
    deviation = math.sqrt(variance)
    return ColumnStatistics(None, 0.0, 0.0, mean + FAR * deviation, bell=(mean, deviation))


def _part_of_date(node: exp.Expression, estimate: Estimate) -> ColumnStatistics:
    part, of = (node.name.upper(), node.expression) if isinstance(node, exp.Extract) else ("YEAR", node.this)
    inner = statistics_of(of, estimate)
    if part == "YEAR":
        if inner.low is None or inner.high is None:
            return ColumnStatistics(20.0)
        low, high = year(inner.low), year(inner.high)
        return ColumnStatistics(high - low + 1.0, 0.0, low, high)
    few = {"MONTH": 12.0, "QUARTER": 4.0, "DAY": 31.0, "HOUR": 24.0, "MINUTE": 60.0, "SECOND": 60.0}.get(part)
    return ColumnStatistics(few or inner.distinct)
