"""Comparisons with ANY and ALL of a list: the answer of DuckDB, with NOT before them and behind outer joins too."""

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import dqp
from dqp.interfaces.lab import Lab


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("quantified") / "x.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t AS SELECT i::INT AS id, 'a' || i AS s FROM range(5) r(i)")
        connection.execute("INSERT INTO t VALUES (NULL, NULL)")
    return path


@pytest.fixture(scope="module")
def oracle(place: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(str(place), config={"enable_external_access": False}) as connection:
        yield connection


@pytest.fixture(scope="module")
def lab(place: Path) -> Iterator[Lab]:
    with dqp.connect({"sources": {"duck": f"duckdb:///{place}"}}) as lab:
        yield lab


JOINED = "duck.t p LEFT JOIN (FROM duck.t WHERE id > 2) q USING (s)"
CONDITIONS = [
    f"{negation}id {operator} {quantifier}({values})"
    for negation in ("", "NOT ")
    for operator in ("=", "<>", "<", ">=")
    for quantifier in ("ANY", "ALL")
    for values in ("[1, 2]", "[1, NULL]", "[]", "[id, 2]", "(SELECT 1)")
]


@pytest.mark.parametrize("condition", [*CONDITIONS, "NULL = ANY([id, 2])", "NOT NULL > ANY([1, 2])", "NULL <= ANY([])"])
def test_a_condition(condition: str, lab: Lab, oracle: duckdb.DuckDBPyConnection) -> None:
    for sql in (
        f"SELECT id FROM duck.t WHERE {condition} ORDER BY id",
        f"SELECT id, {condition} AS v FROM duck.t ORDER BY id",
        f"SELECT p.s, q.id FROM {JOINED} WHERE {condition.replace('id', 'q.id')} ORDER BY ALL",
    ):
        expected = oracle.execute(sql.replace("duck.t", "t")).fetchall()
        assert [tuple(each.values()) for each in lab.sql(sql).arrow().to_pylist()] == expected, sql
