"""Parts of tables of SQLite, by the number of the row or by a key; its keys that are NULL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

import dqp
from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra import arrival
from dqp.algebra.operators import Filter, Project, Remote, Scan, column
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from dqp.errors import ChangedError
from dqp.execution.fetch import read
from dqp.settings import FederationSettings
from tests.dqp.doubles import Double, batch, execution


@pytest.mark.parametrize(
    ("columns", "by"),
    [
        ("id INTEGER PRIMARY KEY, v BIGINT)", "id"),
        ("id BIGINT PRIMARY KEY, v BIGINT)", "rowid"),
        ("id INTEGER, n INTEGER, v BIGINT, PRIMARY KEY (id, n))", "rowid"),
        ("id INTEGER, v BIGINT)", "rowid"),
        ("id BIGINT PRIMARY KEY, v BIGINT) WITHOUT ROWID", "id"),
        ("id BIGINT, n INTEGER DEFAULT 0, v BIGINT, PRIMARY KEY (id, n)) WITHOUT ROWID", "id"),
        ("id BIGINT PRIMARY KEY, rowid TEXT, v BIGINT)", "id"),
        ("id INTEGER PRIMARY KEY DESC, v BIGINT)", "rowid"),
    ],
)
def test_scans_of_sqlite_are_read_in_parts_that_stand_together(tmp_path: Path, columns: str, by: str) -> None:
    driver = driver_for(f"sqlite:///{tmp_path / 'x.sqlite'}")
    driver.update(f"CREATE TABLE t ({columns}", cancellation=Cancellation())
    driver.load("t", Stream.of(batch(-50, 3_000)), cancellation=Cancellation())
    driver.update("DELETE FROM t WHERE v % 7 = 0", cancellation=Cancellation())
    catalog = Catalog(FederationSettings(), sources=[DriverSource("db", driver)])
    table = catalog.table("db", "t")
    assert table.ranged is not None
    assert table.ranged.name == by
    with execution(split_rows=1, splits=3) as running:
        actual = read(Remote("db", Scan(table, (("v", "v"),))), catalog, running).table()
        (measured,) = running.measurements()
    assert len(measured.statements) == (12 if by == "rowid" else 3)
    assert all(by in each for each in measured.statements)
    assert not any("+" in each for each in measured.statements), "Each would read all."
    wanted = [each for each in batch(-50, 3_000).column("v").to_pylist() if each % 7]
    assert sorted(actual.column(0).to_pylist()) == sorted(wanted)
    catalog.close()


@pytest.mark.parametrize("columns", ["id BIGINT PRIMARY KEY, rowid TEXT", "id INTEGER PRIMARY KEY DESC"])
@pytest.mark.parametrize("replicas", [(), (("other", None, "t"),)])
def test_rows_of_sqlite_without_a_key_are_in_a_part(
    tmp_path: Path, columns: str, replicas: tuple[tuple[str, str | None, str], ...]
) -> None:
    """It takes NULL in a primary key that is not the rowid."""
    driver = driver_for(f"sqlite:///{tmp_path / 'x.sqlite'}")
    driver.update(f"CREATE TABLE t ({columns}, v BIGINT)", cancellation=Cancellation())
    ids = [each if each % 10 else None for each in range(1_000)]
    rows = pa.record_batch({"id": pa.array(ids, pa.int64()), "v": pa.array(range(1_000), pa.int64())})
    driver.load("t", Stream.of(rows), cancellation=Cancellation())
    catalog = Catalog(FederationSettings(), sources=[DriverSource("db", driver)])
    table = replace(catalog.table("db", "t"), replicas=replicas)
    with execution(split_rows=1, splits=3) as running:
        actual = read(Remote("db", Scan(table, (("v", "v"),))), catalog, running).table()
    assert sorted(actual.column(0).to_pylist()) == [*range(1_000)]
    catalog.close()


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE t RENAME TO u; CREATE VIEW t AS SELECT * FROM u",
        "ALTER TABLE t ADD COLUMN rowid INTEGER",
    ],
)
def test_a_table_whose_rows_have_no_numbers_any_more_is_planned_again(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrival, "PROBED_SECONDS", 0.0)
    driver = driver_for(f"sqlite:///{tmp_path / 'x.sqlite'}")
    driver.update("CREATE TABLE t (id BIGINT, v BIGINT)", cancellation=Cancellation())
    driver.load("t", Stream.of(batch(1, 1_000)), cancellation=Cancellation())
    catalog = Catalog(FederationSettings(), sources=[DriverSource("db", driver)])
    remote = Remote("db", Scan(catalog.table("db", "t"), (("v", "v"),)))
    with execution(split_rows=1, splits=3) as running:
        assert read(remote, catalog, running).table().num_rows == 1_000
    with closing(sqlite3.connect(tmp_path / "x.sqlite")) as connection:
        connection.executescript(change)
    with execution(split_rows=1, splits=3) as running, pytest.raises(ChangedError):
        read(remote, catalog, running).table()
    catalog.close()


@pytest.mark.parametrize(("columns", "statements"), [("id INTEGER PRIMARY KEY", 3), ("id BIGINT PRIMARY KEY", 1)])
def test_a_table_with_copies_is_not_read_in_ranges_that_stand_apart(
    tmp_path: Path, columns: str, statements: int
) -> None:
    driver = driver_for(f"sqlite:///{tmp_path / 'x.sqlite'}")
    driver.update(f"CREATE TABLE t ({columns}, v BIGINT)", cancellation=Cancellation())
    driver.load("t", Stream.of(batch(-50, 3_000)), cancellation=Cancellation())
    source = DriverSource("db", driver)
    catalog = Catalog(
        FederationSettings(replicas={"db.t": ("other.t",)}),
        sources=[source, Double("other", lambda *_: Stream.of(batch(1, 1)))],
    )
    table = catalog.table("db", "t")
    assert table.replicas
    with execution(split_rows=1, splits=3) as running:
        assert read(Remote("db", Scan(table, (("v", "v"),))), catalog, running).table().num_rows == 3_000
        (measured,) = running.measurements()
    assert len(measured.statements) == statements
    catalog.close()


@pytest.mark.parametrize(
    "definition", ["id BIGINT PRIMARY KEY", "id INTEGER PRIMARY KEY DESC", "id INTEGER, n INTEGER, PRIMARY KEY (id, n)"]
)
def test_not_in_a_primary_key_with_null_is_never_true(tmp_path: Path, definition: str) -> None:
    for name, sql in {
        "keys": f"CREATE TABLE t ({definition}); INSERT INTO t (id) VALUES (1), (NULL)",
        "rows": "CREATE TABLE u (v INTEGER); INSERT INTO u VALUES (1), (2)",
    }.items():
        with closing(sqlite3.connect(tmp_path / f"{name}.db")) as connection:
            connection.executescript(sql)
    sources = {name: f"sqlite:///{tmp_path / name}.db" for name in ("keys", "rows")}
    with dqp.connect({"sources": sources}) as lab:
        assert lab.sql("SELECT v FROM rows.u WHERE v NOT IN (SELECT id FROM keys.t)").rows() == []


def test_parts_of_sqlite_have_the_planned_types(tmp_path: Path) -> None:
    """Its columns have the types of their values: others in other parts, none in a part without rows."""
    driver = driver_for(f"sqlite:///{tmp_path / 'x.sqlite'}")
    driver.update("CREATE TABLE t (id BIGINT, v NUMERIC)", cancellation=Cancellation())
    rows = "WITH RECURSIVE r(id) AS (SELECT 1 UNION ALL SELECT id + 1 FROM r WHERE id < 3000) "
    driver.update(f"INSERT INTO t {rows} SELECT id, id + (id = 1) * 0.5 FROM r", cancellation=Cancellation())
    catalog = Catalog(FederationSettings(), sources=[DriverSource("db", driver)])
    table = catalog.table("db", "t")
    assert [each.type for each in table.columns] == ["BIGINT", "DOUBLE"]
    scan = Scan(table, (("id", "id"), ("v", "v")))
    price = exp.Cast(this=exp.Literal.number("0.00"), to=exp.DataType.build("DECIMAL(7,2)", dialect="duckdb"))
    items = (("v", column("v")), ("zero", exp.Literal.number(0)), ("price", price))
    tree = Project(Filter(scan, sqlglot.parse_one("id < 900", read="duckdb")), items)
    with execution(split_rows=1, splits=3) as running:
        actual = read(Remote("db", tree), catalog, running).table()
        (measured,) = running.measurements()
    assert len(measured.statements) == 12
    assert [str(each) for each in actual.schema.types] == ["double", "int32", "decimal128(7, 2)"]
    assert sorted(actual["v"].to_pylist()) == [1.5, *map(float, range(2, 900))]
    assert {*actual["zero"].to_pylist(), *actual["price"].to_pylist()} == {0}
    catalog.close()
