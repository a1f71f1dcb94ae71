"""DuckDB's types of expressions: what the SQL means, whichever database computes it.

The rules are those of DuckDB's binder, as far as the whitelists need them; tests compare each with ``DESCRIBE``.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import NamedTuple

from dai.errors import DaiError


class NotPushed(DaiError):
    """An operation that a source does not do exactly as DuckDB would; ``detail`` says for people which and why."""

    code, status, title = "not-pushed", 500, "Not pushed into the source"


class Type(NamedTuple):
    """``name`` as DuckDB writes it; ``width`` and ``scale`` of a DECIMAL."""

    name: str
    width: int = 0
    scale: int = 0

    def __str__(self) -> str:
        return f"DECIMAL({self.width},{self.scale})" if self.name == "DECIMAL" else self.name


BOOLEAN, VARCHAR, DATE, TIMESTAMP = Type("BOOLEAN"), Type("VARCHAR"), Type("DATE"), Type("TIMESTAMP")
TIMESTAMPTZ = Type("TIMESTAMP WITH TIME ZONE")
TINYINT, SMALLINT, INTEGER, BIGINT, HUGEINT = map(Type, ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"))
FLOAT, DOUBLE, NULL = Type("FLOAT"), Type("DOUBLE"), Type('"NULL"')
SIGNED = (TINYINT, SMALLINT, INTEGER, BIGINT, HUGEINT)
UNSIGNED = tuple(map(Type, ("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")))
WHOLE = frozenset((*SIGNED, *UNSIGNED))
_DIGITS = dict(zip((*SIGNED, *UNSIGNED), (3, 5, 10, 19, 38, 3, 5, 10, 20), strict=True))
_BITS = dict(zip(SIGNED, (8, 16, 32, 64, 128), strict=True)) | dict(zip(UNSIGNED, (8, 16, 32, 64), strict=True))
MOST_DIGITS = 38
_SHORT_DIGITS = 18
"""Decimals of up to 18 digits stay in 64 bits: a result that would need more is checked instead of widened."""
_SAME = {
    "INT": "INTEGER", "INT4": "INTEGER", "INT8": "BIGINT", "LONG": "BIGINT", "INT2": "SMALLINT", "INT1": "TINYINT",
    "TEXT": "VARCHAR", "STRING": "VARCHAR", "CHAR": "VARCHAR", "BPCHAR": "VARCHAR", "REAL": "FLOAT", "FLOAT4": "FLOAT",
    "FLOAT8": "DOUBLE", "BOOL": "BOOLEAN", "DATETIME": "TIMESTAMP", "NUMERIC": "DECIMAL", "INT128": "HUGEINT",
    "TIMESTAMPTZ": "TIMESTAMP WITH TIME ZONE", "TIMESTAMPNTZ": "TIMESTAMP", "NULL": '"NULL"',
}  # fmt: skip


@lru_cache(4096)
def parsed(text: str) -> Type:
    """The type that DuckDB writes so, or one of its other names."""
    match = re.fullmatch(r"(?:DECIMAL|NUMERIC)\((\d+)(?:, ?(\d+))?\)", text, re.IGNORECASE)
    if match:
        return Type("DECIMAL", int(match.group(1)), int(match.group(2) or 0))
    bare = text.upper() if not text.endswith("]") else text
    name = _SAME.get(bare, bare)
    return Type("DECIMAL", 18, 3) if name == "DECIMAL" else Type(_SAME.get(bare.partition("(")[0], name))


def is_decimal(type: Type) -> bool:
    """With any width and scale."""
    return type.name == "DECIMAL"


def is_exact(type: Type) -> bool:
    """A number without rounding."""
    return type in WHOLE or is_decimal(type)


def is_number(type: Type) -> bool:
    """Exact or floating."""
    return is_exact(type) or type in (FLOAT, DOUBLE)


def as_decimal(type: Type) -> Type:
    """The decimal that has room for every value of an exact type."""
    return type if is_decimal(type) else Type("DECIMAL", _DIGITS[type], 0)


def fits(value: int, type: Type) -> bool:
    """Whether an integer literal takes the type of what it stands beside."""
    bits = _BITS.get(type)
    if bits is None:
        return False
    low, high = (0, 2**bits - 1) if type in UNSIGNED else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return bool(low <= value <= high)


def of_integer(value: int) -> Type:
    """The type that DuckDB gives to an integer literal."""
    return next((each for each in (INTEGER, BIGINT, HUGEINT) if fits(value, each)), DOUBLE)


def is_within(type: Type, target: Type) -> bool:
    """Whether every value of an exact type has its digits in a decimal."""
    own = as_decimal(type)
    return own.scale <= target.scale and own.width - own.scale <= target.width - target.scale


def compared(one: Type, other: Type) -> Type:
    """The type in which two exact numbers are compared: where no decimal has room for both, digits before the point are
    left out, and DuckDB raises an error for values that have them."""
    if (one in WHOLE and other in WHOLE) or one == other:
        return common(one, other)
    a, b = as_decimal(one), as_decimal(other)
    scale = max(a.scale, b.scale)
    return Type("DECIMAL", min(max(a.width - a.scale, b.width - b.scale) + scale, MOST_DIGITS), scale)


def common(one: Type, other: Type) -> Type:
    """The type in which two values are compared, or stand as alternatives. NotPushed where it is not certain that both
    reach it without loss."""
    if one == other or other == NULL:
        return one
    if one == NULL:
        return other
    if one in SIGNED and other in SIGNED:
        return max(one, other, key=SIGNED.index)
    if one in UNSIGNED and other in UNSIGNED:
        return max(one, other, key=UNSIGNED.index)
    if one in WHOLE and other in WHOLE:
        signed, unsigned = (one, other) if one in SIGNED else (other, one)
        return next(each for each in SIGNED if _BITS[each] > _BITS[unsigned] and _BITS[each] >= _BITS[signed])
    if is_exact(one) and is_exact(other):
        type = compared(one, other)
        if not (is_within(one, type) and is_within(other, type)):
            raise NotPushed(f"{one} and {other} have no common type without overflow")
        return type
    if is_number(one) and is_number(other) and DOUBLE in (one, other) and FLOAT not in (one, other):
        return DOUBLE
    if {one, other} == {DATE, TIMESTAMP}:
        return TIMESTAMP
    raise NotPushed(f"{one} with {other} needs a conversion that is DuckDB's own")


class Magnitude(NamedTuple):
    """The size of a number: it is zero (or NULL), or ``10**low <= abs(number) <= 10**high``; what is exact is less."""

    low: int
    high: int

    @classmethod
    def of(cls, value: float) -> Magnitude:
        exponent = math.floor(math.log10(abs(value))) if value else 0
        return cls(exponent - 1, exponent + 2)  # whichever way the logarithm was rounded

    @classmethod
    def of_type(cls, type: Type) -> Magnitude | None:
        """Of every value of an exact type."""
        if not is_exact(type):
            return None
        own = as_decimal(type)
        return cls(-own.scale, own.width - own.scale)

    def united(self, other: Magnitude) -> Magnitude:
        """Of what is the one or the other."""
        return Magnitude(min(self.low, other.low), max(self.high, other.high))

    def combined(self, operator: str, other: Magnitude) -> Magnitude | None:
        """Of a result, rounded or not; None where it might not be a DOUBLE of full precision."""
        match operator:
            case "+" | "-":  # a difference is at least one bit of the smaller of both
                result = Magnitude(min(self.low, other.low) - 17, max(self.high, other.high) + 1)
            case "*":
                result = Magnitude(self.low + other.low, self.high + other.high)
            case "/":
                result = Magnitude(self.low - other.high, self.high - other.low)
            case _:
                return None
        return result if result.low > -300 and result.high < 300 else None


class Arithmetic(NamedTuple):
    """``operands``: the type both sides are cast to before (of decimals: not said). ``checked``: DuckDB raises an
    overflow error where the result has more digits than its type."""

    type: Type
    operands: Type
    checked: bool = False


@lru_cache(4096)
def arithmetic(operator: str, one: Type, other: Type) -> Arithmetic:
    """The type of ``+``, ``-``, ``*``, ``//`` and ``%`` of numbers."""
    if one in WHOLE and other in WHOLE:
        if one in UNSIGNED or other in UNSIGNED:
            raise NotPushed(f"arithmetic with {one} and {other}")
        type = common(one, other)
        return Arithmetic(type, type, True)
    if is_exact(one) and is_exact(other) and operator in "+-*":
        return _decimal(operator, as_decimal(one), as_decimal(other))
    if DOUBLE in (one, other) and is_number(one) and is_number(other) and FLOAT not in (one, other):
        return Arithmetic(DOUBLE, DOUBLE)
    raise NotPushed(f"{one} {operator} {other}")


def _decimal(operator: str, one: Type, other: Type) -> Arithmetic:
    if operator == "*":
        width, scale = one.width + other.width, one.scale + other.scale
        if scale > MOST_DIGITS:
            raise NotPushed(f"{one} * {other} needs {scale} digits after the point")
    else:
        scale = max(one.scale, other.scale)
        width = max(one.width - one.scale, other.width - other.scale) + scale + 1
    is_short = max(one.width, other.width) <= _SHORT_DIGITS and scale < _SHORT_DIGITS
    most = _SHORT_DIGITS if is_short else MOST_DIGITS
    checked = width > most
    if checked and scale > most:
        raise NotPushed(f"{one} {operator} {other} is more than {MOST_DIGITS} digits")
    type = Type("DECIMAL", min(width, most), scale)
    return Arithmetic(type, type, checked)
