"""What is SQLite's own: types by declaration and by value, and a file that statements cannot leave."""

import datetime as dt
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from dai.drivers import Driver, DriverOptions, driver_for
from dai.drivers.tables import ColumnStatistics
from dai.errors import (
    BusyError,
    CancelledError,
    DatabaseUnavailableError,
    DataError,
    NotAQueryError,
    ParameterError,
    StatementError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import TYPE_NAME, Stream
from tests.drivers.statements import table, update


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "test.db"


@pytest.fixture
def short_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dai.drivers.sqlite.connection._LOCK_SECONDS", 0.2)


@pytest.fixture
def driver(sqlite_url: str) -> Iterator[Driver]:
    made = driver_for(sqlite_url, DriverOptions(pool_size=3, pool_wait=0.3))
    made.update("CREATE TABLE t (id integer PRIMARY KEY, d date, n decimal(10,2), x)", cancellation=Cancellation())
    yield made
    state = made.pool_state()
    made.close()
    assert state["open"] == state["idle"]


def test_declared_types_hold_without_values(driver: Driver) -> None:
    actual = table(driver, "SELECT d, n, x, 1 + 1 AS e FROM t")
    # From SQLite 3.41 on a view calls a column BLOB that was declared without a type.
    undeclared = pa.binary() if sqlite3.sqlite_version_info >= (3, 41) else pa.null()
    assert actual.schema.types == [pa.date32(), pa.decimal128(10, 2), undeclared, pa.null()]
    assert actual.schema.field("n").metadata[TYPE_NAME] == b"decimal"


def test_a_declared_type_that_another_connection_changed_is_seen(driver: Driver, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        for declared, value in (("date", "2024-01-01"), ("timestamp", "2024-01-01 12:30:00")):
            for each in (
                "DROP TABLE IF EXISTS t",
                f"CREATE TABLE t (v {declared})",
                f"INSERT INTO t VALUES ('{value}')",
            ):
                other.execute(each)
            other.commit()
            with driver.query("SELECT v FROM t", cancellation=Cancellation()) as stream:
                assert str(stream.table().column(0)[0].as_py()) == value


def test_declared_types_reach_through_parameters_and_joins(driver: Driver) -> None:
    update(driver, "INSERT INTO t VALUES (1, '2024-02-29', 1.5, 'x')")
    actual = table(driver, "SELECT a.d AS first, b.n FROM t a JOIN t b ON a.id = b.id WHERE a.id = ? -- why?", 1)
    assert actual.schema.types == [pa.date32(), pa.decimal128(10, 2)]


@pytest.mark.parametrize(
    ("column", "value", "shown"), [("d", "yesterday", "'yesterday'"), ("n", 0.125, "0.125"), ("id", None, "")]
)
def test_a_late_value_that_does_not_fit_is_named(driver: Driver, column: str, value: object, shown: str) -> None:
    update(driver, "INSERT INTO t (id, d, n) VALUES (?, ?, ?)", *((i, "2024-02-29", 1) for i in range(1, 1000)))
    if column == "id":
        assert table(driver, "SELECT id FROM t").num_rows == 999
        return
    update(driver, f"INSERT INTO t (id, {column}) VALUES (1000, ?)", (value,))
    with pytest.raises(DataError) as caught:
        table(driver, "SELECT * FROM t ORDER BY id")
    assert caught.value.extra["column"] == column
    assert caught.value.extra["row"] == 1000
    assert shown in str(caught.value)
    assert f'CAST("{column}" AS TEXT)' in str(caught.value)
    texts = table(driver, f"SELECT CAST({column} AS TEXT) AS v FROM t ORDER BY id").column("v")
    assert texts[999].as_py() == str(value)


def test_values_of_several_types_without_a_declaration(driver: Driver) -> None:
    update(driver, "INSERT INTO t (x) VALUES (?)", (1,), ("one",))
    with pytest.raises(DataError, match=r"'x'.*integer \(row 1\), text \(row 2\)"):
        table(driver, "SELECT x FROM t")
    update(driver, "UPDATE t SET x = x'00' WHERE id = 2")
    with pytest.raises(DataError, match="blob"):
        table(driver, "SELECT x FROM t")


def test_an_integer_that_a_float_cannot_hold_is_not_rounded(driver: Driver) -> None:
    update(driver, "INSERT INTO t (x) VALUES (?)", (2**53 + 1,), (0.5,))
    with pytest.raises(DataError):
        table(driver, "SELECT x FROM t")


def test_text_that_is_not_utf8(driver: Driver) -> None:
    update(driver, "INSERT INTO t (x) VALUES (CAST(x'ff' AS TEXT))")
    with pytest.raises(DataError, match="UTF-8"):
        table(driver, "SELECT x FROM t")
    assert table(driver, "SELECT CAST(x AS BLOB) AS b FROM t").column("b").to_pylist() == [b"\xff"]


def test_a_failed_fetch_in_a_transaction_frees_its_connection_once(driver: Driver) -> None:
    update(driver, "INSERT INTO t (x) VALUES (?)", *(("x",) for _ in range(2000)))
    update(driver, "INSERT INTO t (x) VALUES (CAST(x'ff' AS TEXT))")
    with pytest.raises(DataError), driver.transaction(cancellation=Cancellation()) as session:
        session.query("SELECT x FROM t ORDER BY id").table()
    assert driver.pool_state()["open"] == driver.pool_state()["idle"] >= 0


@pytest.mark.parametrize(
    "sql",
    [
        "ATTACH '{}' AS other",
        "VACUUM INTO '{}'",
        "PRAGMA foreign_keys = OFF",
        "PRAGMA page_size = 512",
        "SELECT load_extension('{}')",
        "SAVEPOINT a",
    ],
)
def test_no_statement_leaves_the_file(driver: Driver, tmp_path: Path, sql: str) -> None:
    other = tmp_path / "other.db"
    with pytest.raises(StatementError) as caught:
        update(driver, sql.format(other))
    assert "other.db" not in caught.value.detail
    assert not other.exists()
    with pytest.raises(StatementError):
        table(driver, sql.format(other))


def test_pragmas_as_tables_may_be_read(driver: Driver) -> None:
    assert table(driver, "SELECT name FROM pragma_table_info('t')").num_rows == 4


def test_a_query_of_a_missing_file_makes_none(sqlite_url: str, path: Path) -> None:
    driver = driver_for(sqlite_url)
    with pytest.raises(DatabaseUnavailableError) as caught:
        table(driver, "SELECT 1")
    assert str(path) not in str(caught.value)
    assert not path.exists()
    driver.close()


def test_a_file_that_is_no_database(sqlite_url: str, path: Path) -> None:
    path.write_bytes(b"not a database" * 100)
    driver = driver_for(sqlite_url)
    with pytest.raises(DatabaseUnavailableError):
        table(driver, "SELECT * FROM sqlite_master")
    driver.close()


@pytest.mark.parametrize(
    "view", ["select * from gone", "select no_function(1) as a", "select load_extension('x') as a"]
)
def test_a_view_that_nobody_can_ask_hides_no_table(sqlite_url: str, path: Path, view: str) -> None:
    """Whoever might create a view kept everybody from the list of tables, and federations from the database."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table there (a integer)")
        connection.execute(f"create view looped as {view}")
    driver = driver_for(sqlite_url)
    assert [each.name for each in driver.tables()] == ["there"]
    driver.close()


@pytest.mark.parametrize("definition", ["VirtualSpatialIndex()", "fts4(content = 'gone')"])
def test_a_virtual_table_that_cannot_be_read_hides_no_table(sqlite_url: str, path: Path, definition: str) -> None:
    """As SpatiaLite has them: without its module nothing of the database was listed."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table there (a integer)")
        connection.execute("pragma writable_schema = on")
        connection.execute(
            "insert into sqlite_schema values ('table', 'near', 'near', 0, ?)",
            (f"create virtual table near using {definition}",),
        )
        connection.commit()
    driver = driver_for(sqlite_url)
    assert [each.name for each in driver.tables()] == ["there"]
    driver.close()


@pytest.mark.parametrize(
    ("definition", "values", "condition"),
    [
        ("fts5(body)", "('a quick fox')", "t MATCH 'quick'"),
        ("fts4(body)", "('a quick fox')", "t MATCH 'quick'"),
        ("rtree(id, low, high)", "(1, 0.5, 2.5)", "low < 1"),
    ],
)
def test_virtual_tables_are_made_changed_and_read(
    sqlite_url: str, definition: str, values: str, condition: str
) -> None:
    """Their modules ask settings of the database, which the authorizer refused."""
    with closing(driver_for(sqlite_url)) as driver:
        update(driver, f"CREATE VIRTUAL TABLE t USING {definition}")
        assert update(driver, f"INSERT INTO t VALUES {values}") == 1
    with closing(driver_for(sqlite_url)) as driver:
        assert table(driver, f"SELECT * FROM t WHERE {condition}").num_rows == 1
        assert "t" in [each.name for each in driver.tables()]


def test_what_is_damaged_is_unavailable(tmp_path: Path) -> None:
    """It was an internal error, or one of the statement."""
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        connection.execute("create table there (a integer)")
        connection.commit()
    with closing(duckdb.connect(str(tmp_path / "b.db"))) as connection:
        connection.execute("create table there (a integer)")
    for kind, name, at, what in (
        ("sqlite", "a", b"CREATE TABLE", b"C\xb0\xff"),
        ("duckdb", "b", b"DUCK", b"DUCKabcdefgh"),
    ):
        data = (tmp_path / f"{name}.db").read_bytes()
        place = data.index(at)
        (tmp_path / f"{name}.db").write_bytes(data[:place] + what + data[place + len(what) :])
        driver = driver_for(f"{kind}:///{tmp_path}/{name}.db")
        with pytest.raises(DatabaseUnavailableError):
            driver.tables()
        with pytest.raises(DatabaseUnavailableError):
            table(driver, "select * from there")
        driver.close()


def test_the_mode_of_an_existing_file_is_left_alone(sqlite_url: str, path: Path) -> None:
    raw = sqlite3.connect(path)
    raw.execute("CREATE TABLE old (n)")
    raw.close()
    driver = driver_for(sqlite_url)
    update(driver, "INSERT INTO old VALUES (1)")
    driver.close()
    raw = sqlite3.connect(path)
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    raw.close()


def test_readers_and_a_writer_do_not_wait_for_each_other(driver: Driver) -> None:
    update(driver, "INSERT INTO t (x) VALUES (?)", *((i,) for i in range(5000)))
    with driver.query("SELECT id FROM t", cancellation=Cancellation(), batch_rows=100) as stream:
        next(stream)
        update(driver, "DELETE FROM t WHERE id > 10")
        assert 100 + sum(batch.num_rows for batch in stream) == 5000


def test_two_writers(short_locks: None, driver: Driver) -> None:
    with driver.transaction(cancellation=Cancellation()) as session:
        session.update("INSERT INTO t (x) VALUES (1)")
        with pytest.raises(BusyError):
            update(driver, "INSERT INTO t (x) VALUES (2)")
        cancellation = Cancellation()
        timer = threading.Timer(0.05, cancellation.cancel)
        timer.start()
        with pytest.raises((CancelledError, BusyError)):
            driver.update("INSERT INTO t (x) VALUES (3)", cancellation=cancellation)
        timer.join()
    assert table(driver, "SELECT x FROM t").column("x").to_pylist() == [1]


def test_a_file_that_another_program_has_locked(short_locks: None, sqlite_url: str, path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE t (x)")
        other.execute("BEGIN EXCLUSIVE")
        with closing(driver_for(sqlite_url, DriverOptions())) as driver:
            for run in (table, update):
                with pytest.raises(DatabaseUnavailableError, match="has locked the SQLite file"):
                    run(driver, "SELECT x FROM t" if run is table else "INSERT INTO t VALUES (1)")


@pytest.mark.parametrize("first", ["'text'", "x'00'", "1 from nowhere union all select 1"])
def test_a_query_that_fails_in_its_first_rows_locks_nothing(sqlite_url: str, path: Path, first: str) -> None:
    """Though somebody keeps the error, and with it all that was under way."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("CREATE TABLE t (n integer)")
        numbers = "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r LIMIT 1000) SELECT i FROM r"
        other.execute(f"INSERT INTO t {numbers}")
        with closing(driver_for(sqlite_url, DriverOptions())) as driver:
            with pytest.raises((DataError, StatementError)) as kept:
                table(driver, f"SELECT {first} AS n UNION ALL SELECT n FROM t")
            other.execute("PRAGMA busy_timeout = 0")
            other.execute("INSERT INTO t VALUES (1)")
        assert kept.value.__traceback__ is not None


def test_nan_is_not_stored_as_null(driver: Driver) -> None:
    with pytest.raises(ParameterError, match="NaN"):
        update(driver, "INSERT INTO t (x) VALUES (?)", (float("nan"),))
    with pytest.raises(DataError, match="row 2"):
        driver.load("t", Stream.of(pa.table({"x": [1.0, float("nan")]})), cancellation=Cancellation())
    assert table(driver, "SELECT x FROM t").num_rows == 0


MOMENT = dt.datetime(2024, 1, 1, 10)


@pytest.mark.parametrize(
    ("type", "value", "text"),
    [
        (pa.timestamp("us"), MOMENT, "2024-01-01 10:00:00"),
        (pa.timestamp("ms"), MOMENT.replace(microsecond=120_000), "2024-01-01 10:00:00.120000"),
        (pa.timestamp("ns"), MOMENT.replace(microsecond=1), "2024-01-01 10:00:00.000001"),
        (pa.timestamp("us", "America/New_York"), MOMENT.replace(tzinfo=dt.UTC), "2024-01-01 10:00:00"),
        (pa.time64("us"), MOMENT.time(), "10:00:00"),
    ],
)
def test_a_moment_has_one_text_however_it_was_written(
    driver: Driver, type: pa.DataType, value: object, text: str
) -> None:
    driver.load("l", Stream.of(pa.table({"m": pa.array([value], type)})), cancellation=Cancellation(), create=True)
    update(driver, "INSERT INTO l VALUES (?)", (value,))
    assert table(driver, "SELECT CAST(m AS TEXT) AS m FROM l")["m"].to_pylist() == [text, text]
    for given in (value, text):
        assert table(driver, "SELECT m FROM l WHERE m = ?", given)["m"].to_pylist() == [value, value]


def test_nanoseconds_are_loaded_as_they_are(driver: Driver) -> None:
    data = pa.table({"x": pa.array([1, 10**9], pa.timestamp("ns", "UTC"))})
    driver.load("t", Stream.of(data), cancellation=Cancellation())
    expected = ["1970-01-01 00:00:00.000000001", "1970-01-01 00:00:01.000000000"]
    assert table(driver, "SELECT x FROM t ORDER BY x")["x"].to_pylist() == expected


def test_long_numbers_are_not_rounded(driver: Driver) -> None:
    data = pa.table({"n": pa.array(["1", "12345678901234567.25"]).cast(pa.decimal128(30, 2))})
    with pytest.raises(DataError, match="row 2"):
        driver.load("t", Stream.of(data), cancellation=Cancellation())


def test_explain(driver: Driver) -> None:
    assert table(driver, "EXPLAIN QUERY PLAN SELECT * FROM t").num_rows == 1


def test_a_database_in_memory() -> None:
    driver = driver_for("sqlite://")
    assert table(driver, "SELECT 1 AS one").num_rows == 1
    update(driver, "CREATE TABLE t (n integer)")
    assert update(driver, "INSERT INTO t VALUES (?)", (1,), (2,)) == 2
    assert table(driver, "SELECT n FROM t").column("n").to_pylist() == [1, 2]
    driver.close()


def test_statistics_after_analyze(driver: Driver) -> None:
    update(driver, "INSERT INTO t (x) VALUES (?)", (1,), (2,))
    assert driver.statistics("t").rows is None
    update(driver, "CREATE INDEX by_x ON t (x)")
    update(driver, "ANALYZE")
    assert driver.statistics("t").rows == 2


def test_statistics_of_columns_with_an_index(driver: Driver) -> None:
    update(driver, "CREATE TABLE s (id INTEGER PRIMARY KEY, k int, part int, free text)")
    rows = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 100) SELECT i, i % 10, i, i FROM n"
    update(driver, f"INSERT INTO s {rows}")
    update(driver, "CREATE INDEX by_k ON s (k, id)")
    update(driver, "CREATE INDEX some ON s (part) WHERE part < 50")
    known = driver.statistics("s").columns
    assert known == {"id": ColumnStatistics(low="1", high="100"), "k": ColumnStatistics(low="0", high="9")}
    update(driver, "ANALYZE")
    assert driver.statistics("s").columns == {
        "id": ColumnStatistics(distinct=100, low="1", high="100"),
        "k": ColumnStatistics(distinct=10, low="0", high="9"),
    }
    update(driver, "DELETE FROM s")
    assert driver.statistics("s").columns["id"].low is None


def test_statistics_of_a_column_with_braces(driver: Driver) -> None:
    update(driver, 'CREATE TABLE "s {1}" ("k {0}" INTEGER PRIMARY KEY)')
    update(driver, 'INSERT INTO "s {1}" VALUES (3), (5)')
    assert driver.statistics("s {1}").columns == {"k {0}": ColumnStatistics(low="3", high="5")}


@pytest.mark.parametrize(
    ("columns", "nullable", "ends"),
    [
        ("k INTEGER PRIMARY KEY)", False, {"k"}),
        ("k INTEGER PRIMARY KEY DESC)", True, {"k", "rowid"}),
        ("k BIGINT PRIMARY KEY)", True, {"k", "rowid"}),
        ("k INTEGER, n INTEGER, PRIMARY KEY (k, n))", True, {"k", "rowid"}),
        ("k BIGINT NOT NULL PRIMARY KEY)", False, {"k", "rowid"}),
        ("k INTEGER PRIMARY KEY) WITHOUT ROWID", False, {"k"}),
        ("k INT PRIMARY KEY) STRICT", False, {"k", "rowid"}),
    ],
)
def test_only_a_primary_key_that_is_the_rowid_refuses_null(
    driver: Driver, columns: str, nullable: bool, ends: set[str]
) -> None:
    """Unless it is declared so."""
    update(driver, f"CREATE TABLE s ({columns}")
    (info,) = driver.tables("s")
    assert info.columns[0].nullable == nullable
    assert set(driver.statistics("s").columns) == ends


def test_no_procedures(driver: Driver) -> None:
    with pytest.raises(ParameterError):
        driver.call("p", [], cancellation=Cancellation())


def test_returning_belongs_to_updates(driver: Driver) -> None:
    with pytest.raises(NotAQueryError):
        table(driver, "INSERT INTO t (x) VALUES (1) RETURNING id")
    assert table(driver, "SELECT * FROM t").num_rows == 0


@pytest.mark.parametrize("declared", ["varchar(64)", "CHAR (64)", "character varying(64)", "varbinary(64)"])
@pytest.mark.parametrize("value", [None, "'a'", "x'00'"])
def test_a_declared_length_is_kept_whatever_the_column_holds(driver: Driver, declared: str, value: str | None) -> None:
    update(driver, f"create table sized (s {declared})")
    if value is not None:
        update(driver, f"insert into sized values ({value})")
    ((column,),) = [each.columns for each in driver.tables("sized")]
    assert column.length == 64


@pytest.mark.parametrize(
    ("expression", "cast"),
    [
        ("CASE WHEN n > 300 THEN n / 2.0 ELSE 0 END", "REAL"),
        ("CASE WHEN n > 300 THEN 'many' ELSE 0 END", "TEXT"),
    ],
)
def test_the_hint_for_a_computed_column_helps(driver: Driver, expression: str, cast: str) -> None:
    numbers = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < 999)"
    with pytest.raises(DataError) as caught:
        table(driver, f"{numbers} SELECT {expression} AS v FROM r")
    assert f'CAST(… AS {cast}) AS "v"' in str(caught.value.hint)
    assert table(driver, f"{numbers} SELECT CAST({expression} AS {cast}) AS v FROM r").num_rows == 999


KILLED = """
import os, signal, sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("PRAGMA cache_size = 10")
connection.execute("BEGIN IMMEDIATE")
connection.execute("UPDATE t SET s = 'changed'")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_writer_left_is_undone_by_the_next_query(tmp_path: Path) -> None:
    """Rows are in the file already, those before them in its journal."""
    path = tmp_path / "data.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("CREATE TABLE t (i integer primary key, s text)")
        connection.executemany("INSERT INTO t VALUES (?, ?)", ((i, "as it was" * 100) for i in range(2000)))
        connection.commit()
    driver = driver_for(f"sqlite:///{path}")
    count = "select count(*) as n from t where s like 'as it was%'"
    with closing(driver):
        for _ in range(2):
            with driver.query(count, cancellation=Cancellation()) as stream:
                assert stream.table()["n"].to_pylist() == [2000]
            subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
            assert (tmp_path / "data.db-journal").exists()
        with driver.query(count, cancellation=Cancellation()) as stream:
            assert stream.table()["n"].to_pylist() == [2000]
        assert not (tmp_path / "data.db-journal").exists()
        driver.tables()


def test_decimals_are_compared_as_numbers(driver: Driver) -> None:
    update(driver, "CREATE TABLE sums (amount DECIMAL(8,2), kept TEXT)")
    for amount, kept in (("4.50", "12345678901234567890.12"), ("6.00", "1.50"), ("7.25", "x")):
        update(driver, "INSERT INTO sums VALUES (?, ?)", (Decimal(amount), kept if kept == "x" else Decimal(kept)))
    assert table(driver, "SELECT kept FROM sums")["kept"].to_pylist() == ["12345678901234567890.12", "1.50", "x"]
    for condition, value, count in (
        ("amount * 2 > ?", "10", 2),
        ("amount * 2 = ?", "14.5", 1),
        ("amount = ?", "4.50", 1),
        ("amount < ?", "1e30", 3),
        ("amount * 2 < ?", "-1e30", 0),
        ("sum(amount) over () = ?", "17.75", 3),
    ):
        sql = f"SELECT * FROM (SELECT {condition} AS found FROM sums) WHERE found"
        assert table(driver, sql, Decimal(value)).num_rows == count, condition
    update(driver, "UPDATE sums SET kept = ? WHERE amount * 2 > ?", (Decimal("98765432109876543210.98"), Decimal("14")))
    assert table(driver, "SELECT kept FROM sums")["kept"].to_pylist()[2] == "98765432109876543210.98"
    update(driver, "DELETE FROM sums WHERE amount * 2 <= ?", (Decimal("12.0"),))
    assert table(driver, "SELECT amount FROM sums")["amount"].to_pylist() == [Decimal("7.25")]


def test_decimals_are_numbers_where_an_insert_compares_them(driver: Driver) -> None:
    update(driver, "CREATE TABLE sums (id INTEGER PRIMARY KEY, amount DECIMAL(8,2), kept TEXT)")
    one, two, limit, long = (Decimal(each) for each in ("1.50", "2.50", "10.0", "98765432109876543210.98"))
    update(driver, "INSERT INTO sums VALUES (1, 4.5, ?), (2, 6, ?)", (one, long))
    update(driver, "INSERT INTO sums SELECT id + 2, amount, ? FROM sums WHERE amount * 2 > ?", (long, limit))
    update(
        driver,
        "INSERT INTO sums VALUES (1, ?, 'x'), (2, ?, ?) ON CONFLICT DO UPDATE SET kept = ? WHERE sums.amount * 2 > ?",
        (one, one, one, two, limit),
    )
    rows = table(driver, "SELECT id, kept FROM sums ORDER BY id").to_pylist()
    assert [tuple(each.values()) for each in rows] == [(1, "1.50"), (2, "2.50"), (4, str(long))]


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM sums WHERE amount * 2 < ?",
        "UPDATE sums SET kept = 'changed' WHERE amount * 2 < ?",
        "UPDATE sums SET kept = CASE WHEN amount * 2 < ? THEN 'changed' ELSE kept END",
        "UPDATE sums SET id = id, kept = iif((amount * 2 < ?), 'changed', kept)",
        "UPDATE sums SET kept = iif(amount * 2 BETWEEN 1 AND ?, 'changed', kept)",
        "INSERT INTO sums SELECT id + 9, 1, kept FROM (SELECT * FROM sums GROUP BY id HAVING max(amount) < ?) AS s",
        "UPDATE sums SET kept = iif(NOT ? <= amount * 2, 'changed', kept)",
        "WITH small AS (SELECT id FROM sums WHERE amount * 2 < ?) DELETE FROM sums WHERE id IN (SELECT id FROM small)",
        "WITH small AS (SELECT * FROM sums WHERE amount * 2 < ?) INSERT INTO sums SELECT id + 9, 1, kept FROM small",
    ],
)
def test_a_long_decimal_is_a_number_where_it_is_compared(driver: Driver, sql: str) -> None:
    update(driver, "CREATE TABLE sums (id INTEGER PRIMARY KEY, amount DECIMAL(8,2), kept TEXT)")
    update(driver, "INSERT INTO sums VALUES (1, 4.5, 'x'), (2, 6, 'y')")
    update(driver, sql, (Decimal(1) / 3,))
    assert table(driver, "SELECT group_concat(kept, '') AS kept FROM sums")["kept"].to_pylist() == ["xy"]


@pytest.mark.parametrize(
    "sql",
    [
        "WITH one AS (SELECT 1) INSERT INTO sums VALUES (3, ?)",
        "INSERT INTO sums (id, end) VALUES (3, coalesce(?, 'none'))",
        "INSERT INTO sums SELECT 4, ? FROM sums LIMIT 1",
        "INSERT INTO sums SELECT 1, 'z' WHERE true ON CONFLICT DO UPDATE SET end = ?",
        "UPDATE sums SET id = (SELECT max(id) FROM sums WHERE id > 0), end = coalesce(?, end)",
        "UPDATE sums SET (id, end) = (id, CASE WHEN id > 0 THEN ? ELSE end END)",
    ],
)
def test_a_decimal_that_is_stored_keeps_its_digits(driver: Driver, sql: str) -> None:
    update(driver, "CREATE TABLE sums (id INTEGER PRIMARY KEY, end TEXT)")
    update(driver, "INSERT INTO sums VALUES (1, 'x')")
    update(driver, sql, (Decimal("98765432109876543210.50"),))
    assert table(driver, "SELECT max(end) AS kept FROM sums WHERE end <> 'x'")["kept"].to_pylist() == [
        "98765432109876543210.50"
    ]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_a_decimal_that_is_no_number_is_refused(driver: Driver, value: str) -> None:
    with pytest.raises(ParameterError, match=f"Parameter 1: SQLite has no decimal {value}"):
        table(driver, "SELECT ? AS v", Decimal(value))


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00"])
def test_a_moment_that_utc_has_not_is_refused(driver: Driver, text: str) -> None:
    with pytest.raises(ParameterError, match=r"Parameter 1: .* is outside the years 1 to 9999 in UTC"):
        table(driver, "SELECT ? AS v", dt.datetime.fromisoformat(text))


@pytest.mark.parametrize(("declared", "zone"), [("TIMESTAMP", None), ("TIMESTAMPTZ", "UTC")])
def test_days_alone_are_moments(driver: Driver, declared: str, zone: str | None) -> None:
    update(driver, f"CREATE TABLE moments (at {declared})")
    update(driver, "INSERT INTO moments VALUES ('2023-05-05'), (NULL)")
    found = table(driver, "SELECT at FROM moments")["at"]
    assert found.type == pa.timestamp("us", zone)
    assert found.to_pylist() == [dt.datetime(2023, 5, 5, tzinfo=dt.UTC if zone else None), None]
