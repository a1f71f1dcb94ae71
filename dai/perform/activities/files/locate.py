"""Finds the places at which a file is changed: the spans that ``locate`` of fileWritingActivity names.

A span is a pair of offsets in bytes, from 0. Regular expressions are those of RE2, whose time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dai.errors import MissingDependencyError, ParameterError
from dai.perform.activity import Element, child

Span = tuple[int, int]
_MATCH = re.compile(r"\d{1,9}(-\d{1,9})?", re.ASCII)
MOST_BEFORE_DOTS = 32
"""Numbers before ``...``, whose differences are computed."""


@dataclass(frozen=True, kw_only=True)
class Locate(Element):
    """A part of the file, by its position or by a regular expression.

    ``offset`` is a number of bytes from the beginning, ``start`` or ``end``; ``length`` a number of bytes, or ``end``.
    ``regexp`` is a regular expression (RE2), ``match`` the numbers of its matches, from 1: ``2``, ``1-3``, ``1:3``, or
    ``1:4:9:...``, which continues the sequence. With ``perLine`` all this is relative to each line.
    """

    offset: str | None = child(default=None)
    length: str | None = child(default=None)
    regexp: str | None = child(default=None)
    match: str | None = child(default=None)
    per_line: bool = child("perLine", default=False)

    def finder(self, whole: bool) -> Finder:
        """Checks what the document says. ``whole``: without a length the span goes to the end."""
        if self.regexp is not None:
            if self.offset is not None or self.length is not None:
                raise ParameterError("locate can have a regexp, or an offset and a length, not both.")
            return Finder(expression=_compiled(self.regexp), matches=_matches(self.match))
        if self.match is not None:
            raise ParameterError("locate has a match, but no regexp.")
        offset = 0 if self.offset in (None, "start") else -1 if self.offset == "end" else _number(self.offset, "offset")
        if self.length is None:
            length = -1 if whole or self.offset is None else 0
        else:
            length = -1 if self.length == "end" else _number(self.length, "length")
        return Finder(offset=offset, length=length)


@dataclass(frozen=True, slots=True)
class Finder:
    """``offset`` and ``length`` in bytes, -1: the end; or an ``expression`` and which of its matches (None: all)."""

    offset: int = 0
    length: int = -1
    expression: Any = None
    matches: Matches | None = None

    def place(self, size: int) -> Span | None:
        """The span in a text of that size; None where the offset lies behind its end."""
        start = size if self.offset < 0 else self.offset
        if start > size:
            return None
        return start, size if self.length < 0 else min(size, start + self.length)

    def spans(self, text: bytes, check: Callable[[], None]) -> Iterator[Span]:
        """``check`` is called at each match, also at those that are not wanted; it may raise."""
        if self.expression is None:
            if (place := self.place(len(text))) is not None:
                yield place
            return
        wanted = iter(self.matches or ((1, len(text) + 1),))
        first, last = next(wanted)
        for number, match in enumerate(self.expression.finditer(text), 1):
            check()
            while number > last:
                if (following := next(wanted, None)) is None:
                    return
                first, last = following
            if number >= first:
                yield match.span()


@dataclass(frozen=True, slots=True)
class Matches:
    """Numbers of matches, rising: ``ranges``, and where ``endless`` the numbers that go on like them."""

    ranges: tuple[Span, ...]
    endless: bool = False

    def __iter__(self) -> Iterator[Span]:
        yield from self.ranges
        if self.endless:
            for each in self._further():
                yield each, each

    def _further(self) -> Iterator[int]:
        """The sequence with constant differences of the highest order that these numbers have."""
        row = [first for first, _ in self.ranges]
        lasts = []
        while row:
            lasts.append(row[-1])
            row = [after - before for before, after in pairwise(row)]
        highest = lasts[0]
        while True:
            for order in range(len(lasts) - 2, -1, -1):
                lasts[order] += lasts[order + 1]
            if not highest < lasts[0]:
                return
            highest = lasts[0]
            yield highest


def _compiled(expression: str) -> Any:
    try:
        import re2
    except ImportError as error:
        raise MissingDependencyError(
            "A regexp in locate needs the Python package 're2'.", hint="pip install google-re2"
        ) from error
    options = re2.Options()
    options.log_errors = False
    options.max_mem = 8 << 20
    try:
        return re2.compile(expression.encode(), options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise ParameterError(
            f"The regular expression cannot be used: {reason}.",
            hint="Use the syntax of RE2, which has no backreferences and no look-around.",
        ) from error


def _matches(match: str | None) -> Matches | None:
    if match is None:
        return None
    parts = [part.strip() for part in match.split(":")]
    endless = parts[-1] == "..."
    ranges = []
    for part in parts[:-1] if endless else parts:
        first, _, last = part.partition("-")
        if not _MATCH.fullmatch(part) or not 1 <= int(first) <= int(last or first):
            raise ParameterError(
                f"match cannot be {_cut(match)}.", hint="It looks like 2, 1-3, 1:3 or 1:4:9:..., counted from 1."
            )
        ranges.append((int(first), int(last or first)))
    if not ranges or ranges != sorted(ranges) or (endless and any(first != last for first, last in ranges)):
        raise ParameterError(f"The numbers of match must rise, not {_cut(match)}.", hint="It looks like 1:4:9:...")
    if endless and len(ranges) > MOST_BEFORE_DOTS:
        raise ParameterError(f"match has {len(ranges):,} numbers before '...'; at most {MOST_BEFORE_DOTS} are allowed.")
    return Matches(tuple(ranges), endless)


def _cut(match: str) -> str:
    return repr(match if len(match) <= 100 else f"{match[:100]}…")


def _number(value: str | None, what: str) -> int:
    if value is None or not re.fullmatch(r"\d{1,18}", value, re.ASCII):
        raise ParameterError(
            f"locate: the {what} cannot be {value!r}.",
            hint="Give a number of bytes, or one of the words start and end.",
        )
    return int(value)
