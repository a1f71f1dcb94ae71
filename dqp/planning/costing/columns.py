"""Defines ``ColumnStatistics``, what is known or estimated of the values of a column."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dqp.algebra.constants import ends, number

WIDTH = 8.0
"""Assumed bytes of a value."""


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """Statistics of a column. ``low`` and ``high`` are numbers (``dqp.algebra.constants.number``), None for text or if
    unknown. ``bell``: mean and standard deviation, if the values lie around a mean and are not spread evenly. ``most``:
    an upper bound of the remaining distinct values, if it is less than ``distinct`` or that is unknown. ``common``: the
    part of the rows that each of some values has. ``identifies``: it is a key of its table, although joins may have
    repeated its values."""

    distinct: float | None = None
    null_fraction: float = 0.0
    low: float | None = None
    high: float | None = None
    width: float = WIDTH
    bell: tuple[float, float] | None = None
    most: float | None = None
    common: Mapping[Any, float] | None = None
    identifies: bool = False

    def frequency(self, value: Any, default: float) -> float:
        """The part of the rows with this value; ``default`` if nothing is known of the column."""
        if not self.common:
            return (1 - self.null_fraction) / max(1.0, self.distinct) if self.distinct else default
        rest = max(0.0, 1 - self.null_fraction - sum(self.common.values()))
        others = max(1.0, (self.distinct or 0.0) - len(self.common))
        return self.common.get(value, rest / others)


UNKNOWN = ColumnStatistics()


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
