"""Plans as drawings: boxes from the root at the top down, as wide as their text, children side by side.

Edges are the thicker the more rows went (or are estimated to go) along them, and say how many. Where ten times more or
fewer rows came than were estimated, that is in red. A bar at the foot of a box is the operator's share of the seconds.
In a plan of more than ``FEW`` operators those that stand in a line, with nothing to say but what they compute, share a
box. What several evaluators did of one fragment is drawn in a row. A drawing is as wide as its page at most, and dark
where the page is.
"""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from dqp.explain.nodes import Figures, Node, wrong
from dqp.explain.text import count, duration, measured, shortened

_CHARACTER, _SMALL, _LINE, _PAD, _GAP, _DROP, _STEP, _BETWEEN = 6.65, 5.75, 15, 9, 26, 42, 30, 40
_WIDEST, _WIDEST_SMALL = 46, 54
_SLIM, _SLIM_SMALL = 30, 36
"""Characters of a line; slim where many boxes stand side by side."""
_LEAST = 0.6
"""Least width of a drawing; a narrower page scrolls."""
_TITLE, _DETAILS, _STATEMENTS = 4, 5, 6
"""Lines of an operator's title, of its details and of its statements."""
_ROW = 1_600
"""Width that a row of several plans may have, where the widest of them is not wider."""
FEW = 12
"""Operators of a plan of which each has a box of its own."""
SIDE_BY_SIDE = 4
"""Leaves of a plan whose boxes are as wide as others."""
_KINDS = {
    "Remote": "source", "Asked first": "source", "Exchange": "moved", "Received": "moved",
    "Fragment": "fragment", "Call": "call", "Tuples": "tuples",
}  # fmt: skip
_OTHER = "operator"
_INK, _MUTED, _WRONG = "ink", "muted", "wrong"
_Colours = Mapping[str, str | tuple[str, str]]
"""Of a page: by class, of a shape that of its inside and of its edge."""
_LIGHT: _Colours = {
    "page": "#ffffff", "ink": "#1e2a35", "muted": "#5a6875", "wrong": "#c0392b", "edge": "#b4c1cd", "share": "#d9730d",
    "source": ("#e3effa", "#4a7fb0"), "moved": ("#fdeed8", "#c98a2b"), "fragment": ("#ececf4", "#6c6c94"),
    "call": ("#f7e3f2", "#ad5a97"), "tuples": ("#e6f4e6", "#5c9a5c"), "operator": ("#ffffff", "#8797a6"),
}  # fmt: skip
_DARK: _Colours = {
    "page": "#14181d", "ink": "#e8edf2", "muted": "#a3afba", "wrong": "#ff7b6b", "edge": "#4c5966", "share": "#e8893a",
    "source": ("#1b3147", "#5d97cc"), "moved": ("#44331a", "#d29a41"), "fragment": ("#2b2b3d", "#8c8cba"),
    "call": ("#432539", "#c873b0"), "tuples": ("#213a22", "#74b774"), "operator": ("#1e242b", "#8797a6"),
}  # fmt: skip
_TIED = "\0"
"""A space at which no line is broken."""
_UNKNOWN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"


@dataclass(frozen=True)
class _Text:
    text: str
    colour: str = _MUTED
    bold: bool = False
    small: bool = False

    @property
    def width(self) -> float:
        return len(self.text) * (_SMALL if self.small else _CHARACTER)


@dataclass
class _Box:
    node: Node
    lines: list[_Text]
    inputs: list[_Box]
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        return max(each.width for each in self.lines) + 2 * _PAD

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE + 2 * _PAD - 3

    @property
    def below(self) -> float:
        return sum(each.span for each in self.inputs) + _GAP * max(0, len(self.inputs) - 1)

    @property
    def drop(self) -> float:
        """From its lower edge to the boxes below it."""
        return _DROP if len(self.inputs) > 1 else _STEP

    @property
    def span(self) -> float:
        return max(self.width, self.below)


def drawn(*roots: Node) -> str:
    """An SVG of the plans, one below the other, those of one title in a row. What is cut in the boxes stands in their
    tooltips."""
    plans = [collapsed(each) for each in roots]
    boxes = [_boxed(each, slim=_leaves(each) > SIDE_BY_SIDE) for each in plans]
    most = max(_ROW, *(each.span for each in boxes))
    wide, bottom, x, y = 0.0, 0.0, 0.0, 0.0
    for number, box in enumerate(boxes):
        if number > 1 and roots[number].title == roots[number - 1].title and x + box.span <= most:
            bottom = max(bottom, _place(box, x, y))
        else:
            x, y = 0.0, bottom + (_BETWEEN if number else 0.0)
            bottom = _place(box, x, y)
        x += box.span + _GAP
        wide = max(wide, x - _GAP)
    wide, high = wide + 2, bottom + 2
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide:.0f}" height="{high:.0f}"'
    fitting = f'class="plan" style="max-width:100%;min-width:{_LEAST * wide:.0f}px;height:auto"'
    parts = [f'{head} {fitting} viewBox="-1 -1 {wide:.0f} {high:.0f}" font-family="{_FONT}" font-size="11">']
    parts.append(f"<style>{_style(_LIGHT)}@media(prefers-color-scheme:dark){{{_style(_DARK)}}}</style>")
    parts.append(f'<rect x="-1" y="-1" width="{wide:.0f}" height="{high:.0f}" class="page"/>')
    for box in boxes:
        parts += [*_edges(box), *_shapes(box, sum(_seconds(each.node) for each in _all(box)))]
    return "".join([*parts, "</svg>"])


def collapsed(root: Node) -> Node:
    """The plan with fewer nodes, where there are many."""
    return _joined(root) if _size(root) > FEW else root


def _size(node: Node) -> int:
    return 1 + sum(map(_size, node.inputs))


def _leaves(node: Node) -> int:
    return sum(map(_leaves, node.inputs)) or 1


def _joined(node: Node) -> Node:
    inputs = tuple(below for each in node.inputs for below in _members(node, _joined(each)))
    node = replace(node, inputs=inputs)
    if len(inputs) != 1 or not _is_plain(node) or not _is_plain(inputs[0]):
        return node
    (below,) = inputs
    return replace(
        node,
        title=f"{node.title}, {below.title}",
        details=(*node.details, *below.details),
        estimated=replace(node.estimated, seconds=_sum(node.estimated, below.estimated)),
        actual=None if node.actual is None else replace(node.actual, seconds=_sum(node.actual, below.actual)),
        inputs=below.inputs,
    )


def _members(node: Node, below: Node) -> tuple[Node, ...]:
    """What a union is made of, where it is a member of another."""
    same = node.title == below.title == "Union all" and node.details == below.details
    return below.inputs if same and _is_plain(below) else (below,)


def _is_plain(node: Node) -> bool:
    """Nothing is sent or moved there, and its rows are as many as were expected."""
    return _kind(node) == _OTHER and not node.where and not node.statements and wrong(node) is None


def _sum(one: Figures, other: Figures | None) -> float | None:
    known = [each.seconds for each in (one, other) if each is not None and each.seconds is not None]
    return sum(known) if known else None


def _kind(node: Node) -> str:
    return next((kind for name, kind in _KINDS.items() if node.title.startswith(name)), _OTHER)


def _seconds(node: Node) -> float:
    """Its own: those of a fragment are those of what is below it."""
    figures = node.actual or node.estimated
    return 0.0 if _kind(node) == "fragment" else max(0.0, (figures.seconds or 0.0) - (figures.waiting or 0.0))


def _all(box: _Box) -> Iterator[_Box]:
    yield box
    for each in box.inputs:
        yield from _all(each)


def _style(colours: _Colours) -> str:
    """Classes of shapes (``.plan rect.source``) and of what is written (``.plan text.ink``)."""
    rules = []
    for name, colour in colours.items():
        if isinstance(colour, tuple):
            rules.append(f".plan rect.{name}{{fill:{colour[0]};stroke:{colour[1]}}}")
        elif name == "edge":
            rules.append(f".plan path{{fill:none;stroke:{colour}}}")
        elif name == "share":
            rules.append(f".plan path.share{{stroke:{colour};stroke-width:3}}")
        else:
            rules.append(f".plan .{name}{{fill:{colour}}}")
    return "".join(rules)


def _boxed(node: Node, *, slim: bool = False) -> _Box:
    wide, small = (_SLIM, _SLIM_SMALL) if slim else (_WIDEST, _WIDEST_SMALL)
    where = f" · {_plain(node.where)}" if node.where else ""
    lines = [_Text(each, _INK, bold=True) for each in _wrapped((node.title + where,), wide, _TITLE)]
    lines += [_Text(each, _INK) for each in _wrapped(tuple(map(_plain, node.details)), wide, _DETAILS)]
    lines += _figures(node, wide)
    statements = [shortened(each) for each in node.statements]
    if len(statements) > 1:
        statements = [f"{len(statements)} parts: {statements[0]}"]
    lines += [_Text(each, _MUTED, small=True) for each in _wrapped(tuple(statements), small, _STATEMENTS)]
    return _Box(node, lines, [_boxed(each, slim=slim) for each in node.inputs])


def _figures(node: Node, wide: int) -> Iterator[_Text]:
    expected, actual = node.estimated, node.actual
    if actual is None:
        if known := measured(expected):
            yield from map(_Text, _wrapped((f"estimated {_items(known)}",), wide, 2 + (wide < _WIDEST)))
        return
    if actual.rows is not None:
        guess = f", estimated {expected.rows:,.0f}" if expected.rows is not None else ""
        yield _Text(f"{count(actual.rows)}{guess}", _INK if wrong(node) is None else _WRONG)
    more = measured(replace(actual, rows=None))
    if actual.seconds is not None and expected.seconds is not None:
        at = more.index(duration(actual.seconds))
        more[at] += f" (estimated {duration(expected.seconds)})"
    yield from map(_Text, _wrapped((_items(more),), wide, 2 + (wide < _WIDEST)) if more else ())


def _items(parts: list[str]) -> str:
    """Parts that are not to be broken in a line."""
    return ", ".join(each.replace(" ", _TIED) for each in parts)


def _plain(text: str) -> str:
    """Addresses as people say them."""
    return text.replace("http://", "")


def _wrapped(texts: tuple[str, ...], width: int, most: int) -> list[str]:
    tied = [each.replace(" = ", f"{_TIED}={_TIED}") for each in texts]
    lines = [line.replace(_TIED, " ") for each in tied for line in textwrap.wrap(each, width) or [""]]
    if len(lines) > most:
        lines = [*lines[: most - 1], _cut(lines[most - 1] + " …", width)]
    return lines


def _cut(text: str, width: int = _WIDEST) -> str:
    return text if len(text) <= width else text[: width - 1].rstrip(" …") + "…"


def _escaped(text: str) -> str:
    """As XML has it, which knows no control characters."""
    return html.escape(_UNKNOWN.sub("\N{REPLACEMENT CHARACTER}", text))


def _place(box: _Box, left: float, top: float) -> float:
    """Sets the places of a box and those below it; the lowest edge."""
    span = box.span
    box.x, box.y = left + (span - box.width) / 2, top
    bottom = top + box.height
    x = left + (span - box.below) / 2
    for each in box.inputs:
        bottom = max(bottom, _place(each, x, top + box.height + box.drop))
        x += each.span + _GAP
    return bottom


def _edges(box: _Box) -> Iterator[str]:
    for number, each in enumerate(box.inputs, 1):
        # Children meet their parent side by side, not in one point.
        x1 = box.x + box.width * number / (len(box.inputs) + 1)
        y1, x2, y2 = box.y + box.height, each.x + each.width / 2, each.y
        middle = (y1 + y2) / 2
        known = each.node.actual if each.node.actual is not None and each.node.actual.rows is not None else None
        rows = known.rows if known is not None else each.node.estimated.rows
        thick = 1.2 + 1.15 * math.log10(1 + rows) if rows else 1.2
        yield (
            f'<path d="M{x1:.1f} {y1:.1f}C{x1:.1f} {middle:.1f} {x2:.1f} {middle:.1f} {x2:.1f} {y2:.1f}" '
            f'stroke-width="{thick:.1f}"/>'
        )
        if rows is not None:
            label = f"{'' if known is not None else '≈ '}{rows:,.0f}"
            # On the side that the edge does not come from.
            side, anchor = (-1, "end") if x2 < x1 - 1 else (1, "start")
            yield (
                f'<text x="{x2 + side * (thick / 2 + 4):.1f}" y="{y2 - 6:.1f}" font-size="10" '
                f'text-anchor="{anchor}" class="{_MUTED}">{label}</text>'
            )
        yield from _edges(each)


def _shapes(box: _Box, seconds: float) -> Iterator[str]:
    """``seconds``: of all operators of the drawing."""
    node = box.node
    tip = _escaped("\n".join((*node.details, *map(shortened, node.statements))))
    yield (
        f"<g>{f'<title>{tip}</title>' if tip else ''}"
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{box.height:.1f}" rx="6" '
        f'class="{_kind(node)}"/>'
    )
    if seconds > 0 and (share := _seconds(node) / seconds) >= 0.01:
        x, y = box.x + 3, box.y + box.height - 3
        yield f'<path class="share" d="M{x:.1f} {y:.1f}h{share * (box.width - 6):.1f}"/>'
    for number, line in enumerate(box.lines):
        look = ' font-weight="bold"' if line.bold else ' font-size="9.5"' if line.small else ""
        y = box.y + _PAD + 9 + number * _LINE
        yield f'<text x="{box.x + _PAD:.1f}" y="{y:.1f}" class="{line.colour}"{look}>{_escaped(line.text)}</text>'
    yield "</g>"
    for each in box.inputs:
        yield from _shapes(each, seconds)
