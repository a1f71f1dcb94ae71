"""Tables for pandas and polars: values that these would hold as text, or not at all, become values to calculate
with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as types

from dai.errors import DataError, MissingDependencyError, RequestError
from dai.formats.values.text import is_numeric_text
from dai.plugins import extra_hint
from dai.streams.meaning import Meaning

_POLARS_DIGITS = 38
_INTERVAL = np.dtype([("months", "<i4"), ("days", "<i4"), ("nanoseconds", "<i8")])


def to_pandas(read: Callable[[], pa.Table], exact: bool, **options: Any) -> Any:
    """A pandas DataFrame. Decimals without a declared precision, which travel as text, are DOUBLE unless ``exact``.
    ``attrs`` has what columns mean, by their names."""
    needed("pandas")
    table = read()
    try:
        frame = _each(table, partial(_for_pandas, exact)).to_pandas(**options)
    except ValueError as error:
        if "out of range" not in str(error):
            raise
        raise DataError(
            f"A pandas data frame cannot hold a value of this result: {error}.",
            hint="pandas has dates of the years 1 to 9999 only: use .arrow() or .pl(), or cast the column in the "
            "query.",
        ) from error
    frame.attrs.update({each.name: said for each in table.schema if (said := dict(Meaning.of(each.metadata).said))})
    return frame


def to_polars(read: Callable[[], pa.Table], exact: bool) -> Any:
    """A polars DataFrame. As for pandas; so are decimals of more than 38 digits, which polars has not (text where
    ``exact``); an interval is a structure of months, days and nanoseconds."""
    polars = needed("polars")
    table = read()
    if twice := next((each for each in table.column_names if table.column_names.count(each) > 1), None):
        raise RequestError(
            f"Two columns have the name {twice!r}, which a polars data frame cannot have.",
            hint="Give them different names in the SQL (select a.id, b.id as b_id …), or use .df() or .arrow().",
        )
    return polars.from_arrow(_each(table, partial(_for_polars, exact)))


def needed(package: str) -> Any:
    """A package that tuples can be handed to. MissingDependencyError says how to install it."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"This needs the Python package {package!r}.", hint=extra_hint(package)) from error


def _each(table: pa.Table, convert: Callable[[pa.Array, bool], pa.Array]) -> pa.Table:
    columns, fields = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        chunks = column.chunks or [pa.nulls(0, field.type)]
        try:
            converted = pa.chunked_array([convert(chunk, is_numeric_text(field)) for chunk in chunks])
        except pa.ArrowInvalid:  # not all of it is a number: SQLite holds what it is given
            converted = pa.chunked_array([convert(chunk, False) for chunk in chunks])
        columns.append(converted)
        fields.append(field.with_type(converted.type))
    if not columns:
        return table
    return pa.table(columns, schema=pa.schema(fields, table.schema.metadata))


def _for_pandas(exact: bool, array: pa.Array, numeric: bool) -> pa.Array:
    return _within(array, lambda leaf: leaf.cast(pa.float64()) if numeric and not exact else leaf)


def _for_polars(exact: bool, array: pa.Array, numeric: bool) -> pa.Array:
    def leaf(values: pa.Array) -> pa.Array:
        if types.is_interval(values.type):
            return _structures(values)
        if types.is_decimal(values.type) and values.type.precision > _POLARS_DIGITS:
            return values.cast(pa.string() if exact else pa.float64())
        return values.cast(pa.float64()) if numeric and not exact else values

    return _within(array, leaf)


def _within(array: pa.Array, leaf: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """``leaf`` of the values, of those in lists and structures too."""
    type_ = array.type
    if types.is_list(type_) or types.is_large_list(type_):
        values = _within(array.values, leaf)
        if values.type == type_.value_type:
            return array
        wanted = pa.list_ if types.is_list(type_) else pa.large_list
        return _like(array, wanted(values.type), [values])
    if types.is_struct(type_):
        fields = [_within(pc.struct_field(array, number), leaf) for number in range(type_.num_fields)]
        if all(each.type == field.type for each, field in zip(fields, type_, strict=True)):
            return array
        named = [field.with_type(each.type) for each, field in zip(fields, type_, strict=True)]
        return pa.StructArray.from_arrays(fields, fields=named, mask=array.is_null())
    return leaf(array)


def _like(array: pa.Array, type_: pa.DataType, children: list[pa.Array]) -> pa.Array:
    """Lists of other values."""
    return pa.Array.from_buffers(
        type_, len(array), array.buffers()[:2], array.null_count, array.offset, children=children
    )


def _structures(intervals: pa.Array) -> pa.Array:
    parts = np.empty(0, _INTERVAL)
    if len(intervals):
        start = intervals.offset * _INTERVAL.itemsize
        parts = np.frombuffer(intervals.buffers()[1], _INTERVAL, len(intervals), start)
    columns = [pa.array(np.ascontiguousarray(parts[name])) for name in _INTERVAL.names or ()]
    return pa.StructArray.from_arrays(columns, list(_INTERVAL.names or ()), mask=intervals.is_null())
