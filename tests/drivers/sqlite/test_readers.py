"""Large results of SQLite, which processes read: the same answers and errors as from the driver's connection."""

import datetime
from decimal import Decimal

import pyarrow as pa
import pytest

from dai.drivers.sqlite import readers
from dai.drivers.sqlite.driver import SQLite
from dai.errors import CancelledError, DataError, StatementError
from dai.streams.cancellation import Cancellation
from tests.drivers.sqlite.conftest import ROWS, without
from tests.drivers.statements import table, update
from tests.processes import until


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t",
        "SELECT id AS a, id AS a, substr(s, 2), i * 1.5, NULLIF(r, r) FROM t WHERE id > 100",
        "WITH q AS (SELECT id, n FROM t) SELECT q.id, q.n, t.s FROM q JOIN t USING (id)",
        "SELECT early, late, n FROM t WHERE id > 100",
        "SELECT i, s FROM t UNION ALL SELECT i, s FROM t WHERE id < 10 -- to the end of the line",
    ],
)
def test_the_same_answer(driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    actual = table(driver, sql)
    assert len(asked) == 1
    expected = without(driver, sql, monkeypatch)
    assert len(asked) == 1
    assert actual.schema.equals(expected.schema, check_metadata=True)
    assert sorted(map(repr, actual.to_pylist())) == sorted(map(repr, expected.to_pylist()))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, s FROM t ORDER BY id DESC",
        "SELECT s FROM t ORDER BY s",
        "SELECT i, id FROM t ORDER BY i DESC NULLS LAST, id",
        "SELECT id FROM t ORDER BY substr(s, 4), 1 LIMIT 15000 OFFSET 1000",
        "SELECT i, s FROM t WHERE id > 100 UNION ALL SELECT i, s FROM t WHERE id < 10 ORDER BY 2 -- to the end",
        "WITH q AS (SELECT i, id FROM t ORDER BY id) SELECT q.id, t.s FROM q JOIN t USING (id) ORDER BY q.i, t.s",
        "SELECT id, count(*) AS n FROM t GROUP BY id ORDER BY id DESC",
        "SELECT DISTINCT i, id FROM t ORDER BY id % 5, id DESC",
        "SELECT id, row_number() OVER (ORDER BY s) AS n FROM t ORDER BY n DESC",
        "SELECT id FROM (SELECT id, s FROM t ORDER BY s) ORDER BY 1 + id",
        "VALUES (3, 'c') UNION ALL SELECT id, s FROM t ORDER BY 2 DESC, 1",
    ],
)
def test_the_order_of_the_query(driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch, sql: str) -> None:
    actual = table(driver, sql)
    assert len(asked) == 1
    assert actual.equals(without(driver, sql, monkeypatch))


def test_values(driver: SQLite, asked: list[str]) -> None:
    row = table(driver, "SELECT * FROM t").slice(ROWS - 1, 1).to_pylist()[0]
    assert asked
    assert row == {
        "id": ROWS,
        "i": ROWS % 7,
        "r": ROWS / 7,
        "n": None,
        "s": f"é{ROWS}",
        "late": ROWS / 3,
        "early": None,
        "d": datetime.date(1970, 1, 1) + datetime.timedelta(ROWS),
        "m": datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=ROWS),
        "k": datetime.time(ROWS // 3600, ROWS // 60 % 60, ROWS % 60),
        "b": False,
        "x": ROWS,
    }
    assert table(driver, "SELECT n FROM t")["n"][ROWS - 2].as_py() == Decimal("9.99")


def test_parameters_and_blocks(driver: SQLite, asked: list[str]) -> None:
    sql, parameters = "SELECT id, ? AS v FROM t WHERE id > ? AND s <> ?", (None, 2, "é9")
    with driver.query(sql, parameters, cancellation=Cancellation(), batch_rows=7_000) as stream:
        batches = list(stream)
    assert asked
    assert [each.num_rows for each in batches] == [7_000, 7_000, ROWS - 3 - 14_000]


@pytest.mark.parametrize(
    ("column", "value"),
    [
        *(("i", each) for each in ("'a text'", "1.5", "x'00'")),
        *(("r", each) for each in ("'a text'", "x'00'")),
        *(("n", each) for each in ("1.234", "'a text'")),
        *(("d", each) for each in ("'yesterday'", "5")),
        *(("x", each) for each in ("9.5", "'a text'")),
        ("s", "x'c3a9'"),
        ("m", "'a text'"),
        ("b", "2"),
    ],
)
@pytest.mark.parametrize("row", [9_000, ROWS])
def test_a_late_value_that_does_not_fit_is_an_error(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch, column: str, value: str, row: int
) -> None:
    update(driver, f"UPDATE t SET {column} = {value} WHERE id = {row}")
    sql = f'SELECT "{column}" FROM t'
    with pytest.raises(DataError) as expected:
        without(driver, sql, monkeypatch)
    with pytest.raises(DataError) as actual:
        table(driver, sql)
    assert asked
    assert actual.value.extra["column"] == expected.value.extra["column"] == column
    assert "AS TEXT)" in str(actual.value.hint)
    assert f'"{column}"' in str(actual.value.hint)


TEXTS = 40
"""More than one whole number has states of."""


@pytest.fixture
def texts(driver: SQLite) -> SQLite:
    """With a table of texts that has a collation of its own; some are empty or NULL. ``c35`` takes any value."""
    columns = [f"c{each} {'' if each == 35 else 'text COLLATE NOCASE'}" for each in range(TEXTS)]
    values = [f"CASE (i + {each}) % 9 WHEN 0 THEN '' WHEN 1 THEN NULL ELSE 't' || i END" for each in range(TEXTS)]
    update(driver, f"CREATE TABLE texts ({', '.join(columns)})")
    update(driver, f"INSERT INTO texts SELECT {', '.join(values)} FROM (SELECT id AS i FROM t)")
    return driver


def test_empty_texts(texts: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    actual = table(texts, "SELECT * FROM texts")
    assert asked
    assert actual.equals(without(texts, "SELECT * FROM texts", monkeypatch))


def test_texts_that_come_together_are_one_batch(texts: SQLite) -> None:
    def largest() -> int:
        with texts.query("SELECT c0, c1 FROM texts", cancellation=Cancellation()) as stream:
            return max(int(each.num_rows) for each in stream)

    until(lambda: largest() > readers._TEXT_ROWS)


@pytest.mark.parametrize("value", ["7", "1.5", "x'74'", "x''"])
def test_a_value_among_many_texts_that_is_none(texts: SQLite, asked: list[str], value: str) -> None:
    update(texts, f"UPDATE texts SET c0 = '', c34 = NULL, c35 = {value}, c36 = '' WHERE rowid >= {ROWS - 1}")
    with pytest.raises(DataError, match=f"Column 'c35', row {ROWS - 1:,}: a value is not a string"):
        table(texts, "SELECT * FROM texts")
    assert asked


BY_TURNS = (
    "SELECT (SELECT {} FROM t u WHERE u.id = t.id AND t.id > {} UNION ALL SELECT {} FROM t u WHERE u.id = t.id LIMIT 1)"
    " AS q FROM t"
)
"""A subquery, which has the affinity of its last SELECT."""


@pytest.mark.parametrize("number", ["i", "r"])
def test_a_number_that_sqlite_would_compare_as_a_text(driver: SQLite, asked: list[str], number: str) -> None:
    with pytest.raises(DataError, match=r"Column 'q', row 8,99.: a value is not a string"):
        table(driver, BY_TURNS.format(number, 8990, "s"))
    assert asked


def test_a_text_that_sqlite_would_compare_as_a_number(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    update(driver, "UPDATE t SET s = '12'")
    sql = BY_TURNS.format("s", 0, "i")
    assert table(driver, sql).equals(without(driver, sql, monkeypatch))
    assert asked


def test_rows_do_not_wait_for_others_that_do_not_come(driver: SQLite, asked: list[str]) -> None:
    cancellation = Cancellation()
    slow = "SELECT id, s FROM t UNION ALL SELECT a.id, a.s FROM t a, t b WHERE a.id + b.id < 0"  # 400 million pairs
    read = 0
    with driver.query(slow, cancellation=cancellation) as stream:
        while read < ROWS - 2 * readers._TEXT_ROWS:  # what is not a whole portion of ADBC is not there yet
            read += next(stream).num_rows
        cancellation.cancel()
        with pytest.raises(CancelledError):
            list(stream)
    assert asked


def test_text_that_is_not_utf8(driver: SQLite, asked: list[str]) -> None:
    update(driver, f"UPDATE t SET s = CAST(x'ff' AS TEXT) WHERE id = {ROWS}")
    with pytest.raises(DataError, match="'s' holds text that is not UTF-8"):
        table(driver, "SELECT s FROM t")
    assert asked


def test_an_integer_that_a_float_cannot_hold_is_not_rounded(driver: SQLite, asked: list[str]) -> None:
    update(driver, "CREATE TABLE u (v)")
    update(driver, f"INSERT INTO u SELECT CASE id WHEN {ROWS} THEN {(1 << 60) + 1} ELSE id / 2.0 END FROM t")
    with pytest.raises(DataError) as raised:
        table(driver, "SELECT v FROM u")
    assert asked
    assert raised.value.extra["column"] == "v"
    update(driver, f"UPDATE u SET v = 1e300 WHERE v > {ROWS}")
    assert table(driver, "SELECT v FROM u")["v"][ROWS - 1].as_py() == 1e300


@pytest.mark.parametrize(
    "value",
    [
        "round(r, 2)",
        "sum(r) OVER (PARTITION BY id)",
        "avg(r) OVER (PARTITION BY id)",
        "r || ''",
        "CAST(r AS varchar(30))",
        "CAST(CAST(r AS blob) AS integer)",
        "CAST(s AS real)",
        "lower(r)",
        "substr(i * 0.1, 1, 9)",
        "replace(coalesce(NULLIF(r, r), i / 3.0), '.', ',')",
        "r LIKE '%3'",
        "trim(1.0 / 3)",
        "substr(abs(r), 1, 9)",
        "length(max(r, 0))",
        "lower(NULLIF(r, 0))",
        "lower(max(r) OVER (ORDER BY id))",
        "(SELECT length(x) FROM (SELECT u.r * 2 AS x FROM t AS u ORDER BY 1 LIMIT 5) LIMIT 1)",
        "(SELECT substr(max(u.r), 1, 9) FROM t AS u WHERE u.id = w.id)",
        "printf('%f', r)",
        "date('2024-02-30')",
        "random()",
        "printf('%.*c', abs(random()) % 20, 'x')",
        "json_extract('[1]', '$[0]')",
        "rounded",
        "made",
    ],
)
def test_what_another_version_computes_otherwise_no_process_is_asked(
    driver: SQLite, asked: list[str], value: str
) -> None:
    """Nor for what is another value each time that it is computed."""
    update(driver, "ALTER TABLE t ADD COLUMN made AS (round(r, 2))")
    update(driver, "CREATE VIEW w AS SELECT *, round(r, 1) AS rounded FROM t")
    sql = f"SELECT id, {value} AS v FROM w"
    assert table(driver, sql).num_rows == ROWS
    assert not asked
    assert table(driver, "SELECT id, r, d, lower(s) AS v FROM t WHERE s LIKE 'é%'").num_rows == ROWS
    assert table(driver, "SELECT id, r, i * 1.5 AS v FROM t").num_rows == ROWS
    assert len(asked) == 2


def test_a_transaction_reads_what_it_wrote(driver: SQLite, asked: list[str]) -> None:
    with driver.transaction(cancellation=Cancellation()) as session:
        session.update("UPDATE t SET i = -1")
        assert set(session.query("SELECT i FROM t").table()["i"].to_pylist()) == {-1}
    assert not asked


def test_tables_of_a_query(driver: SQLite, asked: list[str]) -> None:
    keys = {"wanted": pa.table({"k": pa.array(range(1, 15_001), pa.int64())})}
    sql = "SELECT id FROM t WHERE id IN (SELECT k FROM wanted)"
    with driver.query(sql, cancellation=Cancellation(), tables=keys) as stream:
        assert stream.table().num_rows == 15_000
    assert not asked


def test_an_error_of_the_statement_has_its_text(driver: SQLite, asked: list[str]) -> None:
    with pytest.raises(StatementError, match="integer overflow"):
        table(driver, f"SELECT CASE id WHEN {ROWS} THEN abs(-9223372036854775807 - 1) ELSE id END AS v FROM t")
    assert asked
