"""MariaDB's and MySQL's text protocol to Arrow: every value arrives as bytes and is cast by its column's declared type.

What the protocol does not carry losslessly is FLOAT without a scale (6 digits); see ``lossless_floats``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dai.drivers.connections.rows import field, unfitting
from dai.drivers.mariadb.syntax import SYNTAX
from dai.drivers.sql.lexer import tokens
from dai.errors import DataError

TEXT_TYPES = (15, 245, 249, 250, 251, 252, 253, 254, 255)
"""Protocol types that are text or bytes according to the character set of the column."""
_UNSIGNED, _ENUM, _SET = 32, 256, 2048
_NOT_FIXED = 31
_BLOBS = {249: "tiny", 250: "medium", 251: "long", 252: ""}
_BLOB_BYTES = ((249, 255 * 4), (252, 65_535 * 4), (250, 16_777_215 * 4))
"""The protocol says BLOB for all of them; their length, in bytes of four a character at most, tells them apart."""
_INTEGERS = {
    1: ("tinyint", pa.int8(), pa.uint8()),
    2: ("smallint", pa.int16(), pa.uint16()),
    3: ("int", pa.int32(), pa.uint32()),
    8: ("bigint", pa.int64(), pa.uint64()),
    9: ("mediumint", pa.int32(), pa.uint32()),
    13: ("year", pa.int16(), pa.int16()),
}
_OTHERS = {
    4: ("float", pa.float32()),
    5: ("double", pa.float64()),
    6: ("null", pa.null()),
    7: ("timestamp", pa.timestamp("us", "UTC")),
    10: ("date", pa.date32()),
    11: ("time", pa.duration("us")),
    12: ("datetime", pa.timestamp("us")),
    16: ("bit", pa.uint64()),
    245: ("json", pa.string()),
}
NO_LIMIT = "18446744073709551615"


@dataclass(frozen=True, slots=True)
class Kind:
    """A column of a result; ``wire`` is the protocol's type number, ``digits`` of a second or after the point."""

    name: str
    type_name: str
    type: pa.DataType
    wire: int
    digits: int

    @property
    def is_cut(self) -> bool:
        """A float whose text has only six digits."""
        return self.wire == 4 and self.digits == _NOT_FIXED

    @property
    def field(self) -> pa.Field:
        has_precision = self.wire in (7, 11, 12)
        return field(self.name, self.type, self.type_name, precision=self.digits if has_precision else None)


def kind(name: str, wire: int, length: int, digits: int, flags: int, binary: bool) -> Kind:
    """From the metadata of a result's column; ``binary`` when its character set is."""
    unsigned = bool(flags & _UNSIGNED)
    if wire in _INTEGERS:
        type_name, signed_type, unsigned_type = _INTEGERS[wire]
        suffix = " unsigned" if unsigned and wire != 13 else ""
        return Kind(name, type_name + suffix, unsigned_type if unsigned else signed_type, wire, 0)
    if wire in (0, 246):
        precision = length - (digits > 0) - (not unsigned)
        precision = min(max(precision, digits, 1), 76)
        decimal = pa.decimal128 if precision <= 38 else pa.decimal256
        return Kind(name, "decimal unsigned" if unsigned else "decimal", decimal(precision, digits), wire, digits)
    if wire in _OTHERS:
        type_name, arrow = _OTHERS[wire]
        return Kind(name, type_name, arrow, wire, digits)
    if wire == 252:
        wire = next((size for size, most in _BLOB_BYTES if 0 <= length <= most), 251)
    if binary:
        type_name = "geometry" if wire == 255 else "varbinary" if wire == 253 else "binary"
        return Kind(name, f"{_BLOBS[wire]}blob" if wire in _BLOBS else type_name, pa.binary(), wire, digits)
    if flags & (_ENUM | _SET):
        return Kind(name, "enum" if flags & _ENUM else "set", pa.string(), wire, digits)
    type_name = f"{_BLOBS[wire]}text" if wire in _BLOBS else "char" if wire == 254 else "varchar"
    return Kind(name, type_name, pa.string(), wire, digits)


def lossless_floats(query: str, kinds: Sequence[Kind]) -> tuple[str, list[Kind]]:
    """The query with its FLOAT columns sent as DOUBLE, whose text is exact, and how to read the result.

    The query becomes a common table expression. Where it is ordered it gets a LIMIT that limits nothing: an ordered
    subquery without one may be taken for a set.
    """
    columns = [f"c{at}" for at in range(1, len(kinds) + 1)]
    values = [f"{column} + 0e0" if each.is_cut else column for column, each in zip(columns, kinds, strict=True)]
    words = _outer_words(query)
    limit = f" LIMIT {NO_LIMIT}" if "ORDER" in words and not words & {"LIMIT", "FETCH", "FOR", "LOCK"} else ""
    wrapped = f"WITH dai_query ({', '.join(columns)}) AS ({query}\n{limit}) SELECT {', '.join(values)} FROM dai_query"
    return wrapped, [replace(each, wire=5, digits=_NOT_FIXED) if each.is_cut else each for each in kinds]


def _outer_words(query: str) -> set[str]:
    depth, words = 0, set()
    for token_kind, start, end in tokens(query, SYNTAX):
        text = query[start:end]
        if token_kind == "symbol":
            depth += {"(": 1, ")": -1}.get(text, 0)
        elif token_kind == "word" and depth == 0:
            words.add(text.upper())
    return words


def array(kind: Kind, raw: pa.Array, row: int) -> pa.Array:
    """One portion of a column from its bytes; ``row`` is the number of its first value. DataError for what Arrow's type
    does not hold: zero dates, and text that is not UTF-8."""
    try:
        return _decoded(kind, raw)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _unfitting(kind, raw, row) from error


def _decoded(kind: Kind, raw: pa.Array) -> pa.Array:
    type = kind.type
    if type == pa.binary():
        return raw
    if kind.wire == 16:
        return _bits(raw)
    text = raw.cast(pa.string())
    if type == pa.string():
        return text
    if pa.types.is_null(type):
        return pa.nulls(len(raw))
    if pa.types.is_duration(type):
        return _durations(text)
    if pa.types.is_timestamp(type):
        return text.cast(pa.timestamp("us")).cast(pa.int64()).cast(type)
    if type == pa.float32():
        return text.cast(pa.float64()).cast(type)
    return text.cast(type)


def _bits(raw: pa.Array) -> pa.Array:
    """Big-endian bytes, the same number in every row (at most 8)."""
    width = max(pc.max(pc.binary_length(raw)).as_py() or 0, 1)
    filled = pc.fill_null(raw, b"\0" * width)
    if pc.min(pc.binary_length(filled)).as_py() not in (width, None) or width > 8:
        raise pa.ArrowInvalid("bit strings of several lengths")
    data = np.frombuffer(b"".join(filled.to_pylist()), np.uint8).reshape(-1, width)
    wide = np.zeros((len(raw), 8), np.uint8)
    wide[:, 8 - width :] = data
    return pa.array(wide.view(">u8").reshape(-1).astype(np.uint64), mask=np.asarray(raw.is_null()))


def _durations(text: pa.Array) -> pa.Array:
    """``[-]HHH:MM:SS[.ffffff]``, up to 838 hours."""
    parts = pc.extract_regex(text, r"^(?P<sign>-?)(?P<h>\d+):(?P<m>\d\d):(?P<s>\d\d)\.?(?P<f>\d{0,6})$")
    if parts.null_count != text.null_count:
        raise pa.ArrowInvalid("not a time")
    hours, minutes, seconds = (pc.struct_field(parts, name).cast(pa.int64()) for name in ("h", "m", "s"))
    fraction = pc.utf8_rpad(pc.struct_field(parts, "f"), 6, "0").cast(pa.int64())
    whole = pc.add(pc.multiply(pc.add(pc.multiply(hours, 60), minutes), 60), seconds)
    micros = pc.add(pc.multiply(whole, 1_000_000), fraction)
    signed = pc.if_else(pc.equal(pc.struct_field(parts, "sign"), "-"), pc.negate(micros), micros)
    return signed.cast(pa.duration("us"))


def _unfitting(kind: Kind, raw: pa.Array, row: int) -> DataError:
    for at in range(len(raw)):
        try:
            _decoded(kind, raw[at : at + 1])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            value = raw[at].as_py()
            shown = value.decode("ascii") if value.isascii() else value
            return unfitting(kind.name, row + at, shown, kind.type_name, f"CAST(`{kind.name}` AS CHAR)")
    return DataError(f"Column {kind.name!r} cannot be read as {kind.type_name}.", column=kind.name)
