"""What a plan's leaves are to DuckDB: inputs that are read once are not gathered first."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import dqp
from dai.streams.stream import Stream
from dqp.catalog.sources.local import DriverSource
from dqp.execution.leaves import as_promised
from dqp.interfaces.lab import Lab


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("leaves") / "x.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (id integer, k integer)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(each, each % 2) for each in range(6)])
        connection.commit()
    return path


@pytest.fixture(scope="module")
def lab(path: Path) -> Iterator[Lab]:
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
    ("sql", "statements", "expected"),
    [
        (
            "SELECT x.id FROM lite.t x JOIN (SELECT k FROM lite.t GROUP BY k) m USING (k) WHERE x.id > 3 ORDER BY 1",
            2,  # their rows differ
            [(4,), (5,)],
        ),
        (
            "SELECT id, n FROM lite.t JOIN (SELECT k, count(k) n FROM lite.t GROUP BY 1) USING (k) ORDER BY 1 LIMIT 2",
            1,
            [(0, 3), (1, 3)],
        ),
        (
            "SELECT x.id FROM lite.t x WHERE x.k + 4 > (SELECT max(y.k) FROM lite.t y) ORDER BY id LIMIT 2",
            1,
            [(0,), (1,)],
        ),
        (
            "SELECT unnest([id, k]) AS u FROM lite.t WHERE id IN (SELECT max(z.id) FROM lite.t z)",
            1,
            [(5,), (1,)],
        ),
    ],
)
def test_rows_with_more_columns_are_read_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, sql: str, statements: int, expected: list[tuple[object, ...]]
) -> None:
    sent: list[str] = []
    query = DriverSource.query

    def recorded(source: DriverSource, sql: str, *of: Any, **options: Any) -> Stream:
        sent.append(sql)
        return query(source, sql, *of, **options)

    with dqp.connect({"sources": {"lite": f"sqlite:///{path}"}, "pushdown": "none"}) as fetching:
        fetching.sql(sql).rows()
        monkeypatch.setattr(DriverSource, "query", recorded)
        assert fetching.sql(sql).rows() == expected
    assert len(sent) == statements, sent


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
