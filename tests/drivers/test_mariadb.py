"""What is MariaDB's own: its text protocol, procedures, KILL, and what its errors say."""

import datetime as dt
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import MySQLdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dai.drivers import Driver, DriverOptions, driver_for
from dai.drivers.mariadb.literals import inserts, literal
from dai.drivers.mariadb.types import Kind, array, lossless_floats
from dai.errors import (
    BusyError,
    CancelledError,
    ConfigurationError,
    DatabaseUnavailableError,
    DataError,
    NotFoundError,
    ParameterError,
    StatementError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import PRECISION, Stream
from tests.drivers.statements import table, update
from tests.processes import until
from tests.servers import PASSWORD, USER
from tests.servers.mariadb import MariaServer

Raw = Callable[[str], list[tuple[object, ...]]]


@pytest.fixture
def driver(mariadb_url: str) -> Iterator[Driver]:
    made = driver_for(mariadb_url, DriverOptions(pool_size=3, pool_wait=1))
    yield made
    state = made.pool_state()
    made.close()
    assert state["open"] == state["idle"]


@pytest.fixture
def raw(mariadb: MariaServer) -> Iterator[Raw]:
    """Statements on a connection that the driver knows nothing of, without strictness."""
    connection = MySQLdb.connect(**mariadb.dsn, autocommit=True, sql_mode="ALLOW_INVALID_DATES", charset="utf8mb4")

    def run(sql: str) -> list[tuple[object, ...]]:
        cursor = connection.cursor()
        cursor.execute(sql)
        return list(cursor.fetchall())

    yield run
    connection.close()


def database(url: str) -> str:
    return url.rpartition("/")[2]


def running(raw: Raw, url: str) -> list[tuple[object, ...]]:
    return raw(
        "SELECT id FROM information_schema.processlist "
        f"WHERE db = '{database(url)}' AND command IN ('Query', 'Execute')"
    )


@pytest.mark.parametrize("value", ["0000-00-00", "2024-00-00", "2024-02-31"])
def test_dates_that_are_none_are_refused(driver: Driver, raw: Raw, mariadb_url: str, value: str) -> None:
    update(driver, "CREATE TABLE t (d date)")
    name = f"`{database(mariadb_url)}`.t"
    raw("SET sql_mode = 'ALLOW_INVALID_DATES'")
    raw(f"INSERT INTO {name} VALUES ('2024-01-01'), ('{value}')")
    with pytest.raises(DataError) as caught:
        table(driver, "SELECT d FROM t")
    assert (caught.value.extra["column"], caught.value.extra["row"]) == ("d", 2)
    assert "CAST(`d` AS CHAR)" in str(caught.value)
    assert table(driver, "SELECT CAST(`d` AS CHAR) AS d FROM t").column("d").to_pylist()[1] == value


def test_writing_is_strict(driver: Driver) -> None:
    update(driver, "CREATE TABLE t (n tinyint, s varchar(2))")
    for values in ("1000, 'a'", "1, 'abc'"):
        with pytest.raises(StatementError):
            update(driver, f"INSERT INTO t VALUES ({values})")
    assert table(driver, "SELECT * FROM t").num_rows == 0


@pytest.mark.parametrize("order", ["", " ORDER BY f DESC", " ORDER BY f DESC LIMIT 900"])
def test_floats_keep_all_their_digits_and_their_order(driver: Driver, order: str) -> None:
    update(driver, "CREATE TABLE t (id int, f float, s varchar(9), b bit(3), e enum('x'))")
    update(driver, "INSERT INTO t SELECT seq, seq / 7, 'x', b'101', 'x' FROM seq_1_to_1000")
    actual = table(driver, f"SELECT id, f, f AS f, s, b, e FROM t{order}")
    assert actual.schema.types == [pa.int32(), pa.float32(), pa.float32(), pa.string(), pa.uint64(), pa.string()]
    assert actual.schema.names == ["id", "f", "f", "s", "b", "e"]
    ids = actual.column(0).to_pylist()
    if order:
        assert ids == list(range(1000, 1000 - len(ids), -1))
    assert actual.column(1).to_pylist() == pa.array([at / 7 for at in ids]).cast(pa.float32()).to_pylist()


def test_floats_with_parameters(driver: Driver) -> None:
    update(driver, "CREATE TABLE t (f float)")
    update(driver, "INSERT INTO t VALUES (0.1), (0.7)")
    assert table(driver, "SELECT f FROM t WHERE f < ?", 0.5).column("f").to_pylist() == [0.10000000149011612]


def test_the_rewritten_query_of_a_float() -> None:
    kinds = [Kind("f", "float", pa.float32(), 4, 31), Kind("n", "int", pa.int32(), 3, 0)]
    sql, read = lossless_floats("SELECT f, (SELECT 1 ORDER BY 1) FROM t -- ORDER BY", kinds)
    assert "LIMIT" not in sql
    assert [kind.is_cut for kind in read] == [False, False]


def test_precision_of_times_is_told(driver: Driver) -> None:
    actual = table(driver, "SELECT NOW() AS a, NOW(3) AS b, CAST('10:00' AS TIME(6)) AS c, 1 AS d")
    assert [actual.schema.field(at).metadata.get(PRECISION) for at in range(4)] == [b"0", b"3", b"6", None]


def test_a_hostile_column_in_another_collation(driver: Driver) -> None:
    update(driver, "CREATE TABLE t (s varchar(20) COLLATE utf8mb4_unicode_ci, l varchar(20) CHARACTER SET latin1)")
    update(driver, "INSERT INTO t VALUES (?, ?)", ("é'\\", "é"))
    assert table(driver, "SELECT s FROM t WHERE s = ? AND l = ?", "é'\\", "é").num_rows == 1


def test_parameters_that_are_text_to_the_database(driver: Driver) -> None:
    update(driver, "CREATE TABLE t (d date, t time(6), m datetime(6), x decimal(65,30))")
    moment = dt.datetime(2024, 2, 29, 1, 2, 3, 4)
    span = dt.timedelta(days=-1, microseconds=5)
    update(driver, "INSERT INTO t (d, t, m) VALUES (?, ?, ?)", (moment.date(), span, moment))
    actual = table(
        driver, "SELECT d, t, m FROM t WHERE m = ? AND d = ? AND t < ?", moment, moment.date(), dt.timedelta(0)
    )
    assert actual.to_pylist() == [{"d": moment.date(), "t": span, "m": moment}]


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 10**65, "\ud800", object(), [1]])
def test_values_that_cannot_be_bound(driver: Driver, value: object) -> None:
    with pytest.raises(ParameterError):
        table(driver, "SELECT ?", value)


def test_cancelling_ends_the_statement_in_the_server(driver: Driver, raw: Raw, mariadb_url: str) -> None:
    cancellation = Cancellation()
    failures: list[Exception] = []

    def wait() -> None:
        try:
            driver.query("SELECT SLEEP(60)", cancellation=cancellation).table()
        except CancelledError as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    tick = threading.Event()
    while not running(raw, mariadb_url):
        tick.wait(0.01)
    cancellation.cancel()
    thread.join(60)
    assert len(failures) == 1
    while running(raw, mariadb_url):
        tick.wait(0.01)


def test_closing_half_way_ends_the_statement_in_the_server(driver: Driver, raw: Raw, mariadb_url: str) -> None:
    stream = driver.query("SELECT seq, REPEAT('x', 1000) FROM seq_1_to_1000000000", cancellation=Cancellation())
    next(stream)
    assert len(running(raw, mariadb_url)) == 1
    stream.close()
    # The statement has ended; the server's list says so a moment later.
    until(lambda: running(raw, mariadb_url) == [])
    assert driver.pool_state()["idle"] == 1


def test_closing_half_way_where_the_server_takes_no_more_connections(
    driver: Driver, raw: Raw, mariadb_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(thread: int) -> None:
        raise BusyError("It has too many connections.")

    monkeypatch.setattr(driver, "kill", refused)
    ((seconds,),) = raw("SELECT @@GLOBAL.net_write_timeout")
    raw("SET GLOBAL net_write_timeout = 5")  # of the connections that are opened from now on
    try:
        stream = driver.query("SELECT seq, REPEAT('x', 1000) FROM seq_1_to_1000000000", cancellation=Cancellation())
        next(stream)
        stream.close()
        assert driver.pool_state() == {"open": 0, "idle": 0, "limit": 3}
        until(lambda: running(raw, mariadb_url) == [])
    finally:
        raw(f"SET GLOBAL net_write_timeout = {seconds}")
    assert table(driver, "SELECT 1 AS one").num_rows == 1


def test_a_connection_is_used_again_in_a_process_with_many_files(driver: Driver) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2048), before[1]))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        first, again = (table(driver, "SELECT CONNECTION_ID() AS id").to_pylist() for _ in range(2))
        assert first == again
    finally:
        for each in files:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_connection_that_is_cut_half_way(driver: Driver, raw: Raw, mariadb_url: str) -> None:
    stream = driver.query("SELECT seq, REPEAT('x', 1000) FROM seq_1_to_1000000000", cancellation=Cancellation())
    next(stream)
    for (thread,) in running(raw, mariadb_url):
        raw(f"KILL CONNECTION {thread}")
    with pytest.raises((DatabaseUnavailableError, CancelledError)):
        list(stream)
    assert driver.pool_state() == {"open": 0, "idle": 0, "limit": 3}
    assert table(driver, "SELECT 1 AS one").num_rows == 1


def test_a_connection_that_died_while_idle_is_replaced(driver: Driver, raw: Raw, mariadb_url: str) -> None:
    driver.check()
    for (thread,) in raw(f"SELECT id FROM information_schema.processlist WHERE db = '{database(mariadb_url)}'"):
        raw(f"KILL CONNECTION {thread}")
    assert table(driver, "SELECT 1 AS one").num_rows == 1


def test_procedures(driver: Driver) -> None:
    update(
        driver,
        "CREATE PROCEDURE p (IN a int, OUT b varchar(20), INOUT c decimal(10,2)) BEGIN "
        "SELECT a AS x; SELECT seq FROM seq_1_to_30000; SET b = CONCAT('é', a); SET c = c * 2; END",
    )
    with driver.call("p", [("in", 5), ("out", None), ("inout", 1)], cancellation=Cancellation()) as result:
        first, second = (each.table() for each in result.results)
        assert first.to_pylist() == [{"x": 5}]
        assert second.column("seq").to_pylist() == list(range(1, 30_001))
        assert result.out == {2: "é5", 3: 2}
    with pytest.raises(NotFoundError):
        driver.call("missing", [], cancellation=Cancellation()).__enter__()


def test_a_failing_procedure_changes_nothing(driver: Driver) -> None:
    update(driver, "CREATE TABLE t (n int)")
    update(driver, "CREATE PROCEDURE p () BEGIN INSERT INTO t VALUES (1); SELECT * FROM nowhere; END")
    with pytest.raises(StatementError):
        driver.call("p", [], cancellation=Cancellation()).__enter__()
    assert table(driver, "SELECT n FROM t").num_rows == 0


@pytest.mark.parametrize(
    "sql",
    [
        "SET GLOBAL max_connections = 1",
        "USE mysql",
        "LOAD DATA LOCAL INFILE '/etc/passwd' INTO TABLE t",
        "LOCK TABLES t READ",
    ],
)
def test_the_session_belongs_to_the_driver(driver: Driver, sql: str) -> None:
    with pytest.raises(StatementError):
        update(driver, sql)


def test_local_files_are_never_sent(driver: Driver, tmp_path: Path) -> None:
    update(driver, "CREATE TABLE t (s text)")
    file = tmp_path / "secret"
    file.write_text("secret\n")
    with pytest.raises(StatementError):
        update(driver, f"/* */ EXECUTE IMMEDIATE 'LOAD DATA LOCAL INFILE ''{file}'' INTO TABLE t'")
    connection = driver._connector.raw()  # type: ignore[attr-defined]
    with pytest.raises(MySQLdb.Error):
        connection.query(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE t".encode())
    connection.close()


def test_a_failed_load_leaves_no_table(driver: Driver) -> None:
    data = pa.table({"x": [1.0] * 20_000 + [float("nan")]})
    with pytest.raises(DataError, match="row 20001"):
        driver.load("t", Stream.of(data), cancellation=Cancellation(), create=True)
    assert driver.tables() == ()


def test_all_or_nothing_needs_an_engine_with_transactions(driver: Driver) -> None:
    update(driver, "CREATE TABLE t (n int) ENGINE=Aria")
    data = pa.table({"n": [1]})
    with pytest.raises(DataError, match="transactional"):
        driver.load("t", Stream.of(data), cancellation=Cancellation())
    assert driver.load("t", Stream.of(data), cancellation=Cancellation(), transactional=False) == 1


@pytest.mark.parametrize("url", ["mariadb://u:geheim@127.0.0.1:1/x", "mariadb://u:geheim@no-such-host.invalid/x"])
def test_unreachable(url: str) -> None:
    driver = driver_for(url, DriverOptions(connect_wait=1))
    with pytest.raises(DatabaseUnavailableError) as caught:
        driver.check()
    assert not any(word in str(caught.value) for word in ("geheim", "127.0.0.1", "no-such-host"))


def test_refused(mariadb: MariaServer) -> None:
    wrong = mariadb.url.replace(PASSWORD, "wrong")
    with pytest.raises(DatabaseUnavailableError, match="refused the user name or the password") as caught:
        driver_for(wrong).check()
    assert USER not in str(caught.value)
    with pytest.raises(ConfigurationError, match="local_infile"):
        driver_for(f"{mariadb.url}?local_infile=1")


def times(values: list[dt.timedelta | None]) -> list[bytes]:
    column = pa.array(values, pa.duration("us"))
    return inserts(b"", ["t"], pa.record_batch([column], ["t"]), 1, 1 << 20)


@given(st.lists(st.timedeltas(dt.timedelta(hours=-838), dt.timedelta(hours=838)), min_size=1))
def test_times_come_back(values: list[dt.timedelta]) -> None:
    (statement,) = times(list(values))
    written = [part.strip(b"()'") for part in statement.split(b",")]
    kind = Kind("t", "time", pa.duration("us"), 11, 6)
    assert array(kind, pa.array(written, pa.binary()), 1).to_pylist() == values
    assert [literal(value, 1).strip("'").encode() for value in values] == written


@pytest.mark.parametrize("text", ["9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00"])
def test_a_moment_that_utc_has_not_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match=r"Parameter 2: .* is outside the years 1 to 9999 in UTC"):
        literal(dt.datetime.fromisoformat(text), 2)


@given(st.lists(st.one_of(st.none(), st.binary()), min_size=1), st.integers(0, 3))
def test_bytes_are_written_in_hexadecimal(values: list[bytes | None], skipped: int) -> None:
    column = pa.array([b"skipped"] * skipped + values, pa.binary())[skipped:]
    (statement,) = inserts(b"", ["b"], pa.record_batch([column], ["b"]), 1, 1 << 20)
    expected = ",".join("(NULL)" if value is None else f"(X'{value.hex().upper()}')" for value in values)
    assert statement.decode() == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=2), st.integers(1, 60))
def test_statements_keep_their_size(values: list[str], most: int) -> None:
    batch = pa.record_batch([pa.array(values)], ["s"])
    whole = inserts(b"", ["s"], batch, 1, 1 << 20)
    parts = inserts(b"", ["s"], batch, 1, most)
    assert b",".join(parts) == whole[0]


def test_a_misspelt_column_is_sought_in_the_tables_of_the_statement(driver: Driver) -> None:
    update(driver, "CREATE TABLE samples (weight integer)")
    update(driver, "CREATE TABLE other (weigt2 integer)")
    with pytest.raises(StatementError) as caught:
        table(driver, "SELECT s.weigt FROM `samples` s")
    assert caught.value.hint == "Did you mean 'weight'?"


def test_statistics_are_those_that_an_analysis_has_kept(driver: Driver) -> None:
    update(driver, "CREATE TABLE kept (id integer PRIMARY KEY, d date, s varchar(20))")
    update(
        driver, "INSERT INTO kept SELECT seq, '2020-01-01' + INTERVAL seq DAY, IF(seq % 4, 'x', NULL) FROM seq_1_to_100"
    )
    assert "d" not in driver.statistics("kept").columns
    update(driver, "ANALYZE TABLE kept PERSISTENT FOR ALL")
    known = driver.statistics("kept").columns
    assert (known["id"].low, known["id"].high, known["id"].distinct) == ("1", "100", 100.0)
    assert (known["d"].low, known["d"].high, known["d"].null_fraction) == ("2020-01-02", "2020-04-10", 0.0)
    assert known["d"].distinct == pytest.approx(100, rel=0.1)
    assert (known["s"].null_fraction, known["s"].distinct) == (0.25, pytest.approx(1, rel=0.1))
