"""A table of SQLite, a driver with one process that reads, and what processes are asked."""

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest

from dai.drivers import DriverOptions
from dai.drivers.sqlite import handover, readers
from dai.drivers.sqlite.driver import SQLite
from tests.drivers.statements import table, update

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


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the table, to be copied."""
    path = tmp_path_factory.mktemp("readers") / "filled.db"
    with closing(SQLite.connect(f"sqlite:///{path}", DriverOptions())) as made:
        update(made, TABLE)
        update(made, FILL)
    return path


@pytest.fixture(scope="session")
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
    monkeypatch.setattr(handover, "AGAIN_SECONDS", float("inf"))
    monkeypatch.setattr(handover, "START_ROWS", 1 << 40)
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
    left += made._processes._idle[:1]
    del made._processes._idle[:1]
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


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes more than a few steps of SQLite is read by a process from its first row on."""
    monkeypatch.setattr(handover, "STEPS", 50)
    monkeypatch.setattr(handover, "FIRST_SECONDS", 0.0)
