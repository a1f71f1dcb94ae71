"""Cut plans give the answers of the whole, whatever is split and over however many evaluators."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from sqlglot import exp

from dai.errors import DaiError
from dqp.algebra.operators import Call, Exchange, Inline, Join, Names, Operator, Receive, Remote, Scan, column
from dqp.algebra.table import Column, Table
from dqp.algebra.trees import identifiers, walk
from dqp.algebra.types import width
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.planning.context import Context
from dqp.planning.costing.cost import Estimator
from dqp.planning.distribution.partition import Output, Plan, cut
from dqp.planning.distribution.spreading import Thresholds
from dqp.planning.rules import optimise
from dqp.runtimes.distributed import frequent
from dqp.sql.render_duckdb import duckdb_sql
from tests.dqp import plans
from tests.dqp.generated import schema
from tests.dqp.generated.differential import compared, order
from tests.dqp.generated.grammar import query
from tests.dqp.generated.oracle import Oracle
from tests.dqp.interpreter import answer, rows_of
from tests.thoroughness import part
from tests.tpch import QUERIES, qualified, smallest

ALWAYS = Thresholds(split_rows=0.0, spread_seconds=0.0)
NEVER_BROADCAST = Thresholds(split_rows=0.0, broadcast_bytes=0.0, spread_seconds=0.0)


def planned(sql: str, catalog: Catalog) -> tuple[Operator, Context, tuple[str, ...], tuple[str, ...]]:
    bound = bind(sql, catalog)
    context = Context(catalog, Estimator(), Names(identifiers(bound.tree)))
    return optimise(bound.tree, context), context, bound.names, bound.types


def checked(
    sql: str, catalog: Catalog, connection: duckdb.DuckDBPyConnection, *ways: tuple[int, Thresholds]
) -> list[Plan]:
    """Compares the answer of the plan for so many evaluators, in each of the ways, with that of its tree as a whole."""
    tree, context, names, _ = planned(sql, catalog)
    whole = connection.sql(duckdb_sql(tree, local(connection))).to_arrow_table()
    cuts = []
    for evaluators, how in ways:
        plan = cut(tree, context, evaluators, thresholds=how)
        rows = answer(plan, connection, evaluators)
        difference = compared(whole, rows, order(sql, names))
        assert difference is None, f"{sql}\n{difference.kind}\n{difference.detail}\n{shown(plan)}"
        cuts.append(plan)
    return cuts


def local(connection: duckdb.DuckDBPyConnection) -> Any:
    def leaf(node: Operator) -> str:
        if isinstance(node, Inline):
            connection.register(f"whole {node.name}", node.data)
            return f'"whole {node.name}"'
        assert isinstance(node, Remote)
        return f"({duckdb_sql(node.tree)})"

    return leaf


def shown(plan: Plan) -> str:
    lines = []
    for each in plan.fragments:
        sql = duckdb_sql(each.tree, lambda node: type(node).__name__ + str(getattr(node, "fragment", "")))
        lines.append(f"{each.id} x{each.instances} {each.output}: {sql}")
    return "\n".join(lines)


# --- TPC-H ---


@pytest.fixture(scope="module")
def tpch() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for alias in set(plans.PLACEMENT.values()):
            connection.execute(f"CREATE SCHEMA {alias}")
        for name, content in smallest().items():
            connection.register("made", content)
            connection.execute(f"CREATE TABLE {plans.PLACEMENT[name]}.{name} AS FROM made")
            connection.unregister("made")
        yield connection


@pytest.mark.parametrize("query", QUERIES)
def test_tpch(query: str, tpch: duckdb.DuckDBPyConnection) -> None:
    catalog = plans.catalog()
    sql = qualified(QUERIES[query], plans.PLACEMENT)
    ways = ((1, ALWAYS), (2, Thresholds()), (3, ALWAYS), (4, NEVER_BROADCAST))
    alone, *_ = checked(sql, catalog, tpch, *ways)
    assert alone.root.instances == 1


# --- generated queries ---


@pytest.fixture(scope="module")
def oracle() -> Iterator[Oracle]:
    with Oracle() as oracle:
        yield oracle


def described() -> Catalog:
    """The generated tables, with what is known of them."""
    actual = []
    for table in schema.TABLES:
        columns = []
        for name in table.columns:
            type = table.type(name)
            ends: tuple[int | None, int | None] = (1, table.rows) if name == "id" and table.rows > 1 else (None, None)
            distinct = float(table.rows) if name == "id" else None
            columns.append(Column(name, type, type.lower(), name != "id", distinct, 0.0, *ends, width(type)))
        rows = float(table.rows)
        size = rows * sum(each.width for each in columns)
        actual.append(Table(table.source, table.name, tuple(columns), keys=(("id",),), rows=rows, bytes=size))
    return Catalog.of(actual, dialects=plans.DIALECTS)


def test_generated_queries(oracle: Oracle) -> None:
    catalog = described()
    split = 0
    for seed in part(range(100)):
        how = ALWAYS if seed % 2 else NEVER_BROADCAST
        try:
            (plan,) = checked(query(seed), catalog, oracle.connection, (2 + seed % 3, how))
        except (duckdb.Error, DaiError):
            with pytest.raises(duckdb.Error):  # it has no answer, with or without evaluators
                oracle.answer(query(seed))
            continue
        split += len(plan.fragments) > 1
    assert split > len(part(range(100))) / 5


# --- single decisions ---


def table(alias: str, name: str, rows: float, **types: str) -> Table:
    columns = [Column("id", "INTEGER", "int4", False, rows, 0.0, 1, int(rows), 4.0)]
    columns += [Column(each, type, type.lower(), True, 10.0, 0.1, None, None, 8.0) for each, type in types.items()]
    return Table(alias, name, tuple(columns), keys=(("id",),), rows=rows, bytes=rows * 12)


@pytest.fixture(scope="module")
def whole() -> Iterator[tuple[Catalog, duckdb.DuckDBPyConnection]]:
    """Skewed and odd keys: NULLs, one value far more often than any other, equal values of different types."""
    catalog = Catalog.of(
        [
            table("pg", "facts", 3000.0, k="INTEGER", v="BIGINT", x="DOUBLE", s="VARCHAR", amt="DECIMAL(12,2)"),
            table("maria", "kinds", 300.0, k="BIGINT", x="DOUBLE", s="VARCHAR"),
        ],
        dialects=plans.DIALECTS,
    )
    with duckdb.connect() as connection:
        connection.execute("CREATE SCHEMA pg; CREATE SCHEMA maria; SELECT setseed(0.5)")
        connection.execute(
            """CREATE TABLE pg.facts AS SELECT i::INTEGER AS id,
                 (CASE WHEN i % 10 = 0 THEN NULL WHEN i % 4 > 0 THEN 7 ELSE i % 90 END)::INTEGER AS k, i::BIGINT AS v,
                 (CASE i % 5 WHEN 0 THEN 0.0 WHEN 1 THEN -0.0 WHEN 2 THEN 'nan'::DOUBLE ELSE i / 4 END)::DOUBLE AS x,
                 CASE WHEN i % 7 = 0 THEN NULL ELSE 's' || (i % 13) END AS s, (i / 100)::DECIMAL(12,2) AS amt
               FROM range(1, 3001) t(i)"""
        )
        connection.execute(
            """CREATE TABLE maria.kinds AS SELECT i::INTEGER AS id,
                 (CASE WHEN i % 6 = 0 THEN NULL ELSE i % 70 END)::BIGINT AS k,
                 (CASE i % 3 WHEN 0 THEN -0.0 WHEN 1 THEN 'nan'::DOUBLE ELSE i END)::DOUBLE AS x,
                 's' || (i % 20) AS s FROM range(1, 301) t(i)"""
        )
        yield catalog, connection


SINGLE = """
SELECT f.id, g.id FROM pg.facts f JOIN maria.kinds g ON f.k = g.k
SELECT f.id, g.id FROM pg.facts f LEFT JOIN maria.kinds g ON f.k = g.k
SELECT f.id, g.id FROM pg.facts f RIGHT JOIN maria.kinds g ON f.k = g.k
SELECT f.id, g.id FROM pg.facts f FULL JOIN maria.kinds g ON f.k = g.k AND f.s = g.s
SELECT f.id FROM pg.facts f SEMI JOIN maria.kinds g ON f.k = g.k
SELECT f.id FROM pg.facts f ANTI JOIN maria.kinds g ON f.k = g.k
SELECT f.id, g.id FROM pg.facts f JOIN maria.kinds g ON f.x = g.x AND f.id < 300
SELECT f.id, g.id FROM pg.facts f, maria.kinds g WHERE f.id < 40
SELECT f.id FROM pg.facts f WHERE f.k NOT IN (SELECT k FROM maria.kinds g WHERE g.k IS NOT NULL)
SELECT count(*), count(f.k), sum(f.v), avg(f.v), avg(f.x), min(f.s) FROM pg.facts f JOIN maria.kinds g USING (k)
SELECT count(*), sum(v), avg(v) FROM pg.facts f JOIN maria.kinds g USING (k) WHERE f.id < 0
SELECT g.s, count(*), sum(f.amt), sum(f.v), bool_or(f.id > 5) FROM pg.facts f JOIN maria.kinds g USING (k) GROUP BY g.s
SELECT f.k, count(*), count(DISTINCT f.s) FROM pg.facts f JOIN maria.kinds g USING (k) GROUP BY f.k
SELECT f.s, string_agg(g.s, ',' ORDER BY g.s, g.id) FROM pg.facts f JOIN maria.kinds g ON f.id = g.k GROUP BY f.s
SELECT f.x, count(*) FROM pg.facts f JOIN maria.kinds g ON f.k = g.k GROUP BY f.x
SELECT DISTINCT f.s, g.s FROM pg.facts f JOIN maria.kinds g USING (k)
SELECT f.k, f.id, row_number() OVER (PARTITION BY f.k ORDER BY f.id) FROM pg.facts f JOIN maria.kinds g ON f.id = g.id
SELECT f.id, sum(f.v) OVER (ORDER BY f.id) FROM pg.facts f JOIN maria.kinds g ON f.id = g.id
SELECT s, id FROM pg.facts UNION ALL SELECT s, id FROM maria.kinds
SELECT sum(n) FROM (SELECT v AS n FROM pg.facts UNION ALL SELECT k FROM maria.kinds)
SELECT s FROM pg.facts EXCEPT SELECT s FROM maria.kinds
SELECT f.id, g.s FROM pg.facts f JOIN maria.kinds g USING (k) ORDER BY f.id DESC, g.s, g.id LIMIT 7 OFFSET 3
SELECT f.id, (SELECT count(*) FROM maria.kinds g WHERE g.k < f.k) FROM pg.facts f WHERE f.id < 50
SELECT f.s, g.s, count(*) FROM pg.facts f JOIN maria.kinds g USING (k) GROUP BY ROLLUP (f.s, g.s)
SELECT f.v // 7, sum(f.v) % 3, typeof(sum(f.v)) FROM pg.facts f JOIN maria.kinds g USING (k) GROUP BY 1
""".strip().splitlines()  # fmt: skip


@pytest.mark.parametrize("sql", SINGLE)
def test_single_decisions(sql: str, whole: tuple[Catalog, duckdb.DuckDBPyConnection]) -> None:
    checked(sql, *whole, *product((2, 3), (ALWAYS, NEVER_BROADCAST)))


def kinds_of(plan: Plan) -> list[str]:
    return sorted(each.output.kind for each in plan.fragments if each.output is not None)


def test_a_join_moves_what_is_smaller(whole: tuple[Catalog, duckdb.DuckDBPyConnection]) -> None:
    sql = "SELECT f.id, g.id FROM pg.facts f JOIN maria.kinds g ON f.k = g.k"
    tree, context, _, _ = planned(sql, whole[0])
    assert kinds_of(cut(tree, context, 2, thresholds=ALWAYS)) == ["broadcast", "gather"]
    assert kinds_of(cut(tree, context, 2, thresholds=NEVER_BROADCAST)) == ["gather", "hash", "hash"]
    assert kinds_of(cut(tree, context, 2)) == []


def test_groups_are_made_where_the_rows_are(whole: tuple[Catalog, duckdb.DuckDBPyConnection]) -> None:
    sql = "SELECT f.s, count(*), avg(f.v) FROM pg.facts f JOIN maria.kinds g ON f.k = g.k GROUP BY f.s"
    tree, context, _, _ = planned(sql, whole[0])
    plan = cut(tree, context, 3, thresholds=Thresholds(split_rows=1000.0))
    gathered = next(each for each in plan.fragments if each.output is not None and each.output.kind == "gather")
    assert rows_of(plan, whole[1], 3)[gathered.id] == [14, 14, 14]


def skewed(kind: str) -> tuple[Join, Context]:
    """facts.k is 7 for three quarters of the rows."""
    facts, kinds = (
        Remote(each.source, Scan(each, tuple((f"{prefix}_{column.name}", column.name) for column in each.columns)))
        for each, prefix in (
            (table("pg", "facts", 3000.0, k="INTEGER"), "f"),
            (table("maria", "kinds", 300.0, k="BIGINT"), "g"),
        )
    )
    join = Join(facts, kinds, kind, exp.EQ(this=column("f_k"), expression=column("g_k")))  # type: ignore[arg-type]
    context = Context(None, Estimator(), Names(identifiers(join)))
    return join, context


def test_values_that_most_rows_have() -> None:
    assert frequent(pa.chunked_array([[7] * 6 + [None] * 6, [1, 2, 3, 4]]), 4) == (exp.Literal.number(7),)
    beyond = pa.array([10**6] * 9, pa.int32()).cast(pa.date32())  # Python has no such days, which a key may well be
    assert frequent(pa.chunked_array([beyond, pa.array([4_000_000] * 9, pa.int32()).cast(pa.date32())]), 2) == ()
    assert frequent(pa.chunked_array([pa.array([0] * 9, pa.time64("us"))]), 2) == ()
    assert frequent(pa.chunked_array([pa.array([b"7"] * 9)]), 2) == ()
    assert frequent(pa.chunked_array([pa.array([[7]] * 9)]), 2) == ()


@pytest.mark.parametrize("kind", ["inner", "left", "semi", "anti", "right", "full"])
def test_a_heavy_key_is_dealt_out(kind: str, whole: tuple[Catalog, duckdb.DuckDBPyConnection]) -> None:
    connection = whole[1]
    join, context = skewed(kind)
    heavy = {"f_k": (exp.Literal.number(7),)}
    plan = cut(join, context, 4, thresholds=NEVER_BROADCAST, heavy=heavy)
    right = connection.sql(duckdb_sql(join, local(connection))).to_arrow_table()
    assert compared(right, answer(plan, connection, 4)) is None
    joined = plan.fragments[plan.root.producers[0]]
    if kind in ("inner", "left", "semi"):
        most = max(rows_of(plan, connection, 4)[joined.id])
        plain = cut(join, context, 4, thresholds=NEVER_BROADCAST)
        assert most < 0.4 * right.num_rows < 0.6 * right.num_rows < max(rows_of(plain, connection, 4)[joined.id])


@pytest.mark.parametrize("kind", ["inner", "left", "semi", "anti", "right", "full"])
def test_a_heavy_key_of_which_one_row_has_a_partner(
    kind: str, whole: tuple[Catalog, duckdb.DuckDBPyConnection]
) -> None:
    """Rows of the other side, where they are everywhere, have none in most places."""
    connection = whole[1]
    join, context = skewed(kind)
    ((number,),) = connection.execute("SELECT min(id) FROM pg.facts WHERE k = 7").fetchall()
    one = exp.EQ(this=column("f_id"), expression=exp.Literal.number(number))
    join = replace(join, condition=exp.And(this=join.condition, expression=one))
    plan = cut(join, context, 4, thresholds=NEVER_BROADCAST, heavy={"f_k": (exp.Literal.number(7),)})
    right = connection.sql(duckdb_sql(join, local(connection))).to_arrow_table()
    assert compared(right, answer(plan, connection, 4)) is None


SUMMED = "SELECT f.k, sum(f.v) AS s FROM pg.facts f JOIN maria.kinds g USING (k) GROUP BY f.k"
JOINED = "SELECT f.k, f.id, g.s FROM pg.facts f JOIN maria.kinds g USING (k)"


@pytest.mark.parametrize(
    ("sql", "readers"),
    [
        pytest.param(
            f"WITH r AS ({SUMMED}) SELECT k, s FROM r WHERE s = (SELECT max(s) FROM r)", 2, id="two consumers"
        ),
        pytest.param(f"WITH r AS ({JOINED}) SELECT k FROM r UNION ALL SELECT id FROM r", 1, id="one, twice"),
    ],
)
@pytest.mark.parametrize(("evaluators", "how"), [(2, ALWAYS), (3, NEVER_BROADCAST)])
def test_what_is_sent_twice_is_one_fragment(
    sql: str, readers: int, evaluators: int, how: Thresholds, whole: tuple[Catalog, duckdb.DuckDBPyConnection]
) -> None:
    (plan,) = checked(sql, *whole, (evaluators, how))
    assert max(each.readers for each in plan.fragments) == readers
    read = Counter((each.fragment, each.reader) for one in plan.fragments for each in _received(one.tree))
    assert len(read) == sum(each.readers for each in plan.fragments[:-1])
    sent = Counter(node.source for each in plan.fragments for node in walk(each.tree) if isinstance(node, Remote))
    assert sent["pg"] <= (1 if how is NEVER_BROADCAST or readers == 2 else 2)
    for each in plan.fragments[:-1]:
        consumers = [one for one in plan.fragments if each.id in one.producers]
        assert len(consumers) == each.readers
        assert len({one.instances for one in consumers}) == 1


def _received(tree: Operator) -> set[Receive]:
    return {node for node in walk(tree) if isinstance(node, Receive)}


def test_rows_for_a_dear_call_are_spread() -> None:
    data = pa.table({"v": range(1000)})
    context = Context(None, Estimator(), Names())
    tree = Call(Inline("mine", (("v", "v"),), data), "made", "slow", (column("v"),))
    assert len(cut(tree, context, 4, seconds={"slow": 1e-6}).fragments) == 1
    plan = cut(tree, context, 4, seconds={"slow": 0.05})
    assert [each.instances for each in plan.fragments] == [1, 4, 1]
    assert kinds_of(plan) == ["gather", "spread"]


def test_buckets_number_every_row_once() -> None:
    for output in (
        Output("hash", (("k", "HUGEINT"),)),
        Output("spread"),
        Output("hash", (("k", "HUGEINT"),), ("7", "8")),
    ):
        rows = "(SELECT CASE WHEN i % 9 > 0 THEN i % 11 END AS k FROM range(500) t(i))"
        sql = f"SELECT {output.bucket(5)} AS b FROM {rows}"
        counter = Counter(each for (each,) in duckdb.sql(sql).fetchall())
        assert set(counter) <= set(range(5))
        assert sum(counter.values()) == 500
    copied = Output("hash", (("k", "HUGEINT"),), ("7",), copied=True)
    rows = f"(SELECT k, {copied.bucket(5)} FROM (SELECT i % 10 AS k FROM range(100) t(i)))"
    sql = f"SELECT count(*), count(*) FILTER (k = 7) FROM {rows}"
    assert duckdb.sql(sql).fetchall() == [(140, 50)]


def test_no_fragment_with_several_instances_reads_what_is_not_split(
    whole: tuple[Catalog, duckdb.DuckDBPyConnection],
) -> None:
    for sql in SINGLE:
        tree, context, _, _ = planned(sql, whole[0])
        plan = cut(tree, context, 2, thresholds=ALWAYS)
        for each in plan.fragments:
            leaves = [node for node in walk(each.tree) if isinstance(node, Remote | Inline)]
            assert each.instances == 1 or all(node in each.parted for node in leaves)
        assert sum(isinstance(each, Exchange) for each in walk(plan.tree)) == len(plan.fragments) - 1
        assert all(isinstance(each, Operator) for each in walk(plan.tree))


def test_one_evaluator_has_one_fragment(whole: tuple[Catalog, duckdb.DuckDBPyConnection]) -> None:
    tree, context, _, _ = planned(SINGLE[0], whole[0])
    assert [each.tree for each in cut(tree, context, 1).fragments] == [tree]
