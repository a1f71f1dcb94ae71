"""The driver for any other database, tried on three that have drivers of their own."""

import threading
from collections.abc import Iterator
from decimal import Decimal

import pyarrow as pa
import pytest

from dai.drivers import DRIVERS, DriverOptions
from dai.drivers.generic.driver import AnyDatabase
from dai.errors import (
    BusyError,
    CancelledError,
    ConfigurationError,
    DatabaseUnavailableError,
    DataError,
    NotAQueryError,
    NotFoundError,
    ParameterError,
    StatementError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.drivers.statements import table, update

SLEEP = {
    "sqlite": "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r",
    "postgresql": "SELECT 1 FROM pg_sleep(60)",
    "mariadb": "SELECT SLEEP(60)",
}


@pytest.fixture(params=["sqlite+pysqlite", "postgresql+psycopg", "mariadb+mysqldb"])
def driver(request: pytest.FixtureRequest) -> Iterator[AnyDatabase]:
    backend = str(request.param).partition("+")[0]
    fixture = {"postgresql": "postgres_url"}.get(backend, f"{backend}_url")
    url = str(request.getfixturevalue(fixture)).replace(f"{backend}:", f"{request.param}:")
    made = AnyDatabase.connect(url, DriverOptions(pool_size=2, pool_wait=0.2))
    update(made, "CREATE TABLE t (id integer PRIMARY KEY, s varchar(40), d date, x decimal(10,2))")
    yield made
    state = made.pool_state()
    made.close()
    assert state["open"] == state["idle"]


def test_it_takes_every_url_that_no_other_driver_takes() -> None:
    assert DRIVERS["any"] is AnyDatabase
    with pytest.raises(ConfigurationError, match="nosuch"):
        AnyDatabase.connect("nosuch://host/db", DriverOptions())


def test_rows_arrive_whole_and_typed(driver: AnyDatabase) -> None:
    rows = [(at, f"100% :name '{at}", None, None) for at in range(1, 2001)]
    assert update(driver, "INSERT INTO t VALUES (?, ?, ?, ?)", *rows) == 2000
    update(driver, "UPDATE t SET d = '2024-02-29', x = 1.5 WHERE id < 10")
    actual = driver.query("SELECT id, id AS id, s, '%s :p ?' AS p FROM t ORDER BY id", cancellation=Cancellation())
    whole = actual.table()
    assert whole.schema.names == ["id", "id", "s", "p"]
    assert whole.column(0).to_pylist() == list(range(1, 2001))
    assert whole.column("s").to_pylist() == [row[1] for row in rows]
    assert table(driver, "SELECT x FROM t WHERE id = ?", 1).column("x").to_pylist() in ([Decimal("1.50")], [1.5])
    assert table(driver, "SELECT s FROM t WHERE s = ?", "it's").num_rows == 0


def test_batches(driver: AnyDatabase) -> None:
    update(driver, "INSERT INTO t (id) VALUES (?)", *((at,) for at in range(1000)))
    stream = driver.query("SELECT id FROM t ORDER BY id", cancellation=Cancellation(), batch_rows=300)
    assert [batch.num_rows for batch in stream] == [300, 300, 300, 100]


def test_a_type_is_not_widened(driver: AnyDatabase) -> None:
    update(driver, "INSERT INTO t (id) VALUES (?)", *((at,) for at in range(1000)))
    if driver.dialect != "sqlite":
        assert table(driver, "SELECT NULL AS n, id FROM t").num_rows == 1000
        return
    with pytest.raises(DataError, match="'v'"):
        table(driver, "SELECT CASE WHEN id < 900 THEN id ELSE 'text' END AS v FROM t ORDER BY id")


@pytest.mark.parametrize("sql", ["DELETE FROM t", "SELECT 1; SELECT 2", "DROP TABLE t", ""])
def test_only_queries(driver: AnyDatabase, sql: str) -> None:
    with pytest.raises(NotAQueryError):
        table(driver, sql)


def test_errors(driver: AnyDatabase) -> None:
    with pytest.raises(StatementError):
        table(driver, "SELECT nothing FROM nowhere")
    with pytest.raises(StatementError):
        update(driver, "COMMIT")
    with pytest.raises(ParameterError):
        table(driver, "SELECT ?", 1, 2)
    with pytest.raises(NotFoundError, match="'t'"):
        driver.statistics("tt")
    assert table(driver, "SELECT 1 AS one").num_rows == 1


def test_cancelling(driver: AnyDatabase) -> None:
    cancellation = Cancellation()
    timer = threading.Timer(0.3, cancellation.cancel)
    timer.start()
    with pytest.raises(CancelledError):
        driver.query(SLEEP[driver.dialect], cancellation=cancellation).table()
    timer.join()
    assert table(driver, "SELECT 1 AS one").num_rows == 1


def test_closing_half_way_and_the_limit(driver: AnyDatabase) -> None:
    update(driver, "INSERT INTO t (id) VALUES (?)", *((at,) for at in range(1000)))
    held = [driver.query("SELECT id FROM t", cancellation=Cancellation(), batch_rows=10) for _ in range(2)]
    with pytest.raises(BusyError):
        table(driver, "SELECT 1")
    for stream in held:
        next(stream)
        stream.close()
    assert driver.pool_state()["open"] == driver.pool_state()["idle"]


def test_a_transaction_is_all_or_nothing(driver: AnyDatabase) -> None:
    with pytest.raises(StatementError), driver.transaction(cancellation=Cancellation()) as session:
        session.update("INSERT INTO t (id) VALUES (?)", [(1,), (1,)])
    assert table(driver, "SELECT id FROM t").num_rows == 0


def test_a_load_comes_back(driver: AnyDatabase) -> None:
    data = pa.table({"n": [1, 2], "s": ["it's", None], "b": [b"\0", None], "f": [0.5, None]})
    assert driver.load("made", Stream.of(data), cancellation=Cancellation(), create=True) == 2
    assert table(driver, "SELECT n, s, b, f FROM made ORDER BY n").to_pylist() == data.to_pylist()
    with pytest.raises(DataError, match="'nn'"):
        driver.load("made", Stream.of(pa.table({"nn": [1]})), cancellation=Cancellation())
    with pytest.raises(NotFoundError, match="made"):
        driver.load("maid", Stream.of(pa.table({"n": [1]})), cancellation=Cancellation())


def test_tables(driver: AnyDatabase) -> None:
    update(driver, "CREATE INDEX by_s ON t (s)")
    (actual,) = driver.tables("t")
    assert actual.primary_key == ("id",)
    assert [column.name for column in actual.columns] == ["id", "s", "d", "x"]
    assert actual.columns[3].arrow == "decimal128(10, 2)"
    assert [index.columns for index in actual.indexes] == [("s",)]
    assert driver.check() > 0
    assert driver.product()


def test_unreachable() -> None:
    driver = AnyDatabase.connect("postgresql+psycopg://u:geheim@127.0.0.1:1/x", DriverOptions(connect_wait=1))
    with pytest.raises(DatabaseUnavailableError) as caught:
        driver.check()
    assert not any(word in str(caught.value) for word in ("geheim", "127.0.0.1"))
