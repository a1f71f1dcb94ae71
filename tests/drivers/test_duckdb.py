"""What is DuckDB's own: types Arrow lacks, and a database that statements cannot leave."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from dai.client.results import frames
from dai.config import parse
from dai.drivers import Driver, DriverOptions, driver_for
from dai.drivers.duckdb.errors import answering
from dai.drivers.tables import ColumnStatistics
from dai.errors import DatabaseUnavailableError, DataError, LimitError, NotAQueryError, ParameterError, StatementError
from dai.formats import FORMATS, format_named
from dai.service.resources import Resources
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from tests.drivers.statements import table, update


@pytest.fixture
def driver(duckdb_url: str) -> Iterator[Driver]:
    made = driver_for(duckdb_url, DriverOptions(pool_size=3, pool_wait=0.3))
    yield made
    state = made.pool_state()
    made.close()
    assert state["open"] == state["idle"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT [170141183460469231731687303715884105727::hugeint] AS v",
        "SELECT 'infinity'::date AS v",
        "SELECT '-infinity'::timestamp AS v",
        "SELECT 'infinity'::timestamptz AS v",
        "SELECT TIME '24:00:00' AS v",
        "SELECT [[TIME '24:00:00']] AS v",
        "SELECT ['infinity'::date] AS v",
        "SELECT INTERVAL '-2562047 hours' AS v",
        "SELECT [[INTERVAL '2562047 hours']] AS v",
    ],
)
def test_values_that_arrow_does_not_have_are_refused(driver: Driver, sql: str) -> None:
    with pytest.raises(DataError, match=r"CAST|Cast"):
        table(driver, sql)
    text = table(driver, f"SELECT CAST(v AS VARCHAR) AS v FROM ({sql})").column("v").to_pylist()
    texts = {"[170141183460469231731687303715884105727]", "infinity", "-infinity", "[infinity]", "24:00:00"}
    texts |= {"[['24:00:00']]", "-2562047:00:00", "[['2562047:00:00']]"}
    assert text[0] in texts


@pytest.mark.parametrize("value", [2**127 - 1, -(2**127) + 1, 2**128 - 1])
def test_whole_numbers_of_39_digits(driver: Driver, value: int) -> None:
    type_ = "uhugeint" if value > 2**127 else "hugeint"
    sql = (
        f"SELECT i, CASE i WHEN 0 THEN {value}::{type_} WHEN 1 THEN NULL ELSE i::{type_} END AS v FROM range(4000) r(i)"
    )
    actual = table(driver, f"{sql} ORDER BY i")
    assert actual.schema.field("v").type == pa.decimal256(39, 0)
    assert actual["v"].to_pylist()[:3] == [Decimal(value), None, Decimal(2)]
    assert actual["v"].to_pylist()[-1] == 3999
    assert table(driver, f"{sql} WHERE i > 0").schema.field("v").type == pa.decimal128(38, 0)
    for name in FORMATS:
        data = b"".join(memoryview(block.data) for block in format_named(name).encode(Stream.of(actual)))
        typed: dict[str, Any] = {"schema": actual.schema} if name in ("csv", "json", "json-array") else {}
        assert format_named(name).decode([data], **typed).table()["v"].equals(actual["v"])
    assert frames.to_polars(lambda: actual, False)["v"][0] == float(value)
    assert frames.to_pandas(lambda: actual, False)["v"][0] == value
    with pytest.raises(DataError) as caught:
        table(driver, f"{sql} ORDER BY i DESC")
    assert (caught.value.extra["column"], caught.value.extra["row"]) == ("v", 4000)
    assert "CAST" in (caught.value.hint or "")


@pytest.mark.parametrize("form", ["{}", "[{}]", "if(i % 2 = 0, [NULL, {}], NULL)"])
def test_the_row_of_an_infinite_date(driver: Driver, form: str) -> None:
    value = form.format("if(i = 4000, 'infinity'::date, '2024-01-01'::date)")
    sql = f"SELECT {value} AS v FROM range(5000) r(i) ORDER BY i"
    with pytest.raises(DataError) as caught:
        table(driver, sql)
    assert (caught.value.extra["column"], caught.value.extra["row"]) == ("v", 4001)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('{}')",
        "SELECT * FROM '{}'",
        "SELECT * FROM glob('{}')",
        "SELECT * FROM read_text('{}')",
    ],
)
def test_queries_reach_no_file(driver: Driver, tmp_path: Path, sql: str) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\nsecret\n")
    with pytest.raises(StatementError):
        table(driver, sql.format(secret))


@pytest.mark.parametrize(
    "sql",
    [
        "COPY (SELECT 1) TO '{}'",
        "ATTACH '{}' AS other",
        "EXPORT DATABASE '{}'",
        "SET enable_external_access = true",
        "SET threads = 1",
        "INSTALL httpfs",
        "LOAD '{}'",
        "PRAGMA database_list",
        "UPDATE EXTENSIONS",
        "CREATE VIEW told AS SELECT * FROM duckdb_settings()",
        "CREATE MACRO told(name) AS current_setting(name)",
        "CREATE MACRO told(sql) AS TABLE SELECT * FROM query(sql)",
        "CREATE TABLE told AS FROM query('FROM duckdb_databases()')",
    ],
)
def test_updates_reach_no_file_and_no_setting(driver: Driver, tmp_path: Path, sql: str) -> None:
    target = tmp_path / "target"
    with pytest.raises(StatementError) as caught:
        update(driver, sql.format(target))
    assert str(tmp_path) not in str(caught.value.detail)
    assert not target.exists()


def test_who_writes_gives_the_database_no_other_name(driver: Driver) -> None:
    """It would be the name for everybody, until the service is restarted."""
    (name,) = table(driver, "SELECT current_database() AS name")["name"].to_pylist()
    with pytest.raises(StatementError):
        update(driver, f'ALTER DATABASE "{name}" SET ALIAS TO other')
    assert table(driver, "SELECT current_database() AS name")["name"].to_pylist() == [name]


def test_tables_may_be_called_as_functions_that_run_a_text(driver: Driver) -> None:
    update(driver, "CREATE TABLE IF NOT EXISTS query (a INTEGER, b INTEGER)")
    update(driver, "CREATE INDEX query_table ON query (a)")
    assert update(driver, "INSERT INTO query (a, b) VALUES (1, 2)") == 1
    assert table(driver, "SELECT a FROM query").num_rows == 1


def test_python_objects_are_not_tables(driver: Driver) -> None:
    secret = pa.table({"a": [1]})
    assert secret.num_rows == 1
    with pytest.raises(StatementError):
        table(driver, "SELECT * FROM secret")


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT nextval('numbers')",
        "FROM query('SELECT nextval(''numbers'')')",
        "FROM destroy_external_resource('query', 'SELECT nextval(''numbers'')')",
        """FROM "Destroy_External_Resource" /* */ ('query', 'SELECT nextval(''numbers'')')""",
        "FROM deregister_external_resource('a')",
    ],
)
def test_a_query_with_a_side_effect_is_refused(driver: Driver, sql: str) -> None:
    """Also where DuckDB runs the text in another transaction, which writes."""
    update(driver, "CREATE SEQUENCE numbers")
    with pytest.raises(StatementError):
        table(driver, sql)
    assert table(driver, "SELECT last_value FROM duckdb_sequences()").column(0).to_pylist() == [None]
    with pytest.raises(StatementError, match=r"not allowed|read-only|Cannot write"):
        table(driver, sql)
    assert table(driver, "EXPLAIN SELECT 1").num_rows == 1


def test_pivot_needs_its_values(driver: Driver) -> None:
    update(driver, "CREATE TABLE t AS SELECT i % 2 AS a, i FROM range(4) r(i)")
    with pytest.raises(NotAQueryError, match="PIVOT"):
        table(driver, "PIVOT t ON a USING sum(i)")
    assert table(driver, "PIVOT t ON a IN (0, 1) USING sum(i)").num_columns == 2


def test_the_same_file_twice_in_a_process(driver: Driver, duckdb_url: str) -> None:
    update(driver, "CREATE TABLE t AS SELECT 1 AS n")
    other = driver_for(duckdb_url)
    assert table(other, "SELECT n FROM t").num_rows == 1
    other.close()
    assert table(driver, "SELECT n FROM t").num_rows == 1


def test_the_same_file_twice_at_the_same_time(tmp_path: Path) -> None:
    url = f"duckdb:///{tmp_path / 'both.duckdb'}"
    with duckdb.connect(str(tmp_path / "both.duckdb")) as made:
        made.execute("CREATE TABLE t (id INTEGER)")
    for _ in range(30):
        drivers = [driver_for(url) for _ in range(3)]
        at_once = threading.Barrier(len(drivers))

        def named(one: Driver, at_once: threading.Barrier = at_once) -> list[str]:
            at_once.wait()
            return [each.name for each in one.tables()]

        with ThreadPoolExecutor(len(drivers)) as pool:
            assert list(pool.map(named, drivers)) == [["t"]] * len(drivers)
        for each in drivers:
            each.close()


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    driver = driver_for(f"duckdb:///{tmp_path}/no/such/directory.duckdb")
    with pytest.raises(DatabaseUnavailableError) as caught:
        driver.check()
    assert str(tmp_path) not in str(caught.value)
    driver.close()


def test_a_file_that_another_process_has_says_so(tmp_path: Path) -> None:
    path = tmp_path / "taken.duckdb"
    code = "import duckdb, sys; kept = duckdb.connect(sys.argv[1]); print(flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "\n"
        driver = driver_for(f"duckdb:///{path}")
        with pytest.raises(
            DatabaseUnavailableError, match="open in another process; only one process at a time"
        ) as caught:
            driver.check()
        driver.close()
        assert str(path) not in str(caught.value)
        other.communicate()


def test_a_load_into_nested_types(driver: Driver) -> None:
    data = pa.table({"l": [[1, None], []], "i": pa.array([pa.MonthDayNano([1, 2, 3000]), None])})
    driver.load("nested", Stream.of(data), cancellation=Cancellation(), create=True)
    assert table(driver, "SELECT l, i FROM nested").to_pylist() == data.to_pylist()


def test_nanoseconds_are_not_cut(driver: Driver) -> None:
    update(driver, "CREATE TABLE t (moment timestamp)")
    data = pa.table({"moment": pa.array([1], pa.timestamp("ns"))})
    with pytest.raises(DataError, match="'moment'"):
        driver.load("t", Stream.of(data), cancellation=Cancellation())
    driver.load("exact", Stream.of(data), cancellation=Cancellation(), create=True)
    assert table(driver, "SELECT moment FROM exact").column("moment").cast(pa.int64()).to_pylist() == [1]


def test_the_position_behind_a_literal_question_mark(driver: Driver) -> None:
    with pytest.raises(StatementError) as caught:
        table(driver, "SELECT '??', ? FROM nowhere", 1)
    assert caught.value.position == 21


def test_no_procedures(driver: Driver) -> None:
    with pytest.raises(ParameterError):
        driver.call("p", [], cancellation=Cancellation())


def test_statistics_are_those_that_duckdb_keeps(driver: Driver) -> None:
    update(
        driver,
        "CREATE TABLE s AS SELECT i::int AS id, i % 10 AS k, (i / 4)::decimal(8, 2) AS amt, date '2024-01-01' AS d, "
        "'n ' || i AS s, NULL::int AS nothing, if(i % 2 = 0, i, NULL) AS half, [i] AS l FROM range(1000) r(i)",
    )
    update(driver, "CREATE VIEW v AS FROM s")
    known = driver.statistics("s")
    assert known.rows == 1000
    assert known.columns["id"].distinct == pytest.approx(1000, rel=0.2)
    k = known.columns["k"]
    common = tuple((str(each), 0.1) for each in range(10))
    assert replace(k, common=()) == ColumnStatistics(distinct=k.distinct, null_fraction=0.0, low="0", high="9")
    assert tuple(sorted(k.common)) == common
    assert k.distinct == pytest.approx(10, abs=3)
    assert (known.columns["amt"].low, known.columns["amt"].high) == ("0.00", "249.75")
    assert (known.columns["d"].low, known.columns["d"].high) == ("2024-01-01", "2024-01-01")
    assert known.columns["nothing"].null_fraction == 1.0
    assert known.columns["half"].null_fraction == 0.5
    assert known.columns["s"].common == known.columns["half"].common == ()
    assert driver.statistics("v").columns == {}
    update(driver, "CREATE TABLE empty (i int)")
    assert driver.statistics("empty").rows == 0


def test_common_values_of_a_large_table_are_those_of_a_sample(driver: Driver) -> None:
    update(
        driver,
        "CREATE TABLE u AS SELECT i AS id, if(i % 10 < 8, 'much', 'few' || i % 1000) AS s, i % 4 = 0 AS b, "
        "if(i % 5 = 0, NULL, i) AS n, date '2024-02-29' + (i % 2)::int AS d FROM range(1_000_000) r(i)",
    )
    known = driver.statistics("u").columns
    assert known["s"].common == (("much", pytest.approx(0.8, abs=0.01)),)
    assert dict(known["b"].common) == {"True": pytest.approx(0.25, abs=0.01), "False": pytest.approx(0.75, abs=0.01)}
    assert {each for each, _ in known["d"].common} == {"2024-02-29", "2024-03-01"}
    assert known["n"].null_fraction == pytest.approx(0.2, abs=0.01)
    assert all(driver.statistics("u").columns == known for _ in range(20))


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ("'infinity'::date", "date '2020-01-01'", {"2020-01-01"}),
        ("'294247-01-10'::timestamp", "'infinity'::timestamp", set()),
        ("'0044-03-15 (BC)'::date", "date '2020-01-01'", {"2020-01-01"}),
        ("'2020-01-01 01:00+01'::timestamptz", "'infinity'::timestamptz", {"2020-01-01 00:00:00+00:00"}),
        ("1::bignum", "2::bignum", set()),
        ("'nan'::double", "1.5::double", {"nan", "1.5"}),
        ("'it''s \"q\"'", "'a' || chr(0)", {'it\'s "q"', "a\0"}),
        ("repeat('ä', 100)", "repeat('ä', 101)", {"ä" * 100}),
        ("repeat('x', 200)", "repeat('x', 300)", set()),
        ("'a'::enum('a', 'b', 'c')", "'b'::enum('a', 'b', 'c')", {"a", "b"}),
        ("[1]", "[2]", set()),
    ],
)
def test_values_of_any_kind_may_be_common(driver: Driver, one: str, other: str, common: set[str]) -> None:
    name = 'of "any" kind'
    column = name.replace('"', '""')
    update(driver, f'CREATE TABLE of_any AS SELECT if(i % 2 = 0, {one}, {other}) AS "{column}" FROM range(3000) r(i)')
    known = driver.statistics("of_any").columns[name]
    assert {each: pytest.approx(0.5) for each in common} == dict(known.common)
    assert known.null_fraction == 0.0


def test_statistics_of_moments_with_a_zone(driver: Driver) -> None:
    update(
        driver,
        "CREATE TABLE zoned AS SELECT '2020-01-01 00:00+00'::timestamptz + to_days(i::int) AS t, "
        "NULL::timestamptz AS nothing FROM range(100) r(i)",
    )
    known = driver.statistics("zoned").columns
    assert (known["t"].low, known["t"].high) == ("2020-01-01 00:00:00+00", "2020-04-09 00:00:00+00")
    assert known["t"].distinct == pytest.approx(100, rel=0.2)
    assert (known["t"].null_fraction, known["nothing"].null_fraction, known["nothing"].low) == (0.0, 1.0, None)


def test_a_load_that_breaks_a_constraint_says_so(driver: Driver) -> None:
    update(driver, "CREATE TABLE unique_ids (id integer PRIMARY KEY)")
    rows = pa.table({"id": pa.array([1, 2, 1], pa.int32())})
    with pytest.raises(StatementError, match=r"(?i)constraint|duplicate"):
        driver.load("unique_ids", Stream.of(rows), cancellation=Cancellation())
    assert table(driver, "SELECT count(*) FROM unique_ids").to_pylist() == [{"count_star()": 0}]
    rows = pa.table({"id": pa.array([1, 2], pa.int32())})
    assert driver.load("unique_ids", Stream.of(rows), cancellation=Cancellation()) == 2


def test_a_query_has_no_more_memory_than_the_resource(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One query took 80 % of the machine's memory, and then 90 % of what was free on its disk."""
    monkeypatch.setattr("dai.drivers.duckdb.driver.SPILL_BYTES", 20_000_000)
    many = "select count(*) from (select distinct i, i * 2 as j from range(4_000_000) t(i))"
    path = tmp_path / "small.duckdb"
    (tmp_path / "t.csv").write_text("a\n1\n")
    resources = {
        "duck": {"url": f"duckdb:///{path}", "memory_bytes": 60_000_000},
        "files": {"files": {"t": str(tmp_path / "t.csv")}, "memory_bytes": 60_000_000},
    }
    duckdb.connect(str(path)).close()
    service = Resources(parse({"resources": resources}, tmp_path, {}))
    for name in ("duck", "files"):
        driver = service.named(name).driver
        with pytest.raises(LimitError, match="more memory"):
            table(driver, many)
        assert table(driver, "select 1 as one").num_rows == 1
    service.close()


class GivenUp:
    """A connection to a database of DuckDB that has given up, as after an index for which there was no memory."""

    closed = False

    def cursor(self) -> "GivenUp":
        return self

    def close(self) -> None:
        self.closed = True

    def _fails(self, *_: object, **__: object) -> None:
        raise duckdb.FatalException(
            "FATAL Error: Failed: database has been invalidated because of a previous fatal error."
        )

    execute = extract_statements = interrupt = _fails


def test_a_database_that_has_given_up_is_opened_anew(tmp_path: Path) -> None:
    """It answered nothing any more, until the service was started again."""
    driver = driver_for(f"duckdb:///{tmp_path / 'data.duckdb'}", DriverOptions())
    update(driver, "CREATE TABLE t AS SELECT 1 AS n")
    driver._root.close()  # type: ignore[attr-defined]
    given_up = driver._root = GivenUp()  # type: ignore[attr-defined]
    with pytest.raises(DatabaseUnavailableError):
        table(driver, "SELECT n FROM t")
    assert table(driver, "SELECT n FROM t").column("n").to_pylist() == [1]
    assert given_up.closed
    driver.close()


def test_a_database_that_answers_with_another_error_stays_open() -> None:
    """One in memory would be empty."""

    class Full(GivenUp):
        def execute(self, *_: object, **__: object) -> None:
            raise duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate")

    for each, closed in ((Full(), False), (GivenUp(), True)):
        connection: Any = each
        assert (answering(connection) is None, each.closed) == (closed, closed)


@pytest.mark.parametrize("sql", ["SELECT i // 0 FROM range(3) r(i)", f"SELECT {'-(1 + ' * 1200}1{')' * 1200}"])
def test_an_error_advises_no_change_of_a_setting(driver: Driver, sql: str) -> None:
    with pytest.raises((StatementError, DataError)) as caught:
        table(driver, sql)
    assert "SET " not in caught.value.detail
    assert caught.value.detail.endswith(("to return NULL for this expression.", "limit of 1000 exceeded."))
