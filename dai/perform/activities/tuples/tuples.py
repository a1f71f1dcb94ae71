"""Tuples to tuples: the relational algebra on streams.

What one batch tells is done by Arrow; the rest is one query of DuckDB over the streams (``dai.drivers.duckdb.over``),
which spills what its memory does not hold. Columns are named as in SQL: by their name, whatever its case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import pyarrow as pa

from dai.drivers.duckdb.over import over
from dai.errors import DataError, ParameterError
from dai.perform.activities.tuples.expressions import column, column_named, expressions
from dai.perform.activity import ANY, Activity, Context, Element, Input, Output, attribute, child, input, output, text
from dai.streams.fanout import FanOut
from dai.streams.stream import ByteStream, Stream


@dataclass(frozen=True, kw_only=True)
class TupleProjection(Activity):
    """Keeps the columns ``columnIds`` of the tuples, in this order."""

    example: ClassVar[str] = """
        <TupleProjection name="projection">
          <data from="tuples"/>
          <columnIds>name</columnIds>
          <columnIds>id</columnIds>
          <result name="names"/>
        </TupleProjection>"""
    role: ClassVar[str | None] = ANY

    data: Input[Stream] = input("data")
    columns: tuple[str, ...] = child("columnIds")
    result: Output[Stream] = output("result")

    def run(self, context: Context) -> Stream:
        source = context.tuples(self.data)
        places = [source.schema.names.index(column_named(name, source.schema.names)) for name in self.columns]
        schema = pa.schema([source.schema.field(place) for place in places])
        return source.map(lambda batch: batch.select(places), schema)


@dataclass(frozen=True, kw_only=True)
class TupleSelect(Activity):
    """Keeps the tuples for which ``condition``, an SQL expression over their columns, is true."""

    example: ClassVar[str] = """
        <TupleSelect name="selection">
          <data from="tuples"/>
          <condition>id &gt; 1 AND name LIKE '%a%'</condition>
          <result name="some"/>
        </TupleSelect>"""
    role: ClassVar[str | None] = ANY

    data: Input[Stream] = input("data")
    condition: str = child()
    result: Output[Stream] = output("result")

    def run(self, context: Context) -> Stream:
        source = context.tuples(self.data)
        (condition,) = expressions([self.condition], _distinct(source))
        return _query(f"SELECT * FROM data WHERE {condition}", context, source, data=source)


@dataclass(frozen=True, kw_only=True)
class Named(Element):
    """An SQL expression, and the name of the column that it becomes."""

    name: str = attribute("resultColumnName")
    sql: str = text()


@dataclass(frozen=True, kw_only=True)
class TupleArithmeticProjection(Activity):
    """Computes the columns of its result by SQL expressions over the columns of the tuples."""

    example: ClassVar[str] = """
        <TupleArithmeticProjection name="computed">
          <data from="tuples"/>
          <expressions resultColumnName="next">id + 1</expressions>
          <expressions resultColumnName="shout">upper(name)</expressions>
          <result name="results"/>
        </TupleArithmeticProjection>"""
    role: ClassVar[str | None] = ANY

    data: Input[Stream] = input("data")
    expressions: tuple[Named, ...] = child()
    result: Output[Stream] = output("result")

    def run(self, context: Context) -> Stream:
        source = context.tuples(self.data)
        names = _distinct(source)
        written = expressions((each.sql for each in self.expressions), names)
        items = [f"{sql} AS {_quoted(each.name)}" for sql, each in zip(written, self.expressions, strict=True)]
        _check_distinct([each.name for each in self.expressions])
        return _query(f"SELECT {', '.join(items)} FROM data", context, None, data=source)


@dataclass(frozen=True, kw_only=True)
class TupleUnionAll(Activity):
    """Passes on the tuples of its inputs, one input after the other.

    The columns are those of the first input, by position; the others have as many columns, with compatible types.
    """

    example: ClassVar[str] = """
        <TupleUnionAll name="union">
          <data from="tuples"/>
          <result name="all"/>
        </TupleUnionAll>"""
    role: ClassVar[str | None] = ANY

    data: tuple[Input[Stream], ...] = input("data")
    result: Output[Stream] = output("result")

    def run(self, context: Context) -> Stream:
        first, *others = [context.tuples(each) for each in self.data]
        for each in others:
            if len(each.schema) != len(first.schema):
                raise ParameterError(f"One input has {len(first.schema)} columns, another {len(each.schema)}.")

        def batches() -> Iterator[pa.RecordBatch]:
            yield from first
            for each in others:
                with each:
                    for batch in each:
                        yield _cast(batch, first.schema)

        def close() -> None:
            for each in (first, *others):
                each.close()

        return Stream(first.schema, batches(), close)


@dataclass(frozen=True, kw_only=True)
class TupleMergeJoin(Activity):
    """Joins two streams of tuples where their join columns are equal; the result is in the order of these columns.

    The inputs may have any order. The result has all columns of ``data1``, then all of ``data2``; if both have a name,
    it gets ``_2`` in the second. Tuples with a null in a join column are omitted.
    """

    example: ClassVar[str] = """
        <TupleMergeJoin name="join">
          <data1 from="tuples"/>
          <data2 from="tuples"/>
          <columnIds1>id</columnIds1>
          <columnIds2>id</columnIds2>
          <result name="pairs"/>
        </TupleMergeJoin>"""
    role: ClassVar[str | None] = ANY

    data1: Input[Stream] = input("data1")
    data2: Input[Stream] = input("data2")
    columns1: tuple[str, ...] = child("columnIds1")
    columns2: tuple[str, ...] = child("columnIds2")
    result: Output[Stream] = output("result")

    def run(self, context: Context) -> Stream:
        if len(self.columns1) != len(self.columns2):
            raise ParameterError(
                f"There are {len(self.columns1)} join columns on one side and {len(self.columns2)} on the other."
            )
        left, right = context.tuples(self.data1), context.tuples(self.data2)
        ours, theirs = _distinct(left), _distinct(right)
        taken = {name.casefold() for name in ours}
        renamed = [f"{name}_2" if name.casefold() in taken else name for name in theirs]
        _check_distinct([*ours, *renamed])
        keys = [
            (column(one, ours), column(other, theirs)) for one, other in zip(self.columns1, self.columns2, strict=True)
        ]
        items = [f"l.{_quoted(name)}" for name in ours]
        items += [f"r.{_quoted(name)} AS {_quoted(new)}" for name, new in zip(theirs, renamed, strict=True)]
        sql = (
            f"SELECT {', '.join(items)} FROM data1 l JOIN data2 r "
            f"ON {' AND '.join(f'l.{one} = r.{other}' for one, other in keys)} "
            f"ORDER BY {', '.join(f'l.{one}' for one, _ in keys)}"
        )
        fields = [*left.schema, *(each.with_name(new) for each, new in zip(right.schema, renamed, strict=True))]
        return _query(sql, context, pa.schema(fields), data1=left, data2=right)


@dataclass(frozen=True, kw_only=True)
class TupleSplit(Activity):
    """Gives each column of the tuples to an output of its own: the first column to the first output, and so on."""

    example: ClassVar[str] = """
        <TupleSplit name="split">
          <data from="tuples"/>
          <result name="ids"/>
          <result name="names"/>
          <result name="addresses"/>
          <result name="phones"/>
        </TupleSplit>"""
    role: ClassVar[str | None] = ANY

    data: Input[Stream] = input("data")
    result: tuple[Output[Stream], ...] = output("result")

    def run(self, context: Context) -> tuple[Stream, ...]:
        source = context.tuples(self.data)
        if len(self.result) != len(source.schema):
            raise ParameterError(
                f"The tuples have {len(source.schema)} columns, but there are {len(self.result)} outputs.",
                hint="Add a result for each column, or drop columns first (TupleProjection).",
            )
        branches = FanOut(source, len(self.result), scratch=context.scratch).branches()
        return tuple(_column(each, place) for place, each in enumerate(branches) if isinstance(each, Stream))


def _column(source: Stream, place: int) -> Stream:
    return source.map(lambda batch: batch.select([place]), pa.schema([source.schema.field(place)]))


@dataclass(frozen=True, kw_only=True)
class SortColumn(Element):
    """A column to sort by; ``order`` is ``ascending`` (the default) or ``descending``. Nulls come last."""

    order: Literal["ascending", "descending"] = attribute(default="ascending")
    name: str = text()


@dataclass(frozen=True, kw_only=True)
class TupleSort(Activity):
    """Sorts the tuples; those that do not fit in memory are kept on disk."""

    example: ClassVar[str] = """
        <TupleSort name="sort">
          <data from="tuples"/>
          <columnIds order="descending">name</columnIds>
          <columnIds>id</columnIds>
          <result name="sorted"/>
        </TupleSort>"""
    role: ClassVar[str | None] = ANY

    data: Input[Stream] = input("data")
    columns: tuple[SortColumn, ...] = child("columnIds")
    result: Output[Stream] = output("result")

    def run(self, context: Context) -> Stream:
        source = context.tuples(self.data)
        names = _distinct(source)
        directions = {"ascending": "ASC", "descending": "DESC"}
        keys = [f"{column(each.name.strip(), names)} {directions[each.order]} NULLS LAST" for each in self.columns]
        return _query(f"SELECT * FROM data ORDER BY {', '.join(keys)}", context, source, data=source)


@dataclass(frozen=True, kw_only=True)
class TupleGroupBy(Activity):
    """Groups the tuples by the columns ``columnIds`` and computes ``aggregates`` of each group.

    Without ``columnIds`` all tuples are one group. The aggregates are SQL: ``count(*)``, ``sum(price * amount)``.
    """

    example: ClassVar[str] = """
        <TupleGroupBy name="groups">
          <data from="tuples"/>
          <columnIds>name</columnIds>
          <aggregates resultColumnName="people">count(*)</aggregates>
          <aggregates resultColumnName="last">max(id)</aggregates>
          <result name="counts"/>
        </TupleGroupBy>"""
    role: ClassVar[str | None] = ANY

    data: Input[Stream] = input("data")
    columns: tuple[str, ...] = child("columnIds", default=())
    aggregates: tuple[Named, ...] = child()
    result: Output[Stream] = output("result")

    def run(self, context: Context) -> Stream:
        source = context.tuples(self.data)
        names = _distinct(source)
        keys = [column_named(name, names) for name in self.columns]
        _check_distinct([*keys, *(each.name for each in self.aggregates)])
        items = [_quoted(key) for key in keys]
        written = expressions((each.sql for each in self.aggregates), names, aggregates=True)
        items += [f"{sql} AS {_quoted(each.name)}" for sql, each in zip(written, self.aggregates, strict=True)]
        grouping = f" GROUP BY {', '.join(map(_quoted, keys))}" if keys else ""
        key_schema = pa.schema([source.schema.field(key) for key in keys])
        return _query(f"SELECT {', '.join(items)} FROM data{grouping}", context, key_schema, data=source)


@dataclass(frozen=True, kw_only=True)
class Head(Activity):
    """Passes on the first ``rows`` tuples and stops reading its input."""

    example: ClassVar[str] = """
        <Head name="head" rows="2">
          <data from="tuples"/>
          <result name="first"/>
        </Head>"""
    role: ClassVar[str | None] = ANY

    rows: int = attribute()
    data: Input[Stream] = input("data")
    result: Output[Stream] = output("result")

    def run(self, context: Context) -> Stream:
        if self.rows < 0:
            raise ParameterError(f"The number of rows must be 0 or more, not {self.rows}.")
        source = context.tuples(self.data)
        return Stream(source.schema, self._first(source), source.close)

    def _first(self, source: Stream) -> Iterator[pa.RecordBatch]:
        left = self.rows
        while left and (batch := next(source, None)) is not None:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= min(left, batch.num_rows)
        source.close()


@dataclass(frozen=True, kw_only=True)
class Tee(Activity):
    """Passes all of its input to each of its outputs.

    An output may also have several readers without a Tee; the Tee gives each reader an output of its own.
    """

    example: ClassVar[str] = """
        <Tee name="tee">
          <input from="tuples"/>
          <output name="one"/>
          <output name="other"/>
        </Tee>"""
    tabular: ClassVar[Literal["like its input"]] = "like its input"
    role: ClassVar[str | None] = ANY

    source: Input[ByteStream] = input("input")
    results: tuple[Output[ByteStream], ...] = output("output")

    def run(self, context: Context) -> tuple[Any, ...]:
        source = context.bytes(self.source)
        return tuple(FanOut(source, len(self.results), scratch=context.scratch).branches())


def _query(sql: str, context: Context, previous: Stream | pa.Schema | None, **inputs: Stream) -> Stream:
    """``previous``: the fields that the columns of their names keep."""
    schema = previous.schema if isinstance(previous, Stream) else previous
    fields = {each.name: each for each in schema or ()}
    return over(sql, inputs, cancellation=context.cancellation, fields=fields, scratch=context.scratch)


def _cast(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    arrays = []
    for values, wanted in zip(batch.columns, schema, strict=True):
        try:
            arrays.append(values if values.type == wanted.type else values.cast(wanted.type))
        except (pa.ArrowException, ValueError) as error:
            raise DataError(
                f"Column {wanted.name!r}: a {values.type} does not fit the {wanted.type} of the first input.",
                hint="Cast the column in the query that the tuples come from.",
                column=wanted.name,
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _distinct(source: Stream) -> list[str]:
    """The names of the columns. ParameterError where two have one name, whatever its case: SQL could not tell them
    apart."""
    _check_distinct(source.schema.names)
    return list(source.schema.names)


def _check_distinct(names: list[str]) -> None:
    known: set[str] = set()
    for name in names:
        before = len(known)
        known.add(name.casefold())
        if len(known) == before:
            raise ParameterError(f"Two columns have the name {name!r}.", hint="Rename one in the query (AS).")


def _quoted(name: str) -> str:
    return f'"{name.replace(chr(34), chr(34) * 2)}"'
