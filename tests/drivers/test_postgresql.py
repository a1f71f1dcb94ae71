"""What is PostgreSQL's own: two paths with one schema, its types, read-only, cancelling, and its catalogue."""

import datetime as dt
import threading
from collections.abc import Callable, Iterator
from decimal import Decimal

import psycopg
import pyarrow as pa
import pytest

from dai.cancellation import Cancellation
from dai.drivers import DriverOptions, driver_for, postgresql
from dai.drivers.postgresql import PostgreSQL
from dai.errors import (
    BusyError,
    CancelledError,
    ConfigurationError,
    DaiError,
    DatabaseUnavailableError,
    DataError,
    NotAQueryError,
    NotFoundError,
    ParameterError,
    StatementError,
)
from dai.stream import TYPE_NAME, Stream
from tests.servers import PostgresServer

Path = Callable[..., Stream]


@pytest.fixture(scope="module")
def module_driver(postgres_module_url: str) -> Iterator[PostgreSQL]:
    driver = driver_for(postgres_module_url, DriverOptions(pool_size=4, pool_wait=5, batch_bytes=1 << 20))
    assert isinstance(driver, PostgreSQL)
    yield driver
    driver.close()


@pytest.fixture
def driver(module_driver: PostgreSQL) -> Iterator[PostgreSQL]:
    """Afterwards every connection that is open is idle again."""
    yield module_driver
    state = module_driver.pool_state()
    assert state["open"] == state["idle"]


@pytest.fixture(params=["few", "many", "adbc"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Every query by psycopg, every one by COPY from the socket where that can be, or every one by ADBC."""
    few = request.param == "few"
    monkeypatch.setattr(postgresql, "is_small", lambda *_: few)
    if request.param == "adbc":
        monkeypatch.setattr(postgresql, "readable", lambda _: False)
    return str(request.param)


def table(driver: PostgreSQL, sql: str, *parameters: object, batch_rows: int | None = None) -> pa.Table:
    return driver.query(sql, parameters, cancellation=Cancellation(), batch_rows=batch_rows).table()


def execute(driver: PostgreSQL, *statements: str) -> None:
    with driver.transaction(cancellation=Cancellation()) as session:
        for statement in statements:
            session.update(statement)


UTC = dt.UTC
VALUES: list[tuple[str, pa.DataType, object, str]] = [
    ("true", pa.bool_(), True, "bool"),
    ("(-32768)::int2", pa.int16(), -32768, "int2"),
    ("2147483647", pa.int32(), 2147483647, "int4"),
    ("(-9223372036854775808)::int8", pa.int64(), -(1 << 63), "int8"),
    ("4294967295::oid", pa.uint32(), 4294967295, "oid"),
    ("1.5::real", pa.float32(), 1.5, "float4"),
    ("'-infinity'::float8", pa.float64(), float("-inf"), "float8"),
    ("12345678.90::numeric(12,2)", pa.decimal128(12, 2), Decimal("12345678.90"), "numeric"),
    ("(-0.00000001)::numeric(38,8)", pa.decimal128(38, 8), Decimal("-0.00000001"), "numeric"),
    ("(10::numeric ^ 70)::numeric(76,2)", pa.decimal256(76, 2), Decimal(10) ** 70, "numeric"),
    ("12345::numeric(3,-2)", pa.decimal128(5, 0), Decimal("12300"), "numeric"),
    ("0.00012::numeric(3,5)", pa.decimal128(5, 5), Decimal("0.00012"), "numeric"),
    ("1.10::numeric", pa.string(), "1.10", "numeric"),
    ("1e-20::numeric", pa.string(), "0.00000000000000000001", "numeric"),
    ("1e20::numeric", pa.string(), "100000000000000000000", "numeric"),
    ("'NaN'::numeric", pa.string(), "NaN", "numeric"),
    ("'-Infinity'::numeric", pa.string(), "-Infinity", "numeric"),
    ("E'\\u00e9\\u4e2d\\U0001F600\\n\"<&\\''::text", pa.string(), "é中😀\n\"<&'", "text"),
    ("''::varchar(5)", pa.string(), "", "varchar"),
    ("'a'::char(3)", pa.string(), "a  ", "bpchar"),
    ("'x'::\"char\"", pa.string(), "x", "char"),
    ("'n'::name", pa.string(), "n", "name"),
    ("'\\x0001ff'::bytea", pa.binary(), b"\0\1\xff", "bytea"),
    ("date '2024-02-29'", pa.date32(), dt.date(2024, 2, 29), "date"),
    ("time '23:59:59.999999'", pa.time64("us"), dt.time(23, 59, 59, 999999), "time"),
    ("timestamp '1969-12-31 23:59:59.999999'", pa.timestamp("us"), dt.datetime(1969, 12, 31, 23, 59, 59, 999999),
     "timestamp"),
    ("timestamptz '2024-01-01 00:00+02'", pa.timestamp("us", "UTC"), dt.datetime(2023, 12, 31, 22, tzinfo=UTC),
     "timestamptz"),
    ("timetz '10:00+02'", pa.string(), "10:00:00+02", "timetz"),
    ("interval '1 month -2 days 3.5 seconds'", pa.month_day_nano_interval(),
     pa.MonthDayNano([1, -2, 3_500_000_000]), "interval"),
    ("'c2d29867-3d0b-d497-9191-18a9d8ee7830'::uuid", pa.string(), "c2d29867-3d0b-d497-9191-18a9d8ee7830", "uuid"),
    ("'{\"a\": 1}'::json", pa.string(), '{"a": 1}', "json"),
    ("'{\"b\":1,\"a\":2}'::jsonb", pa.string(), '{"a": 2, "b": 1}', "jsonb"),
    ("xmlelement(name a)", pa.string(), "<a/>", "xml"),
    ("inet '10.1.2.3'", pa.string(), "10.1.2.3", "inet"),
    ("cidr '10.1.0.0/16'", pa.string(), "10.1.0.0/16", "cidr"),
    ("macaddr '08:00:2b:01:02:03'", pa.string(), "08:00:2b:01:02:03", "macaddr"),
    ("B'101'", pa.string(), "101", "bit"),
    ("int4range(1, 5)", pa.string(), "[1,5)", "int4range"),
    ("point(1, 2)", pa.string(), "(1,2)", "point"),
    ("to_tsvector('simple', 'a b')", pa.string(), "'a':1 'b':2", "tsvector"),
    ("row(1, 'a b')", pa.string(), '(1,"a b")', "record"),
    ("'pg_class'::regclass", pa.string(), "pg_class", "regclass"),
    ("'happy'::mood", pa.string(), "happy", "mood"),
    ("7::positive", pa.int32(), 7, "int4"),
    ("'(1,x)'::pair", pa.string(), "(1,x)", "pair"),
    ("array[1, NULL, 3]", pa.list_(pa.int32()), [1, None, 3], "int4[]"),
    ("'{}'::text[]", pa.list_(pa.string()), [], "text[]"),
    ("array['a\"b', NULL, '']", pa.list_(pa.string()), ['a"b', None, ""], "text[]"),
    ("array[1.50]::numeric(5,2)[]", pa.list_(pa.decimal128(5, 2)), [Decimal("1.50")], "numeric[]"),
    ("array[date '2000-01-01']", pa.list_(pa.date32()), [dt.date(2000, 1, 1)], "date[]"),
    ("array['happy'::mood]", pa.list_(pa.string()), ["happy"], "mood[]"),
    ("array[inet '1.2.3.4']", pa.list_(pa.string()), ["1.2.3.4"], "inet[]"),
    ("array['{}'::jsonb]", pa.list_(pa.string()), ["{}"], "jsonb[]"),
    ("array['c2d29867-3d0b-d497-9191-18a9d8ee7830'::uuid]", pa.list_(pa.string()),
     ["c2d29867-3d0b-d497-9191-18a9d8ee7830"], "uuid[]"),
    ("array[7::positive]", pa.list_(pa.int32()), [7], "positive[]"),
    ("NULL", pa.string(), None, "text"),
]  # fmt: skip


@pytest.fixture(scope="module")
def types(module_driver: PostgreSQL) -> None:
    execute(
        module_driver,
        "CREATE TYPE mood AS ENUM ('sad', 'happy')",
        "CREATE DOMAIN positive AS int CHECK (VALUE > 0)",
        "CREATE TYPE pair AS (a int, b text)",
    )


@pytest.mark.usefixtures("types")
@pytest.mark.parametrize(("sql", "arrow", "value", "name"), VALUES, ids=[each[0] for each in VALUES])
def test_every_type_is_the_same_by_both_paths(
    driver: PostgreSQL, path: str, sql: str, arrow: pa.DataType, value: object, name: str
) -> None:
    found = table(driver, f"SELECT v.c FROM (SELECT {sql} AS c) AS v, generate_series(1, 2)")
    assert found.schema.field(0).type == arrow
    assert found.schema.field(0).metadata[TYPE_NAME] == name.encode()
    assert found.column(0).to_pylist() == [value, value]


@pytest.mark.usefixtures("types")
@pytest.mark.parametrize("sql", [each[0] for each in VALUES])
def test_null_of_every_type(driver: PostgreSQL, path: str, sql: str) -> None:
    found = table(driver, f"SELECT CASE WHEN n = 2 THEN {sql} END AS c FROM generate_series(1, 3) AS n")
    assert found.column(0).is_null().to_pylist()[0::2] == [True, True]


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("'NaN'::numeric(5,2)", "::float8"),
        ("'infinity'::date", "::text"),
        ("'-infinity'::date", "::text"),
        ("'infinity'::timestamp", "::text"),
        ("'-infinity'::timestamptz", "::text"),
        ("'294276-12-31'::timestamp", "::text"),
        ("time '24:00'", "::text"),
        ("interval '200000000 hours'", "::text"),
        ("array[[1,2],[3,4]]", "::text"),
        ("'[0:1]={1,2}'::int[]", "::text"),
        ("array['infinity'::date]", "::text"),
    ],
)
def test_what_arrow_cannot_hold_is_refused_with_a_cast_that_helps(
    driver: PostgreSQL, path: str, sql: str, hint: str
) -> None:
    with pytest.raises(DataError) as refused:
        table(driver, f"SELECT {sql} AS c")
    assert hint in str(refused.value.hint)
    assert table(driver, f"SELECT ({sql})::text AS c").num_rows == 1


def test_dates_before_christ_arrive(driver: PostgreSQL, path: str) -> None:
    found = table(
        driver,
        "SELECT d, t, d - date '1970-01-01', extract(epoch FROM t)::int8 * 1000000"
        " FROM (SELECT date '0044-03-15 BC' AS d, timestamp '4713-01-01 BC' AS t) AS old",
    )
    assert found.column(0).cast(pa.int32()).to_pylist() == found.column(2).to_pylist()
    assert found.column(1).cast(pa.int64()).to_pylist() == found.column(3).to_pylist()


def test_shapes_of_results(driver: PostgreSQL, path: str) -> None:
    assert table(driver, "SELECT FROM generate_series(1, 5)").num_rows == 5
    none = table(driver, "SELECT 1.5::numeric(4,1) AS a, 'x' AS b WHERE false")
    assert (none.num_rows, none.schema.field(0).type) == (0, pa.decimal128(4, 1))
    twice = table(driver, 'SELECT 1 AS a, \'2\' AS a, 3 AS "\u00e9 ""x"')
    assert twice.schema.names == ["a", "a", 'é "x']
    assert [column.to_pylist() for column in twice.columns] == [[1], ["2"], [3]]
    assert table(driver, "TABLE pg_am -- a comment; at the end").num_rows > 0
    assert table(driver, "SELECT array[n] AS a FROM generate_series(1, 3) AS n ORDER BY n DESC; -- end").column(
        0
    ).to_pylist() == [[3], [2], [1]]


@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_batches_have_at_most_the_rows_asked_for(driver: PostgreSQL, path: str, rows: int) -> None:
    sql = "SELECT n, n::text AS t FROM generate_series(1, 3001) AS n"
    with driver.query(sql, cancellation=Cancellation(), batch_rows=rows) as stream:
        batches = list(stream)
    assert max(batch.num_rows for batch in batches) <= rows
    assert pa.Table.from_batches(batches).column("n").to_pylist() == list(range(1, 3002))


def test_batches_are_bounded_in_bytes(driver: PostgreSQL, path: str) -> None:
    sql = "SELECT repeat('x', 100000) AS t FROM generate_series(1, 200)"
    with driver.query(sql, cancellation=Cancellation()) as stream:
        sizes = [batch.nbytes for batch in stream]
    assert sum(sizes) > 20_000_000
    assert max(sizes) < 10_000_000


def test_other_statements_that_read(driver: PostgreSQL) -> None:
    assert table(driver, "SHOW server_encoding").column(0).to_pylist() == ["UTF8"]
    assert "Result" in table(driver, "EXPLAIN SELECT 1").column(0)[0].as_py()


PARAMETERS: list[tuple[str, tuple[object, ...], object]] = [
    ("SELECT ?::int + 1", ("41",), 42),
    ("SELECT ? || '?' || 'a' -- ?", ("b%s$1",), "b%s$1?a"),
    ("SELECT ?::text", (None,), None),
    ("SELECT n FROM generate_series(1, 9) AS n WHERE n = ?", (3,), 3),
    ("SELECT n FROM generate_series(1, 9) AS n ORDER BY n LIMIT ?", (1,), 1),
    ("SELECT ?::numeric(10,2)", (Decimal("1.25"),), Decimal("1.25")),
    ("SELECT ?::date", ("2024-01-01",), dt.date(2024, 1, 1)),
    ("SELECT ?::timestamptz", (dt.datetime(2024, 1, 1, tzinfo=UTC),), dt.datetime(2024, 1, 1, tzinfo=UTC)),
    ("SELECT ?::bytea", (b"\0'\\",), b"\0'\\"),
    ("SELECT ?::bool", (True,), True),
    ("SELECT ?::int[]", ([1, 2],), [1, 2]),
    ("SELECT '{\"a\": 1}'::jsonb ?? ?", ("a",), True),
    ("SELECT ? || ?", ("x'; drop table t; --", "é"), "x'; drop table t; --é"),
]


@pytest.mark.parametrize(("sql", "values", "expected"), PARAMETERS, ids=[each[0] for each in PARAMETERS])
def test_parameters_are_bound(
    driver: PostgreSQL, path: str, sql: str, values: tuple[object, ...], expected: object
) -> None:
    assert table(driver, sql, *values).column(0).to_pylist() == [expected]


def test_parameters_that_do_not_fit(driver: PostgreSQL, path: str) -> None:
    with pytest.raises(ParameterError):
        table(driver, "SELECT ?", object())
    with pytest.raises(ParameterError):
        table(driver, "SELECT ?, ?", 1)
    with pytest.raises(ParameterError):
        table(driver, "SELECT 1", 1)
    with pytest.raises(StatementError, match="invalid input syntax"):
        table(driver, "SELECT ?::int", "x")


@pytest.mark.parametrize(
    ("sql", "values", "position", "hint"),
    [
        ("SELECT 1 FROM nowhere", (), 15, None),
        ("SELECT relnam FROM pg_class", (), 8, "relname"),
        ("SELECT ?::int, ?::text,\n relnam FROM pg_class", (1, "x"), 26, "relname"),
        ("SELECT 'é中', FROM pg_class", (), 14, None),
        ("SELECT 1.5::numeric(3,1), nope(1)", (), 27, "explicit type casts"),
    ],
)
def test_errors_point_into_the_callers_sql(
    driver: PostgreSQL, path: str, sql: str, values: tuple[object, ...], position: int, hint: str | None
) -> None:
    with pytest.raises(StatementError) as refused:
        table(driver, sql, *values)
    assert refused.value.position == position
    assert hint is None or hint in str(refused.value.hint)


def test_errors_while_rows_come(driver: PostgreSQL, path: str) -> None:
    sql = "SELECT 1 / (n - 90000), n::numeric(10,1) FROM generate_series(1, 100000) AS n"
    with pytest.raises(StatementError, match="division by zero") as refused:
        table(driver, sql)
    assert refused.value.sqlstate == "22012"


@pytest.fixture(scope="module")
def target(module_driver: PostgreSQL) -> None:
    execute(
        module_driver,
        "CREATE TABLE target (id int PRIMARY KEY, name text)",
        "CREATE SEQUENCE numbers",
        "CREATE FUNCTION writes() RETURNS int LANGUAGE sql AS 'INSERT INTO target VALUES (1) RETURNING id'",
    )


@pytest.mark.usefixtures("target")
@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO target VALUES (1)",
        "WITH a AS (INSERT INTO target VALUES (1) RETURNING id) SELECT * FROM a",
        "WITH a AS (SELECT 1 AS id) INSERT INTO target SELECT id FROM a",
        "SELECT writes()",
        "SELECT set_config('transaction_read_only', 'off', false), writes()",
        "SELECT nextval('numbers')",
        "SELECT * INTO other FROM target",
        "SELECT 1; DELETE FROM target",
        "EXPLAIN ANALYZE INSERT INTO target VALUES (1)",
        "DROP TABLE target",
        "COPY target TO STDOUT",
        "SELECT * FROM target FOR UPDATE",
    ],
)
def test_what_is_not_a_query_changes_nothing(driver: PostgreSQL, path: str, sql: str) -> None:
    with pytest.raises(StatementError):
        table(driver, sql)
    assert table(driver, "SELECT count(*) FROM target").column(0).to_pylist() == [0]
    assert table(driver, "SELECT is_called FROM numbers").column(0).to_pylist() == [False]


@pytest.mark.usefixtures("target")
def test_a_changing_statement_is_called_by_its_name(driver: PostgreSQL, path: str) -> None:
    with pytest.raises(NotAQueryError, match="read-only") as refused:
        table(driver, "SELECT writes()")
    assert refused.value.sqlstate == "25006"


def test_nothing_leaks_to_the_next_user_of_a_connection(postgres_url: str, path: str) -> None:
    driver = driver_for(postgres_url, DriverOptions(pool_size=1))
    try:
        for setting in ("search_path", "default_transaction_read_only"):
            value = "'off'" if setting.startswith("default") else "'nowhere'"
            before = table(driver, f"SHOW {setting}")
            table(driver, f"SELECT set_config('{setting}', {value}, false)")
            assert table(driver, f"SHOW {setting}") == before
        table(driver, "SELECT pg_advisory_lock(42)")
        assert table(driver, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").column(0).to_pylist() == [0]
        driver.update("SET search_path TO nowhere", cancellation=Cancellation())
        driver.update("CREATE TEMP TABLE mine (a int)", cancellation=Cancellation())
        assert "nowhere" not in str(table(driver, "SHOW search_path"))
        with pytest.raises(StatementError):
            table(driver, "SELECT * FROM mine")
    finally:
        driver.close()


def test_a_changed_table_is_described_again(driver: PostgreSQL, path: str) -> None:
    execute(driver, "CREATE TABLE changing (a int, b numeric(5,2))", "INSERT INTO changing VALUES (1, 2)")
    assert table(driver, "SELECT * FROM changing").schema.types == [pa.int32(), pa.decimal128(5, 2)]
    execute(driver, "ALTER TABLE changing ADD c inet", "ALTER TABLE changing ALTER a TYPE text")
    found = table(driver, "SELECT * FROM changing")
    assert found.schema.types == [pa.string(), pa.decimal128(5, 2), pa.string()]
    execute(driver, "ALTER TABLE changing RENAME b TO bb", "ALTER TABLE changing DROP c")
    assert table(driver, "SELECT * FROM changing").schema.names == ["a", "bb"]
    execute(driver, "DROP TABLE changing")
    with pytest.raises(StatementError):
        table(driver, "SELECT * FROM changing")


def test_a_wrong_estimate_costs_no_rows(driver: PostgreSQL) -> None:
    execute(
        driver,
        "CREATE FUNCTION more() RETURNS SETOF int LANGUAGE plpgsql ROWS 1 AS"
        " 'BEGIN FOR i IN 1..20000 LOOP RETURN NEXT i; END LOOP; END'",
    )
    for _ in range(2):
        assert table(driver, "SELECT more() AS n").column(0).to_pylist() == list(range(1, 20001))


def running(driver_url: str, mark: str) -> int:
    with psycopg.connect(driver_url, autocommit=True) as connection:
        sql = (
            "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE %s AND pid <> pg_backend_pid()"
        )
        row = connection.execute(sql, [f"%{mark}%"]).fetchone()
        assert row is not None
        return int(row[0])


def until(condition: Callable[[], bool], seconds: float = 1.0) -> bool:
    pause = threading.Event()
    for _ in range(int(seconds / 0.02)):
        if condition():
            return True
        pause.wait(0.02)
    return condition()


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
    assert until(lambda: running(postgres_module_url, mark) == 1, 10)
    cancellation.cancel()
    assert until(lambda: running(postgres_module_url, mark) == 0)
    thread.join(10)
    assert isinstance(causes[0], CancelledError)


def test_cancelled_before_it_began(driver: PostgreSQL, path: str) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(CancelledError):
        driver.query("SELECT 1", cancellation=cancellation)


def test_cancelled_between_batches(driver: PostgreSQL, path: str) -> None:
    cancellation = Cancellation()
    sql = "SELECT n, md5(n::text) AS between FROM generate_series(1, 10000000) AS n"
    with driver.query(sql, cancellation=cancellation) as stream:
        next(stream)
        cancellation.cancel()
        with pytest.raises(CancelledError):
            list(stream)


def test_closing_stops_the_statement(driver: PostgreSQL, postgres_module_url: str, path: str) -> None:
    sql = f"SELECT n, md5(n::text) AS closing_{path} FROM generate_series(1, 100000000) AS n"
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
        found: list[pa.RecordBatch] = []
        thread = threading.Thread(target=lambda into=found: into.extend([b] if (b := next(stream, None)) else []))
        thread.start()
        thread.join(10)
        if not found:
            break
        rows += found[0].column(0).to_pylist()
    assert rows == list(range(1, 5001))


def test_a_full_pool_is_busy(postgres_url: str, path: str) -> None:
    driver = driver_for(postgres_url, DriverOptions(pool_size=1, pool_wait=0.05))
    sql = "SELECT n, pg_sleep(0) FROM generate_series(1, 9000000) AS n"
    with driver.query(sql, cancellation=Cancellation()), pytest.raises(BusyError):
        table(driver, "SELECT 1")
    assert table(driver, "SELECT 1").num_rows == 1
    driver.close()


def test_a_restart_while_rows_come_is_no_short_answer(path: str, postgres: PostgresServer, postgres_url: str) -> None:
    driver = driver_for(postgres_url, DriverOptions(batch_bytes=100_000))
    try:
        stream = driver.query("SELECT n, md5(n::text) FROM generate_series(1, 5000000) n", cancellation=Cancellation())
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


ROWS = pa.table(
    {
        "i": pa.array([1, None, -3], pa.int32()),
        "big": pa.array([1 << 62, None, -(1 << 63)], pa.int64()),
        "u": pa.array([18446744073709551615, None, 0], pa.uint64()),
        "f": pa.array([1.1e-300, None, float("inf")], pa.float64()),
        "r": pa.array([0.1, None, float("nan")], pa.float32()),
        "n": pa.array([Decimal("-1.10"), None, Decimal("9999999999.99")], pa.decimal128(12, 2)),
        "wide": pa.array([Decimal(10) ** 60, None, Decimal(0)], pa.decimal256(70, 4)),
        "b": pa.array([True, None, False]),
        "t": pa.array(["", None, 'a"b,\n\\N\r\n\\. é😀 NULL']),
        'Case "x': pa.array(["NULL", None, " "]),
        "raw": pa.array([b"", None, b"\0\\\xff"], pa.binary()),
        "d": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        "time": pa.array([dt.time(0), None, dt.time(23, 59, 59, 999999)], pa.time64("us")),
        "ts": pa.array([dt.datetime(1969, 12, 31, 23, 59, 59, 1), None, dt.datetime(2024, 1, 1)], pa.timestamp("us")),
        "tz": pa.array([0, None, -1], pa.timestamp("us", "UTC")),
        "gap": pa.array([(1, -2, 3000), None, (0, 0, 0)], pa.month_day_nano_interval()),
        "ints": pa.array([[1, None], None, []], pa.list_(pa.int32())),
        "texts": pa.array([['a"b\\c', None, "", "NULL", "x,y"], None, []], pa.list_(pa.string())),
        "bytes": pa.array([[b"\0\xff", None], None, []], pa.list_(pa.binary())),
    }
)


@pytest.mark.parametrize("cut", [0, 1])
def test_what_is_loaded_comes_back(driver: PostgreSQL, path: str, cut: int) -> None:
    name = f"Loaded {path} {cut}"
    rows = ROWS.slice(cut)
    assert driver.load(name, Stream.of(rows), cancellation=Cancellation(), create=True) == rows.num_rows
    back = table(driver, f'SELECT * FROM "{name}"')
    assert back.schema.names == rows.schema.names
    for field in rows.schema:
        wanted = pa.decimal128(20, 0) if field.name == "u" else field.type
        column = back.column(field.name)
        assert column.type == wanted, field
        assert str(column.to_pylist()) == str(rows.column(field.name).cast(wanted).to_pylist()), field


def test_loads_match_columns_by_name_and_convert(driver: PostgreSQL) -> None:
    execute(
        driver,
        "CREATE SCHEMA other",
        'CREATE TABLE other.goal (id bigint DEFAULT 7, u uuid, j jsonb, n numeric(5,1), "Mixed" text)',
    )
    text = "c2d29867-3d0b-d497-9191-18a9d8ee7830"
    rows = pa.table({"Mixed": ["m"], "n": ["2.5"], "u": [text], "j": ["[1]"]})
    assert driver.load("other.goal", Stream.of(rows), cancellation=Cancellation()) == 1
    assert table(driver, "SELECT * FROM other.goal").to_pylist() == [
        {"id": 7, "u": text, "j": "[1]", "n": Decimal("2.5"), "Mixed": "m"}
    ]
    with pytest.raises(DataError, match="nope"):
        driver.load("other.goal", Stream.of(pa.table({"nope": [1]})), cancellation=Cancellation())
    with pytest.raises(NotFoundError):
        driver.load("goal", Stream.of(rows), cancellation=Cancellation())


def test_a_load_is_all_or_nothing(driver: PostgreSQL) -> None:
    execute(driver, "CREATE TABLE whole (id int PRIMARY KEY)")
    good = pa.record_batch({"id": list(range(20000))})
    twice = pa.record_batch({"id": [5]})
    with pytest.raises(StatementError, match="duplicate key"):
        driver.load("whole", Stream(good.schema, [good, twice]), cancellation=Cancellation())
    assert table(driver, "SELECT count(*) FROM whole").column(0).to_pylist() == [0]
    with pytest.raises(StatementError, match="16384 rows"):
        driver.load("whole", Stream(good.schema, [good, twice]), cancellation=Cancellation(), transactional=False)
    assert table(driver, "SELECT count(*) FROM whole").column(0).to_pylist() == [16384]


def test_updates_and_transactions(driver: PostgreSQL) -> None:
    cancellation = Cancellation()
    assert driver.update("CREATE TABLE account (id int PRIMARY KEY, name text)", cancellation=cancellation) == 0
    many = [(n, f"n{n}") for n in range(2500)]
    assert driver.update("INSERT INTO account VALUES (?, ?)", many, cancellation=cancellation) == 2500
    assert driver.update("UPDATE account SET name = 'x' WHERE id < 10", cancellation=cancellation) == 10
    with pytest.raises(StatementError, match="duplicate"):
        driver.update("INSERT INTO account VALUES (?, ?)", [(9000, "a"), (1, "b")], cancellation=cancellation)
    with pytest.raises(StatementError):
        driver.update("DELETE FROM account; DELETE FROM account", cancellation=cancellation)
    with pytest.raises(StatementError, match="COMMIT"):
        driver.update("COMMIT", cancellation=cancellation)
    with pytest.raises(ParameterError):
        driver.update("INSERT INTO account VALUES (?, ?)", [(1,)], cancellation=cancellation)
    with pytest.raises(StatementError) as refused:
        driver.update("UPDATE account SET nam = ? WHERE id = ?", [("a", 1)], cancellation=cancellation)
    assert refused.value.position == 20

    def fail_half_way() -> None:
        with driver.transaction(cancellation=cancellation) as session:
            session.update("DELETE FROM account")
            assert session.query("SELECT count(*) FROM account").table().column(0).to_pylist() == [0]
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    with driver.transaction(cancellation=cancellation) as session:
        session.update("INSERT INTO account VALUES (?, ?)", [(9001, "y")])
        assert session.query("SELECT name, 1.5::numeric(3,1) FROM account WHERE id = ?", [9001]).table().num_rows == 1
        assert session.query("SELECT inet '1.2.3.4', '{}'::inet[]").table().num_rows == 1
    assert table(driver, "SELECT count(*) FROM account").column(0).to_pylist() == [2501]
    with pytest.raises(NotAQueryError), driver.transaction(cancellation=cancellation, read_only=True) as session:
        session.update("DELETE FROM account")


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
    assert until(lambda: running(postgres_module_url, "UPDATE kept") == 1, 10)
    cancellation.cancel()
    assert until(lambda: running(postgres_module_url, "UPDATE kept") == 0)
    thread.join(10)
    assert isinstance(causes[0], CancelledError)
    assert table(driver, "SELECT id FROM kept").column(0).to_pylist() == [1]


def test_procedures_and_functions(driver: PostgreSQL) -> None:
    execute(
        driver,
        "CREATE TABLE calls (n int)",
        "CREATE PROCEDURE add_call(n int, INOUT total int, OUT label text) LANGUAGE plpgsql AS"
        " 'BEGIN INSERT INTO calls VALUES (n); total := total + n; label := ''done''; END'",
        "CREATE FUNCTION twice(n int) RETURNS TABLE (a int, b numeric) LANGUAGE sql AS"
        " 'INSERT INTO calls VALUES (n); SELECT n, n * 1.5'",
        "CREATE PROCEDURE open_two(INOUT one refcursor, INOUT two refcursor) LANGUAGE plpgsql AS"
        " 'BEGIN OPEN one FOR SELECT i, i * 1.50::numeric(5,2) AS n, gen_random_uuid() AS u"
        " FROM generate_series(1, 300) AS i; OPEN two FOR SELECT ''b'' AS b; END'",
    )
    with driver.call("add_call", [("in", 2), ("inout", 40), ("out", None)], cancellation=Cancellation()) as result:
        assert (result.out, result.results) == ({2: 42, 3: "done"}, ())
    with driver.call("twice", [("in", 3)], cancellation=Cancellation()) as result:
        assert [stream.table().to_pylist() for stream in result.results] == [[{"a": 3, "b": "4.5"}]]
    assert table(driver, "SELECT n FROM calls ORDER BY n").column(0).to_pylist() == [2, 3]
    with driver.call("open_two", [("inout", "first"), ("inout", "second")], cancellation=Cancellation()) as result:
        first, second = result.results
        assert first.schema.types == [pa.int32(), pa.string(), pa.string()]
        rows = first.table()
        assert rows.column("n").to_pylist()[:2] == ["1.50", "3.00"]
        assert rows.num_rows == 300
        assert second.table().to_pylist() == [{"b": "b"}]
    with pytest.raises(NotFoundError), driver.call("absent", [], cancellation=Cancellation()):
        pass


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
    found = {each.name: each for each in driver.tables("lab.%")}
    assert {name: each.kind for name, each in found.items()} == {"child": "table", "parent": "table", "seen": "view"}
    child, parent = found["child"], found["parent"]
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
    suggestion = driver._meant

    def meant(name: str, cancellation: Cancellation) -> str | None:
        held = driver._connections.take(Cancellation())
        try:
            return suggestion(name, cancellation)
        finally:
            driver._connections.give_back(held)
            asked.set()

    monkeypatch.setattr(driver, "_meant", meant)
    execute(driver, "CREATE TABLE made (n int)")
    with pytest.raises(StatementError) as caught:
        table(driver, "SELECT * FROM maid")
    assert asked.is_set()
    assert caught.value.hint is None
    driver.close()
