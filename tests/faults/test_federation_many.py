"""Many queries, and many scans in one query, in little memory."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.faults.federation import ROWS, SOON, Side, ask, federation, streamed
from tests.processes import until

MEMORY = 200_000_000
pytestmark = pytest.mark.usefixtures("temporary")


def test_sixteen_queries_at_once(sides: Mapping[str, Side]) -> None:
    queries = [streamed("pg", "maria"), streamed("maria", "pg")] * 8
    urls = {alias: each.url for alias, each in sides.items()}
    with federation(urls, memory_bytes=MEMORY) as coordinator, ThreadPoolExecutor(len(queries)) as pool:
        asked = [pool.submit(ask, coordinator, each.sql) for each in queries]
        for query, answer in zip(queries, asked, strict=True):
            assert query.right(answer.result(2 * SOON))
    until(lambda: all(each.idle for each in sides.values()), 10)


def test_ten_scans_in_one_query(sides: Mapping[str, Side]) -> None:
    parts = [f"select id, s from {alias}.big where k % 5 = {rest}" for rest in range(5) for alias in sides]
    sql = f"select count(*) as n, count(distinct id) as ids from ({' union all '.join(parts)})"
    with federation({alias: each.url for alias, each in sides.items()}, memory_bytes=MEMORY) as coordinator:
        assert ask(coordinator, sql).to_pydict() == {"n": [2 * ROWS], "ids": [ROWS]}
    until(lambda: all(each.idle for each in sides.values()), 10)
