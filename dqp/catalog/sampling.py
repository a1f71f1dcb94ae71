"""Statistics from a sample, of the columns of which a source keeps none: distinct values, NULLs, ends, common values.

Rows are read in blocks all over a key, in one statement: bounded, and the same rows each time. Neighbours
are often alike, so that a block counts, not a row: the estimate of distinct values is that of P. Haas and L. Stokes
("Estimating the number of classes in a finite population", 1998), of the blocks in which a value occurs.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_date, is_decimal, is_floating, is_integer, is_string
from sqlglot import exp

from dai.drivers.tables import Column, ColumnStatistics, Statistics, TableInfo
from dai.errors import DaiError
from dai.streams.cancellation import Cancellation
from dqp.algebra.table import UNKNOWN_ROWS
from dqp.catalog.sources.source import Source

NAMES = {"mariadb": "mysql", "mysql": "mysql", "sqlite": "sqlite", "postgresql": "postgres"}
"""Dialects by their names in sqlglot."""
WHOLE = frozenset({"postgresql"})
"""Those that keep statistics of all columns, once they have any."""
BLOCKS, BLOCK_ROWS = 64, 16
SECONDS = 0.25
"""A query that needs the statistics waits no longer for the sample; then there is none."""
LEAST_ROWS = 1_000
"""In a smaller table it matters little."""
MOST_COLUMNS = 100
LENGTH = 100
"""Of the texts that are read."""
COMMON_BLOCKS, COMMON_PART = 4, 0.02
"""In how many blocks, and in what part of the rows, a value is that is called common."""
ROWID = exp.Column(this=exp.Identifier(this="rowid", quoted=False))
Common = tuple[tuple[Any, float], ...]
"""Values, and the part of the rows that each has."""


@dataclass(frozen=True, slots=True)
class Sampled(Statistics):
    """``sampled``: the columns; ``sample``: its rows; ``common``: values by column."""

    sampled: tuple[str, ...] = ()
    sample: int = 0
    common: Mapping[str, Common] = field(default_factory=dict)


def with_sample(source: Source, info: TableInfo, known: Statistics) -> Statistics:
    """The statistics with those of a sample where there are none; the same where none can be had in time."""
    columns = [
        each
        for each in info.columns
        if (known.columns.get(each.name) or ColumnStatistics()).distinct is None
        and (each.name,) != info.primary_key
        and not each.arrow.startswith(("binary", "large_binary", "list"))
    ][:MOST_COLUMNS]
    rows = known.rows if known.rows is not None else info.rows
    kept = source.dialect not in NAMES or (known.columns and source.dialect in WHOLE)
    if kept or info.kind != "table" or not columns or (rows is not None and rows < LEAST_ROWS):
        return known
    cancellation = Cancellation()
    timer = threading.Timer(SECONDS, cancellation.cancel)
    timer.daemon = True
    timer.start()
    try:
        return _sampled(source, info, columns, known, rows, cancellation)
    except (DaiError, pa.ArrowException):
        return known
    finally:
        timer.cancel()


def _sampled(
    source: Source,
    info: TableInfo,
    columns: list[Column],
    known: Statistics,
    rows: int | None,
    cancellation: Cancellation,
) -> Statistics:
    dialect = NAMES[source.dialect]
    table = exp.Table(this=exp.to_identifier(info.name), db=exp.to_identifier(info.schema) if info.schema else None)

    def written(node: exp.Expression) -> str:
        return node.sql(dialect=dialect, identify=True)

    def asked(sql: str) -> pa.Table:
        with source.query(sql, cancellation=cancellation) as stream:
            return stream.table()

    key = _key(info, known) or (ROWID if dialect == "sqlite" else None)
    if isinstance(key, exp.Column):
        ends = [exp.select(each(this=key)).from_(table).subquery() for each in (exp.Min, exp.Max)]
        low, high = (each.to_pylist()[0] for each in asked(written(exp.select(*ends))).columns)
        key = _Key(key, low, high) if isinstance(low, int) and isinstance(high, int) else None
    size = rows if rows is not None or key is None else key.span
    if size is not None and size < LEAST_ROWS:
        return known
    items = [_item(each).as_(f"c{number}") for number, each in enumerate(columns)]
    if key is None or key.span < BLOCKS * BLOCK_ROWS:
        sample = asked(written(exp.select(*items).from_(table).limit(BLOCKS * BLOCK_ROWS)))
        blocks = pa.array([each // BLOCK_ROWS for each in range(sample.num_rows)], pa.int64())
    else:
        select = exp.select(key.column.as_("k"), *items).from_(table)
        sample = asked(_in_blocks(written(select), written(key.column), key))
        blocks = sample.column("b")
        rows = _counted(sample, key.span) if rows is None else rows
        sample = sample.drop_columns(["b", "k"])
    if not sample.num_rows:
        return known
    if rows is None and sample.num_rows < BLOCKS * BLOCK_ROWS and (key is None or key.span < BLOCKS * BLOCK_ROWS):
        rows = sample.num_rows  # these are all
    part = min(1.0, sample.num_rows / max(1.0, UNKNOWN_ROWS if rows is None else rows))
    own, common = dict(known.columns), {}
    for each, values in zip(columns, sample.columns, strict=True):
        try:
            own[each.name], common[each.name] = _of(values, blocks, part, own.get(each.name) or ColumnStatistics())
        except pa.ArrowNotImplementedError:
            continue
    return Sampled(rows, known.size_bytes, own, tuple(common), sample.num_rows, common)


@dataclass(frozen=True)
class _Key:
    """A column of whole numbers with which an index begins, and its ends."""

    column: exp.Column
    low: int
    high: int

    @property
    def span(self) -> int:
        return self.high - self.low + 1


def _key(info: TableInfo, known: Statistics) -> _Key | exp.Column | None:
    """A column of whole numbers with which an index begins, with its ends where they are known."""
    whole = {each.name for each in info.columns if each.arrow.startswith(("int", "uint"))}
    for name in (*info.primary_key[:1], *(each.columns[0] for each in info.indexes if each.columns)):
        if name in whole:
            column, ends = exp.column(name, quoted=True), known.columns.get(name) or ColumnStatistics()
            low, high = _whole(ends.low), _whole(ends.high)
            return column if low is None or high is None else _Key(column, low, high)
    return None


def _whole(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:  # SQLite's columns may hold anything
        return None


def _in_blocks(select: str, name: str, key: _Key) -> str:
    """Some rows of each of equal ranges of the key, with the number of their block. They begin at chance, so that they
    do not all fall on the same places of values that repeat; the same each time."""
    chance, ends = Random(key.span), [key.low + key.span * each // BLOCKS for each in range(BLOCKS + 1)]
    ranges = [(begin + int((end - begin) * chance.uniform(0.0, 0.75)), end) for begin, end in pairwise(ends)]
    return " UNION ALL ".join(
        f"SELECT s.*, {number} AS b FROM "
        f"({select} WHERE {name} >= {begin} AND {name} < {end} ORDER BY {name} LIMIT {BLOCK_ROWS}) AS s"
        for number, (begin, end) in enumerate(ranges)
    )


def _item(column: Column) -> exp.Expression:
    """A column, of long texts their beginning."""
    name = exp.column(column.name, quoted=True)
    if column.arrow != "string" or (column.length is not None and column.length <= LENGTH):
        return name
    return exp.Substring(this=name, start=exp.Literal.number(1), length=exp.Literal.number(LENGTH))


def _counted(sample: pa.Table, span: int) -> int:
    """The table's rows: as dense in the whole span of the key as in the blocks."""
    blocks = sample.group_by("b", use_threads=False).aggregate([("k", "min"), ("k", "max"), ("k", "count")]).to_pylist()
    full = [each for each in blocks if each["k_count"] == BLOCK_ROWS]
    covered = sum(each["k_max"] - each["k_min"] + 1 for each in full)
    dense = len(full) * BLOCK_ROWS * span * len(blocks) // (covered * BLOCKS) if full else 0
    return int(max(sample.num_rows, dense))


def _of(values: Any, blocks: Any, part: float, known: ColumnStatistics) -> tuple[ColumnStatistics, Common]:
    total = len(values)
    pairs = pa.table({"v": values, "b": blocks}).group_by(["v", "b"], use_threads=False).aggregate([([], "count_all")])
    pairs = pairs.filter(pc.is_valid(pairs.column("v")))
    by_value = pairs.group_by("v", use_threads=False).aggregate([("b", "count"), ("count_all", "sum")])
    distinct, places = by_value.num_rows, pairs.num_rows
    single = pc.sum(pc.equal(by_value.column("b_count"), 1)).as_py() or 0
    nulls = values.null_count / total
    estimate = distinct / max(1e-9, 1 - (1 - part) * single / places) if places else 1.0
    often = pc.and_(
        pc.greater_equal(by_value.column("b_count"), COMMON_BLOCKS),
        pc.greater_equal(by_value.column("count_all_sum"), total * COMMON_PART),
    )
    chosen = by_value.filter(often)
    common = zip(chosen.column("v").to_pylist(), chosen.column("count_all_sum").to_pylist(), strict=True)
    low, high = _ends(values)
    return (
        replace(
            known,
            distinct=max(1.0, estimate),
            null_fraction=nulls if known.null_fraction is None else known.null_fraction,
            low=low if known.low is None else known.low,
            high=high if known.high is None else known.high,
            width=_width(values) if known.width is None else known.width,
        ),
        tuple((value, count / total) for value, count in common),
    )


def _ends(values: Any) -> tuple[str | None, str | None]:
    """Of numbers and dates."""
    if not any(each(values.type) for each in (is_integer, is_floating, is_decimal, is_date)):
        return None, None
    ends = pc.min_max(values).as_py()
    return (None, None) if ends["min"] is None else (str(ends["min"]), str(ends["max"]))


def _width(values: Any) -> float | None:
    """Mean bytes of texts."""
    if not is_string(values.type):
        return None
    mean = pc.mean(pc.binary_length(values)).as_py()
    return None if mean is None or mean >= LENGTH / 2 else max(1.0, mean)
