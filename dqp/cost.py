"""How many rows an operator gives, and what it costs to have them: from the statistics of the tables.

The model is that of System R and PostgreSQL: values are spread evenly between the lowest and the highest, columns are
independent, and of two joined columns the one with fewer different values holds none that the other lacks
(containment). ``distinct`` of a column counts its values before filters on other columns: whoever needs the number in
the rows at hand takes the smaller of it and the rows.

Without statistics: a table has ``ROWS`` rows; see ``_DEFAULTS`` for predicates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlglot import exp

from dqp.constants import number, value, year
from dqp.operators import (
    Aggregate,
    Block,
    Call,
    Distinct,
    Exchange,
    Filter,
    Inline,
    Join,
    Nested,
    Operator,
    Project,
    Remote,
    Scan,
    SetOperation,
    Sort,
    conjuncts,
    used,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from dqp.catalog import Table

ROWS = 100_000.0
"""Of a table that nothing is known of."""
WIDTH = 8.0
"""Bytes of a value that nothing is known of."""
SELECTIVITY = "selectivity"
"""In the ``meta`` of a predicate: the part of the rows for which it holds, where whoever made it knows."""
SKEW = 3.0
_DEFAULTS = {
    "equal": 0.05,
    "range": 1 / 3,
    "like": 0.1,
    "prefix": 0.02,
    "other": 1 / 3,
    "exists": 0.5,
}
"""The part of the rows for which a predicate holds that the statistics do not tell."""


@dataclass(frozen=True)
class Costs:
    """Seconds. ``row`` and ``byte``: what fetching takes from the start of the statement's answer to batches in the
    evaluator, through a data service on the same machine; ``scan``: a row that the source reads without giving it;
    ``work``: a row that a join, sort or aggregate in the source takes."""

    row: float
    byte: float
    scan: float
    work: float


FETCH: Mapping[str, Costs] = {
    "postgresql": Costs(row=1.1e-6, byte=3e-9, scan=1e-7, work=3e-7),
    "mariadb": Costs(row=1.5e-6, byte=4e-9, scan=2e-7, work=8e-7),
    "sqlite": Costs(row=1.5e-6, byte=4e-9, scan=2e-7, work=8e-7),
    "duckdb": Costs(row=5e-8, byte=1e-9, scan=1e-8, work=5e-8),
}
"""By dialect; what is missing is like MariaDB."""
OTHER = FETCH["mariadb"]
ROUND_TRIP = 3e-3
"""A statement more."""
LOCAL_ROW = 5e-8
"""A row that a join or an aggregate of DuckDB takes."""
LOCAL_BUILD = 1e-7
"""A row that a hash table of DuckDB holds."""


def costs(dialect: str) -> Costs:
    return FETCH.get({"postgres": "postgresql", "mysql": "mariadb"}.get(dialect, dialect), OTHER)


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """``low`` and ``high`` as numbers on a line (``dqp.constants.number``), None for text or where unknown."""

    distinct: float | None = None
    null_fraction: float = 0.0
    low: float | None = None
    high: float | None = None
    width: float = WIDTH


UNKNOWN = ColumnStatistics()


@dataclass(frozen=True, slots=True)
class Estimate:
    """``bytes``: of all its columns in all its rows."""

    rows: float
    columns: Mapping[str, ColumnStatistics]

    @property
    def width(self) -> float:
        return sum(each.width for each in self.columns.values())

    @property
    def bytes(self) -> float:
        return self.rows * self.width

    def distinct(self, identifiers: Iterable[str]) -> float:
        """How many different combinations of these columns the rows hold."""
        product = 1.0
        for each in identifiers:
            product *= self.columns.get(each, UNKNOWN).distinct or max(1.0, self.rows * 0.1)
            if product >= self.rows:
                return max(1.0, self.rows)
        return max(1.0, min(product, self.rows))


class Estimator:
    """Estimates, each made once a tree (the very object: a tree is a value). Not to be shared between threads."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Operator, Estimate]] = {}
        self._tables: dict[int, tuple[Table, dict[str, ColumnStatistics]]] = {}

    def of(self, tree: Operator) -> Estimate:
        found = self._known.get(id(tree))
        if found is not None:
            return found[1]
        made: Estimate = getattr(self, "_" + type(tree).__name__.lower())(tree)
        self._known[id(tree)] = (tree, made)
        return made

    def measured(self, tree: Operator, data: pa.Table) -> None:
        """The rows of the tree are known: what is estimated from now on is estimated from them."""
        columns = {each: _exact(data.column(each)) for each in tree.columns}
        self._known[id(tree)] = (tree, Estimate(max(1.0, float(data.num_rows)), columns))

    def rows(self, tree: Operator) -> float:
        return self.of(tree).rows

    def fetch(self, tree: Operator, dialect: str) -> float:
        """Seconds to have the tree's rows out of its source, the source's own work not counted."""
        made = self.of(tree)
        one = costs(dialect)
        return ROUND_TRIP + made.rows * (one.row + one.byte * made.width)

    # Leaves.

    def _scan(self, tree: Scan) -> Estimate:
        statistics = self._table(tree.table)
        return Estimate(max(1.0, tree.table.rows or 0.0), {each: statistics[name] for each, name in tree.items})

    def _table(self, table: Table) -> dict[str, ColumnStatistics]:
        found = self._tables.get(id(table))
        if found is None:
            keys = {key[0] for key in table.keys if len(key) == 1}
            known = {
                each.name: ColumnStatistics(
                    float(table.rows) if each.name in keys else each.distinct,
                    each.null_fraction or 0.0,
                    number(each.low),
                    number(each.high),
                    each.width or WIDTH,
                )
                for each in table.columns
            }
            found = self._tables[id(table)] = (table, known)
        return found[1]

    def _inline(self, tree: Inline) -> Estimate:
        data = tree.data
        rows = max(1.0, float(data.num_rows))
        return Estimate(rows, {each: _exact(data.column(name)) for each, name in tree.items})

    def _remote(self, tree: Remote) -> Estimate:
        return self.of(tree.tree)

    # Rows fewer or in another order.

    def _filter(self, tree: Filter) -> Estimate:
        inner = self.of(tree.input)
        part, changed = selectivity(conjuncts(tree.condition), inner)
        return Estimate(max(1.0, inner.rows * part), {**inner.columns, **changed} if changed else inner.columns)

    def _distinct(self, tree: Distinct) -> Estimate:
        inner = self.of(tree.input)
        return Estimate(inner.distinct(inner.columns), inner.columns)

    def _sort(self, tree: Sort) -> Estimate:
        inner = self.of(tree.input)
        if tree.limit is None or tree.limit >= inner.rows:
            return inner
        return Estimate(max(1.0, float(tree.limit)), inner.columns)

    def _exchange(self, tree: Exchange) -> Estimate:
        return self.of(tree.input)

    def _call(self, tree: Call) -> Estimate:
        inner = self.of(tree.input)
        return Estimate(inner.rows, {**inner.columns, tree.identifier: UNKNOWN})

    # Other columns.

    def _project(self, tree: Project) -> Estimate:
        inner = self.of(tree.input)
        return Estimate(inner.rows, {name: made(each, inner) for name, each in tree.items})

    def _aggregate(self, tree: Aggregate) -> Estimate:
        inner = self.of(tree.input)
        keys = {name: made(each, inner) for name, each in tree.keys}
        rows = Estimate(inner.rows, keys).distinct(keys) if keys else 1.0
        if tree.sets is not None:
            every = Estimate(inner.rows, keys)
            rows = sum(every.distinct(one) if one else 1.0 for one in tree.sets)
        if len(keys) == 1 and tree.sets is None:
            keys = {name: replace(each, distinct=rows) for name, each in keys.items()}
        return Estimate(
            rows, {**keys, **{name: _aggregated(each, inner, inner.rows / rows) for name, each in tree.aggregates}}
        )

    # Several inputs.

    def _join(self, tree: Join) -> Estimate:
        left, right = self.of(tree.left), self.of(tree.right)
        return joined(left, right, tree.kind, conjuncts(tree.condition))

    def _setoperation(self, tree: SetOperation) -> Estimate:
        left, right = self.of(tree.left), self.of(tree.right)
        columns = {}
        for name, one, other in zip(tree.names, tree.left.columns, tree.right.columns, strict=True):
            columns[name] = _either(left.columns.get(one, UNKNOWN), right.columns.get(other, UNKNOWN))
        if tree.kind == "union":
            rows = left.rows + right.rows
        else:
            rows = min(left.rows, right.rows) if tree.kind == "intersect" else left.rows
        both = Estimate(rows, columns)
        return both if tree.all else Estimate(both.distinct(columns), columns)

    def _block(self, tree: Block) -> Estimate:
        rows = max((self.of(each).rows for each in tree.parts), default=1.0)
        return Estimate(rows, dict.fromkeys(tree.columns, UNKNOWN))


def joined(left: Estimate, right: Estimate, kind: str, condition: list[exp.Expression]) -> Estimate:
    """The join of two estimates."""
    columns = left.columns if kind in ("semi", "anti") else {**left.columns, **right.columns}
    pairs, rest = _pairs(condition, left, right)
    both = Estimate(left.rows * right.rows, {**left.columns, **right.columns}) if rest else left
    others = selectivity(rest, both)[0] if rest else 1.0
    if kind in ("semi", "anti"):
        found = _matched(left, right, pairs) * (others if pairs or rest else 1.0)
        rows = left.rows * (found if kind == "semi" else 1 - found)
        return Estimate(max(1.0, rows), columns)
    rows = left.rows * right.rows * _joining(left, right, pairs) * others
    if kind in ("left", "full"):
        rows = max(rows, left.rows)
    if kind in ("right", "full"):
        rows = max(rows, right.rows)
    if kind == "inner" and pairs:
        columns = dict(columns)
        for one, other in pairs:
            first, second = columns.get(one), columns.get(other)
            if first is not None and second is not None:
                columns[one] = columns[other] = _common(first, second)
    return Estimate(max(1.0, rows), columns)


def _pairs(
    condition: list[exp.Expression], left: Estimate, right: Estimate
) -> tuple[list[tuple[str, str]], list[exp.Expression]]:
    pairs, rest = [], []
    for each in condition:
        if type(each) is exp.EQ and isinstance(each.this, exp.Column) and isinstance(each.expression, exp.Column):
            one, other = each.this.name, each.expression.name
            if one in left.columns and other in right.columns:
                pairs.append((one, other))
                continue
            if other in left.columns and one in right.columns:
                pairs.append((other, one))
                continue
        rest.append(each)
    return pairs, rest


def _values(side: Estimate, names: list[str]) -> float:
    """Different values of the columns, as far as they were before other columns were filtered."""
    product = 1.0
    for each in names:
        product *= side.columns.get(each, UNKNOWN).distinct or max(1.0, side.rows * 0.5)
    return product


def _joining(left: Estimate, right: Estimate, pairs: list[tuple[str, str]]) -> float:
    if not pairs:
        return 1.0
    one, other = _values(left, [each for each, _ in pairs]), _values(right, [each for _, each in pairs])
    if len(pairs) > 1:
        # Columns that are a key together are not independent.
        one, other = min(one, left.rows), min(other, right.rows)
    return 1.0 / max(1.0, one, other)


def _matched(left: Estimate, right: Estimate, pairs: list[tuple[str, str]]) -> float:
    """The part of the left rows that find one on the right."""
    if not pairs:
        return 1.0
    mine = _values(left, [each for each, _ in pairs])
    theirs = min(right.rows, _values(right, [each for _, each in pairs]))
    return min(1.0, theirs / max(1.0, mine))


def _common(one: ColumnStatistics, other: ColumnStatistics) -> ColumnStatistics:
    known = [each for each in (one.distinct, other.distinct) if each is not None]
    low = max((each for each in (one.low, other.low) if each is not None), default=None)
    high = min((each for each in (one.high, other.high) if each is not None), default=None)
    return ColumnStatistics(min(known, default=None), 0.0, low, high, max(one.width, other.width))


def _either(one: ColumnStatistics, other: ColumnStatistics) -> ColumnStatistics:
    distinct = None if one.distinct is None or other.distinct is None else one.distinct + other.distinct
    low = None if one.low is None or other.low is None else min(one.low, other.low)
    high = None if one.high is None or other.high is None else max(one.high, other.high)
    fraction = max(one.null_fraction, other.null_fraction)
    return ColumnStatistics(distinct, fraction, low, high, max(one.width, other.width))


def _exact(values: Any) -> ColumnStatistics:
    import pyarrow as pa
    import pyarrow.compute as pc

    size = max(1, len(values))
    width = values.nbytes / size
    try:
        distinct = float(pc.count_distinct(values, mode="only_valid").as_py())
        ends = pc.min_max(values).as_py()
    except pa.ArrowNotImplementedError:
        return ColumnStatistics(None, values.null_count / size, None, None, width)
    return ColumnStatistics(distinct, values.null_count / size, number(ends["min"]), number(ends["max"]), width)


def made(node: exp.Expression, given: Estimate) -> ColumnStatistics:
    """The statistics of a computed column."""
    while isinstance(node, exp.Paren):
        node = node.this
    if isinstance(node, exp.Column):
        return given.columns.get(node.name, UNKNOWN)
    if isinstance(node, exp.Extract | exp.Year):
        return _part_of_date(node, given)
    if isinstance(node, exp.Min | exp.Max):
        inner = made(node.this, given) if isinstance(node.this, exp.Expression) else UNKNOWN
        return replace(inner, distinct=None)
    if isinstance(node, exp.Substring):
        inner = made(node.this, given)
        length = value(node.args.get("length"))
        if isinstance(length, int) and not isinstance(length, bool):
            most = min(float(length), inner.width)
            few = min(inner.distinct or math.inf, 40.0 ** min(length, 8), max(1.0, given.rows * 0.1))
            return ColumnStatistics(few, inner.null_fraction, None, None, most)
        return replace(inner, low=None, high=None)
    if isinstance(node, exp.Cast) and isinstance(node.this, exp.Column):
        return given.columns.get(node.this.name, UNKNOWN)
    if isinstance(node, exp.Boolean | exp.Literal | exp.Null):
        return ColumnStatistics(1.0, 0.0, None, None, float(len(node.name)) if node.is_string else WIDTH)
    if isinstance(node, exp.Case):
        return ColumnStatistics(float(len(node.args["ifs"]) + 1), 0.0, None, None, WIDTH)
    if isinstance(node, exp.AggFunc | exp.Window | Nested):
        return UNKNOWN
    names = used(node)
    known = [given.columns.get(each, UNKNOWN).distinct for each in names]
    if not names or None in known:
        return UNKNOWN
    return ColumnStatistics(min(given.rows, math.prod(each for each in known if each is not None)))


def _aggregated(node: exp.Expression, given: Estimate, size: float) -> ColumnStatistics:
    """The statistics of an aggregate over groups of ``size`` rows. A group's count, and its sum of values of one sign,
    is seldom more than ``SKEW`` times the mean."""
    if isinstance(node, exp.Count):
        return ColumnStatistics(None, 0.0, 0.0, SKEW * size)
    if isinstance(node, exp.Sum) and isinstance(node.this, exp.Column):
        inner = given.columns.get(node.this.name, UNKNOWN)
        if inner.low is not None and inner.high is not None and inner.low >= 0:
            return ColumnStatistics(None, 0.0, 0.0, SKEW * size * (inner.low + inner.high) / 2)
    return made(node, given)


def _part_of_date(node: exp.Expression, given: Estimate) -> ColumnStatistics:
    part, of = (node.name.upper(), node.expression) if isinstance(node, exp.Extract) else ("YEAR", node.this)
    inner = made(of, given)
    if part == "YEAR":
        if inner.low is None or inner.high is None:
            return ColumnStatistics(20.0)
        low, high = year(inner.low), year(inner.high)
        return ColumnStatistics(high - low + 1.0, 0.0, low, high)
    few = {"MONTH": 12.0, "QUARTER": 4.0, "DAY": 31.0, "HOUR": 24.0, "MINUTE": 60.0, "SECOND": 60.0}.get(part)
    return ColumnStatistics(few or inner.distinct)


# Predicates.


def selectivity(predicates: list[exp.Expression], given: Estimate) -> tuple[float, dict[str, ColumnStatistics]]:
    """The part of the rows for which all predicates hold, and the statistics of the columns that they change."""
    part = 1.0
    changed: dict[str, ColumnStatistics] = {}
    ranges: dict[str, list[tuple[bool, float]]] = {}
    for each in predicates:
        bound = _bounds(each, given)
        if bound is not None:
            ranges.setdefault(bound[0], []).extend(bound[1])
            continue
        part *= _holds(each, given)
        fixed = _fixed(each)
        if fixed is not None:
            name, count, places = fixed
            known = given.columns.get(name)
            if known is not None:
                low, high = (min(places), max(places)) if places else (known.low, known.high)
                distinct = count if known.distinct is None else min(count, known.distinct)
                changed[name] = ColumnStatistics(distinct, 0.0, low, high, known.width)
    for name, ends in ranges.items():
        known = given.columns[name]
        assert known.low is not None
        assert known.high is not None
        lowest = max([known.low, *(each for lower, each in ends if lower)])
        highest = min([known.high, *(each for lower, each in ends if not lower)])
        span = known.high - known.low
        if lowest > highest:
            fraction = 0.0
        else:
            fraction = (highest - lowest) / span if span > 0 else 1.0
            fraction = max(fraction, 1 / max(1.0, known.distinct or given.rows))
        part *= fraction * (1 - known.null_fraction)
        left = None if known.distinct is None else max(1.0, known.distinct * fraction)
        changed[name] = ColumnStatistics(left, 0.0, min(lowest, highest), max(lowest, highest), known.width)
    return part, changed


def _column(node: Any) -> str | None:
    while isinstance(node, exp.Paren):
        node = node.this
    return node.name if isinstance(node, exp.Column) else None


_LOWER = (exp.GT, exp.GTE)
_UPPER = (exp.LT, exp.LTE)


def _bounds(node: exp.Expression, given: Estimate) -> tuple[str, list[tuple[bool, float]]] | None:
    """The column of a range predicate and its ends, (whether the lower one, place)."""
    if isinstance(node, (*_LOWER, *_UPPER)):
        name, end, lower = _column(node.this), number(value(node.expression)), isinstance(node, _LOWER)
        if name is None:
            name, end, lower = _column(node.expression), number(value(node.this)), not lower
        ends = [(lower, end)]
    elif isinstance(node, exp.Between):
        name = _column(node.this)
        ends = [(True, number(value(node.args["low"]))), (False, number(value(node.args["high"])))]
    else:
        return None
    if name is None:
        return None
    known = given.columns.get(name)
    if known is None or known.low is None or known.high is None:
        return None
    places = [(lower, end) for lower, end in ends if end is not None]
    return (name, places) if len(places) == len(ends) else None


def _fixed(node: exp.Expression) -> tuple[str, float, list[float]] | None:
    """The column that the predicate holds to a few values: how many, and their places."""
    if isinstance(node, exp.EQ):
        name, other = _column(node.this), value(node.expression)
        if name is None:
            name, other = _column(node.expression), value(node.this)
        if name is None or other is None:
            return None
        place = number(other)
        return name, 1.0, [] if place is None else [place]
    if isinstance(node, exp.In) and node.expressions:
        name = _column(node.this)
        places = [number(value(each)) for each in node.expressions]
        if name is not None:
            known = [each for each in places if each is not None]
            return name, float(len(places)), known if len(known) == len(places) else []
    return None


def _holds(node: exp.Expression, given: Estimate) -> float:
    """The part of the rows for which one predicate holds."""
    if node._meta and SELECTIVITY in node._meta:
        return float(node._meta[SELECTIVITY])
    if isinstance(node, exp.Paren):
        return _holds(node.this, given)
    if isinstance(node, exp.And):
        return selectivity(conjuncts(node), given)[0]
    if isinstance(node, exp.Or):
        return 1 - (1 - _holds(node.this, given)) * (1 - _holds(node.expression, given))
    if isinstance(node, exp.Not):
        return max(0.0, 1 - _holds(node.this, given))
    if isinstance(node, exp.EQ):
        return _equal(node, given)
    if isinstance(node, exp.NEQ):
        return max(0.0, 1 - _equal(node, given))
    if isinstance(node, (*_LOWER, *_UPPER, exp.Between)):
        bound = _bounds(node, given)
        return _DEFAULTS["range"] if bound is None else selectivity([node], given)[0]
    if isinstance(node, exp.In) and node.expressions:
        one = made(node.this, given)
        inside = [each for each in node.expressions if _inside(each, one)]
        each_value = (1 - one.null_fraction) / one.distinct if one.distinct else _DEFAULTS["equal"]
        return min(1.0, each_value * len(inside))
    if isinstance(node, exp.Like | exp.ILike):
        pattern = value(node.expression)
        return _DEFAULTS["prefix" if isinstance(pattern, str) and pattern[:1] not in ("%", "_") else "like"]
    if isinstance(node, exp.Is):
        name = _column(node.this)
        fraction = given.columns.get(name, UNKNOWN).null_fraction if name is not None else 0.0
        return fraction if isinstance(node.expression, exp.Null) else 0.5
    if isinstance(node, exp.Boolean):
        return 1.0 if node.this else 0.0
    if isinstance(node, exp.Null):
        return 0.0
    if isinstance(node, exp.Column):
        return 0.5 * (1 - given.columns.get(node.name, UNKNOWN).null_fraction)
    return _DEFAULTS["exists"] if isinstance(node, Nested) else _DEFAULTS["other"]


def _equal(node: exp.Expression, given: Estimate) -> float:
    left, right = made(node.this, given), made(node.expression, given)
    if value(node.expression) is not None or value(node.this) is not None:
        one, constant = (left, node.expression) if value(node.expression) is not None else (right, node.this)
        if not _inside(constant, one):
            return 0.0
        return (1 - one.null_fraction) / max(1.0, one.distinct) if one.distinct else _DEFAULTS["equal"]
    known = [each.distinct for each in (left, right) if each.distinct is not None]
    return 1 / max(1.0, *known) if known else _DEFAULTS["equal"]


def _inside(constant: exp.Expression, one: ColumnStatistics) -> bool:
    place = number(value(constant))
    if place is None or one.low is None or one.high is None:
        return True
    return one.low <= place <= one.high
