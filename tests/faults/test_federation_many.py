"""Many queries, and many scans in one query, in little memory; a join that is larger than it."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from dqp.buffer import TOTAL
from tests.faults.federated_process import run
from tests.faults.federation import KEYS, ROWS, WIDTH, Side, ask, federation
from tests.processes import until

MEMORY = 200_000_000
LITTLE = 100_000_000
"""DuckDB gives an error in place of spilling where it has much less."""
TIMES = 8
WIDE_BYTES = TIMES * ROWS * WIDTH
QUERIES = 16
ON_THE_WAY = 32 << 20
"""Bytes of a query on their way through HTTP, DuckDB's pipelines and to who asked, and of what allocators keep."""


def resting(sides: Mapping[str, Side]) -> bool:
    return all(each.idle for each in sides.values())


@pytest.fixture
def wide(sides: Mapping[str, Side]) -> Iterator[Mapping[str, Side]]:
    """Both have a view of more bytes than three times the memory."""
    assert WIDE_BYTES > 3 * LITTLE
    numbers = " union all ".join(f"select {each} as n" for each in range(TIMES))
    view = f"create view wide as select id * {TIMES} + n as id, n, k, s from big, ({numbers}) as numbers"
    for each in sides.values():
        each.database.run(view)
    yield sides
    for each in sides.values():
        each.database.run("drop view wide")


def test_sixteen_queries_at_once(wide: Mapping[str, Side], tmp_path: Path) -> None:
    """None waits for the end of another one, and what their inputs hold together does not stand in memory."""
    sql = "select b.id, b.s, s.name from {0}.wide b join {1}.small s on b.k = s.id where b.n < 2"
    queries = [sql.format("pg", "maria"), sql.format("maria", "pg")] * (QUERIES // 2)
    ran = run({alias: each.url for alias, each in wide.items()}, queries, MEMORY, tmp_path)
    assert ran.error is None
    assert [rows for rows, _ in ran.answers] == [2 * (ROWS - ROWS // KEYS)] * QUERIES
    assert ran.waiting == QUERIES
    most = MEMORY + TOTAL + QUERIES * ON_THE_WAY
    assert ran.grown < most < QUERIES * 2 * ROWS * WIDTH
    assert not ran.left
    until(lambda: resting(wide), 10)


def test_a_build_side_of_three_times_the_memory(wide: Mapping[str, Side], tmp_path: Path) -> None:
    sql = "select count(*) as n, sum(length(a.s || b.s)) as s from pg.wide a join maria.wide b on a.id = b.id"
    ran = run({alias: each.url for alias, each in wide.items()}, [sql], LITTLE, tmp_path)
    assert ran.error is None
    assert ran.answers == [(1, {"n": TIMES * ROWS, "s": 2 * WIDE_BYTES})]
    assert ran.spilled > 0
    assert ran.grown < LITTLE + TOTAL + ON_THE_WAY
    assert not ran.left
    until(lambda: resting(wide), 10)


@pytest.mark.usefixtures("temporary")
def test_ten_scans_in_one_query(sides: Mapping[str, Side]) -> None:
    parts = [f"select id, s from {alias}.big where k % 5 = {rest}" for rest in range(5) for alias in sides]
    sql = f"select count(*) as n, count(distinct id) as ids from ({' union all '.join(parts)})"
    with federation({alias: each.url for alias, each in sides.items()}, memory_bytes=MEMORY) as coordinator:
        assert ask(coordinator, sql).to_pydict() == {"n": [2 * ROWS], "ids": [ROWS]}
    until(lambda: resting(sides), 10)
