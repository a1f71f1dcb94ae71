"""Drawings of plans: well-formed, nothing lies over anything else, the text fits."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqp.explain.nodes import Figures, Node
from dqp.explain.svg import FEW, collapsed, drawn
from dqp.explain.text import shortened

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
    assert len(boxes) == sum(count(collapsed(each)) for each in plans)
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
    assert 'class="wrong"' in text
    right = Node("Remote pg", estimated=Figures(4_000.0), actual=Figures(5_000.0))
    assert 'class="wrong"' not in drawn(right)


def test_many_operators_share_boxes() -> None:
    """Those in a line that are as they were expected; the others, and all of a small plan, have boxes of their own."""
    node = Node("Remote pg", where="postgresql", estimated=Figures(5.0, seconds=1.0))
    for number in range(FEW + 3):
        actual = Figures(5e6 if number == 5 else 5.0, seconds=0.5)
        node = Node(f"Filter {number}", (f"x{number}",), None, Figures(5.0, seconds=0.25), actual, (), (node,))
    top = collapsed(node)
    assert (count(top), count(collapsed(node.inputs[0].inputs[0].inputs[0].inputs[0]))) == (4, FEW)
    assert top.title == ", ".join(f"Filter {number}" for number in range(FEW + 2, 5, -1))
    assert (top.actual, top.estimated.seconds) == (Figures(5.0, seconds=0.5 * (FEW - 3)), 0.25 * (FEW - 3))
    assert top.inputs[0].title == "Filter 5"
    words = "".join(ET.fromstring(drawn(node)).itertext())
    assert "x14" in words


def test_a_union_of_many_has_one_box_and_slim_members() -> None:
    remote = Node("Remote pg", where="postgresql", statements=("SELECT 1 FROM a_table_with_a_name WHERE x > 1",))
    wide = float(ET.fromstring(drawn(remote)).attrib["width"])
    union = remote
    for _ in range(FEW):
        union = Node("Union all", inputs=(union, remote))
    top = collapsed(union)
    assert (top.title, len(top.inputs)) == ("Union all", FEW + 1)
    root = ET.fromstring(drawn(union))
    assert float(root.attrib["width"]) < wide * (FEW + 1)
    assert f"min-width:{0.6 * float(root.attrib['width']):.0f}px" in root.attrib["style"]


def test_the_share_of_the_time_is_drawn() -> None:
    plan = Node("Sort", actual=Figures(seconds=3.0), inputs=(Node("Filter", actual=Figures(seconds=1.0, waiting=0.0)),))
    root = ET.fromstring(drawn(Node("Fragment 1", actual=Figures(seconds=9.0), inputs=(plan,))))
    shares = {}
    for group in root.iter(f"{SVG}g"):
        rect, path = group.find(f"{SVG}rect"), group.find(f"{SVG}path")
        title = group.find(f"{SVG}text")
        assert rect is not None
        assert title is not None
        if path is not None:
            shares[title.text] = float(path.attrib["d"].partition("h")[2]) / (float(rect.attrib["width"]) - 6)
    assert shares == {"Sort": pytest.approx(0.75, abs=0.01), "Filter": pytest.approx(0.25, abs=0.01)}


def test_guards_are_folded_away() -> None:
    guard = "iif(typeof(a) IN ('text', 'null'), 1, iif(a <> '(', abs(-9223372036854775807 - (a IS a)), 1))"
    for text, left in (
        (f"SELECT a FROM t WHERE {guard} AND a > 1", "SELECT a FROM t WHERE a > 1"),
        (f"SELECT a FROM t WHERE {guard} GROUP BY a", "SELECT a FROM t GROUP BY a"),
        (f"SELECT a FROM t WHERE a > 1 AND {guard}", "SELECT a FROM t WHERE a > 1"),
    ):
        assert shortened(text) == f"{left} -- and 1 guard against values of other types"
    assert shortened("SELECT a FROM t WHERE a = 'iif(' AND b = 2") == "SELECT a FROM t WHERE a = 'iif(' AND b = 2"
    assert shortened("SELECT 1") == "SELECT 1"


def test_more_rows_make_thicker_edges() -> None:
    def thickness(rows: float) -> float:
        plan = Node("Sort", inputs=(Node("Remote pg", estimated=Figures(rows)),))
        path = ET.fromstring(drawn(plan)).find(f"{SVG}path")
        assert path is not None
        return float(path.attrib["stroke-width"])

    assert thickness(1.0) < thickness(1_000.0) < thickness(1_000_000.0) < 12
