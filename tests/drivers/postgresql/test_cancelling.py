"""Cancelling, closing, and connections that are full, lost or refused."""

import os
import signal
import threading
from collections.abc import Callable

import psycopg
import pyarrow as pa
import pytest

from dai.drivers import DriverOptions, driver_for
from dai.drivers.postgresql.driver import PostgreSQL
from dai.errors import (
    BusyError,
    CancelledError,
    ConfigurationError,
    DaiError,
    DatabaseUnavailableError,
)
from dai.streams.cancellation import Cancellation
from tests.drivers.statements import execute, table
from tests.servers.postgresql import PostgresServer

SERIES = "(SELECT generate_series(1, 100000000) AS n) AS s"
"""Its rows come one after the other; of a function in FROM the server would gather all of them first."""


def running(driver_url: str, mark: str) -> int:
    with psycopg.connect(driver_url, autocommit=True) as connection:
        sql = (
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE %s AND pid <> pg_backend_pid()"
        )
        row = connection.execute(sql, [f"%{mark}%"]).fetchone()
        assert row is not None
        return int(row[0])


def until(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return True
        pause.wait(0.02)
    return condition()


def test_a_statement_that_somebody_ended_is_not_run_again(postgres_module_url: str, path: str) -> None:
    driver = driver_for(postgres_module_url)
    failures: list[DatabaseUnavailableError] = []

    def ask() -> None:
        try:
            table(driver, f"SELECT 'ended_{path}' AS ended, pg_sleep(600)")
        except DatabaseUnavailableError as error:
            failures.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        with psycopg.connect(postgres_module_url, autocommit=True) as operator:
            actual = "FROM pg_stat_activity WHERE query LIKE %s AND pid <> pg_backend_pid() AND state = 'active'"
            late = f"{actual} AND clock_timestamp() - query_start > interval '0.7 seconds'"
            which = [f"%ended_{path}%"]
            assert until(lambda: operator.execute(f"SELECT 1 {late}", which).fetchone())
            operator.execute(f"SELECT pg_terminate_backend(pid) {actual}", which)
            asking.join(60)
            assert len(failures) == 1
            assert operator.execute(f"SELECT 1 {actual}", which).fetchone() is None
    finally:
        driver.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT pg_sleep(60) AS slow_{path}",
        "SELECT count(*) AS count_{path} FROM generate_series(1, 100000000000) AS n",
        "SELECT n, pg_sleep(0.05) AS trickle_{path} FROM generate_series(1, 10000) AS n",
    ],
)
def test_cancelling_stops_the_statement(driver: PostgreSQL, postgres_module_url: str, path: str, sql: str) -> None:
    mark = sql.split(" AS ")[1].split(" ")[0].format(path=path)
    cancellation = Cancellation()
    causes: list[DaiError] = []

    def work() -> None:
        try:
            driver.query(sql.format(path=path), cancellation=cancellation).table()
        except DaiError as error:
            causes.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert until(lambda: running(postgres_module_url, mark) == 1)
    cancellation.cancel()
    assert until(lambda: running(postgres_module_url, mark) == 0)
    thread.join(60)
    assert isinstance(causes[0], CancelledError)


def test_cancelled_before_it_began(driver: PostgreSQL, path: str) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(CancelledError):
        driver.query("SELECT 1", cancellation=cancellation)


def test_cancelled_between_batches(driver: PostgreSQL, path: str) -> None:
    cancellation = Cancellation()
    sql = f"SELECT n, md5(n::text) AS between FROM {SERIES}"
    with driver.query(sql, cancellation=cancellation) as stream:
        next(stream)
        cancellation.cancel()
        with pytest.raises(CancelledError):
            list(stream)


def test_closing_stops_the_statement(driver: PostgreSQL, postgres_module_url: str, path: str) -> None:
    sql = f"SELECT n, md5(n::text) AS closing_{path} FROM {SERIES}"
    stream = driver.query(sql, cancellation=Cancellation())
    assert next(stream).num_rows > 0
    assert running(postgres_module_url, f"closing_{path}") == 1
    stream.close()
    assert until(lambda: running(postgres_module_url, f"closing_{path}") == 0)
    state = driver.pool_state()
    assert state["open"] == state["idle"]


def test_a_stream_never_pulled_is_closed(driver: PostgreSQL, path: str) -> None:
    driver.query("SELECT generate_series(1, 1000000)", cancellation=Cancellation()).close()


def test_threads_may_take_turns(driver: PostgreSQL, path: str) -> None:
    stream = driver.query("SELECT n FROM generate_series(1, 5000) AS n", cancellation=Cancellation(), batch_rows=1000)
    rows: list[int] = []
    while True:
        actual: list[pa.RecordBatch] = []
        thread = threading.Thread(target=lambda into=actual: into.extend([b] if (b := next(stream, None)) else []))
        thread.start()
        thread.join(60)
        if not actual:
            break
        rows += actual[0].column(0).to_pylist()
    assert rows == list(range(1, 5001))


def test_a_full_pool_is_busy(postgres_url: str, path: str) -> None:
    driver = driver_for(postgres_url, DriverOptions(pool_size=1, pool_wait=0.05))
    sql = f"SELECT n, pg_sleep(0) FROM {SERIES}"
    with driver.query(sql, cancellation=Cancellation()), pytest.raises(BusyError):
        table(driver, "SELECT 1")
    assert table(driver, "SELECT 1").num_rows == 1
    driver.close()


def test_a_restart_while_rows_come_is_no_short_answer(path: str, postgres: PostgresServer, postgres_url: str) -> None:
    driver = driver_for(postgres_url, DriverOptions(batch_bytes=100_000))
    try:
        stream = driver.query(f"SELECT n, md5(n::text) FROM {SERIES}", cancellation=Cancellation())
        next(stream)
        postgres.restart()
        with pytest.raises(DatabaseUnavailableError) as lost:
            list(stream)
        assert "127.0.0.1" not in str(lost.value)
        assert table(driver, "SELECT 1").num_rows == 1  # idle connections died too, and nobody notices
    finally:
        driver.close()


@pytest.mark.parametrize(
    "change", [("dai-secret", "wrong-word"), ("127.0.0.1", "127.0.0.9"), ("test_", "absent_"), ("dai:", "nobody:")]
)
def test_no_connection_says_neither_where_nor_who(postgres_url: str, change: tuple[str, str]) -> None:
    driver = driver_for(postgres_url.replace(*change))
    for attempt in (driver.check, lambda: table(driver, "SELECT 1"), driver.product):
        with pytest.raises(DatabaseUnavailableError) as error:
            attempt()
        for secret in ("127.0.0", "dai-secret", "wrong-word", "nobody", "absent", "port"):
            assert secret not in str(error.value)
    assert driver.pool_state()["open"] == 0


def test_a_url_that_cannot_be_read() -> None:
    with pytest.raises(ConfigurationError) as refused:
        driver_for("postgresql://me:secret@host:port/x?nonsense=1")
    assert "secret" not in str(refused.value)


def test_check_and_product(driver: PostgreSQL) -> None:
    assert driver.check() > 0
    assert driver.product().startswith("PostgreSQL ")


def test_a_cancelled_update_changes_nothing(driver: PostgreSQL, postgres_module_url: str) -> None:
    execute(driver, "CREATE TABLE kept AS SELECT 1 AS id")
    cancellation = Cancellation()
    causes: list[DaiError] = []

    def work() -> None:
        try:
            driver.update("UPDATE kept SET id = 2 WHERE pg_sleep(60) IS NOT NULL", cancellation=cancellation)
        except DaiError as error:
            causes.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert until(lambda: running(postgres_module_url, "UPDATE kept") == 1)
    cancellation.cancel()
    assert until(lambda: running(postgres_module_url, "UPDATE kept") == 0)
    thread.join(60)
    assert isinstance(causes[0], CancelledError)
    assert table(driver, "SELECT id FROM kept").column(0).to_pylist() == [1]


def test_a_connection_that_does_not_tidy_up_is_not_waited_for(
    postgres_module_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server process stops while the rows are on their way: what ends the transaction gets no answer."""
    monkeypatch.setattr("dai.drivers.postgresql.driver.is_small", lambda *_: False)
    driver = driver_for(postgres_module_url, DriverOptions(pool_size=1, connect_wait=0.2))
    sql = "SELECT pg_backend_pid() AS pid FROM generate_series(1, 2000)"
    with psycopg.connect(postgres_module_url, autocommit=True) as operator:
        stream = driver.query(sql, cancellation=Cancellation())
        state = "SELECT pid FROM pg_stat_activity WHERE state = 'idle in transaction'"
        assert until(lambda: operator.execute(state).fetchone())
        process = operator.execute(state).fetchone()
    assert process is not None
    os.kill(process[0], signal.SIGSTOP)
    try:
        assert stream.table().column("pid").unique().to_pylist() == list(process)
        later = table(driver, "SELECT pg_backend_pid() AS pid").column("pid").to_pylist()
        assert later != list(process)
    finally:
        os.kill(process[0], signal.SIGCONT)
        driver.close()
