"""Query-scoped tables on real databases."""

from __future__ import annotations

import contextlib
import datetime
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import MySQLdb
import psycopg
import pyarrow as pa
import pytest
from sqlalchemy.engine import make_url

from dai.drivers import Driver, driver_for
from dai.drivers.mariadb import syntax as mariadb
from dai.drivers.postgresql import syntax as postgresql
from dai.drivers.sql import query_tables
from dai.drivers.sql.query_tables import MOST_BYTES, checked, preceded
from dai.errors import CancelledError, DaiError, DataError, LimitError, NotAQueryError, ParameterError, StatementError
from dai.streams.cancellation import Cancellation

KINDS = ("postgres", "mariadb", "sqlite", "duckdb")
ODD = ["", " ", "a", "A", "é", "e", "it's", 'say "no"', "back\\slash", "{1,NULL}", "tab\tnew\nline", "𝄞", "?", "NULL"]
_LATE = datetime.datetime(2024, 2, 29, 23, 59, 59, 999999)
TABLE = pa.table(
    {
        "number": pa.array([1, -(2**63), 2**63 - 1, None], pa.int64()),
        "decimal": pa.array([Decimal("1.50"), Decimal("-99999999.99"), None, Decimal(0)], pa.decimal128(10, 2)),
        "day": pa.array([datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None, datetime.date(2024, 2, 29)]),
        "moment": pa.array([_LATE, None, datetime.datetime(1000, 1, 1), None], pa.timestamp("us")),
        "real": pa.array([0.1, -0.0, 5e-324, None]),
        "text": pa.array(["x", None, "", "é"]),
    }
)


@pytest.fixture(params=KINDS)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    with contextlib.closing(driver_for(request.getfixturevalue(f"{request.param}_url"))) as made:
        for sql in (
            "DROP TABLE IF EXISTS joined_to",
            "CREATE TABLE joined_to (id int, name varchar(40), amount decimal(10,2))",
            "INSERT INTO joined_to VALUES (1, 'a', 1), (2, 'A', 2), (3, 'é', 3), (4, NULL, NULL), (NULL, 'b', 0)",
        ):
            made.update(sql, cancellation=Cancellation())
        yield made
        made.update("DROP TABLE IF EXISTS joined_to", cancellation=Cancellation())


def ask(driver: Driver, sql: str, tables: dict[str, Any], *parameters: Any) -> list[tuple[Any, ...]]:
    with driver.query(sql, parameters, cancellation=Cancellation(), tables=tables) as stream:
        return [tuple(row.values()) for row in stream.table().to_pylist()]


def nothing_left(driver: Driver, name: str) -> None:
    """No connection of the pool has the table: the first to be asked is the one that had it."""
    assert driver.pool_state()["open"] == driver.pool_state()["idle"]
    with pytest.raises(StatementError):
        driver.query(f"SELECT * FROM {name}", cancellation=Cancellation()).close()


def test_every_value_arrives_as_it_is(driver: Driver) -> None:
    with driver.query("SELECT * FROM given", cancellation=Cancellation(), tables={"given": TABLE}) as stream:
        actual = stream.table()
    # PostgreSQL's numeric travels as its text.
    column = actual.column("decimal").cast(pa.decimal128(10, 2))
    actual = actual.set_column(actual.schema.get_field_index("decimal"), "decimal", column)
    assert sorted(actual.to_pylist(), key=repr) == sorted(TABLE.to_pylist(), key=repr)


def test_odd_texts(driver: Driver) -> None:
    table = pa.table({"place": range(len(ODD)), "text": ODD})
    assert ask(driver, "SELECT text FROM given ORDER BY place", {"given": table}) == [(each,) for each in ODD]
    assert ask(driver, "SELECT count(*) FROM given AS a JOIN given AS b ON a.text = b.text", {"given": table}) == [
        (len(ODD),)
    ]


def test_pairs_are_pairs(driver: Driver) -> None:
    given = pa.table({"id": [1, 2, 2, 4, None], "name": ["a", "a", "a", None, "b"]})
    sql = "SELECT id FROM joined_to WHERE (id, name) IN (SELECT id, name FROM given) ORDER BY id"
    table = ask(driver, sql, {"given": given})
    # MariaDB's column is compared in its own collation, in which 'a' is 'A': whoever wants bytes says so in the SQL.
    assert table in ([(1,)], [(1,), (2,)])
    assert table == [(1,)] or driver.dialect == "mysql"


def test_two_tables_and_parameters_and_a_query_that_begins_with(driver: Driver) -> None:
    tables = {"one": pa.table({"a": [1, 2, 3]}), "two": pa.table({"b": pa.array([2, 3, 4], pa.int16())})}
    sql = "WITH both_of AS (SELECT a FROM one JOIN two ON a = b) SELECT a FROM both_of WHERE a > ? ORDER BY a"
    assert ask(driver, sql, tables, 2) == [(3,)]
    recursive = (
        "WITH RECURSIVE up AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM up WHERE n < 3) "
        "SELECT n FROM up JOIN one ON n = a ORDER BY n"
    )
    assert ask(driver, recursive, tables) == [(1,), (2,), (3,)]


def test_it_goes_before_a_table_of_the_database_for_this_query_alone(driver: Driver) -> None:
    assert ask(driver, "SELECT id FROM joined_to", {"joined_to": pa.table({"id": [77]})}) == [(77,)]
    assert ask(driver, "SELECT count(*) FROM joined_to", {}) == [(5,)]


def test_no_rows(driver: Driver) -> None:
    table = pa.table({"id": pa.array([], pa.int32()), "t": pa.array([], pa.string())})
    assert ask(driver, "SELECT id FROM joined_to WHERE id IN (SELECT id FROM given)", {"given": table}) == []


def test_nothing_is_left_after_the_end_a_failure_and_a_close(driver: Driver) -> None:
    table = pa.table({"a": pa.array(range(5_000), pa.int32())})
    assert ask(driver, "SELECT count(*) FROM gone", {"gone": table}) == [(5_000,)]
    nothing_left(driver, "gone")
    with pytest.raises(StatementError) as caught:
        ask(driver, "SELECT nope FROM gone", {"gone": table})
    assert caught.value.position in (None, 8)
    nothing_left(driver, "gone")
    with driver.query("SELECT a.a FROM gone a, gone b", cancellation=Cancellation(), tables={"gone": table}) as stream:
        next(iter(stream))
    nothing_left(driver, "gone")
    assert driver.tables("gone") == ()


def test_nothing_is_left_after_a_cancellation(driver: Driver) -> None:
    table = pa.table({"a": pa.array(range(3_000), pa.int32())})
    cancellation = Cancellation()
    sql = "SELECT count(*) FROM gone a JOIN gone b ON a.a <> b.a + 1 JOIN gone c ON c.a <> b.a + 2 AND a.a <> c.a + 7"
    timer = threading.Timer(0.5, cancellation.cancel)
    timer.start()
    with pytest.raises(CancelledError):
        driver.query(sql, cancellation=cancellation, tables={"gone": table}).table()
    timer.join()
    nothing_left(driver, "gone")


def test_a_query_that_brings_a_table_writes_nothing(driver: Driver) -> None:
    table = {"given": pa.table({"a": [1]})}
    for sql in (
        "INSERT INTO given VALUES (2)",
        "WITH x AS (SELECT 1) INSERT INTO joined_to SELECT a, 'x', 1 FROM given",
        "SELECT 1; DROP TABLE joined_to",
        "DROP TABLE given",
        "CREATE TABLE made AS SELECT * FROM given",
    ):
        with pytest.raises(NotAQueryError):
            ask(driver, sql, table)
    assert ask(driver, "SELECT count(*) FROM joined_to", {}) == [(5,)]


@pytest.mark.parametrize(
    ("tables", "kind"),
    [
        ({"a b": pa.table({"a": [1]})}, ParameterError),
        ({'x" AS (SELECT 1), "y': pa.table({"a": [1]})}, ParameterError),
        ({"x": pa.table({"a": [1]}), "X": pa.table({"a": [1]})}, ParameterError),
        ({"x": pa.table({"a": [1], "A": [1]})}, ParameterError),
        ({"x": pa.table({})}, ParameterError),
        ({"x": pa.table({"": [1]})}, ParameterError),
        ({"x": pa.table({"a": pa.nulls(1).cast(pa.list_(pa.list_(pa.int8())))})}, DaiError),
        ({f"x{at}": pa.table({"a": [1]}) for at in range(17)}, LimitError),
    ],
)
def test_what_is_no_table_is_refused(driver: Driver, tables: dict[str, Any], kind: type[DaiError]) -> None:
    with pytest.raises(kind):
        ask(driver, "SELECT 1", tables)
    assert driver.pool_state()["open"] == driver.pool_state()["idle"]


def test_a_table_that_is_too_large_is_refused(driver: Driver) -> None:
    with pytest.raises(LimitError):
        ask(driver, "SELECT 1", {"x": pa.table({"a": pa.array([b"x" * (MOST_BYTES + 1)])})})
    assert driver.pool_state()["open"] == driver.pool_state()["idle"]


def test_names_that_a_database_has_for_itself(driver: Driver) -> None:
    table = pa.table({"id": [5]})
    mark = "`" if driver.dialect == "mysql" else '"'
    for name in ("sqlite_x", "SQLITE_master", "pg_class", "dual", "temp", "main"):
        sql = f"SELECT id FROM {mark}{name}{mark}"
        if driver.dialect == "sqlite" and name.lower().startswith("sqlite_"):
            with pytest.raises(ParameterError, match="begin with 'sqlite_'") as caught:
                ask(driver, sql, {"fine": table, name: table})
            assert caught.value.hint == "Give the table another name."
            nothing_left(driver, "fine")
        else:
            assert ask(driver, sql, {name: table}) == [(5,)]


def test_a_name_of_with_that_is_a_tables_too(driver: Driver) -> None:
    """As docs/decisions/0015 says."""
    sql, tables = "WITH given AS (SELECT 99 AS id) SELECT id FROM given", {"given": pa.table({"id": [5]})}
    if driver.dialect in ("sqlite", "duckdb"):
        assert ask(driver, sql, tables) == [(99,)]
    else:
        with pytest.raises(StatementError, match=r"given.*more than once|Duplicate query name"):
            ask(driver, sql, tables)


def test_what_stands_for_more_is_counted_before_it_is_copied() -> None:
    rows = 1_000
    words = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int8()), pa.array(["x" * 1_000_000]))
    before = pa.total_allocated_bytes()
    for column, kind in (
        (words, LimitError),
        (pa.nulls(500_000_000), LimitError),
        (pa.array(["x"], pa.string_view()), DataError),
        (pa.array([["x"]]), DataError),
    ):
        with pytest.raises(kind):
            checked({"given": pa.table({"a": column})})
    assert pa.total_allocated_bytes() - before < 1 << 20
    few = checked({"given": pa.table({"a": words.slice(0, 2), "n": pa.nulls(2)})})["given"]
    assert few.schema.types == [pa.string(), pa.string()]


def test_tables_are_counted_after_their_casts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_tables, "MOST_BYTES", 1_000)
    numbers = pa.array(range(100), pa.uint64())
    assert checked({"given": pa.table({"a": numbers.cast(pa.int64())})})["given"].num_rows == 100
    with pytest.raises(LimitError):
        checked({"given": pa.table({"a": numbers})})


def test_quotes_in_a_column_name_are_quotes(driver: Driver) -> None:
    table = pa.table({'a" int); --`': [1, 2]})
    assert ask(driver, "SELECT count(*) FROM given", {"given": table}) == [(2,)]


def test_postgresql_needs_no_right_but_to_read(postgres_url: str) -> None:
    url = make_url(postgres_url.replace("postgresql+psycopg", "postgresql"))
    with psycopg.connect(url.render_as_string(hide_password=False), autocommit=True) as owner:
        database = owner.execute("SELECT current_database()").fetchone()[0]
        owner.execute("CREATE TABLE IF NOT EXISTS read_me AS SELECT 1 AS id")
        owner.execute("DROP ROLE IF EXISTS dai_reader")
        owner.execute("CREATE ROLE dai_reader LOGIN PASSWORD 'only-reads'")
        owner.execute(f'REVOKE TEMPORARY ON DATABASE "{database}" FROM PUBLIC')
        owner.execute("GRANT SELECT ON read_me TO dai_reader")
        try:
            reader = url.set(username="dai_reader", password="only-reads").render_as_string(hide_password=False)
            with psycopg.connect(reader) as check, pytest.raises(psycopg.errors.InsufficientPrivilege):
                check.execute("CREATE TEMPORARY TABLE mine (a int)")
            with contextlib.closing(driver_for(reader)) as driver:
                table = {"given": pa.table({"id": [1, 5]})}
                assert ask(driver, "SELECT id FROM read_me WHERE id IN (SELECT id FROM given)", table) == [(1,)]
        finally:
            owner.execute(f'GRANT TEMPORARY ON DATABASE "{database}" TO PUBLIC')
            owner.execute("DROP TABLE read_me")
            owner.execute("DROP OWNED BY dai_reader")
            owner.execute("DROP ROLE dai_reader")


def test_mariadb_needs_no_right_but_to_read(mariadb_url: str) -> None:
    url = make_url(mariadb_url)
    own = {"host": url.host, "port": url.port, "user": url.username, "password": url.password, "database": url.database}
    with contextlib.closing(MySQLdb.connect(**own, autocommit=True)) as connection, connection.cursor() as owner:
        owner.execute("CREATE OR REPLACE TABLE read_me AS SELECT 1 AS id")
        owner.execute("CREATE OR REPLACE USER dai_reader@'127.0.0.1' IDENTIFIED BY 'only-reads'")
        owner.execute(f"GRANT SELECT ON `{url.database}`.read_me TO dai_reader@'127.0.0.1'")
        try:
            reader = {**own, "user": "dai_reader", "password": "only-reads"}
            refused = pytest.raises(MySQLdb.OperationalError, match="denied")
            with contextlib.closing(MySQLdb.connect(**reader)) as check, check.cursor() as cursor, refused:
                cursor.execute("CREATE TEMPORARY TABLE mine (a int)")
            as_reader = url.set(username="dai_reader", password="only-reads").render_as_string(hide_password=False)
            with contextlib.closing(driver_for(as_reader)) as driver:
                table = {"given": pa.table({"id": [1, 5], "name": ["a", "b"]})}
                sql = "SELECT r.id, g.name FROM read_me r JOIN given g ON r.id = g.id"
                assert ask(driver, sql, table) == [(1, "a")]
        finally:
            owner.execute("DROP TABLE read_me")
            owner.execute("DROP USER dai_reader@'127.0.0.1'")


def test_mariadb_forgets_the_values_too(mariadb_url: str) -> None:
    with contextlib.closing(driver_for(mariadb_url)) as driver:
        assert ask(driver, "SELECT a FROM given", {"given": pa.table({"a": [1]})}) == [(1,)]
        assert driver.pool_state()["open"] == 1
        assert ask(driver, "SELECT @dai_table0 IS NULL", {}) == [(1,)]


def test_mariadb_says_when_a_table_is_larger_than_a_packet(mariadb_url: str) -> None:
    table = {"given": pa.table({"a": pa.array(["x" * 1_000_000] * 60)})}
    with contextlib.closing(driver_for(mariadb_url)) as driver:
        with pytest.raises(LimitError, match="larger than the database takes"):
            ask(driver, "SELECT count(*) FROM given", table)
        assert ask(driver, "SELECT 1", {}) == [(1,)]


@pytest.mark.parametrize(
    ("sql", "made"),
    [
        ("select 1", "WITH d select 1"),
        ("/* c */ select 1", "/* c */ WITH d select 1"),
        ("with a as (select 1) select 2", "with d, a as (select 1) select 2"),
        ("with recursive a as (select 1) select 2", "with recursive d, a as (select 1) select 2"),
        ("(select 1)", "WITH d (select 1)"),
    ],
)
def test_where_the_definitions_go(sql: str, made: str) -> None:
    text, (at, length) = preceded(sql, ["d"], postgresql.SYNTAX)
    assert text == made
    assert text[:at] + text[at + length :] == sql


def test_what_takes_no_definitions() -> None:
    with pytest.raises(NotAQueryError):
        preceded("show tables", ["d"], mariadb.SYNTAX)
