"""What travels of an engine's profile: all that is shown of it, and never more than a bound."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dqp.execution.profile import OPERATORS, PROFILE_BYTES, bounded
from dqp.explain.nodes import Node
from dqp.explain.profile import matched, operators_of
from tests.dqp.doubles import numbers, remote


def _over(node: dict[str, Any], below: list[dict[str, Any]]) -> dict[str, Any]:
    return {**node, "children": below}


TEXT = st.text(max_size=300)
INFO = st.dictionaries(
    st.sampled_from(["Projections", "Conditions", "Groups", "Text"]), TEXT | st.lists(TEXT), max_size=4
)
LEAF = st.fixed_dictionaries(
    {"type": st.sampled_from(["ARROW_SCAN", "HASH_JOIN", "FILTER"]), "timing": st.floats(0, 1e3), "extra_info": INFO}
)
TREES = st.recursive(LEAF, lambda below: st.builds(_over, LEAF, st.lists(below, max_size=3)), max_leaves=12)


def count(*roots: Node) -> int:
    return sum(1 + count(*each.inputs) for each in roots)


@pytest.mark.parametrize(
    "sql",
    [
        "select a.range, count(*) from range(9) a join range(5) b on a.range = b.range group by 1 order by 2 limit 3",
        "select * from (select 1 union all select 2) where 1 < 2",
    ],
)
def test_nothing_that_is_shown_is_lost(sql: str) -> None:
    with duckdb.connect() as connection:
        connection.execute("SET enable_profiling = 'no_output'")
        connection.sql(sql).fetchall()
        profile = json.loads(connection.get_profiling_information("json"))
    actual = bounded(profile)
    assert list(operators_of(json.loads(json.dumps(actual)))) == list(operators_of(profile))
    assert len(json.dumps(actual)) < len(json.dumps(profile))


@given(TREES)
def test_it_stays_small(tree: dict[str, Any]) -> None:
    profile = {"operator": [tree], "query_name": "secret"}
    actual = bounded(profile)
    assert len(json.dumps(actual)) <= PROFILE_BYTES
    assert count(*operators_of(actual)) == count(*operators_of(profile))
    assert "secret" not in json.dumps(actual)


def deep(depth: int) -> dict[str, Any]:
    node: dict[str, Any] = {"type": "ARROW_SCAN", "extra_info": {}}
    for _ in range(depth):
        node = {"type": "FILTER", "extra_info": {"Expression": "x" * 400}, "children": [node]}
    return node


def wide(width: int) -> dict[str, Any]:
    scans = [{"type": "ARROW_SCAN", "extra_info": {"Projections": ["column " * 30] * 90}} for _ in range(width)]
    return {"type": "UNION", "extra_info": {}, "children": scans}


@pytest.mark.parametrize(("tree", "shown"), [(deep(OPERATORS + 100), OPERATORS + 1), (wide(50_000), OPERATORS + 1)])
def test_more_operators_than_are_sent(tree: dict[str, Any], shown: int) -> None:
    actual = bounded({"operator": [tree]})
    assert len(json.dumps(actual)) <= PROFILE_BYTES
    nodes = list(walked(*operators_of(actual)))
    assert len(nodes) == shown
    assert [each.title for each in nodes].count("More operators") == 1
    assert matched(remote(numbers("pg")), actual) is None


def walked(*roots: Node) -> Iterator[Node]:
    for each in roots:
        yield each
        yield from walked(*each.inputs)
