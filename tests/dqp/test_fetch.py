"""Reading remote subtrees: in parts, at once, from replicas."""

import contextlib
import re
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlglot
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

import dqp
from dai.drivers import driver_for
from dai.errors import (
    CancelledError,
    DatabaseUnavailableError,
    DataError,
    InternalError,
    StatementError,
    UnreachableError,
)
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.keys import KeyTable, in_list, in_table
from dqp.algebra.operators import Aggregate, Filter, Nested, Operator, Project, Remote, Scan, column
from dqp.algebra.table import Column, Table
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from dqp.execution.fetch import Lost, Reading, direct, places, read
from dqp.planning.splitting import parts
from dqp.settings import FederationSettings
from dqp.sql.dialects import NotPushed
from dqp.sql.render_duckdb import duckdb_sql
from tests.dqp.doubles import Double, batch, catalog_of, ends_when_cancelled, execution, numbers, remote
from tests.processes import SECONDS
from tests.thoroughness import examples


def answer(*batches: pa.RecordBatch, fails: Exception | None = None) -> Any:
    def found(sql: str, cancellation: Cancellation) -> Stream:
        def each() -> Iterator[pa.RecordBatch]:
            yield from batches
            if fails is not None:
                raise fails

        return Stream(batch(1, 0).schema, each())

    return found


def refusing(error: Exception) -> Any:
    def found(sql: str, cancellation: Cancellation) -> Stream:
        raise error

    return found


def test_columns_are_called_by_their_identifiers() -> None:
    source = Double("pg", answer(batch(1, 3), batch(4, 2)))
    with execution() as running:
        table = read(remote(numbers("pg"), "x_"), catalog_of(source), running).table()
        (measured,) = running.measurements()
    assert table.to_pydict() == {"x_id": [1, 2, 3, 4, 5], "x_v": [10, 20, 30, 40, 50]}
    assert (measured.where, measured.rows, measured.batches, measured.state) == ("pg", 5, 2, "done")
    assert measured.statements == tuple(source.asked)


def test_statements_run_at_once() -> None:
    both = threading.Barrier(2, timeout=60)

    def together(sql: str, cancellation: Cancellation) -> Stream:
        both.wait()
        return Stream.of(batch(1, 2))

    catalog = catalog_of(Double("a", together), Double("b", together))
    with execution() as running:
        readings = [Reading(remote(numbers(each)), catalog, running, Lost()) for each in "ab"]
        assert [each.stream().table().num_rows for each in readings] == [2, 2]


def test_rows_are_streamed_once() -> None:
    with execution() as running:
        reading = Reading(remote(numbers("pg")), catalog_of(Double("pg", answer(batch(1, 3)))), running, Lost())
        assert reading.whole(1 << 20) == reading.whole(1 << 20)
        stream = reading.stream()
        with pytest.raises(InternalError, match="a second time"):
            reading.stream()
        assert stream.table().num_rows == 3


def test_a_large_scan_is_read_in_parts() -> None:
    def ranged(sql: str, cancellation: Cancellation) -> Stream:
        low = int(match[1]) if (match := re.search(r">= (\d+)", sql)) else 1
        high = int(match[1]) if (match := re.search(r"< (\d+)", sql)) else 1_001
        return Stream.of(batch(low, high - low))

    source = Double("pg", ranged)
    with execution(split_rows=500, splits=4) as running:
        table = read(remote(numbers("pg")), catalog_of(source), running).table()
    assert sorted(table["id"].to_pylist()) == list(range(1, 1_001))
    assert len(source.asked) == 4


@pytest.mark.parametrize(
    ("rows", "correlation", "splits", "statements"),
    [
        (50, None, 4, 1),
        (200, None, 4, 4),
        (200, -0.98, 4, 4),
        (200, 0.1, 4, 1),
        (800, 0.1, 4, 4),
        (800, 0.98, 2, 2),
        (800, 0.1, 2, 1),
    ],
)
def test_few_rows_of_a_table_are_read_at_once_where_the_database_has_workers(
    rows: float, correlation: float | None, splits: int, statements: int
) -> None:
    """More rows are few where each part would look at every row because the table is not in the order of its key; all
    are where only two parts are read at the same time."""
    double = Double("pg", answer(batch(1, 1)))
    table = numbers("pg")
    table = replace(table, columns=(replace(table.columns[0], correlation=correlation), table.columns[1]))
    with execution(split_rows=500, splits=splits) as running:
        running.estimate = lambda _: rows
        read(remote(table), catalog_of(double), running).table()
    assert len(double.asked) == statements


def test_parts_are_of_the_range_that_a_filter_leaves() -> None:
    """Else one part would have all rows."""
    whole = remote(numbers("pg"))
    condition = sqlglot.parse_one("id >= 601 AND id < 1001 AND v > 5 AND id <> 700", read="duckdb")
    filtered = replace(whole, tree=Filter(whole.tree, condition))
    texts = [duckdb_sql(each.tree) for each in parts(filtered, 4)]
    assert [re.findall(r"< (\d+)", each)[-1] for each in texts] == ["701", "801", "901", "1001"]
    assert [re.findall(r">= (\d+)", each)[-1] for each in texts] == ["601", "701", "801", "901"]
    none = replace(whole, tree=Filter(whole.tree, sqlglot.parse_one("id > 5 AND id < 7", read="duckdb")))
    assert parts(none, 4) == (none,)


def _of_maria(condition: str) -> tuple[Double, Remote]:
    """A table of MariaDB with an index on v."""
    double, table = Double("maria", answer(batch(1, 1)), dialect="mariadb"), numbers("maria")
    types = {"INTEGER": "int", "BIGINT": "bigint"}
    columns = tuple(replace(each, source_type=types[each.type]) for each in table.columns)
    whole = remote(replace(table, columns=columns, indexes=(("v",),)))
    return double, replace(whole, tree=Filter(whole.tree, sqlglot.parse_one(condition, read="duckdb")))


@pytest.mark.parametrize(
    ("condition", "rows", "statements"),
    [
        ("v = 5", 5, 1),
        ("v = 5", 200, 2),
        ("v > 5", 5, 2),
        ("id <> 7", 5, 2),
        ("NOT v IN (5, 6) AND id <> 7", 5, 2),
        ("v = 5 OR id > 7", 5, 2),
    ],
)
def test_few_rows_that_an_index_finds_are_one_statement(condition: str, rows: float, statements: int) -> None:
    double, filtered = _of_maria(condition)
    with execution(split_rows=500, splits=2) as running:
        running.estimate = lambda _: rows
        read(filtered, catalog_of(double), running).table()
    assert len(double.asked) == statements


@pytest.mark.parametrize(("part", "statements"), [(0.01, 1), (0.05, 2), (0.5, 2)])
def test_few_rows_by_keys_that_keep_much_are_read_in_parts(part: float, statements: int) -> None:
    """Another condition makes them few, of many that an index finds or of the whole table."""
    double, filtered = _of_maria("id <> 7")
    keys = in_list("v", [exp.Literal.number(each) for each in (5, 6)], part)
    with execution(split_rows=500, splits=2) as running:
        running.estimate = lambda _: 5
        read(replace(filtered, tree=Filter(filtered.tree, keys)), catalog_of(double), running).table()
    assert len(double.asked) == statements


@pytest.mark.parametrize(("table", "statements"), [(True, 1), (False, 2)])
def test_each_part_would_load_a_table_of_keys_again(table: bool, statements: int) -> None:
    rows = pa.record_batch({"id": pa.array([5], pa.int64()), "v": pa.array([10], pa.int64())})
    double = Double("lite", lambda sql, cancellation: Stream.of(rows), dialect="sqlite")
    of = numbers("lite", 1_000_000, high=1_000_000)
    whole = remote(
        replace(of, columns=tuple(replace(each, type="BIGINT", source_type="integer") for each in of.columns))
    )
    if table:
        keys = in_table(["id"], KeyTable("keys", pa.table({"k1": pa.array([5, 6], pa.int32())})), 0.05)
    else:
        keys = in_list("id", [exp.Literal.number(each) for each in (5, 6)], 0.05)
    with execution(split_rows=500, splits=2) as running:
        running.estimate = lambda _: 50_000
        read(replace(whole, tree=Filter(whole.tree, keys)), catalog_of(double), running).table()
    assert len(double.asked) == statements


@pytest.mark.parametrize(("rows", "statements"), [(5, 1), (200, 2)])
def test_few_groups_of_many_rows_are_made_in_parts(rows: float, statements: int) -> None:
    """Though an index finds the rows."""
    double, filtered = _of_maria("v = 5")
    groups = Aggregate(filtered.tree, (("i", column("id")),), (("n", exp.Min(this=column("v"))),), partial=True)
    with execution(split_rows=500, splits=2) as running:
        running.estimate = lambda each: 1 if isinstance(each.tree, Aggregate) else rows
        read(replace(filtered, tree=groups), catalog_of(double), running).table()
    assert len([each for each in double.asked if "MIN" in each]) == statements


@settings(max_examples=examples(30))
@given(
    st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), unique=True, max_size=40),
    st.integers(-(2**31), 2**31 - 2),
    st.integers(1, 2**31),
    st.integers(1, 7),
)
def test_the_parts_are_the_whole(keys: list[int | None], low: int, width: int, number: int) -> None:
    """Also for keys that the statistics do not know of, and for NULL, which SQLite takes."""
    import duckdb

    table = numbers("db", high=1_000)
    first = table.columns[0]
    table = type(table)(
        "db", "t", (type(first)("id", "INTEGER", "int4", True, None, 0.0, low, low + width, 4.0), table.columns[1]),
        keys=(("id",),),
    )  # fmt: skip
    data = pa.table({"id": pa.array(keys, pa.int32()), "v": pa.array(keys, pa.int64())})
    with duckdb.connect() as connection:
        connection.register("data", data)
        connection.execute("ATTACH ':memory:' AS db")
        connection.execute("CREATE TABLE db.t AS SELECT * FROM data")
        rows = [
            row for part in parts(remote(table), number) for row in connection.execute(duckdb_sql(part.tree)).fetchall()
        ]
    assert sorted(rows, key=repr) == sorted(((each, each) for each in keys), key=repr)


@settings(max_examples=examples(30))
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 3)), max_size=40), st.integers(2, 5))
def test_groups_by_the_key_of_the_parts_are_whole(rows: list[tuple[int, int]], number: int) -> None:
    """A condition on them too; groups by another column have rows in several parts."""
    import duckdb

    columns = [Column(name, "INTEGER", "int4", low=0, high=20) for name in ("k", "v")]
    scan = Scan(Table("db", "t", tuple(columns), keys=(("k", "v"),), rows=1e6), (("k1", "k"), ("v1", "v")))

    def groups(by: str) -> Remote:
        counted = Aggregate(scan, (("key", column(by)),), (("n", exp.Count(this=exp.Star(), big_int=True)),))
        return Remote("db", Filter(counted, exp.GT(this=column("n"), expression=exp.Literal.number(1))))

    assert parts(groups("v1"), number) == (groups("v1"),)
    divided = parts(groups("k1"), number)
    assert len(divided) == number
    with duckdb.connect() as connection:
        connection.execute("ATTACH ':memory:' AS db")
        connection.execute("CREATE TABLE db.t (k INTEGER, v INTEGER)")
        if rows:
            connection.executemany("INSERT INTO db.t VALUES (?, ?)", rows)
        actual = [row for each in divided for row in connection.execute(duckdb_sql(each.tree)).fetchall()]
        expected = connection.execute("SELECT k, count(*) FROM db.t GROUP BY k HAVING count(*) > 1").fetchall()
    assert sorted(actual) == sorted(expected)


def test_a_failure_names_its_source_and_keeps_what_it_said() -> None:
    error = StatementError("column v is gone", sql="SELECT v FROM t", position=8, sqlstate="42703", hint="Did you?")
    with execution() as running, pytest.raises(StatementError, match=r"^pg: column v is gone") as caught:
        read(remote(numbers("pg")), catalog_of(Double("pg", refusing(error))), running)
    assert caught.value.problem()["source"] == "pg"
    assert (caught.value.sqlstate, caught.value.position, caught.value.hint) == ("42703", 8, "Did you?")
    assert caught.value.extra["excerpt"].endswith("^")
    with execution() as running, pytest.raises(DataError, match=r"^pg: half-way"):
        read(
            remote(numbers("pg")), catalog_of(Double("pg", answer(batch(1, 2), fails=DataError("half-way")))), running
        ).table()


def test_another_number_of_columns_is_an_error_that_names_the_source() -> None:
    def wider(sql: str, cancellation: Cancellation) -> Stream:
        return Stream.of(pa.table({"id": [1], "v": [2], "more": [3]}))

    source = Double("pg", wider)
    for fetch in (lambda *given: read(*given).table(), lambda *given: direct(*given, Lost())[0].table()):
        with execution() as running, pytest.raises(InternalError, match=r"pg: .*a different number of columns"):
            fetch(remote(numbers("pg")), catalog_of(source), running)


ODD = """
CREATE TABLE "odd %s {}" (id integer PRIMARY KEY, day date, s text, "it's {0}" integer);
INSERT INTO "odd %s {}" VALUES (1, '2024-01-01', 'a', 1), (2, '2024-01-02 10:00:00', 'b', 'it''s'),
  (3, 2.5, 'é', x'ff'), (4, '2024-02-30', char(97, 0, 98), 1), (5, NULL, x'00', printf('%.*c', 200, 'é'));
"""


@pytest.mark.parametrize(
    ("id", "condition", "said"),
    [
        (2, "day > DATE '2024-01-01'", "day date text '2024-01-02 10:00:00'"),
        (3, "day > DATE '2024-01-01'", "day date real '2.5'"),
        (4, "day > DATE '2024-01-01'", "day date text '2024-02-30'"),
        (2, "i > 1 AND s < 'x'", "i integer text 'it's'"),
        (3, "i > 1", "i integer blob '\N{REPLACEMENT CHARACTER}'"),
        (5, "i > 1", f"i integer text '{60 * 'é'}'"),
        (4, "s LIKE '%b'", "s text text 'a'"),
        (5, "s > 'b'", "s text blob ''"),
    ],
)
def test_a_guard_of_sqlite_says_what_the_value_is(tmp_path: Path, id: int, condition: str, said: str) -> None:
    path = tmp_path / "x.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(ODD)
    rows = """SELECT *, "it's {0}" AS i FROM lite."odd %s {}" """
    with dqp.connect({"sources": {"lite": f"sqlite:///{path}"}}) as lab, pytest.raises(DataError) as raised:
        lab.sql(f"SELECT count(*) AS n FROM ({rows}) WHERE id IN (1, {id}) AND {condition}").arrow()
    column, declared, value = said.split(" ", 2)
    column = {"i": "it's {0}"}.get(column, column)
    assert raised.value.detail == f"lite: The column {column} of odd %s {{}}, declared {declared}, holds the {value}."


def test_a_replica_answers_where_the_first_place_is_down() -> None:
    down = Double("pg", refusing(UnreachableError("nothing answers")))
    other = Double("pg@1", answer(batch(1, 3)), dialect="mariadb")
    table = numbers("pg", replicas=(("pg@1", "copies", "u"),))
    catalog, lost = catalog_of(down, other), Lost()
    with execution() as running:
        assert read(remote(table), catalog, running, lost).table().num_rows == 3
    assert "`copies`.`u`" in other.asked[0]
    # What was lost is asked last from then on.
    assert [each.source.alias for each in places(remote(table), catalog, lost)] == ["pg@1", "pg"]


def test_a_replica_is_asked_for_what_only_its_dialect_can_write() -> None:
    """A plan that was made while it stood in for the source, which is back."""
    catalog = catalog_of(Double("lite", answer(), dialect="sqlite"), Double("lite@1", answer()))
    inner = remote(numbers("lite", replicas=(("lite@1", None, "t"),)))
    tree = Project(inner.tree, (("q", exp.Div(this=column("v"), expression=column("id"), typed=False, safe=False)),))
    assert [each.source.alias for each in places(Remote("lite", tree), catalog)] == ["lite@1"]


DIVIDED = exp.Div(this=column("v"), expression=column("id"), typed=False, safe=False)
"""What SQLite cannot say."""


def test_a_place_that_cannot_write_the_statement_is_none() -> None:
    sqlite = Double("lite", answer(), dialect="sqlite")
    table = numbers("pg", replicas=(("lite", None, "t"), ("nowhere", None, "t")))
    tree = Project(remote(table).tree, (("q", DIVIDED),))
    catalog = catalog_of(Double("pg", answer()), sqlite)
    assert [each.source.alias for each in places(Remote("pg", tree), catalog)] == ["pg"]
    with pytest.raises(NotPushed):
        places(Remote("lite", tree), catalog)


def test_a_source_whose_dialect_is_not_known_yet_is_away_and_named() -> None:
    class Away(Double):
        @property
        def dialect(self) -> str:
            raise UnreachableError("nothing answers")

        @dialect.setter
        def dialect(self, _: str) -> None:
            pass

    away, copy = Away("pg", answer()), Double("pg@1", answer())
    table = numbers("pg", replicas=(("pg@1", None, "t"),))
    assert [each.source.alias for each in places(remote(table), catalog_of(away, copy))] == ["pg@1"]
    with pytest.raises(UnreachableError, match=r"^pg: nothing answers"):
        places(remote(table), catalog_of(away))


def test_a_table_in_a_condition_is_that_of_the_replica_too() -> None:
    table = numbers("pg", replicas=(("pg@1", "copies", "u"),))
    exists = Nested(kind="exists", plan=remote(table, "inner_").tree)
    tree = Filter(remote(table).tree, exists)
    original, replica = places(Remote("pg", tree), catalog_of(Double("pg", answer()), Double("pg@1", answer())))
    assert (original.statement.sql.count('"t"'), original.statement.sql.count('"copies"."u"')) == (2, 0)
    assert (replica.statement.sql.count('"t"'), replica.statement.sql.count('"copies"."u"')) == (0, 2)


def test_the_cause_of_a_cancellation_is_told_as_it_is() -> None:
    def waiting(sql: str, cancellation: Cancellation) -> Stream:
        def batches() -> Iterator[pa.RecordBatch]:
            yield batch(1, 2)
            cancellation.check()

        return Stream(batch(1, 0).schema, batches())

    cancellation = Cancellation()
    with execution(cancellation) as running:
        stream, _ = direct(remote(numbers("pg")), catalog_of(Double("pg", waiting)), running, Lost())
        assert next(stream).num_rows == 2
        cancellation.cancel(CancelledError("enough"))
        with pytest.raises(CancelledError, match=r"^enough$"):
            next(stream)


def test_rows_are_never_given_twice() -> None:
    """Once something of a part has arrived, another place cannot go on with it."""
    down = Double("pg", answer(batch(1, 2), fails=DatabaseUnavailableError("gone")))
    other = Double("pg@1", answer(batch(1, 3)))
    table = numbers("pg", replicas=(("pg@1", None, "t"),))
    with execution() as running, pytest.raises(DatabaseUnavailableError, match=r"^pg: gone"):
        read(remote(table), catalog_of(down, other), running).table()
    assert other.asked == []


def test_nothing_remains_after_cancelling() -> None:
    waits, cancellation = threading.Event(), Cancellation()

    def blocked(sql: str, inner: Cancellation) -> Stream:
        woken = threading.Event()
        with inner.on_cancel(woken.set):
            waits.set()
            woken.wait(60)
        inner.check()
        raise AssertionError

    before = set(threading.enumerate())
    with execution(cancellation) as running:
        reading = Reading(remote(numbers("pg")), catalog_of(Double("pg", blocked)), running, Lost())
        assert waits.wait(60)
        cancellation.cancel(CancelledError("enough"))
        with pytest.raises(CancelledError, match="enough"):
            reading.stream()
    assert set(threading.enumerate()) <= before


def test_a_reader_waiting_for_the_first_answer_can_be_cancelled() -> None:
    answers = threading.Event()

    def late(sql: str, cancellation: Cancellation) -> Stream:
        assert answers.wait(SECONDS)
        return Stream(batch(1, 0).schema, [])

    catalog = catalog_of(Double("pg", late))
    with execution() as running:
        reading = Reading(remote(numbers("pg")), catalog, running, Lost())
        assert ends_when_cancelled(lambda: reading.schema, running.cancellation)
        answers.set()


@pytest.mark.parametrize("server", ["postgres_module_url", "mariadb_module_url"])
def test_real_scans_in_parts(server: str, request: pytest.FixtureRequest) -> None:
    driver = driver_for(request.getfixturevalue(server))
    driver.update("CREATE TABLE t (id int PRIMARY KEY, v bigint)", cancellation=Cancellation())
    driver.load("t", Stream.of(batch(-50, 3_000)), cancellation=Cancellation())
    analyze = "ANALYZE t" if driver.dialect.startswith("postgres") else "ANALYZE TABLE t"
    driver.update(analyze, cancellation=Cancellation())
    catalog = Catalog(FederationSettings(), sources=[DriverSource("db", driver)])
    table = catalog.table("db", "t")
    tree: Operator = Scan(table, (("v", "v"),))
    with execution(split_rows=1, splits=3) as running:
        actual = read(Remote("db", tree), catalog, running).table()
        (measured,) = running.measurements()
    assert len(measured.statements) == 3
    assert sorted(actual["v"].to_pylist()) == [each * 10 for each in range(-50, 2_950)]
    assert driver.pool_state()["open"] == driver.pool_state()["idle"]
    catalog.close()
