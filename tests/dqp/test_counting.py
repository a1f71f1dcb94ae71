"""How many rows a table has, by how dense they are along a key: near the truth, or no verdict."""

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlglot import exp

from dai.drivers.tables import Column, TableInfo
from dqp.catalog.statistics import counting
from dqp.catalog.statistics.counting import Count, Key

INFO = TableInfo("t", (Column("k", "int", "int32", False),), primary_key=("k",))


def written(node: exp.Expression) -> str:
    return node.sql(dialect="sqlite", identify=True)


def counted(keys: Iterable[int], *, whole: bool = True) -> Count:
    """Of a table with these keys, by SQLite."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (k INTEGER)")
        connection.executemany("INSERT INTO t VALUES (?)", ((each,) for each in keys))
        connection.execute("CREATE INDEX i ON t (k)")
        low, high = connection.execute("SELECT MIN(k), MAX(k) FROM t").fetchone()

        def ask(sql: str) -> pa.Table:
            cursor = connection.execute(sql)
            names = [each[0] for each in cursor.description]
            return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in cursor])

        return counting.count(Key(exp.column("k", quoted=True), low, high, whole), INFO, written, ask)


@pytest.mark.parametrize(
    "keys",
    [
        range(50_000),
        range(0, 150_000, 3),
        [each // 100 for each in range(50_000)],
        [each // 4_000 * 7 for each in range(60_000)],
        [each * 7919 % 100_003 for each in range(50_000)],
    ],
    ids=["each value", "gaps", "many rows of a value", "few values, far apart", "by chance"],
)
def test_about_right(keys: Iterable[int]) -> None:
    rows = len(list(keys))
    count = counted(keys)
    assert count.even
    assert count.rows == pytest.approx(rows, rel=0.35)
    assert count.seen <= rows
    assert count.contradicts(rows * 100, 10.0)
    assert count.contradicts(rows / 100, 10.0)
    assert not count.contradicts(rows, 10.0)


def test_few_values_with_more_rows_than_a_block_tell_only_what_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "BLOCKS", ((16, 10), (4, 1_000)))
    for values, rows in ((4, 12_500), (10, 5_000), (1, 50_000)):
        count = counted(each // rows for each in range(values * rows))
        assert not count.contradicts(values * rows, 10.0)
        assert count.seen <= values * rows


def clustered() -> Iterator[int]:
    yield from range(1_000)
    yield from range(10**9, 10**9 + 30_000)


@pytest.mark.parametrize(
    ("keys", "whole"), [(list(clustered()), True), (list(range(0, 10**6, 25)), False)], ids=["clusters", "NULLs"]
)
def test_without_evenness_only_rows_that_were_seen_count(keys: list[int], whole: bool) -> None:
    count = counted(keys, whole=whole)
    assert not count.even
    assert not count.contradicts(len(keys) * 100, 10.0)
    assert not count.contradicts(len(keys) / 5, 10.0)
    assert count.contradicts(count.seen / 10, 10.0)


@given(st.lists(st.integers(0, 3_000), min_size=1, max_size=400))
def test_never_more_rows_seen_than_there_are(keys: list[int]) -> None:
    count = counted(keys)
    assert count.seen <= len(keys)
    assert not count.contradicts(len(keys), 10.0)
