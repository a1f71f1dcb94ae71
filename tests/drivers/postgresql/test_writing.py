"""Loads, updates, transactions, procedures and functions."""

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from dai.drivers import DriverOptions, driver_for
from dai.drivers.postgresql.driver import PostgreSQL
from dai.errors import (
    DataError,
    NotAQueryError,
    NotFoundError,
    ParameterError,
    StatementError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.drivers.statements import execute, table

ROWS = pa.table(
    {
        "i": pa.array([1, None, -3], pa.int32()),
        "big": pa.array([1 << 62, None, -(1 << 63)], pa.int64()),
        "u": pa.array([18446744073709551615, None, 0], pa.uint64()),
        "f": pa.array([1.1e-300, None, float("inf")], pa.float64()),
        "r": pa.array([0.1, None, float("nan")], pa.float32()),
        "n": pa.array([Decimal("-1.10"), None, Decimal("9999999999.99")], pa.decimal128(12, 2)),
        "wide": pa.array([Decimal(10) ** 60, None, Decimal(0)], pa.decimal256(70, 4)),
        "b": pa.array([True, None, False]),
        "t": pa.array(["", None, 'a"b,\n\\N\r\n\\. é😀 NULL']),
        'Case "x': pa.array(["NULL", None, " "]),
        "raw": pa.array([b"", None, b"\0\\\xff"], pa.binary()),
        "d": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        "time": pa.array([dt.time(0), None, dt.time(23, 59, 59, 999999)], pa.time64("us")),
        "ts": pa.array([dt.datetime(1969, 12, 31, 23, 59, 59, 1), None, dt.datetime(2024, 1, 1)], pa.timestamp("us")),
        "tz": pa.array([0, None, -1], pa.timestamp("us", "UTC")),
        "gap": pa.array([(1, -2, 3000), None, (0, 0, 0)], pa.month_day_nano_interval()),
        "ints": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "texts": pa.array([['a"b\\c', None, "", "NULL", "x,y"], None, []], pa.list_(pa.string())),
        "bytes": pa.array([[b"\0\xff", None], None, []], pa.list_(pa.binary())),
    }
)


@pytest.mark.parametrize("cut", [0, 1])
def test_what_is_loaded_comes_back(driver: PostgreSQL, path: str, cut: int) -> None:
    name = f"Loaded {path} {cut}"
    rows = ROWS.slice(cut)
    assert driver.load(name, Stream.of(rows), cancellation=Cancellation(), create=True) == rows.num_rows
    back = table(driver, f'SELECT * FROM "{name}"')
    assert back.schema.names == rows.schema.names
    for field in rows.schema:
        wanted = pa.decimal128(20, 0) if field.name == "u" else field.type
        column = back.column(field.name)
        assert column.type == wanted, field
        assert str(column.to_pylist()) == str(rows.column(field.name).cast(wanted).to_pylist()), field


def test_loads_match_columns_by_name_and_convert(driver: PostgreSQL) -> None:
    execute(
        driver,
        "CREATE SCHEMA other",
        'CREATE TABLE other.goal (id bigint DEFAULT 7, u uuid, j jsonb, n numeric(5,1), "Mixed" text)',
    )
    text = "c2d29867-3d0b-d497-9191-18a9d8ee7830"
    rows = pa.table({"Mixed": ["m"], "n": ["2.5"], "u": [text], "j": ["[1]"]})
    assert driver.load("other.goal", Stream.of(rows), cancellation=Cancellation()) == 1
    assert table(driver, "SELECT * FROM other.goal").to_pylist() == [
        {"id": 7, "u": text, "j": "[1]", "n": Decimal("2.5"), "Mixed": "m"}
    ]
    with pytest.raises(DataError, match="nope"):
        driver.load("other.goal", Stream.of(pa.table({"nope": [1]})), cancellation=Cancellation())
    with pytest.raises(NotFoundError):
        driver.load("goal", Stream.of(rows), cancellation=Cancellation())


def test_a_load_is_all_or_nothing(driver: PostgreSQL) -> None:
    execute(driver, "CREATE TABLE whole (id int PRIMARY KEY)")
    good = pa.record_batch({"id": list(range(20000))})
    twice = pa.record_batch({"id": [5]})
    with pytest.raises(StatementError, match="duplicate key"):
        driver.load("whole", Stream(good.schema, [good, twice]), cancellation=Cancellation())
    assert table(driver, "SELECT count(*) FROM whole").column(0).to_pylist() == [0]
    with pytest.raises(StatementError, match="16384 rows"):
        driver.load("whole", Stream(good.schema, [good, twice]), cancellation=Cancellation(), transactional=False)
    assert table(driver, "SELECT count(*) FROM whole").column(0).to_pylist() == [16384]


def test_updates_and_transactions(driver: PostgreSQL) -> None:
    cancellation = Cancellation()
    assert driver.update("CREATE TABLE account (id int PRIMARY KEY, name text)", cancellation=cancellation) == 0
    many = [(n, f"n{n}") for n in range(2500)]
    assert driver.update("INSERT INTO account VALUES (?, ?)", many, cancellation=cancellation) == 2500
    assert driver.update("UPDATE account SET name = 'x' WHERE id < 10", cancellation=cancellation) == 10
    with pytest.raises(StatementError, match="duplicate"):
        driver.update("INSERT INTO account VALUES (?, ?)", [(9000, "a"), (1, "b")], cancellation=cancellation)
    with pytest.raises(StatementError):
        driver.update("DELETE FROM account; DELETE FROM account", cancellation=cancellation)
    with pytest.raises(StatementError, match="COMMIT"):
        driver.update("COMMIT", cancellation=cancellation)
    with pytest.raises(ParameterError):
        driver.update("INSERT INTO account VALUES (?, ?)", [(1,)], cancellation=cancellation)
    with pytest.raises(StatementError) as refused:
        driver.update("UPDATE account SET nam = ? WHERE id = ?", [("a", 1)], cancellation=cancellation)
    assert refused.value.position == 20

    def fail_half_way() -> None:
        with driver.transaction(cancellation=cancellation) as session:
            session.update("DELETE FROM account")
            assert session.query("SELECT count(*) FROM account").table().column(0).to_pylist() == [0]
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    with driver.transaction(cancellation=cancellation) as session:
        session.update("INSERT INTO account VALUES (?, ?)", [(9001, "y")])
        assert session.query("SELECT name, 1.5::numeric(3,1) FROM account WHERE id = ?", [9001]).table().num_rows == 1
        assert session.query("SELECT inet '1.2.3.4', '{}'::inet[]").table().num_rows == 1
    assert table(driver, "SELECT count(*) FROM account").column(0).to_pylist() == [2501]
    with pytest.raises(NotAQueryError), driver.transaction(cancellation=cancellation, read_only=True) as session:
        session.update("DELETE FROM account")


def test_procedures_and_functions(driver: PostgreSQL) -> None:
    execute(
        driver,
        "CREATE TABLE calls (n int)",
        "CREATE PROCEDURE add_call(n int, INOUT total int, OUT label text) LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO calls VALUES (n); total := total + n; label := ''done''; END'",
        "CREATE FUNCTION twice(n int) RETURNS TABLE (a int, b numeric) LANGUAGE sql AS"
        " 'INSERT INTO calls VALUES (n); SELECT n, n * 1.5'",
        "CREATE PROCEDURE open_two(INOUT one refcursor, INOUT two refcursor) LANGUAGE plpgsql AS"
        " 'BEGIN OPEN one FOR SELECT i, i * 1.50::numeric(5,2) AS n, gen_random_uuid() AS u"
        " FROM generate_series(1, 300) AS i; OPEN two FOR SELECT ''b'' AS b; END'",
    )
    with driver.call("add_call", [("in", 2), ("inout", 40), ("out", None)], cancellation=Cancellation()) as result:
        assert (result.out, result.results) == ({2: 42, 3: "done"}, ())
    with driver.call("twice", [("in", 3)], cancellation=Cancellation()) as result:
        assert [stream.table().to_pylist() for stream in result.results] == [[{"a": 3, "b": "4.5"}]]
    assert table(driver, "SELECT n FROM calls ORDER BY n").column(0).to_pylist() == [2, 3]
    with driver.call("open_two", [("inout", "first"), ("inout", "second")], cancellation=Cancellation()) as result:
        first, second = result.results
        assert first.schema.types == [pa.int32(), pa.string(), pa.string()]
        rows = first.table()
        assert rows.column("n").to_pylist()[:2] == ["1.50", "3.00"]
        assert rows.num_rows == 300
        assert second.table().to_pylist() == [{"b": "b"}]
    with pytest.raises(NotFoundError), driver.call("absent", [], cancellation=Cancellation()):
        pass


def test_the_server_looks_for_its_client_after_a_change_too(postgres_url: str) -> None:
    """What a session has set is forgotten after it; that the statement of a client that is gone ends is not."""
    driver = driver_for(postgres_url, DriverOptions(pool_size=1))
    try:
        asked = (
            "SELECT current_setting('client_connection_check_interval') AS looks, "
            "current_setting('work_mem') AS memory, pg_backend_pid() AS pid"
        )
        before = table(driver, asked).to_pylist()
        assert before[0]["looks"] == "2s"
        with driver.transaction(cancellation=Cancellation()) as session:
            session.update("SET client_connection_check_interval = 0")
            session.update("SET work_mem = '123kB'")
        assert table(driver, asked).to_pylist() == before
    finally:
        driver.close()
