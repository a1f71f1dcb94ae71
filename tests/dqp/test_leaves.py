"""What a plan's leaves are to DuckDB: inputs that are read once are not gathered first."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import dqp
from dqp.execution.leaves import as_promised
from dqp.interfaces.lab import Lab


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    path: Path = tmp_path_factory.mktemp("leaves") / "x.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id integer, k integer)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(each, each % 2) for each in range(6)])
        connection.commit()
    with dqp.connect({"sources": {"lite": f"sqlite:///{path}"}}) as lab:
        yield lab


@pytest.mark.parametrize(
    ("sql", "gathered", "expected"),
    [
        ("SELECT unnest(range(2)) AS u, id FROM lite.t WHERE id < 2", False, [(0, 0), (1, 0), (0, 1), (1, 1)]),
        ("SELECT DISTINCT ON (k) k, id FROM lite.t ORDER BY k, id", False, [(0, 0), (1, 1)]),
        ("SELECT id, u FROM lite.t x, unnest([x.k, 7]) AS v(u) WHERE id = 1", True, [(1, 1), (1, 7)]),
        ("SELECT unnest([id, 9]) AS u FROM lite.t WHERE id IN (SELECT max(id) FROM lite.t)", True, [(5,), (9,)]),
        (
            "SELECT unnest([a.id, b.id]) AS u FROM lite.t a JOIN lite.t b ON a.id = b.id + 4",
            True,
            [(4,), (0,), (5,), (1,)],
        ),
    ],
)
def test_what_a_query_as_written_reads_once_streams(
    lab: Lab, sql: str, gathered: bool, expected: list[tuple[object, ...]]
) -> None:
    assert sorted(tuple(each.values()) for each in lab.sql(sql).arrow().to_pylist()) == sorted(expected)
    assert ("AS MATERIALIZED" in lab.explain(sql, analyze=True).text) == gathered


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ([("a", pa.int32()), ("b", pa.decimal128(12, 2))], True),
        ([("b", pa.int32()), ("a", pa.decimal128(12, 2))], False),
        ([("a", pa.int64()), ("b", pa.decimal128(12, 2))], False),
        ([("a", pa.null()), ("b", pa.decimal128(12, 2))], False),
        ([("a", pa.int32())], False),
    ],
)
def test_what_arrives_as_promised(fields: list[tuple[str, pa.DataType]], expected: bool) -> None:
    assert as_promised([("a", "INTEGER"), ("b", "DECIMAL(12, 2)")], pa.schema(fields)) is expected
