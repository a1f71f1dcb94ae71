"""The processes that read SQLite: when they start and end, who waits for them, and what stops them."""

import os
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from dai.drivers import DriverOptions
from dai.drivers.sqlite import forks, handover, readers, worker
from dai.drivers.sqlite.driver import SQLite
from dai.errors import CancelledError, LimitError
from dai.streams import program
from dai.streams.cancellation import Cancellation
from tests.drivers.sqlite.conftest import COUNTED, ROWS
from tests.drivers.statements import table, update
from tests.processes import until


@pytest.fixture
def busy(driver: SQLite, monkeypatch: pytest.MonkeyPatch) -> readers.Reader:
    """The only process that there may be, which statements wait for longer than a test takes."""
    monkeypatch.setattr(handover, "WAIT_SECONDS", 1e9)
    monkeypatch.setattr(readers.Readers.start, "__defaults__", (1,))
    taken = driver._processes.take()
    assert taken is not None
    return taken


def test_a_statement_waits_for_a_process_that_is_at_work(
    driver: SQLite, asked: list[str], busy: readers.Reader
) -> None:
    waiting = threading.Timer(0.3, driver._processes.give_back, (busy, True))
    waiting.start()
    assert table(driver, "SELECT i FROM t").num_rows == ROWS
    waiting.join()
    assert len(asked) == 1


@pytest.mark.usefixtures("at_once")
def test_a_statement_without_a_row_does_not_wait(driver: SQLite, asked: list[str], busy: readers.Reader) -> None:
    """It may be shorter than what it would wait for, and could not be cancelled."""
    assert table(driver, "SELECT i FROM t WHERE id % 9000 = 1").num_rows == 3
    assert not asked
    driver._processes.give_back(busy, True)


def test_who_waits_can_be_cancelled(driver: SQLite, busy: readers.Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "WAIT_SECONDS", 0.2)
    cancellation = Cancellation()
    with driver.query("SELECT i FROM t", cancellation=cancellation) as stream:
        threading.Timer(0.1, cancellation.cancel).start()
        with pytest.raises(CancelledError):
            list(stream)
    driver._processes.give_back(busy, True)


def test_a_statement_does_not_wait_for_one_whose_rows_nobody_reads(
    driver: SQLite, asked: list[str], busy: readers.Reader
) -> None:
    busy.left_at = time.monotonic() - 1.0
    assert table(driver, "SELECT i FROM t").num_rows == ROWS
    assert not asked
    driver._processes.give_back(busy, True)


def test_one_more_begins_where_all_are_at_work(driver: SQLite, asked: list[str]) -> None:
    taken = driver._processes.take()
    assert taken is not None
    assert table(driver, "SELECT i FROM t").num_rows == ROWS
    assert len(asked) == 1
    driver._processes.give_back(taken, True)
    more, _ = driver._processes._idle
    driver._processes._idle.remove(more)
    more.close()


def test_a_process_begins_at_once_where_there_is_none(driver: SQLite, asked: list[str]) -> None:
    """As after a minute without a query."""
    driver._processes._idle.pop().close()
    assert table(driver, "SELECT i FROM t").num_rows == ROWS
    assert len(asked) == 1


def test_what_forks_is_replaced_where_it_has_ended(driver: SQLite, asked: list[str]) -> None:
    assert forks.FORKS.process is not None
    forks.FORKS.process.kill()
    until(lambda: not forks.FORKS.ready)
    driver._processes._idle.pop().close()
    driver._processes.start()
    assert driver._processes.any(60)
    assert table(driver, "SELECT i FROM t").num_rows == ROWS
    assert len(asked) == 1


@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_a_fork_of_this_process_has_none_of_its_own() -> None:
    pid = os.fork()
    if not pid:
        os._exit(int(forks.FORKS._control is not None))
    assert os.waitpid(pid, 0) == (pid, 0)


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


def test_cancelling_ends_a_process_that_does_not_run(driver: SQLite, asked: list[str]) -> None:
    (reader,) = driver._processes._idle
    cancellation = Cancellation()
    slow = f"{COUNTED} SELECT a.i FROM n a, n b WHERE a.i < 9000 OR b.i < 0"
    with driver.query(slow, cancellation=cancellation) as stream:
        next(stream)
        assert reader.pid is not None
        os.kill(reader.pid, signal.SIGSTOP)
        threading.Timer(0.2, cancellation.cancel).start()
        with pytest.raises(CancelledError):
            list(stream)
    assert asked
    assert reader.ended()


def test_descriptors_with_high_numbers(driver: SQLite, asked: list[str]) -> None:
    driver._processes._idle.pop().close()
    forks.FORKS.close()
    with ExitStack() as held:
        for _ in range(1_100):
            held.callback(os.close, os.open("/", os.O_RDONLY))
        driver._processes.start()
        assert driver._processes.any(60)
        assert table(driver, "SELECT i FROM t").num_rows == ROWS
    assert len(asked) == 1


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
    monkeypatch.setattr(program.ForkServer, "ready", False)  # as in a process that has not read much yet
    monkeypatch.setattr(handover, "START_ROWS", 10_000)
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
    ran = subprocess.run(
        [sys.executable, "-c", code, *forks.FORKS._arguments], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"


def test_a_process_does_without_locks() -> None:
    """SQLite refuses what is said after its first use, so it is SQLite that is asked."""
    read = (
        "import adbc_driver_sqlite.dbapi as adbc; from dai.drivers.sqlite.worker import LIBRARY, without_locks; "
        "print(without_locks(LIBRARY)); cursor = adbc.connect().cursor(); cursor.execute('select 7'); "
        "print(cursor.fetchall(), without_locks(LIBRARY))"
    )
    done = subprocess.run([sys.executable, "-c", read], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["True", "[(7,)] False"]


def library(*symbols: tuple[bytes, int, int, int]) -> bytes:
    """An ELF file with these symbols: name, type, number of the section (0: of another library) and value."""
    names = b"\0" + b"".join(name + b"\0" for name, *_ in symbols)
    entries = b"".join(
        struct.pack("<IBBHQQ", names.index(b"\0" + name + b"\0") + 1, type, 0, section, value, 0)
        for name, type, section, value in symbols
    )
    sections = [(0, 0, 0, 0), (3, 64, len(names), 0), (2, 64 + len(names), len(entries), 1)]
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", 0, kind, 0, 0, at, size, link, 0, 0, 0) for kind, at, size, link in sections
    )
    head = struct.pack("<6s34xQ10xHH2x", b"\x7fELF\x02\x01", 64 + len(names) + len(entries), 64, len(sections))
    return head + names + entries + table


FUNCTION, DATA = 0x12, 0x11


@pytest.mark.parametrize(
    ("symbols", "places"),
    [
        ([(b"AdbcDriverInit", FUNCTION, 1, 16), (b"sqlite3_config", 0x02, 1, 32)], ({16}, {32})),
        ([(b"AdbcDriverInit", FUNCTION, 1, 16), (b"sqlite3_config", FUNCTION, 0, 0)], ({16}, set())),
        ([(b"AdbcDriverInit", FUNCTION, 1, 16), (b"sqlite3_config", DATA, 1, 32)], ({16}, set())),
        ([(b"sqlite3_config", FUNCTION, 1, 16), (b"sqlite3_config", FUNCTION, 1, 32)], (set(), {16, 32})),
        ([(b"xsqlite3_config", FUNCTION, 1, 16), (b"sqlite3_config_", FUNCTION, 1, 32)], (set(), set())),
    ],
    ids=["functions", "of another library", "no function", "two", "other names"],
)
def test_where_a_library_has_its_functions(
    symbols: list[tuple[bytes, int, int, int]], places: tuple[set[int], set[int]], tmp_path: Path
) -> None:
    assert worker._places(library(*symbols)) == dict(zip(("AdbcDriverInit", "sqlite3_config"), places, strict=True))
    if not all(len(each) == 1 for each in places):
        (tmp_path / "library.so").write_bytes(library(*symbols))
        assert not worker.without_locks(str(tmp_path / "library.so"))


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(58), library()[:-1], b"text" * 100])
def test_a_library_that_does_not_say_where_its_functions_are(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "library.so").write_bytes(content)
    assert not worker.without_locks(str(tmp_path / "library.so"))


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
from dai.drivers.sqlite import handover
from dai.drivers.sqlite.driver import SQLite
from dai.streams.cancellation import Cancellation

handover.AGAIN_SECONDS = float("inf")
driver = SQLite.connect(sys.argv[1], DriverOptions())
driver._processes.start()
assert driver._processes.any(60)
print(driver._processes._idle[0].pid, flush=True)
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
        assert reader.pid is not None
        for number in (signal.SIGTERM, signal.SIGINT):
            os.kill(reader.pid, number)
        assert rows + sum(each.num_rows for each in stream) == ROWS
    assert asked


def test_closing_the_driver_ends_the_processes(sqlite_url: str) -> None:
    made = SQLite.connect(sqlite_url, DriverOptions())
    made._processes.start()
    (reader,) = made._processes._idle
    assert reader.begun(60)
    process = psutil.Process(reader.pid)
    made.close()
    until(lambda: not process.is_running())
    made._processes.start()
    assert not made._processes._idle


def test_a_process_sorts_where_the_service_would(tmp_path: Path) -> None:
    """Elsewhere it filled a disk that others need."""
    code = (
        "from pathlib import Path; from dai.drivers.sqlite.forks import fork; each = fork(); each.begun(90);"
        "print(Path(f'/proc/{each.pid}/environ').read_text().replace(chr(0), chr(10))); each.close(5)"
    )
    environment = {**os.environ, "SQLITE_TMPDIR": str(tmp_path), "SECRET": "secret"}
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert f"SQLITE_TMPDIR={tmp_path}" in said.stdout.splitlines()
    assert "secret" not in said.stdout
