"""Means of exact numbers are the exact mean, rounded once. DuckDB itself rounds twice, and in another way where the
total is wanted too: its last bit may be another one."""

from __future__ import annotations

import math
from decimal import Context, Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dqp.algebra.operators import Aggregate, Inline, column
from dqp.sql.dialects import NotPushed, statement
from tests.dqp.dialects.edges import Edge, expression
from tests.thoroughness import examples

ROWS = 12
EXACT = Context(prec=60)
KINDS: dict[str, tuple[pa.DataType, int, int]] = {
    # Arrow type, digits, digits after the point
    "integer": (pa.int32(), 9, 0),
    "bigint": (pa.int64(), 18, 0),
    "short decimal": (pa.decimal128(9, 2), 9, 2),
    "decimal": (pa.decimal128(15, 2), 15, 2),
    "fine decimal": (pa.decimal128(18, 9), 18, 9),
    "long decimal": (pa.decimal128(38, 10), 37, 10),
}
Rows = list[tuple[int, int | None]]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(20), suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_mean_is_rounded_once(edges: Edge, kind: str, data: st.DataObject) -> None:
    type, digits, scale = KINDS[kind]
    most = 10**digits - 1
    number = st.none() | st.integers(-most, most) | st.integers(-99, 99) | st.sampled_from([0, most, -most, 1, 2**53])
    rows: Rows = data.draw(st.lists(st.tuples(st.integers(0, 2), number), min_size=1, max_size=ROWS))
    rows = [(group, None if each is None or abs(each) > most else each) for group, each in rows]
    means(edges, rows, type, scale)


def means(edges: Edge, rows: Rows, type: pa.DataType, scale: int) -> None:
    values = pa.array(
        [None if each is None else Decimal(each).scaleb(-scale, EXACT) for _, each in rows], pa.decimal128(38, scale)
    )
    table = pa.table({"g": pa.array([group for group, _ in rows], pa.int32()), "v": values.cast(type)})
    items = (
        ("mean", expression("avg(v)")),
        ("once", expression("avg(distinct v)")),
        ("some", expression("avg(v) filter (where v > 0)")),
    )
    tree = Aggregate(Inline("hand", (("g", "g"), ("v", "v")), table), (("g", column("g")),), items)
    try:
        sql = statement(tree, edges.dialect)
    except NotPushed:
        assert (edges.dialect, str(type)) in REFUSED or edges.dialect == "sqlite"
        return
    pushed = edges.pushed(sql)
    assert pushed is not None, sql.sql
    edges.reference.register("hand", table)
    right = {row["g"]: row for row in (edges.expected(tree) or pa.table({})).to_pylist()}
    edges.reference.unregister("hand")
    assert len(right) == pushed.num_rows
    for row in pushed.to_pylist():
        known = [each for group, each in rows if group == row["g"] and each is not None]
        for name, numbers in (
            ("mean", known),
            ("once", list(set(known))),
            ("some", [each for each in known if each > 0]),
        ):
            exact = float(Fraction(sum(numbers), len(numbers) * 10**scale)) if numbers else None
            if edges.dialect != "duckdb":
                assert row[name] == exact, (name, rows, sql.sql)
            mine, theirs = row[name], right[row["g"]][name]
            assert mine == theirs or math.nextafter(theirs, mine) == mine


@pytest.mark.parametrize("aggregate", ["sum", "avg"])
def test_a_total_that_is_too_large_is_no_other_number(edges: Edge, aggregate: str) -> None:
    table = pa.table({"v": [1e308, 1e308, 1.5]})
    tree = Aggregate(Inline("hand", (("v", "v"),), table), (), (("made", expression(f"{aggregate}(v)")),))
    try:
        pushed = edges.pushed(statement(tree, edges.dialect))
    except NotPushed:
        assert edges.dialect == "sqlite"
        return
    assert pushed is None or pushed.to_pylist() == [{"made": math.inf}]


REFUSED = {("mariadb", "decimal128(38, 10)"), ("mysql", "decimal128(38, 10)")}
"""More than 65 digits on the way."""
