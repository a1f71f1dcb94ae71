"""Decimals of which no decimal has all the digits: DuckDB compares by all digits behind the point, and looks among the
values of a subquery, of a list or a row, and merges columns, by all digits before it. The answers are DuckDB's."""

from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import duckdb
import pytest

import dqp
from dqp.interfaces.lab import Lab

LEFT = (
    "CREATE TABLE s (id INT, huge DECIMAL(38, 6))",
    "INSERT INTO s VALUES (1, -0.000001), (2, 0), (3, 0.005), (4, 1234567890123456789012345678901.123456), (5, NULL)",
)
RIGHT = (
    "CREATE TABLE e (y INT, amt DECIMAL(12, 2), wide DECIMAL(38, 2), near DECIMAL(30, 2))",
    "INSERT INTO e VALUES (1, 0, 0, 0), (1, 0.01, 0.01, 0.01), (2, 3.5, 3.5, 3.5), (3, 0.01, 0.01, 0.01)",
)
CONDITIONS = [
    "huge IN (SELECT wide FROM {e})",
    "NOT huge IN (SELECT wide FROM {e} WHERE wide IS NOT NULL)",
    "huge NOT IN (SELECT wide FROM {e} WHERE wide IS NOT NULL) AND huge IS NOT NULL",
    "huge IN (SELECT sum(amt) FROM {e} GROUP BY y)",
    "huge IN (SELECT sum(DISTINCT amt) FROM {e} GROUP BY y)",
    "huge IN (SELECT max(wide) FROM {e} GROUP BY y HAVING max(y) < 3)",
    "huge IN (SELECT e.wide FROM {e} e WHERE e.y = s.id)",
    "huge IN (SELECT wide FROM {e} UNION SELECT amt FROM {e})",
    "huge IN (SELECT w FROM (SELECT wide AS w, y FROM {e} ORDER BY y LIMIT 3))",
    "huge IN (SELECT CASE WHEN y < 3 THEN wide END FROM {e})",
    "huge IN (SELECT near FROM {e})",
    "huge IN (SELECT amt FROM {e})",
    "huge IN (SELECT y - 1 FROM {e})",
    "huge + 0.0 IN (SELECT amt FROM {e})",
    "huge = ANY(SELECT wide FROM {e})",
    "huge <> ALL(SELECT wide FROM {e})",
    "huge < ANY(SELECT wide FROM {e})",
    "huge = (SELECT min(wide) FROM {e})",
    "huge <> (SELECT min(wide) FROM {e})",
    "huge < (SELECT min(wide) FROM {e})",
    "EXISTS (FROM {e} WHERE wide = huge)",
    "huge IN (0.00::DECIMAL(38, 2), 1)",
    "huge IN (1, 0.00::DECIMAL(38, 2), 2.5)",
    "huge = 0.00::DECIMAL(38, 2)",
    "huge <> 0.00::DECIMAL(38, 2)",
    "huge < 0.00::DECIMAL(38, 2)",
    "huge BETWEEN -0.01::DECIMAL(38, 2) AND 0.00::DECIMAL(38, 2)",
    "huge = ANY([0.00::DECIMAL(38, 2)])",
    "huge = ANY([0.00::DECIMAL(38, 2), 1])",
    "huge = ANY([0, 5])",
    "id = ANY([1.0000000001, 0.00::DECIMAL(38, 2)])",
    "id NOT IN [1.0000000001, 0.00::DECIMAL(38, 2)]",
    "id IN [12345678901234567890123456789012.5, 1.0000000001]",
    "huge <> ALL([0.00::DECIMAL(38, 2)])",
    "id = ANY([1.0, 2.5, NULL])",
    "id <> ALL([1.0, 2.5])",
    "id IN [1.0, 2.5, NULL]",
    "NOT id IN [1.0, 2.5, NULL]",
    "huge IN [0.00::DECIMAL(38, 2), NULL]",
    "NOT huge IN [0.00, -0.000001]",
    "NOT huge IN [0.00, 0.0000001, NULL]",
    "huge IN [0.0000001, 5]",
    "list_contains([0.00::DECIMAL(38, 2)], huge)",
    "(huge, 1) = (0.00::DECIMAL(38, 2), 1)",
    "(huge, id) IN (SELECT wide, y FROM {e})",
    "coalesce(huge, 0.00::DECIMAL(38, 2)) = 0",
    "CASE huge WHEN 0.00::DECIMAL(38, 2) THEN TRUE END",
    "nullif(huge, 0.00::DECIMAL(38, 2)) IS NULL",
]
QUERIES = [
    *(f"SELECT id FROM {{s}} s WHERE {each}" for each in CONDITIONS),
    *(f"SELECT id, ({each}) AS v FROM {{s}} s" for each in CONDITIONS),
    *(
        f"SELECT id, y FROM {{s}} s JOIN {{e}} e ON {each}"
        for each in ("huge = wide", "huge <> wide", "huge < wide", "huge IN (wide, 7)", "(huge, 1) = (wide, 1)")
    ),
    "SELECT huge FROM {s} GROUP BY huge HAVING huge IN (SELECT sum(DISTINCT amt) FROM {e} GROUP BY y)",
    *(
        f"SELECT x FROM {{s}} t(id, x) {kind} JOIN (SELECT y, wide FROM {{e}}) u(y, x) USING (x)"
        for kind in ("", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI")
    ),
    *(
        f"SELECT x FROM (SELECT huge AS x FROM {{s}} {kind} SELECT wide FROM {{e}}){where}"
        for kind in ("UNION", "UNION ALL", "INTERSECT", "EXCEPT")
        for where in ("", " WHERE x = 0", " WHERE x IN (0, 0.01)", " WHERE x < 0")
    ),
    *(
        f"SELECT {call} AS v FROM (SELECT huge AS x FROM {{s}} UNION ALL SELECT wide FROM {{e}}) WHERE x < 100"
        for call in ("sum(x)", "count(DISTINCT x)", "max(x)", "min(x)")
    ),
    "SELECT x, count(*) FROM (SELECT huge AS x FROM {s} UNION ALL SELECT wide FROM {e}) GROUP BY x",
    "SELECT x FROM (SELECT huge AS x FROM {s} UNION ALL SELECT wide FROM {e}) ORDER BY x LIMIT 3",
    "SELECT DISTINCT x FROM (SELECT huge AS x FROM {s} UNION ALL SELECT wide FROM {e})",
    "SELECT DISTINCT greatest(huge, 0.00::DECIMAL(38, 2)) AS v FROM {s}",
]


@pytest.fixture(scope="module")
def oracle() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for each in (*LEFT, *RIGHT):
            connection.execute(each)
        yield connection


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder: Path = tmp_path_factory.mktemp("decimals")
    for name, statements in (("one", (*LEFT, *RIGHT)), ("two", RIGHT)):
        with duckdb.connect(str(folder / f"{name}.duckdb")) as connection:
            for each in statements:
                connection.execute(each)
    with dqp.connect({"sources": {each: f"duckdb:///{folder}/{each}.duckdb" for each in ("one", "two")}}) as lab:
        yield lab


@pytest.mark.parametrize("sources", [("one.s", "one.e"), ("one.s", "two.e")], ids=["one source", "two sources"])
@pytest.mark.parametrize("sql", QUERIES)
def test_answers(sql: str, sources: tuple[str, str], lab: Lab, oracle: duckdb.DuckDBPyConnection) -> None:
    expected = sorted(map(str, oracle.execute(sql.format(s="s", e="e")).fetchall()))
    answer = lab.sql(sql.format(s=sources[0], e=sources[1])).arrow()
    assert sorted(str(tuple(each.values())) for each in answer.to_pylist()) == expected


LISTS = [["0.001", "-0.5", None], ["0.0000001"], ["0.00"], ["2", "0.005"], ["1.5", "7"]]


@pytest.mark.parametrize("listed", LISTS, ids=str)
@pytest.mark.parametrize(
    "condition", ["huge {}IN $listed", "id {}IN $listed", "near {}IN $listed", "whole {}IN $listed"]
)
def test_lists(condition: str, listed: list[str | None], lab: Lab, oracle: duckdb.DuckDBPyConnection) -> None:
    values = [None if each is None else Decimal(each) for each in listed]
    written = f"[{', '.join(each or 'NULL' for each in listed)}]"
    tables = (
        "(SELECT id, huge, near, huge::DECIMAL(38, 0) AS whole FROM {s} s JOIN {e} e ON huge >= near OR huge IS NULL)"
    )
    for negation in ("", "NOT "):
        sql = f"SELECT id FROM {tables} WHERE {condition.format(negation)} ORDER BY id"
        expected = oracle.execute(sql.format(s="s", e="e").replace("$listed", written)).fetchall()
        answer = lab.sql(sql.format(s="one.s", e="two.e"), listed=values).arrow()
        assert [tuple(each.values()) for each in answer.to_pylist()] == expected


def test_lists_that_sources_run(lab: Lab) -> None:
    plan = str(lab.sql("SELECT y FROM two.e WHERE amt IN $listed", listed=[Decimal("0.01"), Decimal("3.5")]).explain())
    assert "\"amt\" IN (CAST('0.01' AS" in plan.split("Remote two")[1]
