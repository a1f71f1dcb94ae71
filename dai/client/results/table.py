"""Tables for a terminal."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Sequence

NARROWEST = 6


def width(text: str) -> int:
    """Columns of a terminal that ``text`` takes: East Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def cut(text: str, columns: int) -> str:
    """At most ``columns`` wide, an ellipsis where something was left out."""
    if width(text) <= columns:
        return text
    beginning = ""
    used = 0
    for character in text:
        used += width(character)
        if used > columns - 1:
            break
        beginning += character
    return beginning + "…"


def lines(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = (), columns: int | None = None
) -> Iterator[str]:
    """An aligned table, its widest columns cut until it fits ``columns``: of the terminal, unless given; 0: never, as
    in a pipe."""
    if columns is None:
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    body = [list(row) for row in rows]
    widths = [max(map(width, each)) for each in zip(headings, *body, strict=True)]
    if columns:
        widths = _fitted(widths, columns)
    to_the_right = frozenset(right)
    yield _line(headings, widths, frozenset())
    yield "  ".join("─" * each for each in widths)
    for row in body:
        yield _line(row, widths, to_the_right)


def _line(cells: Sequence[str], widths: Sequence[int], right: frozenset[int]) -> str:
    padded = []
    for index, (cell, wide) in enumerate(zip(cells, widths, strict=True)):
        text = cut(cell, wide)
        space = " " * (wide - width(text))
        padded.append(space + text if index in right else text + space)
    return "  ".join(padded).rstrip()


def _fitted(widths: list[int], columns: int) -> list[int]:
    widths = list(widths)
    while sum(widths) + 2 * (len(widths) - 1) > columns:
        widest = max(range(len(widths)), key=widths.__getitem__)
        if widths[widest] <= NARROWEST:
            break
        widths[widest] -= 1
    return widths
