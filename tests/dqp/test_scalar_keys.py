"""Columns that are compared with the value of a subquery of another source."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

import dqp
from dai.errors import DataError
from dqp.interfaces.lab import Lab

ROWS = 200_000


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """``many.t`` has as many values of ``k`` as rows; in ``few.u`` one value of ``k`` is no key, and one NULL."""
    directory = tmp_path_factory.mktemp("scalar")
    rows = {
        "many": ("t", [(each, each + 10) for each in range(ROWS)]),
        "few": ("u", [(1, 17), (2, -5), (3, -6), (4, None)]),
        "other": ("w", [(1, 100_011)]),
    }
    for name, (table, values) in rows.items():
        with closing(sqlite3.connect(directory / f"{name}.sqlite")) as connection:
            connection.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY, k INTEGER)")
            connection.executemany(f"INSERT INTO {table} VALUES (?, ?)", values)
            connection.commit()
    sources = {name: {"database": f"sqlite:///{directory / name}.sqlite"} for name in rows}
    with dqp.connect({"sources": sources}) as lab:
        yield lab


@pytest.mark.parametrize(
    ("subquery", "ids"),
    [
        ("SELECT k FROM few.u WHERE id = 1", [7]),
        ("SELECT DISTINCT k FROM few.u WHERE k > 0", [7]),
        ("SELECT k FROM few.u WHERE id = 2", []),
        ("SELECT k FROM few.u WHERE id = 4", []),
        ("SELECT k FROM few.u WHERE id > 4", []),
        ("SELECT k FROM few.u ORDER BY id LIMIT 1", [7]),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_value_of_another_source(lab: Lab, subquery: str, ids: list[int], turned: bool) -> None:
    condition = f"({subquery}) = k" if turned else f"k = ({subquery})"
    query = lab.sql(f"SELECT id FROM many.t WHERE {condition} AND id % 2 = 1")
    assert [row[0] for row in query.rows()] == ids


@pytest.mark.parametrize(
    "query",
    [
        "SELECT id FROM many.t WHERE k = (SELECT k FROM few.u WHERE id IN (2, 3))",
        "SELECT id FROM few.u WHERE k = (SELECT k FROM many.t WHERE id % 100000 < 3)",
        "SELECT id FROM few.u WHERE k = (SELECT k FROM many.t WHERE id % 100000 = 7)",
    ],
)
def test_several_values_are_an_error_where_none_is_a_key(lab: Lab, query: str) -> None:
    with pytest.raises(DataError, match="More than one row"):
        lab.sql(query).rows()


def test_one_value_for_each_query_of_a_union(lab: Lab) -> None:
    both = "SELECT id, k FROM few.u UNION ALL SELECT id, k FROM other.w"
    value = "SELECT DISTINCT k FROM many.t WHERE id % 199999 = 7"
    assert lab.sql(f"SELECT id FROM ({both}) WHERE k = ({value})").rows() == [(1,)]
