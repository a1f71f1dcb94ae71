"""SQLite's dynamically typed values as Arrow columns of one type each, and back.

A column's type is chosen when its first rows are there: the Arrow type of its declared type if all of them fit, else
the type they are stored in. Later values that do not fit are a DataError naming column, row and a cast. What SQLite
itself does is not undone: it stores NaN as NULL, and numbers of a NUMERIC column as 8-byte floats.
"""

from __future__ import annotations

import datetime
import math
import re
import uuid
from collections.abc import Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dai.drivers.connections.rows import columns_of, unfitting
from dai.drivers.sql.parameters import moment
from dai.errors import DataError, ParameterError

_UTC = pa.timestamp("us", "UTC")
_STORED = {pa.int64(): "integer", pa.float64(): "real", pa.string(): "text", pa.binary(): "blob", pa.null(): "null"}
_DATE, _TO_THE_HOUR = 10, 13
"""Lengths of texts that Arrow reads as moments without a zone."""
_TIME = r"^\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?$"
_NO_ZONE = r"^.{10}[ T]\d{2}:\d{2}(:\d{2}(\.\d+)?)?$"
_PLAIN = re.compile(r"(?!(?:true|false|column\d+)$)[a-z_][a-z0-9_]*", re.IGNORECASE | re.ASCII)
"""A name that means a column only."""
_DIGITS = 15
"""SQLite converts text to an 8-byte float when the first 15 significant digits survive."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How one column travels: ``stored`` is the Arrow type of what SQLite holds, ``type`` what comes out. ``declared``:
    it is a column of a table that says a type; what is computed has a name that only the result knows."""

    name: str
    type_name: str
    stored: pa.DataType
    type: pa.DataType
    declared: bool = True


def declared_type(declared: str) -> pa.DataType | None:
    """The Arrow type of a declared type, None where it says nothing (SQLite's affinity rules, then the usual names)."""
    name = declared.upper()
    word = re.match(r"[A-Z_0-9]*", name)
    first = word.group() if word else ""
    if first in ("BOOL", "BOOLEAN"):
        return pa.bool_()
    if first == "DATE":
        return pa.date32()
    if first in ("TIMESTAMPTZ", "DATETIMETZ") or (first == "TIMESTAMP" and "WITH TIME ZONE" in name):
        return _UTC
    if first in ("TIMESTAMP", "DATETIME"):
        return pa.timestamp("us")
    if first == "TIME":
        return pa.time64("us")
    if first in ("DECIMAL", "NUMERIC", "DECIMAL_TEXT"):
        size = re.search(r"\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", name)
        precision, scale = (int(size.group(1)), int(size.group(2) or 0)) if size else (0, 0)
        if 0 < precision <= 38 and scale <= precision:
            return pa.decimal128(precision, scale)
        return pa.decimal256(precision, scale) if 38 < precision <= 76 and scale <= precision else None
    if "INT" in name:
        return pa.int64()
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")) or first in ("JSON", "UUID"):
        return pa.string()
    if "BLOB" in name or "BINARY" in name:
        return pa.binary()
    return pa.float64() if any(part in name for part in ("REAL", "FLOA", "DOUB")) else None


def has_text_affinity(declared: str) -> bool:
    """Whether SQLite keeps numbers in a column of the ``declared`` type as text (sqlite.org/datatype3.html, 3.1)."""
    name = declared.upper()
    return "INT" not in name and any(part in name for part in ("CHAR", "CLOB", "TEXT"))


def type_name(declared: str, type: pa.DataType) -> str:
    """The value of ``dai.type``: the declared type's name, or that of the storage class if none was declared."""
    name = declared.split("(")[0].strip().lower().removesuffix("_text")
    return name or _STORED.get(type, "text")


def chosen(
    names: Sequence[str], declared: Sequence[str], rows: Sequence[tuple[Any, ...]], complete: bool
) -> list[Kind]:
    """The kinds of the columns whose first rows are these; ``declared`` may be empty: nobody knows."""
    columns = columns_of(rows, len(names))
    types = declared if len(declared) == len(names) else [""] * len(names)
    return [choose(*each, complete) for each in zip(names, types, columns, strict=True)]


def promised(columns: Sequence[tuple[str, str]]) -> list[Kind]:
    """The kinds of the columns of a view (name, declared type) of which no value is known yet; none where one's
    declaration says nothing, or where its name may be another one in the result: SQLite calls the second ``a`` of a
    view ``a:1``, and ``true`` a column's number; later versions name expressions by their text."""
    if not all(declared_type(declared) is not None and _PLAIN.fullmatch(name) for name, declared in columns):
        return []
    return [choose(name, declared, (), False) for name, declared in columns]


def arrays(kinds: Sequence[Kind], rows: Sequence[tuple[Any, ...]], row: int) -> list[pa.Array]:
    """One portion of the columns; ``row`` is the number of its first row."""
    return [_array(kind, values, row) for kind, values in zip(kinds, columns_of(rows, len(kinds)), strict=True)]


def is_exact(type: pa.DataType) -> bool:
    """Whether 8-byte floats hold all decimals of the type."""
    return bool(pa.types.is_decimal(type) and type.precision <= _DIGITS)


def converted(kind: Kind, stored: pa.Array, row: int) -> pa.Array:
    """A portion of a column that is in Arrow already, decimals as 8-byte floats."""
    if stored.null_count == len(stored):
        return pa.nulls(len(stored), kind.type)
    try:
        stored.validate(full=True)
    except pa.ArrowInvalid as error:
        raise not_utf8(kind.name) from error
    column = _typed(stored, kind.type)
    if column is None:
        raise _unfitting(kind, stored.to_pylist(), row)
    return column


def other_type(kind: Kind, rows: str) -> DataError:
    """What to say about a value of another storage class in one of these rows."""
    return DataError(
        f"Column {kind.name!r}, {rows}: a value is not a {kind.type}.",
        hint=f"Select {_cast(kind.name, kind.declared)} to get the column as text.",
        column=kind.name,
    )


def not_utf8(column: str) -> DataError:
    return DataError(
        f"Column {column!r} holds text that is not UTF-8.",
        hint=f'Select CAST("{column}" AS BLOB) to get its bytes.',
        column=column,
    )


def choose(name: str, declared: str, values: Sequence[Any], complete: bool) -> Kind:
    """The kind of a column whose first values are these; ``complete`` when there are no others."""
    wanted = declared_type(declared)
    stored = _stored(values)
    if stored is None:
        if wanted is not None and pa.types.is_decimal(wanted):
            kind = Kind(name, type_name(declared, wanted), pa.null(), wanted)
            if _as_decimal(values, wanted) is not None:
                return kind
        raise _mixed(name, values, bool(declared))
    if pa.types.is_null(stored.type):
        default = wanted or (pa.null() if complete else pa.string())
        return Kind(name, type_name(declared, default), _storage_of(default), default, bool(declared))
    if wanted is not None and _typed(stored, wanted, values) is not None:
        return Kind(name, type_name(declared, wanted), _storage_of(wanted), wanted)
    return Kind(name, type_name("", stored.type), stored.type, stored.type, bool(declared))


def _array(kind: Kind, values: Sequence[Any], row: int) -> pa.Array:
    stored = _stored(values)
    column = None
    if stored is not None:
        column = _typed(stored, kind.type, values)
    elif pa.types.is_decimal(kind.type):
        column = _as_decimal(values, kind.type)
    if column is None:
        raise _unfitting(kind, values, row)
    return column


def _storage_of(type: pa.DataType) -> pa.DataType:
    if pa.types.is_boolean(type):
        return pa.int64()
    return type if type in _STORED else pa.string()


def _stored(values: Sequence[Any]) -> pa.Array | None:
    """In the type the values are stored in; None when that is not one type."""
    try:
        column = pa.array(values)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return None
    if pa.types.is_binary(column.type) and any(type(value) is str for value in values):
        return None
    return column if column.type in _STORED else None


def _typed(stored: pa.Array, wanted: pa.DataType, values: Sequence[Any] | None = None) -> pa.Array | None:
    """The stored values as ``wanted``; None when one does not fit without loss. ``values``: the same, if at hand."""
    have = stored.type
    if have == wanted:
        return stored
    if pa.types.is_null(have):
        return pa.nulls(len(stored), wanted)
    try:
        if pa.types.is_boolean(wanted):
            whole = have == pa.int64() and pc.all(pc.is_in(stored, pa.array([0, 1, None]))).as_py()
            return stored.cast(wanted) if whole else None
        if pa.types.is_decimal(wanted):
            if have == pa.binary():
                return None
            decimals = _few_digits(stored, wanted) if have in (pa.int64(), pa.float64()) else None
            return (
                _as_decimal(stored.to_pylist() if values is None else values, wanted) if decimals is None else decimals
            )
        if wanted == pa.float64():
            return stored.cast(wanted) if have == pa.int64() else None
        if have != pa.string():
            return None
        if wanted == pa.date32():
            return stored.cast(wanted)
        if pa.types.is_timestamp(wanted):
            lengths = pc.min_max(pc.binary_length(stored))
            few, most = lengths["min"].as_py(), lengths["max"].as_py()
            if few == most == _DATE:
                return stored.cast(pa.timestamp("us")).cast(wanted)
            if wanted == _UTC:  # those without a zone, as CURRENT_TIMESTAMP is, are in UTC
                stored = pc.replace_substring_regex(stored, _NO_ZONE, r"\0Z")
            return stored.cast(wanted) if few > _TO_THE_HOUR else None
        if pa.types.is_time(wanted):
            return time_of(stored) if _match(stored, _TIME) else None
    except pa.ArrowInvalid:
        return None
    return None


def time_of(text: pa.Array) -> pa.Array:
    """``HH:MM[:SS[.ffffff]]`` as time64[us] (Arrow parses no times, but it parses moments)."""
    moments = pc.binary_join_element_wise("1970-01-01 ", text, "").cast(pa.timestamp("us"))
    return moments.cast(pa.int64()).cast(pa.time64("us"))


def _match(stored: pa.Array, pattern: str) -> bool:
    return bool(pc.all(pc.match_substring_regex(stored, pattern)).as_py())


def _few_digits(stored: pa.Array, wanted: pa.DataType) -> pa.Array | None:
    """Numbers as decimals of at most ``_DIGITS`` digits, all together; None where one has more.

    A number of so few digits is the nearest to only one 8-byte float, so that the decimal is the float's shortest text:
    what ``_as_decimal`` makes of them one by one.
    """
    if not pa.types.is_decimal128(wanted) or wanted.scale > _DIGITS:
        return None
    nulls = None if stored.null_count == 0 else stored.is_null().to_numpy(zero_copy_only=False)
    numbers = pc.cast(stored if nulls is None else pc.fill_null(stored, 0), pa.float64(), safe=False).to_numpy()
    scale = 10.0**wanted.scale
    with np.errstate(over="ignore"):
        unscaled = np.rint(numbers * scale)
    if not ((np.abs(unscaled) < 10.0 ** min(wanted.precision, _DIGITS)) & (unscaled / scale == numbers)).all():
        return None
    wide = np.empty((len(numbers), 2), np.int64)
    wide[:, 0] = unscaled
    wide[:, 1] = wide[:, 0] >> 63
    validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    return pa.Array.from_buffers(wanted, len(numbers), [validity, pa.py_buffer(wide)])


def _as_decimal(values: Sequence[Any], wanted: pa.DataType) -> pa.Array | None:
    """Integers, floats (by their shortest text) and text mixed, as NUMERIC columns hold them."""
    if any(type(value) is bytes for value in values):
        return None
    try:
        return pa.array([None if value is None else str(value) for value in values], pa.string()).cast(wanted)
    except pa.ArrowInvalid:
        return None


def _mixed(name: str, values: Sequence[Any], declared: bool) -> DataError:
    kinds: dict[type, int] = {}
    for row, value in enumerate(values, 1):
        if value is not None:
            kinds.setdefault(type(value), row)
    examples = ", ".join(f"{_PYTHON.get(kind, kind.__name__)} (row {row})" for kind, row in kinds.items())
    return DataError(
        f"Column {name!r} holds values of several types: {examples}.",
        hint=f"Select {_cast(name, declared)} to get the column as text.",
        column=name,
        row=max(kinds.values(), default=1),
    )


_PYTHON = {int: "integer", float: "real", str: "text", bytes: "blob"}


def _cast(name: str, declared: bool) -> str:
    quoted = name.replace('"', '""')
    return f'CAST("{quoted}" AS TEXT)' if declared else f'CAST(… AS TEXT) AS "{quoted}"'


def _unfitting(kind: Kind, values: Sequence[Any], row: int) -> DataError:
    for at, value in enumerate(values):
        stored = _stored([value])
        if stored is None or _typed(stored, kind.type, [value]) is None:
            error = unfitting(kind.name, row + at, value, str(kind.type), _cast(kind.name, kind.declared))
            if type(value) is float and kind.type == pa.int64():
                real = _cast(kind.name, kind.declared).replace("AS TEXT", "AS REAL", 1)
                error.hint = f"Select {real}: the first rows are whole numbers, which decided the column's type."
            return error
    return _mixed(kind.name, values, kind.declared)


def storable(column: pa.Array, name: str, declared: str, row: int) -> Sequence[Any]:
    """Arrow values as Python values that SQLite stores in a column of type ``declared`` without loss.

    DataError for NaN (SQLite would store NULL) and for numbers that the column's affinity would round.
    """
    type = column.type
    if pa.types.is_dictionary(type):
        return storable(column.cast(type.value_type), name, declared, row)
    if pa.types.is_floating(type):
        _refuse(pc.is_nan(column), column, name, row, "SQLite has no NaN: it would become NULL")
        column = column.cast(pa.float64())
    elif pa.types.is_boolean(type):
        column = column.cast(pa.int8())
    elif pa.types.is_decimal(type) or type == pa.uint64():
        column = column.cast(pa.string())
        if not has_text_affinity(declared):
            digits = pc.replace_substring_regex(column, r"^-?0*\.?0*|\.", "")
            long = pc.greater(pc.utf8_length(pc.utf8_rtrim(digits, "0")), _DIGITS)
            _refuse(long, column, name, row, f"SQLite rounds numbers of more than {_DIGITS} digits in this column")
    elif pa.types.is_date(type):
        column = column.cast(pa.string())
    elif pa.types.is_time(type) or pa.types.is_timestamp(type):
        column = _moments(column)
    elif not (_is_text(type) or _is_bytes(type) or pa.types.is_integer(type) or pa.types.is_null(type)):
        raise DataError(
            f"The column {name!r} is a {type}, for which SQLite has no type.",
            hint="Cast it to text in the query that gives it.",
            column=name,
        )
    if column.null_count == 0 and pa.types.is_primitive(column.type):
        numbers: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return numbers
    plain: list[Any] = column.to_pylist()
    return plain


def _moments(column: pa.Array) -> pa.Array:
    """The texts that ``bound_row`` gives moments and times, which SQLite compares as texts: without a zone, and without
    a fraction of a second where that is zero. Those with nanoseconds, of which it has none, keep nine digits."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp(column.type.unit))  # in UTC
    with suppress(pa.ArrowInvalid):
        column = column.cast(pa.timestamp("us") if pa.types.is_timestamp(column.type) else pa.time64("us"))
        return pc.replace_substring(column.cast(pa.string()), ".000000", "")
    return column.cast(pa.string())


def _is_text(type: pa.DataType) -> bool:
    return any(fits(type) for fits in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_bytes(type: pa.DataType) -> bool:
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary, pa.types.is_binary_view)
    return any(fits(type) for fits in kinds)


def _refuse(bad: pa.Array, column: pa.Array, name: str, row: int, why: str) -> None:
    at = pc.index(bad, True).as_py()
    if at >= 0:
        raise DataError(f"Column {name!r}, row {row + at}: {column[at].as_py()}: {why}.", column=name, row=row + at)


def bound_row(values: Sequence[Any], stored: Set[int] = frozenset()) -> tuple[Any, ...]:
    """Python values as SQLite takes them: moments in ISO 8601, those with a zone in UTC, as SQLite's own functions give
    them; UUIDs as text.

    SQLite sorts every text above every number, so that decimals are numbers: integers where they are whole and have 64
    bits, else 8-byte floats, which round more than 15 digits, as SQLite does with its numbers. Those whose places are
    ``stored`` go into columns and are compared with nothing: they are texts, of which a column of texts keeps every
    digit; a column of numbers makes numbers of them.
    """
    return tuple(_bound(value, at, at in stored) for at, value in enumerate(values, 1))


def _number(value: Decimal) -> int | float:
    if value.adjusted() < 19 and value == value.to_integral_value() and -(1 << 63) <= value < 1 << 63:
        return int(value)
    return float(value)


def _bound(value: Any, at: int, stored: bool) -> Any:
    match value:
        case None | str() | bytes():
            return value
        case bool():
            return int(value)
        case int():
            if not -(1 << 63) <= value < 1 << 63:
                raise ParameterError(f"Parameter {at}: SQLite's integers have 64 bits.", hint="Send it as text.")
            return value
        case float():
            if math.isnan(value):
                raise ParameterError(f"Parameter {at}: SQLite has no NaN, it would become NULL.")
            return value
        case Decimal():
            if not value.is_finite():
                raise ParameterError(f"Parameter {at}: SQLite has no decimal {value}.")
            return str(value) if stored else _number(value)
        case datetime.datetime():
            return moment(value, at)
        case datetime.date() | datetime.time():
            return value.isoformat()
        case uuid.UUID():
            return str(value)
        case bytearray() | memoryview():
            return bytes(value)
    raise ParameterError(f"Parameter {at}: SQLite has no type for a Python {type(value).__name__}.")
