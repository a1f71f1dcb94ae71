"""Defines ``Estimate``: an operator's rows, and the statistics of its columns.

``distinct`` counts the values of a column before filters on other columns. The number among the remaining rows is at
most the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sqlglot import exp

from dqp.planning.costing.columns import UNKNOWN, ColumnStatistics
from dqp.planning.costing.computed import statistics_of


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

    def computed(self, node: exp.Expression) -> ColumnStatistics:
        """The statistics of a column that is computed from these."""
        return statistics_of(node, self.columns, self.rows)

    def renamed(self, items: Iterable[tuple[str, exp.Expression]]) -> Estimate:
        """The estimate for the same rows with the computed columns ``items``."""
        names: dict[str, str] = {}
        columns = {}
        same = {}
        for name, each in items:
            columns[name] = self.computed(each)
            if isinstance(each, exp.Column):
                names.setdefault(each.name, name)
                same[name] = self.same.get(each.name, each.name)
        keys = {
            frozenset(names[each] for each in key): count for key, count in self.keys.items() if key <= names.keys()
        }
        return Estimate(self.rows, columns, keys, same)
