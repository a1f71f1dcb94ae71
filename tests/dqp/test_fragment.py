"""Fragments in DuckDB: streams in, streams out, errors, endings."""

import decimal
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from dai.errors import CancelledError, DataError, InternalError, LimitError, StatementError
from dai.streams.cancellation import Cancellation
from dai.streams.stream import TYPE_NAME, Stream
from dqp.execution.engine import Engine, _Run
from dqp.execution.execution import Execution
from tests.dqp.doubles import batch, execution
from tests.processes import SECONDS


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = Engine(threads=2)
    yield engine
    engine.close()


def stream(*batches: pa.RecordBatch) -> Stream:
    return Stream(batches[0].schema, iter(batches))


def test_streams_and_tables_are_its_inputs(engine: Engine) -> None:
    names = pa.table({"id": pa.array([2, 3, 99], pa.int32()), "name": ["two", "three", "none"]})
    with execution() as running:
        table = engine.run(
            "SELECT n.name, r.v FROM r JOIN n ON r.id = n.id ORDER BY r.v DESC",
            {"r": stream(batch(1, 4), batch(5, 4)), "n": names},
            running,
        ).table()
    assert table.to_pydict() == {"name": ["three", "two"], "v": [30, 20]}


@pytest.mark.parametrize("types", [None, ["INTEGER", "BIGINT"]])
def test_a_query_that_gives_the_types_that_are_wanted_is_bound_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, types: list[str] | None
) -> None:
    asked: list[str] = []
    query = _Run._query

    def counted(self: _Run, sql: str) -> Any:
        asked.append(sql)
        return query(self, sql)

    monkeypatch.setattr(_Run, "_query", counted)
    with execution() as running:
        table = engine.run("SELECT id, v FROM r", {"r": stream(batch(1, 2))}, running, types=types).table()
    assert table.to_pydict() == {"id" if types is None else "c1": [1, 2], "v" if types is None else "c2": [10, 20]}
    assert asked == ["SELECT * FROM (\nSELECT id, v FROM r\n)"]


def test_columns_are_named_and_cast_as_the_query_says(engine: Engine) -> None:
    with execution() as running:
        table = engine.run(
            "SELECT id, v, v AS w, sum(v) OVER () FROM r",
            {"r": stream(batch(7, 1))},
            running,
            names=["a", "a", "b", "total"],
            types=["BIGINT", "DECIMAL(12,2)", "VARCHAR", "HUGEINT"],
        ).table()
    assert table.schema.names == ["a", "a", "b", "total"]
    assert table.schema.types == [pa.int64(), pa.decimal128(12, 2), pa.string(), pa.decimal128(38, 0)]
    assert [each.to_pylist() for each in table.columns] == [[7], [decimal.Decimal("70.00")], ["70"], [70]]
    assert table.schema.field(2).metadata[TYPE_NAME] == b"varchar"


def test_first_rows_come_before_the_input_ends(engine: Engine) -> None:
    taken = threading.Event()
    batches = 0

    def endless() -> Iterator[pa.RecordBatch]:
        nonlocal batches
        while not taken.is_set():
            yield batch(batches * 5_000, 5_000)
            batches += 1
            assert batches < 4_000

    with execution() as running:
        actual = engine.run("SELECT id + 1 FROM r", {"r": Stream(batch(0, 1).schema, endless())}, running)
        first = next(actual)
        taken.set()
        assert first.num_rows + sum(each.num_rows for each in actual) == batches * 5_000


def test_an_input_is_read_once_or_materialised(engine: Engine) -> None:
    with execution() as running, pytest.raises(InternalError):
        engine.run(
            "SELECT (SELECT count(*) FROM r), (SELECT sum(v) FROM r)", {"r": stream(batch(1, 3))}, running
        ).table()
    with execution() as running:
        sql = (
            "WITH m AS MATERIALIZED (SELECT * FROM r) SELECT (SELECT count(*) FROM m) AS a, (SELECT sum(v) FROM m) AS b"
        )
        assert engine.run(sql, {"r": stream(batch(1, 3))}, running).table().to_pylist() == [{"a": 3, "b": 60}]


@pytest.mark.parametrize(
    ("sql", "kind", "text"),
    [
        ("SELECT CAST('x' AS INTEGER) FROM r", DataError, "Could not convert string 'x'"),
        ("SELECT 9223372036854775807 + v FROM r", DataError, "Overflow"),
        ("SELECT CAST(170141183460469231731687303715884105727 AS HUGEINT) FROM r", DataError, "38 digits"),
        ("SELECT [INTERVAL '2562047 hours'] FROM r", DataError, "An interval of more than"),
        ("SELECT nothing FROM r", StatementError, "nothing"),
        ("SELECT * FROM read_csv('/etc/passwd')", StatementError, "disabled"),
    ],
)
def test_errors_are_translated(engine: Engine, sql: str, kind: type[Exception], text: str) -> None:
    with execution() as running, pytest.raises(kind, match=text):
        engine.run(sql, {"r": stream(batch(1, 3))}, running).table()


_STATE = """
    SELECT list(name ORDER BY name) FROM (
        SELECT function_name AS name FROM duckdb_functions() WHERE NOT internal
        UNION ALL SELECT table_name FROM duckdb_tables()
        UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal
        UNION ALL SELECT type_name FROM duckdb_types() WHERE NOT internal
        UNION ALL SELECT schema_name FROM duckdb_schemas() WHERE NOT internal
        UNION ALL SELECT database_name FROM duckdb_databases()
        UNION ALL SELECT sequence_name FROM duckdb_sequences() UNION ALL SELECT name FROM duckdb_variables()
        UNION ALL SELECT name FROM duckdb_prepared_statements()
        UNION ALL SELECT name || '=' || coalesce(CAST(value AS VARCHAR), '') FROM duckdb_settings())
"""


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE MACRO upper(x) AS 'FORGED'",
        "CREATE TEMP MACRO upper(x) AS 'FORGED'",
        "CREATE TABLE forged AS SELECT 1 AS a",
        "CREATE TEMP TABLE forged AS SELECT 1 AS a",
        "CREATE VIEW forged AS SELECT 1 AS a",
        "CREATE TYPE forged AS ENUM ('a')",
        "CREATE SEQUENCE forged",
        "CREATE SCHEMA forged",
        "PIVOT (SELECT 1 AS a) ON a",
        "SET threads = 1",
        "SET VARIABLE forged = 1",
        "SET search_path = 'main'",
        "RESET threads",
        "PRAGMA enable_profiling",
        "PRAGMA version",
        "CALL pragma_version()",
        "ATTACH ':memory:' AS forged",
        "USE memory",
        "INSTALL httpfs",
        "LOAD httpfs",
        "COPY (SELECT 1) TO '{path}'",
        "EXPORT DATABASE '{path}'",
        "PREPARE forged AS SELECT 1",
        "BEGIN",
        "EXPLAIN ANALYZE SELECT 1",
    ],
)
def test_only_one_select_is_run_and_nothing_stays(engine: Engine, tmp_path: Path, statement: str) -> None:
    def asked(sql: str, profiled: bool, types: list[str] | None = None) -> list[dict[str, Any]]:
        with Execution(Cancellation(), profiled=profiled) as running:
            return engine.run(sql, {}, running, types=types, measure=running.measure("")).table().to_pylist()

    path = tmp_path / "written"
    before = [asked(_STATE, profiled) for profiled in (False, True)]
    forms = ("{}", "{}; SELECT 1 AS a", "SELECT 1 AS a; {}", "SELECT 1 AS a); {}; SELECT (1")
    for form, types, profiled in product(forms, (None, ["INTEGER"]), (False, True)):
        with pytest.raises(StatementError):
            asked(form.replace("{}", statement.replace("{path}", str(path))), profiled, types)
    for profiled in (False, True):
        assert asked("SELECT upper('a') AS a", profiled) == [{"a": "A"}]
        assert asked(_STATE, profiled) == before[profiled]
    assert not path.exists()


@pytest.mark.parametrize("types", [None, ["INTEGER"]])
@pytest.mark.parametrize("change", ["INSERT INTO kept VALUES (2)", "UPDATE kept SET a = 2", "DELETE FROM kept"])
def test_a_change_behind_with_is_not_run(change: str, types: list[str] | None) -> None:
    """DuckDB says that such a statement is a SELECT."""
    engine = Engine(threads=2)
    engine._cursor().execute("CREATE TABLE kept AS SELECT 1 AS a")
    with execution() as running, pytest.raises(StatementError, match="data-modifying"):
        engine.run(f"WITH x AS ({change} RETURNING a) SELECT a FROM x", {}, running, types=types).table()
    with execution() as running:
        assert engine.run("SELECT a FROM kept", {}, running).table().to_pydict() == {"a": [1]}
    engine.close()


@pytest.mark.parametrize(
    "sql",
    [
        "FROM read_text('{path}')",
        "FROM read_blob('{path}')",
        "FROM read_csv('{path}')",
        "FROM read_json('{path}')",
        "FROM sniff_csv('{path}')",
        "FROM glob('{path}')",
        "FROM read_parquet('{path}')",
        "FROM read_duckdb('{path}')",
        "FROM '{path}'",
        "FROM read_text('http://127.0.0.1:1/x')",
        "FROM query('FROM read_text(''{path}'')')",
        "FROM query('CREATE TABLE forged AS SELECT 1')",
        "FROM query('SELECT 1; SELECT 2')",
        "FROM enable_logging()",
        "FROM enable_profiling()",
    ],
)
def test_no_function_reaches_files_the_network_or_settings(engine: Engine, tmp_path: Path, sql: str) -> None:
    path = tmp_path / "some.csv"
    path.write_text("a\n1\n")
    with execution() as running, pytest.raises((StatementError, DataError)):
        engine.run(f"SELECT 1 AS a FROM ({sql.replace('{path}', str(path))})", {}, running).table()


def test_a_seed_and_inputs_end_with_their_fragment() -> None:
    """Of fragments that are measured too, whose cursor is used again."""
    engine = Engine(threads=2, memory_bytes=50_000_000)
    assert engine._measured == 1
    drawn = set()
    for _ in range(2):
        with Execution(Cancellation(), profiled=True) as running:
            sql = "SELECT random() AS drawn FROM range(3)"
            drawn |= set(engine.run(sql, {}, running, measure=running.measure("")).table()["drawn"].to_pylist())
        with Execution(Cancellation(), profiled=True) as running:
            inputs = {"r": pa.table({"a": [0.5]})}
            engine.run("SELECT setseed(a) FROM r", inputs, running, measure=running.measure("")).table()
        with (
            Execution(Cancellation(), profiled=True) as running,
            pytest.raises(StatementError, match="r does not exist"),
        ):
            engine.run("SELECT a FROM r", {}, running, measure=running.measure(""))
    with Execution(Cancellation(), profiled=True) as running:
        drawn |= set(engine.run(sql, {}, running, measure=running.measure("")).table()["drawn"].to_pylist())
    assert len(drawn) == 9
    engine.close()


@pytest.mark.parametrize(
    ("value", "type", "what"),
    [
        ("'infinity'", "DATE", "infinity is not a moment"),
        ("'-infinity'", "TIMESTAMP", "infinity is not a moment"),
        ("'infinity'", "TIMESTAMP WITH TIME ZONE", "infinity is not a moment"),
        ("'24:00:00'", "TIME", "24:00:00 is not a time"),
        ("['24:00:00']", "TIME[]", "24:00:00 is not a time"),
    ],
)
def test_what_arrow_does_not_have_is_no_answer(engine: Engine, value: str, type: str, what: str) -> None:
    with execution() as running:
        actual = engine.run(f"SELECT {value} FROM r", {"r": stream(batch(1, 3))}, running, names=["d"], types=[type])
        with pytest.raises(DataError, match=f"Column 'd': {what}"):
            actual.table()


def test_an_error_far_down_the_rows_is_what_it_is(engine: Engine) -> None:
    sql = "SELECT CAST(9223372036854775807 - 1000000 + v AS BIGINT) AS v FROM r"
    many = [batch(at * 10_000, 10_000) for at in range(30)]
    with execution() as running, pytest.raises(DataError, match="Overflow"):
        engine.run(sql, {"r": stream(*many)}, running).table()


def test_a_failed_input_is_the_cause(engine: Engine) -> None:
    def failing() -> Iterator[pa.RecordBatch]:
        yield batch(1, 10)
        raise DataError("half-way")

    with execution() as running, pytest.raises(DataError, match=r"^half-way$"):
        engine.run("SELECT sum(v) FROM r", {"r": Stream(batch(1, 1).schema, failing())}, running).table()


def test_cancelling_wakes_an_input_that_waits(engine: Engine) -> None:
    cancellation = Cancellation()
    waits = threading.Event()

    with execution(cancellation) as running:

        def blocked() -> Iterator[pa.RecordBatch]:
            yield batch(1, 10)
            woken = threading.Event()
            with running.cancellation.on_cancel(woken.set):
                waits.set()
                woken.wait(60)
            running.cancellation.check()

        threading.Thread(target=lambda: waits.wait(60) and cancellation.cancel(CancelledError("enough"))).start()
        with pytest.raises(CancelledError, match="enough"):
            engine.run("SELECT sum(v) FROM r", {"r": Stream(batch(1, 1).schema, blocked())}, running).table()


def test_closing_early_stops_the_input(engine: Engine) -> None:
    closed = threading.Event()

    def endless() -> Iterator[pa.RecordBatch]:
        try:
            while True:
                yield batch(1, 5_000)
        finally:
            closed.set()

    running = execution()
    actual = engine.run("SELECT id FROM r", {"r": Stream(batch(1, 1).schema, endless())}, running)
    next(actual)
    actual.close()
    running.close()
    assert closed.is_set()


def test_an_error_in_the_workings_of_duckdb_is_survived() -> None:
    """What DuckDB 2.0 stumbles over (a theta join over a hash join of stored tables); later ones may answer."""
    engine = Engine(threads=2)
    engine._cursor().execute(
        """CREATE TABLE l AS SELECT i // 4 + 1 AS o, i AS p, i % 50 AS q FROM range(60000) t(i);
           CREATE TABLE o AS SELECT i AS o, i % 1500 AS c, i / 7 AS t FROM range(15001) t(i);
           CREATE TABLE p AS SELECT i AS p FROM range(2000) t(i)"""
    )
    sql = """SELECT count(*) AS n, sum(t), sum(q) FROM l JOIN o ON l.o = o.o JOIN p ON (l.p * p.p + o.c) % 97 = 3"""
    with execution() as running, suppress(InternalError):
        engine.run(sql, {}, running).table()
    with execution() as running:
        assert engine.run("SELECT 1 AS a", {}, running).table().to_pydict() == {"a": [1]}
    engine.close()


def test_what_does_not_fit_in_memory_is_spilled(tmp_path: os.PathLike[str]) -> None:
    def keys(parts: int) -> Stream:
        wide = pa.record_batch({"id": pa.array(range(20_000)), "text": ["x" * 100] * 20_000})

        def moved(at: int) -> pa.RecordBatch:
            return wide.set_column(0, "id", pa.array(range(at * 20_000, (at + 1) * 20_000)))

        return Stream(wide.schema, map(moved, range(parts)))

    sql = "SELECT count(*) AS n, max(r.text || l.text) FROM l JOIN r ON l.id = r.id"
    tight = Engine(memory_bytes=60_000_000, threads=2, directory=os.fspath(tmp_path))
    with execution() as running:
        assert tight.run(sql, {"l": keys(60), "r": keys(60)}, running).table()["n"].to_pylist() == [1_200_000]
    tight.close()
    tiny = Engine(memory_bytes=2_000_000, threads=1)
    with execution() as running, pytest.raises(LimitError, match="memory"):
        tiny.run("SELECT list(l) FROM l", {"l": keys(60)}, running).table()
    tiny.close()


@pytest.mark.parametrize("memory", [100_000_000, 200_000_000])
def test_where_duckdb_chooses_the_order_of_joins_little_memory_is_enough_too(
    tmp_path: os.PathLike[str], memory: int
) -> None:
    wide = pa.record_batch({"id": pa.array(range(20_000)), "text": ["x" * 100] * 20_000})

    def keys() -> Stream:
        moved = (wide.set_column(0, "id", pa.array(range(at * 20_000, (at + 1) * 20_000))) for at in range(60))
        return Stream(wide.schema, moved)

    engine = Engine(memory_bytes=memory, directory=os.fspath(tmp_path))
    sql = "SELECT * FROM l JOIN r USING (id) ORDER BY 2, 1 DESC"
    with execution() as running, engine.run(sql, {"l": keys(), "r": keys()}, running, choosing=True) as rows:
        assert sum(each.num_rows for each in rows) == 1_200_000
    engine.close()


def test_where_there_is_no_place_to_spill_to_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
    engine = Engine()
    with execution() as running, pytest.raises(LimitError, match="cannot spill") as caught:
        engine.run("SELECT 1", {}, running)
    assert str(tmp_path) not in str(caught.value)
    engine.close()


def test_an_engine_can_be_closed_while_queries_begin() -> None:
    engine = Engine()

    class Locked(weakref.WeakSet):  # type: ignore[type-arg]
        def add(self, item: object) -> None:
            assert engine._opening.locked()
            super().add(item)

        def __iter__(self) -> Iterator[object]:
            assert engine._opening.locked()
            return super().__iter__()

    engine._running = Locked()
    with execution() as running, engine.run("SELECT 1", {}, running):
        engine.close()


@pytest.mark.parametrize("choosing", [False, True])
def test_closing_an_engine_stops_a_query_before_its_first_row(choosing: bool) -> None:
    engine = Engine(threads=2)
    begun = threading.Event()
    ended: list[Exception] = []

    def rows() -> Iterator[pa.RecordBatch]:
        begun.set()
        yield batch(1, 1_000_000)

    def run() -> None:
        with execution() as running:
            try:
                sql = "SELECT sum(sin(a.v * b.range)) FROM r AS a, range(1000000) AS b"
                engine.run(sql, {"r": Stream(batch(1, 1).schema, rows())}, running, choosing=choosing).table()
            except Exception as error:  # noqa: BLE001
                ended.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(SECONDS)
    engine.close()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert ended


def _keys(count: int, **columns: int) -> Stream:
    """``count`` rows; a column has so many values, in turn."""
    rows = {name: pa.array([at % values for at in range(count)], pa.int32()) for name, values in columns.items()}
    return stream(pa.RecordBatch.from_pydict(rows))


ORDER = "SELECT count(*) AS n FROM l JOIN o ON l.ok = o.ok JOIN s ON l.sk = s.sk JOIN c ON c.n = s.n AND c.ck = o.ck"


@pytest.mark.parametrize("choosing", [False, True])
def test_joins_are_made_in_the_order_of_the_sql(engine: Engine, choosing: bool) -> None:
    """DuckDB, which does not know that n has five values, would begin with the four million pairs of s and c."""
    with Execution(Cancellation(), profiled=True) as running:
        measure = running.measure("")
        table = engine.run(
            ORDER,
            {
                "l": _keys(60_000, ok=11_000, sk=2_000),
                "o": _keys(11_000, ok=11_000, ck=10_000),
                "s": _keys(2_000, sk=2_000, n=5),
                "c": _keys(10_000, ck=10_000, n=5),
            },
            running,
            measure=measure,
            choosing=choosing,
        ).table()
    assert table.num_rows == 1
    most = max(_rows(measure._of.profile))
    assert most >= 4_000_000 if choosing else most <= 60_000


def _rows(profile: Any) -> Iterator[int]:
    """Of each operator."""
    yield int(profile.get("intermediate_rows", 0))
    for each in (*profile.get("children", ()), *profile.get("operator", ())):
        yield from _rows(each)
