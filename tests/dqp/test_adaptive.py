"""Dynamic semi-joins: what a small build holds becomes a filter of the probe's statement."""

import sqlite3
import threading
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp

import dqp
from dai.drivers import driver_for
from dai.streams.cancellation import Cancellation
from dai.streams.stream import Stream
from dqp.algebra.operators import (
    Aggregate,
    Filter,
    Join,
    Nested,
    Operator,
    Project,
    Remote,
    Scan,
    SetOperation,
    Sort,
    column,
)
from dqp.algebra.shapes import shape_of_work
from dqp.algebra.table import Column, Table
from dqp.catalog.catalog import Catalog
from dqp.catalog.sources.local import DriverSource
from dqp.planning.context import Context
from dqp.planning.costing.columns import ColumnStatistics, exact
from dqp.planning.semijoins import adaptive
from dqp.planning.semijoins.adaptive import adapt
from dqp.planning.semijoins.program import Reduction, program, share
from dqp.planning.semijoins.reduction import reduced
from dqp.runtimes import local as local_runtime
from dqp.settings import FederationSettings
from tests.dqp.doubles import Double, batch, catalog_of, execution
from tests.dqp.semijoins import SCHEMA, context, joined, keys, leaf, probing, run, table


@pytest.mark.parametrize(("build", "prepared"), [(1_000_000, 1), (4, 2)])
def test_a_plan_without_a_small_build_side_is_prepared_once(
    monkeypatch: pytest.MonkeyPatch, build: float, prepared: int
) -> None:
    calls = {"adapt": 0, "body_of": 0}

    def counted(name: str, function: Any, *arguments: Any) -> Any:
        calls[name] += 1
        return function(*arguments)

    for name in calls:
        monkeypatch.setattr(local_runtime, name, partial(counted, name, getattr(local_runtime, name)))
    catalog = catalog_of(Double("a", keys(3, 4, 5, 6)), Double("b", probing))
    tree = joined(leaf("b", 1_000_000), leaf("a", build))
    assert run(catalog, tree) == run(catalog, tree) == [(each, each * 2, each, 1) for each in (3, 4, 5, 6)]
    assert calls == {"adapt": prepared, "body_of": prepared}


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ((3, 4, 5, 6), ">= 3"),
        ((700_000, 3), "IN (3, 700000)"),
        (tuple(range(3, 900_000, 600)), "= ANY('{3,603,"),
        (tuple(range(3, 900_000, 45_000)), "= ANY('{3,45003,"),
        ((7, 7, None), '"k" = 7'),
        ((None, None), "LIMIT 0"),
        ((), "LIMIT 0"),
    ],
    ids=["range", "list", "long list", "list of twenty", "one", "only NULL", "none"],
)
def test_the_form_of_the_filter(held: tuple[int | None, ...], said: str) -> None:
    small, large = Double("s", keys(*held)), Double("l", probing)
    table = run(catalog_of(small, large), joined(leaf("l", 2_000_000), leaf("s", 100)))
    assert said in large.asked[0]
    assert table == sorted(((each, each * 2, each, 1) for each in held if each is not None), key=repr)


@pytest.mark.parametrize(
    ("held", "rows", "said"),
    [
        (range(1, 900_000, 600), 2_000_000, "= ANY('{1,601,"),
        (range(1, 900_000, 100), 100_000, None),
        (range(1, 18_000, 2), 100_000, ">= 1"),
    ],
    ids=["few for the rows", "too many, nearly all the keys there may be", "too many, within a range"],
)
def test_keys_of_a_column_of_which_nothing_is_known(held: range, rows: float, said: str | None) -> None:
    """The ends of the column that has the keys stand for its own."""
    small, large = Double("s", keys(*held)), Double("l", probing)
    unknown = tuple(replace(each, distinct=None, low=None, high=None) for each in table("l", rows).columns)
    scan = Scan(replace(table("l", rows), columns=unknown), (("l_k", "k"), ("l_v", "v")))
    run(catalog_of(small, large), joined(Remote("l", scan), leaf("s", 100)))
    assert (said or "") in large.asked[0]
    assert ("WHERE" in large.asked[0]) is (said is not None)


@pytest.mark.parametrize(
    ("kind", "left", "reduced"),
    [
        ("inner", "l", True),
        ("inner", "s", True),
        ("semi", "l", True),
        ("semi", "s", True),
        ("anti", "l", False),
        ("anti", "s", True),
        ("left", "l", False),
        ("left", "s", True),
        ("right", "l", True),
        ("right", "s", False),
        ("full", "l", False),
        ("full", "s", False),
        ("asof", "l", True),
        ("asof", "s", True),
        ("asof left", "l", False),
        ("asof left", "s", True),
    ],
)
def test_which_side_of_which_join(kind: str, left: str, reduced: bool) -> None:
    small, large = Double("s", keys(3, 4)), Double("l", probing)
    sides = {"s": leaf("s", 100), "l": leaf("l", 2_000_000)}
    tree = joined(sides.pop(left), sides.popitem()[1], kind)
    catalog = catalog_of(small, large)
    table = run(catalog, tree)
    assert (">= 3" in large.asked[0]) is reduced
    assert table == run(catalog, tree, adapting=False)


@pytest.mark.parametrize(("kind", "reduced"), [("inner", True), ("semi", True), ("right", True), ("left", False)])
@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("nested", ["exists", "in", "scalar"])
def test_of_joins_in_a_query_within_an_expression(nested: str, negated: bool, kind: str, reduced: bool) -> None:
    catalog = catalog_of(Double("s", keys(3, 4, None)), large := Double("l", probing), Double("o", keys(1, 3, 5, None)))
    outer, plan = leaf("o", 50, 1000), joined(leaf("l", 2_000_000), leaf("s", 100), kind)
    correlated = Filter(plan, exp.EQ(this=column("l_k"), expression=column("o_k")))
    number = exp.Count(this=column("l_v"), big_int=True)
    condition: exp.Expression = {
        "exists": lambda: Nested(kind="exists", plan=correlated),
        "in": lambda: Nested(kind="in", plan=Project(plan, (("k", column("l_k")),)), this=column("o_k")),
        "scalar": lambda: exp.EQ(
            this=Nested(kind="scalar", plan=Aggregate(correlated, (), (("n", number),))),
            expression=exp.Literal.number(1),
        ),
    }[nested]()
    five = exp.EQ(this=column("o_k"), expression=exp.Literal.number(5))
    either = exp.Or(this=exp.Not(this=condition) if negated else condition, expression=five)
    actual = run(catalog, Filter(outer, either))
    assert (">= 3" in large.asked[0]) is reduced
    assert len(large.asked) == 1
    assert actual == run(catalog, Filter(outer, either), adapting=False)


def test_not_through_what_looks_at_all_rows() -> None:
    catalog = catalog_of(Double("s", keys(3, 4)), large := Double("l", probing))
    run(catalog, joined(Sort(leaf("l", 2_000_000), (), 10), leaf("s", 100)))
    assert ">=" not in large.asked[0]


def test_not_through_a_window() -> None:
    """Its number of a row counts those that have no partner too."""
    catalog = catalog_of(Double("s", keys(3, 4)), large := Double("l", probing))
    number = exp.Window(this=exp.RowNumber(), order=exp.Order(expressions=[exp.Ordered(this=column("l_k"))]))
    tree = Project(leaf("l", 2_000_000), (("l_k", column("l_k")), ("number", number)))
    assert [each[1] for each in run(catalog, joined(tree, leaf("s", 100)))] == [3, 4]
    assert ">=" not in large.asked[0]


def test_not_through_grouping_sets() -> None:
    """The group of all rows has the key NULL and comes of every row."""
    catalog = catalog_of(Double("s", keys(3, 4)), large := Double("l", probing))
    count = exp.Count(this=exp.Star(), big_int=True)
    sets = Aggregate(leaf("l", 2_000_000), (("key", column("l_k")),), (("rows", count),), (("key",), ()))
    run(catalog, joined(sets, leaf("s", 100)))
    assert ">=" not in large.asked[0]


def test_through_filters_and_groups() -> None:
    catalog = catalog_of(Double("s", keys(3, 4)), large := Double("l", probing))
    groups = Aggregate(
        Filter(leaf("l", 2_000_000), exp.GT(this=column("l_v"), expression=exp.Literal.number(0))),
        (("key", column("l_k")),),
        (("sum", exp.Cast(this=exp.Sum(this=column("l_v")), to=exp.DataType.build("BIGINT"))),),
    )
    assert run(catalog, joined(groups, leaf("s", 100))) == [(3, 6, 3, 1), (4, 8, 4, 1)]
    assert ">= 3" in large.asked[0]


@pytest.mark.parametrize("all", [True, False])
@pytest.mark.parametrize("kind", ["union", "intersect", "except"])
def test_through_a_union_to_each_of_its_queries(kind: str, all: bool) -> None:
    one, other, third = Double("l", probing), Double("m", keys(4, 5)), Double("n", probing)
    catalog = catalog_of(Double("s", keys(3, 4)), one, other, third)
    inner = SetOperation(leaf("l", 2_000_000), leaf("m", 2_000_000), kind, all, ("i_k", "i_v"))  # type: ignore[arg-type]
    union = SetOperation(inner, leaf("n", 2_000_000), "union", all, ("u_k", "u_v"))
    tree = joined(union, leaf("s", 100))
    assert run(catalog, tree) == run(catalog, tree, adapting=False)
    assert all_reduced(one, other, third)


def test_a_union_of_many_is_reduced_in_one_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """To plan again after each query would take time with the square of their number."""
    planned: list[int] = []

    def counted(*given: Any) -> list[Reduction]:
        planned.append(1)
        return program(*given)

    monkeypatch.setattr(adaptive, "program", counted)
    sources = [Double(f"l{at}", probing) for at in range(12)]
    union: Operator = leaf("l0", 2_000_000)
    for at in range(1, 12):
        union = SetOperation(union, leaf(f"l{at}", 2_000_000), "union", True, (f"u{at}_k", f"u{at}_v"))
    run(catalog_of(Double("s", keys(3, 4)), *sources), joined(union, leaf("s", 100)))
    assert all_reduced(*sources)
    assert len(planned) <= 2


def all_reduced(*sources: Double) -> bool:
    """Whether the first statement of each has the keys 3 and 4."""
    return all(">= 3" in each.asked[0] for each in sources)


def test_not_through_a_union_of_other_types() -> None:
    """The keys are compared with what the union makes of both types."""
    catalog = catalog_of(Double("s", keys(3, 4)), one := Double("l", probing), other := Double("m", probing))
    swapped = Project(leaf("m", 2_000_000), (("m_v", column("m_v")), ("m_k", column("m_k"))))
    union = SetOperation(leaf("l", 2_000_000), swapped, "union", True, ("u_k", "u_v"))
    tree = joined(union, leaf("s", 100))
    assert run(catalog, tree) == run(catalog, tree, adapting=False)
    assert ">=" not in one.asked[0] + other.asked[0]


def test_the_keys_of_one_query_of_a_union_are_not_all() -> None:
    catalog = catalog_of(Double("s", keys(3)), Double("m", keys(4)), large := Double("l", probing))
    union = SetOperation(leaf("s", 100), leaf("m", 100), "union", True, ("u_k", "u_v"))
    assert [each[0] for each in run(catalog, joined(leaf("l", 2_000_000), union))] == [3, 4]
    assert "3" not in large.asked[0]


def test_a_chain_from_small_to_large() -> None:
    """The build of the second reduction is the probe of the first."""

    def middle(sql: str, cancellation: Cancellation) -> Stream:
        return keys(3, 4)(sql, cancellation) if ">= 1" in sql else keys(*range(1, 5_000))(sql, cancellation)

    small, medium, large = Double("s", keys(1, 2, 3, 4)), Double("m", middle), Double("l", probing)
    tree = joined(joined(leaf("l", 500_000_000), leaf("m", 200_000)), leaf("s", 50))
    tree = Join(tree.left, tree.right, "inner", exp.EQ(this=column("m_k"), expression=column("s_k")))
    assert [each[0] for each in run(catalog_of(small, medium, large), tree)] == [3, 4]
    assert ">= 1" in medium.asked[0]
    assert ">= 3" in large.asked[0]


def test_a_step_that_saves_little_is_taken_for_what_it_saves_later() -> None:
    """The large leaf waits for it, although the whole middle one would leave all of its rows."""

    def middle(sql: str, cancellation: Cancellation) -> Stream:
        return keys(3, 4)(sql, cancellation) if ">= 1" in sql else keys(*range(1, 1_001))(sql, cancellation)

    small, medium, large = Double("s", keys(1, 2, 3, 4)), Double("m", middle), Double("l", probing)
    tree = joined(joined(leaf("l", 200_000, 1_000), leaf("m", 1_000, 1_000)), leaf("s", 4, 1_000))
    tree = Join(tree.left, tree.right, "inner", exp.EQ(this=column("m_v"), expression=column("s_k")))
    assert [each[0] for each in run(catalog_of(small, medium, large), tree)] == [3, 4]
    assert ">= 1" in medium.asked[0]
    assert ">= 3" in large.asked[0]


@pytest.mark.parametrize(("by", "reaches"), [("l_k", True), ("l_v", False)])
def test_keys_reach_below_a_window_that_they_partition(by: str, reaches: bool) -> None:
    """They drop whole partitions there; other partitions would lack rows."""
    probe = leaf("l", 2_000_000, 1_000)
    window = exp.Window(this=exp.RowNumber(), partition_by=[column(by)], over="OVER")
    numbered = Project(probe, (("l_k", column("l_k")), ("l_v", column("l_v")), ("n", window)))
    join = joined(numbered, leaf("s", 4, 1_000))
    steps = program(join, context(catalog_of(Double("s", keys(1)), Double("l", probing))), 1 << 24)
    assert [each.probe for each in steps] == [probe] * reaches


def test_a_column_that_nobody_knows_has_the_values_of_the_key() -> None:
    """So a whole table is no filter, and what a filter leaves of it is one."""
    catalog = catalog_of(Double("s", keys(1)), Double("l", probing))
    scan = Scan(replace(table("s", 1_000), keys=(("k",),)), (("s_k", "k"), ("s_v", "v")))
    few = Filter(scan, exp.LTE(this=column("s_k"), expression=exp.Literal.number(10)))
    refers = exp.EQ(this=column("s_k"), expression=column("l_v"))
    for tree, pairs in ((scan, []), (few, [(("s_k", "l_v"),)])):
        join = Join(Remote("s", tree), leaf("l", 2_000_000), "inner", refers)
        assert [each.pairs for each in program(join, context(catalog), 1 << 24)] == pairs


def test_a_statement_that_stands_twice_is_not_reduced_once() -> None:
    """One of the two would be read with the keys, and the other without (TPC-DS q65)."""
    catalog = catalog_of(Double("pg", keys(1)), Double("build", keys(1)))
    sales = table("pg", 100_000.0, 1_000)
    one, again = (Remote("pg", Scan(sales, ((f"{each}_k", "k"), (f"{each}_v", "v")))) for each in ("l", "r"))
    few = Join(one, leaf("build", 300.0, 1_000), "inner", exp.EQ(this=column("l_k"), expression=column("build_k")))
    both = Join(few, again, "inner", exp.EQ(this=column("l_v"), expression=column("r_v")))
    assert [each.probe for each in program(few, context(catalog), 1 << 24)] == [one]
    assert not program(both, context(catalog), 1 << 24)


def test_what_was_read_is_known_in_every_column_that_is_joined() -> None:
    """One column makes a filter at once; that the other is one as well is seen in the rows."""
    small, one, other = Double("s", keys(*[3, 4, 5, 6] * 25)), Double("l", probing), Double("m", probing)
    tree = joined(leaf("l", 2_000_000), leaf("s", 100))
    refers = exp.EQ(this=column("m_k"), expression=column("s_v"))
    tree = Join(leaf("m", 2_000_000, 90), tree, "inner", refers)
    assert len(run(catalog_of(small, one, other), tree)) == 100
    assert ">= 3" in one.asked[0]
    assert '"k" = 1' in other.asked[0]


def test_an_aggregate_of_few_groups_that_keys_leave_is_made_in_parts() -> None:
    """A database without workers: as many groups as the table has keys would be sent twice."""
    id = Column("id", "INTEGER", "int", False, 2e6, 0.0, 1, 2_000_000, 4.0)
    large = table("maria", 2e6)
    key, value = large.columns
    columns = (id, replace(key, source_type="int"), replace(value, source_type="bigint"))
    large = replace(large, columns=columns, keys=(("id",),))
    scan = Scan(large, (("maria_k", "k"), ("maria_v", "v")))
    grouped = Aggregate(scan, (("key", column("maria_k")),), (("sum", exp.Sum(this=column("maria_v"))),))
    sums = pa.record_batch({"key": pa.array([3], pa.int32()), "sum": pa.array([5], pa.int64())})
    types = pa.record_batch({"v": pa.array([], pa.int64()), "id": pa.array([], pa.int32())})
    maria = Double("maria", lambda sql, cancellation: Stream.of(sums if "SUM" in sql else types), dialect="mariadb")
    over = catalog_of(maria, Double("pg", keys(3, 900_000)))
    assert run(over, joined(Remote("maria", grouped), leaf("pg", 2.0))) == [(3, 10, 3, 1)]
    asked = [each for each in maria.asked if "SUM" in each]
    assert len(asked) == 2
    assert all("IN (3, 900000)" in each for each in asked)


def test_many_keys_spare_the_source_the_rows_of_other_groups() -> None:
    """They are worth their list although the statement returns few rows."""
    scan = leaf("l", 2e6, 16_000).tree
    grouped = Aggregate(scan, (("key", column("l_k")),), (("sum", exp.Sum(this=column("l_v"))),))
    small, large = Double("s", keys(*range(1, 16_000, 8))), Double("l", probing)
    run(catalog_of(small, large), joined(Remote("l", grouped), leaf("s", 2_000, 16_000)))
    assert "ANY('{1,9,17," in large.asked[-1]


def test_a_build_that_turns_out_large_is_read_once() -> None:
    many = Double(
        "s",
        lambda sql, cancellation: Stream(
            SCHEMA, iter([next(keys(*range(at, at + 1_000))("", cancellation)) for at in range(1, 40_000, 1_000)])
        ),
    )
    large = Double("l", probing)
    table = run(catalog_of(many, large), joined(leaf("l", 2_000_000), leaf("s", 100)), execution(inline_bytes=10_000))
    assert len(table) == 49
    assert len(many.asked) == 1
    assert ">=" not in large.asked[0]


def test_a_filter_that_would_keep_nearly_all_is_left_out() -> None:
    small = Double("s", keys(1, *range(2, 3_000), 999_999))
    large = Double("l", probing)
    run(catalog_of(small, large), joined(leaf("l", 2_000_000), leaf("s", 3_000)))
    assert ">=" not in large.asked[0]


def test_a_range_is_asked_for_where_a_list_of_as_many_keys_would_cost_more_than_it_saves() -> None:
    small, large = Double("s", keys(*range(1, 16_001))), Double("l", probing)
    run(catalog_of(small, large), joined(leaf("l", 100_000), leaf("s", 16_000, 16_000)))
    assert ">= 1" in large.asked[0]
    small, large = Double("s", keys(*range(1, 960_001, 60))), Double("l", probing)
    run(catalog_of(small, large), joined(leaf("l", 100_000), leaf("s", 16_000)))
    assert "t1" in large.asked[0]
    assert "960" not in large.asked[0]


def test_one_value_of_few_leaves_many_rows() -> None:
    """It is a range without a length, but one of two values is half of the rows: the keys of the other build count."""
    assert share(2.0, 2.0, ColumnStatistics(distinct=2.0, low=1.0, high=2.0)) == 0.5
    assert share(4.0, 9.0, ColumnStatistics(distinct=3.0, low=1.0, high=3.0)) == 0.0
    few = leaf("l", 400_000, 2)
    scan = few.tree
    assert isinstance(scan, Scan)
    values = replace(scan.table.column("v"), distinct=200_000.0, low=1, high=200_000)
    of_two = replace(scan.table, columns=(scan.table.column("k"), values))
    one, other, large = Double("s", keys(2)), Double("m", keys(700, 7, 70_000)), Double("l", keys(2))
    tree = joined(Remote("l", replace(scan, table=of_two)), leaf("s", 2, 2))
    tree = Join(tree, leaf("m", 500), "inner", exp.EQ(this=column("l_v"), expression=column("m_k")))
    run(catalog_of(one, other, large), tree)
    assert '"k" = 2' in large.asked[0]
    assert "700" in large.asked[0]


def test_builds_are_fetched_together() -> None:
    both = threading.Barrier(2, timeout=60)

    def waiting(sql: str, cancellation: Cancellation) -> Stream:
        both.wait()
        return keys(3, 4)(sql, cancellation)

    catalog = catalog_of(Double("s", waiting), Double("r", waiting), large := Double("l", probing))
    tree = joined(joined(leaf("l", 5_000_000), leaf("s", 50)), leaf("r", 50))
    assert [each[0] for each in run(catalog, tree)] == [3, 4]
    assert len(large.asked) == 1


def test_a_tree_without_joins_stays() -> None:
    tree = leaf("l", 10)
    made = adapt(tree, context(catalog_of(Double("l", probing))), lambda each: pytest.fail("nothing to read"), 1 << 20)
    assert made is tree


def test_what_is_equal_to_one_converted_number_may_differ(tmp_path: Path) -> None:
    """Two whole numbers that are one DOUBLE: the keys of the first are not those that the second is looked for by."""
    large = 2**53
    with duckdb.connect(str(tmp_path / "a.duckdb")) as one:
        one.execute(f"CREATE TABLE t AS SELECT {large + 1}::BIGINT AS k")
        one.execute(f"CREATE TABLE converted AS SELECT {large}::DOUBLE AS x")
    with closing(sqlite3.connect(tmp_path / "c.db")) as other:
        other.execute("CREATE TABLE t (k BIGINT)")
        other.executemany("INSERT INTO t VALUES (?)", [(large,), *((each,) for each in range(30_000))])
        other.commit()
    places = {"a": tmp_path / "a.duckdb", "b": tmp_path / "a.duckdb", "c": tmp_path / "c.db"}
    urls = {alias: f"{'sqlite' if place.suffix == '.db' else 'duckdb'}:///{place}" for alias, place in places.items()}
    with dqp.connect({"sources": urls}) as lab:
        table = lab.sql("SELECT c.k FROM a.t a JOIN b.converted b ON a.k = b.x JOIN c.t c ON b.x = c.k").arrow()
    assert table.to_pylist() == [{"k": large}]


def test_a_range_beside_a_key_table_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The keys are all within the range: the statement gives as many rows as with the keys alone."""
    monkeypatch.setattr(Context, "takes_tables", lambda *_: True)
    small = leaf("s", 4_000, 20_000)
    names = (("l_k", "k"), ("l_v", "v"))
    columns = (
        Column("k", "INTEGER", "int", True, 20_000.0, 0.0, 1, 20_000, 4.0),
        Column("v", "VARCHAR", "varchar", True, None, 0.0, None, None, 400.0),
    )
    large = Remote("l", Scan(Table("l", "t", columns, rows=1e6, bytes=4e8), names))
    tree = joined(large, small)
    given = replace(context(catalog_of(Double("s", keys()), Double("l", keys()))), dialects={"l": "mysql"})
    given.learn(tree)
    data = pa.table({"s_k": pa.array(range(1, 8_001, 2), pa.int32())})
    probe = reduced(Reduction(small, large, (("s_k", "l_k"),)), data, given)
    assert "a range of l_k, 4,000 keys of l_k as a temporary table" in given.remarks[-1]
    assert given.estimator.rows(probe) == pytest.approx(200_000, rel=0.01)
    assert shape_of_work(probe) == shape_of_work(large)


@pytest.mark.parametrize("type", ["DATE", "TIMESTAMP"])
def test_days_that_python_does_not_have(type: str) -> None:
    """Keys that are joined by, but are in no filter."""
    columns = (Column("k", type, type.lower(), True, 1e6, 0.0, None, None, 8.0),)
    names = {alias: Table(alias, "t", columns, rows=rows, bytes=rows * 8) for alias, rows in (("s", 10), ("l", 1e6))}
    small, large = (Remote(alias, Scan(names[alias], ((f"{alias}_k", "k"),))) for alias in names)
    tree = joined(large, small)
    given = context(catalog_of(Double("s", keys()), Double("l", keys())))
    given.learn(tree)
    values = duckdb.sql(
        f"SELECT k::{type} AS s_k FROM (VALUES ('0044-03-15 (BC)'), ('12000-01-01'), ('infinity')) t(k)"
    )
    data = values.to_arrow_table()
    assert reduced(Reduction(small, large, (("s_k", "l_k"),)), data, given) is large
    statistics = exact(data.column(0))
    assert (statistics.distinct, statistics.low, statistics.high) == (3.0, None, None)


def test_with_real_databases(postgres_module_url: str, mariadb_module_url: str) -> None:
    postgres, maria = driver_for(postgres_module_url), driver_for(mariadb_module_url)
    for driver in (postgres, maria):
        driver.update("CREATE TABLE t (id int PRIMARY KEY, v bigint)", cancellation=Cancellation())
    postgres.load("t", Stream.of(batch(1, 100_000)), cancellation=Cancellation())
    maria.load("t", Stream.of(batch(40_000, 50)), cancellation=Cancellation())
    postgres.update("ANALYZE t", cancellation=Cancellation())
    maria.update("ANALYZE TABLE t", cancellation=Cancellation())
    catalog = Catalog(FederationSettings(), sources=[DriverSource("pg", postgres), DriverSource("maria", maria)])
    pg, other = catalog.table("pg", "t"), catalog.table("maria", "t")
    tree = joined(
        Remote("pg", Scan(pg, (("a", "id"), ("b", "v")))), Remote("maria", Scan(other, (("c", "id"), ("d", "v"))))
    )
    running = execution()
    table = run(catalog, tree, running)
    assert running.remarks == ("pg: reduced by 50 rows of maria: a range of a",)
    assert table == [(each, each * 10, each, each * 10) for each in range(40_000, 40_050)]
    fetched = {each.where: each.rows for each in running.measurements()}
    assert fetched == {"maria": 50, "pg": 50, "here": 50}
    catalog.close()
