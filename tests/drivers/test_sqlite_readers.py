"""Large results of SQLite, which processes read: the same answers and errors as from the driver's connection."""

import contextlib
import datetime
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

from dai.drivers import DriverOptions
from dai.drivers.connections import rows
from dai.drivers.sqlite import readers
from dai.drivers.sqlite.driver import SQLite
from dai.errors import CancelledError, DataError, LimitError, StatementError
from dai.streams.cancellation import Cancellation
from tests.drivers.statements import table, update
from tests.processes import until

ROWS = 20_000
COUNTED = f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {ROWS})"
TABLE = (
    "CREATE TABLE t (id integer PRIMARY KEY, i integer, r real, n decimal(10,2), s varchar(20), d date, m timestamp, "
    "k time, b boolean, x, late real, early date)"
)
FILL = (
    f"INSERT INTO t {COUNTED} SELECT i, nullif(i % 7, 0), i / 7.0, nullif(i % 1000 / 100.0, 0), 'é' || i, "
    "CASE WHEN i % 3 THEN date(0, 'unixepoch', i || ' days') END, datetime(0, 'unixepoch', i || ' seconds'), "
    "time(0, 'unixepoch', i || ' seconds'), i % 2, i, "
    "CASE WHEN i > 15000 THEN i / 3.0 END, CASE WHEN i < 9000 THEN date('now') END FROM n"
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the table, to be copied."""
    path = tmp_path_factory.mktemp("readers") / "filled.db"
    with closing(SQLite.connect(f"sqlite:///{path}", DriverOptions())) as made:
        update(made, TABLE)
        update(made, FILL)
    return path


@pytest.fixture(scope="module")
def left() -> Iterator[list[readers.Reader]]:
    """The process that a test leaves to the next one, which would wait a second for its own."""
    kept: list[readers.Reader] = []
    yield kept
    for each in kept:
        each.close()


@pytest.fixture
def driver(
    sqlite_url: str, filled: Path, left: list[readers.Reader], monkeypatch: pytest.MonkeyPatch
) -> Iterator[SQLite]:
    """With one process, which makes several batches, however busy the machine is."""
    monkeypatch.setattr(readers, "AGAIN_SECONDS", float("inf"))
    monkeypatch.setattr(readers, "START_ROWS", 1 << 40)
    monkeypatch.setattr(readers, "_BATCH_ROWS", 5_000)
    shutil.copy(filled, sqlite_url.removeprefix("sqlite:///"))
    made = SQLite.connect(sqlite_url, DriverOptions(pool_size=3))
    while left:
        given = left.pop()
        if given.ended():
            given.close()
        else:
            made._processes._idle.append(given)
    if not made._processes._idle:
        made._processes.start()
    assert made._processes.any(60)
    yield made
    state = made.pool_state()
    left += made._processes._idle
    made._processes._idle.clear()
    made.close()
    assert state["open"] == state["idle"]
    assert not made._processes._busy


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What processes were asked."""
    statements: list[str] = []
    ask = readers.Reader.ask

    def noted(self: readers.Reader, uri: str, sql: str, *rest: object) -> pa.RecordBatchReader:
        statements.append(sql)
        return ask(self, uri, sql, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(readers.Reader, "ask", noted)
    return statements


def without(driver: SQLite, sql: str, monkeypatch: pytest.MonkeyPatch) -> pa.Table:
    with monkeypatch.context() as patched:
        patched.setattr(readers.Readers, "any", lambda *_: False)
        return table(driver, sql)


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
    "sql",
    [
        "SELECT x'00' AS v FROM t",
        "SELECT w FROM wide",
        "SELECT id FROM t LIMIT 1500",
        "SELECT count(*) FROM t",
    ],
)
def test_what_no_process_is_asked(driver: SQLite, asked: list[str], sql: str) -> None:
    update(driver, "CREATE TABLE wide (w decimal(18,2))")
    update(driver, "INSERT INTO wide SELECT id FROM t")
    table(driver, sql)
    assert not asked


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
    assert table(driver, "SELECT id, r, i * 1.5, lower(s) AS v FROM t WHERE s LIKE 'é%'").num_rows == ROWS
    assert asked


def test_what_takes_long_until_its_first_rows_is_not_computed_twice(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table(driver, "SELECT i FROM t")
    assert len(asked) == 1
    monkeypatch.setattr(readers, "AGAIN_SECONDS", 0.0)
    assert table(driver, "SELECT i, count(*) AS n FROM t GROUP BY id").num_rows == ROWS
    assert len(asked) == 1


def test_what_is_read_again_has_bounds() -> None:
    def begun(value: str, seconds: float) -> readers.Begun:
        def fetch(wanted: int) -> list[tuple[str]]:
            until = time.thread_time() + seconds
            while time.thread_time() < until:
                pass
            return [(value,)] * wanted

        columns = [pa.array([value] * 256)]
        return readers.Begun(
            columns,
            256,
            0.0,
            rows.Portions(fetch, contextlib.nullcontext),
            lambda given, _: [pa.array(next(zip(*given, strict=True)))],
        )

    assert begun("a", 0.0).read().have >= readers.MANY_ROWS
    assert begun("a", 2 * readers.SOME_SECONDS).read().have == 512
    assert begun("a" * 100_000, 0.0).read().have == 512


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes more than a few steps of SQLite is read by a process from its first row on."""
    monkeypatch.setattr(readers, "STEPS", 50)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, i, r, n, s, d, m, k, b FROM t",
        'SELECT late, early, s AS "t.s" FROM t WHERE id % 9000 = 1',
        "SELECT i, s FROM t WHERE i > 100000",
        "SELECT a.id, a.d, z.n FROM t AS a JOIN t AS z ON z.id = a.id + 1 ORDER BY a.n, a.id",
        "WITH q(one, two) AS (SELECT id, n FROM t WHERE i IS NULL) SELECT * FROM q",
        f"SELECT s FROM t WHERE id IN ({','.join(map(str, range(0, 60_000, 3)))})",
    ],
)
@pytest.mark.parametrize("batch_rows", [None, 7])
def test_the_same_answer_where_the_first_rows_take_long(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch, sql: str, batch_rows: int | None
) -> None:
    with driver.query(sql, cancellation=Cancellation(), batch_rows=batch_rows) as stream:
        batches = list(stream)
        actual = pa.Table.from_batches(batches, stream.schema)
    assert len(asked) == 1
    assert batch_rows is None or {each.num_rows for each in batches[:-1]} <= {batch_rows}
    expected = without(driver, sql, monkeypatch)
    assert actual.equals(expected)
    assert actual.schema.equals(expected.schema, check_metadata=True)


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(("batch_rows", "most"), [(None, readers._FEW_ROWS), (50, 50)])
def test_rows_that_come_slowly_do_not_wait_for_many_others(
    driver: SQLite, asked: list[str], batch_rows: int | None, most: int
) -> None:
    with driver.query("SELECT i FROM t", cancellation=Cancellation(), batch_rows=batch_rows) as stream:
        assert next(iter(stream)).num_rows <= most
    assert len(asked) == 1


def test_batches_of_a_process_are_small_where_rows_came_slowly() -> None:
    columns, portions = [pa.array(range(256))], rows.Portions(lambda _: [], contextlib.nullcontext)

    def begun(seconds: float) -> readers.Begun:
        return readers.Begun(columns, 256, seconds, portions, lambda *_: [])

    assert begun(0.1).batch_rows(1 << 20) == readers._FEW_ROWS
    assert begun(0.001).batch_rows(1 << 20) == 25_600
    assert begun(0.0).batch_rows(8_000) == 1_000


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize(
    ("values", "sql"),
    [
        ("(1, 'a'), (2, 'b'), (3, 'c')", "SELECT v, w FROM u WHERE v > 0"),
        ("('a', 1), ('b', 'x'), (NULL, 2)", "SELECT v, w FROM u WHERE w IS NOT NULL"),
        ("(1, '2026-01-02'), (2, 'no date')", "SELECT w FROM u WHERE v > 0"),
    ],
)
def test_first_rows_of_other_types_than_declared(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch, values: str, sql: str
) -> None:
    """Their types are those of the values, as without a process."""
    update(driver, "CREATE TABLE u (v integer, w date)")
    update(driver, f"INSERT INTO u VALUES {values}")
    update(driver, "CREATE TABLE x AS SELECT id FROM t LIMIT 200")
    sql = f"{sql} AND NOT EXISTS (SELECT * FROM x WHERE x.id + v = -1)"  # which takes its time
    try:
        actual: object = table(driver, sql)
    except DataError as error:
        actual = str(error)
    assert len(asked) == 1
    try:
        expected: object = without(driver, sql, monkeypatch)
    except DataError as error:
        expected = str(error)
    assert actual == expected


@pytest.mark.usefixtures("at_once")
def test_what_has_no_declared_type_is_begun_by_the_connection(driver: SQLite, asked: list[str]) -> None:
    for sql in (
        "SELECT i + 1 AS a FROM t WHERE id % 100 = 1",
        "SELECT x FROM t WHERE id % 100 = 1",
        "SELECT id AS a, i AS a FROM t WHERE id % 100 = 1",
    ):
        assert table(driver, sql).num_rows == ROWS // 100
    assert not asked


@pytest.mark.usefixtures("at_once")
def test_an_error_of_a_statement_that_a_process_has_taken_over(driver: SQLite, asked: list[str]) -> None:
    with pytest.raises(StatementError, match="integer overflow"):
        table(driver, f"SELECT id FROM t WHERE id < {ROWS} OR abs(-9223372036854775807 - (id = {ROWS})) > 0")
    assert len(asked) == 1


def test_a_statement_waits_for_a_process_that_is_at_work(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "WAIT_SECONDS", 60.0)
    busy = driver._processes.take()
    assert busy is not None
    waiting = threading.Timer(0.3, driver._processes.give_back, (busy, True))
    waiting.start()
    assert table(driver, "SELECT i FROM t").num_rows == ROWS
    waiting.join()
    assert len(asked) == 1


def test_a_statement_does_not_wait_for_one_whose_rows_nobody_reads(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then one more starts."""
    monkeypatch.setattr(readers, "WAIT_SECONDS", 1e9)
    busy = driver._processes.take()
    assert busy is not None
    busy.left_at = time.monotonic() - 1.0
    assert table(driver, "SELECT i FROM t").num_rows == ROWS
    assert not asked
    (more,) = driver._processes._idle
    driver._processes._idle.remove(more)
    more.close()
    driver._processes.give_back(busy, True)


def test_waiting_for_the_first_rows_is_not_computing_them(
    driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "AGAIN_SECONDS", 0.5)
    following = rows.Portions.next

    def late(self: rows.Portions, most: int) -> Sequence[Any]:
        time.sleep(0.5)
        return following(self, most)

    monkeypatch.setattr(rows.Portions, "next", late)
    assert table(driver, "SELECT i FROM t").num_rows == ROWS
    assert len(asked) == 1


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


def test_cancelling_stops_the_process_at_once(driver: SQLite, asked: list[str]) -> None:
    (reader,) = driver._processes._idle
    cancellation = Cancellation()
    slow = f"{COUNTED} SELECT a.i FROM n a, n b WHERE a.i < 9000 OR b.i < 0"  # 180 million rows, the first fast
    began = time.monotonic()
    threading.Timer(1.0, cancellation.cancel).start()
    with pytest.raises(CancelledError), driver.query(slow, cancellation=cancellation) as stream:
        for _ in stream:
            pass
    assert asked
    assert time.monotonic() - began < 10
    assert reader.ended()
    assert table(driver, "SELECT count(*) AS n FROM t")["n"].to_pylist() == [ROWS]


def test_closing_early_stops_the_process(driver: SQLite, asked: list[str]) -> None:
    (reader,) = driver._processes._idle
    with driver.query(f"{COUNTED} SELECT a.i FROM n a, n b", cancellation=Cancellation()) as stream:
        next(stream)
    assert asked
    assert reader.ended()


def test_a_process_that_ended_is_replaced_by_the_connection(driver: SQLite, asked: list[str]) -> None:
    (reader,) = driver._processes._idle
    reader.kill()
    assert table(driver, "SELECT id FROM t").num_rows == ROWS
    reader.kill()
    assert table(driver, "SELECT id FROM t").num_rows == ROWS


def test_a_large_result_starts_a_process(driver: SQLite, asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    driver._processes._idle.pop().close()
    monkeypatch.setattr(readers, "START_ROWS", 10_000)
    table(driver, "SELECT id FROM t LIMIT 9999")
    assert not driver._processes._idle
    table(driver, "SELECT id FROM t")
    assert driver._processes.any(60)
    assert not asked
    table(driver, "SELECT id FROM t")
    assert asked


def test_processes_start_for_a_large_file_once_a_query_is_planned(
    driver: SQLite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, the first large result was read without."""
    driver.statistics("t")
    assert len(driver._processes._idle) == 1
    monkeypatch.setattr(readers, "LARGE_BYTES", 1)
    driver.statistics("t")
    assert len(driver._processes._idle) == readers.EXPECTED
    for each in (ended := list(driver._processes._idle)):
        each.kill()  # as after a minute
    until(lambda: all(each.ended() for each in ended))
    driver.statistics("t")
    assert len(driver._processes._idle) == readers.EXPECTED
    assert not any(each.ended() for each in driver._processes._idle)


def test_a_process_does_without_the_libraries_for_people() -> None:
    """They take more than half of its start, and ADBC imports them where they are installed."""
    code = "import runpy, sys; runpy.run_path(sys.argv[1]); print(sorted({'pandas', 'polars'} & sys.modules.keys()))"
    ran = subprocess.run([sys.executable, "-c", code, readers._WORKER], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_a_process_has_a_bound_of_memory(driver: SQLite, asked: list[str]) -> None:
    long = "'x'"
    for _ in range(7):
        long = f"replace({long}, 'x', 'xxxxxxxxxx')"
    sql = f"SELECT CASE WHEN id > 9000 THEN {long} ELSE 'short' END AS v FROM t"
    with pytest.raises(LimitError):
        table(driver, sql)
    assert asked
    update(driver, f"INSERT INTO t (id, s) VALUES ({ROWS + 1}, printf('%.*c', 20000000, 'x'))")
    assert len(table(driver, "SELECT s FROM t")["s"][ROWS].as_py()) == 20_000_000


SERVICE = """
import sys
from dai.drivers import DriverOptions
from dai.drivers.connections import rows
from dai.drivers.sqlite import readers
from dai.drivers.sqlite.driver import SQLite
from dai.streams.cancellation import Cancellation

readers.AGAIN_SECONDS = float("inf")
driver = SQLite.connect(sys.argv[1], DriverOptions())
driver._processes.start()
assert driver._processes.any(60)
print(driver._processes._idle[0]._program.pid, flush=True)
sql = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n WHERE i < 9000"
with driver.query(sql, cancellation=Cancellation()) as stream:
    print(next(stream).num_rows, flush=True)
    next(stream)
"""


def test_a_process_ends_with_its_service_whatever_it_computes(driver: SQLite, sqlite_url: str) -> None:
    with subprocess.Popen([sys.executable, "-c", SERVICE, sqlite_url], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        process = psutil.Process(int(service.stdout.readline()))
        until(lambda: process.cpu_times().user > 1)
        assert process.is_running()
        service.kill()
    until(lambda: not process.is_running())


def test_a_process_that_is_told_to_end_finishes_its_rows(driver: SQLite, asked: list[str]) -> None:
    """A terminal and systemd tell all processes of a service."""
    (reader,) = driver._processes._idle
    with driver.query("SELECT i, s FROM t", cancellation=Cancellation()) as stream:
        rows = next(stream).num_rows
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(reader._program.pid, number)
        assert rows + sum(each.num_rows for each in stream) == ROWS
    assert asked


def test_closing_the_driver_ends_the_processes(sqlite_url: str) -> None:
    made = SQLite.connect(sqlite_url, DriverOptions())
    made._processes.start()
    (reader,) = made._processes._idle
    process = psutil.Process(reader._program.pid)
    made.close()
    assert not process.is_running()
    made._processes.start()
    assert not made._processes._idle
