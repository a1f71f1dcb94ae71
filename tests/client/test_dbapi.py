"""The DB-API of a resource, beyond the compliance tests of PEP 249 (test_dbapi20.py)."""

import datetime
import threading
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dai import dbapi
from dai.client.testing import ScriptedServer
from tests.client.databases import BINARY, DATABASES, MOMENT, Connect, table
from tests.client.replies import said

ENDLESS = {
    "postgresql": "select generate_series(1, 1000000000) as n",
    "sqlite": "with recursive c(n) as (select 1 union all select n + 1 from c) select n from c",
    "duckdb": "select n from range(1, 1000000000000) r(n)",
}
WORK = {
    "postgresql": "select count(*) from generate_series(1, 2000000000) n",
    "sqlite": "with recursive c(n) as (select 1 union all select n + 1 from c) select count(*) from c",
    "lab": "select count(*) from range(100000000000) a, range(1000) b where a.range % 7 = b.range % 3",
}
VALUES = [
    7,
    "a\r\n'b' <&> \\ \u00e9",
    Decimal("1.50"),
    datetime.date(2024, 2, 29),
    datetime.datetime(2024, 2, 29, 1, 2, 3, 4),
    b"\x00\xff",
    1.5,
]


def every_type(connection: dbapi.Connection, database: str) -> str:
    moment = MOMENT.get(database, "timestamp")
    return table(
        connection,
        "every_type",
        f"id integer primary key, name varchar(50), price numeric(8,2), day date, moment {moment}, "
        f"data {BINARY[database]}, number double precision",
    )


@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("many", [False, True])
def test_values_of_every_type_come_back(connect: Connect, database: str, many: bool) -> None:
    connection = connect(database)
    name = every_type(connection, database)
    cursor = connection.cursor()
    nulls = [8, *[None] * 6]
    statement = f"insert into {name} values (?, ?, ?, ?, ?, ?, ?)"
    if many:
        cursor.executemany(statement, [VALUES, nulls])
        assert cursor.rowcount == 2
    else:
        assert [cursor.execute(statement, row).rowcount for row in (VALUES, nulls)] == [1, 1]
    assert cursor.execute(f"select * from {name} order by id").fetchall() == [tuple(VALUES), tuple(nulls)]
    for column, value in zip(("name", "price", "day", "moment", "data"), VALUES[1:6], strict=True):
        assert cursor.execute(f"select id from {name} where {column} = ?", [value]).fetchall() == [(7,)], column


@pytest.mark.parametrize("database", DATABASES)
def test_a_text_that_xml_cannot_carry(connect: Connect, database: str) -> None:
    connection = connect(database)
    name = table(connection, "texts", "name varchar(50)")
    connection.execute(f"insert into {name} values (?)", ["\x01\ufffe"])
    assert connection.execute(f"select name from {name}").fetchall() == [("\x01\ufffe",)]


def test_values_of_numpy_and_pandas_and_uuids(connect: Connect) -> None:
    cursor = connect("postgresql").cursor()
    unique = UUID(int=5)
    cursor.execute(
        "select cast(? as integer) + 1, cast(? as timestamp), cast(? as uuid)",
        [np.int64(1), pd.Timestamp("2024-02-29"), unique],
    )
    assert cursor.fetchall() == [(2, datetime.datetime(2024, 2, 29), str(unique))]


@pytest.mark.parametrize("database", DATABASES)
def test_a_statement_with_many_rows_is_one_transaction(connect: Connect, database: str) -> None:
    connection = connect(database)
    name = table(connection, "once", "id integer primary key")
    with pytest.raises(dbapi.IntegrityError) as caught:
        connection.cursor().executemany(f"insert into {name} values (?)", [(n,) for n in (1, 2, 2)])
    assert str(caught.value.sqlstate).startswith("23")
    assert connection.execute(f"select count(*) from {name}").fetchone() == (0,)


def test_rows_of_parameters_that_do_not_fit(connect: Connect) -> None:
    cursor = connect("sqlite").cursor()
    with pytest.raises(dbapi.DataError, match="Row 2 has 1 parameters, row 1 has 2"):
        cursor.executemany("insert into t values (?, ?)", [(1, 2), (1,)])
    with pytest.raises(dbapi.DataError, match="parameter 1 have no type in common"):
        cursor.executemany("insert into t values (?)", [(1,), ("a",)])
    with pytest.raises(dbapi.DataError, match=r"(?s)no parameters.*once for each"):
        cursor.executemany("insert into t default values", [(), ()])
    with pytest.raises(dbapi.ProgrammingError, match="executemany is for statements that change"):
        cursor.executemany("select ?", [(1,)])
    assert cursor.executemany("insert into t values (?)", []).rowcount == 0


@pytest.mark.parametrize("database", DATABASES)
def test_parameters_by_name_and_lists(connect: Connect, database: str) -> None:
    connection = connect(database)
    cursor = connection.cursor()
    name = every_type(connection, database)
    sql = f"insert into {name} values (:id, :name, :price, :day, :moment, :data, :weight)"
    names = ("id", "name", "price", "day", "moment", "data", "weight")
    rows = [dict(zip(names, [number, *VALUES[1:]], strict=True)) for number in (1, 2, 3)]
    assert cursor.executemany(sql, [rows[0], dict(reversed(rows[1].items())), rows[2]]).rowcount == 3
    for column, values in (
        ("id", [1, 3]),
        ("price", [Decimal("1.50"), None]),
        ("day", (datetime.date(2024, 2, 29),)),
        ("data", [b"\x00\xff", b""]),
        ("name", {VALUES[1]}),
        ("id", np.array([1, 3])),
        ("id", pd.Series([1, 3, None], dtype="Int64")),
        ("id", pa.array([1, 3])),
    ):
        cursor.execute(
            f"select id from {name} where {column} in :wanted and id <> :id order by id", {"wanted": values, "id": 2}
        )
        assert cursor.fetchall() == [(1,), (3,)], column
        cursor.execute(f"select id from {name} where {column} in ? and id <> ? order by id", [values, 2])
        assert cursor.fetchall() == [(1,), (3,)], column
    cursor.execute(f"select id from {name} where data not in :none and price in :none", {"none": []})
    assert cursor.fetchall() == []
    cursor.execute(f"delete from {name} where id in :ids or price in :prices", {"ids": [1], "prices": []})
    assert cursor.rowcount == 1
    with pytest.raises(dbapi.DataError, match="a list, which a statement for many rows"):
        cursor.executemany(f"delete from {name} where id in :ids", [{"ids": [1]}, {"ids": [2]}])
    with pytest.raises(dbapi.DataError, match="Row 2 has the parameters b; row 1 has a"):
        cursor.executemany(f"delete from {name} where id = :a", [{"a": 1}, {"b": 2}])


@pytest.mark.parametrize("given", ["text", 7, {1}])
def test_what_is_no_row_of_parameters(connect: Connect, given: Any) -> None:
    with pytest.raises(dbapi.ProgrammingError, match="a sequence of values"):
        connect("sqlite").cursor().execute("select ?", given)


@pytest.mark.parametrize(
    ("sql", "kind", "says"),
    [
        ("select * from nowhere", dbapi.ProgrammingError, "nowhere"),
        ("selct 1", dbapi.ProgrammingError, "Did you mean 'SELECT'"),
        ("insert into nowhere values (1)", dbapi.ProgrammingError, "nowhere"),
        ("insert into strict_table values (null)", dbapi.IntegrityError, "(?i)null"),
        ("select cast('x' as integer) / cast('' as integer)", dbapi.DataError, "invalid input"),
    ],
)
def test_errors_are_those_of_pep_249_with_our_hints(
    connect: Connect, sql: str, kind: type[dbapi.Error], says: str
) -> None:
    connection = connect("postgresql")
    table(connection, "strict_table", "id integer not null")
    with pytest.raises(kind, match=says) as caught:
        connection.execute(sql)
    assert type(caught.value) is kind
    assert caught.value.code == "sql-error"
    assert caught.value.__cause__ is not None
    assert "Activity" not in str(caught.value)


def test_a_resource_that_is_not_there_and_a_service_that_is_not() -> None:
    with pytest.raises(dbapi.OperationalError, match=r"127\.0\.0\.1:9"):
        dbapi.connect("http://127.0.0.1:9/book", retries=0)
    with pytest.raises(dbapi.ProgrammingError, match="is not an address"):
        dbapi.connect("book")


def test_a_query_that_writes_is_a_change(connect: Connect) -> None:
    connection = connect("postgresql")
    name = table(connection, "written", "id integer")
    statement = f"with n as (select 1 as id) insert into {name} select id from n"
    assert connection.execute(f"/* why */ -- so\n {statement}").rowcount == 1
    assert connection.execute(f"select id from {name}").fetchall() == [(1,)]


def test_a_federation_only_reads(connect: Connect) -> None:
    table(connect("postgresql"), "left_side", "id integer")
    connect("postgresql").execute("insert into left_side values (1), (2)")
    table(connect("sqlite"), "right_side", "id integer, name text")
    connect("sqlite").execute("insert into right_side values (2, 'two')")
    lab = connect("lab")
    for wanted, parameter in (([("two",)], 2), ([], 3), ([("two",)], Decimal(2))):
        cursor = lab.execute(
            "select name from pg.left_side l join lite.right_side r on l.id = r.id where l.id = ?", [parameter]
        )
        assert cursor.fetchall() == wanted
    for statement in ("insert into pg.left_side values (3)", "create table t (i integer)"):
        with pytest.raises(dbapi.NotSupportedError, match="read-only"):
            lab.execute(statement)


@pytest.mark.parametrize("database", list(ENDLESS))
def test_rows_stream_and_closing_stops_the_statement(connect: Connect, database: str) -> None:
    connection = connect(database)
    for _ in range(6):  # more than there are connections to the database
        cursor = connection.cursor()
        cursor.execute(ENDLESS[database])
        assert [cursor.fetchone(), *cursor.fetchmany(2)] == [(1,), (2,), (3,)]
        assert cursor.rowcount == -1
        cursor.close()


def test_a_new_statement_stops_the_one_before(connect: Connect) -> None:
    cursor = connect("postgresql").cursor()
    for _ in range(6):
        cursor.execute(ENDLESS["postgresql"])
    assert cursor.fetchone() == (1,)
    cursor.close()


@pytest.mark.parametrize("database", list(WORK))
def test_cancelling_from_another_thread(connect: Connect, database: str) -> None:
    cursor = connect(database).cursor()
    timer = threading.Timer(0.3, cursor.cancel)
    timer.start()
    with pytest.raises(dbapi.OperationalError) as caught:
        cursor.execute(WORK[database]).fetchall()
    assert caught.value.code == "cancelled"
    timer.join()
    assert cursor.execute("select 1").fetchall() == [(1,)]


def test_threads_share_a_connection(connect: Connect) -> None:
    connection = connect("sqlite")

    def asked(number: int) -> list[Any]:
        return connection.execute(ENDLESS["sqlite"] + " limit ?", [number]).fetchall()

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(asked, range(1, 40)))
    assert [len(each) for each in results] == list(range(1, 40))


def test_arrow_is_what_rows_have_left(connect: Connect) -> None:
    cursor = connect("sqlite").cursor()
    cursor.execute(ENDLESS["sqlite"] + " limit 20000")
    assert cursor.fetchmany(3) == [(1,), (2,), (3,)]
    table = cursor.fetch_arrow_table()
    assert table.column("n").to_pylist() == list(range(4, 20001))
    assert cursor.rowcount == 20000
    assert cursor.fetchall() == []
    assert cursor.fetch_arrow_table().num_rows == 0


def test_record_batches_stream(connect: Connect) -> None:
    cursor = connect("postgresql").cursor()
    cursor.blocksize = 100
    reader = cursor.execute(ENDLESS["postgresql"]).fetch_record_batch()
    assert [reader.read_next_batch().num_rows for _ in range(3)] == [100, 100, 100]
    cursor.close()
    cursor = connect("sqlite").cursor().execute(ENDLESS["sqlite"] + " limit 10")
    assert pa.table(cursor).num_rows == 10


def test_values_as_python_has_them(connect: Connect) -> None:
    cursor = connect("postgresql").cursor()
    cursor.execute(
        "select * from (values (1, true, 'nan'::float8, 'a', '10:00'::time, '2024-01-01 00:00+02'::timestamptz, "
        "array[1, null], '{\"a\": 1}'::jsonb, 'NaN'::numeric, 'x'::bytea), "
        "(null, null, null, null, null, null, null, null, null, null)) t"
    )
    first, second = cursor.fetchall()
    assert first[:2] == (1, True)
    assert np.isnan(first[2])
    assert first[3:8] == (
        "a",
        datetime.time(10),
        datetime.datetime(2023, 12, 31, 22, tzinfo=datetime.UTC),
        [1, None],
        '{"a": 1}',
    )
    assert first[8].is_nan()
    assert first[9] == b"x"
    assert second == (None,) * 10


def test_moments_that_python_has_not(connect: Connect) -> None:
    cursor = connect("duckdb").cursor()
    cursor.execute("select timestamp '294000-01-01 00:00:00' as late")
    with pytest.raises(dbapi.DataError, match="late"):
        cursor.fetchall()


@pytest.mark.parametrize(
    ("numeric", "rows", "declared", "undeclared"),
    [
        (None, (Decimal("1.50"), Decimal("0.33333333333333333333")), pa.decimal128(4, 2), pa.string()),
        ("decimal", (Decimal("1.50"), Decimal("0.33333333333333333333")), pa.decimal128(4, 2), pa.decimal256(76, 38)),
        ("double", (1.5, 1 / 3), pa.float64(), pa.float64()),
        ("text", ("1.50", "0.33333333333333333333"), pa.string(), pa.string()),
    ],
)
def test_what_decimal_numbers_are(
    connect: Connect, numeric: str | None, rows: tuple[Any, ...], declared: pa.DataType, undeclared: pa.DataType
) -> None:
    connection = connect("postgresql", numeric=numeric)
    statement = "select 1.50::numeric(4,2) as declared, 1::numeric / 3 as undeclared"
    assert connection.execute(statement).fetchall() == [rows]
    schema = connection.execute(statement).fetch_arrow_table().schema
    if numeric != "decimal":
        assert [each.type for each in schema] == [declared, undeclared]


def test_a_choice_of_numbers_that_is_none(connect: Connect) -> None:
    with pytest.raises(dbapi.ProgrammingError, match="numeric='float' is not possible"):
        connect("sqlite", numeric="float")


def test_descriptions(connect: Connect) -> None:
    cursor = connect("postgresql").cursor()
    assert cursor.description is None
    cursor.execute("select 1 as i, 1.5::numeric(4,2) as n, 'x' as s, current_date as d, 'x'::bytea as b")
    assert cursor.description is not None
    kinds = [dbapi.NUMBER, dbapi.NUMBER, dbapi.STRING, dbapi.DATETIME, dbapi.BINARY]
    assert [each[1] for each in cursor.description] == kinds
    assert cursor.description[0][1] != dbapi.STRING
    assert cursor.description[1][4:6] == (4, 2)
    assert len(set(kinds)) == 4
    connection = cursor.connection
    connection.execute("create table if not exists described (i integer)")
    assert connection.execute("delete from described").description is None


def test_transactions_are_single_statements(connect: Connect) -> None:
    connection = connect("sqlite")
    connection.commit()
    assert connection.autocommit is True
    connection.autocommit = True
    for refused in (connection.rollback, lambda: setattr(connection, "autocommit", False)):
        with pytest.raises(dbapi.NotSupportedError, match="a transaction of its own"):
            refused()


def test_what_is_closed_says_so(connect: Connect) -> None:
    connection = connect("sqlite")
    with connection.cursor() as cursor:
        with pytest.raises(dbapi.ProgrammingError, match="There is no result"):
            cursor.fetchall()
        cursor.execute(ENDLESS["sqlite"])
    with pytest.raises(dbapi.InterfaceError, match="The cursor is closed"):
        cursor.fetchone()
    other = connection.cursor()
    with connection:
        other.execute(ENDLESS["sqlite"])
    for call in (connection.cursor, connection.commit, connection.rollback, other.fetchone):
        with pytest.raises(dbapi.InterfaceError, match="closed"):
            call()
    assert repr(connection) == "<Connection: closed>"


def test_the_key_of_a_row_that_was_inserted(connect: Connect) -> None:
    for database, key, identity in (
        ("sqlite", "integer primary key", "select last_insert_rowid()"),
        ("mariadb", "integer primary key auto_increment", "select last_insert_id()"),
        ("postgresql", "serial primary key", "select currval(pg_get_serial_sequence('keyed', 'id'))"),
    ):
        connection = connect(database)
        table(connection, "keyed", f"id {key}, name varchar(10)")
        cursor = connection.cursor()
        for number in (1, 2):
            cursor.insert("insert into keyed (name) values (?)", ["x"], identity)
            assert (cursor.rowcount, cursor.lastrowid) == (1, number)


def test_the_token_comes_from_the_argument_or_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    described = said({"name": "book", "dialect": "sqlite", "product": "SQLite"})
    with ScriptedServer(described) as server:
        dbapi.connect(f"{server.url}/book")
        monkeypatch.setenv("DAI_TOKEN", "dai_environment")
        dbapi.connect(f"{server.url}/book")
        shown = repr(dbapi.connect(f"{server.url}/book", token="dai_argument"))
        sent = [each.headers.get("authorization") for each in server.requests]
    assert sent == [None, "Bearer dai_environment", "Bearer dai_argument"]
    assert "dai_argument" not in shown


def test_numbers_of_several_types_are_one_column(connect: Connect) -> None:
    connection = connect("postgresql")
    table(connection, "numbers", "n numeric")
    connection.cursor().executemany("insert into numbers values (?)", [(Decimal("1.50"),), (2.25,), (3,), (None,)])
    rows = connection.execute("select n from numbers order by n").fetchall()
    assert rows == [(Decimal("1.50"),), (Decimal("2.25"),), (Decimal("3"),), (None,)]


def test_a_connection_stops_what_its_cursors_do(connect: Connect) -> None:
    connection = connect("postgresql")
    cursor = connection.execute("select generate_series(1, 1000000000)")
    assert cursor.fetchone() == (1,)
    connection.stop()
    with pytest.raises(dbapi.InterfaceError, match="closed"):
        cursor.fetchone()
    assert connection.execute("select 1").fetchone() == (1,)


def test_pandas_reads_arrow_by_what_it_takes_for_adbc(connect: Connect) -> None:
    """The frame of ``to_pandas``: nothing went through Python rows, which have no types of their own."""
    connection = connect("duckdb")
    sql = "select 1 as i, 2.5::decimal(5, 2) as d, date '2024-02-29' as day, null::integer as n, 'x' as t"
    frame = pd.read_sql(sql, connection.adbc())
    wanted = pa.Table.from_pandas(frame).to_pylist()
    assert wanted == [{"i": 1, "d": 2.5, "day": datetime.date(2024, 2, 29), "n": None, "t": "x"}]
    assert pd.read_sql_query(sql, connection.adbc(), dtype_backend="pyarrow")["n"].dtype == pd.ArrowDtype(pa.int32())
    with pytest.raises(dbapi.NotSupportedError, match="create_engine"):
        frame.to_sql("somewhere", connection.adbc())
    assert connection.cursor().execute("select 1").fetchall() == [(1,)]


def test_dates_of_every_year(connect: Connect) -> None:
    sql = "select * from (values (date '0001-01-01'), (date '9999-12-31'), (null)) t(d) order by d nulls last"
    rows = connect("duckdb").execute(sql).fetchall()
    assert rows == [(datetime.date(1, 1, 1),), (datetime.date(9999, 12, 31),), (None,)]
    with pytest.raises(dbapi.DataError, match="'d'"):
        connect("duckdb").execute("select date '10000-01-01' as d").fetchall()
