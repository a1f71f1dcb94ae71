"""Estimates the rows of each operator, and the seconds to get them.

Each operator changes the statistics of its inputs (``dqp.planning.costing.estimates``), starting from those of the
tables; ``dqp.planning.costing.selectivity`` has the effect of predicates and joins. The constants are measured.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from dqp.algebra.chains import conjuncts
from dqp.algebra.constants import number
from dqp.algebra.dialects import Costs, properties
from dqp.algebra.operators import (
    Aggregate,
    Call,
    Distinct,
    Exchange,
    Filter,
    Inline,
    Join,
    Operator,
    Project,
    Remote,
    Scan,
    SetOperation,
    Sort,
    Verbatim,
)
from dqp.planning.costing.columns import UNKNOWN, WIDTH, ColumnStatistics, either, exact
from dqp.planning.costing.computed import aggregated
from dqp.planning.costing.estimates import Estimate
from dqp.planning.costing.selectivity import joined, selectivity

if TYPE_CHECKING:
    import pyarrow as pa

    from dqp.algebra.table import Table
    from dqp.catalog.statistics.learned import Learned


ROUND_TRIP = 3e-3
"""Seconds for one more statement."""
LOCAL_ROW = 5e-8
"""Seconds for one input row of a join or an aggregate in DuckDB."""
LOCAL_BUILD = 1e-7
"""Seconds to put one row into a hash table of DuckDB."""

DISTINCT = 0.1
"""Distinct values in the rows from which there are more of them in more rows (PostgreSQL's rule)."""
COUNTED = (Filter, Join, Aggregate, Distinct, SetOperation)
"""Operators that change the number of rows, and say nothing but how."""


def costs(dialect: str) -> Costs:
    """The cost constants of sources of the dialect."""
    return properties(dialect).COSTS


class Estimator:
    """Estimates trees, each tree object once. ``learned``: actual figures, which count more. Not thread-safe."""

    def __init__(self, learned: Learned | None = None) -> None:
        self.learned = learned
        self.corrections: dict[str, None] = {}
        """What was learned and changes estimates, for people."""
        self._known: dict[int, tuple[Operator, Estimate]] = {}
        self._tables: dict[int, tuple[Table, dict[str, ColumnStatistics]]] = {}
        self._counted: dict[int, tuple[Table, Table]] = {}

    def again(self) -> Estimator:
        """Another one that knows as much."""
        return Estimator(self.learned)

    def of(self, tree: Operator) -> Estimate:
        cached = self._known.get(id(tree))
        if cached is not None:
            return cached[1]
        estimate: Estimate = getattr(self, "_" + type(tree).__name__.lower())(tree)
        if self.learned is not None and isinstance(tree, COUNTED):
            rows = self.learned.rows(tree)
            if rows is not None:
                self.corrections[f"{rows:,.0f} rows came the last time, about {estimate.rows:,.0f} expected"] = None
                estimate = replace(estimate, rows=max(1.0, rows))
        self._known[id(tree)] = (tree, estimate)
        return estimate

    def seconds(self, tree: Remote) -> float:
        """Seconds that the statement took to its first row, as far as that was learned."""
        seconds = None if self.learned is None else self.learned.seconds(tree.tree)
        if seconds is None:
            return 0.0
        self.corrections[f"{tree.source}: a statement like this took {seconds:.2g} s, at least"] = None
        return seconds

    def measured(self, tree: Operator, data: pa.Table) -> None:
        """Sets known statistics of a tree, or of some of its columns; later estimates start from them."""
        known = set(data.column_names)
        guessed = {} if known.issuperset(tree.columns) else self.of(tree).columns
        columns = {each: exact(data.column(each)) if each in known else guessed[each] for each in tree.columns}
        self._known[id(tree)] = (tree, Estimate(max(1.0, float(data.num_rows)), columns))

    def larger(self, leaf: Remote | Inline, size: float) -> None:
        """Sets that a leaf has at least so many bytes; later estimates, also of what is above it, start from them."""
        estimate = self.of(leaf)
        rows = max(estimate.rows, size / max(1.0, estimate.width))
        self._known = {at: each for at, each in self._known.items() if isinstance(each[0], Remote | Inline)}
        self._known[id(leaf)] = (leaf, replace(estimate, rows=rows))

    def rows(self, tree: Operator) -> float:
        return self.of(tree).rows

    def fetch(self, tree: Operator, dialect: str) -> float:
        """Seconds to fetch the tree's rows from its source, without the source's own work."""
        estimate = self.of(tree)
        one = costs(dialect)
        return ROUND_TRIP + estimate.rows * (one.row + one.byte * estimate.width)

    # Leaves.

    def _scan(self, tree: Scan) -> Estimate:
        table = tree.table
        counted = None if self.learned is None else self.learned.rows(tree)
        if counted is not None:
            table = self._with_rows(table, counted)
        statistics = self._table(table)
        rows = max(1.0, table.rows or 0.0)
        names = {name: each for each, name in reversed(tree.items)}
        keys = {
            frozenset(names[each] for each in key): rows for key in table.keys if all(each in names for each in key)
        }
        return Estimate(rows, {each: statistics[name] for each, name in tree.items}, dict.fromkeys(keys, rows))

    def _with_rows(self, table: Table, rows: float) -> Table:
        """The table with as many rows as were counted; values that nearly every row has are more or fewer, too."""
        known = self._counted.get(id(table))
        if known is None:
            self.corrections[f"{table}: {rows:,.0f} rows came the last time, about {table.rows:,.0f} expected"] = None
            factor = rows / max(1.0, table.rows)
            columns = tuple(
                replace(each, distinct=each.distinct * factor)
                if each.distinct is not None and each.distinct >= DISTINCT * table.rows
                else each
                for each in table.columns
            )
            known = self._counted[id(table)] = (table, replace(table, rows=rows, columns=columns))
        return known[1]

    def _table(self, table: Table) -> dict[str, ColumnStatistics]:
        cached = self._tables.get(id(table))
        if cached is None:
            keys = {key[0] for key in table.keys if len(key) == 1}
            known = {
                each.name: ColumnStatistics(
                    float(table.rows) if each.name in keys or each is table.rowid else each.distinct,
                    each.null_fraction or 0.0,
                    number(each.low),
                    number(each.high),
                    each.width or WIDTH,
                    common=dict(each.common),
                    identifies=each.name in keys,
                )
                for each in table.readable
            }
            for key in table.keys:
                _at_least(key, known, table.rows)
            cached = self._tables[id(table)] = (table, known)
        return cached[1]

    def _inline(self, tree: Inline) -> Estimate:
        data = tree.data
        rows = max(1.0, float(data.num_rows))
        return Estimate(rows, {each: exact(data.column(name)) for each, name in tree.items})

    def _remote(self, tree: Remote) -> Estimate:
        return self.of(tree.tree)

    # Rows fewer or in another order.

    def _filter(self, tree: Filter) -> Estimate:
        inner = self.of(tree.input)
        part, changed = selectivity(conjuncts(tree.condition), inner)
        columns = {**inner.columns, **changed} if changed else inner.columns
        return Estimate(max(1.0, inner.rows * part), columns, inner.keys, inner.same)

    def _distinct(self, tree: Distinct) -> Estimate:
        inner = self.of(tree.input)
        rows = inner.distinct(inner.columns)
        return Estimate(rows, inner.columns, {**inner.keys, frozenset(inner.columns): rows}, inner.same)

    def _sort(self, tree: Sort) -> Estimate:
        inner = self.of(tree.input)
        if tree.limit is None or tree.limit >= inner.rows:
            return inner
        return Estimate(max(1.0, float(tree.limit)), inner.columns, inner.keys, inner.same)

    def _exchange(self, tree: Exchange) -> Estimate:
        return self.of(tree.input)

    def _call(self, tree: Call) -> Estimate:
        inner = self.of(tree.input)
        return Estimate(inner.rows, {**inner.columns, tree.identifier: UNKNOWN}, inner.keys, inner.same)

    # Other columns.

    def _project(self, tree: Project) -> Estimate:
        return self.of(tree.input).renamed(tree.items)

    def _aggregate(self, tree: Aggregate) -> Estimate:
        inner = self.of(tree.input)
        grouped = inner.renamed(tree.keys)
        columns = dict(grouped.columns)
        if tree.sets is not None:
            rows = sum(grouped.distinct(one) if one else 1.0 for one in tree.sets)
            unique = {}
        else:
            rows = grouped.distinct(columns) if columns else 1.0
            unique = {frozenset(columns): rows}
            if len(columns) == 1:
                columns = {name: replace(each, distinct=rows) for name, each in columns.items()}
        columns |= {
            name: aggregated(each, inner.columns, inner.rows, inner.rows / rows) for name, each in tree.aggregates
        }
        return Estimate(rows, columns, unique, grouped.same)

    # Several inputs.

    def _join(self, tree: Join) -> Estimate:
        left, right = self.of(tree.left), self.of(tree.right)
        estimate = joined(left, right, tree.kind, conjuncts(tree.condition))
        columns = dict(estimate.columns)
        for side in (left, right):
            for name in side.columns:
                # The join may have more rows than this side, but not more distinct values.
                known = columns.get(name)
                if known is not None and (known.distinct is None or known.distinct > side.rows):
                    columns[name] = replace(known, most=min(side.rows, known.most or side.rows))
        return replace(estimate, columns=columns)

    def _setoperation(self, tree: SetOperation) -> Estimate:
        left, right = self.of(tree.left), self.of(tree.right)
        columns = {}
        for name, one, other in zip(tree.names, tree.left.columns, tree.right.columns, strict=True):
            columns[name] = either(left.columns.get(one, UNKNOWN), right.columns.get(other, UNKNOWN))
        if tree.kind == "union":
            rows = left.rows + right.rows
        else:
            rows = min(left.rows, right.rows) if tree.kind == "intersect" else left.rows
        both = Estimate(rows, columns)
        return both if tree.all else Estimate(both.distinct(columns), columns)

    def _verbatim(self, tree: Verbatim) -> Estimate:
        rows = max((self.of(each).rows for each in tree.parts), default=1.0)
        return Estimate(rows, dict.fromkeys(tree.columns, UNKNOWN))


def _at_least(key: tuple[str, ...], known: dict[str, ColumnStatistics], rows: float) -> None:
    """Corrects the distinct values of a key's columns, which often come from a sample: they must have at least as many
    combinations as there are rows."""
    for name in key:
        others = [known[each].distinct for each in key if each != name and each in known]
        distinct = known[name].distinct if name in known else None
        if distinct is not None and None not in others:
            least = rows / math.prod(max(1.0, each) for each in others if each is not None)
            known[name] = replace(known[name], distinct=max(distinct, least))
