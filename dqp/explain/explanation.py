"""Plans for people: what is shown of a query, as text and as JSON.

``Node`` is one operator as it is shown. What was estimated comes from the planner, what happened from the measurements
of an execution (``dqp.explain.plan`` makes nodes of them); the rest is layout. ``dqp.explain.svg`` draws the same nodes.
"""

from __future__ import annotations

import dataclasses
import html
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

LISTED = 8
"""Values of a list that people are shown."""
WRONG = 10.0
"""Times more or fewer rows than were estimated, from which on people are told."""
_VALUE = r"(?:'(?:[^']|'')*'|-?\d[\w.+-]*|NULL)"
_VALUES = re.compile(rf"{_VALUE}(?:\s*,\s*{_VALUE}){{{LISTED},}}")


@dataclass(frozen=True)
class Figures:
    """Rows, bytes and seconds; None where nobody knows. ``seconds`` from the first request to the last row, for an
    operator of the engine its own work, where they are estimated those of the cost model; ``waiting``: of these, spent
    waiting for the source or the producer below; ``held``: spent waiting for whoever reads it; ``spooled``: bytes that
    had to be written to disk."""

    rows: float | None = None
    bytes: float | None = None
    seconds: float | None = None
    waiting: float | None = None
    spooled: float | None = None
    held: float | None = None


@dataclass(frozen=True)
class Node:
    """``where`` it runs; ``statements``: the SQL sent, one for each part of a scan that was read in parts."""

    title: str
    details: tuple[str, ...] = ()
    where: str | None = None
    estimated: Figures = Figures()
    actual: Figures | None = None
    statements: tuple[str, ...] = ()
    inputs: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """``root``: the plan. ``fragments``: what each evaluator did, with the operators of its engine below it;
    ``remarks``: why something was not left to a source, what was adapted; ``seconds``: of planning and running."""

    root: Node
    sql: str
    remarks: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)
    fragments: tuple[Node, ...] = ()

    @classmethod
    def of(cls, text: str) -> Explanation:
        """What ``json`` says."""
        found = json.loads(text)
        fragments = tuple(map(_read, found.get("fragments", ())))
        return cls(_read(found["plan"]), found["sql"], tuple(found["remarks"]), found["seconds"], fragments)

    @property
    def text(self) -> str:
        """For a terminal. Long lists of values are shortened."""
        lines = list(_lines(self.root))
        for each in self.fragments:
            lines += ["", *_lines(each)]
        if self.remarks:
            lines += ["", *(f"Remark: {each}" for each in self.remarks)]
        if self.seconds:
            lines += ["", ", ".join(f"{name} {duration(each)}" for name, each in self.seconds.items())]
        return "\n".join(lines)

    @property
    def json(self) -> str:
        """All there is to know, every statement in full."""
        plan: dict[str, Any] = {
            "sql": self.sql,
            "plan": _values(self.root),
            "remarks": list(self.remarks),
            "seconds": self.seconds,
        }
        if self.fragments:
            plan["fragments"] = list(map(_values, self.fragments))
        return json.dumps(plan, ensure_ascii=False, indent=2)

    @property
    def svg(self) -> str:
        """The drawing: the plan, and below it the fragments with what their operators did."""
        from dqp.explain.svg import drawn

        return drawn(self.root, *self.fragments)

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        """What a notebook shows: the plan drawn, the fragments and the text below it to unfold."""
        from dqp.explain.svg import drawn

        parts = [f'<div style="overflow-x:auto">{drawn(self.root)}</div>']
        if self.fragments:
            below = drawn(*self.fragments)
            parts.append(
                f'<details><summary>in the engines</summary><div style="overflow-x:auto">{below}</div></details>'
            )
        parts.append(f"<details><summary>as text</summary><pre>{html.escape(self.text)}</pre></details>")
        return "".join(parts)


def shortened(sql: str) -> str:
    """The statement for people: of a long list of values the first few, and how many there are."""

    def short(found: re.Match[str]) -> str:
        values = re.findall(_VALUE, found[0])
        return f"{', '.join(values[:3])}, … {len(values):,} values"

    return _VALUES.sub(short, sql)


def size(value: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if value < 1000:
            return f"{value:,.0f} {unit}" if unit == "B" else f"{value:,.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} GB"


def duration(value: float) -> str:
    """Seconds for people."""
    if value < 0.000_000_5:
        return "<1 µs"
    if value < 0.0001:
        return f"{value * 1e6:,.0f} µs"
    return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.2f} s"


def count(rows: float) -> str:
    """Rows for people."""
    return "1 row" if round(rows) == 1 else f"{rows:,.0f} rows"


def wrong(node: Node) -> float | None:
    """How many times the estimated rows came, where that is ``WRONG`` times more or fewer; else None."""
    expected, actual = node.estimated.rows, None if node.actual is None else node.actual.rows
    if expected is None or actual is None:
        return None
    off = (actual + 1) / (expected + 1)
    return max(actual, 1.0) / max(expected, 1.0) if off >= WRONG or off <= 1 / WRONG else None


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


def _lines(node: Node, first: str = "", rest: str = "") -> Iterator[str]:
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
    for number, each in enumerate(node.statements, 1):
        part = f"part {number} of {len(node.statements)}: " if len(node.statements) > 1 else ""
        for line in f"{part}{shortened(each)}".split("\n"):
            yield f"{inner}{line}"
    for number, below in enumerate(node.inputs):
        last = number == len(node.inputs) - 1
        yield from _lines(below, rest + ("└─ " if last else "├─ "), rest + ("   " if last else "│  "))


def _values(node: Node) -> dict[str, Any]:
    values: dict[str, Any] = {"operator": node.title}
    if node.details:
        values["details"] = list(node.details)
    if node.where:
        values["where"] = node.where
    values["estimated"] = _known(node.estimated)
    if node.actual is not None:
        values["actual"] = _known(node.actual)
    if node.statements:
        values["statements"] = list(node.statements)
    if node.inputs:
        values["inputs"] = [_values(each) for each in node.inputs]
    return values


def _read(values: Mapping[str, Any]) -> Node:
    """The node that ``_values`` has written."""
    return Node(
        values["operator"],
        tuple(values.get("details", ())),
        values.get("where"),
        Figures(**values["estimated"]),
        Figures(**values["actual"]) if "actual" in values else None,
        tuple(values.get("statements", ())),
        tuple(map(_read, values.get("inputs", ()))),
    )


def _known(figures: Figures) -> dict[str, float]:
    return {name: round(value, 6) for name, value in dataclasses.asdict(figures).items() if value is not None}
