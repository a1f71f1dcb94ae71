"""Plans as text for a terminal, and how figures are written in every format of a plan."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dqp.explain.nodes import Figures, Node, wrong
from dqp.sql.dialects.sqlite import GUARD

LONGEST = 160
"""Characters that are shown of an expression or a list of them."""
MOST_PARTS = 4
"""Parts of a scan of which each statement is shown."""
LISTED = 8
"""Values of a list that people are shown."""
_VALUE = r"(?:(?<!')'(?:[^']|'')*+'|(?<![\w.+'-])-?\d[\w.+-]*+|NULL)"
"""It begins nowhere within a value: a long one would be looked through from each of its characters on."""
_QUOTED = r"""'(?:[^']|'')*'|"(?:[^"]|"")*\""""
_NESTING = re.compile(rf"{_QUOTED}|[()]")
_GUARDS = re.compile(rf"{_QUOTED}|\b{re.escape(GUARD)}")
_VALUES = re.compile(rf"{_VALUE}(?:\s*,\s*{_VALUE}){{{LISTED},}}")


def shortened(sql: str) -> str:
    """The statement as it is shown: of a long list of values the first few, and how many there are."""

    def short(listed: re.Match[str]) -> str:
        values = re.findall(_VALUE, listed[0])
        return f"{', '.join(values[:3])}, … {len(values):,} values"

    return _VALUES.sub(short, _without_guards(sql))


def _without_guards(sql: str) -> str:
    """The statement without the conditions that make a value of a wrong type an error (``GUARD``)."""
    count = 0
    while (start := next((each.start() for each in _GUARDS.finditer(sql) if each[0] == GUARD), -1)) >= 0:
        depth, end = 0, len(sql)
        for each in _NESTING.finditer(sql, start):
            depth += {"(": 1, ")": -1}.get(each[0], 0)
            if depth == 0 and each[0] == ")":
                end = each.end()
                break
        before, after = sql[:start], sql[end:]
        if after.startswith(" AND "):
            after = after.removeprefix(" AND ")
        else:
            before = before.removesuffix(" AND ").removesuffix(" WHERE ")
        sql, count = before + after, count + 1
    return f"{sql} -- and {count} guard{'s' if count > 1 else ''} against values of other types" if count else sql


def cut(text: str) -> str:
    """The text cut to a line."""
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def size(value: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} GB"


def duration(value: float) -> str:
    """Seconds for people, from whole microseconds, as they are in JSON."""
    value = round(value, 6)
    if value < 0.000_000_5:
        return "<1 µs"
    if value < 0.0001:
        return f"{value * 1e6:,.0f} µs"
    return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.2f} s"


def count(rows: float) -> str:
    """Rows for people."""
    return "1 row" if round(rows) == 1 else f"{rows:,.0f} rows"


def measured(figures: Figures, times: float | None = None) -> list[str]:
    """What is known, each figure with its unit. ``times`` the estimate: as ``wrong`` says."""
    parts = []
    if figures.rows is not None:
        how = "" if times is None else f"{times:,.0f} times" if times > 1 else f"1/{1 / times:,.0f} of"
        parts.append(count(figures.rows) + (f" ({how} the estimate)" if how else ""))
    if figures.bytes is not None:
        parts.append(size(figures.bytes))
    if figures.seconds is not None:
        parts.append(duration(figures.seconds))
    if figures.waiting is not None:
        parts.append(f"waited {duration(figures.waiting)}")
    if figures.held is not None:
        parts.append(f"held {duration(figures.held)}")
    if figures.spooled:
        parts.append(f"{size(figures.spooled)} to disk")
    return parts


def lines(node: Node, first: str = "", rest: str = "") -> Iterator[str]:
    """The lines of a node and of what is below it; ``first`` and ``rest`` stand before its first and its other ones."""
    where = f" ({node.where})" if node.where else ""
    figures = []
    if expected := measured(node.estimated):
        figures.append(f"estimated {', '.join(expected)}")
    if node.actual is not None and (actual := measured(node.actual, wrong(node))):
        figures.append(f"actual {', '.join(actual)}")
    yield f"{first}{node.title}{where}" + (f"  [{'; '.join(figures)}]" if figures else "")
    inner = rest + ("│  " if node.inputs else "   ")
    for each in node.details:
        yield f"{inner}{each}"
    count = len(node.statements)
    for number, each in enumerate(node.statements, 1):
        part = f"part {number} of {count}: " if count > 1 else ""
        if count <= MOST_PARTS or number in (1, count):
            for line in f"{part}{shortened(each)}".split("\n"):
                yield f"{inner}{line}"
        elif number == 2:
            yield f"{inner}parts 2 to {count - 1}: the same, each for a range of its own"
    for number, below in enumerate(node.inputs):
        last = number == len(node.inputs) - 1
        yield from lines(below, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))
