"""PostgreSQL's types: the Arrow type and the wire form of each.

A column travels in one of the ``NATIVE`` wire forms, which ADBC and the binary format of libpq both give exactly; any
other type is cast in the database by the projection of ``projected``: numeric to text (the server writes it faster
than ADBC does, and Arrow casts it to decimal), oid to bigint, everything with a text form only to text. So both paths
run the same statement and end in the same ``finished`` arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from dai.errors import DataError
from dai.streams.stream import PRECISION, TYPE_NAME

NUMERIC, OID, INET, TEXT = 1700, 26, 869, 25

NATIVE: dict[int, tuple[str, pa.DataType]] = {
    16: ("bool", pa.bool_()),
    21: ("int2", pa.int16()),
    23: ("int4", pa.int32()),
    20: ("int8", pa.int64()),
    700: ("float4", pa.float32()),
    701: ("float8", pa.float64()),
    17: ("bytea", pa.binary()),
    TEXT: ("text", pa.string()),
    1043: ("varchar", pa.string()),
    1042: ("bpchar", pa.string()),
    19: ("name", pa.string()),
    114: ("json", pa.string()),
    3802: ("jsonb", pa.string()),
    1082: ("date", pa.date32()),
    1083: ("time", pa.time64("us")),
    1114: ("timestamp", pa.timestamp("us")),
    1184: ("timestamptz", pa.timestamp("us", "UTC")),
    1186: ("interval", pa.month_day_nano_interval()),
}
"""By oid: the name, which is also the wire form, and the Arrow type."""

_ELEMENTS = frozenset(NATIVE) - {114, 3802}
_ARRAY_MARK = "dai-array:"


class TypeInfo(NamedTuple):
    """A row of pg_type; ``element`` is the oid of an array's element, ``base`` of a domain's base type, else 0;
    ``kind`` is typtype (``e`` for an enum); ``typmod`` is what a domain says of its base type."""

    name: str
    element: int
    base: int
    kind: str = "b"
    typmod: int = -1


class Wanted(NamedTuple):
    """A column as libpq describes it."""

    name: str
    oid: int
    typmod: int


@dataclass(frozen=True, slots=True)
class Shape:
    """``wire`` is the form it travels in (of an array: its elements' form, with ``array`` set), ``cast`` the SQL that
    brings it there (``{}`` stands for the column, None: as it is)."""

    field: pa.Field
    wire: str
    array: bool = False
    cast: str | None = None
    declared: str = ""

    @property
    def wire_type(self) -> pa.DataType:
        wire: pa.DataType = _BY_WIRE[self.wire]
        return pa.list_(wire) if self.array else wire


_OWN_WIRE = {NUMERIC: "numeric", OID: "oid", 2950: "uuid"}
_BY_WIRE = dict(NATIVE.values()) | {"numeric": pa.string(), "oid": pa.uint32(), "uuid": pa.string()}

LOOKUP = b"""
SELECT t.oid, t.typname, CASE WHEN t.typcategory = 'A' AND t.typsubscript = 'array_subscript_handler'::regproc
                              THEN t.typelem ELSE 0 END, t.typbasetype, t.typtype, t.typtypmod
FROM pg_catalog.pg_type t WHERE t.oid = ANY($1::oid[])"""


def shape(column: Wanted, types: dict[int, TypeInfo]) -> Shape:
    """How a column travels; ``types`` holds every oid reachable from it that is not in NATIVE. A domain is its base
    type, as in libpq's descriptions."""
    column = _based(column, types)
    oid = column.oid
    metadata = {TYPE_NAME: _name(oid, types).encode()}
    element = types[oid].element if oid in types else 0
    if element:
        based = _based(column._replace(oid=element), types)
        return _array(based, metadata, is_domain=based.oid != element)
    declared = _name(oid, types)
    if oid == NUMERIC:
        arrow = _decimal(column.typmod) or pa.string()
        declared = f"numeric({arrow.precision},{arrow.scale})" if pa.types.is_decimal(arrow) else "numeric"
        return Shape(pa.field(column.name, arrow, metadata=metadata), "text", cast="{}::text", declared=declared)
    if oid == OID:
        return Shape(pa.field(column.name, pa.uint32(), metadata=metadata), "int8", cast="{}::int8", declared="oid")
    if oid == INET:  # its cast to text is not its text form: it adds /32
        return Shape(pa.field(column.name, pa.string(), metadata=metadata), "text", cast="inet_out({})::text")
    if oid not in NATIVE:
        return Shape(pa.field(column.name, pa.string(), metadata=metadata), "text", cast="{}::text")
    wire, arrow = NATIVE[oid]
    if column.typmod >= 0 and wire in ("time", "timestamp", "timestamptz"):
        metadata[PRECISION] = str(column.typmod).encode()
    if column.typmod >= 4 and wire in ("varchar", "bpchar"):
        metadata[PRECISION] = str(column.typmod - 4).encode()
    return Shape(pa.field(column.name, arrow, metadata=metadata), wire, declared=declared)


def _array(column: Wanted, metadata: dict[bytes, bytes], *, is_domain: bool) -> Shape:
    """``column`` as one of the elements' base type."""
    wire, arrow, cast = "text", pa.string(), "{}::text[]"
    element = column.oid
    if element in _ELEMENTS:
        (wire, arrow), cast = NATIVE[element], "{}"
        if is_domain:
            cast = f"{{}}::{wire}[]"
    elif element == NUMERIC:
        arrow = _decimal(column.typmod) or pa.string()
    elif element == OID:
        wire, arrow, cast = "int8", pa.uint32(), "{}::int8[]"
    elif element == INET:
        cast = (
            "CASE WHEN {} IS NOT NULL THEN ARRAY(SELECT inet_out(x)::text"
            " FROM unnest({}) WITH ORDINALITY AS u(x, n) ORDER BY n) END"
        )
    # Rows may differ in their number of dimensions; a list cannot say it, so more than one is an error of the cast.
    checked = (
        f"CASE WHEN coalesce(array_ndims({{}}), 1) = 1 AND coalesce(array_lower({{}}, 1), 1) = 1 THEN {cast}"
        f" ELSE ({cast})[('{_ARRAY_MARK}' || array_dims({{}}))::int:] END"
    )
    return Shape(pa.field(column.name, pa.list_(arrow), metadata=metadata), wire, True, checked, "array")


_TEXT_IN_BINARY = frozenset({142, 705, 1790, 2275})  # xml, unknown, refcursor, cstring


def uncasts(shapes: Sequence[Shape], columns: Sequence[Wanted], types: dict[int, TypeInfo]) -> tuple[Shape, ...] | None:
    """The shapes of columns without casts around them, decoded from their own binary form; None where we do not know
    it of every column."""
    expressions = [_uncast(shape, column, types) for shape, column in zip(shapes, columns, strict=True)]
    return None if None in expressions else tuple(each for each in expressions if each is not None)


def _uncast(shape: Shape, column: Wanted, types: dict[int, TypeInfo]) -> Shape | None:
    if shape.cast is None:
        return shape
    oid = _base(column.oid, types)
    wire = shape.wire
    if shape.array:
        if _base(types[oid].element, types) not in _ELEMENTS:
            return None
    elif oid in _OWN_WIRE:
        wire = _OWN_WIRE[oid]
    elif not (oid in _TEXT_IN_BINARY or (oid in types and types[oid].kind == "e")):
        return None
    return Shape(shape.field, wire, shape.array, None, shape.declared)


def array_refused(message: str) -> DataError | None:
    """The error of a statement with an array that a list cannot carry, recognised by the database's message."""
    if _ARRAY_MARK not in message:
        return None
    return bounds_refused(message.split(_ARRAY_MARK, 1)[1].rstrip('"'))


def bounds_refused(bounds: str) -> DataError:
    """The error for an array that a list cannot carry."""
    return DataError(
        f"The result holds an array with the bounds {bounds}; only arrays of one dimension that begin at 1 "
        "can be returned as lists.",
        hint="Cast the column to text (column::text), or unnest it.",
    )


def _base(oid: int, types: dict[int, TypeInfo]) -> int:
    return _based(Wanted("", oid, -1), types).oid


def _based(column: Wanted, types: dict[int, TypeInfo]) -> Wanted:
    """A column of a domain as one of the base type."""
    while column.oid in types and types[column.oid].base:
        domain = types[column.oid]
        column = column._replace(oid=domain.base, typmod=domain.typmod)
    return column


def _name(oid: int, types: dict[int, TypeInfo]) -> str:
    if oid in NATIVE:
        return NATIVE[oid][0]
    info = types.get(oid)
    if info is None:
        return "text"
    return f"{_name(_base(info.element, types), types)}[]" if info.element and not info.base else info.name.lower()


def missing(oids: Sequence[int], types: dict[int, TypeInfo]) -> list[int]:
    """Oids that have to be looked up before ``shape`` can be told, level by level."""
    level = set(oids)
    known: set[int] = set()
    while level:
        known |= level
        reached = {other for oid in level if oid in types for other in (types[oid].element, types[oid].base) if other}
        level = reached - known
    return sorted(oid for oid in known if oid not in NATIVE and oid not in types)


def decimal_bounds(typmod: int) -> tuple[int, int] | None:
    """Precision and scale of a numeric's typmod (the scale is an 11 bit signed number since PostgreSQL 15)."""
    if typmod < 4:
        return None
    scale = (typmod - 4) & 0x7FF
    return (typmod - 4) >> 16 & 0xFFFF, scale - 0x800 if scale >= 0x400 else scale


def _decimal(typmod: int) -> pa.DataType | None:
    bounds = decimal_bounds(typmod)
    if bounds is None:
        return None
    precision, scale = bounds
    precision, scale = (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)
    if precision > 76:
        return None
    return pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)


def projected(sql: str, shapes: Sequence[Shape]) -> str:
    """The query with the casts its columns need around it; the query itself where none does.

    PostgreSQL keeps the order of an ordered subquery under a plain projection: there is nothing above it that could
    reorder it. (The standard does not promise it; the planner never adds a step it has no use for.)
    """
    if all(each.cast is None for each in shapes):
        return sql
    names = [f"c{number}" for number in range(1, len(shapes) + 1)]
    columns = [(each.cast or "{}").replace("{}", name) for each, name in zip(shapes, names, strict=True)]
    # On lines of their own: the query may end in a comment.
    return f"SELECT {', '.join(columns)} FROM (\n{sql}\n) AS q({', '.join(names)})"


def finished(shape: Shape, array: pa.Array) -> pa.Array:
    """The array of ``shape.field.type`` of an array as it travelled. Raises DataError for what Arrow cannot hold."""
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    wanted = shape.field.type
    if array.null_count == len(array):
        return array if array.type.equals(wanted) else pa.nulls(len(array), wanted)
    check_range(shape, array.flatten() if shape.array else array)
    if array.type.equals(wanted):
        return array
    try:
        return array.cast(wanted)
    except pa.ArrowInvalid as error:
        raise not_carried(shape) from error


def not_carried(shape: Shape) -> DataError:
    """A numeric that is NaN or an infinity."""
    return DataError(
        f"Column {shape.field.name!r} holds NaN or an infinity, which {shape.declared or shape.field.type} "
        "cannot carry.",
        hint=f"Cast the column: {_quoted(shape)}::float8 or {_quoted(shape)}::text.",
    )


DAY = 86_400_000_000
# The years 4713 BC to 5874897 (date) and to 294246 (what is left of a timestamp when it counts from 1970).
_RANGES: dict[str, tuple[int, int]] = {
    "date": (-2_440_588, 2_145_042_905),
    "timestamp": (-2_440_588 * DAY, (1 << 63) - 1),
    "timestamptz": (-2_440_588 * DAY, (1 << 63) - 1),
    "time": (0, DAY - 1),
}


def check_range(shape: Shape, array: pa.Array) -> None:
    """Infinities are the ends of PostgreSQL's range and wrap to nonsense when counted from 1970."""
    bounds = _RANGES.get(shape.wire)
    if bounds is None:
        return
    numbers = array.view(pa.int32() if shape.wire == "date" else pa.int64())
    extremes: dict[str, Any] = pc.min_max(numbers).as_py()
    if extremes["min"] is None or (extremes["min"] >= bounds[0] and extremes["max"] <= bounds[1]):
        return
    what = "24:00:00" if shape.wire == "time" else "infinity, -infinity or a time beyond the year 294246"
    raise out_of_range(shape, what)


def out_of_range(shape: Shape, what: str) -> DataError:
    """For a value that the column's Arrow type cannot carry: ``what`` it is."""
    return DataError(
        f"Column {shape.field.name!r} ({shape.wire}) holds {what}, which Arrow's {shape.field.type} cannot carry.",
        hint=f"Cast the column: {_quoted(shape)}::text.",
    )


def _quoted(shape: Shape) -> str:
    name: str = shape.field.name
    return name if name.isidentifier() and name.islower() else '"' + name.replace('"', '""') + '"'
