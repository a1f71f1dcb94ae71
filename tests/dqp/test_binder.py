"""The binder is exact: the rendered tree answers as the query itself, on one DuckDB that holds all tables."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ParseError

from dai.errors import NotAQueryError, ParameterError, StatementError
from dqp.algebra.functions import AGGREGATES, MOMENTS, REVEALING, VOLATILE, is_aggregate
from dqp.algebra.operators import Aggregate, Filter, Inline, Nested, Operator, Scan, Sort, Verbatim
from dqp.algebra.table import Column, Table
from dqp.algebra.trees import walk
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.sql.render_duckdb import duckdb_sql
from tests.dqp.generated.grammar import query
from tests.dqp.generated.oracle import Oracle
from tests.dqp.generated.schema import TABLES as GENERATED
from tests.tpch import METADATA, PLACEMENTS, QUERIES, qualified

TABLES = {
    ("pg", "orders"): "id INTEGER, customer BIGINT, amount DECIMAL(12,2), day DATE, note VARCHAR",
    ("pg", "customers"): "id INTEGER, name VARCHAR",
    ("pg", "Odd Table"): '"weird name" INTEGER, "select" VARCHAR',
    ("maria", "customers"): "id BIGINT, name VARCHAR, city VARCHAR, parent BIGINT",
    ("data", "items"): "order_id INTEGER, product VARCHAR, qty INTEGER, price DOUBLE, tags VARCHAR[], "
    "attrs STRUCT(color VARCHAR, size INTEGER), m MAP(VARCHAR, INTEGER)",
}
ROWS = {
    (
        "pg",
        "orders",
    ): """(1, 1, 10.50, '2024-01-01', 'a'), (2, 1, 20.00, '2024-01-15', 'b'), (3, 2, 5.25, '2024-02-01', NULL),
        (4, NULL, 7.00, '2024-02-01', 'a'), (5, 9, NULL, NULL, 'A'), (6, 2, 20.00, '2023-12-31', 'ab')""",
    ("pg", "customers"): "(1, 'Ann'), (2, NULL), (7, 'Zed')",
    ("pg", "Odd Table"): "(1, NULL), (2, 'x')",
    ("maria", "customers"): "(1, 'Ann', 'Rome', NULL), (2, 'Bob', NULL, 1), (3, 'a', 'a', 2), (4, 'Cid', 'Rome', 2)",
    ("data", "items"): """(1, 'a', 2, 1.5, ['a', 'b'], {'color': 'red', 'size': 1}, MAP {'k': 1}),
        (1, 'b', 1, 2.5, [], {'color': NULL, 'size': 2}, MAP {}), (3, 'a', 5, NULL, NULL, NULL, NULL),
        (NULL, NULL, NULL, 0, ['c'], {'color': 'red', 'size': NULL}, MAP {'k': 3, 'l': 4})""",
}
VIEWS = {
    "wealthy": "SELECT c.name, sum(o.amount) AS total FROM pg.orders o JOIN maria.customers c ON c.id = o.customer "
    "GROUP BY c.name",
    "loud": "SELECT upper(name), id FROM pg.customers",
}
ORDERED, MODELLED, VERBATIM = (
    (Path(__file__).parent / "queries" / f"{name}.sql").read_text().splitlines()
    for name in ("ordered", "modelled", "verbatim")
)
"""One query a line. Ordered: their order is determined too. Verbatim: what the operators do not cover."""
NUMBERS = pa.table({"k": pa.array([1, 2, 3, None], pa.int32()), "label": ["one", "two", None, "none"]})
QUERIES_OF_ALL_KINDS = [
    *((each, True) for each in ORDERED),
    *((each, False) for each in MODELLED),
    *((each, "order by" in each and "distinct note" not in each) for each in VERBATIM),
]


def described(connection: duckdb.DuckDBPyConnection, alias: str, name: str) -> Table:
    rows = connection.execute(f'DESCRIBE "{alias}"."{name}"').fetchall()
    return Table(alias, name, tuple(Column(each[0], each[1]) for each in rows))


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as lab:
        lab.execute("SET TimeZone = 'UTC'")
        for alias in ("pg", "maria", "data"):
            lab.execute(f"ATTACH ':memory:' AS {alias}")
        for (alias, name), columns in TABLES.items():
            lab.execute(f'CREATE TABLE {alias}."{name}" ({columns})')
            lab.execute(f'INSERT INTO {alias}."{name}" VALUES {ROWS[alias, name]}')
        lab.execute("CREATE VIEW pg_orders AS FROM pg.orders")
        for name, sql in VIEWS.items():
            lab.execute(f"CREATE VIEW {name} AS {sql}")
        lab.register("numbers_given", NUMBERS)
        lab.execute("CREATE TABLE numbers AS FROM numbers_given")
        yield lab


@pytest.fixture(scope="module")
def catalog(connection: duckdb.DuckDBPyConnection) -> Iterator[Catalog]:
    catalog = Catalog.of([described(connection, *each) for each in TABLES], views=VIEWS)
    catalog.upload("numbers", NUMBERS)
    yield catalog
    catalog.close()


def operators(tree: Operator) -> Iterator[Operator]:
    """Every operator, those of nested plans included."""
    for node in walk(tree):
        yield node
        for expression in node.expressions:
            for nested in expression.find_all(Nested):
                yield from operators(nested.plan)


def answer(connection: duckdb.DuckDBPyConnection, tree: Operator) -> duckdb.DuckDBPyRelation:
    """What the rendered tree gives on the one database."""
    for node in operators(tree):
        if isinstance(node, Inline):
            connection.register(node.name, node.data)
    return connection.sql(duckdb_sql(tree))


def same(expected: list[tuple[Any, ...]], found: list[tuple[Any, ...]], ordered: bool) -> None:
    if not ordered:
        expected, found = sorted(expected, key=repr), sorted(found, key=repr)
    assert list(map(repr, found)) == list(map(repr, expected))


@pytest.mark.parametrize(("sql", "ordered"), QUERIES_OF_ALL_KINDS)
def test_the_tree_answers_as_the_query(
    connection: duckdb.DuckDBPyConnection, catalog: Catalog, sql: str, ordered: bool
) -> None:
    expected = connection.sql(sql)
    bound = bind(sql, catalog)
    assert list(bound.names) == expected.columns
    assert bound.types == tuple(map(str, expected.types))
    assert len(set(bound.tree.columns)) == len(bound.names), duckdb_sql(bound.tree)
    rows = answer(connection, bound.tree)
    assert [str(each) for each in rows.types] == [str(each) for each in expected.types], duckdb_sql(bound.tree)
    same(expected.fetchall(), rows.fetchall(), ordered)


@pytest.mark.parametrize("sql", [each for each in ORDERED + MODELLED if "range" not in each.lower()])
def test_what_is_usual_needs_no_block(catalog: Catalog, sql: str) -> None:
    if "generate_series" in sql or "unnest" in sql:
        return
    assert not [each for each in operators(bind(sql, catalog).tree) if isinstance(each, Verbatim)]


@pytest.mark.parametrize("sql", VERBATIM)
def test_what_is_unusual_is_a_block(catalog: Catalog, sql: str) -> None:
    assert [each for each in operators(bind(sql, catalog).tree) if isinstance(each, Verbatim)]


def test_correlated_queries_need_no_block_and_stand_in_the_tree(catalog: Catalog) -> None:
    sql = "select id from pg.orders o where exists (select 1 from maria.customers c where c.id = o.customer)"
    (nested,) = bind(sql, catalog).tree.inputs[0].expressions[0].find_all(Nested)
    assert nested.kind == "exists"
    assert [type(each) for each in operators(nested.plan)][-1] is Scan


def test_a_block_scans_the_columns_that_it_names(catalog: Catalog) -> None:
    sql = "select customer, unnest([id]) from pg.orders"
    (part,) = bind(sql, catalog).tree.inputs
    assert isinstance(part, Scan)
    assert [name for _, name in part.items] == ["id", "customer"]


def test_a_star_in_a_block_means_the_columns_of_its_tables_alone(catalog: Catalog) -> None:
    sql = (
        "select *, unnest([1]) from pg.customers c, "
        "lateral (select count(o.id) n from pg.orders o where o.amount > c.id) l"
    )
    parts = {part.table.name: part for part in operators(bind(sql, catalog).tree) if isinstance(part, Scan)}
    assert [name for _, name in parts["customers"].items] == ["id", "name"]
    assert [name for _, name in parts["orders"].items] == ["id", "amount"]


@pytest.mark.parametrize(
    ("sql", "filtered"),
    [
        ("select unnest([o.id]) from pg.orders o where o.amount > 6 and o.note = 'a'", 1),
        ("select unnest([x]) from (select customer x, id y from pg.orders) where y > 1 and x = 2", 1),
        ("with a as (select id, note from pg.orders) select unnest([id]) from a where note = 'a'", 1),
        ("select unnest([1]) from pg.orders o left join pg.customers c using (id) where c.name = 'a'", 0),
        ("select unnest([1]) from pg.orders o right join pg.customers c on c.id = o.id where o.note = 'a'", 0),
        ("select a.id from pg.customers a positional join pg.customers b where a.id > 1", 0),
        ("select id from pg.orders where id > 1 using sample 3 rows", 0),
        ("select unnest([1]) from pg.orders join pg.customers using (id) where id > 1", 0),
        ("select unnest([1]) from pg.orders where random() > 0.5", 0),
    ],
)
def test_a_block_reads_the_rows_that_its_conditions_leave(catalog: Catalog, sql: str, filtered: int) -> None:
    (block,) = [each for each in operators(bind(sql, catalog).tree) if isinstance(each, Verbatim)]
    assert [isinstance(part, Filter) for part in block.parts].count(True) == filtered


def test_queries_in_a_block_have_plans_of_their_own(catalog: Catalog) -> None:
    sql = (
        "with recursive r(n) as (select 1 union all select n + 1 from r where n < 3), "
        "t as (select customer, sum(amount) s from pg.orders group by customer) "
        "select unnest([t.s]) from t join (select id from maria.customers where city = 'Rome' order by id limit 2) c "
        "on c.id = t.customer where t.s > 5 and t.customer in (select n from r)"
    )
    tree = bind(sql, catalog).tree
    kinds = [type(each) for each in operators(tree)]
    assert kinds.count(Aggregate) == 1
    assert kinds.count(Sort) == 1
    assert {part.table.name for part in operators(tree) if isinstance(part, Scan)} == {"orders", "customers"}


def test_a_block_stays_as_small_as_it_can(catalog: Catalog) -> None:
    tree = bind(
        "select o.id from pg.orders o join (select *, unnest([1]) from maria.customers order by city, id) c "
        "on c.id = o.customer where o.id > 1",
        catalog,
    ).tree
    (verbatim,) = [each for each in operators(tree) if isinstance(each, Verbatim)]
    assert [part.table.name for part in verbatim.parts if isinstance(part, Scan)] == ["customers"]
    assert isinstance(next(each for each in walk(tree) if isinstance(each, Scan)), Scan)


def test_the_same_table_twice_has_identifiers_of_its_own(catalog: Catalog) -> None:
    tree = bind("with a as (select id from pg.orders) select * from a x, a y", catalog).tree
    scans = [each for each in operators(tree) if isinstance(each, Scan)]
    assert not set(scans[0].columns) & set(scans[1].columns)


def test_now_is_one_moment(catalog: Catalog, connection: duckdb.DuckDBPyConnection) -> None:
    before = datetime.now(UTC).replace(tzinfo=None)
    sql = "select now()::timestamp, (select get_current_timestamp())::timestamp, current_date, localtimestamp"
    ((first, second, day, local),) = answer(connection, bind(sql, catalog).tree).fetchall()
    assert first == second == local
    assert before <= local <= datetime.now(UTC).replace(tzinfo=None)
    assert day == local.date()


# --- statements and parameters ---


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("select 1", "query"),
        ("explain select 1", "explain"),
        ("/* plan */ EXPLAIN\nANALYZE -- it\n select 1;", "explain analyze"),
    ],
)
def test_explain(catalog: Catalog, sql: str, kind: str) -> None:
    bound = bind(sql, catalog)
    assert (bound.statement, bound.names) == (kind, ("1",))


VALUES = [
    None,
    True,
    0,
    -5,
    2**70,
    1.5,
    -1e300,
    float("inf"),
    float("nan"),
    Decimal("1.50"),
    Decimal("-7"),
    Decimal("1E+3"),
    "it's \\ ü\n",
    "",
    "a\0b",
    b"\x00\xff'",
    date(2024, 2, 29),
    datetime(2024, 2, 29, 12, 30, 1, 5),
    time(12, 30, 1),
    timedelta(days=-2, seconds=5, microseconds=1),
    uuid.UUID(int=7),
    [1, None, 2],
    ["a", "b'"],
    [],
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_comes_back_as_it_went(connection: duckdb.DuckDBPyConnection, catalog: Catalog, value: Any) -> None:
    for sql, parameters in (("select ?, id from pg.orders", [value]), ("select :v, id from pg.orders", {"v": value})):
        rows = answer(connection, bind(sql, catalog, parameters).tree).fetchall()[0][0]
        assert repr(rows) == repr(value if not isinstance(value, Decimal) else rows)
        assert rows == value or value != value


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.int64(-3), -3),
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("x"), "x"),
        (np.datetime64("2024-02-29"), datetime(2024, 2, 29)),
        (np.datetime64("2024-02-29T01:02:03.123456789", "ns"), datetime(2024, 2, 29, 1, 2, 3, 123456)),
        (np.array([1, 2]), [1, 2]),
        (pa.scalar(Decimal("1.5")), Decimal("1.5")),
        ((1, 2), [1, 2]),
        (datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 1)),
    ],
    ids=repr,
)
def test_values_of_other_libraries(
    connection: duckdb.DuckDBPyConnection, catalog: Catalog, value: Any, plain: Any
) -> None:
    sql = "select $v::timestamp" if isinstance(plain, datetime) else "select $v"
    assert answer(connection, bind(sql, catalog, {"v": value}).tree).fetchall() == [(plain,)]


@pytest.mark.parametrize(
    ("condition", "parameters", "expected"),
    [
        ("id in $l", {"l": [1, 2, 9]}, [1, 2]),
        ("id in ($l)", {"l": (3, 4)}, [3, 4]),
        ("id in ?", [[5]], [5]),
        ("id not in $l", {"l": []}, [1, 2, 3, 4, 5, 6]),
        ("id in :l", {"l": []}, []),
        ("id = any($l)", {"l": np.array([2, 3])}, [2, 3]),
        ("note in $l", {"l": {"ab"}}, [6]),
        ("id = $1 or id = $2 or id = $1", [1, 2], [1, 2]),
        ("id = :from", {"from": 4}, [4]),
        ("id -? = 2", [-1], [1]),
        ("note = ':x' or note = '?' or id = :x", {"x": 1}, [1]),
    ],
)
def test_lists_and_names(
    connection: duckdb.DuckDBPyConnection, catalog: Catalog, condition: str, parameters: Any, expected: list[int]
) -> None:
    tree = bind(f"select id from pg.orders where {condition} order by id", catalog, parameters).tree
    assert [each for (each,) in answer(connection, tree).fetchall()] == expected


@pytest.mark.parametrize(
    ("sql", "parameters", "named"),
    [
        ("select ?, ?", [1], "number 2"),
        ("select ?", [1, 2], "parameter 2"),
        ("select $a", {}, "$a"),
        ("select :a", [1], ":a"),
        ("select $a", {"a": 1, "b": 2}, "$b"),
        ("select ?", [object()], "object"),
        ("select $a", {"a": {"k": 1}}, "dict"),
        ("select ?", [2**130], "128 bits"),
        ("select ?", [Decimal("NaN")], "NaN"),
        ("select ?", [Decimal(10) ** 40], "38 digits"),
        ("select ?", ["\ud800"], "text"),
    ],
)
def test_parameters_that_do_not_fit(catalog: Catalog, sql: str, parameters: Any, named: str) -> None:
    with pytest.raises(ParameterError) as caught:
        bind(sql, catalog, parameters)
    assert named in str(caught.value)


# --- what is refused ---


@pytest.mark.parametrize(
    ("sql", "at", "said"),
    [
        ("select amout from pg.orders", "amout", "amount"),
        ("select o.amout from pg.orders o", "o.amout", "amount"),
        ("select * from pg.order", "pg.order", "orders"),
        ("select * from pgg.orders", "pgg", "pg"),
        ("select id from pg.orders, maria.customers", "id", "mbiguous"),
        ("select id + from pg.orders", "from", "syntax error"),
        ("explain analyze\n select 'ü', $long as x from pg.orders where amot = $long", "amot", "amount"),
        ("explain analyze\n select $long as x from pg.orders\nwhere amot = $long", "amot", "amount"),
        ("select id from pg.orders where id in $list and amot = 1", "amot", "amount"),
        ("select id from pg.orders where sum(id) > 1", "sum(id)", "aggregate"),
        ("select id from pg.orders where note = 'abc", "'abc", "no end"),
        ("select current_setting('temp_directory')", "current_setting", "not allowed"),
        ("select * from read_csv('/etc/passwd')", "read_csv", "not allowed"),
        ("select * from read_text('http://127.0.0.1/')", "read_text", "not allowed"),
    ],
)
def test_errors_point_into_the_text_as_it_was_sent(catalog: Catalog, sql: str, at: str, said: str) -> None:
    parameters: dict[str, Any] = (
        {"long": "x" * 50} if "$long" in sql else {"list": list(range(50))} if "$list" in sql else {}
    )
    with pytest.raises(StatementError) as caught:
        bind(sql, catalog, parameters)
    assert caught.value.position == sql.index(at) + 1
    assert said in str(caught.value)
    assert "xxx" not in str(caught.value)


@pytest.mark.parametrize(
    "sql",
    [
        "select * from '/etc/passwd'",
        "select * from glob('*')",
        "select * from query('select 1')",
        "select * from duckdb_settings()",
        "select * from duckdb_secrets()",
        "select * from information_schema.tables",
        "select * from sqlite_master",
        "select * from pg_catalog.pg_class",
        "select (select count(*) from duckdb_tables()), unnest([1])",
        "values ((select value from duckdb_settings() where name = 'temp_directory'))",
        "select * from (values ((select count(*) from duckdb_databases()))) t",
        "from pg.orders natural join duckdb_settings()",
        "select getenv('HOME')",
        "select rowid from pg.orders",
        "select o.rowid from pg.orders o",
    ],
)
def test_nothing_outside_of_the_tables_is_reached(catalog: Catalog, sql: str) -> None:
    with pytest.raises(StatementError):
        bind(sql, catalog)


@pytest.mark.parametrize("side", ["right", "full"])
def test_an_asof_join_that_may_not_end_is_refused(catalog: Catalog, side: str) -> None:
    """DuckDB 2.0 runs some of them without an end, also over a table without rows."""
    with pytest.raises(StatementError, match=f"no ASOF {side.upper()} JOIN"):
        bind(f"select a.id, b.id from pg.orders a asof {side} join maria.customers b on a.id >= b.id", catalog)


@pytest.mark.parametrize(
    "sql",
    ["", " ; ", "select 1; select 2", "insert into pg.orders values (1)", "drop table pg.orders", "set threads = 1",
     "copy pg.orders to 'x'", "attach 'x'", "pragma version", "create table t (a int)", "describe pg.orders"],
)  # fmt: skip
def test_only_one_query(catalog: Catalog, sql: str) -> None:
    with pytest.raises(NotAQueryError):
        bind(sql, catalog)


# --- many queries ---


def test_tpch_needs_no_block() -> None:
    placement = PLACEMENTS["facts_apart"]
    types = {"BIGINT": "BIGINT", "INTEGER": "INTEGER", "DATE": "DATE", "NUMERIC(15, 2)": "DECIMAL(15,2)"}
    catalog = Catalog.of(
        Table(
            placement[name],
            name,
            tuple(Column(each.name, types.get(str(each.type), "VARCHAR")) for each in table.columns),
        )
        for name, table in METADATA.tables.items()
    )
    for name, sql in QUERIES.items():
        tree = bind(qualified(sql, placement), catalog).tree
        assert not [each for each in operators(tree) if isinstance(each, Verbatim)], name
    catalog.close()


def test_generated_queries() -> None:
    catalog = Catalog.of(
        Table(each.source, each.name, tuple(Column(name, each.type(name)) for name in each.columns))
        for each in GENERATED
    )
    with Oracle() as oracle:
        for seed in range(100):
            sql = query(seed)
            try:
                expected = oracle.connection.sql(sql).fetchall()
            except duckdb.Error:
                continue
            same(expected, answer(oracle.connection, bind(sql, catalog).tree).fetchall(), ordered=False)
    catalog.close()


# --- lists of functions ---


def test_the_lists_are_those_of_duckdb() -> None:
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT DISTINCT function_name, function_type, stability FROM duckdb_functions()"
        ).fetchall()
    aggregates = {name for name, kind, _ in rows if kind == "aggregate"}
    assert aggregates <= AGGREGATES
    changing = {name for name, _, stability in rows if stability not in (None, "CONSISTENT")}
    harmless = {"current_database", "current_schema", "current_schemas", "in_search_path"}
    assert changing <= VOLATILE | REVEALING | MOMENTS.keys() | harmless


def test_the_parser_knows_what_aggregates() -> None:
    for name in AGGREGATES:
        for arguments in ("a", "a, b", "a, b, c"):
            try:
                (item,) = DuckDB().parse(f"SELECT {name}({arguments})")[0].expressions
            except ParseError:
                continue
            assert is_aggregate(item.this if isinstance(item, exp.IgnoreNulls) else item), name
            break
    assert not is_aggregate(exp.Anonymous(this="upper"))
