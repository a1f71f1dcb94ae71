"""The first rows of a few groups are found by an aggregate."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date, timedelta

import duckdb
import pyarrow as pa
import pytest

from dqp.interfaces.lab import Lab
from tests.dqp.duckdb_files import Both, federated

ROWS = 1_200
READINGS = pa.table(
    {
        "id": range(ROWS),
        "station": [None if each % 17 == 0 else each % 9 for each in range(ROWS)],
        "kind": [("rain", "wind", None)[each % 3] for each in range(ROWS)],
        "value": [None if each % 11 == 0 else (each * 37 % 50) / 4 for each in range(ROWS)],
        "day": [date(2020, 1, 1) + timedelta(days=each % 40) for each in range(ROWS)],
        "marks": [[each % 2, each % 3] if each % 5 else None for each in range(ROWS)],
    },
    schema=pa.schema(
        {
            "id": pa.int64(),
            "station": pa.int32(),
            "kind": pa.string(),
            "value": pa.float64(),
            "day": pa.date32(),
            "marks": pa.list_(pa.int32()),
        }
    ),
)
STATIONS = pa.table({"id": pa.array(range(12), pa.int32()), "name": [f"s{each % 5}" for each in range(12)]})
FROM = "from a.readings r left join b.stations s on r.station = s.id"
NUMBER = "row_number() over (partition by"
AGGREGATED = [
    f"select distinct on (name) name, r.id, -value v {FROM} order by name nulls first, value desc, r.id",
    f"select distinct on (r.station, kind) r.* exclude (marks), name {FROM} order by r.station, kind, value, r.id",
    f"select r.id, name, value {FROM} qualify {NUMBER} name order by value, r.id) = 1",
    f"select id, {NUMBER} name, kind order by day, value desc, id) n from (select r.*, name {FROM}) qualify n = 1",
    f"select r.id, value {FROM} qualify {NUMBER} name, kind order by day, value, r.id) <= 1 and value > 2",
    f"select n, count(*) from (select {NUMBER} kind order by value, r.id) n {FROM}) where n = 1 group by n",
    f"select * from (select kind, day, {NUMBER} name order by kind, value, r.id) n {FROM}) where 1 = n",
]
WINDOWED = [
    f"select r.id, marks {FROM} qualify {NUMBER} name order by value, r.id) = 1",
    f"select r.id {FROM} qualify {NUMBER} name order by value, r.id) = 2",
    f"select r.id {FROM} qualify rank() over (partition by name order by value, r.id) = 1",
    f"select r.id {FROM} qualify row_number() over (order by value, r.id) = 1",
    f"select r.id {FROM} qualify {NUMBER} r.id % 600, name order by value, r.id) = 1",
    f"select distinct on (r.id) r.id, value {FROM} order by r.id, value, day",
]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with federated(
        tmp_path_factory.mktemp("files"), {("a", "readings"): READINGS, ("b", "stations"): STATIONS}
    ) as made:
        yield made


@pytest.fixture
def lab(both: Both) -> Lab:
    return both[0]


@pytest.fixture
def right(both: Both) -> duckdb.DuckDBPyConnection:
    return both[1]


def _same(sql: str, lab: Lab, right: duckdb.DuckDBPyConnection) -> str:
    """The plan with its actual rows, of a query with the right answer."""
    expected = right.sql(sql).to_arrow_table()
    found = lab.sql(sql).arrow()
    assert found.schema.types == expected.schema.types
    assert sorted(found.to_pylist(), key=repr) == sorted(expected.to_pylist(), key=repr)
    return str(lab.sql(sql).explain(analyze=True))


@pytest.mark.parametrize("sql", AGGREGATED)
def test_an_aggregate_finds_them(sql: str, lab: Lab, right: duckdb.DuckDBPyConnection) -> None:
    plan = _same(sql, lab, right)
    assert "Window" not in plan


@pytest.mark.parametrize("sql", WINDOWED)
def test_other_windows_stay(sql: str, lab: Lab, right: duckdb.DuckDBPyConnection) -> None:
    plan = _same(sql, lab, right)
    assert "Window" in plan
