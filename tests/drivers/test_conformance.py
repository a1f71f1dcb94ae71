"""What every driver promises, whatever its database: the same tests for all of them."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from dai.client.results import frames
from dai.drivers import Driver, DriverOptions, Session, driver_for
from dai.drivers.connections.socket_reader import SocketReader
from dai.errors import (
    BusyError,
    CancelledError,
    NotAQueryError,
    ParameterError,
    RequestError,
    StatementError,
)
from dai.formats import FORMATS, format_named
from dai.streams.cancellation import Cancellation
from dai.streams.recorded import RecordedSpan
from dai.streams.stream import TYPE_NAME, Stream
from tests.drivers.conformance_cases import CASES, COMPUTED, FURTHER, PARAMETERS, PREPARED, Case, every_type
from tests.drivers.every import database, driver, load, url_of
from tests.drivers.statements import table, update
from tests.processes import until

__all__ = ["database", "driver"]

ENDLESS = {
    "postgresql": "SELECT count(*) FROM generate_series(1, 10000000000) g",
    "mariadb": "SELECT BENCHMARK(1000000000000, MD5('x'))",
    "mysql": "SELECT BENCHMARK(1000000000000, SHA2('x', 256))",
    "sqlite": "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r) SELECT count(*) FROM r",
    "duckdb": "SELECT count(*) FROM range(10000000) a(i), range(10000000) b(j) WHERE a.i * b.j % 7 = 8",
}
MANY = {
    # in FROM the series would be gathered before the first row
    "postgresql": "SELECT g AS n, 'row ' || g AS t FROM (SELECT generate_series(1, {}) AS g) AS s",
    "mariadb": "SELECT seq AS n, CONCAT('row ', seq) AS t FROM seq_1_to_{}",
    # MySQL has no sequences and sends no row of a recursion before all are there: loops in one another, by hints
    "mysql": "WITH d (i) AS (VALUES ROW(0), ROW(1), ROW(2), ROW(3), ROW(4), ROW(5), ROW(6), ROW(7), ROW(8), ROW(9)), "
    "s AS (SELECT /*+ NO_BNL() */ STRAIGHT_JOIN 1 + h.i + 10 * g.i + 100 * f.i + 1000 * e.i + 10000 * d.i "
    "+ 100000 * c.i + 1000000 * b.i + 10000000 * a.i AS n FROM d a, d b, d c, d d, d e, d f, d g, d h) "
    "SELECT /*+ MERGE(s) */ n, CONCAT('row ', n) AS t FROM s LIMIT {}",
    "sqlite": "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < {}) "
    "SELECT i AS n, 'row ' || i AS t FROM r",
    "duckdb": "SELECT i AS n, 'row ' || i AS t FROM range(1, {} + 1) r(i)",
}


@pytest.mark.parametrize(
    ("database", "case"),
    [
        pytest.param(name, case, id=f"{name}-{case.declared or at}")
        for name in CASES
        for at, case in enumerate(CASES[name])
    ],
)
def test_types_arrive_losslessly(driver: Driver, case: Case) -> None:
    update(driver, f"CREATE TABLE typed (k integer, v {case.declared})")
    rows = [*case.literals, "NULL"]
    update(driver, f"INSERT INTO typed VALUES {', '.join(f'({at}, {value})' for at, value in enumerate(rows))}")
    actual = table(driver, "SELECT v FROM typed ORDER BY k")
    assert actual.schema.field("v").type == case.arrow
    assert actual.column("v").to_pylist() == [*case.values, None]
    type_name = actual.schema.field("v").metadata[TYPE_NAME].decode()
    assert case.type_name is None or type_name == case.type_name
    assert table(driver, "SELECT v FROM typed WHERE k < 0").schema.field("v").name == "v"
    (described,) = driver.tables("typed")
    assert [(column.name, column.arrow) for column in described.columns][1:] == [("v", str(case.arrow))]


def described_as_delivered(driver: Driver, name: str) -> None:
    (described,) = driver.tables(name)
    delivered = table(driver, f"SELECT * FROM {name}").schema
    said = {each.name: each.arrow for each in described.columns}
    assert said == dict(zip(delivered.names, map(str, delivered.types), strict=True))


def test_a_column_has_the_type_that_its_description_says(database: str, driver: Driver) -> None:
    declared = [*dict.fromkeys(each.declared for each in CASES[database]), *FURTHER[database]]
    for each in PREPARED.get(database, ()):
        update(driver, each)
    update(driver, f"CREATE TABLE wide ({', '.join(f'c{at} {each}' for at, each in enumerate(declared))})")
    update(driver, "CREATE VIEW seen AS SELECT * FROM wide")
    described_as_delivered(driver, "wide")
    described_as_delivered(driver, "seen")
    computed = ", ".join(f"{each} AS c{at}" for at, each in enumerate(COMPUTED[database]))
    update(driver, f"CREATE VIEW computed AS SELECT {computed} FROM made")
    described_as_delivered(driver, "computed")
    update(driver, "INSERT INTO made VALUES (9), (10), (NULL)")
    described_as_delivered(driver, "computed")
    update(driver, "CREATE TABLE copied AS SELECT * FROM computed")
    described_as_delivered(driver, "copied")


def test_every_type_in_every_form_and_frame(database: str, driver: Driver) -> None:
    for statement in every_type(database):
        update(driver, statement)
    actual = table(driver, "SELECT * FROM every_type ORDER BY id")
    for frame in (frames.to_pandas(lambda: actual, False), frames.to_polars(lambda: actual, False)):
        assert frame.shape == actual.shape
    for name in FORMATS:
        options: dict[str, Any] = {"on_invalid": "replace"} if name in ("webrowset", "votable") else {}
        data = b"".join(memoryview(block.data) for block in format_named(name).encode(Stream.of(actual), **options))
        typed: dict[str, Any] = {"schema": actual.schema} if name in ("csv", "json", "json-array") else {}
        back = format_named(name).decode([data], **typed).table()
        assert (back.num_rows, back.schema.types) == (actual.num_rows, actual.schema.types)


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "mysql"])
def test_rows_are_the_same_whoever_reads_them_from_the_socket(
    database: str, driver: Driver, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``read_sockets`` is the switch of what reads past a library."""
    for statement in every_type(database):
        update(driver, statement)
    queries = ["SELECT * FROM every_type ORDER BY id", MANY[database].format(50_000)]
    expected = [table(driver, sql) for sql in queries]
    by_library = driver_for(url_of(database, request), DriverOptions(pool_size=1, read_sockets=False))
    with closing(by_library):
        with monkeypatch.context() as patched:
            patched.setattr(SocketReader, "__init__", None)
            for sql, rows in zip(queries, expected, strict=True):
                assert table(by_library, sql).equals(rows)
            cancellation = Cancellation()
            with by_library.query(MANY[database].format(1_000_000), cancellation=cancellation) as stream:
                next(stream)
                cancellation.cancel()
                with pytest.raises(CancelledError):
                    stream.table()
            assert table(by_library, "SELECT 1 AS one").to_pylist() == [{"one": 1}]
        until(lambda: by_library.pool_state()["open"] == by_library.pool_state()["idle"])


def test_whole_numbers_of_39_digits_are_loaded(driver: Driver) -> None:
    values = [Decimal(2**127 - 1), None, Decimal(-5)]
    data = pa.table({"k": [1, 2, 3], "v": pa.array(values, pa.decimal256(39, 0))})
    assert load(driver, "huge", data, create=True) == 3
    assert table(driver, "SELECT v FROM huge ORDER BY k")["v"].to_pylist() == values


def test_averages_and_sums_are_numbers(driver: Driver) -> None:
    update(driver, "INSERT INTO made VALUES (1), (2), (2)")
    actual = table(driver, "SELECT avg(n) AS a, sum(n) AS s, round(avg(n), 1) AS r FROM made")
    for frame in (frames.to_pandas(lambda: actual, False), frames.to_polars(lambda: actual, False)):
        assert [float(frame[name].mean()) for name in "asr"] == pytest.approx([5 / 3, 5, 1.7], abs=1e-3)
    line = b"".join(memoryview(block.data) for block in format_named("json").encode(Stream.of(actual)))
    assert {type(value) for value in json.loads(line).values()} <= {int, float}


@pytest.mark.parametrize(
    ("database", "value"),
    [pytest.param(name, value, id=f"{name}-{value!r:.20}") for name in PARAMETERS for value in PARAMETERS[name]],
)
def test_parameters_are_bound(driver: Driver, value: object) -> None:
    actual = table(driver, "SELECT ? AS v, 1 AS one", value)
    assert actual.column("v").to_pylist() == [value]


def test_a_null_parameter(driver: Driver) -> None:
    assert table(driver, "SELECT n FROM made WHERE n = ?", None).num_rows == 0


def test_a_parameter_is_never_sql(driver: Driver) -> None:
    hostile = "'; DROP TABLE made; -- \\' \" ` ? $1 %s :p1"
    assert table(driver, "SELECT ? AS v", hostile).column(0).to_pylist() == [hostile]
    assert table(driver, "SELECT n FROM made").num_rows == 0


def test_as_many_parameters_as_markers(driver: Driver) -> None:
    with pytest.raises(ParameterError) as caught:
        table(driver, "SELECT ?, ?", 1)
    assert caught.value.detail == "The statement has 2 parameters (?), 1 value was given."
    assert caught.value.hint == "Give one value for each ?, in order (in a perform document: one sqlParameter each)."
    with pytest.raises(ParameterError) as caught:
        update(driver, "INSERT INTO made VALUES (?)", (1, 2))
    assert caught.value.detail == "The statement has 1 parameter (?), 2 values were given."
    with pytest.raises(ParameterError) as caught:
        update(driver, "INSERT INTO made VALUES (?)", ())
    assert caught.value.detail == "The statement has 1 parameter (?), 0 values were given."
    assert table(driver, "SELECT n FROM made").num_rows == 0


def test_more_parameters_than_16_bits_count_are_bound_or_refused(driver: Driver) -> None:
    marks = ",".join("?" * 65_536)
    refused = False
    try:
        assert table(driver, f"SELECT 1 AS one WHERE 1 IN ({marks})", *[1] * 65_536).num_rows == 1
    except RequestError:
        refused = True
    assert refused == (driver.dialect in ("postgres", "mysql"))
    if refused:
        with pytest.raises(RequestError):
            update(driver, f"DELETE FROM made WHERE n IN ({marks})", (1,) * 65_536)


def test_a_parameter_has_a_type_the_database_knows(driver: Driver) -> None:
    with pytest.raises(ParameterError):
        table(driver, "SELECT ?", object())


def test_no_rows_and_duplicate_names(driver: Driver) -> None:
    actual = table(driver, 'SELECT n, n AS n, n AS "m" FROM made'.replace('"m"', "m"))
    assert actual.schema.names == ["n", "n", "m"]
    assert actual.num_rows == 0


def test_only_null(driver: Driver) -> None:
    assert table(driver, "SELECT NULL AS v").column("v").to_pylist() == [None]


@pytest.mark.parametrize("batch_rows", [1, 7, 1000, 5000])
def test_batches_of_the_size_asked_for(database: str, driver: Driver, batch_rows: int) -> None:
    stream = driver.query(MANY[database].format(2500), cancellation=Cancellation(), batch_rows=batch_rows)
    batches = list(stream)
    assert max(batch.num_rows for batch in batches) <= batch_rows
    assert pa.Table.from_batches(batches, stream.schema).column("n").to_pylist() == list(range(1, 2501))


def test_batches_by_bytes(database: str, driver: Driver) -> None:
    with driver.query(MANY[database].format(100_000), cancellation=Cancellation()) as stream:
        batches = list(stream)
    assert sum(batch.num_rows for batch in batches) == 100_000
    assert len(batches) > 1


def test_a_stream_moves_between_threads(database: str, driver: Driver) -> None:
    stream = driver.query(MANY[database].format(5000), cancellation=Cancellation(), batch_rows=1000)
    rows = 0
    for _ in range(5):
        with ThreadPoolExecutor(1) as pool:
            rows += pool.submit(next, stream).result().num_rows
    stream.close()
    assert rows == 5000


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO made VALUES (1)",
        "DELETE FROM made",
        "DROP TABLE made",
        "SELECT 1; DROP TABLE made",
        "",
        "-- nothing",
        "CREATE TABLE other (n integer)",
    ],
)
def test_what_is_not_a_query_is_refused(driver: Driver, sql: str) -> None:
    update(driver, "INSERT INTO made VALUES (7)")
    with pytest.raises(NotAQueryError):
        table(driver, sql)
    assert table(driver, "SELECT n FROM made").column(0).to_pylist() == [7]
    assert [actual.name for actual in driver.tables()] == ["made"]


def test_errors_show_where_and_what_to_try(driver: Driver) -> None:
    with pytest.raises(StatementError) as caught:
        table(driver, "SELECT *\nFROM maid")
    assert caught.value.position == 15
    with pytest.raises(StatementError) as caught:
        table(driver, "SELECT n FROM made WHERE m = 1")
    assert caught.value.position == 26
    with pytest.raises(StatementError) as caught:
        table(driver, "SELECT n FROM made WHERE n = = 1")
    assert caught.value.position in (None, 30)


@pytest.mark.parametrize("sql", ["SELECT * FROM maid", "SELECT n FROM maid WHERE n = 1"])
def test_a_misspelt_table_is_named(driver: Driver, sql: str) -> None:
    update(driver, "CREATE TABLE samples (n integer)")
    with pytest.raises(StatementError) as caught:
        table(driver, sql)
    assert unquoted(caught.value.hint) == "Did you mean 'made'?"
    with pytest.raises(StatementError) as caught:
        update(driver, "DELETE FROM sampels")
    assert unquoted(caught.value.hint) == "Did you mean 'samples'?"
    assert update(driver, "DELETE FROM samples") == 0


@pytest.mark.parametrize("database", ["postgresql", "mariadb", "sqlite"])
def test_a_misspelt_table_is_named_whatever_its_case(driver: Driver) -> None:
    with pytest.raises(StatementError) as caught:
        table(driver, 'SELECT * FROM "MAID"'.replace('"', "`" if driver.dialect == "mysql" else '"'))
    assert caught.value.hint == "Did you mean 'made'?"


@pytest.mark.parametrize("database", ["postgresql", "mariadb"])
def test_a_misspelt_table_of_a_schema_is_named(driver: Driver) -> None:
    schema = "public" if driver.dialect == "postgres" else table(driver, "SELECT DATABASE() AS d").column(0)[0].as_py()
    with pytest.raises(StatementError) as caught:
        table(driver, f"SELECT * FROM {schema}.maid")
    assert caught.value.hint == ("Did you mean 'public.made'?" if schema == "public" else "Did you mean 'made'?")


def test_a_misspelt_column_is_named(driver: Driver) -> None:
    update(driver, "CREATE TABLE samples (weight integer)")
    with pytest.raises(StatementError) as caught:
        table(driver, "SELECT weigt FROM samples")
    assert "weight" in (caught.value.hint or "")


def unquoted(hint: str | None) -> str:
    """With DuckDB's own quotes as ours."""
    return (hint or "").replace('"', "'")


@pytest.mark.parametrize("sql", ["COMMIT", "ROLLBACK", "BEGIN"])
def test_transactions_belong_to_the_driver(driver: Driver, sql: str) -> None:
    with pytest.raises(StatementError):
        update(driver, sql)


def deleted_then_failed(session: Session) -> None:
    assert session.update("DELETE FROM made") == 2
    session.update("DELETE FROM maid")


def test_a_transaction_is_all_or_nothing(driver: Driver) -> None:
    with driver.transaction(cancellation=Cancellation()) as session:
        assert session.update("INSERT INTO made VALUES (?)", [(1,), (2,)]) == 2
        assert session.query("SELECT n FROM made ORDER BY n").table().column(0).to_pylist() == [1, 2]
    with pytest.raises(StatementError), driver.transaction(cancellation=Cancellation()) as session:
        deleted_then_failed(session)
    assert update(driver, "UPDATE made SET n = n + 10") == 2
    assert table(driver, "SELECT n FROM made ORDER BY n").column(0).to_pylist() == [11, 12]


def test_a_read_only_transaction_changes_nothing(driver: Driver) -> None:
    with pytest.raises(StatementError), driver.transaction(cancellation=Cancellation(), read_only=True) as session:
        session.update("INSERT INTO made VALUES (1)")
    assert table(driver, "SELECT n FROM made").num_rows == 0


def test_cancelling_stops_the_statement(database: str, driver: Driver) -> None:
    cancellation = Cancellation()
    timer = threading.Timer(0.3, cancellation.cancel)
    timer.start()
    with pytest.raises(CancelledError):
        driver.query(ENDLESS[database], cancellation=cancellation).table()
    timer.join()
    assert table(driver, "SELECT 1 AS one").num_rows == 1


def test_cancelling_stops_an_update(database: str, driver: Driver) -> None:
    cancellation = Cancellation()
    timer = threading.Timer(0.3, cancellation.cancel)
    timer.start()
    with pytest.raises(CancelledError):
        driver.update(f"INSERT INTO made {ENDLESS[database]}", cancellation=cancellation)
    timer.join()
    assert table(driver, "SELECT n FROM made").num_rows == 0


def test_cancelled_before_it_begins(driver: Driver) -> None:
    cancellation = Cancellation()
    cancellation.cancel()
    with pytest.raises(CancelledError):
        driver.query("SELECT 1", cancellation=cancellation)


class Late(Cancellation):
    """Cancelled at the nth look: another part of the same work has failed with an error of its own."""

    def __init__(self, looks: int) -> None:
        super().__init__()
        self._looks = looks

    def check(self) -> None:
        self._looks -= 1
        if not self._looks:
            self.cancel(StatementError("Another part of the work failed."))
        super().check()


@pytest.mark.parametrize("looks", range(1, 9))
def test_the_failure_of_another_part_leaves_no_connection_in_doubt(database: str, driver: Driver, looks: int) -> None:
    failure = None
    try:
        driver.query(MANY[database].format(100_000), cancellation=Late(looks)).close()
    except StatementError as error:
        failure = error  # what it refers to lives on
    for _ in range(3):
        assert table(driver, "SELECT 1 AS one").num_rows == 1
    assert failure is None or failure.detail == "Another part of the work failed."


def test_closing_half_way_frees_the_connection(database: str, driver: Driver) -> None:
    for _ in range(5):
        stream = driver.query(MANY[database].format(50_000_000), cancellation=Cancellation())
        next(stream)
        stream.close()
        assert driver.pool_state()["open"] == driver.pool_state()["idle"]
    assert table(driver, "SELECT 1 AS one").num_rows == 1


def test_the_pool_has_a_limit(database: str, driver: Driver) -> None:
    held = [driver.query(MANY[database].format(1_000_000), cancellation=Cancellation()) for _ in range(2)]
    with pytest.raises(BusyError):
        driver.query("SELECT 1", cancellation=Cancellation())
    for stream in held:
        stream.close()
    assert table(driver, "SELECT 1 AS one").num_rows == 1


def test_check_and_product(database: str, driver: Driver) -> None:
    assert 0 < driver.check() < 60
    assert driver.product().lower().startswith(database[:6])


def test_each_statement_has_a_span(driver: Driver, database: str) -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("test")
    above = Cancellation(RecordedSpan(tracer.start_span("above"), tracer))
    assert driver.update("/* some */ INSERT INTO made VALUES (1), (2)", cancellation=above) == 2
    driver.query("-- some\nSELECT n FROM made", cancellation=above).close()
    driver.query("SELECT n FROM made WHERE n > 0", cancellation=above).table()
    with pytest.raises(StatementError) as refused:
        driver.query("SELECT nothing FROM made", cancellation=above).table()
    told = [(each.name, dict(each.attributes or {})) for each in exporter.get_finished_spans()]
    state = {"db.response.status_code": refused.value.sqlstate} if refused.value.sqlstate else {}
    names = [
        ("INSERT", {}),
        ("SELECT", {}),
        ("SELECT", {"db.response.returned_rows": 2}),
        ("SELECT", {**state, "error.type": refused.value.code}),
    ]
    assert told == [(name, {"db.system.name": database, "db.operation.name": name, **more}) for name, more in names]
