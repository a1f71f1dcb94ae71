"""Many queries, and many scans in one query, in little memory."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from dqp.execution.buffer import TOTAL
from tests.faults.federated_process import run
from tests.faults.federation import KEYS, ON_THE_WAY, ROWS, WIDTH, Side, ask, federation, resting
from tests.processes import until

MEMORY = 200_000_000
QUERIES = 16


def test_sixteen_queries_at_once(sides: Mapping[str, Side], tmp_path: Path) -> None:
    """None waits for the end of another one, and what their inputs hold together does not stand in memory."""
    sql = "select b.id, b.s, s.name from {0}.wide b join {1}.small s on b.k = s.id where b.n < 2"
    queries = [sql.format("pg", "maria"), sql.format("maria", "pg")] * (QUERIES // 2)
    ran = run({alias: each.url for alias, each in sides.items()}, queries, MEMORY, tmp_path)
    assert ran.error is None
    assert [rows for rows, _ in ran.answers] == [2 * (ROWS - ROWS // KEYS)] * QUERIES
    assert ran.waiting == QUERIES
    most = MEMORY + TOTAL + QUERIES * ON_THE_WAY
    assert ran.grown < most < QUERIES * 2 * ROWS * WIDTH
    assert not ran.left
    until(lambda: resting(sides))


@pytest.mark.usefixtures("temporary")
def test_ten_scans_in_one_query(sides: Mapping[str, Side]) -> None:
    parts = [f"select id, s from {alias}.big where k % 5 = {rest}" for rest in range(5) for alias in sides]
    sql = f"select count(*) as n, count(distinct id) as ids from ({' union all '.join(parts)})"
    with federation({alias: each.url for alias, each in sides.items()}, memory_bytes=MEMORY) as coordinator:
        assert ask(coordinator, sql).to_pydict() == {"n": [2 * ROWS], "ids": [ROWS]}
    until(lambda: resting(sides))
