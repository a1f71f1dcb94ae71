"""Plans as drawings: boxes from the root at the top down, as wide as their text, children side by side."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass

from dqp.explain import Node, figures_of

_CHARACTER, _LINE, _PAD, _GAP, _DROP, _WIDEST = 6.6, 16, 8, 24, 34, 52
_COLOURS = {"Remote": "#dcecf9", "Exchange": "#fdebd3", "Receive": "#fdebd3", "Fragment": "#e8e8e8", "Call": "#f6dff0"}


@dataclass
class _Box:
    node: Node
    lines: list[str]
    inputs: list[_Box]
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(map(len, self.lines)) * _CHARACTER + 2 * _PAD

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _PAD - 4

    @property
    def span(self) -> float:
        below = sum(each.span for each in self.inputs) + _GAP * max(0, len(self.inputs) - 1)
        return max(self.width, below)


def drawn(root: Node) -> str:
    """An SVG of the plan. Statements stand in the boxes' tooltips."""
    box = _boxed(root)
    height = _place(box, 0.0, 0.0)
    size = f'width="{box.span + 2:.0f}" height="{height + 2:.0f}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="-1 -1 {box.span + 2:.0f} {height + 2:.0f}">']
    parts.append('<g font-family="ui-monospace, Menlo, Consolas, monospace" font-size="11">')
    parts += _edges(box)
    parts += _shapes(box)
    return "".join([*parts, "</g></svg>"])


def _boxed(node: Node) -> _Box:
    where = f" on {node.where}" if node.where else ""
    lines = [_short(each) for each in (node.title + where, *node.details, *figures_of(node))]
    return _Box(node, lines, [_boxed(each) for each in node.inputs])


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST else text[: _WIDEST - 1] + "…"


def _place(box: _Box, left: float, top: float) -> float:
    """Sets the places of a box and those below it; the lowest edge."""
    span = box.span
    box.x, box.y = left + (span - box.width) / 2, top
    bottom = top + box.height
    below = sum(each.span for each in box.inputs) + _GAP * max(0, len(box.inputs) - 1)
    x = left + (span - below) / 2
    for each in box.inputs:
        bottom = max(bottom, _place(each, x, top + box.height + _DROP))
        x += each.span + _GAP
    return bottom


def _edges(box: _Box) -> Iterator[str]:
    for each in box.inputs:
        x1, y1 = box.x + box.width / 2, box.y + box.height
        x2, y2 = each.x + each.width / 2, each.y
        middle = (y1 + y2) / 2
        rows = (each.node.actual or each.node.estimated).rows
        thick = 1.0 if not rows else min(7.0, 1.0 + len(f"{rows:.0f}") * 0.7)
        yield (
            f'<path d="M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}" '
            f'fill="none" stroke="#8aa0b4" stroke-width="{thick:.1f}"/>'
        )
        yield from _edges(each)


def _shapes(box: _Box) -> Iterator[str]:
    colour = next((each for name, each in _COLOURS.items() if box.node.title.startswith(name)), "#ffffff")
    tip = html.escape("\n".join((*box.node.details, *box.node.statements)))
    yield (
        f"<g><title>{tip}</title>"
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="5" '
        f'fill="{colour}" stroke="#5b7086"/>'
    )
    for number, line in enumerate(box.lines):
        weight = ' font-weight="bold"' if number == 0 else ' fill="#33414f"'
        y = box.y + _PAD + 9 + number * _LINE
        yield f'<text x="{box.x + _PAD:.1f}" y="{y:.1f}"{weight}>{html.escape(line)}</text>'
    yield "</g>"
    for each in box.inputs:
        yield from _shapes(each)
