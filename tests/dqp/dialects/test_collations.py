"""Columns of every collation compare by their bytes, in the source or not at all there."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import dqp
from dai.drivers import driver_for
from dai.drivers.duckdb import syntax as duckdb
from dai.drivers.sql.collations import declared
from dai.drivers.sqlite import syntax as sqlite
from dai.streams.cancellation import Cancellation
from dqp.algebra.operators import Remote
from dqp.sql import dialects
from tests.servers.mariadb import MySQLServer

TEXTS = ("e", "é", "E", "e ", "ss", "ß", "", " ")
MARIADB = {
    "c_ci": "CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
    "c_bin": "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "c_exact": "CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin",
    "c_latin": "CHARACTER SET latin1 COLLATE latin1_swedish_ci",
    "c_three": "CHARACTER SET utf8mb3 COLLATE utf8mb3_nopad_bin",
}
MYSQL = {
    "c_ci": "CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_ai_ci",
    "c_padded": "CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
    "c_exact": "CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin",
    "c_latin": "CHARACTER SET latin1 COLLATE latin1_swedish_ci",
}
POSTGRESQL = {"c_plain": "", "c_folded": "COLLATE folded"}
DUCKDB = {"c_plain": "", "c_folded": "COLLATE nocase"}
SQLITE = {"c_plain": "", "c_folded": "COLLATE NOCASE", "c_trimmed": "COLLATE RTRIM"}


def made(url: str, before: Sequence[str], columns: dict[str, str], type: str) -> dict[str, str | None]:
    """A table of the texts, each in all columns; the collations that the driver tells."""
    driver = driver_for(url)
    try:
        listed = ", ".join(f"{name} {type} {rest}" for name, rest in columns.items())
        for sql in (*before, "DROP TABLE IF EXISTS collated", f"CREATE TABLE collated (id integer, {listed})"):
            driver.update(sql, cancellation=Cancellation())
        for at, text in enumerate(TEXTS):
            values = ", ".join([f"'{text}'"] * len(columns))
            driver.update(f"INSERT INTO collated VALUES ({at}, {values})", cancellation=Cancellation())
        table = next(each for each in driver.tables() if each.name == "collated")
        return {each.name: each.collation for each in table.columns if each.name != "id"}
    finally:
        driver.close()


def agrees(url: str, column: str) -> str:
    """Asserts that what compares a column compares bytes; what EXPLAIN says of that."""
    with dqp.connect({"sources": {"there": url}}) as lab:

        def ids(condition: str) -> list[int]:
            rows = lab.sql(f"SELECT id FROM there.collated WHERE {condition} ORDER BY id").arrow()
            return list(rows.column(0).to_pylist())

        for at, text in enumerate(TEXTS):
            assert ids(f"{column} = '{text}'") == [at]
            assert ids(f"{column} IN ('{text}', 'x')") == [at]
            assert ids(f"{column} <= '{text}'") == [
                each for each, other in enumerate(TEXTS) if other.encode() <= text.encode()
            ]
            assert ids(f"{column} LIKE '{text}'") == [at]
        distinct = lab.sql(f"SELECT count(DISTINCT {column}) FROM there.collated").arrow()
        assert distinct.column(0).to_pylist() == [len(TEXTS)]
        groups = f"SELECT {column}, count(*) FROM there.collated GROUP BY 1 ORDER BY 1"
        assert lab.sql(groups).arrow().column(0).to_pylist() == sorted(TEXTS, key=str.encode)
        joined = f"SELECT count(*) FROM there.collated a JOIN there.collated b ON a.{column} = b.{column}"
        assert lab.sql(joined).arrow().column(0).to_pylist() == [len(TEXTS)]
        first = f"SELECT {column} FROM there.collated WHERE id = 0"
        semi = f"SELECT count(*) FROM there.collated a WHERE {column} IN ({first})"
        assert lab.sql(semi).arrow().column(0).to_pylist() == [1]
        others = f"SELECT 1 FROM there.collated b WHERE b.{column} = a.{column} AND b.id"
        anti = f"SELECT a.id FROM there.collated a WHERE NOT EXISTS ({others} IN (1, 3)) ORDER BY a.id"
        assert lab.sql(anti).arrow().column(0).to_pylist() == [0, 2, *range(4, len(TEXTS))]
        nobody = f"SELECT count(*) FROM there.collated a WHERE NOT EXISTS ({others} > 99)"
        assert lab.sql(nobody).arrow().column(0).to_pylist() == [len(TEXTS)]
        return str(lab.explain(groups))


def mixes(url: str, column: str) -> None:
    """Asserts that a column that compares bytes is looked for among values of one that does not, and the other way
    round, by the bytes."""
    with dqp.connect({"sources": {"there": url}}) as lab:
        for one, other in (("c_exact", column), (column, "c_exact")):
            for at in range(len(TEXTS)):
                rows = lab.sql(
                    f"SELECT id FROM there.collated WHERE {one} NOT IN (SELECT {other} FROM there.collated "
                    f"WHERE id = {at} AND {other} IS NOT NULL) ORDER BY id"
                ).arrow()
                assert rows.column(0).to_pylist() == [each for each in range(len(TEXTS)) if each != at]


@pytest.mark.parametrize("column", MARIADB)
def test_mariadb(mariadb_module_url: str, column: str) -> None:
    collations = made(mariadb_module_url, (), MARIADB, "varchar(10)")
    assert collations == {name: rest.rpartition(" ")[2] for name, rest in MARIADB.items()}
    explained = agrees(mariadb_module_url, column)
    assert ("COLLATE" in explained) == (column != "c_exact")
    assert ("CONVERT" in explained) == (column in ("c_latin", "c_three"))


if MySQLServer.found():

    @pytest.mark.parametrize("column", MYSQL)
    def test_mysql(mysql_module_url: str, column: str) -> None:
        collations = made(mysql_module_url, (), MYSQL, "varchar(10)")
        assert collations == {name: rest.rpartition(" ")[2] for name, rest in MYSQL.items()}
        explained = agrees(mysql_module_url, column)
        assert ("COLLATE" in explained) == (column != "c_exact")

    @pytest.mark.parametrize("column", [each for each in MYSQL if each != "c_exact"])
    def test_mysql_mixes_collations(mysql_module_url: str, column: str) -> None:
        made(mysql_module_url, (), MYSQL, "varchar(10)")
        mixes(mysql_module_url, column)


@pytest.mark.parametrize("column", [each for each in MARIADB if each != "c_exact"])
def test_mariadb_mixes_collations(mariadb_module_url: str, column: str) -> None:
    made(mariadb_module_url, (), MARIADB, "varchar(10)")
    mixes(mariadb_module_url, column)


@pytest.mark.parametrize("column", MARIADB)
def test_mariadb_keeps_texts_of_a_derived_table(mariadb_module_url: str, column: str) -> None:
    """MariaDB 11 makes the rows of such a table unique, by its columns' collations, where IN looks into it."""
    made(mariadb_module_url, (), MARIADB, "varchar(10)")
    every = range(len(TEXTS))
    groups = f"SELECT id, max({column}) AS m FROM there.collated GROUP BY id"
    alike = f"SELECT id - id AS zero, {column} AS m FROM there.collated LIMIT 100"
    with dqp.connect({"sources": {"there": mariadb_module_url}}) as lab:

        def ids(condition: str) -> list[int]:
            rows = lab.sql(f"SELECT id FROM there.collated a WHERE {condition} ORDER BY id").arrow()
            return list(rows.column(0).to_pylist())

        for at in every:
            for negated in ("", "NOT "):
                expected = [each for each in every if (each <= at) != bool(negated)]
                limited = f"SELECT {column} FROM there.collated WHERE id <= {at} ORDER BY id LIMIT 100"
                assert ids(f"{column} {negated}IN ({limited})") == expected
                assert ids(f"a.id < 0 OR {column} {negated}IN ({limited})") == expected
                assert (
                    ids(f"{negated}EXISTS (SELECT 1 FROM ({groups}) b WHERE m = {column} AND id <= {at})") == expected
                )
            assert ids(f"id IN (SELECT zero FROM ({alike}) WHERE m = '{TEXTS[at]}')") == [0]


@pytest.mark.parametrize("negated", ["", "NOT "])
def test_mariadb_keeps_no_results_of_a_subquery(mariadb_module_url: str, negated: str) -> None:
    """A correlated subquery's results would be kept by a text in the collation of its column."""
    made(mariadb_module_url, (), MARIADB, "varchar(10)")
    same = "SELECT 1 FROM there.collated b WHERE b.c_ci = a.c_ci"
    sql = f"SELECT a.id FROM there.collated a WHERE {negated}EXISTS ({same})"
    with dqp.connect({"sources": {"there": mariadb_module_url}}) as lab:
        tree = lab.coordinator.plan(sql).tree
        assert isinstance(tree, Remote)
        sent = dialects.statement(tree.tree, "mariadb").sql
        assert f"{negated}IN (SELECT" in sent
        assert lab.sql(sql).arrow().num_rows == (0 if negated else len(TEXTS))


@pytest.mark.parametrize("column", POSTGRESQL)
def test_postgresql(postgres_module_url: str, column: str) -> None:
    before = (
        "CREATE COLLATION IF NOT EXISTS folded (provider = icu, locale = 'und-u-ks-level1', deterministic = false)",
    )
    collations = made(postgres_module_url, before, POSTGRESQL, "text")
    assert collations == {"c_plain": None, "c_folded": "folded"}
    assert ("GROUP BY" in agrees(postgres_module_url, column)) == (column == "c_plain")


@pytest.mark.parametrize("column", DUCKDB)
def test_duckdb(tmp_path: Path, column: str) -> None:
    url = f"duckdb:///{tmp_path / 'x.duckdb'}"
    assert made(url, (), DUCKDB, "varchar") == {"c_plain": None, "c_folded": "nocase"}
    assert ("GROUP BY" in agrees(url, column)) == (column == "c_plain")


@pytest.mark.parametrize("column", SQLITE)
def test_sqlite(tmp_path: Path, column: str) -> None:
    url = f"sqlite:///{tmp_path / 'x.sqlite'}"
    assert made(url, (), SQLITE, "text") == {"c_plain": None, "c_folded": "NOCASE", "c_trimmed": "RTRIM"}
    agrees(url, column)


def test_declarations() -> None:
    sql = """CREATE TABLE t (a text COLLATE NOCASE, "b ""x"", y" varchar(10)
        CHECK ("b ""x"", y" <> 'COLLATE z, q' COLLATE RTRIM) /* COLLATE c */ NOT NULL, [c] text -- COLLATE d
        DEFAULT (1, 2) collate "own", d decimal(10, 2), PRIMARY KEY (a COLLATE BINARY, d))"""
    assert declared(sql, sqlite.SYNTAX) == {"a": "NOCASE", "c": "own"}
    assert declared('CREATE TABLE t ("x ""y""" text COLLATE q)', duckdb.SYNTAX) == {'x "y"': "q"}
    assert declared("CREATE TABLE t (a int)", duckdb.SYNTAX) == {}
