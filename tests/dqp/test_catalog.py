"""The catalog: names, and what SQL means."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pyarrow as pa
import pytest

from dai.drivers.tables import TableInfo
from dai.errors import (
    ConfigurationError,
    NotAQueryError,
    NotFoundError,
    ParameterError,
    StatementError,
)
from dqp.binding.binder import bind
from dqp.catalog.catalog import Catalog
from dqp.settings import FederationSettings
from tests.dqp.catalogs import catalog_of
from tests.dqp.scripted import Scripted, info


@pytest.fixture
def small() -> Iterator[Catalog]:
    made = catalog_of(
        pg={
            "orders": "id int not null, amt decimal(12,2), s varchar, at timestamptz",
            "people": "id int, name varchar",
        },
        maria={"regions": "id bigint, name varchar"},
        views={
            "busy": "select o.id, r.name from pg.orders o join maria.regions r on o.id = r.id",
            "above": "select count(*) n from busy",
            "lost": "select * from pg.ordrs",
            "wrong": "select nam from pg.people",
            "round": "select * from trip",
            "trip": "select * from round",
        },
    )
    yield made
    made.close()


# --- names ---


def test_tables_by_every_name(catalog_of: Callable[..., Catalog]) -> None:
    catalog = catalog_of(
        Scripted("pg", info("Orders"), info("regions", schema="sales"), info("x", schema="a"), info("x", schema="b")),
        Scripted("lite", info("orders")),
    )
    assert str(catalog.table("pg", "orders")) == "pg.Orders"
    assert catalog.table("PG", "ORDERS") == catalog.table(None, "pg_orders") == catalog.table(None, "PG_Orders")
    assert catalog.table("pg", "orders") != catalog.table("lite", "orders")
    assert str(catalog.table("pg", "regions")) == "pg.sales.regions"
    assert (
        catalog.table("pg", "regions")
        == catalog.table("pg", "regions", "SALES")
        == catalog.table("pg", "sales.regions")
        == catalog.table(None, "pg_sales_regions")
        == catalog.table(None, "pg_regions")
    )
    assert catalog.table("pg", "x", "b").schema == "b"
    with pytest.raises(NotFoundError, match=r"no table pg\.x") as caught:
        catalog.table("pg", "x")
    assert_says(caught.value, r"Known: .*a\.x, b\.x")
    with pytest.raises(NotFoundError) as caught:
        catalog.table("pg", "regons")
    assert_says(caught.value, "Did you mean 'regions'")
    with pytest.raises(NotFoundError) as caught:
        catalog.table(None, "orders")
    assert_says(caught.value, r"Did you mean 'pg\.Orders' or 'lite\.orders'\?")
    for sql in (
        "select Orders.ID from pg.orders",
        "select pg.orders.id from PG.ORDERS",
        "select pg_orders.id from pg_orders",
        "select pg.sales.regions.id from pg.sales.regions",
        "select regions.id from pg.regions",
        'select id from pg."sales.regions"',
        "select id from pg_sales_regions",
        'select id from "pg"."Orders"',
        "select id from pg.b.x",
    ):
        assert catalog.describe(sql)[0][1] == "INTEGER", sql


@pytest.mark.parametrize(
    ("alias", "name", "says"),
    [
        ("pg", "ordrs", "no table pg.ordrs.*'orders'"),
        ("gp", "orders", "no source 'gp'.*maria, pg"),
        (None, "pg_ordrs", "no table 'pg_ordrs'"),
        (None, "orders", "no table 'orders'.*'pg.orders'"),
    ],
)
def test_the_nearest_name_is_suggested(small: Catalog, alias: str | None, name: str, says: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        small.table(alias, name)
    assert_says(caught.value, says)
    assert small.table("pg", "orders").column("AMT").name == "amt"
    with pytest.raises(NotFoundError, match=r"no column 'amount' in pg\.orders"):
        small.table("pg", "orders").column("amount")


def assert_says(error: BaseException, says: str) -> None:
    assert re.search(says, str(error), re.DOTALL), str(error)


def test_names_that_differ_in_case_alone(catalog_of: Callable[..., Catalog]) -> None:
    catalog = catalog_of(Scripted("m", info("T", "a:int:int32", "b:int:int32", "A:text:string")))
    assert catalog.describe("select * from m.t") == (("a_1", "INTEGER"), ("b", "INTEGER"), ("A_2", "VARCHAR"))
    columns = catalog.table("m", "t").columns
    assert [(each.name, each.source_name) for each in columns] == [("a_1", "a"), ("b", "b"), ("A_2", "A")]
    assert "a (a_1), A (A_2)" in catalog.problems["m.T"]
    with pytest.raises(StatementError, match=r"'a' may be 'a' or 'A' of m\.T: .*\n.*\n.*\nWrite 'a_1' or 'A_2'"):
        catalog.describe("select a from m.t")
    with pytest.raises(StatementError, match=r"'A' may be 'a' or 'A' of m\.T"):
        catalog.describe("select x.A from m.t x")


SAME = (
    info("T", "a:int:int32", schema="public"),
    info("t", "b:text:string", schema="public"),
    info("One", "c:int:int32", schema="other"),
    info("ONE", "d:int:int32", schema="other"),
    info("one", "e:int:int32"),
)


@pytest.mark.parametrize(
    ("sql", "columns"),
    [
        ("from m.T", "a"),
        ('from m."T"', "a"),
        ("from M.t", "b"),
        ("from m.public.T", "a"),
        ("from m.main.t", "b"),
        ("from m_T", "a"),
        ("from m_public_t", "b"),
        ("from m.other.ONE", "d"),
        ("from m.One", "e"),
        ("select m.T.a, T.a as x from m.T", "a x"),
        ("select m_T.a from m_T where m_T.a > 0", "a"),
        ("select m.public.t.b from m.public.t", "b"),
        ("select x.a, y.b from m.T x join m.t as y on x.a::text = y.b", "a b"),
        ("select x.a from m_T x, m_t y", "a"),
        ("with T as (from m.t) select * from T", "b"),
        ("from v", "a"),
        ("from (select T.a from m.T) t(q)", "q"),
    ],
)
def test_tables_whose_names_differ_in_case_alone(catalog_of: Callable[..., Catalog], sql: str, columns: str) -> None:
    catalog = catalog_of(Scripted("m", *SAME), views={"v": "select * from m.T"})
    assert [name for name, _ in catalog.describe(sql)] == columns.split()
    assert catalog.problems == {}
    assert catalog.table("m", "T").identity == ("m", "public", "T")
    assert catalog.table("m", "t").identity == ("m", "public", "t")
    assert catalog.table(None, "m_t").identity == ("m", "public", "t")


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("from m.other.oNe", r"m\.other\.oNe may be m\.other\.One or m\.other\.ONE: .*\^.*case letters"),
        ("select 1 from m_Other_one", r"m_Other_one may be m\.other\.One or m\.other\.ONE"),
        ("select 1 from m.T, m.OTHER.One", r"m\.OTHER\.One may be"),
    ],
)
def test_an_ambiguous_name_is_an_error_with_the_candidates(
    catalog_of: Callable[..., Catalog], sql: str, says: str
) -> None:
    with pytest.raises(StatementError) as caught:
        catalog_of(Scripted("m", *SAME)).describe(sql)
    assert_says(caught.value, says)


def test_a_name_with_quotes(catalog_of: Callable[..., Catalog]) -> None:
    catalog = catalog_of(Scripted("pg", info('we "ird', "a:int:int32")))
    assert catalog.describe('from pg."we ""ird"') == (("a", "INTEGER"),)
    assert catalog.describe('select pg."we ""ird".a from pg."we ""ird"') == (("a", "INTEGER"),)


def test_a_table_without_columns(catalog_of: Callable[..., Catalog]) -> None:
    catalog = catalog_of(Scripted("pg", TableInfo(name="bare", columns=()), info("orders")))
    assert [each.name for each in catalog.tables()] == ["orders"]
    assert catalog.problems["pg.bare"] == "It has no columns."
    with pytest.raises(StatementError, match=r"table pg\.bare cannot be read\. It has no columns"):
        catalog.describe("from pg.bare")


# --- what SQL means ---


def test_describe(small: Catalog) -> None:
    assert small.describe("select id, sum(amt) total, count(*) from pg.orders group by all order by 1") == (
        ("id", "INTEGER"),
        ("total", "DECIMAL(38,2)"),
        ("count_star()", "BIGINT"),
    )
    assert small.describe("select 1 a, 2 a") == (("a", "INTEGER"), ("a", "INTEGER"))
    assert small.describe("with x as (values (1)) from x, pg.people")[1] == ("id", "INTEGER")
    assert small.describe("select 7 / 2, 7 // 2") == (("(7 / 2)", "DOUBLE"), ("(7 // 2)", "INTEGER"))


def test_parameters(small: Catalog) -> None:
    assert small.describe("select id from pg.orders where s = ? and id < ?", ["x", 3]) == (("id", "INTEGER"),)
    assert small.describe("select $a, :b::int, [1,2][:c]", {"a": "x", "b": 1, "c": 1})[1][1] == "INTEGER"
    with pytest.raises(ParameterError, match="parameter 2"):
        small.describe("select ?, ?", [1])
    with pytest.raises(ParameterError, match="b"):
        small.describe("select $a", {"a": 1, "b": 2})


@pytest.mark.parametrize(
    ("sql", "position", "says"),
    [
        ("select foo from pg.orders", 8, r"no column 'foo' in pg.orders"),
        ("select amtt from pg.orders", 8, "Did you mean 'amt'"),
        ("select list_transform([id], x -> x + 1) from pg.orders", None, "Write lambda x: x \\+ 1"),
        (
            "select amt from (select id from pg.orders)",
            8,
            "no column 'amt' here: pg.orders has one, but the query in FROM does not",
        ),
        (
            "select AMT from (select id from pg.orders)",
            8,
            "no column 'AMT' here.*Select it in the query in FROM, or use id",
        ),
        ("select id from pg.orders o(x)", 8, "no column 'id' here: .*pg.orders.* has one"),
        ("select 'é→', amtt\nfrom pg.orders", 14, "line 1: .*amtt"),
        ("select id,\n  nme from pg.people", 14, "line 2: .*Did you mean 'name'"),
        ("select o.amtt from pg.orders o", 8, "no column 'amtt' in o.*'amt'"),
        ("select * from pg.orders join pg.people using (idd)", 47, "left side of join.*'id'"),
        ("select * exclude (amtt) from pg.orders", 19, "EXCLUDE list not found.*'amt'"),
        ("select * from PG.ORDRS", 15, "no table pg.ORDRS.*'orders'"),
        ("select x.id from pg.orders o", 8, "no table 'x' in this FROM clause.*o"),
        (
            "select p.id from pg.people p where exists (select 1 from pg.orders o where o.amtt = p.id)",
            76,
            "no column 'amtt' in o.*'amt'",
        ),
        (
            "select p.id, x.a from pg.people p, lateral (select pg.orders.amtt a from pg.orders where s = p.name) x",
            52,
            "no column 'amtt' in pg.orders.*'amt'",
        ),
        (
            "select p.id from pg.people p where p.id in (select o.total from (select amt totl from pg.orders) o)",
            52,
            "no column 'total' in o.*'totl'",
        ),
        ("select (select x.amt from pg.orders o) from pg.people", 16, "no table 'x' in this FROM clause"),
        ("select 1 from pg.orders a join pg.orders b on c.id = 1 join pg.people c on true", 47, "no table 'c' in this"),
        (
            "select (select a.id from pg.orders a join pg.orders b on c.id = a.id join pg.people c on true)",
            58,
            "no table 'c' in this",
        ),
        ("select (select o.total from pg.orders o(totl)) from pg.people", 16, "no column 'total' in o.*'totl'"),
        ("select (select o.i from (values (1)) o(ii)) from pg.people", 16, "no column 'i' in o.*'ii'"),
        (
            "with orders as (select id, name from pg.people) select (select orders.amt from orders) from pg.people",
            64,
            "no column 'amt' in orders.*Known: id, name",
        ),
        ("select * from pg.ordrs", 15, "no table pg.ordrs.*'orders'"),
        ('select * from pg."ordrs"', 15, "no table pg.ordrs.*'orders'"),
        ("select * from pg.ordrs o", 15, r"no table pg\.ordrs\.\n.*'orders'"),
        ("select * from pg.ordrs as o join maria.regions r on true", 15, r"no table pg\.ordrs\.\n.*'orders'"),
        ('select * from "pg" . "ordrs" /* x */ "o"(a)', 15, r"no table pg\.ordrs\.\n.*'orders'"),
        ("select * from pg.ordrs tablesample 10%", 15, r"no table pg\.ordrs\.\n.*'orders'"),
        ("select * from regins r", 15, "no table 'regins'.*maria.regions"),
        ("select * from gp.orders o", 15, "no source 'gp'.*pg"),
        ("select * from gp.orders", 15, "no source 'gp'.*pg"),
        ("from pragma_table_info('orders')", 6, "no table 'pragma_table_info'.*SHOW TABLES.*DESCRIBE source.table"),
        ("select * from orders", 15, "no table 'orders'.*'pg.orders'"),
        ("select * from maria.regions, pg.regions", 30, "no table pg.regions.*Did you mean 'maria.regions'"),
        ("select nme from pg.people p, maria.regions", 8, "Did you mean 'name', of .*(pg.people|maria.regions) or"),
        ("select * from pg_ordrs", 15, "no table 'pg_ordrs'"),
        ("select * from pg.sales.orders", 15, "no table pg.sales.orders"),
        ("selec 1", 1, "syntax error"),
        ("select id from pg.orders o, pg.people p", 8, "Ambiguous"),
        ("select bount(*) from pg.orders", 8, "no scalar function 'bount'"),
        ("select upper(1, 2)", 8, r"upper\(INTEGER, INTEGER\).*The function takes: upper"),
        ("select id from pg.orders group by s", 8, "must appear in the GROUP BY"),
        ("select * from lost", None, "The view 'lost' is wrong: There is no table pg.ordrs"),
        ("select * from lost l, pg.people", 15, "The view 'lost' is wrong: There is no table pg.ordrs"),
        ("select * from wrong", None, "The view 'wrong' is wrong: There is no column 'nam'"),
        ("select * from round", None, "reads itself: round → trip → round"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(small: Catalog, sql: str, position: int | None, says: str) -> None:
    with pytest.raises(StatementError) as caught:
        small.describe(sql)
    assert_says(caught.value, says)
    if position is not None:
        assert caught.value.position == position


@pytest.mark.parametrize(
    ("sql", "detail", "hint"),
    [
        ("select i.repeat from lite.pairs i", "in i.", "Did you mean 'repeats'?"),
        ("select repeat from lite.pairs", "in lite.pairs.", "Did you mean 'repeats'?"),
        ("select repeat from lite_pairs", "in lite.pairs.", "Did you mean 'repeats'?"),
        ("select REPAETS from lite.pairs", "in lite.pairs.", "Did you mean 'repeats'?"),
        ("select trust from lite.pairs", "in lite.pairs.", "duck.pairs, which is not in the query, has 'trusted'."),
        ("select total from lite.pairs", "in lite.pairs.", "Known: id, repeats."),
        (
            "select repeat from lite.pairs, duck.pairs",
            "'repeat'.",
            "Did you mean 'repeats', of lite.pairs or duck.pairs?",
        ),
        ("select * exclude (trusted) from lite.pairs", "in FROM clause", "Known: id, repeats."),
    ],
)
def test_hints_name_columns_of_the_tables_in_the_query(sql: str, detail: str, hint: str) -> None:
    tables = {"lite": {"pairs": "id int, repeats int"}, "duck": {"pairs": "id int, trusted int, repeats int"}}
    with closing(catalog_of(**tables)) as catalog:
        catalog.describe("from duck.pairs")  # a source of which the tables are known
        with pytest.raises(StatementError) as caught:
            catalog.describe(sql)
    assert caught.value.detail.endswith(detail)
    assert caught.value.hint == hint


@pytest.mark.parametrize(
    "sql",
    [
        "",
        " -- nothing",
        "select 1; select 2",
        "delete from pg.orders",
        "insert into pg.orders values (1)",
        "create table x (i int)",
        "drop table pg.orders",
        "attach ':memory:' as other",
        "copy pg.orders to '/tmp/x.csv'",
        "copy (select 1) to '/tmp/x.csv'",
        "install httpfs",
        "load httpfs",
        "set threads = 4",
        "pragma database_list",
        "explain select 1",
        "show tables",
        "describe pg.orders",
        "summarize pg.orders",
        "pivot pg.orders on s using sum(amt)",
        "begin",
        "call pragma_version()",
        "export database '/tmp/x'",
    ],
)
def test_only_one_query_may_stand_here(small: Catalog, sql: str) -> None:
    before = small.describe("from pg.orders")
    with pytest.raises(NotAQueryError):
        small.describe(sql)
    assert small.describe("from pg.orders") == before


@pytest.mark.parametrize(
    "sql", ["from information_schema.tables", "from pg_catalog.pg_tables", "from duckdb_tables()", "from sqlite_master"]
)
def test_tables_are_listed_by_show_tables(small: Catalog, sql: str) -> None:
    with pytest.raises(StatementError) as caught:
        bind(sql, small)
    assert_says(caught.value, "SHOW TABLES lists the tables, and DESCRIBE source.table")


@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("pragma table_info('orders')", "SHOW TABLES"),
        ("pragma threads = 4", "no settings"),
        ("pivot pg.orders on s using sum(amt)", "A PIVOT must name its values here.*ON a IN"),
    ],
)
def test_what_to_send_in_place_of_no_query(small: Catalog, sql: str, says: str) -> None:
    with pytest.raises(NotAQueryError) as caught:
        small.describe(sql)
    assert_says(caught.value, says)


@pytest.mark.parametrize(
    "sql",
    [
        "select * from read_csv('/etc/passwd')",
        "select * from read_text('/etc/passwd')",
        "select * from read_parquet('http://127.0.0.1:9/x.parquet')",
        "select * from '/etc/passwd'",
        "select * from glob('/etc/*')",
        "select getenv('HOME')",
        "select * from sqlite_scan('/tmp/x.db', 't')",
        "from postgres_query('pg', 'select 1')",
        "select * from sql",
    ],
)
def test_nothing_outside_is_in_reach(small: Catalog, sql: str) -> None:
    with pytest.raises(StatementError) as caught:
        small.describe(sql)
    assert ".duckdb" not in str(caught.value)
    assert "install" not in str(caught.value)


def test_views(small: Catalog) -> None:
    assert small.describe("from busy") == (("id", "INTEGER"), ("name", "VARCHAR"))
    assert small.describe("from ABOVE") == (("n", "BIGINT"),)
    assert small.describe('select busy.id from busy, "above"') == (("id", "INTEGER"),)
    assert small.shapes_of_views().keys() == {"busy", "above"}
    assert {"lost", "wrong", "round", "trip"} <= small.problems.keys()


def test_uploads(small: Catalog) -> None:
    before = small.version
    small.upload("Mine", pa.table({"id": pa.array([1], pa.int64()), "x": ["a"]}))
    assert small.version != before
    assert small.describe("select m.*, o.amt from mine m join pg.orders o using (id)") == (
        ("id", "BIGINT"),
        ("x", "VARCHAR"),
        ("amt", "DECIMAL(12,2)"),
    )
    data = small.uploads.get("MINE")
    assert data is not None
    assert data.num_rows == 1
    assert small.uploads.get("other") is None
    small.upload("mine", pa.table({"y": [1.5]}))
    assert small.describe("from mine") == (("y", "DOUBLE"),)
    with pytest.raises(ParameterError, match="a view 'busy'"):
        small.upload("busy", data)
    with pytest.raises(ParameterError, match="same name: a"):
        small.upload("other", pa.table([[1], [2]], names=["a", "A"]))
    for nameless in (pa.table({}), pa.table({"": [1]}), pa.table({"a\0": [1]})):
        with pytest.raises(ParameterError, match="without a name"):
            small.upload("other", nameless)


def test_operation_calls() -> None:
    function = {"url": "http://127.0.0.1:9/", "arguments": ["VARCHAR", "INTEGER"], "returns": "DOUBLE"}
    catalog = Catalog(FederationSettings(functions={"blast": function}), sources=())
    assert catalog.describe("select Blast('x', 1), sum(blast('y', 2))")[0][1] == "DOUBLE"
    with pytest.raises(StatementError, match=r"blast\(INTEGER, VARCHAR\)"):
        catalog.describe("select blast(1, 'x'::varchar)")
    catalog.close()
    broken = Catalog(FederationSettings(functions={"f": {**function, "returns": "NOTHING"}}), sources=())
    with pytest.raises(ConfigurationError, match=r"functions.f: .* are not DuckDB types"):
        broken.describe("select 1")
    broken.close()
    taken = Catalog(FederationSettings(functions={"entropy": function}), sources=())
    with pytest.raises(ConfigurationError, match=r"functions.entropy: DuckDB already has a function of this name"):
        taken.describe("select 1")
    taken.close()


@pytest.mark.parametrize(
    ("sql", "hint"),
    [
        ("select 1 from range(3) t(id) having ten(sum(id)) > 1", "Cast the argument: ten(sum(id)::BIGINT)."),
        ("select ten(sum(id) + 1) from range(3) t(id)", "Cast the argument: ten(CAST(sum(id) + 1 AS BIGINT))."),
        ("select ten(t.x) from (values ('x')) t(x)", "Cast the argument: ten(t.x::BIGINT)."),
        ("select ten(1, 2)", "The function takes: ten(BIGINT) -> BIGINT. Cast the arguments."),
        (
            "select two(1, sum(id)) from range(3) t(id)",
            "The function takes: two(BIGINT, VARCHAR) -> BIGINT. Cast the arguments.",
        ),
        ("select date_part([1], [2])", "Cast the arguments"),
    ],
)
def test_arguments_of_other_types_are_to_be_cast(sql: str, hint: str) -> None:
    functions = {
        name: {"url": "http://127.0.0.1:9/", "arguments": arguments, "returns": "BIGINT"}
        for name, arguments in {"ten": ["BIGINT"], "two": ["BIGINT", "VARCHAR"]}.items()
    }
    catalog = Catalog(FederationSettings(functions=functions), sources=())
    with pytest.raises(StatementError, match="No function matches") as caught:
        catalog.describe(sql)
    assert hint in str(caught.value.hint)
    if "::BIGINT" in hint:
        called = str(caught.value.hint).partition("argument: ")[2].rstrip(".")
        catalog.describe(sql.replace("ten(sum(id))", called).replace("ten(t.x)", called))
    catalog.close()


def test_many_threads_describe_at_once(small: Catalog) -> None:
    queries = ["from pg.orders", "from busy", "from maria.regions", "from pg_people", 'from "above"'] * 8
    with ThreadPoolExecutor(8) as pool:
        actual = list(pool.map(small.describe, queries))
    assert actual == [small.describe(each) for each in queries]
