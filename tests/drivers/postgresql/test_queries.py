"""Results of any shape, errors with their place, and nothing but reading."""

import pyarrow as pa
import pytest

from dai.drivers import DriverOptions, driver_for
from dai.drivers.postgresql import rows, wire
from dai.drivers.postgresql.driver import PostgreSQL
from dai.drivers.postgresql.errors import statement_error
from dai.errors import (
    DatabaseUnavailableError,
    LimitError,
    NotAQueryError,
    ParameterError,
    StatementError,
)
from dai.streams.cancellation import Cancellation
from tests.drivers.statements import execute, table


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


@pytest.mark.parametrize("few", ["", "FROM generate_series(1, 1000000)"])
def test_a_row_of_a_few_characters_is_no_gigabyte(
    driver: PostgreSQL, monkeypatch: pytest.MonkeyPatch, few: str
) -> None:
    """It took three gigabytes of the service's memory, and many of them ended it."""
    for module in (rows, wire):
        monkeypatch.setattr(module, "ROW_BYTES", 1 << 20)
    with pytest.raises(LimitError, match="substring"):
        table(driver, f"SELECT repeat('x', 60000000) AS t {few}")
    assert table(driver, "SELECT repeat('x', 500000) AS t").num_rows == 1
    assert driver.pool_state()["open"] == driver.pool_state()["idle"]


def test_other_statements_that_read(driver: PostgreSQL) -> None:
    assert table(driver, "SHOW server_encoding").column(0).to_pylist() == ["UTF8"]
    assert "Result" in table(driver, "EXPLAIN SELECT 1").column(0)[0].as_py()


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
    actual = table(driver, "SELECT * FROM changing")
    assert actual.schema.types == [pa.string(), pa.decimal128(5, 2), pa.string()]
    execute(driver, "ALTER TABLE changing RENAME b TO bb", "ALTER TABLE changing DROP c")
    assert table(driver, "SELECT * FROM changing").schema.names == ["a", "bb"]
    execute(driver, "DROP TABLE changing")
    with pytest.raises(StatementError):
        table(driver, "SELECT * FROM changing")


def test_a_query_of_many_rows_that_comes_again_has_the_same_schema(driver: PostgreSQL) -> None:
    """Formats keep what they have made of it."""
    sql = "SELECT n, n::text AS t FROM generate_series(1, 20000) AS n"

    def schema() -> pa.Schema:
        with driver.query(sql, cancellation=Cancellation()) as stream:
            assert sum(batch.num_rows for batch in stream) == 20_000
            return stream.schema

    schema()
    assert schema() is schema()


def test_a_wrong_estimate_costs_no_rows(driver: PostgreSQL) -> None:
    execute(
        driver,
        "CREATE FUNCTION more() RETURNS SETOF int LANGUAGE plpgsql ROWS 1 AS"
        " 'BEGIN FOR i IN 1..20000 LOOP RETURN NEXT i; END LOOP; END'",
    )
    for _ in range(2):
        assert table(driver, "SELECT more() AS n").column(0).to_pylist() == list(range(1, 20001))


def test_a_missing_value_is_not_a_lost_connection() -> None:
    for message in (
        'bind message supplies 0 parameters, but prepared statement "" requires 2',
        "Bind-Nachricht enthält 0 Parameter, aber vorbereitete Anweisung »« erfordert 2",
    ):
        with pytest.raises(ParameterError, match=r"\$2, which gets no value"):
            raise statement_error("08P01", message)
    with pytest.raises(DatabaseUnavailableError):
        raise statement_error("08P01", "query_wait_timeout")
