"""Converts a user's tables (data frames, mappings of columns, anything that has Arrow data) to Arrow tables that SQL
can read.

Whole numbers beyond 64 bits become DECIMAL(38,0), half floats FLOAT. A column without an SQL type is an error that
names the column and, if one value is the cause, its row.
"""

from __future__ import annotations

import re
from collections import ChainMap, Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from itertools import chain
from types import FrameType
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import ParameterError

NOTHING: Mapping[str, Any] = {}
_LARGE = pa.decimal128(38, 0)
_WORD = re.compile(r"[^\W\d]\w*")
_HINT = "Give the column one type that SQL has: numbers, texts, dates, or lists and structs of them."


def table_of(data: Any) -> pa.Table:
    """An Arrow table of an Arrow table, a pandas or polars data frame, a mapping of columns, a list of mappings (rows),
    or what streams Arrow.

    ParameterError for what is no table.
    """
    package = type(data).__module__.partition(".")[0]
    if package in ("pandas", "polars") and type(data).__name__ == "Series":
        data = data.to_frame()
    if isinstance(data, list | tuple) and data and all(isinstance(each, Mapping) for each in data):
        data = {str(name): [each.get(name) for each in data] for name in dict.fromkeys(chain.from_iterable(data))}
    try:
        if isinstance(data, pa.RecordBatch):
            table = pa.Table.from_batches([data])
        elif isinstance(data, pa.RecordBatchReader):
            table = data.read_all()
        elif isinstance(data, pa.Table):
            table = data
        elif (
            package in ("pandas", "polars")
            and not type(data).__name__.startswith("Lazy")
            and hasattr(data, "iloc" if package == "pandas" else "get_columns")
        ):
            columns = [data.iloc[:, at] for at in range(data.shape[1])] if package == "pandas" else data.get_columns()
            table = _named([str(each) for each in data.columns], columns)
        elif isinstance(data, Mapping):
            table = _named([str(each) for each in data], list(data.values()))
        elif hasattr(data, "__arrow_c_stream__"):
            table = pa.table(data)
        else:
            what = type(data).__name__
            hint = "Give an Arrow table, a pandas or polars data frame, or a mapping of columns."
            raise ParameterError(
                f"A table cannot be made from a {what}.",
                hint="Collect it: .collect()." if what == "LazyFrame" else hint,
            )
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise ParameterError(f"The data cannot be made into a table: {error}.") from error
    fields = [_readable(name, column) for name, column in zip(table.column_names, table.columns, strict=True)]
    return pa.table(fields, names=table.column_names) if fields else table


def variables_of(frame: FrameType) -> Mapping[str, Any]:
    """What the code of a frame can name."""
    return ChainMap(frame.f_locals, frame.f_globals)


def tables_named(sql: str, variables: Mapping[str, Any]) -> Mapping[str, Any]:
    """The variables that are tables and whose names stand in the SQL."""
    tables = {}
    for each in set(_WORD.findall(sql)):
        if each in variables and is_table(variables[each]):
            tables[each] = variables[each]
    return tables


def other_variables(sql: str, variables: Mapping[str, Any]) -> Mapping[str, str]:
    """Of variables that are no tables, but hold values, and whose names stand in the SQL: how each becomes a table."""
    ways = {}
    for each in set(_WORD.findall(sql)) & set(variables):
        kind = type(variables[each]).__name__
        if kind in ("dict", "list", "tuple", "set", "ndarray", "LazyFrame"):
            what = {"dict": each, "LazyFrame": f"{each}.collect()"}.get(kind, f'{{"value": {each}}}')
            ways[each] = f"{each} is a {kind} here; lab.upload({each!r}, {what}) makes a table of it."
    return ways


def is_table(value: Any) -> bool:
    """Whether it has rows, as a data frame does. (A mapping may be anything.)"""
    if isinstance(value, type):
        return False
    is_frame = type(value).__module__.partition(".")[0] == "pandas" and hasattr(value, "iloc")
    return isinstance(value, pa.RecordBatch) or hasattr(value, "__arrow_c_stream__") or is_frame


def _named(names: Sequence[str], columns: Sequence[Any]) -> pa.Table:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ParameterError(f"Columns of the table have the same name: {', '.join(twice)}.")
    arrays = [_column(name, each) for name, each in zip(names, columns, strict=True)]
    lengths = {len(each) for each in arrays}
    if len(lengths) > 1:
        each = ", ".join(f"{name} {len(column):,}" for name, column in zip(names, arrays, strict=True))
        raise ParameterError(f"The columns of the table have different numbers of rows: {each}.")
    return pa.table(arrays, names=list(names))


def _column(name: str, values: Any) -> pa.Array | pa.ChunkedArray:
    kind = str(getattr(values, "dtype", ""))
    if kind.startswith(("period", "Object", "complex", "Int128")):
        if kind != "Int128":
            raise ParameterError(f"The column {name!r} is of the type {kind}, which SQL does not have.", hint=_HINT)
        values = values.to_list()
    if kind.startswith("Sparse"):
        values = values.sparse.to_dense()
    try:
        if isinstance(values, pa.Array | pa.ChunkedArray):
            return values
        if type(values).__module__.startswith("polars"):
            return values.to_arrow()
        return pa.array(values, from_pandas=type(values).__module__.startswith("pandas") or None)
    except (OverflowError, pa.ArrowException, TypeError, ValueError) as error:
        return _large(name, values, error)


def _large(name: str, values: Any, error: Exception) -> pa.Array:
    """Whole numbers of any size; ParameterError that names the row for what is no column."""
    if not hasattr(values, "__len__") or isinstance(values, str | bytes):
        raise ParameterError(f"The column {name!r} is a {type(values).__name__}, not a list of values.") from error
    listed = (
        [None if each is None or each != each else each for each in values] if getattr(values, "ndim", 1) == 1 else []
    )
    known = [each for each in listed if each is not None]
    if known and all(isinstance(each, int) and not isinstance(each, bool) for each in known):
        for row, each in enumerate(listed, 1):
            if each is not None and abs(each) >= 10**38:
                raise ParameterError(
                    f"The column {name!r} has a number of more than 38 digits in row {row:,}.",
                    hint="Give it as a text or a float.",
                ) from error
        return pa.array([None if each is None else Decimal(each) for each in listed], _LARGE)
    first = next((each for each in listed if each is not None), None)
    for row, each in enumerate(listed, 1):
        if each is not None and type(each) is not type(first):
            raise ParameterError(
                f"The column {name!r} holds {type(first).__name__} values, and a {type(each).__name__} in row {row:,}.",
                hint=_HINT,
            ) from error
    raise ParameterError(f"The column {name!r} cannot be read: {error}.", hint=_HINT) from error


def _readable(name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in a type that DuckDB reads."""
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType) and not isinstance(kind, pa.UuidType):
        column = pa.chunked_array([each.storage for each in column.chunks], kind.storage_type)
        kind = column.type
    wanted = None
    if pa.types.is_float16(kind):
        wanted = pa.float32()
    elif pa.types.is_decimal256(kind):
        wanted = pa.decimal128(38, max(0, min(kind.scale, 38)))
    elif pa.types.is_run_end_encoded(kind):
        return _readable(name, pa.chunked_array([pc.run_end_decode(each) for each in column.chunks], kind.value_type))
    elif pa.types.is_union(kind):
        raise ParameterError(f"The column {name!r} is a {kind}, which SQL does not have.", hint=_HINT)
    if wanted is None:
        return column
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise ParameterError(
            f"The column {name!r} has values of more than 38 digits.", hint="Give them as texts or floats."
        ) from error
