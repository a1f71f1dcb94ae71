"""A join whose build side is three times the memory: it spills; and what breaks while it does."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from dqp.execution.buffer import TOTAL
from tests.faults.federated_process import run
from tests.faults.federation import (
    ON_THE_WAY,
    ROWS,
    TIMES,
    WIDTH,
    Once,
    Side,
    ask,
    federation,
    leftovers,
    reduced,
    resting,
    right_or_clear,
    soon,
    watch,
    wide,
)
from tests.faults.test_disk_full import small_disk
from tests.processes import until

MEMORY = 100_000_000
"""DuckDB gives an error in place of spilling where it has much less."""


def test_a_build_side_of_three_times_the_memory(sides: Mapping[str, Side], tmp_path: Path) -> None:
    assert TIMES * ROWS * WIDTH > 3 * MEMORY
    ran = run({alias: each.url for alias, each in sides.items()}, [wide("pg", "maria").sql], MEMORY, tmp_path)
    assert ran.error is None
    assert ran.answers == [(1, {"n": TIMES * ROWS, "s": 2 * TIMES * ROWS * WIDTH})]
    assert ran.spilled > 0
    assert ran.grown < MEMORY + TOTAL + ON_THE_WAY
    assert not ran.left
    until(lambda: resting(sides))


SORTED = """select count(*) as n, sum(length(s)) as s
from (select s, row_number() over (order by hash(id)) as r from pg.wide) where r > 0"""


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        # The rows that wait for their turn, or what DuckDB spills of the build side: whichever fills it.
        pytest.param(wide("pg", "maria").sql, "disk", id="of a join"),
        pytest.param(SORTED, "is its disk full", id="of one input that DuckDB sorts"),
    ],
)
def test_a_disk_that_is_full(sides: Mapping[str, Side], tmp_path: Path, sql: str, words: str) -> None:
    with small_disk(tmp_path / "disk", 16 << 20) as disk:
        ran = run(
            {alias: each.url for alias, each in sides.items()},
            [sql],
            MEMORY,
            disk.get("results", tmp_path),
            largest_file=disk.get("largest_file", 0),
        )
        assert ran.error is not None
        kind, text = ran.error
        assert kind == "LimitError"
        assert words in text
        assert not ran.left
    until(lambda: resting(sides))


@pytest.mark.parametrize("victim", ["service", "database"])
def test_a_source_is_lost_while_duckdb_spills(sides: Mapping[str, Side], temporary: Path, victim: str) -> None:
    """Of the build side: of which DuckDB has no more than fits into memory when it begins to spill."""
    query, side = wide("pg", "maria"), sides["pg"]
    kill = Once(
        side.service.kill if victim == "service" else side.database.server.kill,
        lambda _: any(temporary.rglob("duckdb_temp_*.tmp")),
    )
    with federation({alias: each.url for alias, each in sides.items()}, memory_bytes=MEMORY) as coordinator:
        for alias in sides:
            watch(coordinator, alias, passed=kill)
        try:
            right_or_clear(lambda: ask(coordinator, query.sql), query, side.alias)
            assert kill.done, "DuckDB did not spill"
            assert not leftovers()
            until(lambda: sides["maria"].idle)
        finally:
            side.begin()
        again = reduced("pg", "maria")
        assert again.right(soon(lambda: ask(coordinator, again.sql)))
    until(lambda: resting(sides))
