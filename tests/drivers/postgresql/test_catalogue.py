"""PostgreSQL's catalogue: tables, statistics, and the names nearest to one that is misspelt."""

import threading
from typing import Any

import pyarrow as pa
import pytest

from dai.drivers import DriverOptions, driver_for
from dai.drivers.postgresql.driver import PostgreSQL
from dai.errors import (
    NotFoundError,
    StatementError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.drivers.statements import execute, table


def test_reflection(driver: PostgreSQL) -> None:
    execute(
        driver,
        "CREATE SCHEMA lab",
        "CREATE TABLE lab.parent (a int, b varchar(10), PRIMARY KEY (b, a))",
        "CREATE TABLE lab.child (id serial PRIMARY KEY, pa int NOT NULL, pb varchar(10), price numeric(12,2) DEFAULT 0,"
        " at timestamptz(3), tags text[], gen int GENERATED ALWAYS AS IDENTITY,"
        " FOREIGN KEY (pb, pa) REFERENCES lab.parent (b, a))",
        "CREATE UNIQUE INDEX child_lower ON lab.child (lower(pb), price)",
        "COMMENT ON TABLE lab.child IS 'small ones'",
        "COMMENT ON COLUMN lab.child.price IS 'in euro'",
        "CREATE VIEW lab.seen AS SELECT id FROM lab.child",
        "INSERT INTO lab.parent SELECT n, 'b' FROM generate_series(1, 100) AS n",
        "ANALYZE lab.parent",
    )
    actual = {each.name: each for each in driver.tables("lab.%")}
    assert {name: each.kind for name, each in actual.items()} == {"child": "table", "parent": "table", "seen": "view"}
    child, parent = actual["child"], actual["parent"]
    assert parent.primary_key == ("b", "a")
    assert parent.rows == 100
    assert child.rows is None
    assert child.comment == "small ones"
    (key,) = child.foreign_keys
    assert (key.columns, key.schema, key.table, key.referred_columns) == (("pb", "pa"), "lab", "parent", ("b", "a"))
    assert [(index.columns, index.unique) for index in child.indexes] == [
        (("lower(pb::text)", "price"), True),
        (("id",), True),
    ]
    columns = {each.name: each for each in child.columns}
    assert list(columns) == ["id", "pa", "pb", "price", "at", "tags", "gen"]
    assert columns["id"].autoincrement
    assert columns["gen"].autoincrement
    assert not columns["pa"].nullable
    price = columns["price"]
    assert (price.type, price.precision, price.scale, price.default, price.comment) == (
        "numeric", 12, 2, "0", "in euro"
    )  # fmt: skip
    assert price.arrow == str(pa.decimal128(12, 2))
    assert (columns["pb"].length, columns["at"].precision, columns["tags"].type) == (10, 3, "text[]")
    assert [each.name for each in driver.tables("par%")] == ["parent"]
    known = driver.statistics("lab.parent")
    assert (known.rows, known.columns["a"].distinct, known.columns["a"].low) == (100, 100, "1")
    with pytest.raises(NotFoundError, match="parent"):
        driver.statistics("lab.parnt")


def test_the_ends_of_a_column_are_among_its_common_values_too(driver: PostgreSQL) -> None:
    execute(
        driver,
        "CREATE TABLE common AS SELECT (n % 5) * 2.5 AS few, n % 3 - 10 AS whole, date '2020-01-31' + n % 2 AS d"
        " FROM generate_series(1, 1000) AS n",
        "ANALYZE common",
    )
    known = driver.statistics("common").columns
    ends = {name: (each.low, each.high) for name, each in known.items()}
    assert ends == {"few": ("0.0", "10.0"), "whole": ("-10", "-8"), "d": ("2020-01-31", "2020-02-01")}


def test_common_values_have_their_part_of_the_rows(driver: PostgreSQL) -> None:
    execute(
        driver,
        "CREATE TABLE often AS SELECT n AS id, CASE WHEN n % 10 < 8 THEN 'much, \"of\" it' ELSE 'few' || n END AS s, "
        "n % 4 = 0 AS b, CASE WHEN n % 5 = 0 THEN 2.50 END AS n, repeat('x', 101) AS long, 'ab'::char(5) AS c"
        " FROM generate_series(1, 1000) AS n",
        "ANALYZE often",
    )
    common = {name: dict(each.common) for name, each in driver.statistics("often").columns.items()}
    assert common["s"] == {'much, "of" it': pytest.approx(0.8)}
    assert common["b"] == {"f": pytest.approx(0.75), "t": pytest.approx(0.25)}
    assert common["n"] == {"2.50": pytest.approx(0.2)}
    assert common["id"] == common["long"] == common["c"] == {}


def test_whether_a_table_lies_in_the_order_of_a_column(driver: PostgreSQL) -> None:
    execute(
        driver,
        "CREATE TABLE laid AS SELECT n AS up, -n AS down, n * 7919 % 1000 AS anyhow, 1 AS one"
        " FROM generate_series(1, 1000) AS n",
        "ANALYZE laid",
    )
    known = {name: each.correlation for name, each in driver.statistics("laid").columns.items()}
    assert (known["up"], known["down"]) == (1, -1)
    assert known["anyhow"] is not None
    assert abs(known["anyhow"]) < 0.5


def test_a_misspelt_table_is_named_as_sql_writes_it(postgres_url: str) -> None:
    driver = driver_for(postgres_url, DriverOptions(pool_size=1, pool_wait=30))
    assert isinstance(driver, PostgreSQL)
    execute(driver, "CREATE SCHEMA lab", "CREATE TABLE lab.samples (n int)", 'CREATE TABLE "Runs" (n int)')

    def hint(sql: str) -> str | None:
        with pytest.raises(StatementError) as caught:
            table(driver, sql)
        assert caught.value.sqlstate == "42P01"
        return caught.value.hint

    assert hint("SELECT * FROM samples") == "Did you mean 'lab.samples'?"
    assert hint("SELECT * FROM lab.sampels") == "Did you mean 'lab.samples'?"
    assert hint("SELECT * FROM Runs") == "Did you mean '\"Runs\"'?"
    assert hint("SELECT zzz.n FROM lab.samples") == 'Known: "Runs", lab.samples.'
    execute(driver, "CREATE TABLE made (n int)")
    assert hint("SELECT made.n FROM lab.samples") is None
    with pytest.raises(NotFoundError) as missing:
        driver.load("samples", Stream.of(pa.table({"n": [1]})), cancellation=Cancellation())
    assert missing.value.hint == "Did you mean 'lab.samples'?"
    driver.close()


def test_without_a_free_connection_a_misspelt_table_is_an_error_all_the_same(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = driver_for(postgres_url, DriverOptions(pool_size=1, pool_wait=600))
    assert isinstance(driver, PostgreSQL)
    asked = threading.Event()
    look = driver._quoted_names

    def known(names: str, values: list[Any], cancellation: Cancellation) -> dict[str, str]:
        held = driver._connections.take(Cancellation())
        try:
            return look(names, values, cancellation)
        finally:
            driver._connections.give_back(held)
            asked.set()

    monkeypatch.setattr(driver, "_quoted_names", known)
    execute(driver, "CREATE TABLE made (n int)")
    with pytest.raises(StatementError) as caught:
        table(driver, "SELECT * FROM maid")
    assert asked.is_set()
    assert caught.value.hint is None
    driver.close()
