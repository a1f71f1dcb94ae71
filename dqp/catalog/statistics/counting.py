"""How many rows a table has, by how dense they are along a key: what a source says of it may be old, or nothing.

Rows are counted in a few ranges of an index whose first column is a whole number: bounded, whatever the table's size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from random import Random
from statistics import median

import pyarrow as pa
from sqlglot import exp

from dai.drivers.tables import TableInfo

BLOCKS = ((16, 1_000), (4, 100_000))
"""How many, and the rows of each: the second where those of the first have a value or two."""
MOST_COUNTED = 1_000_000
"""Rows that are counted one by one: SQLite takes 50 to 90 ms for them."""
FEW_VALUES = 3
UNEVEN, MOST_UNEVEN = 4.0, 0.25
"""A block whose density is this many times the median, or this part of it, is uneven; and what part of them may be."""
Ask = Callable[[str], pa.Table]


@dataclass(frozen=True, slots=True)
class Key:
    """A column of whole numbers with which an index begins, and its ends. ``whole``: each row has a value."""

    column: exp.Column
    low: int
    high: int
    whole: bool = True

    @property
    def span(self) -> int:
        return self.high - self.low + 1

    def begins(self, blocks: int) -> list[int]:
        """Where so many blocks begin: in equal ranges at chance, so that they do not all fall on the same places of
        values that repeat; the same each time."""
        chance, ends = Random(self.span), [self.low + self.span * each // blocks for each in range(blocks + 1)]
        return [begin + int((end - begin) * chance.uniform(0.0, 0.75)) for begin, end in pairwise(ends)]


@dataclass(frozen=True, slots=True)
class Count:
    """Of rows, about. ``even``: as dense everywhere, so that the table has about so many. ``seen``: it has at least."""

    rows: float
    even: bool
    seen: int

    def contradicts(self, said: float, factor: float) -> bool:
        """Whether the table cannot have about so many rows as that."""
        if self.even:
            return not 1 / factor < max(1.0, said) / max(1.0, self.rows) < factor
        return max(1.0, said) * factor <= self.seen


def key_of(info: TableInfo, written: Callable[[exp.Expression], str], ask: Ask, *, unique: bool = False) -> Key | None:
    """The key along which rows are counted, of ``unique`` indexes only: others may be partial or without order. The
    source is asked for its ends: those that it keeps may be old, too."""
    columns = {each.name: each for each in info.columns if each.arrow.startswith(("int", "uint"))}
    indexes = [each for each in info.indexes if each.columns and (each.unique or not unique)]
    for name in (*info.primary_key[:1], *(each.columns[0] for each in indexes)):
        if name in columns:
            column = exp.column(name, quoted=True)
            return with_ends(column, info, written, ask, whole=not columns[name].nullable)
    return None


def with_ends(
    column: exp.Column, info: TableInfo, written: Callable[[exp.Expression], str], ask: Ask, *, whole: bool
) -> Key | None:
    """None where the table has no such numbers."""
    ends = [exp.select(each(this=column)).from_(table_of(info)).subquery() for each in (exp.Min, exp.Max)]
    low, high = (each.to_pylist()[0] for each in ask(written(exp.select(*ends))).columns)
    return Key(column, low, high, whole) if isinstance(low, int) and isinstance(high, int) else None


def table_of(info: TableInfo) -> exp.Table:
    return exp.Table(this=exp.to_identifier(info.name), db=exp.to_identifier(info.schema) if info.schema else None)


def count(key: Key, info: TableInfo, written: Callable[[exp.Expression], str], ask: Ask) -> Count:
    select = written(exp.select(key.column.as_("k")).from_(table_of(info)))
    name = written(key.column)
    seen = 0
    for blocks, most in BLOCKS:
        begins = key.begins(blocks)
        statement = " UNION ALL ".join(
            f"SELECT COUNT(*) AS n, MIN(k) AS f, MAX(k) AS l, {number} AS b FROM "
            f"({select} WHERE {name} >= {begin} ORDER BY {name} LIMIT {most}) AS s"
            for number, begin in enumerate(begins)
        )
        answer = sorted(ask(statement).to_pylist(), key=lambda each: each["b"])
        counted = _of(key, begins, most, [(int(each["n"]), each["f"], each["l"]) for each in answer], seen)
        few = sum(each["n"] == most and each["l"] - each["f"] < FEW_VALUES for each in answer)
        if 2 * few < blocks:
            return counted
        seen = counted.seen
    within = sum(each["n"] == most and each["l"] == each["f"] for each in answer)
    # a block that ends within the value with which it begins tells only that there are at least so many
    return replace(counted, even=False) if 2 * within >= blocks else counted


def at_least(info: TableInfo, written: Callable[[exp.Expression], str], ask: Ask) -> int:
    """The rows of the table, or MOST_COUNTED if there are more: where keys stand in clusters, how dense they are tells
    little."""
    first = exp.select(exp.Literal.number(1).as_("n")).from_(table_of(info)).limit(MOST_COUNTED)
    counted = exp.select(exp.Count(this=exp.Star()).as_("n")).from_(first.subquery("s"))
    return int(ask(written(counted)).column(0)[0].as_py())


def _of(key: Key, begins: list[int], most: int, blocks: list[tuple[int, int, int]], seen: int) -> Count:
    covered = [
        (last if rows == most else key.high) - begin + 1
        for begin, (rows, _, last) in zip(begins, blocks, strict=True)
    ]  # fmt: skip
    densities = [rows / max(1, size) for (rows, _, _), size in zip(blocks, covered, strict=True)]
    usual = median(densities)
    odd = sum(not usual / UNEVEN <= each <= usual * UNEVEN for each in densities)
    gaps = sum(covered) > 2 * sum(last - first + 1 for rows, first, last in blocks if rows)
    even = key.whole and odd <= MOST_UNEVEN * len(blocks) and not gaps
    ends, own = key.low - 1, 0
    for rows, first, last in blocks:
        if rows and first > ends:  # no row twice
            own, ends = own + rows, last
    return Count(sum(densities) / len(densities) * key.span, even, max(seen, own))
