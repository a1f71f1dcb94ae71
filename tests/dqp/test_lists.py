"""IN and NOT IN of lists of every size, as a parameter and written out: DuckDB's answer, from every database.

A commit asks for each list of one database, a thorough run of all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import dqp
from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.binding.parameters import MOST_LITERALS
from dqp.interfaces.lab import Lab
from tests.thoroughness import combined

SOURCES = ("pg", "maria", "lite", "duck")
ROWS = pa.table({"i": [0, 1, 2, 3], "k": pa.array([1, 2, 700, None], pa.int32()), "s": ["a", "b", "z", None]})
LONG = range(MOST_LITERALS + 100)
VALUES: dict[str, list[list[Any]]] = {
    "k": [[], [None], [1], [1, None], [5, None], [*LONG], [*LONG, None], [None] * len(LONG)],
    "s": [[], ["a", None], [*map(str, LONG), "a", None]],
}
QUESTIONS = (
    "select i, {} as v from T order by i",
    "select i from T where not ({}) order by i",
    "select i from T where ({}) is null or i = 1 order by i",
    "select i from T where {} or i = 3 order by i",
    "select i, case when {} then 1 when not ({}) then 2 else 3 end as v from T order by i",
    "select count(*) filter ({}) as n, count(*) filter (({}) is null) as m from T",
    "select C, count(*) as n from T group by C having {} order by C nulls last",
    "select a.i, b.i as j from T a join T b on a.i = b.i and D order by a.i",
    "select a.i, b.i as j from T a left join T b on a.i = b.i and D order by a.i",
)


@pytest.fixture(scope="module")
def lab(postgres_module_url: str, mariadb_module_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    directory = tmp_path_factory.mktemp("lists")
    files = {"lite": f"sqlite:///{directory}/lite.db", "duck": f"duckdb:///{directory}/duck.db"}
    urls = {"pg": postgres_module_url, "maria": mariadb_module_url, **files}
    for url in urls.values():
        driver = driver_for(url)
        driver.load("listed", Stream.of(ROWS), cancellation=Cancellation(), create=True)
        driver.close()
    with dqp.connect({"sources": urls}) as lab:
        yield lab


@pytest.fixture(scope="module")
def oracle() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        connection.register("listed", ROWS)
        yield connection


def written(values: list[Any]) -> str:
    return ", ".join("null" if each is None else repr(each) for each in values)


LISTS = [(column, each, negated) for column, lists in VALUES.items() for each in lists for negated in (False, True)]


@pytest.mark.parametrize(
    ("column", "values", "negated", "source"),
    [(*each, source) for each, source in combined(LISTS, SOURCES)],
    ids=lambda each: f"{len(each)}{'-null' * (None in each)}" if isinstance(each, list) else str(each),
)
def test_a_list(
    lab: Lab, oracle: duckdb.DuckDBPyConnection, source: str, negated: bool, column: str, values: list[Any]
) -> None:
    for form in ("$x", f"[{written(values)}]", f"({written(values)})"):
        parameters = {"x": values} if form == "$x" else {}
        for question in QUESTIONS if parameters and len(values) < len(LONG) else QUESTIONS[:2]:
            condition = f"{column} {'not ' * negated}in {form}"
            sql = question.replace("{}", condition).replace("C", column).replace("D", f"b.{condition}")
            expected = oracle.execute(sql.replace("T", "listed"), parameters or None).fetchall()
            rows = lab.sql(sql.replace("T", f"{source}.listed"), **parameters).arrow().to_pylist()
            assert [tuple(each.values()) for each in rows] == expected, sql[:200]


@pytest.mark.parametrize("source", SOURCES)
def test_an_empty_list_is_left_to_the_database(lab: Lab, source: str) -> None:
    for form in ("in $x", "not in $x", "in ()"):
        parameters = {"x": []} if "$" in form else {}
        plan = str(lab.sql(f"select i from {source}.listed where k {form} or i = 3", **parameters).explain())
        assert re.search(r"Remote .*\n +SELECT .* WHERE ", plan), plan
        assert " IN (SELECT" not in plan, plan


def test_places_of_parameters_are_lists_too(lab: Lab) -> None:
    for values in ([], (), {None}, [1, None]):
        stream = lab.coordinator.query(
            "select i from duck.listed where k not in ? order by i", [list(values)], cancellation=Cancellation()
        )
        assert stream.table()["i"].to_pylist() == ([1, 2] if 1 in values else [0, 1, 2])
