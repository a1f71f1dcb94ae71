"""Drawings of plans: well-formed, nothing lies over anything else, the text fits."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from dqp.explain.nodes import Figures, Node
from dqp.explain.svg import drawn

SVG = "{http://www.w3.org/2000/svg}"
TEXT = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Zs", "Cc")), max_size=200)
ROWS = st.none() | st.floats(0, 1e12)
FIGURES = st.builds(Figures, rows=ROWS, bytes=ROWS, seconds=ROWS, waiting=ROWS)
TITLES = st.sampled_from(["Remote pg", "Inner join", "Exchange hash", "Fragment", "Sort", "Tuples values"])


def leaf(children: st.SearchStrategy[tuple[Node, ...]]) -> st.SearchStrategy[Node]:
    return st.builds(
        Node,
        title=TITLES,
        details=st.lists(TEXT, max_size=5).map(tuple),
        where=st.none() | st.just("duckdb"),
        estimated=FIGURES,
        actual=st.none() | FIGURES,
        statements=st.lists(TEXT, max_size=3).map(tuple),
        inputs=children,
    )


PLANS = st.recursive(leaf(st.just(())), lambda below: leaf(st.lists(below, max_size=3).map(tuple)), max_leaves=8)


def count(node: Node) -> int:
    return 1 + sum(map(count, node.inputs))


@given(st.lists(PLANS, min_size=1, max_size=2))
def test_any_plan(plans: list[Node]) -> None:
    root = ET.fromstring(drawn(*plans))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    boxes = []
    for group in root.iter(f"{SVG}g"):
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        x, y, w, h = (float(rect.attrib[each]) for each in ("x", "y", "width", "height"))
        assert x >= -1
        assert x + w <= width
        assert y + h <= height
        boxes.append((x, y, x + w, y + h))
        for text in group.findall(f"{SVG}text"):
            # A monospaced character of the font sizes that are used is at least so wide.
            wide = len(text.text or "") * (5.7 if "font-size" in text.attrib else 6.6)
            assert float(text.attrib["x"]) + wide <= x + w + 0.5
            assert y < float(text.attrib["y"]) < y + h
    assert len(boxes) == sum(map(count, plans))
    for (a, b, c, d), (e, f, g, h) in combinations(boxes, 2):
        assert c <= e + 0.2 or g <= a + 0.2 or d <= f + 0.2 or h <= b + 0.2
    assert len(root.findall(f"{SVG}path")) == len(boxes) - len(plans)


def test_what_it_says() -> None:
    scan = Node(
        "Remote pg",
        (),
        "postgresql",
        Figures(10.0, None, 0.003),
        Figures(5_000.0, 80_000.0, 0.25, 0.1),
        ("SELECT '<&'",),
    )
    root = Node("Top", ("by n desc",), estimated=Figures(5.0), inputs=(scan,))
    text = drawn(root)
    words = "".join(ET.fromstring(text).itertext())
    assert "Remote pg · postgresql" in words
    assert "SELECT '<&'" in words
    assert "5,000 rows, estimated 10" in words
    assert "80.0 kB, 250.0 ms (estimated 3.0 ms)," in words
    assert "waited 100.0 ms" in words
    assert "estimated 5 rows" in words
    # A wrong estimate is seen, a right one is not.
    assert "#c0392b" in text
    right = Node("Remote pg", estimated=Figures(4_000.0), actual=Figures(5_000.0))
    assert "#c0392b" not in drawn(right)


def test_more_rows_make_thicker_edges() -> None:
    def thickness(rows: float) -> float:
        plan = Node("Sort", inputs=(Node("Remote pg", estimated=Figures(rows)),))
        path = ET.fromstring(drawn(plan)).find(f"{SVG}path")
        assert path is not None
        return float(path.attrib["stroke-width"])

    assert thickness(1.0) < thickness(1_000.0) < thickness(1_000_000.0) < 12
