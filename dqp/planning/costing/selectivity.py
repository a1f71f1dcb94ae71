"""Estimates the part of the rows that predicates keep, and the rows of a join.

The model is that of System R and PostgreSQL: values are spread evenly between the lowest and the highest, columns are
independent, and of two joined columns the one with more distinct values has all values of the other (containment).
``_DEFAULTS`` is for predicates about which the statistics say nothing.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sqlglot import exp

from dqp.algebra import types
from dqp.algebra.chains import conjuncts
from dqp.algebra.constants import number, value
from dqp.algebra.keys import Keys, number_of_keys
from dqp.algebra.operators import ASOF, SELECTIVITY, Nested
from dqp.algebra.trees import used
from dqp.planning.costing.columns import UNKNOWN, ColumnStatistics, common
from dqp.planning.costing.estimates import Estimate

_DEFAULTS = {
    "equal": 0.05,
    "range": 1 / 3,
    "like": 0.1,
    "prefix": 0.02,
    "other": 1 / 3,
    "exists": 0.5,
}
"""Assumed selectivity of predicates about which the statistics say nothing."""
Pairs = list[tuple[str, str]]
MANY_MORE = 10.0
"""Of keys for each value that refers to one, as of the days of a calendar."""
LONELY = 0.1
"""Least part of the rows that are assumed to have no partner in an anti-join or an outer join, because its user expects
some."""


def selectivity(predicates: list[exp.Expression], estimate: Estimate) -> tuple[float, dict[str, ColumnStatistics]]:
    """The part of the rows that all predicates keep, and the new statistics of the columns that they filter."""
    part = 1.0
    changed: dict[str, ColumnStatistics] = {}
    ranges: dict[str, list[tuple[bool, float]]] = {}
    for each in predicates:
        bound = _bounds(each, estimate)
        if bound is not None:
            ranges.setdefault(bound[0], []).extend(bound[1])
            continue
        part *= _holds(each, estimate)
        fixed = _fixed(each, estimate)
        if fixed is not None:
            name, count, places = fixed
            known = estimate.columns.get(name)
            if known is not None:
                low, high = (min(places), max(places)) if places else (known.low, known.high)
                distinct = count if known.distinct is None else min(count, known.distinct)
                changed[name] = ColumnStatistics(distinct, 0.0, low, high, known.width)
    for name, ends in ranges.items():
        known = estimate.columns[name]
        assert known.low is not None
        assert known.high is not None
        lowest = max([known.low, *(each for lower, each in ends if lower)])
        highest = min([known.high, *(each for lower, each in ends if not lower)])
        span = known.high - known.low
        if lowest > highest:
            fraction = 0.0
        elif known.bell is not None:
            fraction = _under(known.bell, known.low, known.high, ends)
        else:
            fraction = (highest - lowest) / span if span > 0 else 1.0
            fraction = max(fraction, 1 / max(1.0, known.distinct or estimate.rows))
        part *= fraction * (1 - known.null_fraction)
        left = None if known.distinct is None else max(1.0, known.distinct * fraction)
        changed[name] = ColumnStatistics(left, 0.0, min(lowest, highest), max(lowest, highest), known.width)
    return part, changed


def _under(bell: tuple[float, float], low: float, high: float, ends: list[tuple[bool, float]]) -> float:
    """The part of normally distributed values that lies between the ends."""
    mean, deviation = bell

    def below(place: float) -> float:
        return 0.5 * math.erfc((mean - place) / (math.sqrt(2) * max(deviation, 1e-9)))

    upper = min((below(each) for lower, each in ends if not lower), default=1.0)
    return max(0.0, upper - max((below(each) for lower, each in ends if lower), default=0.0))


def _column(node: Any) -> str | None:
    while isinstance(node, exp.Paren):
        node = node.this
    return node.name if isinstance(node, exp.Column) else None


_LOWER = (exp.GT, exp.GTE)
_UPPER = (exp.LT, exp.LTE)


def _bounds(node: exp.Expression, estimate: Estimate) -> tuple[str, list[tuple[bool, float]]] | None:
    """The column of a range predicate and its ends: (whether it is the lower end, the value as a number)."""
    if isinstance(node, (*_LOWER, *_UPPER)):
        name, end, lower = _column(node.this), node.expression, isinstance(node, _LOWER)
        if name is None:
            name, end, lower = _column(node.expression), node.this, not lower
        ends = [(lower, end)]
    elif isinstance(node, exp.Between):
        name = _column(node.this)
        ends = [(True, node.args["low"]), (False, node.args["high"])]
    else:
        return None
    if name is None:
        return None
    known = estimate.columns.get(name)
    if known is None or known.low is None or known.high is None:
        return None
    places = [(lower, place) for lower, end in ends if (place := _place(end, known)) is not None]
    return (name, places) if len(places) == len(ends) else None


def _place(node: Any, column: ColumnStatistics) -> float | None:
    """A literal as a number, to compare with the ends of a column. A text that is compared with a column of numbers or
    times is one of them."""
    constant = value(node)
    if not isinstance(constant, str):
        return number(constant)
    if column.low is None:
        return None
    for read in (float, datetime.datetime.fromisoformat):
        with suppress(ValueError):
            return number(read(constant))
    return None


def _fixed(node: exp.Expression, estimate: Estimate) -> tuple[str, float, list[float]] | None:
    """The column that a predicate limits to a few values, their number, and the values as numbers."""
    if isinstance(node, exp.EQ):
        name, other = _column(node.this), node.expression
        if name is None:
            name, other = _column(node.expression), node.this
        if name is None or value(other) is None:
            return None
        place = _place(other, estimate.columns.get(name, UNKNOWN))
        return name, 1.0, [] if place is None else [place]
    if isinstance(node, exp.In) and node.expressions:
        name = _column(node.this)
        if name is not None:
            column = estimate.columns.get(name, UNKNOWN)
            places = [_place(each, column) for each in node.expressions]
            known = [each for each in places if each is not None]
            return name, float(len(places)), known if len(known) == len(places) else []
    if isinstance(node, Keys) and (name := _column(node.this)) is not None:
        numbers = node.text_of_numbers
        ends = numbers.partition(",")[0], numbers.rpartition(",")[2]  # they are in order
        return name, float(number_of_keys(node)), [float(each) for each in ends]
    return None


def _holds(node: exp.Expression, estimate: Estimate) -> float:
    """The part of the rows that one predicate keeps."""
    if node._meta and SELECTIVITY in node._meta:
        return float(node._meta[SELECTIVITY])
    if isinstance(node, exp.Paren):
        return _holds(node.this, estimate)
    if isinstance(node, exp.And):
        return selectivity(conjuncts(node), estimate)[0]
    if isinstance(node, exp.Or):
        if len(used(node)) == 1:  # ranges of one column are apart
            return min(1.0, _holds(node.this, estimate) + _holds(node.expression, estimate))
        return 1 - (1 - _holds(node.this, estimate)) * (1 - _holds(node.expression, estimate))
    if isinstance(node, exp.Not):
        return max(0.0, 1 - _holds(node.this, estimate))
    if isinstance(node, exp.EQ):
        return _equal(node, estimate)
    if isinstance(node, exp.NEQ):
        return max(0.0, 1 - _equal(node, estimate))
    if isinstance(node, (*_LOWER, *_UPPER, exp.Between)):
        bound = _bounds(node, estimate)
        return _DEFAULTS["range"] if bound is None else selectivity([node], estimate)[0]
    if isinstance(node, exp.In) and node.expressions:
        one = estimate.computed(node.this)
        inside = [each for each in node.expressions if _inside(each, one)]
        return min(1.0, sum(_frequency(each, one) for each in inside))
    if isinstance(node, exp.Like | exp.ILike):
        part = _like(node, estimate)
        return 1 - part if node.args.get("negate") else part
    if isinstance(node, exp.Is):
        name = _column(node.this)
        fraction = estimate.columns.get(name, UNKNOWN).null_fraction if name is not None else 0.0
        return fraction if isinstance(node.expression, exp.Null) else 0.5
    if isinstance(node, exp.Boolean):
        return 1.0 if node.this else 0.0
    if isinstance(node, exp.Null):
        return 0.0
    if isinstance(node, exp.Column):
        known = estimate.columns.get(node.name, UNKNOWN)
        some = 1 - known.null_fraction
        if known.low is not None and known.high is not None and (known.low < 0 or known.high > 1):  # a number
            return max(0.0, some - known.frequency(0, 0.0)) if known.low <= 0 <= known.high else some
        return known.frequency(True, 0.5 * some)
    return _DEFAULTS["exists"] if isinstance(node, Nested) else _DEFAULTS["other"]


def _like(node: exp.Like | exp.ILike, estimate: Estimate) -> float:
    """Of common texts it is known which are like the pattern."""
    pattern = value(node.expression)
    prefix = isinstance(pattern, str) and pattern[:1] not in ("%", "_")
    others = _DEFAULTS["prefix" if prefix else "like"]
    common = estimate.computed(node.this).common
    if not common or not isinstance(pattern, str) or not all(isinstance(each, str) for each in common):
        return others
    like = re.compile(_expression(pattern), re.DOTALL | (re.IGNORECASE if isinstance(node, exp.ILike) else 0))
    alike = sum(part for each, part in common.items() if like.fullmatch(each))
    return min(1.0, alike + others * max(0.0, 1 - sum(common.values())))


def _expression(pattern: str) -> str:
    """The regular expression of a pattern of LIKE. What stands between two % is looked for once, from the left: trying
    its other places, too, takes a time that grows with the number of % as an exponent."""
    first, *rest = ("".join("." if each == "_" else re.escape(each) for each in part) for part in pattern.split("%"))
    if not rest:
        return first
    *middle, last = rest
    return f"{first}{''.join(f'(?>.*?{each})' for each in middle if each)}.*{last}"


def _equal(node: exp.Expression, estimate: Estimate) -> float:
    left, right = estimate.computed(node.this), estimate.computed(node.expression)
    if value(node.expression) is not None or value(node.this) is not None:
        one, constant = (left, node.expression) if value(node.expression) is not None else (right, node.this)
        if not _inside(constant, one):
            return 0.0
        return _frequency(constant, one)
    known = [each.distinct for each in (left, right) if each.distinct is not None]
    return 1 / max(1.0, *known) if known else _DEFAULTS["equal"]


def _frequency(constant: exp.Expression, one: ColumnStatistics) -> float:
    """The part of the rows with this value; one of another type may stand for one that is common."""
    known = value(constant)
    if isinstance(known, str) and any(isinstance(each, bool) for each in one.common or ()):
        known = types.value(known, "BOOLEAN")
    elif one.common and known not in one.common and (place := _place(constant, one)) is not None:
        known = next((each for each in one.common if number(each) == place), known)
    return one.frequency(known, _DEFAULTS["equal"])


def _inside(constant: exp.Expression, one: ColumnStatistics) -> bool:
    place = _place(constant, one)
    if place is None or one.low is None or one.high is None:
        return True
    return one.low <= place <= one.high


def joined(left: Estimate, right: Estimate, kind: str, condition: list[exp.Expression]) -> Estimate:
    """The estimate for a join."""
    pairs, rest = _pairs(condition, left, right)
    both = Estimate(left.rows * right.rows, {**left.columns, **right.columns}) if rest else left
    others = _beside(rest, left, right, both) if rest else 1.0
    if kind in ("semi", "anti"):
        matching = _matched(left, right, pairs, others)
        rows = left.rows * (matching if kind == "semi" else max(LONELY, 1 - matching))
        return Estimate(max(1.0, rows), left.columns, left.keys, left.same)
    if kind in ASOF:
        matching = _matched(left, right, pairs, others)
        rows = left.rows * (matching if kind == "asof" else 1.0)
        columns = {**left.columns, **(right.columns if kind == "asof" else _filled(right, matching))}
        return Estimate(max(1.0, rows), columns, left.keys, left.same)
    rows = left.rows * right.rows * _joining(left, right, pairs) * others
    if kind in ("left", "full"):
        rows = max(rows, left.rows)
    if kind in ("right", "full"):
        rows = max(rows, right.rows)
    columns = {**_bounded(left), **_bounded(right)}
    if kind != "inner":
        if kind in ("left", "full"):
            columns |= _filled(right, _matched(left, right, pairs, others))
        if kind in ("right", "full"):
            columns |= _filled(left, _matched(right, left, [(other, one) for one, other in pairs], others))
        return Estimate(max(1.0, rows), columns)
    same = {**left.same, **right.same}
    fewest = min(left.rows, right.rows)
    for one, other in pairs:
        columns[one] = columns[other] = common(columns[one], columns[other], fewest)
        first, second = same.get(one, one), same.get(other, other)
        same = {**{each: first if name == second else name for each, name in same.items()}, one: first, other: first}
    keys = {
        **(left.keys if _key(right, (each for _, each in pairs)) else {}),
        **(right.keys if _key(left, (each for each, _ in pairs)) else {}),
    }
    return Estimate(max(1.0, rows), columns, keys, same)


def _bounded(side: Estimate) -> Mapping[str, ColumnStatistics]:
    """The columns of a side of a join: it may repeat the side's rows, but has no more values than there were."""
    rows, columns = side.rows, side.columns
    fewer = {
        name: replace(each, most=rows)
        for name, each in columns.items()
        if each.distinct is not None and each.distinct > rows and (each.most is None or each.most > rows)
    }
    return {**columns, **fewer} if fewer else columns


def _beside(conditions: list[exp.Expression], left: Estimate, right: Estimate, both: Estimate) -> float:
    """The part of the combinations that fulfil what a join asks for beside equal columns. Of an OR each of whose k
    branches speaks of both sides, each side fulfils its own part already (``dqp.planning.rules.simplify``): of k x k
    combinations of branches k are left."""
    part, rest = 1.0, []
    for each in conditions:
        branches = list(each.flatten()) if isinstance(each, exp.Or) else []
        names = [{one.name for one in branch.find_all(exp.Column)} for branch in branches]
        if names and all(each & left.columns.keys() and each & right.columns.keys() for each in names):
            part /= len(branches)
        else:
            rest.append(each)
    return part * (selectivity(rest, both)[0] if rest else 1.0)


def _filled(side: Estimate, matching: float) -> dict[str, ColumnStatistics]:
    """The columns of a side of an outer join that has a partner for this part of the other side's rows."""
    part = min(matching, 1 - LONELY)
    return {
        name: replace(each, null_fraction=1 - part * (1 - each.null_fraction)) for name, each in side.columns.items()
    }


def _pairs(condition: list[exp.Expression], left: Estimate, right: Estimate) -> tuple[Pairs, list[exp.Expression]]:
    """The pairs of equal columns of the two sides, without redundant ones; and the other predicates."""
    pairs: dict[tuple[str, str], tuple[str, str]] = {}
    rest = []
    for each in condition:
        if type(each) is exp.EQ and isinstance(each.this, exp.Column) and isinstance(each.expression, exp.Column):
            one, other = each.this.name, each.expression.name
            if one not in left.columns:
                one, other = other, one
            if one in left.columns and other in right.columns:
                pairs.setdefault((left.same.get(one, one), right.same.get(other, other)), (one, other))
                continue
        rest.append(each)
    return list(pairs.values()), rest


def _distinct(side: Estimate, name: str) -> float:
    """Distinct values of the column before filters on other columns."""
    return side.columns.get(name, UNKNOWN).distinct or max(1.0, side.rows * 0.5)


def _distincts(left: Estimate, one: str, right: Estimate, other: str) -> tuple[float, float]:
    """Of two columns that are equal in a join. Where nobody knows them of one, and the other is a key, it refers to
    that: it has the values of the key."""
    mine = left.columns.get(one, UNKNOWN).distinct or None
    theirs = right.columns.get(other, UNKNOWN).distinct or None
    if mine is None and theirs is not None and frozenset((other,)) in right.keys:
        return min(theirs, _distinct(left, one)), theirs
    if theirs is None and mine is not None and frozenset((one,)) in left.keys:
        return mine, min(mine, _distinct(right, other))
    return _distinct(left, one), _distinct(right, other)


def _key(side: Estimate, names: Iterable[str]) -> frozenset[str]:
    """The key among the columns that has the fewest combinations; empty if there is none."""
    columns = frozenset(names)
    return min((each for each in side.keys if each <= columns), key=lambda each: side.keys[each], default=frozenset())


def _joining(left: Estimate, right: Estimate, pairs: Pairs) -> float:
    """The part of all combinations of two rows that are equal in the pairs."""
    if len(pairs) == 1:
        return _equally(left, right, pairs)
    mine, theirs = _key(left, (each for each, _ in pairs)), _key(right, (each for _, each in pairs))
    if mine or theirs:
        # The key has all values of the other side.
        several = max(1.0, left.keys.get(mine, 1.0), right.keys.get(theirs, 1.0))
        if all((one in mine) == (other in theirs) for one, other in pairs):
            # Rows of the same key are about one thing, as a sale and its return are: they agree in other columns, too.
            return 1.0 / several
        return _equally(left, right, [(a, b) for a, b in pairs if a not in mine and b not in theirs]) / several
    # Columns are not independent if one determines another.
    one = min(left.rows, math.prod(_distinct(left, each) for each, _ in pairs))
    other = min(right.rows, math.prod(_distinct(right, each) for _, each in pairs))
    return 1.0 / max(1.0, one, other)


def _equally(left: Estimate, right: Estimate, pairs: Pairs) -> float:
    part = 1.0
    for one, other in pairs:
        mine, theirs = _distincts(left, one, right, other)
        if mine < theirs and _identifies(right, other):
            left_over = min(theirs, right.rows, right.columns[other].most or math.inf)
            part *= referred(mine, theirs, left_over) / left_over
        elif theirs < mine and _identifies(left, one):
            left_over = min(mine, left.rows, left.columns[one].most or math.inf)
            part *= referred(theirs, mine, left_over) / left_over
        else:
            part /= max(1.0, mine, theirs)
    return part


def _identifies(side: Estimate, name: str) -> bool:
    """Whether the column is a key, or was one before a join repeated its values."""
    return frozenset((name,)) in side.keys or side.columns.get(name, UNKNOWN).identifies


def keys_of(side: Estimate, name: str, values: float) -> float:
    """How many keys a column had before filters, of which so many ``values`` are referred to: one that is a key, or
    that was one of a table with many more keys before a join repeated them; 0 for others."""
    if every := side.keys.get(frozenset((name,))):
        return every
    column = side.columns.get(name, UNKNOWN)
    every = column.distinct or 0.0
    return every if column.identifies and every >= MANY_MORE * values else 0.0


def referred(values: float, keys: float, rows: float) -> float:
    """The part of the values, all of which are among the keys of a table, that the rows left of the table have. Of a
    table with many more keys than values that refer to them, such as a calendar of two centuries, a filter chooses rows
    that are referred to, if it leaves no more than these; where nearly all keys are referred to, it chooses any. The
    part of the keys that are referred to is the chance of the latter: a database that looks at some rows of a table
    finds too few values."""
    if rows <= values:
        chance = min(1.0, values / max(1.0, keys))
        return (1 - chance) * rows / max(1.0, values) + chance * rows / max(1.0, keys)
    return math.sqrt(min(1.0, rows / keys))


def _matched(left: Estimate, right: Estimate, pairs: Pairs, others: float) -> float:
    """The part of the left rows that match a right row: equal in the pairs, and kept by other predicates, which keep
    the part ``others`` of all combinations."""
    key = _key(right, (each for _, each in pairs)) if len(pairs) > 1 else None
    if key:
        every = right.keys[key]
        mine = left.keys.get(_key(left, (each for each, _ in pairs)), every)
        others *= _equally(left, right, [(one, other) for one, other in pairs if other not in key])
    else:
        known = [_distincts(left, one, right, other) for one, other in pairs]
        mine, every = math.prod(each for each, _ in known), math.prod(each for _, each in known)
    theirs = max(1.0, min(right.rows, every))
    if len(pairs) == 1 and mine < every and frozenset((pairs[0][1],)) in right.keys:
        return referred(mine, every, theirs) * others
    one_of_them: float = 1 - (1 - others) ** max(1.0, right.rows / theirs)
    return min(1.0, theirs / max(mine, every)) * one_of_them
