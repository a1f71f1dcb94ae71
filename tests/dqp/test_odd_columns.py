"""Columns that DuckDB could not tell apart or would take for texts, and indexes that are no keys."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path

import psycopg
import pytest

import dqp
from dai.drivers import driver_for
from dai.errors import DaiError, DataError, StatementError
from dai.streams.cancellation import Cancellation
from dqp.interfaces.lab import Lab

TABLES = """
CREATE TABLE nums (id int PRIMARY KEY, n numeric, wide numeric(50,2));
INSERT INTO nums VALUES (1, 9, 9), (2, 10, 10), (3, 100.50, 100), (4, 'NaN', NULL), (5, NULL, 1), (6, 100.5, 2);
CREATE VIEW totals AS SELECT id % 2 AS part, sum(n) AS total, avg(id) AS mean FROM nums WHERE n <> 'NaN' GROUP BY 1;
CREATE TABLE letters ("A" int PRIMARY KEY, a int, a_1 text, b int);
INSERT INTO letters VALUES (1, 10, 'x', 7), (2, 20, 'y', 8);
CREATE TABLE parent (id int PRIMARY KEY, v int);
CREATE TABLE heir () INHERITS (parent);
INSERT INTO parent VALUES (1, 10), (2, 20);
INSERT INTO heir VALUES (1, 11);
CREATE TABLE filled (id int, v int NOT NULL);
CREATE TABLE loose () INHERITS (filled);
ALTER TABLE loose ALTER v DROP NOT NULL;
INSERT INTO filled VALUES (1, 10), (2, 20);
INSERT INTO loose VALUES (3, NULL);
CREATE TABLE "Same" (id int PRIMARY KEY, big int);
CREATE TABLE same (id int PRIMARY KEY, small text);
CREATE TYPE pair AS (a int, b int);
CREATE TABLE pairs (id int PRIMARY KEY, p pair);
INSERT INTO pairs VALUES (1, row(1, 2)), (2, row(NULL, 1)), (3, row(NULL, NULL)), (4, NULL);
CREATE TABLE exact (n numeric PRIMARY KEY, v int, f float8 UNIQUE NOT NULL, w numeric(60,30) UNIQUE NOT NULL);
INSERT INTO exact VALUES (1, 10, 1, 1), (1.00000000000000000001, 20, 2, 1.000000000000000000000000000001);
INSERT INTO "Same" VALUES (1, 10), (2, 20);
INSERT INTO same VALUES (1, 'one'), (3, 'three');
"""
SAME = (
    "CREATE TABLE `Same` (id int PRIMARY KEY, big int)",
    "CREATE TABLE same (id int PRIMARY KEY, small varchar(9))",
    "INSERT INTO `Same` VALUES (1, 10), (2, 20)",
    "INSERT INTO same VALUES (1, 'one'), (3, 'three')",
)
EXPRESSIONS = (
    "CREATE TABLE t (a int NOT NULL, b varchar(9) NOT NULL)",
    "INSERT INTO t VALUES (1, 'x'), (1, 'y'), (2, 'z')",
    "CREATE UNIQUE INDEX one ON t (a, lower(b))",
    "CREATE UNIQUE INDEX other ON t (lower(b))",
)


@pytest.fixture(scope="module")
def lab(postgres_module_url: str) -> Iterator[Lab]:
    with psycopg.connect(postgres_module_url, autocommit=True) as connection:
        connection.execute(TABLES)
    with dqp.connect({"sources": {"pg": postgres_module_url, "other": postgres_module_url}}) as lab:
        yield lab


def rows(lab: Lab, sql: str) -> list[tuple[object, ...]]:
    return [tuple(each.values()) for each in lab.sql(sql).arrow().to_pylist()]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT max(n) AS m FROM pg.nums WHERE n < 1000", [(100.5,)]),
        ("SELECT max(wide) AS m FROM pg.nums", [(100.0,)]),
        ("SELECT n FROM pg.nums WHERE id < 4", [(9.0,), (10.0,), (100.5,)]),
        ("SELECT id FROM pg.nums WHERE n IS NOT NULL AND id <> 4 ORDER BY n, id", [(1,), (2,), (3,), (6,)]),
        ("SELECT id FROM pg.nums ORDER BY n DESC, id LIMIT 2", [(4,), (3,)]),
        ("SELECT count(*) AS c FROM pg.nums WHERE id <> 4 GROUP BY n ORDER BY c", [(1,), (1,), (1,), (2,)]),
        ("SELECT count(*) AS c FROM pg.nums a JOIN other.nums b ON a.n = b.n WHERE a.id <> 4", [(6,)]),
        ("SELECT count(*) AS c FROM pg.nums a JOIN pg.nums b ON a.n = b.n WHERE a.id <> 4", [(6,)]),
        ("SELECT part, total, mean FROM pg.totals ORDER BY total", [(1, 109.5, 2.0), (0, 110.5, 4.0)]),
        ("SELECT isnan(n) AS nan FROM pg.nums WHERE id = 4", [(True,)]),
        ("SELECT n + 1 AS m, n > 9.5 AS o FROM pg.nums WHERE id = 2", [(11.0, True)]),
        ("SELECT a_1 FROM pg.letters WHERE b = 7", [("x",)]),
        ("SELECT * FROM pg.letters WHERE a_3 = 20", [(2, 20, "y", 8)]),
        ("SELECT a.A_2, b.a_3, a.a_1 FROM pg.letters a JOIN other.letters b USING (A_2) WHERE b.b = 7", [(1, 10, "x")]),
        ("SELECT id FROM pg.pairs WHERE p IS NULL", [(4,)]),
        ("SELECT id FROM pg.pairs WHERE p IS NOT NULL", [(1,), (2,), (3,)]),
        ("SELECT id FROM pg.pairs WHERE NOT (p IS NULL) AND id > 1", [(2,), (3,)]),
        ("SELECT count(p) AS c, count(*) FILTER (WHERE p IS NULL) AS n FROM pg.pairs", [(3, 1)]),
        ("SELECT a.id FROM other.pairs a LEFT JOIN pg.pairs b ON a.id = b.id + 2 WHERE b.p IS NULL", [(1,), (2,)]),
        ("SELECT sum(a_3) AS s FROM pg.letters GROUP BY A_2 ORDER BY A_2", [(10,), (20,)]),
    ],
)
def test_odd_columns(lab: Lab, sql: str, expected: list[tuple[object, ...]]) -> None:
    assert sorted(rows(lab, sql), key=repr) == sorted(expected, key=repr)
    if "ORDER BY" in sql:
        assert rows(lab, sql) == expected


def test_a_name_that_could_mean_two_columns_means_none(lab: Lab) -> None:
    with pytest.raises(StatementError, match=r"'a' may be 'A' or 'a' of pg\.letters"):
        lab.sql('SELECT "a" FROM pg.letters').arrow()


@pytest.mark.parametrize("database", ["postgres_url", "sqlite_url", "duckdb_url"])
def test_an_index_of_expressions_is_no_key(database: str, request: pytest.FixtureRequest) -> None:
    url: str = request.getfixturevalue(database)
    with closing(driver_for(url)) as driver:
        for each in EXPRESSIONS:
            driver.update(each, cancellation=Cancellation())
        (table,) = driver.tables("t")
        assert [each.columns for each in table.indexes if each.unique and {*each.columns} <= {"a", "b"}] == []
    with dqp.connect({"sources": {"one": url}}) as lab:
        sql = "SELECT (SELECT t.b FROM one.t WHERE t.a = o.a) AS b FROM (VALUES ({})) o(a)"
        assert rows(lab, sql.format(2)) == [("z",)]
        with pytest.raises(DataError, match="than one row"):
            rows(lab, sql.format(1))


def test_a_key_of_a_table_with_heirs_is_no_key(lab: Lab) -> None:
    sql = "SELECT (SELECT v FROM pg.parent p WHERE p.id = o.id) AS v FROM (VALUES ({})) o(id)"
    assert rows(lab, sql.format(2)) == [(20,)]
    with pytest.raises(DataError, match="than one row"):
        rows(lab, sql.format(1))


def test_a_column_of_a_table_with_heirs_may_be_null(lab: Lab) -> None:
    assert rows(lab, "SELECT id FROM pg.filled ORDER BY v DESC") == [(2,), (1,), (3,)]
    assert rows(lab, "SELECT v FROM pg.parent WHERE v NOT IN (SELECT v FROM pg.filled)") == []


@pytest.fixture(scope="module")
def cased(lab: Lab, postgres_module_url: str, mariadb_module_url: str) -> Iterator[Lab]:
    with closing(driver_for(mariadb_module_url)) as driver:
        for each in SAME:
            driver.update(each, cancellation=Cancellation())
        driver.update("ANALYZE TABLE `Same`, same", cancellation=Cancellation())
        assert [driver.statistics(each).rows for each in ("Same", "same")] == [2, 2]
    with dqp.connect({"sources": {"pg": postgres_module_url, "maria": mariadb_module_url}}) as made:
        yield made


@pytest.mark.parametrize("source", ["pg", "maria"])
@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM {0}.Same", [(1, 10), (2, 20)]),
        ('SELECT * FROM {0}."same"', [(1, "one"), (3, "three")]),
        ("SELECT b.big, s.small FROM {0}.Same b JOIN {0}.same s USING (id)", [(10, "one")]),
        ("SELECT b.big, s.small FROM {0}_Same b LEFT JOIN {0}_same s USING (id)", [(10, "one"), (20, None)]),
        ("SELECT max(big) AS m FROM {0}.Same WHERE id NOT IN (SELECT id FROM {0}.same)", [(20,)]),
        ("SELECT (SELECT small FROM {0}.same s WHERE s.id = b.id) AS t FROM {0}.Same b", [("one",), (None,)]),
        ("SELECT list(big ORDER BY id)::text AS l FROM {0}.Same TABLESAMPLE (100 PERCENT)", [("[10, 20]",)]),
    ],
)
def test_tables_whose_names_differ_in_case_alone(cased: Lab, source: str, sql: str, expected: object) -> None:
    assert sorted(rows(cased, sql.format(source)), key=repr) == expected


def test_an_ambiguous_name_of_a_table(cased: Lab) -> None:
    with pytest.raises(StatementError, match=r"maria\.SAME may be maria\.[sS]ame or maria\.[sS]ame"):
        cased.sql("FROM maria.SAME").arrow()


MERGED = {
    "lite": (
        "CREATE TABLE k (t timestamp PRIMARY KEY NOT NULL, d decimal_text(9,2) UNIQUE NOT NULL, v int)",
        "INSERT INTO k VALUES ('2024-01-01 00:00:00', '1.5', 10), ('2024-01-02 00:00:00', '2', 30)",
        "INSERT INTO k VALUES ('2024-01-01T00:00:00', '1.50', 20)",
    ),
    "maria": (
        "CREATE TABLE k (w decimal(60,30) PRIMARY KEY, v integer)",
        "INSERT INTO k VALUES (1, 10), (1.000000000000000000000000000001, 20), (2, 30)",
    ),
}


@pytest.mark.parametrize(
    ("source", "column", "value", "single"),
    [
        ("lite", "t", "TIMESTAMP '2024-01-01'", "TIMESTAMP '2024-01-02'"),
        ("lite", "d", "1.5::DECIMAL(9,2)", "2::DECIMAL(9,2)"),
        ("maria", "w", "1::DOUBLE", "2::DOUBLE"),
    ],
)
def test_a_key_whose_values_become_one_is_no_key(
    source: str, column: str, value: str, single: str, sqlite_url: str, mariadb_url: str
) -> None:
    url = {"lite": sqlite_url, "maria": mariadb_url}[source]
    with closing(driver_for(url)) as driver:
        for each in MERGED[source]:
            driver.update(each, cancellation=Cancellation())
    sql = f"SELECT (SELECT k.v FROM {source}.k WHERE k.{column} = o.c) AS v FROM (VALUES ({{}})) o(c)"
    with dqp.connect({"sources": {source: url}}) as lab:
        assert rows(lab, sql.format(single)) == [(30,)]
        with pytest.raises(DataError, match="than one row"):
            rows(lab, sql.format(value))


def test_a_numeric_key_is_no_key(lab: Lab) -> None:
    for column, value in (("n", "1::DOUBLE"), ("w", "1::DOUBLE")):
        with pytest.raises(DataError, match="than one row"):
            rows(lab, f"SELECT (SELECT e.v FROM pg.exact e WHERE e.{column} = o.c) AS v FROM (VALUES ({value})) o(c)")
    assert rows(lab, "SELECT (SELECT e.v FROM pg.exact e WHERE e.f = o.c) AS v FROM (VALUES (2.0)) o(c)") == [(20,)]


LONG = "日本" * 16
"""Bytes of a name that PostgreSQL cuts: what tells two apart stands behind them."""


@pytest.mark.parametrize("source", ["pg", "maria"])
@pytest.mark.parametrize(
    ("one", "other"),
    [(LONG + "c", LONG + "d"), (LONG * 5 + "c", LONG * 5 + "d"), ("👍", "👎"), ("e", "é"), ("a ", "A"), ("%s", "a`b")],
)
def test_names_of_results(source: str, one: str, other: str, postgres_url: str, mariadb_url: str) -> None:
    with closing(driver_for(postgres_url if source == "pg" else mariadb_url)) as driver:
        for sql in ("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1), (2)"):
            driver.update(sql, cancellation=Cancellation())
    with dqp.connect({"sources": {"pg": postgres_url, "maria": mariadb_url}}) as lab:
        first, second = (f'"{each}"' for each in (one, other))
        inner = f"SELECT id, count(*) AS {first}, sum(id) AS {second} FROM {source}.t GROUP BY id"
        table = lab.sql(f"SELECT * FROM ({inner}) q WHERE {first} > 0 AND {second} > 1").arrow()
        assert table.schema.names == ["id", one, other]
        assert [list(map(int, each.values())) for each in table.to_pylist()] == [[2, 1, 2]]


@pytest.fixture(scope="module")
def unreadable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A SQLite table ``d`` in which the row 400 has no date; in the last row of ``both`` neither is."""
    path = tmp_path_factory.mktemp("unreadable") / "lite.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE d (day date, id integer, at datetime)")
        rows: list[tuple[object, ...]] = [(f"2024-01-{1 + at % 28:02}", at, 1_700_000_000 + at) for at in range(1, 402)]
        rows[399] = ("never", 400, 0)
        connection.executemany("INSERT INTO d VALUES (?, ?, ?)", rows)
        connection.execute("CREATE TABLE both (day date, n integer)")
        connection.executemany(
            "INSERT INTO both VALUES (?, ?)", [*(("2024-01-01", at) for at in range(300)), ("x", "x")]
        )
        connection.commit()
    with dqp.connect({"sources": {"lite": f"sqlite:///{path}"}}) as lab:
        yield lab


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT day FROM lite.d WHERE id = 1", [(date(2024, 1, 2),)]),
        ("SELECT id, day FROM lite.d WHERE id = 1", [(1, date(2024, 1, 2))]),
        ("SELECT max(day) FROM lite.d WHERE id IN (1, 401)", [(date(2024, 1, 10),)]),
        ("SELECT id FROM lite.d WHERE day > DATE '2024-01-05' AND id IN (1, 401)", [(401,)]),
        ("SELECT year(day) FROM lite.d WHERE id <> 400 AND id < 2", [(2024,)]),
        ("SELECT count(*) FROM lite.d a JOIN lite.d b ON a.day = b.day WHERE a.id = 1 AND b.id = 1", [(1,)]),
        ('SELECT "at" FROM lite.d WHERE id = 1', [(1_700_000_001,)]),
        ('SELECT to_timestamp("at")::DATE FROM lite.d WHERE id = 1', [(date(2023, 11, 14),)]),
    ],
)
def test_a_row_that_the_condition_leaves_out_need_not_be_readable(
    unreadable: Lab, sql: str, rows: list[tuple[object, ...]]
) -> None:
    table = unreadable.sql(sql).arrow()
    assert list(zip(*(column.to_pylist() for column in table.columns), strict=True)) == rows


def test_one_day_that_cannot_be_read_makes_no_texts_of_the_others(tmp_path: Path) -> None:
    """It is among the first rows, by which the type of a column is chosen."""
    path = tmp_path / "lite.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE d (id integer PRIMARY KEY, day date)")
        connection.executemany("INSERT INTO d VALUES (?, ?)", [(1, "2024-01-01"), (2, "rubbish"), (3, None)])
        connection.commit()
    with dqp.connect({"sources": {"lite": f"sqlite:///{path}"}}) as lab:
        for _ in range(2):
            table = lab.sql("SELECT day FROM lite.d WHERE id = 1 AND day > DATE '2020-01-01'").arrow()
            assert table.column(0).to_pylist() == [date(2024, 1, 1)]
            assert lab.sql("SELECT day FROM lite.d WHERE id = 1").arrow().column(0).to_pylist() == [date(2024, 1, 1)]


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("SELECT n FROM f.nulls", "Known: a, b."),
        ("SELECT n FROM semi", 'semi is a keyword; write a table of that name "semi".'),
        ("SELECT semi.n FROM f.semi", 'semi is a keyword; write a table of that name "semi".'),
        ("SELECT 1)", "A ) has no (."),
        ("SELECT a FROM f.nulls LIMIT LIMIT", None),
        ("SELECT load_extension('x')", None),
    ],
)
def test_hints_where_tables_are_called_as_keywords(tmp_path: Path, sql: str, hint: str | None) -> None:
    for name, text in {"nulls": "a,b\n1,2\n", "SELECT": "n\n1\n", "semi": "n\n1\n"}.items():
        (tmp_path / f"{name}.csv").write_text(text)
    with dqp.connect({"sources": {"f": str(tmp_path)}}) as lab, pytest.raises(StatementError) as caught:
        lab.sql(sql).arrow()
    assert caught.value.hint == hint


def test_an_error_advises_no_change_of_a_setting(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_text("n\n0\n1\n")
    with dqp.connect({"sources": {"f": str(path)}}) as lab, pytest.raises(DaiError, match="Division by zero") as caught:
        lab.sql("SELECT list_sum([n]) // n FROM f.n").arrow()
    assert "SET " not in str(caught.value)


def test_a_column_of_dates_stays_one_whatever_was_asked_before(tmp_path: Path) -> None:
    path = tmp_path / "lite.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE d (id integer PRIMARY KEY, day date, at timestamp)")
        connection.executemany(
            "INSERT INTO d VALUES (?, ?, ?)",
            [(1, "2024-01-01", "2024-01-01 10:00:00"), (2, "rubbish", 1_700_000_000), (3, None, None)],
        )
        connection.commit()
    with dqp.connect({"sources": {"lite": f"sqlite:///{path}"}}) as lab:
        for _ in range(2):
            for sql in ("SELECT day FROM lite.d", 'SELECT id, "at" FROM lite.d'):
                with pytest.raises(DataError, match=r"lite: (the column day of d, declared date,|Column 'at') holds"):
                    lab.sql(sql).arrow()
            assert lab.sql("SELECT day FROM lite.d WHERE id = 1").arrow().column(0).to_pylist() == [date(2024, 1, 1)]
            texts = lab.sql("SELECT day::VARCHAR FROM lite.d ORDER BY id").rows()
            assert texts == [("2024-01-01",), ("rubbish",), (None,)]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT day FROM lite.d WHERE id >= 400",
        "SELECT count(*) FROM lite.d WHERE day > DATE '2024-01-05'",
        "SELECT id FROM lite.d WHERE day > DATE '2024-01-05' AND id >= 400",
        "SELECT count(*) FROM lite.both WHERE day < DATE '2024-01-05' AND n < 5",
    ],
)
def test_a_row_that_is_looked_at_must_be_readable(unreadable: Lab, sql: str) -> None:
    with pytest.raises(DataError):
        unreadable.sql(sql).arrow()


@pytest.mark.parametrize("day", ["2020-13-45", "2023-02-29", "2020-04-31", "2020-01-00", "0000-00-00", "-2020-01-01"])
@pytest.mark.parametrize("pushdown", ["all", "cost", "none"])
def test_a_day_that_does_not_exist_is_an_error_wherever_it_is_looked_at(
    tmp_path: Path, pushdown: str, day: str
) -> None:
    """Whether it is read or SQLite computes with it."""
    path = tmp_path / "lite.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE d (id integer PRIMARY KEY, day date)")
        days = ["2020-01-01", "2020-02-29", "0000-12-31", "9999-12-31", None, day]
        connection.executemany("INSERT INTO d (day) VALUES (?)", [(each,) for each in days])
        connection.commit()
    with dqp.connect({"sources": {"lite": f"sqlite:///{path}"}, "pushdown": pushdown}) as lab:
        for sql, expected in (
            ("SELECT id, day FROM lite.d {}", 5),
            ("SELECT id FROM lite.d {} AND day > DATE '1000-01-05'", 3),
            ("SELECT day, count(*) AS n FROM lite.d {} GROUP BY day", 5),
            ("SELECT month(day) AS m, count(*) AS n FROM lite.d {} GROUP BY m", 4),
            ("SELECT max(day) AS m FROM lite.d {}", 1),
            ("SELECT DISTINCT day FROM lite.d {}", 5),
            ("SELECT a.id FROM (SELECT * FROM lite.d {}) a JOIN lite.d b ON a.day = b.day AND b.id < 6", 4),
        ):
            with pytest.raises(DataError, match=r"(?i)\bcolumn.* '?day"):
                lab.sql(sql.format("WHERE id > 0")).arrow()
            assert lab.sql(sql.format("WHERE id < 6")).arrow().num_rows == expected, sql
