"""Long lists of whole numbers, in every dialect."""

import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest
from sqlglot import exp

import dqp
from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dqp.algebra.constants import literal
from dqp.algebra.keys import KeyTable, in_list, in_numbers, in_table
from dqp.algebra.operators import Filter, Scan
from dqp.sql import dialects

TYPES = {"smallint": 2, "integer": -3, "bigint": 10**12}
"""With what the row number is multiplied."""
WANTED = (0, 3, 4, 99, 1_000)


@pytest.mark.parametrize("part", [0.1, 0.9])
@pytest.mark.parametrize("dialect", ["postgresql", "mariadb", "sqlite", "duckdb"])
def test_keys(dialect: str, part: float, postgres_module_url: str, mariadb_module_url: str, tmp_path: Path) -> None:
    url = {
        "postgresql": postgres_module_url,
        "mariadb": mariadb_module_url,
        "sqlite": f"sqlite:///{tmp_path / 'x.sqlite'}",
        "duckdb": f"duckdb:///{tmp_path / 'x.duckdb'}",
    }[dialect]
    driver = driver_for(url)
    columns = ", ".join(f"{name[0]} {name}" for name in TYPES)
    rows = ", ".join(f"({', '.join(str(at * each) for each in TYPES.values())})" for at in range(100))
    for sql in ("DROP TABLE IF EXISTS numbers", f"CREATE TABLE numbers ({columns})"):
        driver.update(sql, cancellation=Cancellation())
    driver.update(f"INSERT INTO numbers VALUES {rows}, (NULL, NULL, NULL)", cancellation=Cancellation())
    driver.close()
    with dqp.connect({"sources": {"there": url}}) as lab:
        table = lab.coordinator.catalog.table("there", "numbers")
        source = lab.coordinator.catalog.sources["there"]
        for name, factor in TYPES.items():
            keys = in_numbers("k", sorted(at * factor for at in WANTED), part)
            statement = dialects.statement(Filter(Scan(table, (("k", name[0]),)), keys.copy()), source.dialect)
            actual = source.query(statement.sql, cancellation=Cancellation()).table()
            assert sorted(actual.column(0).to_pylist()) == sorted(at * factor for at in WANTED if at < 100)


@pytest.mark.parametrize(
    ("column", "part", "way"),
    [("k", 0.05, "SEARCH"), ("k", 0.1, "SCAN"), ("i", 0.1, "SEARCH"), ("t", 0.05, "SEARCH"), ("t", 0.1, "SCAN")],
)
@pytest.mark.parametrize("form", ["list", "numbers", "table"])
def test_sqlite_reads_a_table_of_which_keys_keep_much(
    form: str, column: str, part: float, way: str, tmp_path: Path
) -> None:
    """Each key of an index that is not unique finds many rows, which SQLite does not know without ANALYZE."""
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.execute("CREATE TABLE n (i INTEGER PRIMARY KEY, k INTEGER, t TEXT, more TEXT)")
        for name in "kt":
            database.execute(f"CREATE INDEX by_{name} ON n ({name})")
        database.executemany("INSERT INTO n VALUES (?, ?, ?, '')", [(at, at % 9, f"{at % 9}") for at in range(90)])
        database.commit()
        with dqp.connect({"sources": {"there": f"sqlite:///{tmp_path / 'x.sqlite'}"}}) as lab:
            table = lab.coordinator.catalog.table("there", "n")
            source = lab.coordinator.catalog.sources["there"]
            texts = column == "t"
            if form == "numbers" and texts:
                return
            if form == "list":
                keys: exp.Expression = in_list("c", map(literal, "35" if texts else (3, 5)), part)
            elif form == "numbers":
                keys = in_numbers("c", (3, 5), part)
            else:
                database.execute("CREATE TEMP TABLE k1s (k1)")
                values = pa.table({"k1": pa.array([*"35"] if texts else [3, 5])})
                keys = in_table(["c"], KeyTable("k1s", values), part)
            items = (("c", column), ("m", "more"))
            sql = dialects.statement(Filter(Scan(table, items), keys), source.dialect).sql
            plan = [row[-1] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}")]
            assert any(each.startswith((f"{way} t1", f"{way} n")) for each in plan), (sql, plan)
            if form != "table":
                answer = source.query(sql, cancellation=Cancellation()).table().column(0).to_pylist()
                assert sorted(map(str, answer)) == (["3", "5"] if column == "i" else ["3"] * 10 + ["5"] * 10)
    database.close()


@pytest.mark.parametrize(
    ("condition", "way"),
    [
        ("a >= 3 AND a < 90", "SCAN"),
        ("a >= 3 AND a < 6", "SEARCH"),
        ("a > -5", "SCAN"),
        ("b >= 2", "SCAN"),
        ("b = 2 AND a = 3", "SEARCH"),
        ("i >= 2", "SEARCH"),
    ],
)
def test_sqlite_reads_a_table_of_which_a_range_keeps_much(condition: str, way: str, tmp_path: Path) -> None:
    """By the index each row would be looked up elsewhere; with ANALYZE it would even look for ``b`` behind each ``a``
    (a skip-scan). Rows stand in the order of ``i``."""
    with sqlite3.connect(tmp_path / "x.sqlite") as database:
        database.execute("CREATE TABLE one (i INTEGER PRIMARY KEY, v INTEGER)")
        database.execute("CREATE TABLE two (a INTEGER NOT NULL, b INTEGER NOT NULL, v INTEGER, PRIMARY KEY (a, b))")
        database.executemany("INSERT INTO one VALUES (?, 0)", [(at,) for at in range(100)])
        database.executemany("INSERT INTO two VALUES (?, ?, 0)", [(at // 50, at % 50) for at in range(5000)])
        database.execute("ANALYZE")
    database.close()
    with (
        dqp.connect({"sources": {"there": f"sqlite:///{tmp_path / 'x.sqlite'}"}}) as lab,
        sqlite3.connect(tmp_path / "x.sqlite") as database,
    ):
        table = "one" if condition.startswith("i") else "two"
        query = lab.sql(f"SELECT v FROM there.{table} WHERE {condition}")
        wanted = database.execute(f"SELECT count(*) FROM {table} WHERE {condition}").fetchone()
        assert query.arrow().num_rows == wanted[0]
        (sql,) = [line.strip() for line in str(query.explain()).splitlines() if "SELECT t1" in line]
        plan = [row[-1] for row in database.execute(f"EXPLAIN QUERY PLAN {sql}")]
        assert [each.startswith(f"{way} t1") for each in plan] == [True], (sql, plan)
    database.close()
