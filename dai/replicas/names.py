"""Names, patterns over names, and values of attributes."""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dai.replicas.codes import Code, Refused

MOST_BYTES = 1000
"""Of a name in UTF-8."""
ESCAPE = "\\"


def check_name(name: str) -> str:
    """The name; Refused for one that is empty, too long, or that has a NUL character, which ends texts on the wire."""
    if not name or "\0" in name or len(name.encode()) > MOST_BYTES:
        shown = name[:40].replace("\0", "?")
        raise Refused(Code.BADARG, f"a name has 1 to {MOST_BYTES:,} bytes without NUL, not {shown!r}")
    return name


def all_names(texts: Sequence[str]) -> bool:
    """Whether ``check_name`` refuses none of the texts, of which none has a NUL."""
    lengths = [*map(len, texts)]
    # a character has four bytes at most
    return all(lengths) and (not lengths or 4 * max(lengths) <= MOST_BYTES)


def like(pattern: str) -> str:
    """The SQL pattern of a Unix pattern: ``*`` is any text, ``?`` one character, a backslash before either itself."""
    written, escaped = [], False
    for each in pattern:
        if escaped:
            written.append(ESCAPE + each if each in "%_\\" else each)
            escaped = False
        elif each == ESCAPE:
            escaped = True
        elif each == "*":
            written.append("%")
        elif each == "?":
            written.append("_")
        else:
            written.append(ESCAPE + each if each in "%_" else each)
    if escaped:
        written.append(ESCAPE * 2)
    return "".join(written)


def complete(pattern: str) -> str:
    """The SQL pattern with a backslash at its end as itself, which is an error to PostgreSQL and fits nothing in
    SQLite."""
    return pattern + ESCAPE * ((len(pattern) - len(pattern.rstrip(ESCAPE))) % 2)


def beginning(pattern: str) -> str:
    """What every text that an SQL pattern matches begins with."""
    begun: list[str] = []
    characters = iter(pattern)
    for each in characters:
        if each in "%_":
            break
        begun.append(next(characters, ESCAPE) if each == ESCAPE else each)
    return "".join(begun)


class Type(NamedTuple):
    """A type of attributes: its number on the wire, the column of its values, and how a value is read and written."""

    number: int
    column: str
    read: Callable[[str], str | int | float]
    write: Callable[[str | int | float], str]


def _whole(text: str) -> int:
    value = int(text)
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError
    return value


def _real(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError
    return value


def _moment(text: str) -> int:
    """Seconds since 1970; a moment without a zone is in UTC."""
    moment = datetime.datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp())


def _date_text(moment: str | int | float) -> str:
    return datetime.datetime.fromtimestamp(float(moment), datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")


TYPES = {
    "date": Type(0, "whole", _moment, _date_text),
    "float": Type(1, "real", _real, repr),
    "int": Type(2, "whole", _whole, str),
    "string": Type(3, "text", str, str),
}
BY_NUMBER = {each.number: name for name, each in TYPES.items()}
OPERATORS = ("all", "eq", "ne", "gt", "ge", "lt", "le", "between", "like")
"""Of searches by attribute, by their numbers."""
COMPARISONS = {"eq": "=", "ne": "<>", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def value_of(type: str, text: str) -> str | int | float:
    """The value that a text says. Refused where it says none of the type."""
    try:
        value = TYPES[type].read(text)
    except (ValueError, OverflowError):
        raise Refused(Code.BADARG, f"{text[:60]!r} is no {type}") from None
    if isinstance(value, str) and "\0" in value:
        raise Refused(Code.BADARG, "a text with a NUL character")
    return value
