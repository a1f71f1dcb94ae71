"""Statistics from a sample, of the columns of which a source keeps none: distinct values, NULLs, ends, common values.
Where a table cannot have the rows that its source says, all of them are from the sample.

Rows are read in blocks all over a key, in one statement: bounded, and the same rows each time. Neighbours
are often alike, so that a block counts, not a row: the estimate of distinct values is that of P. Haas and L. Stokes
("Estimating the number of classes in a finite population", 1998), of the blocks in which a value occurs.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.types import is_date, is_decimal, is_floating, is_integer, is_string
from sqlglot import exp

from dai.drivers.tables import Column, ColumnStatistics, Statistics, TableInfo
from dai.errors import DaiError
from dai.plugins import MOST
from dai.streams.cancellation import Cancellation
from dqp.algebra.table import ROWID, UNKNOWN_ROWS, rowid
from dqp.catalog.sources.source import Source
from dqp.catalog.statistics.counting import Ask, Key, at_least, count, key_of, table_of

NAMES = {"mariadb": "mysql", "mysql": "mysql", "sqlite": "sqlite", "postgresql": "postgres"}
"""Dialects by their names in sqlglot."""
WHOLE = frozenset({"postgresql"})
"""Those that keep statistics of all columns, once they have any."""
PARTIAL = frozenset({"postgresql", "sqlite"})
"""Those whose indexes, where they are not unique, may be partial or without order."""
BLOCKS, BLOCK_ROWS = 64, 16
FACTOR = 10.0
"""Between the rows that a source says and those that were counted, from which its statistics are not believed."""
SECONDS = 10.0
"""So long a source has for a table."""
LEAST_ROWS = 1_000
"""In a smaller table it matters little."""
MOST_COLUMNS = 100
LENGTH = 100
"""Of the texts that are read."""
COMMON_BLOCKS, COMMON_PART = 4, 0.02
"""In how many blocks, and in what part of the rows, a value is that is called common."""
Common = tuple[tuple[Any, float], ...]
"""Values, and the part of the rows that each has."""


@dataclass(frozen=True, slots=True)
class Sampled(Statistics):
    """``sampled``: the columns; ``sample``: its rows; ``common``: values by column. ``said``: the rows that the source
    says, where the table cannot have about so many."""

    sampled: tuple[str, ...] = ()
    sample: int = 0
    common: Mapping[str, Common] = field(default_factory=dict)
    said: int | None = None

    def remarks(self, table: object) -> list[str]:
        """What EXPLAIN says of it, of the table that is called so."""
        lines = []
        if self.said is not None:
            lines.append(
                f"{table}: about {self.rows:,} rows were counted, the source says {self.said:,}: "
                "its statistics are not used"
            )
        if self.sample:
            names = ", ".join(self.sampled[:MOST]) + ", …" * (len(self.sampled) > MOST)
            lines.append(f"{table}: statistics of {names} from a sample of {self.sample:,} rows")
        return lines


def with_sample(source: Source, info: TableInfo, known: Statistics, ending: Cancellation) -> Statistics:
    """The statistics with those of a sample where there are none, or where the rows contradict them; the same where
    none can be had. ``ending``: when nobody needs them any more."""
    if source.dialect not in NAMES or info.kind != "table":
        return known
    cancellation = Cancellation()
    timer = threading.Timer(SECONDS, cancellation.cancel)
    timer.daemon = True
    timer.start()

    def asked(sql: str) -> pa.Table:
        with source.query(sql, cancellation=cancellation) as stream:
            return stream.table()

    try:
        with ending.on_cancel(cancellation.cancel):
            return _Looked(source.dialect, info, asked).at(known)
    except (DaiError, pa.ArrowException):
        return known
    finally:
        timer.cancel()


def contradicts(sampled: Statistics, known: Statistics) -> bool:
    """Whether a plan made with those that were known may be a bad one: the rows are others by FACTOR, or nobody knew
    them."""
    counted = isinstance(sampled, Sampled) and sampled.said is not None
    return counted or (known.rows is None and sampled.rows is not None)


class _Looked:
    """A table that is looked at."""

    def __init__(self, dialect: str, info: TableInfo, ask: Ask) -> None:
        self._dialect, self._info, self._ask = dialect, info, ask

    def _render(self, node: exp.Expression) -> str:
        return node.sql(dialect=NAMES[self._dialect], identify=True)

    def at(self, known: Statistics) -> Statistics:
        key = rowid_of(self._info, known) or key_of(
            self._info, self._render, self._ask, unique=self._dialect in PARTIAL
        )
        said, rows = None, known.rows if known.rows is not None else self._info.rows
        if key is not None:
            counted = count(key, self._info, self._render, self._ask)
            if rows is None:
                rows = round(max(counted.rows, counted.seen))
                rows = rows if counted.even else max(rows, at_least(self._info, self._render, self._ask))
            elif counted.contradicts(rows, FACTOR):
                said, rows = rows, round(counted.rows if counted.even else counted.seen)
                known = Statistics(rows, columns={name: each for name, each in known.columns.items() if name == ROWID})
        inside = key is not None and rows is not None and rows > BLOCK_ROWS * key.span
        columns = self._unknown(known, self._info.primary_key[1:] if inside else ())
        if not columns or (known.columns and self._dialect in WHOLE) or (rows is not None and rows < LEAST_ROWS):
            return known if said is None else Sampled(rows, said=said)
        return self._sampled(columns, known, rows, key, said)

    def _unknown(self, known: Statistics, ordered: Collection[str]) -> list[Column]:
        """Columns of which nobody says how many distinct values they have, but those that are ``ordered`` within a
        value of the key: blocks that lie within one value would have their first values only."""
        return [
            each
            for each in self._info.columns
            if (known.columns.get(each.name) or ColumnStatistics()).distinct is None
            and (each.name,) != self._info.primary_key
            and each.name not in ordered
            and not each.arrow.startswith(("binary", "large_binary", "list"))
        ][:MOST_COLUMNS]

    def _sampled(
        self, columns: list[Column], known: Statistics, rows: int | None, key: Key | None, said: int | None
    ) -> Statistics:
        items = [_item(each).as_(f"c{number}") for number, each in enumerate(columns)]
        table = table_of(self._info)
        if key is None or key.span < BLOCKS:
            sample = self._ask(self._render(exp.select(*items).from_(table).limit(BLOCKS * BLOCK_ROWS)))
            blocks = pa.array([each // BLOCK_ROWS for each in range(sample.num_rows)], pa.int64())
        else:
            select = exp.select(*items).from_(table)
            sample = self._ask(_in_blocks(self._render(select), self._render(key.column), key))
            blocks = sample.column("b")
            sample = sample.drop_columns(["b"])
        if not sample.num_rows:
            return known
        if rows is None and sample.num_rows < BLOCKS * BLOCK_ROWS:
            rows = sample.num_rows  # these are all
        part = min(1.0, sample.num_rows / max(1.0, UNKNOWN_ROWS if rows is None else rows))
        own, common = dict(known.columns), {}
        for each, values in zip(columns, sample.columns, strict=True):
            try:
                own[each.name], common[each.name] = _of(values, blocks, part, own.get(each.name) or ColumnStatistics())
                if key is not None and each.name == key.column.name:
                    own[each.name] = replace(own[each.name], distinct=min(own[each.name].distinct or 1.0, key.span))
            except pa.ArrowNotImplementedError:
                continue
        return Sampled(rows, known.size_bytes, own, tuple(common), sample.num_rows, common, said)


def rowid_of(info: TableInfo, known: Statistics) -> Key | None:
    """The numbers of SQLite's rows, in whose order they stand."""
    column = rowid(info, known)
    if column is None or column.low is None or column.high is None:
        return None
    return Key(exp.column(ROWID, quoted=True), column.low, column.high)


def _in_blocks(select: str, name: str, key: Key) -> str:
    """Some rows of each of equal ranges of the key, with the number of their block."""
    ends = [key.low + key.span * each // BLOCKS for each in range(1, BLOCKS + 1)]
    return " UNION ALL ".join(
        f"SELECT s.*, {number} AS b FROM "
        f"({select} WHERE {name} >= {begin} AND {name} < {end} ORDER BY {name} LIMIT {BLOCK_ROWS}) AS s"
        for number, (begin, end) in enumerate(zip(key.begins(BLOCKS), ends, strict=True))
    )


def _item(column: Column) -> exp.Expression:
    """A column, of long texts their beginning."""
    name = exp.column(column.name, quoted=True)
    if column.arrow != "string" or (column.length is not None and column.length <= LENGTH):
        return name
    return exp.Substring(this=name, start=exp.Literal.number(1), length=exp.Literal.number(LENGTH))


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
            distinct=max(1.0, min(estimate, _between(values))),
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


def _between(values: Any) -> float:
    """How many days or whole numbers there are between the ends: where the rows stand in the order of a column, each
    block has other values of it, which looks like as many as there are blocks in the table."""
    if is_date(values.type):
        values = values.cast(pa.date32()).cast(pa.int32())
    elif not is_integer(values.type):
        return math.inf
    ends = pc.min_max(values).as_py()
    return math.inf if ends["min"] is None else float(ends["max"] - ends["min"] + 1)


def _width(values: Any) -> float | None:
    """Mean bytes of texts."""
    if not is_string(values.type):
        return None
    mean = pc.mean(pc.binary_length(values)).as_py()
    return None if mean is None or mean >= LENGTH / 2 else max(1.0, mean)
