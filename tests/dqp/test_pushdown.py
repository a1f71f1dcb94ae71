"""What sources compute where that is decided by cost, and where a setting forces it: by the plans."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
from sqlglot import exp

from dqp.algebra.operators import Aggregate, Filter, Join, Names, Operator, Project, Remote, Scan, SetOperation, column
from dqp.algebra.table import Column, Table
from dqp.algebra.trees import walk, walk_deep
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.planning.common_subtrees import Sharing
from dqp.planning.context import Context, Options
from dqp.planning.costing.cost import Estimator, costs
from dqp.planning.costing.elapsed import elapsed
from dqp.planning.costing.key_lists import NUMBER
from dqp.planning.costing.reductions import origins, reductions
from dqp.planning.costing.work import Work
from dqp.planning.rules import optimise
from dqp.settings import PUSHDOWN
from tests.dqp.doubles import numbers, remote
from tests.dqp.plans import DIALECTS, PLACEMENT, catalog
from tests.tpch import QUERIES, qualified

ROWS = 143_657.0
TYPES = {"pg": "int4", "maria": "int", "lite": "bigint", "duck": "integer"}
SAME_ORDER = """select count(*) from {s}.sales a where exists
    (select 1 from {s}.sales b where a.number = b.number and a.warehouse <> b.warehouse)"""
"""Evaluated for each row where there is no index."""
JOINED = "select count(*) from {s}.sales a join {s}.returned b on a.number = b.number"
DISTINCT = "select count(distinct item), count(distinct number), count(distinct warehouse) from {s}.sales"
GROUPED = "select warehouse, count(*) from {s}.sales group by all"


def _sales(source: str, name: str, rows: float, indexes: tuple[tuple[str, ...], ...]) -> Table:
    columns = tuple(
        Column(each, "BIGINT" if source == "lite" else "INTEGER", TYPES[source], False, distinct, 0.0, 1, 99_999, 4.0)
        for each, distinct in (("item", rows / 10), ("number", rows / 9), ("warehouse", 5.0))
    )
    return Table(source, name, columns, keys=(("item", "number"),), indexes=indexes, rows=rows)


def planned(sql: str, source: str, rows: float = ROWS, pushdown: str = "cost", indexed: bool = False) -> Operator:
    indexes = (("number",),) if indexed else ()
    tables = [_sales(source, "sales", rows, indexes), _sales(source, "returned", rows / 10, indexes)]
    over = Catalog.of(tables, dialects=DIALECTS)
    context = Context(over, Estimator(), Names(), Options(pushdown=pushdown))
    return optimise(bind(sql.format(s=source), over).tree, context)


def here(tree: Operator, kind: type[Operator]) -> bool:
    """Whether an operator of the kind is not in a statement."""
    return any(isinstance(each, kind) for each in walk(tree))


@pytest.mark.parametrize(
    ("sql", "source", "rows", "indexed", "kind", "expected"),
    [
        (SAME_ORDER, "maria", ROWS, False, Join, True),
        (SAME_ORDER, "maria", 100.0, False, Join, False),
        (SAME_ORDER, "lite", ROWS, False, Join, True),
        (JOINED, "maria", ROWS, False, Join, True),
        (JOINED + " where b.item < 9", "maria", ROWS, True, Join, False),
        (DISTINCT, "pg", 10 * ROWS, False, Aggregate, True),
        (DISTINCT, "pg", 1_000.0, False, Aggregate, False),
        (DISTINCT, "duck", 10 * ROWS, False, Aggregate, False),
        (GROUPED, "pg", 10 * ROWS, False, Aggregate, False),
        (GROUPED, "maria", 10 * ROWS, False, Aggregate, False),
        (GROUPED, "lite", 1_000.0, False, Aggregate, False),
        (GROUPED, "lite", 10 * ROWS, False, Aggregate, True),
    ],
)
def test_what_takes_less_time(
    sql: str, source: str, rows: float, indexed: bool, kind: type[Operator], expected: bool
) -> None:
    assert here(planned(sql, source, rows, indexed=indexed), kind) is expected


@pytest.mark.parametrize("sql", [SAME_ORDER, JOINED, DISTINCT, GROUPED])
@pytest.mark.parametrize("source", DIALECTS)
def test_a_setting_forces_it(sql: str, source: str) -> None:
    assert not here(planned(sql, source, pushdown="all"), Aggregate)
    for each in walk(planned(sql, source, pushdown="none")):
        if isinstance(each, Remote):
            assert all(isinstance(one, Scan | Filter | Project) for one in walk(each.tree))


@pytest.mark.parametrize("name", QUERIES)
def test_the_setting_holds_for_every_statement(name: str) -> None:
    sizes = {}
    bound = bind(qualified(QUERIES[name], PLACEMENT), catalog()).tree
    for pushdown in PUSHDOWN:
        tree = optimise(bound, Context(catalog(), Estimator(), Names(), Options(pushdown=pushdown)))
        statements = [each.tree for each in walk_deep(tree) if isinstance(each, Remote)]
        sizes[pushdown] = len(statements)
        if pushdown == "none":
            assert all(isinstance(one, Scan | Filter | Project) for each in statements for one in walk(each))
    assert sizes["all"] <= sizes["cost"] <= sizes["none"]


def test_an_estimate_of_a_subquery_for_each_row() -> None:
    """It took 54 s."""
    whole = planned(SAME_ORDER, "maria", pushdown="all")
    assert isinstance(whole, Remote)
    assert 10 < Work(Estimator(), "mariadb").tree(whole.tree) < 200
    assert Work(Estimator(), "duckdb").tree(whole.tree) < 1


def test_many_groups_are_a_temporary_table_in_mariadb() -> None:
    """80,000 of 718,000 rows; not where the rows come in the order of an index."""

    def seconds(indexed: bool) -> float:
        sql = "select number, count(*) from {s}.sales group by number"
        whole = planned(sql, "maria", 5 * ROWS, "all", indexed)
        assert isinstance(whole, Remote)
        return Work(Estimator(), "mariadb").tree(whole.tree)

    assert seconds(False) - seconds(True) == pytest.approx(0.156, rel=0.05)


def test_mariadb_looks_rows_up_one_after_the_other_in_the_order_of_the_primary_key() -> None:
    orders, lines = numbers("maria", 1e6), numbers("maria", 4e6, high=1_000_000)
    lines = replace(lines, keys=(("id", "v"),), columns=(replace(lines.columns[0], distinct=1e6), lines.columns[1]))

    def seconds(by: str) -> float:
        condition = exp.EQ(this=column(f"o_{by}"), expression=column("l_id"))
        join = Join(remote(orders, "o_").tree, remote(lines, "l_").tree, "semi", condition)
        work = Work(Estimator(), "mariadb")
        assert work.scans(join) == pytest.approx(1e6 * costs("mariadb").scan)
        return work.tree(join)

    assert seconds("v") - seconds("id") > 1e6 * 1.4e-6


@pytest.mark.parametrize(("values", "read"), [(5_000.0, True), (150_000.0, False)])
def test_postgresql_reads_a_table_where_an_index_finds_many_rows_of_a_value(values: float, read: bool) -> None:
    """200 sales of each of 100 things are expected at as many places (TPC-DS q55, whose alternative took a third)."""
    things, sales = numbers("pg", values, high=int(values)), numbers("pg", 1e6)
    sales = replace(sales, keys=(("v", "id"),), columns=(sales.columns[0], replace(sales.columns[1], distinct=values)))
    few = Filter(remote(things, "t_").tree, exp.LTE(this=column("t_id"), expression=exp.Literal.number(100)))
    join = Join(few, remote(sales, "s_").tree, "inner", exp.EQ(this=column("t_id"), expression=column("s_v")))
    work = Work(Estimator(), "postgresql")
    assert (work.tree(join) > 0.1) is read
    assert (work.scans(join) > 0.1) is read


def test_sqlite_joins_by_an_index_that_finds_many_rows() -> None:
    """Ten rows of an item for each row, where hash tables of all rows would take 0.5 s."""
    whole = planned("select a.item from {s}.sales a join {s}.sales b on a.item = b.item", "lite", pushdown="all")
    assert isinstance(whole, Remote)
    assert 2.5 < Work(Estimator(), "sqlite").tree(whole.tree) < 5


def test_a_statement_that_is_asked_for_twice_counts_once() -> None:
    one, again = (remote(numbers("pg", 1e6), each) for each in ("l", "r"))
    other = remote(replace(numbers("pg", 1e6), name="others"), "o")

    def seconds(tree: Operator) -> float:
        return elapsed(tree, Estimator(), lambda _: "postgresql", lambda *_: 1)

    def joined(left: str, right: str) -> exp.Expression:
        return exp.EQ(this=column(f"{left}id"), expression=column(f"{right}id"))

    assert seconds(Join(one, again, "semi", joined("l", "r"))) < seconds(Join(one, other, "semi", joined("l", "o")))


@pytest.mark.parametrize(("items", "once"), [(("id",), True), (("id", "v"), True), (("id", "w"), False)])
def test_a_table_that_is_read_for_some_columns_and_for_more_counts_once(items: tuple[str, ...], once: bool) -> None:
    table = numbers("pg", 1e6)
    table = replace(table, columns=(*table.columns, replace(table.columns[1], name="w")))
    one = Remote("pg", Scan(table, (("lid", "id"), ("lv", "v"))))
    again = Remote("pg", Scan(table, tuple((f"r{each}", each) for each in items)))

    def seconds(tree: Operator) -> float:
        return elapsed(tree, Estimator(), lambda _: "postgresql", lambda *_: 1)

    both = Join(one, again, "inner", exp.EQ(this=column("lid"), expression=column("rid")))
    assert (seconds(both) < 1.5 * seconds(one)) is once
    turned = Join(again, one, "inner", exp.EQ(this=column("lid"), expression=column("rid")))
    assert seconds(turned) == pytest.approx(seconds(both))


def test_a_statement_with_other_keys_is_another_one() -> None:
    one, again = (remote(numbers("pg", 1e6, high=1_000_000), each) for each in ("l", "r"))

    def seconds(build: str, other: str) -> float:
        builds = [remote(numbers(source, 10.0), f"{source}{at}") for at, source in enumerate((build, other))]
        sides = [
            Join(each, keys, "inner", exp.EQ(this=column(each.columns[0]), expression=column(keys.columns[0])))
            for each, keys in zip((one, again), builds, strict=True)
        ]
        together = exp.EQ(this=column("lv"), expression=column("rv"))
        return elapsed(Join(sides[0], sides[1], "inner", together), Estimator(), lambda _: "postgresql", lambda *_: 1)

    assert seconds("a", "b") > 1.2 * seconds("a", "a")


@pytest.mark.parametrize(
    ("keys", "tables", "reduced"),
    [(5_000.0, False, True), (225_000.0, False, False), (225_000.0, True, False), (15_000.0, True, True)],
)
def test_keys_that_cost_more_than_they_save_reduce_nothing(keys: float, tables: bool, reduced: bool) -> None:
    build = remote(numbers("pg", keys, high=1_500_000), "o_")
    probe = remote(replace(numbers("maria", 3e6, high=1_500_000), name="lines", keys=()), "l_")
    tree = Join(probe, build, "inner", exp.EQ(this=column("l_id"), expression=column("o_id")))
    sources = SimpleNamespace(
        types={"l_id": "INTEGER"}, dialect={"pg": "postgresql", "maria": "mariadb"}.get, takes_tables=lambda _: tables
    )
    expected = reductions(list(walk_deep(tree)), Estimator(), sources=sources)
    assert (expected.left[probe] < 1.0) is reduced
    assert expected.columns[probe] == ({"l_id"} if reduced else set())


def test_few_keys_leave_little() -> None:
    build, probe = remote(numbers("pg", 10.0), "o_"), remote(numbers("maria", 1e6), "l_")
    tree = Join(probe, build, "inner", exp.EQ(this=column("l_id"), expression=column("o_id")))
    assert reductions(list(walk_deep(tree)), Estimator()).left[probe] == pytest.approx(3.2e-4, rel=0.1)


def test_keys_and_what_an_index_finds_by_them_take_time() -> None:
    """14,000 of 574,000 keys (TPC-DS q18): the join there took a quarter of the time."""
    build, probe = remote(numbers("pg", 14_000.0), "o_"), remote(numbers("maria", 574_000.0, high=574_000), "l_")
    tree = Join(probe, build, "inner", exp.EQ(this=column("l_id"), expression=column("o_id")))
    sources = SimpleNamespace(
        types={"l_id": "INTEGER"}, dialect={"pg": "postgresql", "maria": "mariadb"}.get, takes_tables=lambda _: False
    )
    seconds = reductions(list(walk_deep(tree)), Estimator(), sources=sources).seconds[probe]
    assert seconds == pytest.approx(14_000 * (NUMBER + costs("mariadb").index))


def test_keys_from_elsewhere_reduce_what_reads_their_column() -> None:
    one, other = (remote(replace(numbers("pg", 1e6), name=each), each) for each in ("l", "r"))
    tree = Join(one, other, "inner", exp.EQ(this=column("lv"), expression=column("rv")))

    def seconds(reached: frozenset[str] | None) -> float:
        return elapsed(tree, Estimator(), lambda _: "postgresql", lambda *_: 1, 0.1, reached=reached)

    assert seconds(None) == seconds(frozenset({"lid", "rid"}))
    assert seconds(frozenset()) > seconds(frozenset({"lid"})) > seconds(None)


def test_keys_of_the_inner_table_of_a_join_by_an_index_save_no_look_ups() -> None:
    sales, days = (replace(numbers("lite", rows), name=name) for name, rows in (("sales", 1e6), ("days", 1e4)))
    condition = exp.EQ(this=column("s_v"), expression=column("d_id"))
    joined = Join(remote(sales, "s_").tree, remote(days, "d_").tree, "inner", condition)

    def seconds(reached: str) -> float:
        whole = Remote("lite", joined)
        return elapsed(whole, Estimator(), lambda _: "sqlite", lambda *_: 1, 0.01, reached=frozenset({reached}))

    assert seconds("d_v") > 2.0 > seconds("s_id")


def test_what_is_made_of_other_tables_is_not_reduced() -> None:
    """The pairs of an EXISTS are made whole (TPC-DS q95)."""
    one, two, three = (replace(numbers("pg", 1e6), name=each) for each in "abc")
    pairs = Join(
        remote(two, "b").tree, remote(three, "c").tree, "inner", exp.EQ(this=column("bv"), expression=column("cv"))
    )
    exists = Join(remote(one, "a").tree, pairs, "semi", exp.EQ(this=column("av"), expression=column("bv")))

    def seconds(reached: frozenset[str] | None) -> float:
        tree = Remote("pg", exists)
        return elapsed(tree, Estimator(), lambda _: "postgresql", lambda *_: 1, 0.01, reached=reached)

    assert seconds(frozenset({"aid"})) > 1.5 * seconds(frozenset({"bid"}))


def test_the_columns_below_that_have_the_values_of_one() -> None:
    """Keys of an aggregate's column reduce the table below it, and what that is joined with by the same column."""
    sql = "select a.item as thing, count(*) from pg.sales a join pg.returned b on a.item = b.item group by a.item"
    whole = planned(sql, "pg", pushdown="all")
    assert isinstance(whole, Remote)
    names = origins(whole.tree, {whole.columns[0]})
    read = [each for each in walk(whole.tree) if isinstance(each, Scan) for name, _ in each.items if name in names]
    assert {each.table.name for each in read} == {"sales", "returned"}
    assert not origins(whole.tree, {whole.columns[1]}) - {whole.columns[1]}


def test_what_is_computed_once_counts_once() -> None:
    def use(at: int) -> Operator:
        leaves = [remote(numbers(source, 1e6), f"{source}{at}") for source in ("pg", "maria")]
        condition = exp.EQ(this=column(f"pg{at}id"), expression=column(f"maria{at}id"))
        return Join(leaves[0], leaves[1], "inner", condition)

    tree = SetOperation(use(1), use(2), "union", True, ("a", "b", "c", "d"))

    def seconds(once: Sharing | None) -> float:
        return elapsed(tree, Estimator(), lambda _: "postgresql", lambda *_: 1, once=once)

    assert seconds(Sharing(tree)) < 0.9 * seconds(None)


RANKED = """
    select store, county, sum(profit) from {s}.sales join {s}.days on day = sold
    where month between 1200 and 1211 and county in
        (select county from
            (select county, rank() over (order by sum(profit)) as place from {s}.sales join {s}.days on day = sold
             where month between 1200 and 1211 group by county)
         where place <= 5)
    group by rollup (store, county)"""
"""TPC-DS's q70: the sales of a year twice, once for sums by store that the source does not take."""


@pytest.mark.parametrize(("rows", "once"), [(3e6, True), (3e4, False)])
def test_what_is_equal_only_without_joins_in_the_source(rows: float, once: bool) -> None:
    def known(name: str, distinct: float, high: int) -> Column:
        return Column(name, "INTEGER", "int4", False, distinct, 0.0, 1, high, 4.0)

    sales = (
        known("sold", 1_800.0, 73_000),
        known("store", 12.0, 12),
        known("county", 9.0, 9),
        known("profit", 1e5, 9_999),
    )
    days = (known("day", 73_000.0, 73_000), known("month", 2_400.0, 2_400))
    tables = [Table("pg", "sales", sales, rows=rows), Table("pg", "days", days, keys=(("day",),), rows=73_000.0)]
    over = Catalog.of(tables, dialects=DIALECTS)
    context = Context(over, Estimator(), Names())
    tree = optimise(bind(RANKED.format(s="pg"), over).tree, context)
    assert bool(Sharing(tree).tables) is once
    assert any("all of it there" in each and "with its tables read" in each for each in context.remarks) is once


@pytest.mark.parametrize(("query", "once"), [("q17", True), ("q18", False)])
def test_what_is_aggregated_here_because_the_same_keys_reduce_its_table_elsewhere(query: str, once: bool) -> None:
    """TPC-H's q17 reads the lines of a brand twice, for their average and for those below it. In q18 an aggregate gives
    the keys itself."""
    placement = dict.fromkeys(PLACEMENT, "pg") | dict.fromkeys(("lineitem", "orders"), "maria")
    over = catalog(placement)
    tree = optimise(bind(qualified(QUERIES[query], placement), over).tree, Context(over, Estimator(), Names()))
    lines = [each.tree for each in walk_deep(tree) if isinstance(each, Remote) and "l_quantity" in str(each)]
    assert len(lines) == 2
    assert all(isinstance(each, Scan) for each in lines) is once


@pytest.mark.parametrize(("shops", "read"), [("where s.name = 7", True), ("where true", False)])
def test_tables_are_read_where_keys_of_others_leave_little_of_them(shops: str, read: bool) -> None:
    """Only the whole plan shows it: few rows have another warehouse, and of those no key leaves less."""
    sales = _sales("pg", "sales", 3 * ROWS, ())
    wide, number, warehouse = sales.columns
    columns = (replace(wide, width=100.0), number, replace(warehouse, distinct=1.0, high=1))
    shop = replace(_sales("maria", "shops", 30_000.0, ()), keys=(("item",),))
    items = (replace(shop.columns[0], distinct=30_000.0), replace(shop.columns[1], name="name", distinct=1_000.0))
    over = Catalog.of([replace(sales, columns=columns), replace(shop, columns=items)], dialects=DIALECTS)
    sql = f"""select count(*) from pg.sales a join maria.shops s on a.item = s.item {shops} and exists
        (select 1 from pg.sales b where a.number = b.number and a.warehouse <> b.warehouse)"""
    tree = optimise(bind(sql, over).tree, Context(over, Estimator(), Names()))
    assert any(isinstance(each, Join) and each.kind == "semi" for each in walk(tree)) is read


FILTERED = ", ".join(
    f"sum(l_discount) filter (where l_quantity between {low} and {low + 9}) as s{low}, "
    f"count(l_tax) filter (where l_quantity between {low} and {low + 9}) as c{low}"
    for low in range(1, 51, 10)
)


@pytest.mark.parametrize(
    ("source", "sql"),
    [
        # A database begins where it finds few rows, wherever that join stands.
        (
            "maria",
            """select l_quantity, ps_supplycost from maria.lineitem
               left join maria.partsupp on ps_partkey = l_partkey and ps_suppkey = l_suppkey
               join maria.orders on o_orderkey = l_orderkey where o_orderdate = date '1995-01-01'""",
        ),
        # What a FILTER drops is not added up.
        ("pg", f"select {FILTERED} from pg.lineitem where l_quantity <= 50"),
    ],
    ids=["an index below a left join", "aggregates with filters"],
)
def test_one_statement(source: str, sql: str) -> None:
    over = catalog(dict.fromkeys(PLACEMENT, source))
    assert isinstance(optimise(bind(sql, over).tree, Context(over, Estimator(), Names())), Remote)
